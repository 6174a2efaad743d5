"""attention_masks: rewrites of masks, scales and repeated heads, written as ops, into attributes and operands of attention.

HiddenScores: softmax(where(seen, scores, −∞)) · v becomes attention with a mask. For a query that sees no key the softmax is NaN
and attention is 0, so the result is where(any(seen), attention(…), NaN).
SomeKeyIsSeen: for masks computed from positions, sizes decide whether each query sees a key. If so, any(seen) becomes true, and
that `where` disappears.
SeenByPosition: a mask computed from positions that means causal order, a window, or both becomes attributes.
ScaleOfScores: numbers by which q or k are multiplied or divided become the attribute `scale`.
GroupedHeads: k and v whose heads are repeated for several heads of q become operands without the repetitions.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tensor_graphs.language import atomic
from tensor_graphs.language import dims as d
from tensor_graphs.language.atomic import ATOMIC, same_dim
from tensor_graphs.language.axis import several_axes
from tensor_graphs.language.composite import LIBRARY
from tensor_graphs.language.composites import arithmetic, attention
from tensor_graphs.language.dim_proofs import dim_ge
from tensor_graphs.language.dims import Dim, Expr
from tensor_graphs.language.errors import LanguageError
from tensor_graphs.language.node import Node, apply
from tensor_graphs.rewrites.egraph import EGraph
from tensor_graphs.rewrites.enode import ENode
from tensor_graphs.rewrites.rule import BITWISE, REASSOCIATING, Candidate, Equalities, Index, NumericClass, Reach
from tensor_graphs.rewrites.rules.attention import attended, seen_by_all

DOT, SOFTMAX, ATTENTION = LIBRARY["dot"], LIBRARY["softmax"], LIBRARY["attention"]
DIV, SUB, NEG = LIBRARY["div"], LIBRARY["sub"], LIBRARY["neg"]
LESS_EQUAL, ANY = LIBRARY["less_equal"], LIBRARY["any"]
ADD, MUL, WHERE, LESS = ATOMIC["add"], ATOMIC["mul"], ATOMIC["where"], ATOMIC["less"]
AND, XOR, IOTA, CAST = ATOMIC["and"], ATOMIC["xor"], ATOMIC["iota"], ATOMIC["cast"]
EXPAND, RESHAPE, PERMUTE = ATOMIC["expand"], ATOMIC["reshape"], ATOMIC["permute"]

DEEPEST = 24
"""Largest depth of ops to which a mask is read."""


class _Reading(ABC):
    """Base class of reassociating rewrites that read the e-classes of an op's operands, again after any change below."""

    name = ""
    numeric_class: NumericClass = REASSOCIATING
    assuming: tuple[str, ...] = ()
    expanding = False
    reach: Reach = "above"
    root = ATTENTION.name

    def candidates(self, e: EGraph, index: Index) -> Iterator[Candidate]:
        for number, node in index.get(self.root, ()):
            for key, make in self.readings(e, node):
                def applied(node: ENode = node, make: Callable[[], Node | None] = make) -> Equalities | None:
                    try:
                        replacement = make()
                    except LanguageError:
                        return None
                    return None if replacement is None else [(e.instance(node), e.add(replacement))]

                place = (self.name, e.find(number), *map(e.find, node.children), repr(node.attrs_key), key)
                yield Candidate(place, node.term, applied)

    @abstractmethod
    def readings(self, e: EGraph, node: ENode) -> Iterator[tuple[str, Callable[[], Node | None]]]:
        """Yield, for an e-node of the root's op, a key that identifies a reading and a function that builds the replacement."""


# ---- scores that are hidden ------------------------------------------------------------------------------------------


