"""finite_field: the algebra that evaluates atomic ops on residues modulo primes, so that equal formulas have equal values.

A float leaf is a random residue modulo each prime of a chain (residues.py). Two expressions of +, ·, 1/x, √x, 2^x and log2 x that
are equal for all real numbers are equal modulo every prime at every point where both are defined. Two that are not equal differ at
nearly all points. The primes in which a value is known are its lanes: 2^x takes lane i to lane i + 1, log2 takes it back. A
function without residues (sin, floor, a second 2^x in one expression, a narrowing cast in bits mode) is a keyed random function of
the residue: equal operands give equal results.

The order of values is a keyed random order that negation reverses, a new one for each point. An identity of max, less and abs that
holds in every such order holds in the real one; one that mixes order with arithmetic (max(x, 0) = x) fails at half the points. x ≠
x is False; for different values ≠ is a keyed random bit, as they may be equal at some inputs but are not in general.

Integers and booleans are exact. Floats that depend on no float leaf (masks, iotas) are *known*: float64 with an error bound
(error_bounds.py). Known numbers that float64 does not tell apart are equal if their residues are, else undecided. −∞ is a symbol:
2^x makes it 0, max ignores it, + keeps it. An element without a value at a point (1/0, the root of a non-square, −∞ in any other
op) is bad at that point and compared at others.

Every array has a last axis over the points, of size 1 where all points agree. Values are never written to.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial, reduce
from typing import Any, Literal

import numpy as np

from tensor_graphs.language.atomic import AtomicOp, python_slice
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.algebra import Array, At, Real, narrow
from tensor_graphs.proof import error_bounds, exact_literals, residues
from tensor_graphs.proof.choice_counts import ComparedOperands
from tensor_graphs.proof.error_bounds import Bounded
from tensor_graphs.proof.errors import OutsideFragmentError

NEAR = 1e-9
"""Relative distance below which float64 does not tell two known numbers apart, however small their error bounds are."""

MOST_LITERALS = 20_000
"""Most different float constants in one node; the residues of more would take seconds."""

POLE = 2

BySign = Literal["", "keyed", "squares"]

_LEAST = np.int64(np.iinfo(np.int64).min)
_NO = np.zeros(1, dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class FieldValue:
    """A node's value at all points. Floats have lanes (residues by lane), real (float64 with its error, where no float leaf is
    below) and minus (where it is −∞); integers and booleans have exact. bad: where the value is undefined at a point, None for
    nowhere: 1 (or True) where exact arithmetic has no value, POLE where the real numbers have none (1/0); both may be set."""

    lanes: Mapping[int, Array] = field(default_factory=dict)
    exact: Array | None = None
    real: Bounded | None = None
    minus: Array | None = None
    bad: Array | None = None

    def each(self, f: Callable[[Array], Array]) -> FieldValue:
        """Return the value with every array passed through f, which only moves or repeats elements."""
        exact, minus, bad = (None if x is None else f(x) for x in (self.exact, self.minus, self.bad))
        real = None if self.real is None else self.real.each(f)
        return FieldValue({i: f(x) for i, x in self.lanes.items()}, exact, real, minus, bad)

    @property
    def integers(self) -> Array:
        assert self.exact is not None
        return self.exact


def _either(*masks: Array | None) -> Array | None:
    present = [mask for mask in masks if mask is not None]
    return reduce(lambda a, b: np.asarray(a | b), present) if present else None


def _everywhere(same: Any, real: Array) -> Array:
    """Return the mask `same`; where `real` has one number for all points, True only if the mask is True at all points."""
    return np.asarray(np.all(same, axis=-1, keepdims=True)) if real.shape[-1] == 1 else np.asarray(same)


@dataclass(frozen=True)
class Lanes:
    """Lanes in which each node of a graph is needed, and the nodes that are random functions (residue_lanes.py finds both)."""

    needed: Mapping[Node, frozenset[int]]
    random: frozenset[Node]
    compared_in: Mapping[Node, int]         # for ops that look at values: the lane in which they look


class Field:
    """The algebra at one batch of points (see the module docstring). chain: three primes. points: number of points. seed: of all
    random values, equal for all graphs compared. ties: orders have ties. by_sign: a rule for comparing by differences (`signs`).
    hanging: nodes that depend on a leaf. held: casts to floats that are exact (ranges.py)."""

    def __init__(self, chain: tuple[int, int, int], points: int, seed: int, lanes: Lanes, bits: bool = False,
                 ties: bool = False, by_sign: BySign = "",
                 hanging: Collection[Node] = (), held: Collection[Node] = ()) -> None:
        self.chain, self.points, self.seed, self.lanes, self.bits, self.ties = chain, points, seed, lanes, bits, ties
        self.by_sign, self.hanging, self.held = by_sign, hanging, held
        self.key = np.random.default_rng([seed, 1]).integers(0, 2**63, points, dtype=np.uint64)
        self._named: dict[tuple[str, int], Array] = {}
        self.selections: dict[Node, ComparedOperands] = {}
        self.sides: list[tuple[Array, Array, int]] = []     # what less compares, at the first point, with the prime
        self.roots: dict[Node, tuple[Array, Array]] = {}
        self.outcomes: dict[Node, tuple[bool, bool]] = {}
        self.exactly = Real()

    # ---- help --------------------------------------------------------------------------------------------------------

    def needed(self, n: At) -> frozenset[int]:
        return self.lanes.needed[n.node]

    def keyed(self, word: str) -> Array:
        """Return one hash key for each point, different for each `word`, which names the purpose."""
        number = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "little") >> 1
        return residues.mix(self.key, np.asarray(number, dtype=np.uint64))

    def named(self, word: str, lane: int) -> Array:
        """Return a random residue other than 0 for each point, in place of the constant `word`: ln 2 or √π."""
        if (word, lane) not in self._named:
            m = self.chain[lane]
            self._named[word, lane] = self.keyed(f"{word} {lane}") % np.uint64(m - 1) + np.uint64(1)
        return self._named[word, lane]

    def number(self, number: exact_literals.ClosedForm, lane: int) -> tuple[Array, Array | None]:
        """Return (residues [points or 1], bad) of a known number. A root is defined only where all prime factors of its square are
        squares modulo the prime: only then do the roots of several numbers have consistent signs, as real roots do."""
        m = self.chain[lane]
        ratio = number.factor.numerator * pow(number.factor.denominator, -1, m) % m
        out, bad = np.full(1, ratio, dtype=np.uint64), None
        if number.root != 1:
            square = np.full(1, number.root.numerator * pow(number.root.denominator, -1, m) % m, dtype=np.uint64)
            ok = all(pow(p, (m - 1) // 2, m) == 1 for p in exact_literals.primes(number.root.numerator * number.root.denominator))
            out, bad = out * residues.root(square, m)[0] % np.uint64(m), None if ok else np.ones(1, dtype=np.bool_)
        for word, exponent in (("ln2", number.ln2), ("root pi", number.root_pi)):
            if exponent:
                out = out * residues.power(self.named(word, lane), exponent % (m - 1), m) % np.uint64(m)
        return out, bad

    def of_reals(self, n: At, real: Array) -> FieldValue:
        """Return float constants as field values, [..., points or 1], each as the number that its literal denotes (0.1 is 1/10)."""
        finite = np.isfinite(real)
        minus = real == -np.inf
        bad: Array | None = ~(finite | minus)
        shown = error_bounds.literal(real, self.as_written(real))
        values, back = np.unique(np.where(finite, real, 0.0), return_inverse=True)
        back = back.reshape(real.shape)
        lanes: dict[int, Array] = {}
        if values.size > MOST_LITERALS:
            raise OutsideFragmentError(f"{n.node.op.name}: {values.size} different float constants", n.node.location)
        for lane in self.needed(n):
            numbers = [self.number(exact_literals.read(float(v)), lane) for v in values]
            width = max((r.size for r, _ in numbers), default=1)
            table = np.stack([np.broadcast_to(r, width) for r, _ in numbers]) if numbers else np.zeros((1, 1), dtype=np.uint64)
            wrong = np.asarray([b is not None for _, b in numbers], dtype=np.bool_)
            if real.shape[-1] == 1:
                lanes[lane] = table[back[..., 0]]
            else:
                lanes[lane] = table[back, 0 if width == 1 else np.arange(self.points)]
            if wrong.any():
                bad = _either(bad, wrong[back])
        return FieldValue(lanes, real=shown, minus=minus if minus.any() else None,
                          bad=bad if bad is not None and bad.any() else None)

    def as_written(self, real: Array) -> Array:
        """Return where floats denote their exact values (exact_literals.py)."""
        exact = error_bounds.held(real) | ~np.isfinite(real)
        if not exact.all():
            others = {v: exact_literals.read(v) == exact_literals.ClosedForm(Fraction(v)) for v in np.unique(real[~exact]).tolist()}
            exact[~exact] = [others[v] for v in real[~exact].tolist()]
        return exact

    def _binary(self, n: At, x: FieldValue, y: FieldValue, f: Callable[[Array, Array, int], Array],
                real: Callable[[Bounded, Bounded], Bounded]) -> FieldValue:
        lanes = {i: f(x.lanes[i], y.lanes[i], self.chain[i]) for i in self.needed(n)}
        number = None
        if x.real is not None and y.real is not None:
            number = real(x.real, y.real)
            if n.node.op.name == "add":
                number = self.settled(number, lanes)
        return FieldValue(lanes, real=number, bad=_either(x.bad, y.bad))

    def settled(self, total: Bounded, lanes: Mapping[int, Array]) -> Bounded:
        """Return sums of known numbers. Where nearly all of a sum cancels, and its residue is that of the nearest whole number, the
        sum is replaced by that number, without an error."""
        off = ~(total.off <= NEAR * np.abs(total.value))
        if total.error is None or not lanes or not off.any():
            return total
        lane, residue = next(iter(lanes.items()))
        near = np.where(np.isfinite(total.value), np.round(total.value), 0.0)
        off = off & (np.abs(near) < 2.0**53) & ~(np.abs(total.value - near) > total.off)
        right = off & _everywhere(residues.whole(np.where(off, near, 0.0).astype(np.int64), self.chain[lane]) == residue, near)
        return Bounded(np.where(right, near, total.value), np.where(right, 0.0, total.off))

    def looked_at(self, n: At, *xs: FieldValue) -> list[Array]:
        """Return the residues in the lane in which the node compares its operands."""
        lane = self.lanes.compared_in[n.node]
        return [x.lanes[lane] for x in xs]

    def ranks(self, n: At, *xs: FieldValue, ties: bool = False) -> list[Array]:
        """Return the ranks of operands in the keyed order (or the operands, where all are known numbers); −∞ is below all. ties:
        use a coarser order of 7 levels, in which different residues may have equal ranks, or the rank of 0."""
        if all(x.real is not None for x in xs):
            return self.exact_order(n, *xs)
        lane = self.lanes.compared_in[n.node]
        key, out = self.keyed("order"), []
        for x in xs:
            rank = residues.rank(x.lanes[lane], key, self.chain[lane])
            if ties:
                rank = np.sign(rank) * (np.abs(rank) >> np.int64(60))
            out.append(rank if x.minus is None else np.where(x.minus, _LEAST, rank))
        return out

    def signs(self, n: At, x: FieldValue, y: FieldValue) -> tuple[Array, Array]:
        """Return ranks of two operands that depend on the sign of their difference alone: x < y and x + z < y + z are then equal.

        keyed: the sign is a random odd function of the difference. squares: it tells whether the difference is a square. This is
        odd, as −1 is no square, and multiplies as signs do: a product, x², 2^x and a root have their real signs (decision 0014).
        """
        if (x.real is not None and y.real is not None) or x.minus is not None or y.minus is not None:
            a, b = self.ranks(n, x, y)
            return a, b
        lane = self.lanes.compared_in[n.node]
        m = np.uint64(self.chain[lane])
        gap = np.asarray((x.lanes[lane] + m - y.lanes[lane]) % m)
        if self.by_sign == "keyed":
            return np.sign(residues.rank(gap, self.keyed("sign"), self.chain[lane])), np.zeros(1, dtype=np.int64)
        square = residues.power(gap, (self.chain[lane] - 1) // 2, self.chain[lane])
        return np.where(gap == 0, 0, np.where(square == 1, 1, -1)), np.zeros(1, dtype=np.int64)

    def exact_order(self, n: At, *xs: FieldValue) -> list[Array]:
        """Return two known numbers in a form to compare: equal where their residues are equal, else unequal by more than their
        errors. Raises OutsideFragmentError where neither holds."""
        reals = [x.real for x in xs if x.real is not None]
        if len(reals) == 1:
            return [reals[0].value]
        x, y = reals
        a, b = np.broadcast_arrays(x.value, y.value)
        one, other = self.looked_at(n, *xs)
        infinite = x.infinite | y.infinite
        same = np.broadcast_to(_everywhere(one == other, a), a.shape) & ~infinite
        apart = np.abs(a - b) > np.maximum(NEAR * np.maximum(np.abs(a), np.abs(b)), (x.off + y.off) * (1.0 + NEAR))
        self.decided(n, apart & x.shown & y.shown | same | infinite, *xs)
        return [np.where(same, 0.0, a), np.where(same, 0.0, b)]

    def decided(self, n: At, where: Array, *xs: FieldValue) -> None:
        """Raise OutsideFragmentError (float64 does not tell known numbers apart) unless `where` holds wherever xs are defined."""
        bad = _either(*(x.bad for x in xs))
        if np.any(~where if bad is None else ~where & (bad == 0)):
            raise OutsideFragmentError("float64 does not tell two known numbers apart", n.node.location)

    def chance(self, n: At, *xs: FieldValue, axes: tuple[int, ...] = ()) -> None:
        """Record that the result of a node depends on the order of these operands (for choice_counts.py)."""
        if any(x.real is None for x in xs):
            operands = np.broadcast_arrays(*self.looked_at(n, *xs))
            prime = self.chain[self.lanes.compared_in[n.node]]
            if self.by_sign and len(operands) == 2:         # a choice of the difference alone
                gap = np.asarray((operands[0] + np.uint64(prime) - operands[1]) % np.uint64(prime))
                operands = (gap, np.zeros_like(gap))
            self.selections[n.node] = ComparedOperands(np.stack(operands), axes, prime)
            if n.node.op.name == "less":
                self.sides.append((operands[0][..., 0].reshape(-1), operands[1][..., 0].reshape(-1), prime))

    def random_function(self, n: At, x: FieldValue, word: str, odd: bool) -> FieldValue:
        m = self.chain[self.lanes.compared_in[n.node]]
        (seen,) = self.looked_at(n, x)
        lanes = {i: residues.oracle(seen, self.keyed(f"{word} {i}"), m, self.chain[i], odd) for i in self.needed(n)}
        return FieldValue(lanes, bad=_either(x.bad, x.minus))

    def atom(self, n: At, *operands: FieldValue) -> FieldValue:
        """Return a node's integers or booleans as a keyed random function of its integer operands (integer_inputs.py). Commutative
        ops stay commutative; x < x and x ≠ x are False."""
        integers = np.broadcast_arrays(*(x.integers for x in operands))
        self.selections[n.node] = ComparedOperands(np.stack([
            i.astype(np.int64, copy=False) if i.dtype != np.uint64 else i.view(np.int64) for i in integers]))
        words = list(self.selections[n.node].values)
        if isinstance(n.node.op, AtomicOp) and n.node.op.commutative:
            words = [np.minimum(*words), np.maximum(*words)]
        mixed = self.keyed(f"{n.node.op.name} {n.dtype.name}")
        for word in words:
            mixed = residues.mix(word.view(np.uint64), np.asarray(mixed))
        bad = _either(*(x.bad for x in operands))
        if n.dtype.kind != "bool":
            return FieldValue(exact=mixed.astype(n.dtype.numpy), bad=bad)
        differ = np.asarray(words[0] != words[1]) if len(words) == 2 else np.ones((), dtype=np.bool_)
        return FieldValue(exact=differ & _a_bit(mixed), bad=bad)

    def seen(self, x: FieldValue) -> FieldValue:
        """Return a value with integers replaced by a keyed random function of them: a sum read as bits, or bits as a number."""
        mixed = residues.mix(x.integers.astype(np.uint64), self.keyed(f"seen {x.integers.dtype}"))
        return dataclasses.replace(x, exact=mixed.astype(x.integers.dtype))

    # ---- sources and elementwise -------------------------------------------------------------------------------------

    def constant(self, n: At, value: bool | int | float | Array) -> FieldValue:
        array = self.exactly.constant(n, value)[..., None]
        return FieldValue(exact=array) if n.dtype.kind != "float" else self.of_reals(n, self.as_held(array, n.dtype))

    def as_held(self, real: Array, dtype: DType) -> Array:
        """Return known floats rounded to a dtype below 32 bits, in bits mode; else unchanged."""
        return narrow(real, dtype).astype(np.float64) if self.bits and dtype.itemsize < 4 else real

    def finish(self, n: At, value: FieldValue) -> FieldValue:
        return value

    def iota(self, n: At) -> FieldValue:
        line = self.exactly.iota(n)[..., None]
        if n.dtype.kind != "float":
            return FieldValue(exact=line)
        line = self.as_held(line, n.dtype)
        if not np.isfinite(line).all():
            raise OutsideFragmentError(f"iota of {n.dtype.name} beyond its range", n.node.location)
        return FieldValue({i: residues.whole(line.astype(np.int64), self.chain[i]) for i in self.needed(n)}, real=Bounded(line))

    def reciprocal(self, n: At, x: FieldValue) -> FieldValue:
        lanes = {i: residues.inverse(x.lanes[i], self.chain[i]) for i in self.needed(n)}
        pole = None
        for lane in lanes.values():                         # a residue is 0 by chance once in 10^9 times
            zero = lane == 0 if x.bad is None else (lane == 0) & (x.bad == 0)
            pole = _either(pole, zero * np.uint8(POLE)) if zero.any() else pole
        real = None if x.real is None else error_bounds.reciprocal(x.real)
        return FieldValue(lanes, real=real, bad=_either(x.bad, x.minus, pole))

    def sqrt(self, n: At, x: FieldValue) -> FieldValue:
        lanes, bad = {}, _either(x.bad, x.minus)
        if x.real is not None:
            return self.known_root(n, x, bad)
        for i in self.needed(n):
            lanes[i], ok = residues.root(x.lanes[i], self.chain[i])
            bad = _either(bad, ~ok)
            self.roots[n.node] = (x.lanes[i], ok)
        return FieldValue(lanes, bad=bad)

    def known_root(self, n: At, x: FieldValue, bad: Array | None) -> FieldValue:
        """Return the positive roots of known fractions. Raises OutsideFragmentError for the root of any other known number, as the
        residue of a root does not show its sign."""
        assert x.real is not None
        real = x.real.value
        if not (x.real.shown & ((real > x.real.off) | (x.real.off == 0))).all() or (real < 0).any():
            raise OutsideFragmentError("the root of a known number that may be below 0", n.node.location)
        finite = np.unique(real[np.isfinite(real)]).tolist()
        squares = {value: exact_literals.near(value) for value in finite}             # verified below
        roots = {value: exact_literals.root_of(square) for value, square in squares.items()}
        lanes: dict[int, Array] = {}

        def put(forms: Mapping[float, exact_literals.ClosedForm], lane: int) -> tuple[Array, Array]:
            numbers = {v: self.number(form, lane) for v, form in forms.items()}
            width = max((r.size for r, _ in numbers.values()), default=1)
            out = np.zeros((*real.shape[:-1], max(width, real.shape[-1])), dtype=np.uint64)
            wrong = np.zeros(out.shape, dtype=np.bool_)
            for v, (residue, undefined) in numbers.items():
                out = np.where(real == v, residue, out)
                wrong |= (real == v) & (undefined is not None)
            return out, wrong

        for i in self.needed(n):
            if np.any((put(squares, i)[0] != x.lanes[i]) & np.isfinite(real)):
                raise OutsideFragmentError("the root of a known number that is no fraction", n.node.location)
            lanes[i], wrong = put(roots, i)
            bad = _either(bad, wrong if wrong.any() else None)
        return FieldValue(lanes, real=error_bounds.sqrt(x.real), bad=bad)

    def exp2(self, n: At, x: FieldValue) -> FieldValue:
        real = None if x.real is None else error_bounds.exp2(x.real)
        if n.node in self.lanes.random:
            return dataclasses.replace(self.random_function(n, x, "exp2", odd=False), real=real)
        lanes = {i: residues.exp2(x.lanes[i - 1], self.chain[i]) for i in self.needed(n)}
        if x.minus is not None:
            lanes = {i: np.where(x.minus, np.uint64(0), lane) for i, lane in lanes.items()}
        return FieldValue(lanes, real=real, bad=x.bad)

    def log2(self, n: At, x: FieldValue) -> FieldValue:
        real = None if x.real is None else error_bounds.log2(x.real)
        if n.node in self.lanes.random:
            return dataclasses.replace(self.random_function(n, x, "log2", odd=False), real=real)
        lanes, bad, minus = {}, _either(x.bad, x.minus), None
        for i in self.needed(n):
            lanes[i], ok = residues.log2(x.lanes[i + 1], self.chain[i + 1])
            zero = x.lanes[i + 1] == 0
            minus = _either(minus, zero)
            bad = _either(bad, ~(ok | zero))
        return FieldValue(lanes, real=real, minus=minus if minus is not None and minus.any() else None, bad=bad)

    def sin(self, n: At, x: FieldValue) -> FieldValue:
        return dataclasses.replace(self.random_function(n, x, "sin", odd=True),
                                   real=None if x.real is None else error_bounds.sin(x.real))

    def erf(self, n: At, x: FieldValue) -> FieldValue:
        return self.random_function(n, x, "erf", odd=True)

    def dot(self, n: At, x: FieldValue, y: FieldValue) -> FieldValue:
        def matrices(a: Array, b: Array) -> tuple[Array, Array]:
            """Return both operands with the points axis first, a vector as a row or column, and equally many batch axes."""
            a, b = np.moveaxis(a, -1, 0), np.moveaxis(b, -1, 0)
            a = a[:, None, :] if a.ndim == 2 else a
            b = b[:, :, None] if b.ndim == 2 else b
            rank = max(a.ndim, b.ndim)
            return tuple(c.reshape(c.shape[0], *([1] * (rank - c.ndim)), *c.shape[1:]) for c in (a, b))  # type: ignore[return-value]

        def product(a: Array, b: Array, multiply: Callable[[Array, Array], Array]) -> Array:
            result = multiply(*matrices(a, b))
            return np.moveaxis(result.reshape(result.shape[0], *n.shape), 0, -1)

        lanes = {i: product(x.lanes[i], y.lanes[i], partial(residues.matmul, m=self.chain[i])) for i in self.needed(n)}
        bad: Array | None = None
        wrong = [_either(v.bad, v.minus) for v in (x, y)]
        for bit in (1, POLE):
            if not any(w is not None and (w & bit).any() for w in wrong):
                continue
            masks = [np.zeros((*t.shape, 1)) if w is None else np.asarray((w & bit) != 0, dtype=np.float64)
                     for t, w in zip(n.input_types, wrong, strict=True)]
            one, other = (np.ones_like(w) for w in masks)
            reached = (product(masks[0], other, np.matmul) + product(one, masks[1], np.matmul)) > 0
            bad = _either(bad, reached * np.uint8(bit))
        real = None
        if x.real is not None and y.real is not None:
            terms = int(n.input_types[0].shape[-1])
            real = self.settled(error_bounds.dot(x.real, y.real, terms, partial(product, multiply=np.matmul)), lanes)
        return FieldValue(lanes, real=real, bad=bad)

    def whole_numbers(self, n: At, x: FieldValue) -> Array:
        """Return known numbers, those equal to a whole number within their error as that number. Raises OutsideFragmentError where
        float64 does not show on which side of a whole number they are."""
        assert x.real is not None
        real = x.real.value
        near = np.round(real)
        close = np.isfinite(real) & (np.abs(real - near) <= np.maximum(NEAR * np.maximum(np.abs(near), 1.0), x.real.off))
        defined = np.ones((), dtype=np.bool_) if x.bad is None else x.bad == 0
        if np.any(~x.real.shown & defined):
            raise OutsideFragmentError(f"{n.node.op.name} of a known number that float64 does not show", n.node.location)
        if not close.any():
            return real
        lane = self.lanes.compared_in[n.node]
        exact = np.where(close & (np.abs(near) < 2.0**62), near, 0.0).astype(np.int64)
        same = _everywhere(residues.whole(exact, self.chain[lane]) == x.lanes[lane], real)
        if np.any(close & ~same & defined):
            raise OutsideFragmentError(f"{n.node.op.name} of a known number too near to a whole one", n.node.location)
        return np.where(close, near, real)

    def floor(self, n: At, x: FieldValue) -> FieldValue:
        if x.real is not None:
            return self.of_reals(n, np.floor(self.whole_numbers(n, x)))
        return self.random_function(n, x, "floor", odd=False)

    def cast(self, n: At, x: FieldValue) -> FieldValue:
        old, new = n.input_types[0].dtype, n.dtype
        if old.kind == "float":
            if new.kind == "float":
                return self._round(n, x, old, new)
            if x.real is not None:
                return FieldValue(exact=self.exactly.cast(n, self.whole_numbers(n, x)), bad=x.bad)
            kind = "a bool" if new.kind == "bool" else "an integer"
            raise OutsideFragmentError(f"{kind} made of a float that depends on inputs", n.node.location)
        if new.kind == "float":
            real = x.integers.astype(np.float64)
            if self.bits and n.node not in self.held:
                if n.node not in self.hanging:
                    result = self.of_reals(n, narrow(real, new).astype(np.float64))
                    return dataclasses.replace(result, bad=_either(result.bad, x.bad))
                m, key = self.chain[residues.MAIN], f"round to {new.name}"      # values that round may be rare among those drawn
                seen = residues.whole(x.integers, m)
                lanes = {i: residues.oracle(seen, self.keyed(f"{key} {i}"), m, self.chain[i], True) for i in self.needed(n)}
                return FieldValue(lanes, bad=x.bad)
            drawn = old.kind != "bool" and n.node.inputs[0] in self.hanging     # some of its values were drawn: no number is known
            return FieldValue({i: residues.whole(x.integers, self.chain[i]) for i in self.needed(n)}, bad=x.bad,
                              real=None if drawn else error_bounds.literal(real, np.abs(real) <= 2.0**53))
        return FieldValue(exact=self.exactly.cast(n, x.integers), bad=x.bad)

    def _round(self, n: At, x: FieldValue, old: DType, new: DType) -> FieldValue:
        narrower = new.epsilon > old.epsilon or new.max < old.max
        if not self.bits or not narrower or (n.node in self.held and self.needed(n) <= x.lanes.keys()):
            return dataclasses.replace(x, lanes={i: x.lanes[i] for i in self.needed(n)})
        if x.real is not None and (n.node not in self.hanging or n.node in self.held):
            result = self.of_reals(n, self.narrowed(n, x.real, new).astype(np.float64))
            return dataclasses.replace(result, bad=_either(result.bad, x.bad))
        return dataclasses.replace(self.random_function(n, x, f"round to {new.name}", odd=True), minus=x.minus, bad=x.bad)

    def narrowed(self, n: At, x: Bounded, dtype: DType) -> Array:
        """Return known numbers rounded to a dtype. Raises OutsideFragmentError where their errors allow two roundings."""
        one, other = (narrow(np.where(x.infinite, x.value, end), dtype) for end in x.ends())
        if not x.shown.all() or np.any(one != other):
            raise OutsideFragmentError(f"{n.node.op.name} of a known number that may round to either side", n.node.location)
        return narrow(x.value, dtype)

    def bitcast(self, n: At, x: FieldValue) -> FieldValue:
        old, new = n.input_types[0].dtype, n.dtype
        array = x.exact
        if x.real is not None:
            literal = n.node.inputs[0]
            while literal.op.facts.view:
                literal = literal.inputs[0]
            array = x.real.value if literal.op.name == "constant" else self.narrowed(n, x.real, old)
        if array is None or (new.kind == "float" and n.node.inputs[0] in self.hanging):
            raise OutsideFragmentError("the bytes of a float that depends on inputs", n.node.location)
        result = np.stack([self.exactly.bitcast(n, array[..., k]) for k in range(array.shape[-1])], axis=-1)
        bad = x.bad
        if bad is not None and bad.any():
            bad = np.broadcast_to(bad.any(axis=tuple(range(bad.ndim - 1))), result.shape)
        return self.of_reals(n, result) if new.kind == "float" else FieldValue(exact=result, bad=bad)

    def _of_integers(self, f: Callable[[At, Array, Array], Array], n: At, x: FieldValue, y: FieldValue) -> FieldValue:
        return FieldValue(exact=f(n, x.integers, y.integers), bad=_either(x.bad, y.bad))

    def add(self, n: At, x: FieldValue, y: FieldValue) -> FieldValue:
        if x.exact is not None:
            return self._of_integers(self.exactly.add, n, x, y)
        total = self._binary(n, x, y, lambda a, b, m: (a + b) % np.uint64(m), error_bounds.add)
        return dataclasses.replace(total, minus=_either(x.minus, y.minus))

    def mul(self, n: At, x: FieldValue, y: FieldValue) -> FieldValue:
        if x.exact is not None:
            return self._of_integers(self.exactly.mul, n, x, y)
        product = self._binary(n, x, y, lambda a, b, m: a * b % np.uint64(m), error_bounds.mul)
        minus: Array | None = None
        bad = product.bad
        for a, b in ((x, y), (y, x)):
            if a.minus is not None:                         # −∞ · c is −∞ for a known c > 0, else not a symbol
                positive = _NO if b.real is None else b.real.value > b.real.off
                minus, bad = _either(minus, a.minus & positive), _either(bad, a.minus & ~positive)
        return dataclasses.replace(product, minus=minus, bad=bad)

    def _choose(self, n: At, condition: Array, x: FieldValue, y: FieldValue) -> FieldValue:
        """Return elements of x where the condition holds, else of y."""
        def mask(a: Array | None, b: Array | None) -> Array | None:
            return None if a is None and b is None else np.where(condition, _NO if a is None else a, _NO if b is None else b)

        if x.exact is not None:
            return FieldValue(exact=np.where(condition, x.exact, y.integers), bad=mask(x.bad, y.bad))
        real = None
        if x.real is not None and y.real is not None:
            real = x.real.together(y.real, lambda a, b: np.where(condition, a, b))
        return FieldValue({i: np.where(condition, x.lanes[i], y.lanes[i]) for i in self.needed(n)}, real=real,
                          minus=mask(x.minus, y.minus), bad=mask(x.bad, y.bad))

    def max(self, n: At, x: FieldValue, y: FieldValue) -> FieldValue:
        if x.exact is not None:
            return FieldValue(exact=np.maximum(x.exact, y.integers), bad=_either(x.bad, y.bad))
        self.chance(n, x, y)
        a, b = self.signs(n, x, y) if self.by_sign else self.ranks(n, x, y)
        return dataclasses.replace(self._choose(n, np.asarray(a >= b), x, y), bad=_either(x.bad, y.bad))

    def idiv(self, n: At, x: FieldValue, y: FieldValue) -> FieldValue:
        return self._of_integers(lambda n, a, b: self.exactly.idiv(n, *np.broadcast_arrays(a, b)), n, x, y)

    def bit_and(self, n: At, x: FieldValue, y: FieldValue) -> FieldValue:
        return self._of_integers(self.exactly.bit_and, n, x, y)

    def bit_xor(self, n: At, x: FieldValue, y: FieldValue) -> FieldValue:
        return self._of_integers(self.exactly.bit_xor, n, x, y)

    def _outcome(self, n: At, result: FieldValue) -> FieldValue:
        """Record which outcomes (True, False) of an exact comparison occur, and return the result unchanged."""
        if result.integers.shape[-1] > 1 and result.integers.size:
            true, false = self.outcomes.get(n.node, (False, False))
            self.outcomes[n.node] = (true or bool(result.integers.any()), false or not bool(result.integers.all()))
        return result

    def less(self, n: At, x: FieldValue, y: FieldValue) -> FieldValue:
        if x.exact is not None:
            return self._outcome(n, self._of_integers(self.exactly.less, n, x, y))
        self.chance(n, x, y)
        a, b = self.signs(n, x, y) if self.by_sign else self.ranks(n, x, y, ties=self.ties)
        result = FieldValue(exact=np.asarray(a < b), bad=_either(x.bad, y.bad))
        return self._outcome(n, result) if x.real is not None and y.real is not None else result

    def not_equal(self, n: At, x: FieldValue, y: FieldValue) -> FieldValue:
        bad = _either(x.bad, y.bad)
        if x.exact is not None:
            result = self._of_integers(self.exactly.not_equal, n, x, y)
            return result if n.input_types[0].dtype.kind == "bool" else self._outcome(n, result)
        if x.real is not None and y.real is not None:
            left, right = self.exact_order(n, x, y)
            return self._outcome(n, FieldValue(exact=np.asarray(left != right), bad=bad))
        self.chance(n, x, y)
        one, two = (_NO if v.minus is None else v.minus for v in (x, y))
        if self.ties:
            p, q = self.ranks(n, x, y, ties=True)
            return FieldValue(exact=np.where(one | two, one ^ two, p != q), bad=bad)
        if self.by_sign:
            raise OutsideFragmentError("≠ by signs of differences", n.node.location)
        a, b = self.looked_at(n, x, y)
        m, key = np.uint64(self.chain[self.lanes.compared_in[n.node]]), self.keyed("equals")
        difference = np.where(a >= b, a - b, a + m - b)
        both = residues.mix(np.minimum(a, b), residues.mix(np.maximum(a, b), key))
        return FieldValue(exact=np.where(one | two, one ^ two, (difference != 0) & _a_bit(both)), bad=bad)

    def where(self, n: At, condition: FieldValue, x: FieldValue, y: FieldValue) -> FieldValue:
        chosen = self._choose(n, condition.integers, x, y)
        return dataclasses.replace(chosen, bad=_either(chosen.bad, condition.bad))

    # ---- reductions --------------------------------------------------------------------------------------------------

    def sum(self, n: At, x: FieldValue) -> FieldValue:
        axes = n.attrs["axes"]
        bad = None if x.bad is None else np.bitwise_or.reduce(x.bad, axis=axes)
        if x.exact is not None:
            return FieldValue(exact=np.asarray(np.sum(x.exact, axis=axes, dtype=x.exact.dtype)), bad=bad)
        lanes = {i: np.asarray(np.sum(x.lanes[i], axis=axes) % np.uint64(self.chain[i])) for i in self.needed(n)}
        minus = None if x.minus is None else np.any(x.minus, axis=axes)
        real = None if x.real is None else self.settled(error_bounds.sum(x.real, axes), lanes)
        return FieldValue(lanes, real=real, minus=minus, bad=bad)

    def reduce_max(self, n: At, x: FieldValue) -> FieldValue:
        axes = n.attrs["axes"]
        bad = None if x.bad is None else np.bitwise_or.reduce(x.bad, axis=axes)
        if x.exact is not None:
            return FieldValue(exact=np.asarray(np.max(x.exact, axis=axes, initial=int(n.dtype.min))), bad=bad)
        if math.prod(n.input_types[0].shape[a] for a in axes) == 0:
            return dataclasses.replace(self.of_reals(n, np.full((*n.shape, 1), -np.inf)), bad=None)
        if self.by_sign and x.real is None:
            raise OutsideFragmentError("a maximum over an axis by signs of differences", n.node.location)
        self.chance(n, x, axes=axes)
        order = self.ranks(n, x)[0] if x.real is None else x.real.value
        outer = [i for i in range(order.ndim - 1) if i not in axes]
        width = math.prod(order.shape[a] for a in axes)             # reshape cannot infer it without rows

        def rows(a: Array) -> Array:
            return a.transpose([*outer, *axes, a.ndim - 1]).reshape(*n.shape, width, a.shape[-1])

        best = rows(order).argmax(axis=-2)[..., None, :]
        if x.real is not None:
            self.largest_decided(n, x, rows, best)

        def pick(a: Array) -> Array:
            wide = np.broadcast_to(a, (*order.shape[:-1], max(a.shape[-1], order.shape[-1])))
            return np.take_along_axis(rows(wide), np.broadcast_to(best, (*best.shape[:-1], wide.shape[-1])), axis=-2)[..., 0, :]

        return FieldValue({i: pick(x.lanes[i]) for i in self.needed(n)}, bad=bad,
                          real=None if x.real is None else x.real.each(pick), minus=None if x.minus is None else pick(x.minus))

    def largest_decided(self, n: At, x: FieldValue, rows: Callable[[Array], Array], best: Array) -> None:
        """Raise OutsideFragmentError where a known number other than the one at `best` may be the largest of its row."""
        assert x.real is not None
        value, off = rows(x.real.value), rows(np.broadcast_to(x.real.off, x.real.value.shape))
        residue = rows(self.looked_at(n, x)[0])

        def top(a: Array) -> Array:
            return np.take_along_axis(a, np.broadcast_to(best, (*best.shape[:-1], a.shape[-1])), axis=-2)

        least = top(value) - value > np.maximum(NEAR * np.abs(top(value)), (top(off) + off) * (1.0 + NEAR))
        infinite = np.isinf(value) & (off == 0)
        decided = _everywhere(residue == top(residue), value) | infinite | (least & np.isfinite(top(off)))
        self.decided(n, decided, dataclasses.replace(x, bad=None if x.bad is None else rows(x.bad)))

    # ---- movement ----------------------------------------------------------------------------------------------------

    def _move(self, n: At, x: FieldValue, f: Callable[[Array], Array]) -> FieldValue:
        lanes = {i: x.lanes[i] for i in self.needed(n)} if x.exact is None else {}
        return dataclasses.replace(x, lanes=lanes).each(f)

    def reshape(self, n: At, x: FieldValue) -> FieldValue:
        return self._move(n, x, lambda a: a.reshape(*n.shape, a.shape[-1]))

    def permute(self, n: At, x: FieldValue) -> FieldValue:
        axes = n.attrs["axes"]
        return self._move(n, x, lambda a: a.transpose([*axes, len(axes)]))

    def expand(self, n: At, x: FieldValue) -> FieldValue:
        return self._move(n, x, lambda a: np.broadcast_to(a, (*n.shape, a.shape[-1])))

    def pad(self, n: At, x: FieldValue) -> FieldValue:
        padding = n.attrs["padding"]
        if any(amount < 0 for pair in padding for amount in pair):
            raise OutsideFragmentError("pad by a negative amount at these sizes", n.node.location)
        inside = tuple(slice(before, before + size)
                       for (before, _), size in zip(padding, n.input_types[0].shape, strict=True))

        def put(a: Array, fill: Array) -> Array:
            out = np.empty((*n.shape, max(a.shape[-1], fill.shape[-1])), dtype=a.dtype)
            out[...] = fill
            out[inside] = a
            return out

        value = n.attrs["value"]
        if n.dtype.kind == "float":
            value = float(self.as_held(np.asarray(float(value)), n.dtype))
        if x.exact is not None:
            filled = FieldValue(exact=put(x.exact, np.asarray([value], dtype=x.exact.dtype)))
        else:
            number = self.of_reals(n, np.asarray([value], dtype=np.float64))
            lanes = {i: put(x.lanes[i], number.lanes[i]) for i in self.needed(n)}
            real = None
            if x.real is not None and number.real is not None:
                off = number.real.off.reshape(-1)
                error = put(np.broadcast_to(x.real.off, x.real.value.shape), off) if x.real.error is not None or off.any() else None
                real = Bounded(put(x.real.value, number.real.value), error)
            minus = None
            if x.minus is not None or number.minus is not None:
                was = np.zeros((*n.input_types[0].shape, 1), dtype=np.bool_) if x.minus is None else x.minus
                minus = put(was, _NO if number.minus is None else number.minus)
            filled = FieldValue(lanes, real=real, minus=minus)
            if number.bad is not None:
                raise OutsideFragmentError(f"pad with {value}", n.node.location)
        return dataclasses.replace(filled, bad=None if x.bad is None else put(x.bad, _NO))

    def slice(self, n: At, x: FieldValue) -> FieldValue:
        for (start, stop, step), size in zip(n.attrs["bounds"], n.input_types[0].shape, strict=True):
            low, high = (start, stop) if step > 0 else (stop + 1, start + 1)
            if not 0 <= low <= high <= size:
                raise OutsideFragmentError("slice leaves its axis at these sizes", n.node.location)
        at = tuple(python_slice(*bound) for bound in n.attrs["bounds"])
        return self._move(n, x, lambda a: a[at])

    # ---- indexing ----------------------------------------------------------------------------------------------------

    def gather(self, n: At, x: FieldValue, index: FieldValue) -> FieldValue:
        axis, shape = n.attrs["axis"], n.input_types[0].shape
        places = index.integers
        inside = (places >= 0) & (places < shape[axis])
        at = np.where(inside, places, places.dtype.type(0)).astype(np.intp)
        before = int(math.prod(shape[:axis]))
        after = int(math.prod(shape[axis + 1:]))
        size = int(shape[axis])
        count, points = math.prod(at.shape[:-1]), at.shape[-1]
        flat, seen = at.reshape(count, points), inside.reshape(1, count, 1, points)

        def take(a: Array) -> Array:
            if size == 0:
                return np.zeros((*n.shape, 1), dtype=a.dtype)
            rows = a.reshape(before, size, after, a.shape[-1])
            if points == 1:
                values = rows[:, flat[:, 0]]
            else:
                rows = np.broadcast_to(rows, (*rows.shape[:-1], points))
                values = rows.transpose(1, 3, 0, 2)[flat, np.arange(points)]        # [count, points, before, after]
                values = values.transpose(2, 0, 3, 1)
            return np.where(seen, values, a.dtype.type(0)).reshape(*n.shape, values.shape[-1])

        result = self._move(n, x, take)
        if n.node.inputs[1] in self.hanging:                # not all places were drawn: no number is known
            result = dataclasses.replace(result, real=None)
        if index.bad is None:
            return result
        wrong = np.broadcast_to(index.bad.reshape(1, count, 1, -1),
                                (before, count, after, index.bad.shape[-1])).reshape(*n.shape, -1)
        return dataclasses.replace(result, bad=_either(result.bad, wrong), real=None)

    def scatter(self, n: At, base: FieldValue, index: FieldValue, updates: FieldValue) -> FieldValue:
        axis, mode, shape = n.attrs["axis"], n.attrs["mode"], n.shape
        if mode == "max" and base.exact is None:
            raise OutsideFragmentError("scatter(max) of floats", n.node.location)
        before, size, after = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1:])
        places = index.integers
        count = math.prod(places.shape[:-1])
        points = max(a.shape[-1] for v in (base, index, updates)
                     for a in (*v.lanes.values(), v.exact, None if v.real is None else v.real.value, v.minus, v.bad)
                     if a is not None)
        flat = np.broadcast_to(places.reshape(count, -1), (count, points))
        inside = (flat >= 0) & (flat < size)
        needed = self.needed(n) if base.exact is None else frozenset()

        def spread(v: FieldValue, middle: int) -> FieldValue:
            def one(a: Array) -> Array:
                return np.broadcast_to(a, (*a.shape[:-1], points)).reshape(before, middle, after, points)
            return dataclasses.replace(v, lanes={i: v.lanes[i] for i in needed}).each(one)

        def none(middle: int) -> Array:
            return np.zeros((before, middle, after, points), dtype=np.bool_)

        old, new = spread(base, size), spread(updates, count)
        out: dict[str | int, Array] = {i: old.lanes[i].copy() for i in needed}
        add: dict[str | int, Array] = {i: new.lanes[i] for i in needed}
        out["bad"] = (none(size) if old.bad is None else old.bad).astype(np.uint8)
        add["bad"] = none(count) if new.bad is None else new.bad
        if old.exact is not None:
            out["exact"], add["exact"] = old.exact.copy(), new.integers
        else:
            out["minus"] = none(size) if old.minus is None else old.minus.copy()
            add["minus"] = none(count) if new.minus is None else new.minus
        if old.real is not None and new.real is not None and mode == "set":
            out["real"], add["real"] = old.real.value.copy(), new.real.value
            out["off"], add["off"] = (np.array(np.broadcast_to(v.off, v.value.shape)) for v in (old.real, new.real))
        written = np.zeros((size, points), dtype=np.bool_)
        for k in range(count):
            ps = np.flatnonzero(inside[k])
            at = flat[k, ps].astype(np.intp)
            here: tuple[Any, ...] = (slice(None), at, slice(None), ps)
            for name, target in out.items():
                now, more = target[here], np.moveaxis(add[name][:, k][..., ps], -1, 0)      # [points, before, after]
                if mode == "set":
                    target[here] = more
                elif name in ("bad", "minus"):
                    target[here] = now | more
                elif name == "exact":
                    target[here] = now + more if mode == "add" else np.maximum(now, more)
                else:
                    target[here] = (now + more) % np.uint64(self.chain[name])  # type: ignore[index]
            if mode == "set":
                again = written[at, ps]
                out["bad"][:, :, :, ps[again]] |= 1         # two writes to one place are undefined
                written[at, ps] = True

        out = {name: array.reshape(*shape, points) for name, array in out.items()}
        wrong, minus = out["bad"], out.get("minus")
        if index.bad is not None:
            wrong = wrong | np.broadcast_to(index.bad.any(axis=tuple(range(index.bad.ndim - 1))), (*shape, points))
        real = Bounded(out["real"], out["off"]) if "real" in out else None
        return FieldValue({i: out[i] for i in needed}, out.get("exact"), real,
                          minus if minus is not None and minus.any() else None, wrong if wrong.any() else None)


def _a_bit(mixed: Array) -> Array:
    """Return one bit of a keyed hash."""
    return ((mixed >> np.uint64(7)) & np.uint64(1)).astype(np.bool_)
