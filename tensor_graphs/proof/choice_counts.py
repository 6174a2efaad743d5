"""choice_counts: the number of random choices on which an element depends, which tells how many points show every combination.

A choice is the order of two or more numbers in max, less and similar ops, a given boolean or integer, or the sign of a root that
other roots determine: √(x²) is x or −x. (Roots whose operands are independent up to squares are no choices: with s² = a for such an
a, a formula that is not 0 for s is not 0 for −s. Operands are independent when no product of them is a square at all points, which
linear algebra over bits decides.) Functions that differ under one combination of s fair choices agree at a point with probability 1
− 2^−s. For a product all choices of the factors count. For a sum those of the harder term count (a nonzero polynomial of degree s
in fair bits is nonzero with probability ≥ 2^−s). For 1/x, √x, 2^x, comparisons, and an integer that is converted to a number of
another kind, all choices of the operand count.

This is another algebra for the op table: an element's value is two sets of choices, as bits of Python ints: all choices on which it
may depend, and those of its hardest term.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from tensor_graphs.language.atomic import python_slice
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.algebra import Array, At
from tensor_graphs.proof.errors import OutsideFragmentError

MOST_ELEMENTS = 300_000
"""Most elements of all nodes that depend on a choice; more would take seconds."""

MOST_ORDERS = 24

MOST_TIED = 3
"""Most values in one random order with ties: the order has enough levels for every pattern of ties (finite_field.py)."""

LINEAR = frozenset({"add", "sum", "xor", "cast"})
"""Ops of integers for which the choices of the harder operand count: where two integers differ, so do their sums with others."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Choices of each element, all and those of its hardest term: object arrays of ints whose set bits are choices."""

    every: Array
    hardest: Array

    def each(self, f: Callable[[Array], Array]) -> Choices:
        # asarray: an index of an array without axes gives the element itself
        return Choices(np.asarray(f(self.every), dtype=object), np.asarray(f(self.hardest), dtype=object))


@dataclass(frozen=True)
class ComparedOperands:
    """Operands of an ordering op at all points, stacked. axes: of a reduction. prime: of residues, 0 for integers."""

    values: Array
    axes: tuple[int, ...] = ()
    prime: int = 0


@dataclass(frozen=True)
class _Order:
    """One choice by order among different operands: their residues at all points, and the prime."""

    operands: tuple[bytes, ...]
    prime: int


def _choices(numbers: Sequence[int], shape: Sequence[int]) -> Choices:
    """Return Choices of this shape in which both `every` and `hardest` are `numbers`."""
    array = np.empty(len(numbers), dtype=object)
    array[:] = numbers
    return Choices(array.reshape(shape), array.reshape(shape))


def _unsigned(value: bytes, prime: int) -> bytes | None:
    """Return bytes that are equal for a value and its negation, None for 0."""
    array = np.frombuffer(value, dtype=np.uint64)
    if not array.any():
        return None
    first = int(array[np.flatnonzero(array)[0]])
    if not prime or 2 * first < prime:
        return value
    return np.where(array == 0, array, np.uint64(prime) - array).tobytes()