class HiddenScores(_Reading):
    """Rewrite of a softmax of masked scores, times values, as attention with a mask."""

    name = "attention/hidden"
    root = DOT.name

    def readings(self, e: EGraph, node: ENode) -> Iterator[tuple[str, Callable[[], Node | None]]]:
        for weights in _of(e, node.children[0], SOFTMAX):
            for scores, mask in _hidden(e, weights.children[0]):
                for product in _of(e, scores, DOT):
                    def made(weights: ENode = weights, product: ENode = product, mask: Node = mask) -> Node | None:
                        return self._attended(e, node, weights, product, mask)

                    yield f"{weights.term} {product.term} {mask.key}", made

    def _attended(self, e: EGraph, node: ENode, weights: ENode, product: ENode, mask: Node) -> Node | None:
        q, k, v = (e.placeholder(c) for c in (*product.children, node.children[1]))
        n = q.shape[-2]
        seen = seen_by_all(mask, n, k.shape[-1])
        result = None if seen is None else attended(q, k, v, int(weights.attrs["axis"]), seen)
        if seen is None or result is None:
            return None
        some = atomic.reshape(arithmetic.any(seen, 1), (*(1,) * (result.rank - 2), n, 1))
        return atomic.where(atomic.expand(some, result.shape), result, atomic.fill(math.nan, result.shape, result.dtype))


def _of(e: EGraph, number: int, op: Any) -> list[ENode]:
    return [n for n in e.of(number).nodes if n.op is op]


def _is(e: EGraph, number: int, value: float) -> bool:
    splat = e.of(number).splat
    return isinstance(splat, (int, float)) and not isinstance(splat, bool) and splat == value


def _hidden(e: EGraph, number: int) -> Iterator[tuple[int, Node]]:
    """Yield (scores, mask of the scores that are kept) for a class of scores some of which are −∞."""
    for node in e.of(number).nodes:
        if node.op is WHERE:
            mask, yes, no = node.children
            if _is(e, no, -math.inf):
                yield yes, _stretched(e, mask)
            elif _is(e, yes, -math.inf):
                yield no, _stretched(e, mask, atomic.logical_not)
        elif node.op is ADD:
            for scores, added in (node.children, node.children[::-1]):
                seen = _left_alone(e, added, frozenset())
                if seen is not None:
                    yield scores, seen


def _stretched(e: EGraph, number: int, change: Callable[[Node], Node] = lambda x: x) -> Node:
    """Return `change` applied to a class; if the class is an expansion, to its operand, so that the result is an expansion."""
    for node in _of(e, number, EXPAND):
        return atomic.expand(change(e.placeholder(node.children[0])), node.attrs["shape"])
    return change(e.placeholder(number))


def _left_alone(e: EGraph, number: int, passed: frozenset[int]) -> Node | None:
    """Return a mask that is true where a class is 0, if all its elements are 0 or −∞; None for any other class."""
    number = e.find(number)
    for node in e.of(number).nodes:
        if node.op is WHERE:
            mask, yes, no = node.children
            if _is(e, yes, 0) and _is(e, no, -math.inf):
                return _stretched(e, mask)
            if _is(e, no, 0) and _is(e, yes, -math.inf):
                return _stretched(e, mask, atomic.logical_not)
        elif node.op in (EXPAND, RESHAPE, PERMUTE) and number not in passed:
            below = _left_alone(e, node.children[0], passed | {number})
            if below is not None:
                return apply(node.op, (below,), node.attrs)
    return None


# ---- masks of positions ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Line:
    """The linear form row · (number of the query) + key · (number of the key) + rest."""

    row: int
    key: int
    rest: Dim

    def plus(self, other: _Line, times: int = 1) -> _Line:
        return _Line(self.row + times * other.row, self.key + times * other.key, self.rest + times * other.rest)

    def at(self, row: Dim, key: Dim) -> Dim:
        return self.row * row + self.key * key + self.rest


Axes = tuple[int | None, ...]
"""The role of each axis of a class: 0 queries, 1 keys, None neither."""

BELOW = _Line(0, 0, 1)


