"""axis: checks the argument `axis=` for every op that has one. The argument is called `axis` for one axis and for several.

An axis is an int; a negative one counts from the back, as in numpy. Ops that reduce or reverse take one axis, a tuple of them, or
None for all. In nodes, files and patterns, the axes of such an op are stored as its attribute `axes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from tensor_graphs.language.errors import AttributeValueError

Axes: TypeAlias = int | Sequence[int] | None
"""One axis, several axes, or None for all axes."""


def one_axis(op: str, axis: int, rank: int, what: str = "axis") -> int:
    """Return the axis counted from the front. Raises AttributeValueError: no int, or not an axis of a tensor of this rank."""
    if isinstance(axis, bool) or not isinstance(axis, (int, np.integer)):
        several = axis is None or isinstance(axis, (tuple, list, range, np.ndarray))
        raise AttributeValueError(f"{op}: {what} is {axis!r}, an int is needed",
                                  fix=f"{op} works along one axis: {_choice(rank)}" if several else None)
    if not -rank <= axis < rank:
        raise AttributeValueError(f"{op}: {what} {axis} of a tensor of rank {rank}", fix=_choice(rank))
    return int(axis) % rank


def several_axes(op: str, axis: Axes, rank: int) -> tuple[int, ...]:
    """Return the axes, from the front, sorted; None means all. Raises AttributeValueError: no ints, out of range, one repeated."""
    if axis is None:
        return tuple(range(rank))
    if isinstance(axis, (int, np.integer)):
        return (one_axis(op, int(axis) if not isinstance(axis, bool) else axis, rank),)
    axes = _each(op, axis, rank)
    if len(set(axes)) != len(axes):
        raise AttributeValueError(f"{op}: axis {_plain(axis)} names an axis twice",
                                  fix=f"each axis once; counted from the front these are {', '.join(map(str, axes))}")
    return tuple(sorted(axes))


def axis_order(op: str, axis: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return a permutation of all axes, counted from the front. Raises AttributeValueError."""
    axes = _each(op, axis, rank)
    if len(axes) != rank:
        raise AttributeValueError(f"{op}: axis {_plain(axis)} names {len(axes)} of {rank} axes",
                                  fix=f"an order of all {rank} axes")
    if len(set(axes)) != rank:
        raise AttributeValueError(f"{op}: axis {_plain(axis)} names an axis twice", fix=f"an order of all {rank} axes, each once")
    return axes


def _each(op: str, axis: Axes, rank: int) -> tuple[int, ...]:
    if not isinstance(axis, (tuple, list, range, np.ndarray)) or np.ndim(axis) > 1:
        raise AttributeValueError(f"{op}: axis is {axis!r}, an int or a tuple of ints is needed")
    return tuple(one_axis(op, a, rank) for a in axis)


def _plain(axis: Axes) -> tuple[int, ...]:
    return tuple(int(a) for a in axis) if isinstance(axis, (tuple, list, range, np.ndarray)) else ()


def _choice(rank: int) -> str:
    return f"{-rank} to {rank - 1}" if rank else "a scalar has no axes"
