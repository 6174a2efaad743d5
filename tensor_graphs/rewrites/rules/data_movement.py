"""data_movement: reshape, permute, expand, pad, slice, concat, cast and reductions in sequence. Bitwise, but for float sums."""

from __future__ import annotations

from typing import Any

from tensor_graphs.language import atomic
from tensor_graphs.language.dim_proofs import dim_ge
from tensor_graphs.language.node import Node
from tensor_graphs.rewrites.rule import BITWISE, REASSOCIATING, Refused, RuleTable

TABLE = RuleTable("move")
Axes = tuple[int, ...]


TABLE.row("reshape-to-itself", "reshape(x, shape=s)", BITWISE,
          lambda x, s: x if all(map(atomic.same_dim, x.shape, s)) and len(s) == x.rank else None)
TABLE.row("reshape-twice", "reshape(reshape(x, shape=a), shape=b)", BITWISE, lambda x, b: atomic.reshape(x, b))


@TABLE.rule("permute(x, axes=a)", BITWISE)
def permute_to_itself(x: Node, a: Axes) -> Node | None:
    """Replace a permutation that keeps the order of all axes longer than 1 by a reshape."""
    long = [i for i in a if x.shape[i] != 1]
    return atomic.reshape(x, [x.shape[i] for i in a]) if long == sorted(long) else None


TABLE.row("permute-twice", "permute(permute(x, axes=a), axes=b)", BITWISE, lambda x, a, b: atomic.permute(x, [a[i] for i in b]))
TABLE.row("expand-to-itself", "expand(x, shape=s)", BITWISE, lambda x, s: x if all(map(atomic.same_dim, x.shape, s)) else None)
TABLE.row("expand-twice", "expand(expand(x, shape=a), shape=b)", BITWISE, lambda x, b: atomic.expand(x, b))


@TABLE.rule("slice(x, bounds=b)", BITWISE)
def slice_to_itself(x: Node, b: Any) -> Node | None:
    whole = [atomic.same_dim(lo, 0) and atomic.same_dim(hi, s) and step == 1 for (lo, hi, step), s in zip(b, x.shape, strict=True)]
    return x if all(whole) else None


@TABLE.rule("slice(slice(x, bounds=a), bounds=b)", BITWISE)
def slice_twice(x: Node, a: Any, b: Any) -> Node | None:
    """Combine two slices: element i of the outer one is element lo2 + i·step2 of the inner one. Flips may cancel."""
    bounds = []
    for (lo, _, step), (lo2, hi2, step2) in zip(a, b, strict=True):
        first, count, both = lo + step * lo2, atomic.slice_size(lo2, hi2, step2), step * step2
        if both == 1:
            bounds.append((first, first + count, 1))
        elif isinstance(count, int) and isinstance(first, int) and count > 0:
            last = first + (count - 1) * both
            bounds.append((first, last + (1 if both > 0 else -1), both))
        else:
            return None
    return atomic.slice(x, bounds)


TABLE.row("slice-of-permute", "slice(permute(x, axes=a), bounds=b)", BITWISE,
          lambda x, a, b: atomic.permute(atomic.slice(x, [b[a.index(i)] for i in range(x.rank)]), a))


@TABLE.rule("slice(expand(x, shape=s), bounds=b)", BITWISE)
def slice_of_expand(x: Node, s: Any, b: Any) -> Node:
    """Slice before repeating: along a repeated axis a slice only changes the number of repetitions."""
    repeated = [x.shape[i] == 1 and s[i] != 1 for i in range(x.rank)]
    once = atomic.slice(x, [(0, 1, 1) if r else b[i] for i, r in enumerate(repeated)])
    return atomic.expand(once, [atomic.slice_size(*b[i]) for i in range(x.rank)])


TABLE.row("permute-of-expand", "permute(expand(x, shape=s), axes=a)", BITWISE,
          lambda x, s, a: atomic.expand(atomic.permute(x, a), [s[i] for i in a]))


@TABLE.rule("reshape(expand(x, shape=s), shape=t)", BITWISE, shapes="x[1, n, m]")
def reshape_of_expand(x: Node, s: Any, t: Any) -> Node | None:
    """Move a reshape that only adds or removes leading axes of size 1 before the expand."""
    core, target = list(s), list(t)
    lead = 0
    while lead < len(core) and core[lead] == 1:
        lead += 1
    lead_t = 0
    while lead_t < len(target) and target[lead_t] == 1:
        lead_t += 1
    if core[lead:] != target[lead_t:]:
        return None
    return atomic.expand(atomic.reshape(x, [1] * lead_t + list(x.shape[lead:])), t)


@TABLE.rule("slice(pad(x, padding=p, value=v), bounds=b)", BITWISE)
def slice_of_pad(x: Node, p: Any, b: Any) -> Node | None:
    """Slice the operand of a pad if the slice takes no padding."""
    bounds = []
    for (lo, hi, step), (before, _), size in zip(b, p, x.shape, strict=True):
        lo, hi = lo - before, hi - before
        if step < 1 or dim_ge(lo, 0) is not True or dim_ge(size, hi) is not True:
            return None
        bounds.append((lo, hi, step))
    return atomic.slice(x, bounds)


@TABLE.rule("slice(concat(x, y, axis=k), bounds=b)", BITWISE, shapes="x[n, m] y[n, m]")
def slice_of_concat(x: Node, y: Node, k: int, b: Any) -> Node | None:
    """Slice one operand of a concatenation if the slice is inside that operand."""
    k = k % x.rank
    lo, hi, step = b[k]
    if step != 1:
        return None
    if dim_ge(x.shape[k], hi) is True:
        return atomic.slice(x, b)
    if dim_ge(lo, x.shape[k]) is True:
        moved = (lo - x.shape[k], hi - x.shape[k], 1)
        return atomic.slice(y, [moved if i == k else bound for i, bound in enumerate(b)])
    return None