def _moved(node: ENode, axes: Axes, shape: Sequence[Dim]) -> Axes | None:
    """Return the axis roles of a view's operand, given those of the view; None if the axes do not correspond."""
    if node.op is PERMUTE:
        order = node.attrs["axes"]
        return tuple(axes[order.index(i)] for i in range(len(shape)))
    if node.op is EXPAND:
        return tuple(None if size == 1 else axis for axis, size in zip(axes, shape, strict=True))
    target = node.attrs["shape"]
    longer = [(size, axis) for size, axis in zip(target, axes, strict=True) if size != 1]
    below = [i for i, size in enumerate(shape) if size != 1]
    if len(longer) != len(below) or not all(same_dim(size, shape[i]) for (size, _), i in zip(longer, below, strict=True)):
        return None
    moved: list[int | None] = [None] * len(shape)
    for i, (_, axis) in zip(below, longer, strict=True):
        moved[i] = axis
    return tuple(moved)


def _line(e: EGraph, number: int, axes: Axes, deep: int = DEEPEST) -> _Line | None:
    """Return a class of integers as a linear form in the query's and key's numbers; None if it has no such form."""
    eclass = e.of(number)
    if eclass.type.dtype.kind != "int" or eclass.type.dtype.itemsize < 4 or deep == 0:      # narrower ones wrap
        return None
    if isinstance(eclass.splat, (int, Expr)):
        return _Line(0, 0, eclass.splat)
    for node in eclass.nodes:
        line = _line_of(e, node, axes, deep - 1)
        if line is not None:
            return line
    return None


def _line_of(e: EGraph, node: ENode, axes: Axes, deep: int) -> _Line | None:
    below = node.children
    if node.op is IOTA:
        axis = axes[node.attrs["axis"] % len(axes)] if axes else None
        return _Line(int(axis == 0), int(axis == 1), 0)
    if node.op in (EXPAND, RESHAPE, PERMUTE):
        moved = _moved(node, axes, e.of(below[0]).type.shape)
        return None if moved is None else _line(e, below[0], moved, deep)
    if node.op is CAST or node.op is NEG:
        inner = _line(e, below[0], axes, deep)
        return inner if inner is None or node.op is CAST else _Line(0, 0, 0).plus(inner, -1)
    if node.op is ADD or node.op is SUB:
        left, right = (_line(e, c, axes, deep) for c in below)
        return None if left is None or right is None else left.plus(right, 1 if node.op is ADD else -1)
    return None


def _below_zero(e: EGraph, number: int, axes: Axes, deep: int = DEEPEST) -> tuple[_Line, ...] | None:
    """Return linear forms, all of which are < 0 exactly where a class of booleans is true; None if it cannot be written so."""
    eclass = e.of(number)
    if eclass.splat is True:
        return ()
    if deep == 0:
        return None
    for node in eclass.nodes:
        below = node.children
        if node.op is LESS or node.op is LESS_EQUAL:
            left, right = (_line(e, c, axes) for c in below)
            if left is not None and right is not None:
                gap = left.plus(right, -1)
                return (gap if node.op is LESS else gap.plus(BELOW, -1),)
        elif node.op is AND:
            both = [_below_zero(e, c, axes, deep - 1) for c in below]
            if both[0] is not None and both[1] is not None:
                return (*both[0], *both[1])
        elif node.op is XOR:
            for inner, flag in (below, below[::-1]):
                lines = _below_zero(e, inner, axes, deep - 1) if e.of(flag).splat is True else None
                if lines is not None and len(lines) == 1:
                    return (_Line(0, 0, -1).plus(lines[0], -1),)
        elif node.op in (EXPAND, RESHAPE, PERMUTE):
            moved = _moved(node, axes, e.of(below[0]).type.shape)
            below_zero = None if moved is None else _below_zero(e, below[0], moved, deep - 1)
            if below_zero is not None:
                return below_zero
    return None


