"""running_error: how far rounding alone may move each value of a graph, computed along with float64 values for the error measure.

    running_error(graph, {"x": array}, dims)["y"]        an array of y's shape, or None where it is not known

It evaluates the definitions a second time. Every float has an absolute error: the effect, to first order, of one unit roundoff u in
each value that it was computed from, as if roundings were independent (in quadrature). Inputs are exact. An op adds u · |result| in
the dtype as written; a sum adds the rounding errors of its partial sums in f32 or wider:

    x · y     √((x·δy)² + (y·δx)² + (δx·δy)²)          x + y    √(δx² + δy²)
    Σ xᵢ      √(Σ δxᵢ² + u² · ((n − 1)/2 · Σ xᵢ² + n/3 · (Σ xᵢ)²))
    f(x)      |f′(x)| · δx; exact if values are only chosen and moved; for e^x and similar the actual change, if δx is large

The second term of a sum is the mean of the squares of its partial sums over all orders: one part for terms of random signs, and one
for what they have in common (terms of one sign, added one by one, lose n/3 times as much). It distinguishes cancellation from a
mistake: if terms of size 1 leave 1e-4, an error of 1e-7 is a relative 1e-3, but only a rounding or two. Products of two errors in a
sum are added without squaring: the squares of x − mean(x) all have the error of one mean.

Source: running error analysis, Higham, Accuracy and Stability of Numerical Algorithms, SIAM 2002, section 3.3, with the square
roots of Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019, instead of worst cases, which grow like n and would explain a matrix
product that is accumulated in bf16.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import leaves
from tensor_graphs.language.atomic import AtomicOp
from tensor_graphs.language.composite import CompositeOp, Definition, expand_all, resolve_attributes
from tensor_graphs.language.composites.rounded import magnitudes, rounded, unit_of
from tensor_graphs.language.composites.scan import ScanOp
from tensor_graphs.language.dtypes import DType, f32
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import ArrayValue, Node, walk
from tensor_graphs.language.subgraph import Turns
from tensor_graphs.meaning.algebra import TERMS, Array, At, Real, carrier, narrow, wide
from tensor_graphs.meaning.error_measure import ROUNDINGS, unit_roundoff
from tensor_graphs.meaning.exact_definitions import is_exact
from tensor_graphs.meaning.interpreter import Schedule

log = logging.getLogger(__name__)

WORK = 1 << 22
"""limit on the numbers that an evaluation computes, some 0.2 s; beyond it, the errors are unknown"""

PRODUCTS = 64
"""number of products that take as long as one stored number, if they are added without being stored"""


def running_error(graph: Graph, inputs: Mapping[str, Any], dims: Mapping[str, int]) -> dict[str, Array | None]:
    """Return the running error of every float output of a graph without parameters and states; None if it is unknown.

    inputs: arrays by name. dims: the size of every dim. It is unknown for an op without a definition, for an evaluation that takes
    more than WORK, and where a value is undefined at these sizes. An error that is not finite becomes 0, and explains nothing.
    """
    errors: dict[str, Array | None] = {name: None for name, node in graph.outputs.items() if node.dtype.is_float}
    leaf_values = {leaf: inputs[name] for name, leaf in graph.inputs.items()}
    try:
        roots = expand_all([graph.outputs[name] for name in errors], _is_smooth)
        with np.errstate(all="ignore"):
            values = _evaluate(roots, leaf_values, dims)
    except (_Unknown, TensorGraphsError, ValueError, IndexError, MemoryError) as e:         # as where the oracle has no value
        log.debug("no running error of %s: %s", ", ".join(errors), e)
        return errors
    for name, value in zip(errors, values, strict=True):
        error = np.zeros(value.value.shape) if value.error is None else value.error
        errors[name] = np.where(np.isfinite(error), error, 0.0)
    return errors


class _Unknown(Exception):
    """The reason why there is no running error."""


@dataclass(frozen=True, slots=True)
class Known:
    """A value as the oracle computes it, and its running error; None if it is exact (or no float)."""

    value: Array
    error: Array | None = None


@dataclass(frozen=True, slots=True)
class Product:
    """x · y, which is stored only if it is used otherwise than in a sum."""

    n: At
    x: Known
    y: Known

    def stored(self) -> Known:
        value = np.asarray(self.x.value * self.y.value)
        error = None
        for a, b in self.parts():
            error = _both(error, np.abs(a * b))
        return Known(value, error if _scales_exactly(self.x) or _scales_exactly(self.y) else _rounded(self.n, value, error))

    def parts(self) -> list[tuple[Array, Array]]:
        """Pairs of factors whose products make up its error, except its own rounding."""
        (x, dx), (y, dy) = (self.x.value, self.x.error), (self.y.value, self.y.error)
        return [(a, b) for a, b in ((x, dy), (dx, y), (dx, dy)) if a is not None and b is not None]


def _both(a: Array | None, b: Array | None) -> Array | None:
    """Return the combination of two independent errors."""
    return b if a is None else a if b is None else np.asarray(np.hypot(a, b))


def _error(x: Known) -> Array:
    return np.zeros_like(x.value) if x.error is None else x.error


@lru_cache(maxsize=8)
def _smallest(dtype: DType) -> float:
    return dtype.smallest_normal


def _rounded(n: At, value: Array, error: Array | None) -> Array | None:
    """Return the error after the node's rounding. A result of exact operands that the dtype can represent is exact."""
    if n.dtype.kind != "float" or is_exact(n.node):
        return error
    own = unit_roundoff(n.dtype) * np.maximum(np.abs(value), _smallest(n.dtype))
    if error is not None:
        return np.asarray(np.hypot(error, own))
    inexact = wide(narrow(np.asarray(value), n.dtype), n.dtype) != value
    return np.where(inexact, own, 0.0) if np.any(inexact) else None