class Selections:
    """The algebra, one object for all graphs compared. A value is None where nothing is chosen. compared: operands of ordering ops
    in the field. indices: the integers of gather and scatter. roots: operands of roots, and where they are squares. ties: the order
    had ties."""

    def __init__(self, compared: Mapping[Node, ComparedOperands], indices: Mapping[Node, Array],
                 roots: Mapping[Node, tuple[Array, Array]], ties: bool = False) -> None:
        self.compared, self.indices, self.roots, self.ties = compared, indices, roots, ties
        self.orders: dict[int, _Order] = {}                 # choice -> what was put in order
        self._grounds: dict[bytes, tuple[int, tuple[frozenset[bytes], bool]]] = {}
        self._tracing: list[bytes] = []                     # operands whose grounds are being found
        self._inner: dict[bytes, int] = {}                  # operand of an order -> the choices that it depends on
        self._seen: dict[bytes, int] = {}                   # operand of a root -> its choice, 0 for none
        self._basis: dict[int, int] = {}                    # highest bit -> pattern of squares
        self.weights: list[float] = []
        self.numbers: dict[Any, int] = {}
        self.elements = 0
        self._weighed: dict[int, float] = {0: 0.0}
        self._ordered = 0                                   # the choices that are orders
        self._larger = np.frompyfunc(lambda a, b: a if self.weight(a) >= self.weight(b) else b, 2, 1)
        self._terms = np.frompyfunc(self._term, 5, 1)

    def choice(self, key: Any, weight: float) -> int:
        number = self.numbers.setdefault(key, len(self.weights))
        if number == len(self.weights):
            self.weights.append(weight)
        return 1 << number

    def weight(self, choices: int) -> float:
        """Return the total weight of a set of choices, in bits."""
        weight = self._weighed.get(choices)
        if weight is None:
            left, weight, orders = choices, 0.0, []
            while left:
                low = left & -left
                number = low.bit_length() - 1
                if number in self.orders:
                    orders.append(number)
                else:
                    weight += self.weights[number]
                left ^= low
            if len(orders) > MOST_ORDERS:
                weight += len(orders)                        # more than any number of points shows
            else:
                weight += sum(self._together(group) for group in self._groups(orders))
            self._weighed[choices] = weight
        return weight

    def _ground(self, operand: bytes, prime: int) -> tuple[frozenset[bytes], bool]:
        """Return (the values from which other orders chose an operand, whether it equals one of them at every point, as a maximum
        does); the operand itself where no order chose it."""
        inner = self._inner.get(operand, 0)
        cached = self._grounds.get(operand)
        if cached is None or cached[0] != inner:
            cached = self._grounds[operand] = (inner, self._grounds_of(operand, prime, inner))
        return cached[1]

    def _grounds_of(self, operand: bytes, prime: int, inner: int) -> tuple[frozenset[bytes], bool]:
        grounds: set[bytes] = set()
        self._tracing.append(operand)
        while inner:
            low = inner & -inner
            inner ^= low
            order = self.orders.get(low.bit_length() - 1)
            if order is not None:
                for value in order.operands:                 # in a cycle of choices a value is its own ground
                    grounds |= {value} if value in self._tracing else self._ground(value, prime)[0]
        self._tracing.pop()
        if not grounds:
            return frozenset({operand}), True
        mine = np.frombuffer(operand, dtype=np.uint64)
        one_of = np.zeros(mine.shape, dtype=np.bool_)
        for value in grounds:
            one_of |= np.frombuffer(value, dtype=np.uint64) == mine
        return frozenset(grounds), bool(one_of.all())

    def _groups(self, orders: list[int]) -> list[list[int]]:
        """Return the orders in groups: those that share a value, up to its sign, or choose among values of each other."""
        of: dict[bytes, int] = {}
        parent = list(range(len(orders)))

        def root(i: int) -> int:
            while parent[i] != i:
                i = parent[i]
            return i

        for i, number in enumerate(orders):
            order = self.orders[number]
            for operand in order.operands:
                for value in {operand, *self._ground(operand, order.prime)[0]}:
                    key = _unsigned(value, order.prime)
                    if key is not None:
                        parent[root(of.setdefault(key, i))] = root(i)
        groups: dict[int, list[int]] = {}
        for i, number in enumerate(orders):
            groups.setdefault(root(i), []).append(number)
        return list(groups.values())

    def _together(self, group: list[int]) -> float:
        """Return −log2 of the least probability of an outcome of all these orders.

        A random order of m values up to their signs has each pattern of signs with probability 2^-m. Within one pattern, take the
        outcomes of maxima of sets. If any two of the sets are disjoint or one is in the other, each outcome has at least Π
        1/(elements of a set); for any t sets it has at least m^-t (Knuth, vol. 3, 5.1.4, exercise 20: m!/Π(sizes of the sets below
        each) orders).
        """
        sets, signed, values, simple = [], False, set(), 0.0
        for number in group:
            order = self.orders[number]
            ground: set[bytes] = set()
            for operand in order.operands:
                below, one_of = self._ground(operand, order.prime)
                ground |= below
                signed |= not one_of
            keys = {_unsigned(v, order.prime) for v in ground}
            signed |= None in keys or len(keys) < len(ground)
            keys.discard(None)
            if len({_unsigned(v, order.prime) for v in order.operands} - {None}) > 1:
                sets.append(frozenset(keys))
                simple += math.log2(len(order.operands))
            values |= ground
        unsigned = {_unsigned(v, self.orders[group[0]].prime) for v in values} - {None}
        signed |= len(unsigned) < len(values)
        m = max(1, len(unsigned))
        if self.ties:
            if m > MOST_TIED:
                raise OutsideFragmentError(f"ties of {m} values that are compared with each other")
            return 3.0 * m
        nested = all(not (a & b) or a <= b or b <= a for k, a in enumerate(sets) for b in sets[:k])
        return (m if signed else 0.0) + (simple if nested else len(sets) * math.log2(m))

    def given(self, n: At, name: str, bits: float) -> Choices:
        """Return the choices of given integers or booleans: one for each element, with a weight of `bits` (integer_inputs.py)."""
        size = int(math.prod(n.shape))
        self._count(size)
        return _choices([self.choice((name, i), bits) for i in range(size)], n.shape)

    def _count(self, size: int) -> None:
        self.elements += size
        if self.elements > MOST_ELEMENTS:
            raise OutsideFragmentError(f"more than {MOST_ELEMENTS} elements depend on comparisons")

    def finish(self, n: At, value: Choices | None) -> Choices | None:
        if value is not None:
            self._count(value.every.size)
            if n.dtype.kind != "float" and n.node.op.name not in LINEAR:    # integers have divisors of 0: every choice counts
                return Choices(value.every, value.every)
        return value

    # ---- joining -----------------------------------------------------------------------------------------------------

    def _union(self, a: Array, b: Array) -> Array:
        return np.asarray(np.bitwise_or(a, b), dtype=object)

    def _larger_of(self, a: Array, b: Array) -> Array:
        return np.asarray(self._larger(a, b), dtype=object)

    def _join(self, x: Choices | None, y: Choices | None, hardest: Callable[[Array, Array], Array]) -> Choices | None:
        if x is None or y is None:
            return y if x is None else x
        return Choices(self._union(x.every, y.every), hardest(x.hardest, y.hardest))

    def _product(self, x: Choices | None, y: Choices | None) -> Choices | None:
        """Return the choices of a product. A factor that is a sum has terms besides its hardest one. Where the factors share a
        choice, or one depends on an order, which may depend on others, a product of other terms may be harder, and all choices
        count."""
        if x is None or y is None:
            return y if x is None else x
        every = self._union(x.every, y.every)
        return Choices(every, np.asarray(self._terms(x.every, x.hardest, y.every, y.hardest, every), dtype=object))

    def _term(self, x: int, hard_x: int, y: int, hard_y: int, every: int) -> int:
        if x == hard_x and y == hard_y:
            return every
        return every if x & y or self._ordered & (hard_x | hard_y) else hard_x | hard_y

    def _all(self, x: Choices | None) -> Choices | None:
        return None if x is None else Choices(x.every, x.every)

    def _event(self, n: At, *operands: Choices | None) -> Choices | None:
        """Return the choices that an ordering node adds: one for each set of different operands, equal in all nodes."""
        compared = self.compared.get(n.node)
        if compared is None:
            return None
        values, axes, shape = compared.values, compared.axes, n.shape
        if axes:
            width = math.prod(values.shape[1:][a] for a in axes)    # reshape cannot infer it without rows
            moved = np.moveaxis(values[0], axes, range(-len(axes) - 1, -1))
            values = np.moveaxis(moved.reshape(*shape, width, values.shape[-1]), -2, 0)
        count, size = values.shape[0], math.prod(shape)
        self._count(size * count)
        rows = np.ascontiguousarray(values.reshape(count, size, values.shape[-1]))      # size may be 0
        below = [None if o is None else o.every for o in operands]
        if axes and below[0] is not None:
            moved = np.moveaxis(below[0], axes, range(-len(axes), 0)).reshape(size, count)
            below = [moved[:, k] for k in range(count)]
        events = np.empty(size, dtype=object)
        for i in range(size):
            texts = [rows[k, i].tobytes() for k in range(count)]
            for k, text in enumerate(texts):
                inner = below[k] if k < len(below) else None
                if inner is not None and (choices := inner.reshape(-1)[i]):
                    self._inner[text] = self._inner.get(text, 0) | choices
            distinct = frozenset(texts)
            if len(distinct) < 2:
                events[i] = 0
                continue
            events[i] = self.choice((distinct, compared.prime), math.log2(len(distinct)))
            self._ordered |= events[i]
            self.orders.setdefault(events[i].bit_length() - 1, _Order(tuple(sorted(distinct)), compared.prime))
        events = events.reshape(shape)
        return Choices(events, events)

    def atom(self, n: At, *operands: Choices | None) -> Choices | None:
        """Return the choices of a keyed random function: all those of its operands, and one for each set of operands."""
        joined: Choices | None = None
        for operand in operands:
            joined = self._join(joined, operand, self._union)
        values = self.compared[n.node].values
        size = math.prod(n.shape)
        self._count(size)
        rows = np.ascontiguousarray(values.reshape(len(values), size, values.shape[-1]))
        own = [self.choice((n.node.op.name, n.dtype.name, rows[:, i].tobytes()), 1.0) for i in range(size)]
        return self._join(joined, _choices(own, n.shape), self._union)

    # ---- rows --------------------------------------------------------------------------------------------------------

    def iota(self, n: At) -> None:
        return None

    def reciprocal(self, n: At, x: Choices | None) -> Choices | None:
        return self._all(x)

    exp2 = log2 = sin = floor = erf = reciprocal

    def sqrt(self, n: At, x: Choices | None) -> Choices | None:
        root = self.roots.get(n.node)
        if root is None:
            return self._all(x)
        operands, squares = (np.ascontiguousarray(a).reshape(-1, a.shape[-1]) for a in np.broadcast_arrays(*root))
        self._count(len(operands))
        signs = [self._sign(operand.tobytes(), square) for operand, square in zip(operands, squares, strict=True)]
        return self._all(self._join(x, _choices(signs, n.shape), self._union) if any(signs) else x)

    def _sign(self, operand: bytes, square: Array) -> int:
        """Return the choice of a root's sign, if the operand is, up to squares, a product of operands seen before; else 0."""
        choice = self._seen.get(operand)
        if choice is None:
            left = int.from_bytes(np.packbits(~square).tobytes(), "big")
            while left and left.bit_length() in self._basis:
                left ^= self._basis[left.bit_length()]
            if left:
                self._basis[left.bit_length()] = left
            choice = self._seen[operand] = 0 if left else self.choice(("sign", operand), 1.0)
        return choice

    def cast(self, n: At, x: Choices | None) -> Choices | None:
        """Return all choices where an integer becomes a wider one or another kind (no polynomial then), else x unchanged."""
        old, new = n.input_types[0].dtype, n.dtype
        narrower = new.kind in ("int", "uint") and new.itemsize <= old.itemsize
        return x if old.kind not in ("int", "uint") or narrower else self._all(x)

    def bitcast(self, n: At, x: Choices | None) -> Choices | None:
        if x is None:
            return None
        together = reduce(operator.or_, x.every.reshape(-1), 0)
        return Choices(*[np.full(n.shape, together, dtype=object)] * 2)

    def add(self, n: At, x: Choices | None, y: Choices | None) -> Choices | None:
        return self._join(x, y, self._larger_of)

    def mul(self, n: At, x: Choices | None, y: Choices | None) -> Choices | None:
        return self._product(x, y)

    idiv = bit_and = mul
    bit_xor = add

    def max(self, n: At, x: Choices | None, y: Choices | None) -> Choices | None:
        return self._ordered_among(self._join(x, y, self._larger_of), self._event(n, x, y))

    def _ordered_among(self, among: Choices | None, event: Choices | None) -> Choices | None:
        """Return the choices of an op that selects one of several operands. With an event (a random order, drawn again for other
        values) those of the hardest operand count; without one (a known order) all, as the selection may depend on all."""
        return self._all(among) if event is None else self._product(event, among)

    def less(self, n: At, x: Choices | None, y: Choices | None) -> Choices | None:
        return self._all(self._join(self._join(x, y, self._union), self._event(n, x, y), self._union))

    not_equal = less

    def where(self, n: At, condition: Choices | None, x: Choices | None, y: Choices | None) -> Choices | None:
        return self._product(condition, self._join(x, y, self._larger_of))

    def dot(self, n: At, x: Choices | None, y: Choices | None) -> Choices | None:
        """Return every choice of the row and of the column; where both have any, all count for the hardest term."""
        if x is None and y is None:
            return None
        reduced: list[Choices | None] = []
        for operand, axis, type in ((x, -1, n.input_types[0]), (y, -2, n.input_types[1])):
            rank = len(type.shape)
            if operand is None:
                reduced.append(None)
                continue
            over = axis if rank > 1 else -1
            every = np.asarray(np.bitwise_or.reduce(operand.every, axis=over, keepdims=True), dtype=object)
            hardest = np.asarray(self._larger.reduce(operand.hardest, axis=over, keepdims=True), dtype=object)
            choices = Choices(every, hardest)
            reduced.append(choices if rank > 1 else choices.each(lambda a: a.reshape(1, 1)))
        row, column = reduced
        left, right = (len(t.shape) for t in n.input_types)
        shape = [*n.shape, *([1] if right == 1 else [])]            # with the axes that vectors lack
        if left == 1:
            shape.insert(len(shape) - 1, 1)

        def spread(a: Array) -> Array:
            return np.broadcast_to(a, shape).reshape(n.shape)

        if row is None or column is None:
            one = row if row is not None else column
            assert one is not None
            return one.each(spread)
        return Choices(*[spread(self._union(row.every, column.every))] * 2)

    def _reduce(self, n: At, x: Choices) -> Choices:
        every, hardest = x.every, x.hardest
        for axis in sorted(n.attrs["axes"], reverse=True):
            if every.shape[axis] == 0:
                shape = tuple(s for i, s in enumerate(every.shape) if i != axis)
                every = hardest = np.full(shape, 0, dtype=object)
            else:
                every = np.asarray(np.bitwise_or.reduce(every, axis=axis), dtype=object)
                hardest = np.asarray(self._larger.reduce(hardest, axis=axis), dtype=object)
        return Choices(every.reshape(n.shape), hardest.reshape(n.shape))

    def sum(self, n: At, x: Choices | None) -> Choices | None:
        return None if x is None else self._reduce(n, x)

    def reduce_max(self, n: At, x: Choices | None) -> Choices | None:
        return self._ordered_among(None if x is None else self._reduce(n, x), self._event(n, x))

    def reshape(self, n: At, x: Choices | None) -> Choices | None:
        return None if x is None else x.each(lambda a: a.reshape(n.shape))

    def permute(self, n: At, x: Choices | None) -> Choices | None:
        return None if x is None else x.each(lambda a: a.transpose(n.attrs["axes"]))

    def expand(self, n: At, x: Choices | None) -> Choices | None:
        return None if x is None else x.each(lambda a: np.broadcast_to(a, n.shape))

    def pad(self, n: At, x: Choices | None) -> Choices | None:
        if x is None:
            return None
        inside = tuple(slice(before, before + size)
                       for (before, _), size in zip(n.attrs["padding"], n.input_types[0].shape, strict=True))

        def put(a: Array) -> Array:
            out = np.full(n.shape, 0, dtype=object)
            out[inside] = a
            return out

        return x.each(put)

    def slice(self, n: At, x: Choices | None) -> Choices | None:
        at = tuple(python_slice(*bound) for bound in n.attrs["bounds"])
        return None if x is None else x.each(lambda a: a[at])

    def gather(self, n: At, x: Choices | None, index: Choices | None) -> Choices | None:
        axis, places = n.attrs["axis"], self.indices[n.node.inputs[1]]
        looked_up: Choices | None = None
        if x is not None and 0 not in n.shape:
            if places.shape[-1] == 1:
                at, size = places[..., 0], x.every.shape[axis]
                inside = (at >= 0) & (at < size)
                clipped = np.where(inside, at, 0).astype(np.intp)
                fits = inside.reshape([1] * axis + list(at.shape) + [1] * (len(n.shape) - axis - at.ndim))
                looked_up = x.each(lambda a: np.where(fits, np.take(a, clipped, axis=axis), 0)) if size else None
            else:                                           # any of the axis, as the index differs from point to point
                shape = (*n.shape[:axis], *([1] * (places.ndim - 1)), *n.shape[axis + places.ndim - 1:])
                every = np.asarray(np.bitwise_or.reduce(x.every, axis=axis), dtype=object).reshape(shape)
                looked_up = Choices(*[np.broadcast_to(every, n.shape)] * 2)
        if index is None:
            return looked_up
        shape = (*([1] * axis), *index.every.shape, *([1] * (len(n.shape) - axis - index.every.ndim)))
        return self._join(looked_up, index.each(lambda a: np.broadcast_to(a.reshape(shape), n.shape)), self._union)

    def scatter(self, n: At, base: Choices | None, index: Choices | None, updates: Choices | None) -> Choices | None:
        """Return the choices of the elements of a scatter, to each of which any update may go. In mode add, each term of an element
        depends on one index."""
        together, hardest = 0, 0
        axis = n.attrs["axis"]
        before, after = len(n.shape[:axis]), len(n.shape[axis + 1:])
        operands = [] if updates is None else [updates.every]
        if index is not None:
            assert len(index.every.shape) == len(n.input_types[1].shape)
            operands.append(index.every.reshape([1] * before + list(index.every.shape) + [1] * after))
        terms = operands[0] if len(operands) == 1 else np.bitwise_or(*operands) if operands else None
        if terms is not None:
            for bits in np.asarray(terms, dtype=object).reshape(-1):
                together |= bits
                hardest = bits if self.weight(bits) > self.weight(hardest) else hardest
        rest = None
        if together:
            adds = n.attrs["mode"] == "add"
            rest = Choices(np.full(n.shape, together, dtype=object), np.full(n.shape, hardest if adds else together, dtype=object))
        return self._join(base, rest, self._larger_of if n.attrs["mode"] == "add" else self._union)