@dataclass(frozen=True)
class _KeyOrder:
    """The attributes causal, window and start of attention."""

    causal: bool
    window: int
    start: Dim


def _order(lines: Sequence[_Line], n: Dim, s: Dim) -> _KeyOrder | None:
    """Return attention's attributes: key − row − start ≤ 0 is causal order, row + start − key < window a window; else None."""
    order: dict[tuple[int, int], Dim] = {}
    for line in lines:
        if all(dim_ge(-1, line.at(row, key)) is True for row in (0, n - 1) for key in (0, s - 1)):
            continue                                                # true everywhere
        kind = (line.row, line.key)
        if kind not in ((-1, 1), (1, -1)) or kind in order:
            return None
        order[kind] = line.rest
    causal = (-1, 1) in order
    start: Dim = -order[-1, 1] - 1 if causal else 0
    window: Dim = start - order[1, -1] if (1, -1) in order else 0
    if dim_ge(start, 0) is not True or not isinstance(window, int) or (window <= 0 and (1, -1) in order):
        return None
    return _KeyOrder(causal, window, start)


class SeenByPosition(_Reading):
    """Rewrite of a mask computed from positions as attention's attributes causal, window and start."""

    name = "attention/positions"

    def readings(self, e: EGraph, node: ENode) -> Iterator[tuple[str, Callable[[], Node | None]]]:
        if len(node.children) != 4 or node.attrs["causal"] or node.attrs["window"]:
            return
        n, s = e.of(node.children[3]).type.shape
        for lines, rest in self._parts(e, node.children[3]):
            order = _order(lines, n, s)
            if order is not None and lines:
                yield f"{order} {rest}", lambda order=order, rest=rest: self._ordered(e, node, order, rest)  # type: ignore[misc]
                return

    def _parts(self, e: EGraph, number: int) -> Iterator[tuple[Sequence[_Line], int | None]]:
        """Yield (linear forms, rest) of a mask. rest: an operand of `and` without a linear form, None if there is none."""
        lines = _below_zero(e, number, (0, 1))
        if lines is not None:
            yield lines, None
            return
        for node in _of(e, number, AND):
            for one, other in (node.children, node.children[::-1]):
                lines = _below_zero(e, one, (0, 1))
                if lines is not None:
                    yield lines, other

    def _ordered(self, e: EGraph, node: ENode, order: _KeyOrder, rest: int | None) -> Node:
        operands = [e.placeholder(c) for c in (*node.children[:3], *([] if rest is None else [rest]))]
        result: Node = attention(*operands, scale=node.attrs["scale"], softcap=node.attrs["softcap"], causal=order.causal,
                               window=order.window, start=order.start)
        return result


class SomeKeyIsSeen(_Reading):
    """Rewrite of any(mask, keys) as true if sizes prove that each query sees a key. Bitwise."""

    name = "attention/some-key-is-seen"
    numeric_class: NumericClass = BITWISE
    root = ANY.name

    def readings(self, e: EGraph, node: ENode) -> Iterator[tuple[str, Callable[[], Node | None]]]:
        type = e.of(node.children[0]).type
        if type.rank != 2 or several_axes(ANY.name, node.attrs["axes"], 2) != (1,):
            return
        n, s = type.shape
        lines = _below_zero(e, node.children[0], (0, 1))
        if lines is not None and self._is_seen(lines, n, s):
            yield "", lambda: atomic.fill(True, (n,), type.dtype)

    def _is_seen(self, lines: Sequence[_Line], n: Dim, s: Dim) -> bool:
        """Return whether every query sees a key: the first, the last, or the key at the query's position."""
        if dim_ge(s, 1) is not True:
            return False
        own = [_Line(1, 0, -line.rest - 1) for line in lines if (line.row, line.key) == (-1, 1)]
        for key in (_Line(0, 0, 0), _Line(0, 0, s - 1), *own):
            inside = [key.plus(_Line(0, 0, s), -1), _Line(0, 0, -1).plus(key, -1)]      # key < s, −1 − key < 0
            met = [_Line(line.row, 0, line.rest).plus(key, line.key) for line in lines]
            if all(dim_ge(-1, at.at(row, 0)) is True for at in (*inside, *met) for row in (0, n - 1)):
                return True
        return False