def _scales_exactly(x: Known) -> bool:
    """Return True if all elements equal one power of two, so that a product with x is not rounded."""
    if x.error is not None or x.value.size == 0:
        return False
    distinct = x.value[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in x.value.strides)]
    return distinct.size == 1 and abs(float(np.frexp(distinct.flat[0])[0])) == 0.5


def _lost(n: At) -> tuple[float, float]:
    """Return two factors for the square of a sum's rounding error: of Σ xᵢ² over its terms, and of the sum's square."""
    terms = min(math.prod(int(n.input_types[0].shape[i]) for i in n.attrs["axes"]), TERMS)
    square = min(unit_roundoff(n.dtype), unit_roundoff(f32)) ** 2
    return square * max(0, terms - 1) / 2, square * terms / 3


def _squares(x: Array) -> tuple[Array, float]:
    """Return (x² / top², top), scaled so that nothing overflows; it is computed once along broadcast axes (of stride 0)."""
    distinct = x[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in x.strides)]
    top = float(np.max(np.abs(distinct), initial=0.0, where=np.isfinite(distinct))) or 1.0
    return np.broadcast_to(np.square(distinct / top), x.shape), top


def _contracted(x: Array, y: Array, axes: Sequence[int]) -> Array:
    """Return Σ x · y over the axes; broadcast axes are not multiplied out, so that BLAS computes most of these."""
    single = [[size > 1 and stride == 0 for size, stride in zip(a.shape, a.strides, strict=True)] for a in (x, y)]
    left = [i for i in range(x.ndim) if not single[0][i] or single[1][i]]
    right = [i for i in range(x.ndim) if not single[1][i]]
    pick = [a[tuple(slice(None) if i in axes_left else 0 for i in range(a.ndim))] for a, axes_left in ((x, left), (y, right))]
    return np.asarray(np.einsum(pick[0], left, pick[1], right, [i for i in range(x.ndim) if i not in axes], optimize=True))


