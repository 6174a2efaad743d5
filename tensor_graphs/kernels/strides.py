"""strides: the layout of arrays in memory, as strides counted in elements. Sizes and strides may contain symbolic dims."""

from __future__ import annotations

from collections.abc import Sequence

from tensor_graphs.language.atomic import same_dim
from tensor_graphs.language.dims import Dim

Strides = tuple[Dim, ...]
"""the strides of one operand: elements from one index to the next along each axis; 0 where all indices are one element"""


def contiguous_strides(shape: Sequence[Dim]) -> Strides:
    out: list[Dim] = []
    step: Dim = 1
    for s in reversed(shape):
        out.append(step)
        step = step * s
    return tuple(reversed(out))


def is_contiguous(shape: Sequence[Dim], strides: Sequence[Dim]) -> bool:
    """Return whether strides are C order without gaps. Strides of axes of size 1 are ignored."""
    step: Dim = 1
    for s, st in zip(reversed(shape), reversed(strides), strict=True):
        if s == 1:
            continue
        if s == 0:
            return True
        if st != step:
            return False
        step = step * s
    return True


def merged(shape: Sequence[Dim], *operands: Sequence[Dim]) -> tuple[Strides, list[Strides]]:
    """Return (sizes, strides of each operand) of the same layout with the fewest axes. Axes of size 1 are dropped. Two axes are
    merged where, in every operand, the outer stride is the inner size times the inner stride.

    >>> merged((5, 4, 8), (40, 8, 1), (0, 0, 0))        # rows of 32 with gaps between them, next to one number
    ((5, 32), [(40, 1), (0, 0)])
    """
    sizes: list[Dim] = []
    steps: list[list[Dim]] = [[] for _ in operands]
    for axis in reversed(range(len(shape))):
        if shape[axis] == 1:
            continue
        if sizes and all(same_dim(o[axis], s[-1] * sizes[-1]) for o, s in zip(operands, steps, strict=True)):
            sizes[-1] = sizes[-1] * shape[axis]
            continue
        sizes.append(shape[axis])
        for o, s in zip(operands, steps, strict=True):
            s.append(o[axis])
    return tuple(reversed(sizes)), [tuple(reversed(s)) for s in steps]


def rows(shape: Sequence[Dim], strides: Sequence[Dim]) -> tuple[Dim, Dim, Dim] | None:
    """Return where the rows (along the last axis) of an array begin: (group, far, near). A group has `group` rows, `near` elements
    from one to the next; groups begin `far` elements apart. Zeros: each row begins where the previous one ends. None: the rows have
    no such layout, or the elements of a row are not adjacent.

    >>> rows((5, 4, 8), (40, 8, 1)), rows((4, 5, 8), (8, 32, 1)), rows((5, 8), (8, 1)), rows((5, 8), (1, 5))
    ((4, 40, 8), (5, 8, 32), (0, 0, 0), None)
    """
    if is_contiguous(shape, strides):
        return 0, 0, 0
    if not shape or (shape[-1] != 1 and strides[-1] != 1):
        return None
    sizes, (steps,) = merged(shape[:-1], strides[:-1])
    if len(sizes) > 2:
        return None
    if len(sizes) < 2:
        return 1, steps[0] if steps else 0, 0
    return sizes[1], steps[0], steps[1]