# ---- numbers and views -----------------------------------------------------------------------------------------------


class ScaleOfScores(_Reading):
    """Rewrite of a factor of q or k as attention's attribute `scale`."""

    name = "attention/scale"

    def readings(self, e: EGraph, node: ENode) -> Iterator[tuple[str, Callable[[], Node | None]]]:
        scale = node.attrs["scale"]
        for at in (0, 1):
            unscaled = _unscaled(e, node.children[at], frozenset())
            if unscaled is not None and isinstance(scale, (int, float)):
                by, inner = unscaled

                def made(at: int = at, by: float = by, inner: Node = inner) -> Node:
                    operands = [inner if i == at else e.placeholder(c) for i, c in enumerate(node.children)]
                    return apply(ATTENTION, operands, {**node.attrs, "scale": float(scale) * by})

                yield f"{at} {by} {inner.key}", made


def _unscaled(e: EGraph, number: int, passed: frozenset[int]) -> tuple[float, Node] | None:
    """Return (number, rest) for a class that is a number times a rest, possibly below views; None for any other class."""
    number = e.find(number)
    for node in e.of(number).nodes:
        pairs = [node.children, node.children[::-1]] if node.op is MUL else [node.children] if node.op is DIV else []
        for rest, by in pairs:
            value = e.of(by).splat
            if isinstance(value, (int, float)) and math.isfinite(value) and value != 0 and e.find(rest) != number:
                return (1.0 / value if node.op is DIV else float(value)), e.placeholder(rest)
    for node in e.of(number).nodes:
        if node.op in (RESHAPE, PERMUTE) and number not in passed:
            below = _unscaled(e, node.children[0], passed | {number})
            if below is not None:
                return below[0], apply(node.op, (below[1],), node.attrs)
    return None


class GroupedHeads(_Reading):
    """Rewrite of attention to k and v with repeated heads as attention without the repetitions. It reads the same numbers."""

    name = "attention/grouped"

    def readings(self, e: EGraph, node: ENode) -> Iterator[tuple[str, Callable[[], Node | None]]]:
        k, v = (_unrepeated(e, c) for c in node.children[1:3])
        if k is not None and v is not None and same_dim(k.shape[1], v.shape[1]):
            yield f"{k.key} {v.key}", lambda: apply(
                ATTENTION, [e.placeholder(node.children[0]), k, v, *map(e.placeholder, node.children[3:])], node.attrs)


def _unrepeated(e: EGraph, number: int) -> Node | None:
    """Return keys[s, heads, d] without the repetitions of each head, if it is permute(reshape(expand([…, 1, s, d])))."""
    for turned in _of(e, number, PERMUTE):
        if tuple(turned.attrs["axes"]) != (1, 0, 2):
            continue
        for flat in _of(e, turned.children[0], RESHAPE):
            for repeated in _of(e, flat.children[0], EXPAND):
                x, shape = e.placeholder(repeated.children[0]), repeated.attrs["shape"]
                lead = x.shape[:-2]
                count = len(lead)
                while count and lead[count - 1] == 1:
                    count -= 1
                fits = all(map(same_dim, lead[:count], shape[:count])) and all(map(same_dim, x.shape[-2:], shape[-2:]))
                if fits and count < len(lead) and all(map(same_dim, flat.attrs["shape"][1:], shape[-2:])):
                    own = atomic.reshape(x, (d.product(lead[:count]), *x.shape[-2:]))
                    return atomic.permute(own, (1, 0, 2))
    return None


ATTENDING = (HiddenScores(), SomeKeyIsSeen(), SeenByPosition(), ScaleOfScores(), GroupedHeads())