@TABLE.rule("concat(slice(x, bounds=a), slice(x, bounds=b), axis=k)", BITWISE, shapes="x[n, m]")
def concat_of_slices(x: Node, a: Any, b: Any, k: int) -> Node | None:
    """Replace a concatenation of two adjacent slices by one slice."""
    k = k % x.rank
    fits = all(a[i] == b[i] for i in range(x.rank) if i != k) and atomic.same_dim(a[k][1], b[k][0])
    if not fits or a[k][2] != 1 or b[k][2] != 1:
        return None
    return atomic.slice(x, [(a[k][0], b[k][1], 1) if i == k else bound for i, bound in enumerate(a)])


TABLE.row("concat-of-one", "concat(x, axis=k)", BITWISE, lambda x: x)
# Integers only: a NaN's payload is not ours to keep.
TABLE.row("bitcast-twice", "bitcast(bitcast(x, dtype=a), dtype=b)", BITWISE,
          lambda x, a, b: atomic.bitcast(x, b) if x.dtype.is_integer and a.is_integer and b.is_integer else None)
TABLE.row("reshape-of-cast", "cast(reshape(x, shape=s), dtype=t)", BITWISE, lambda x, s, t: atomic.reshape(atomic.cast(x, t), s))
TABLE.row("permute-of-cast", "cast(permute(x, axes=a), dtype=t)", BITWISE, lambda x, a, t: atomic.permute(atomic.cast(x, t), a))
TABLE.row("expand-of-cast", "cast(expand(x, shape=s), dtype=t)", BITWISE, lambda x, s, t: atomic.expand(atomic.cast(x, t), s))


@TABLE.rule("reduce_max(x, axes=a)", BITWISE)
def max_over_nothing(x: Node, a: Axes) -> Node | None:
    """Replace a maximum over axes of size 1 by a reshape."""
    if not a or any(x.shape[i] != 1 for i in a):
        return None
    return atomic.reshape(x, [s for i, s in enumerate(x.shape) if i not in a])


@TABLE.rule("sum(x, axes=a)", BITWISE, dtypes=("int", "uint"))
def sum_over_nothing_integer(x: Node, a: Axes) -> Node | None:
    if not a or any(x.shape[i] != 1 for i in a) or not x.dtype.is_integer:
        return None
    return atomic.reshape(x, [s for i, s in enumerate(x.shape) if i not in a])


@TABLE.rule("sum(x, axes=a)", REASSOCIATING, dtypes=("float",))
def sum_over_nothing(x: Node, a: Axes) -> Node | None:
    """Replace a sum over axes of size 1 by a reshape; a sum may turn −0 into +0."""
    if not a or any(x.shape[i] != 1 for i in a):
        return None
    return atomic.reshape(x, [s for i, s in enumerate(x.shape) if i not in a])


def _twice(x: Node, a: Axes, b: Axes) -> Axes:
    left = [i for i in range(x.rank) if i not in a]
    return tuple(sorted((*a, *(left[i] for i in b))))


TABLE.row("max-twice", "reduce_max(reduce_max(x, axes=a), axes=b)", BITWISE, lambda x, a, b: atomic.reduce_max(x, _twice(x, a, b)))
TABLE.row("sum-twice-integer", "sum(sum(x, axes=a), axes=b)", BITWISE,
          lambda x, a, b: atomic.sum(x, _twice(x, a, b)) if x.dtype.is_integer else None, dtypes=("int", "uint"))
TABLE.row("sum-twice", "sum(sum(x, axes=a), axes=b)", REASSOCIATING,
          lambda x, a, b: atomic.sum(x, _twice(x, a, b)), dtypes=("float",))
TABLE.row("max-of-permute", "reduce_max(permute(x, axes=p), axes=a)", BITWISE,
          lambda x, p, a: _reduced_permute(atomic.reduce_max, x, p, a))
TABLE.row("sum-of-permute", "sum(permute(x, axes=p), axes=a)", REASSOCIATING, lambda x, p, a: _reduced_permute(atomic.sum, x, p, a))


def _reduced_permute(reduce: Any, x: Node, p: Axes, a: Axes) -> Node:
    gone = tuple(sorted(p[i] for i in a))
    remaining = [i for i in range(x.rank) if i not in gone]
    order = [remaining.index(p[i]) for i in range(x.rank) if i not in a]
    return atomic.permute(reduce(x, gone), order)


@TABLE.rule("reduce_max(expand(x, shape=s), axes=a)", BITWISE)
def max_of_expand(x: Node, s: Any, a: Axes) -> Node | None:
    """Take the maximum before the repetition along reduced axes."""
    gone = [i for i in a if x.shape[i] == 1 and s[i] != 1]
    if not gone or any(dim_ge(s[i], 1) is not True for i in gone):
        return None
    rest = [1 if i in gone else s[i] for i in range(x.rank)]
    return atomic.reduce_max(atomic.expand(x, rest), a)


REFUSED = (
    Refused("move/permute-is-reshape", BITWISE, "permute(x, axes=a)",
            lambda x, a: atomic.reshape(x, [x.shape[i] for i in a]), "elements change places", dtypes=("int",)),
    Refused("move/permute-twice-swapped", BITWISE, "permute(permute(x, axes=a), axes=b)",
            lambda x, a, b: atomic.permute(x, [b[i] for i in a]), "b is applied to what a gave", dtypes=("int",)),
    Refused("move/cast-and-back", BITWISE, "cast(cast(x, dtype=a), dtype=b)", lambda x, a, b: atomic.cast(x, b),
            "256 as u8 is 0", dtypes=("int",)),
)