def _exact(name: str) -> Callable[..., Known]:
    """Return the method for an op whose result has no error, because it is no float, or is nearly exact."""
    return lambda self, n, *xs: Known(getattr(self.real, name)(n, *(x.value for x in xs)))


def _moved(name: str) -> Callable[..., Known]:
    """Return the method for an op that only moves values; it moves their errors in the same way."""
    def method(self: Errors, n: At, x: Known, *index: Known) -> Known:
        move, places = getattr(self.real, name), [i.value for i in index]
        return Known(move(n, x.value, *places), None if x.error is None else move(n, x.error, *places))

    return method


class Errors:
    """The algebra of values with running errors, with one method per atomic op (see the module's docstring)."""

    idiv, bit_and, bit_xor, less, not_equal, bitcast = map(_exact, ("idiv", "bit_and", "bit_xor", "less", "not_equal", "bitcast"))
    floor = _exact("floor")     # where definitions take an integer off an exponent, which one hardly matters
    reshape, permute, expand = _moved("reshape"), _moved("permute"), _moved("expand")
    slice, gather = _moved("slice"), _moved("gather")

    def __init__(self) -> None:
        self.real = Real()
        self.numbers = 0

    def count(self, numbers: float) -> None:
        """Count numbers that are about to be computed. Raises _Unknown beyond WORK."""
        self.numbers += int(numbers)
        if self.numbers > WORK:
            raise _Unknown(f"more than {WORK} numbers")

    def stored(self, x: _Value) -> Known:
        assert not isinstance(x, tuple)
        if isinstance(x, Known):
            return x
        self.count(math.prod(x.n.shape))
        return x.stored()

    def done(self, n: At, value: Array, error: Array | None = None) -> Known:
        return Known(value, _rounded(n, value, error))

    def constant(self, n: At, value: bool | int | float | Array) -> Known:
        exact = self.real.constant(n, value)
        if n.dtype.kind != "float":
            return Known(exact)
        error = np.abs(wide(narrow(exact, n.dtype), n.dtype) - exact)
        return Known(exact, error if np.any(error > 0) else None)

    def iota(self, n: At) -> Known:
        return self.done(n, self.real.iota(n))

    # ---- one operand -------------------------------------------------------------------------------------------------

    def _unary(self, n: At, x: Known, value: Array, slope: Callable[[Array], Array]) -> Known:
        return self.done(n, value, None if x.error is None else slope(x.error))

    def reciprocal(self, n: At, x: Known) -> Known:
        y = self.real.reciprocal(n, x.value)
        return self._unary(n, x, y, lambda dx: dx * y * y)

    def sqrt(self, n: At, x: Known) -> Known:
        y = self.real.sqrt(n, x.value)
        return self._unary(n, x, y, lambda dx: np.where(dx == 0, 0.0, dx / (np.sqrt(x.value + dx) + y)))   # finite at 0

    def exp2(self, n: At, x: Known) -> Known:
        y = self.real.exp2(n, x.value)
        toward = self.real.exp2(n, np.minimum(x.value + ROUNDINGS * _error(x), 0.0)) - y
        return self._unary(n, x, y, lambda dx: np.maximum(math.log(2) * y * dx, _toward_zero(x, toward)))

    def log2(self, n: At, x: Known) -> Known:
        return self._unary(n, x, self.real.log2(n, x.value), lambda dx: dx / (math.log(2) * np.abs(x.value)))

    def sin(self, n: At, x: Known) -> Known:
        return self._unary(n, x, self.real.sin(n, x.value), lambda dx: np.hypot(np.cos(x.value) * dx, dx * dx / 2))

    def cast(self, n: At, x: Known) -> Known:
        return self.done(n, self.real.cast(n, x.value), x.error if n.dtype.kind == "float" else None)

    def composite(self, n: At, op: CompositeOp, xs: Sequence[Known]) -> Known:
        """Return an elementwise composite's value by `direct`, and its error: the change of the value within each operand's error.

        The definition would overstate it: errors that cancel on purpose, as in log1p, would count twice."""
        assert op.direct is not None
        direct, values = op.direct, [x.value for x in xs]

        def at(values: Sequence[Array]) -> Array:
            return np.asarray(direct(op.by_role(values, n.attrs), n.attrs, n.types), dtype=np.float64)

        value, error = at(values), None
        for i, x in enumerate(xs):
            if x.error is not None:
                ends = [at([*values[:i], x.value + sign * x.error, *values[i + 1:]]) for sign in (-1, 1)]
                changes = [np.where(np.isfinite(end), np.abs(end - value), 0.0) for end in ends]
                toward = at([*values[:i], np.minimum(x.value + ROUNDINGS * x.error, 0.0), *values[i + 1:]]) - value
                error = _both(error, np.fmax(np.fmax(*changes), _toward_zero(x, toward)))
        if op.facts.licence:
            own = np.maximum(unit_of(n.attrs) * magnitudes(value, n.attrs["to"]), _smallest(n.dtype))   # parts below that are 0
            return Known(value, _both(error, np.where(value == 0, 0.0, own)))
        return self.done(n, value, error)

    # ---- two and three operands --------------------------------------------------------------------------------------

    def add(self, n: At, x: Known, y: Known) -> Known:
        return self.done(n, self.real.add(n, x.value, y.value), _both(x.error, y.error))

    def mul(self, n: At, x: Known, y: Known) -> Known | Product:
        if n.dtype.kind == "float":
            return Product(n, x, y)
        self.count(math.prod(n.shape))
        return Known(self.real.mul(n, x.value, y.value))

    def max(self, n: At, x: Known, y: Known) -> Known:
        value = self.real.max(n, x.value, y.value)
        if x.error is None and y.error is None:
            return Known(value)
        dx, dy = _error(x), _error(y)
        near = np.abs(x.value - y.value) <= ROUNDINGS * (dx + dy)               # either may be the larger one
        return Known(value, np.where(near, np.maximum(dx, dy), np.where(x.value > y.value, dx, dy)))

    def where(self, n: At, condition: Known, x: Known, y: Known) -> Known:
        value = self.real.where(n, condition.value, x.value, y.value)
        if x.error is None and y.error is None:
            return Known(value)
        return Known(value, np.where(condition.value, _error(x), _error(y)))

    # ---- reductions --------------------------------------------------------------------------------------------------

    def sum(self, n: At, x: Known | Product) -> Known:
        axes = n.attrs["axes"]
        if isinstance(x, Product):
            if n.dtype.kind == "float" and math.prod(x.n.shape) > 0:
                return self._sum_of_products(n, x)
            x = self.stored(x)
        value = self.real.sum(n, x.value)
        if n.dtype.kind != "float" or x.value.size == 0:
            return Known(value)
        if x.value.size == value.size:                                          # of one term each
            return Known(value, None if x.error is None else np.reshape(x.error, n.shape))
        top, (apart, together) = _top(x.value, axes), _lost(n)                  # so that squares do not overflow
        square = apart * np.sum(np.square(x.value / top), axis=axes, keepdims=True)
        square = square + together * np.square(np.sum(x.value / top, axis=axes, keepdims=True))
        if x.error is not None:
            square = square + np.sum(np.square(x.error / top), axis=axes, keepdims=True)
        return self.done(n, value, np.reshape(np.sqrt(square) * top, n.shape))

    def _sum_of_products(self, n: At, x: Product) -> Known:
        """Return the sum, as `sum` does, for a product whose rounding error is u · |x · y|, without storing the product."""
        axes = n.attrs["axes"]
        self.count(math.prod(x.n.shape) / PRODUCTS)

        def added(a: Array, b: Array) -> Array:
            (squares, top), (others, another) = _squares(a), _squares(b)
            return np.asarray(np.sqrt(_contracted(squares, others, axes)) * top * another)

        value, (apart, together) = _contracted(x.x.value, x.y.value, axes), _lost(n)
        error = np.hypot(math.sqrt(unit_roundoff(x.n.dtype) ** 2 + apart) * added(x.x.value, x.y.value),
                         math.sqrt(together) * np.abs(value))
        for a, b in x.parts():
            both = a is x.x.error and b is x.y.error
            error = np.hypot(error, _contracted(np.abs(a), np.abs(b), axes) if both else added(a, b))
        return self.done(n, value, error)

    def reduce_max(self, n: At, x: Known) -> Known:
        value = self.real.reduce_max(n, x.value)
        if x.error is None:
            return Known(value)
        axes = n.attrs["axes"]
        whole = np.max(x.value, axis=axes, keepdims=True, initial=-np.inf)
        near = x.value + ROUNDINGS * x.error >= whole                           # each of these may be the largest
        return Known(value, np.max(x.error, axis=axes, initial=0.0, where=near))

    # ---- movement and indexing ---------------------------------------------------------------------------------------

    def pad(self, n: At, x: Known) -> Known:
        zero = replace(n, attrs={**n.attrs, "value": 0.0})
        return Known(self.real.pad(n, x.value), None if x.error is None else self.real.pad(zero, x.error))

    def scatter(self, n: At, base: Known, index: Known, updates: Known) -> Known:
        value = self.real.scatter(n, base.value, index.value, updates.value)
        if n.dtype.kind != "float":
            return Known(value)
        base_error, new = _error(base), _error(updates)
        if n.attrs["mode"] != "add":
            return Known(value, self.real.scatter(n, base_error, index.value, new))
        lost = unit_roundoff(n.dtype) ** 2                                      # each partial sum is rounded
        squares = self.real.scatter(n, base_error ** 2 + lost * base.value ** 2, index.value, new ** 2 + lost * updates.value ** 2)
        return self.done(n, value, np.sqrt(squares))


def _top(x: Array, axes: Sequence[int]) -> Array:
    """Return the largest finite absolute value along the axes, which stay with size 1; 1 where all values are 0."""
    top = np.max(np.abs(x), axis=tuple(axes), keepdims=True, initial=0.0, where=np.isfinite(x))
    return np.where(top > 0, top, 1.0)


_smooth: weakref.WeakKeyDictionary[Definition, bool] = weakref.WeakKeyDictionary()


def _toward_zero(x: Known, change: Array) -> Array:
    """Return the error of f(x) for negative x: f's change towards 0, over as many running errors as rounding may explain, divided
    by their number. For a small error it is no more than the slope times it. A softmax, which subtracts the maximum, needs this:
    scores of 1e30 differ by 1e23 through rounding alone, so any of them may be the maximum, and e^0 bounds the change of e^x."""
    return np.asarray(np.where((x.value <= 0) & np.isfinite(change), np.abs(change) / ROUNDINGS, 0.0))


def _is_smooth(node: Node) -> bool:
    """Return True for a composite with `direct` that computes each element from the operands' elements at the same position."""
    op = node.op
    if not isinstance(op, CompositeOp) or op.direct is None or op.opaque or not all(t.dtype.is_float for t in node.types):
        return False
    if op is rounded:
        return True
    definition = op.define([i.type for i in node.inputs], node.attrs)
    if definition not in _smooth:
        _smooth[definition] = len(definition.outputs) == 1 and _elementwise(expand_all(definition.outputs))
    return _smooth[definition]


def _elementwise(roots: Sequence[Node]) -> bool:
    """Return True if no value that depends on an argument is moved or reduced."""
    depends: dict[Node, bool] = {}
    for node in walk(roots):
        depends[node] = node.op is leaves.ARGUMENT or any(depends[i] for i in node.inputs)
        if depends[node] and isinstance(node.op, AtomicOp) and node.op.group not in ("unary", "binary", "ternary"):
            return False
        if depends[node] and isinstance(node.op, CompositeOp):                  # a loop, which has no definition
            return False
    return True


def _evaluate(roots: Sequence[Node], leaf_values: Mapping[Node, Array | Known], dims: Mapping[str, int],
              algebra: Errors | None = None) -> list[Known]:
    """Return the values of nodes built from atomic ops, smooth composites, scans and inputs. Raises _Unknown, TensorGraphsError."""
    algebra = algebra or Errors()
    values: dict[Node, _Value] = {}
    schedule = Schedule.of(roots)
    for node, last_read in zip(schedule.order, schedule.last_read, strict=True):
        values[node] = _one(algebra, node, values, leaf_values, dims)
        for old in last_read:
            del values[old]
    return [algebra.stored(values[root]) for root in roots]


def _turns(algebra: Errors, n: At, values: Sequence[Known], dims: Mapping[str, int]) -> tuple[Known, ...]:
    """Return the outputs of a scan, computed iteration by iteration; carried values keep their errors."""
    turns = Turns(values, n.attrs)
    body, carries = turns.step, turns.carries
    roots = expand_all(body.outputs, _is_smooth)
    rows: dict[int, list[Known]] = {}
    for t in turns.order(len(turns.sliced[0].value)):
        slices = [Known(x.value[t], None if x.error is None else x.error[t]) for x in turns.sliced]
        results = _evaluate(roots, dict(zip(body.arguments, (*carries, *slices, *turns.others), strict=True)), dims, algebra)
        carries, rows[t] = results[:len(carries)], results[len(carries):]
    stacks = []
    for k, type in enumerate(n.types[len(carries):]):
        outputs = [rows[t][k] for t in range(len(rows))]
        value = np.array([y.value for y in outputs], carrier(type.dtype)).reshape(type.shape)
        inexact = any(y.error is not None for y in outputs)
        stacks.append(Known(value, np.array([_error(y) for y in outputs]).reshape(type.shape) if inexact else None))
    return (*carries, *stacks)


_Value = Known | Product | tuple[Known, ...]
"""The value of a node; a tuple for a node with several outputs."""


def _one(algebra: Errors, node: Node, values: Mapping[Node, _Value], leaf_values: Mapping[Node, Array | Known],
         dims: Mapping[str, int]) -> _Value:
    if node in leaf_values:
        value = leaf_values[node]
        return value if isinstance(value, Known) else Known(wide(value, node.dtype))
    if node.op is leaves.COPY_TO:
        return values[node.inputs[0]]
    if node.op is leaves.ITEM:
        several = values[node.inputs[0]]
        assert isinstance(several, tuple)
        item: Known = several[node.attrs["index"]]
        return item
    n = At(node, resolve_attributes(node.attrs, dims), tuple(t.at(dims) for t in node.types),
           tuple(i.type.at(dims) for i in node.inputs))
    if node.op is leaves.CONSTANT:
        value = n.attrs["value"]
        return algebra.constant(n, value.array() if isinstance(value, ArrayValue) else value)
    if isinstance(node.op, ScanOp):
        results = _turns(algebra, n, [algebra.stored(values[i]) for i in node.inputs], dims)
        return results[0] if len(results) == 1 else results
    if isinstance(node.op, CompositeOp) and not node.op.opaque:
        algebra.count(3 * math.prod(n.shape))
        return algebra.composite(n, node.op, [algebra.stored(values[i]) for i in node.inputs])
    if not isinstance(node.op, AtomicOp):
        raise _Unknown(f"{node.op.name} has no definition")
    if node.op.group != "move" and node.op.name != "mul":
        algebra.count(math.prod(n.shape))
    operands = [values[i] if node.op.name == "sum" else algebra.stored(values[i]) for i in node.inputs]
    result: Known | Product = node.op.meaning(algebra, n, *operands)
    return result
