"""atomic: the 27 ops that all other ops are built from. One row each: arity, attributes, type rule, meaning, derivative, cost.

Atomic ops are strict: operands have equal shapes and dtypes, nothing is broadcast or promoted (operands.py does both for Python's
operators). A row's `meaning` calls methods of an algebra `a` (see meaning/algebra.py), so that float64 numpy and other
interpretations evaluate the same row; `n` is the node at concrete dims. The fixed semantics:

integers wrap · idiv floors, ÷0 gives 0 · max propagates NaN, and +0 > −0 · an empty reduce_max is −inf (integers: the minimum) ·
cast float→int truncates and saturates, NaN→0 · bitcast may change the width: the last axis scales, little-endian · gather out of
range reads 0 · scatter drops out of range, duplicates under `set` are an error in the interpreter · sum keeps its dtype.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from tensor_graphs.language import dims as d
from tensor_graphs.language.axis import axis_order, one_axis, several_axes
from tensor_graphs.language.conditions import Condition, at_least
from tensor_graphs.language.dim_proofs import dim_ge, exact_div, proved_equal
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, bool_, i32, parse_dtype
from tensor_graphs.language.errors import AttributeValueError, DTypeError, LanguageError, ShapeError
from tensor_graphs.language.leaves import _shape, constant
from tensor_graphs.language.node import Node, TensorType, apply
from tensor_graphs.language.op_facts import UNKNOWN, OpFacts, Rows

__all__ = [
    "bitcast", "cast", "exp2", "expand", "floor", "gather", "iota", "log2", "logical_not", "pad", "permute", "reciprocal",
    "reshape", "scatter", "sin", "slice", "sqrt"
]

Infer = Callable[["AtomicOp", Sequence[Node], Mapping[str, Any]], TensorType]
Gradient = Callable[[Node, Node], tuple[Node | None, ...]]
"""gradient(node, gradient of its output) -> the gradient of each operand, or None for an operand of integers or booleans"""


def wrong_attributes(op: str, wanted: Iterable[str], present: Iterable[str]) -> AttributeValueError:
    """Return the error for a call whose attributes are not those of the op."""
    names = list(wanted)
    return AttributeValueError(f"{op} has the attributes {', '.join(names) or 'none'}, got {', '.join(present) or 'none'}",
                               fix=f"{op}(…; {', '.join(f'{name}=…' for name in names)})" if names else f"{op}(…), without any")


@dataclass(frozen=True, eq=False)
class AtomicOp:
    """One row of the op table. flops: per output element; for reductions, per operand element.

    conditions: for a node, the conditions between sizes that its type rule could not prove (see conditions.py).
    choices: the allowed strings of each attribute that takes one of a few strings. facts: other properties (op_facts.py).
    """

    name: str
    arity: int
    infer_type: Infer
    meaning: Callable[..., Any]
    gradient: Gradient | None
    attributes: tuple[str, ...] = ()
    commutative: bool = False
    flops: float = 1.0
    group: Literal["unary", "binary", "ternary", "reduce", "move", "index", "source"] = "unary"
    conditions: Callable[[Node], Iterable[Condition]] | None = None
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    facts: OpFacts = UNKNOWN
    kind: str = "atomic"

    @property
    def elementwise(self) -> bool:
        """True if each element of the result depends only on the operands' elements at the same position."""
        return self.group in ("unary", "binary", "ternary") and not self.facts.dtype_matters

    def infer(self, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> tuple[TensorType, ...]:
        if len(inputs) != self.arity:
            raise LanguageError(f"{self.name} takes {self.arity} operands, got {len(inputs)}")
        for i in inputs:
            if not isinstance(i, Node):
                raise DTypeError(f"{self.name} takes tensors, got {i!r}", fix="wrap numbers with tg.constant")
        if set(attrs) != set(self.attributes):
            raise wrong_attributes(self.name, self.attributes, attrs)
        return (self.infer_type(self, inputs, attrs),)

    def identity(self, node: Node) -> str:
        return ""

    def __repr__(self) -> str:
        return self.name


def show(node: Node) -> str:
    return str(node.type)


def same_dim(a: Dim, b: Dim) -> bool:
    return bool(a == b) or proved_equal(a, b)


def same_shape(op: str, *nodes: Node) -> tuple[Dim, ...]:
    """Return the common shape. Raises a ShapeError that names the first axis on which the operands disagree."""
    first = nodes[0]
    for other in nodes[1:]:
        if other.rank != first.rank:
            raise ShapeError(f"{op} of {show(first)} and {show(other)}: the ranks {first.rank} and {other.rank} differ",
                             fix="reshape one of them; operators (+, *, …) broadcast, atomic ops do not")
        for axis, (a, b) in enumerate(zip(first.shape, other.shape, strict=True)):
            if not same_dim(a, b):
                raise ShapeError(
                    f"{op} of {show(first)} and {show(other)}: axis {axis} has two sizes, "
                    f"{d.format_dim(a)} and {d.format_dim(b)}", fix="slice, expand or reshape one of them")
    return first.shape


def need(op: str, node: Node, *kinds: str) -> None:
    if node.dtype.kind not in kinds:
        raise DTypeError(f"{op} takes {' or '.join(kinds)}, the operand is {show(node)}", fix="cast it first")


def same_dtype(op: str, *nodes: Node) -> DType:
    for other in nodes[1:]:
        if other.dtype != nodes[0].dtype:
            raise DTypeError(f"{op} of {show(nodes[0])} and {show(other)}: the dtypes differ and nothing is promoted",
                             fix=f"cast one of them: x.cast(tg.{nodes[0].dtype.name})")
    return nodes[0].dtype


# ---- type rules -------------------------------------------------------------------------------------------------------------


def _floats(op: AtomicOp, xs: Sequence[Node], attrs: Mapping[str, Any]) -> TensorType:
    need(op.name, xs[0], "float")
    return xs[0].type


def _elementwise(*kinds: str) -> Infer:
    def rule(op: AtomicOp, xs: Sequence[Node], attrs: Mapping[str, Any]) -> TensorType:
        for x in xs:
            need(op.name, x, *kinds)
        dtype = same_dtype(op.name, *xs)
        return TensorType(same_shape(op.name, *xs), dtype)

    return rule


def _comparison(*kinds: str) -> Infer:
    inner = _elementwise(*kinds)
    return lambda op, xs, attrs: TensorType(inner(op, xs, attrs).shape, bool_)


def _where_type(op: AtomicOp, xs: Sequence[Node], attrs: Mapping[str, Any]) -> TensorType:
    need("where (condition)", xs[0], "bool")
    return TensorType(same_shape("where", *xs), same_dtype("where", *xs[1:]))


def _reduce(op: AtomicOp, xs: Sequence[Node], attrs: Mapping[str, Any]) -> TensorType:
    need(op.name, xs[0], "float", "int", "uint")
    axes = attrs["axes"]
    if not isinstance(axes, tuple) or list(axes) != sorted(set(axes)):
        raise AttributeValueError(f"{op.name}: axes must be a sorted tuple without repeats, got {axes!r}")
    for axis in axes:
        if not 0 <= axis < xs[0].rank:
            raise AttributeValueError(f"{op.name}: axis {axis} of {show(xs[0])}")
    return TensorType(tuple(s for i, s in enumerate(xs[0].shape) if i not in axes), xs[0].dtype)


def _reshape_type(op: AtomicOp, xs: Sequence[Node], attrs: Mapping[str, Any]) -> TensorType:
    shape = attrs["shape"]
    if not same_dim(d.product(shape), d.product(xs[0].shape)):
        raise ShapeError(f"reshape of {show(xs[0])} to [{', '.join(map(d.format_dim, shape))}]: "
                         f"{d.format_dim(d.product(xs[0].shape))} elements are not {d.format_dim(d.product(shape))}",
                         fix="one size may be −1: x.reshape(-1, …)")
    return TensorType(shape, xs[0].dtype)


def _permute_type(op: AtomicOp, xs: Sequence[Node], attrs: Mapping[str, Any]) -> TensorType:
    axes = attrs["axes"]
    if sorted(axes) != list(range(xs[0].rank)):
        raise AttributeValueError(f"permute of {show(xs[0])}: {axes} is no permutation of its {xs[0].rank} axes",
                                  fix=f"each axis once, as axes={tuple(reversed(range(xs[0].rank)))}")
    return TensorType(tuple(xs[0].shape[a] for a in axes), xs[0].dtype)


def _expand_type(op: AtomicOp, xs: Sequence[Node], attrs: Mapping[str, Any]) -> TensorType:
    shape = attrs["shape"]
    if len(shape) != xs[0].rank:
        raise ShapeError(f"expand of {show(xs[0])} to rank {len(shape)}: the rank may not change", fix="reshape first")
    for axis, (old, new) in enumerate(zip(xs[0].shape, shape, strict=True)):
        if not same_dim(old, new) and old != 1:
            raise ShapeError(f"expand of {show(xs[0])} to [{', '.join(map(d.format_dim, shape))}]: "
                             f"axis {axis} has size {d.format_dim(old)}, only size 1 can be expanded")
    return TensorType(shape, xs[0].dtype)


def _pad_type(op: AtomicOp, xs: Sequence[Node], attrs: Mapping[str, Any]) -> TensorType:
    padding = attrs["padding"]
    if len(padding) != xs[0].rank:
        raise AttributeValueError(f"pad of {show(xs[0])}: {len(padding)} pairs for {xs[0].rank} axes")
    shape = []
    for axis, (s, (before, after)) in enumerate(zip(xs[0].shape, padding, strict=True)):
        for amount in (before, after):
            if dim_ge(amount, 0) is False:
                raise AttributeValueError(f"pad of {show(xs[0])}: axis {axis} is padded by {d.format_dim(amount)}",
                                          fix="slice removes, pad adds; amounts are ≥ 0")
        shape.append(s + before + after)
    return TensorType(tuple(shape), xs[0].dtype)


def _pad_conditions(n: Node) -> Iterable[Condition]:
    for axis, pair in enumerate(n.attrs["padding"]):
        for amount in pair:
            text = f"axis {axis} is padded by {d.format_dim(amount)}, below 0"
            yield from at_least(amount, 0, f"pad of {show(n.inputs[0])}", text)


def slice_size(start: Dim, stop: Dim, step: int) -> Dim:
    """Return the number of elements of start:stop:step; the bounds must already lie inside the axis."""
    if step > 0:
        length = stop - start
        return length if step == 1 else (length + step - 1) // step
    return (start - stop) if step == -1 else (start - stop - step - 1) // -step


def python_slice(start: int, stop: int, step: int) -> Any:
    """Return bounds as a Python slice; −1, which is the last element to Python, means the position before the first one here."""
    return builtins.slice(0, 0) if start < 0 else builtins.slice(start, None if stop < 0 else stop, step)


def _slice_type(op: AtomicOp, xs: Sequence[Node], attrs: Mapping[str, Any]) -> TensorType:
    bounds = attrs["bounds"]
    if len(bounds) != xs[0].rank:
        raise AttributeValueError(f"slice of {show(xs[0])}: {len(bounds)} bounds for {xs[0].rank} axes")
    shape = []
    for axis, (s, (start, stop, step)) in enumerate(zip(xs[0].shape, bounds, strict=True)):
        if not isinstance(step, int) or step == 0:
            raise AttributeValueError(f"slice of {show(xs[0])}: the step of axis {axis} is {step!r}", fix="an int other than 0")
        text = f"slice of {show(xs[0])}: axis {axis} from {d.format_dim(start)} to {d.format_dim(stop)} step {step}"
        low, high = (start, stop) if step > 0 else (stop + 1, start + 1)
        if dim_ge(low, 0) is False or dim_ge(s, high) is False or dim_ge(high, low) is False:
            raise AttributeValueError(f"{text} leaves the axis of size {d.format_dim(s)}",
                                      fix="indexing x[a:b] clamps like Python; this op does not")
        shape.append(slice_size(start, stop, step))
    return TensorType(tuple(shape), xs[0].dtype)


def _slice_conditions(n: Node) -> Iterable[Condition]:
    for axis, (size, (start, stop, step)) in enumerate(zip(n.inputs[0].shape, n.attrs["bounds"], strict=True)):
        low, high = (start, stop) if step > 0 else (stop + 1, start + 1)
        steps = "" if step == 1 else f" step {step}"
        text = (f"axis {axis} from {d.format_dim(start)} to {d.format_dim(stop)}{steps} leaves the axis of size "
                f"{d.format_dim(size)}")
        for more, less in ((low, 0), (size, high), (high, low)):
            yield from at_least(more, less, f"slice of {show(n.inputs[0])}", text)


def _bitcast_type(op: AtomicOp, xs: Sequence[Node], attrs: Mapping[str, Any]) -> TensorType:
    old, new = xs[0].dtype, attrs["dtype"]
    if old.itemsize == new.itemsize:
        return TensorType(xs[0].shape, new)
    if xs[0].rank == 0:
        raise ShapeError(f"bitcast of {show(xs[0])} to {new.name}: a scalar has no last axis to scale")
    last = xs[0].shape[-1]
    if old.itemsize > new.itemsize:
        return TensorType((*xs[0].shape[:-1], last * (old.itemsize // new.itemsize)), new)
    ratio = new.itemsize // old.itemsize
    if not same_dim((last // ratio) * ratio, last):
        raise ShapeError(f"bitcast of {show(xs[0])} to {new.name}: the last axis, {d.format_dim(last)}, "
                         f"is not a multiple of {ratio}")
    return TensorType((*xs[0].shape[:-1], last // ratio), new)


def _gather_type(op: AtomicOp, xs: Sequence[Node], attrs: Mapping[str, Any]) -> TensorType:
    x, index = xs
    need("gather (index)", index, "int", "uint")
    axis = attrs["axis"]
    if not 0 <= axis < x.rank:
        raise AttributeValueError(f"gather: axis {axis} of {show(x)}")
    return TensorType((*x.shape[:axis], *index.shape, *x.shape[axis + 1:]), x.dtype)


def _scatter_type(op: AtomicOp, xs: Sequence[Node], attrs: Mapping[str, Any]) -> TensorType:
    base, index, updates = xs
    need("scatter (index)", index, "int", "uint")
    axis, mode = attrs["axis"], attrs["mode"]
    if mode not in op.choices["mode"]:
        raise AttributeValueError(f"scatter: mode {mode!r}", fix="set, add or max")
    if not 0 <= axis < base.rank:
        raise AttributeValueError(f"scatter: axis {axis} of {show(base)}")
    same_dtype("scatter", base, updates)
    if mode != "set":
        need(f"scatter ({mode})", base, "float", "int", "uint")
    wanted = (*base.shape[:axis], *index.shape, *base.shape[axis + 1:])
    if len(wanted) != updates.rank or not all(same_dim(a, b) for a, b in zip(wanted, updates.shape, strict=True)):
        raise ShapeError(f"scatter into {show(base)} with index {show(index)} along axis {axis}: the updates are "
                         f"{show(updates)}, [{', '.join(map(d.format_dim, wanted))}] is needed")
    return base.type


def _iota_type(op: AtomicOp, xs: Sequence[Node], attrs: Mapping[str, Any]) -> TensorType:
    shape, axis, dtype = attrs["shape"], attrs["axis"], attrs["dtype"]
    if not 0 <= axis < len(shape):
        raise AttributeValueError(f"iota: axis {axis} of shape {shape}")
    if dtype.kind == "bool":
        raise DTypeError("iota counts, so its dtype cannot be bool")
    return TensorType(shape, dtype)


# ---- derivatives (all written with strict ops; g has the shape and dtype of the output) -------------------------------------


def _like(value: float, x: Node) -> Node:
    return fill(value, x.shape, x.dtype)


def _zeros_if(keep: Node, g: Node) -> Node:
    return where(keep, g, _like(0, g))


def _max_gradient(n: Node, g: Node) -> tuple[Node | None, ...]:
    a, b = n.inputs                                   # a tie shares the gradient equally
    half = mul(g, _like(0.5, g))
    tie = logical_not(not_equal(a, b))
    return (where(tie, half, _zeros_if(less(b, a), g)), where(tie, half, _zeros_if(less(a, b), g)))


def _expand_back(x: Node, reduced: Node, axes: tuple[int, ...]) -> Node:
    with_ones = tuple(1 if i in axes else s for i, s in enumerate(x.shape))
    return expand(reshape(reduced, with_ones), x.shape)


def _reduce_max_gradient(n: Node, g: Node) -> tuple[Node | None, ...]:
    x, axes = n.inputs[0], n.attrs["axes"]
    winners = logical_not(not_equal(x, _expand_back(x, n, axes)))
    ones = cast(winners, x.dtype)
    share = mul(g, reciprocal(sum(ones, axes)))
    return (mul(ones, _expand_back(x, share, axes)),)


def _expand_gradient(n: Node, g: Node) -> tuple[Node | None, ...]:
    x = n.inputs[0]
    axes = tuple(i for i, (a, b) in enumerate(zip(x.shape, n.shape, strict=True)) if a != b)
    return (reshape(sum(g, axes), x.shape) if axes else g,)


def _slice_gradient(n: Node, g: Node) -> tuple[Node | None, ...]:
    x = n.inputs[0]
    out = g
    for axis, (start, _, step) in enumerate(n.attrs["bounds"]):
        size = x.shape[axis]
        if step == 1:
            pads: list[tuple[Dim, Dim]] = [(0, 0)] * x.rank
            pads[axis] = (start, size - start - out.shape[axis])
            out = pad(out, tuple(pads), 0) if pads[axis] != (0, 0) else out
        else:  # a strided slice is transposed by scattering to start + step·i
            count = out.shape[axis]
            at = add(mul(iota((count,), 0, i32), fill(step, (count,), i32)), dim_fill(start, (count,)))
            base = fill(0, (*out.shape[:axis], size, *out.shape[axis + 1:]), out.dtype)
            out = scatter(base, at, out, axis=axis, mode="add")
    return (out,)


def _pad_gradient(n: Node, g: Node) -> tuple[Node | None, ...]:
    x = n.inputs[0]
    return (slice(g, tuple((before, before + s, 1) for s, (before, _) in zip(x.shape, n.attrs["padding"], strict=True))),)


def _gather_gradient(n: Node, g: Node) -> tuple[Node | None, ...]:
    x, index = n.inputs
    return (scatter(_like(0, x), index, g, axis=n.attrs["axis"], mode="add"), None)


def _scatter_gradient(n: Node, g: Node) -> tuple[Node | None, ...]:
    base, index, updates = n.inputs
    axis, mode = n.attrs["axis"], n.attrs["mode"]
    if mode == "add":
        return (g, None, gather(g, index, axis=axis))
    if mode == "set":
        return (scatter(g, index, _like(0, updates), axis=axis, mode="set"), None, gather(g, index, axis=axis))
    # max: elements equal to the result share its gradient; count the winners per place
    base_wins = cast(logical_not(not_equal(base, n)), g.dtype)
    update_wins = cast(logical_not(not_equal(updates, gather(n, index, axis=axis))), g.dtype)
    winners = scatter(base_wins, index, update_wins, axis=axis, mode="add")
    share = mul(g, reciprocal(winners))
    return (mul(base_wins, share), None, mul(update_wins, gather(share, index, axis=axis)))


def _cast_gradient(n: Node, g: Node) -> tuple[Node | None, ...]:
    x = n.inputs[0]
    return (cast(g, x.dtype) if x.dtype.kind == "float" and n.dtype.kind == "float" else None,)


_LN2 = 0.6931471805599453  # ln 2
_NUMBERS = ("float", "int", "uint")

ROWS: tuple[AtomicOp, ...] = (
    AtomicOp("iota", 0, _iota_type, lambda a, n: a.iota(n), lambda n, g: (),
             attributes=("axis", "dtype", "shape"), group="source",
             facts=OpFacts(determined=True)),
    AtomicOp("reciprocal", 1, _floats, lambda a, n, x: a.reciprocal(n, x),
             lambda n, g: (mul(mul(g, mul(n, n)), _like(-1, n)),), flops=4,
             facts=OpFacts(rounds=True, determined=True, assumes="no division by 0")),
    AtomicOp("sqrt", 1, _floats, lambda a, n, x: a.sqrt(n, x),
             lambda n, g: (mul(g, mul(_like(0.5, n), reciprocal(n))),), flops=4,
             facts=OpFacts(rounds=True, determined=True, positive=True, assumes="roots of numbers ≥ 0", telling=True)),
    AtomicOp("exp2", 1, _floats, lambda a, n, x: a.exp2(n, x),
             lambda n, g: (mul(g, mul(n, _like(_LN2, n))),), flops=10,
             facts=OpFacts(rounds=True, telling=True)),
    AtomicOp("log2", 1, _floats, lambda a, n, x: a.log2(n, x),
             lambda n, g: (mul(g, reciprocal(mul(n.inputs[0], _like(_LN2, n)))),), flops=10,
             facts=OpFacts(rounds=True, positive=True, assumes="logarithms of numbers > 0", telling=True)),
    AtomicOp("sin", 1, _floats, lambda a, n, x: a.sin(n, x),
             lambda n, g: (mul(g, sin(add(n.inputs[0], _like(np.pi / 2, n)))),), flops=15,
             facts=OpFacts(rounds=True, telling=True)),
    AtomicOp("floor", 1, _floats, lambda a, n, x: a.floor(n, x), lambda n, g: (_like(0, g),),
             facts=OpFacts(exact=True, determined=True, telling=True, leaps=True)),
    AtomicOp("cast", 1, lambda op, xs, attrs: TensorType(xs[0].shape, attrs["dtype"]), lambda a, n, x: a.cast(n, x),
             _cast_gradient, attributes=("dtype",), facts=OpFacts(determined=True)),
    AtomicOp("bitcast", 1, _bitcast_type, lambda a, n, x: a.bitcast(n, x), lambda n, g: (None,),
             attributes=("dtype",), flops=0,
             facts=OpFacts(determined=True, dtype_matters=True, telling=True, leaps=True)),
    AtomicOp("add", 2, _elementwise(*_NUMBERS), lambda a, n, x, y: a.add(n, x, y), lambda n, g: (g, g),
             commutative=True, group="binary",
             facts=OpFacts(rounds=True, determined=True, any_order=("int", "uint"), ring=True, symbol="+")),
    AtomicOp("mul", 2, _elementwise(*_NUMBERS), lambda a, n, x, y: a.mul(n, x, y),
             lambda n, g: (mul(g, n.inputs[1]), mul(g, n.inputs[0])), commutative=True, group="binary",
             facts=OpFacts(rounds=True, determined=True, any_order=("int", "uint"), ring=True, symbol="·")),
    AtomicOp("max", 2, _elementwise(*_NUMBERS), lambda a, n, x, y: a.max(n, x, y), _max_gradient,
             commutative=True, group="binary",
             facts=OpFacts(exact=True, determined=True, any_order=_NUMBERS, selects=True)),
    AtomicOp("idiv", 2, _elementwise("int", "uint"), lambda a, n, x, y: a.idiv(n, x, y), lambda n, g: (None, None),
             group="binary", flops=8,
             facts=OpFacts(determined=True, telling=True)),
    AtomicOp("and", 2, _elementwise("int", "uint", "bool"), lambda a, n, x, y: a.bit_and(n, x, y),
             lambda n, g: (None, None), commutative=True, group="binary",
             facts=OpFacts(determined=True, any_order=("int", "uint", "bool"), bits=True)),
    AtomicOp("xor", 2, _elementwise("int", "uint", "bool"), lambda a, n, x, y: a.bit_xor(n, x, y),
             lambda n, g: (None, None), commutative=True, group="binary",
             facts=OpFacts(determined=True, any_order=("int", "uint", "bool"), bits=True)),
    AtomicOp("less", 2, _comparison(*_NUMBERS), lambda a, n, x, y: a.less(n, x, y), lambda n, g: (None, None),
             group="binary",
             facts=OpFacts(determined=True, compares=True, assumes="no NaN", telling=True, symbol="<")),
    AtomicOp("not_equal", 2, _comparison(*_NUMBERS, "bool"), lambda a, n, x, y: a.not_equal(n, x, y),
             lambda n, g: (None, None), commutative=True, group="binary",
             facts=OpFacts(determined=True, compares=True, assumes="no NaN")),
    AtomicOp("where", 3, _where_type, lambda a, n, c, x, y: a.where(n, c, x, y),
             lambda n, g: (None, _zeros_if(n.inputs[0], g), _zeros_if(logical_not(n.inputs[0]), g)), group="ternary",
             facts=OpFacts(exact=True, determined=True)),
    AtomicOp("sum", 1, _reduce, lambda a, n, x: a.sum(n, x),
             lambda n, g: (_expand_back(n.inputs[0], g, n.attrs["axes"]),), attributes=("axes",), group="reduce",
             facts=OpFacts(rounds=True, ring=True, telling=True)),
    AtomicOp("reduce_max", 1, _reduce, lambda a, n, x: a.reduce_max(n, x), _reduce_max_gradient,
             attributes=("axes",), group="reduce",
             facts=OpFacts(exact=True, determined=True, selects=True, telling=True)),
    AtomicOp("reshape", 1, _reshape_type, lambda a, n, x: a.reshape(n, x),
             lambda n, g: (reshape(g, n.inputs[0].shape),), attributes=("shape",), group="move", flops=0,
             facts=OpFacts(view=True, rearranges=True, exact=True, determined=True)),
    AtomicOp("permute", 1, _permute_type, lambda a, n, x: a.permute(n, x),
             lambda n, g: (permute(g, tuple(np.argsort(n.attrs["axes"]).tolist())),),
             attributes=("axes",), group="move", flops=0,
             facts=OpFacts(view=True, rearranges=True, exact=True, determined=True)),
    AtomicOp("expand", 1, _expand_type, lambda a, n, x: a.expand(n, x), _expand_gradient,
             attributes=("shape",), group="move", flops=0,
             facts=OpFacts(view=True, rearranges=True, exact=True, determined=True)),
    AtomicOp("pad", 1, _pad_type, lambda a, n, x: a.pad(n, x), _pad_gradient,
             attributes=("padding", "value"), group="move", flops=0, conditions=_pad_conditions,
             facts=OpFacts(determined=True)),
    AtomicOp("slice", 1, _slice_type, lambda a, n, x: a.slice(n, x), _slice_gradient,
             attributes=("bounds",), group="move", flops=0, conditions=_slice_conditions,
             facts=OpFacts(view=True, exact=True, determined=True)),
    AtomicOp("gather", 2, _gather_type, lambda a, n, x, i: a.gather(n, x, i), _gather_gradient,
             attributes=("axis",), group="index",
             facts=OpFacts(exact=True, determined=True, reads=Rows(0, 1), telling=True)),
    AtomicOp("scatter", 3, _scatter_type, lambda a, n, x, i, u: a.scatter(n, x, i, u), _scatter_gradient,
             attributes=("axis", "mode"), group="index", choices={"mode": ("set", "add", "max")},
             facts=OpFacts(rounds=True, writes=Rows(0, 1), telling=True)),
)
ATOMIC: dict[str, AtomicOp] = {row.name: row for row in ROWS}


# ---- builders: one per row, strict ------------------------------------------------------------------------------------------


def iota(shape: Sequence[Dim] | Dim, axis: int = 0, dtype: DType | str = i32) -> Node:
    """0, 1, 2, … along `axis` of `shape`, constant along the others.

    Integers or floats. Raises AttributeValueError (axis), ShapeError, DTypeError (bool).
    """
    shape = _shape(shape)
    return apply(ATOMIC["iota"], (), {"shape": shape, "axis": one_axis("iota", axis, len(shape)), "dtype": parse_dtype(dtype)})


def _named(build: Callable[..., Node], name: str, doc: str) -> Callable[..., Node]:
    build.__name__ = build.__qualname__ = name
    build.__doc__ = doc
    return build


def _unary(name: str, doc: str) -> Callable[[Node], Node]:
    def build(x: Node) -> Node:
        return apply(ATOMIC[name], (x,))

    return _named(build, name, f"{doc}\n\n    x[…] of a float dtype -> its shape and dtype. Raises DTypeError.\n    ")


def _binary(name: str, doc: str, public: str | None = None) -> Callable[[Node, Node], Node]:
    def build(x: Node, y: Node) -> Node:
        return apply(ATOMIC[name], (x, y))

    return _named(build, public or name, f"{doc} Strict: x and y have one shape and dtype. Raises ShapeError, DTypeError.")


reciprocal: Callable[[Node], Node] = _unary("reciprocal", "1 / x; of ±0 it is ±∞.")
sqrt: Callable[[Node], Node] = _unary("sqrt", "√x; NaN below 0.")
exp2: Callable[[Node], Node] = _unary("exp2", "2^x.")
log2: Callable[[Node], Node] = _unary("log2", "The logarithm to base 2; NaN below 0, −∞ at 0.")
sin: Callable[[Node], Node] = _unary("sin", "sin x, x in radians; NaN at ±∞.")
floor: Callable[[Node], Node] = _unary("floor", "⌊x⌋, the largest whole number ≤ x.")
add: Callable[[Node, Node], Node] = _binary("add", "x + y; integers wrap.")
mul: Callable[[Node, Node], Node] = _binary("mul", "x · y; integers wrap.")
max: Callable[[Node, Node], Node] = _binary("max", "The larger one; NaN wins, and +0 > −0.")
idiv: Callable[[Node, Node], Node] = _binary("idiv", "⌊x / y⌋ of integers; ÷ 0 gives 0.")
bit_and: Callable[[Node, Node], Node] = _binary("and", "x and y, bit by bit, of integers or booleans.", "bit_and")
bit_xor: Callable[[Node, Node], Node] = _binary("xor", "x xor y, bit by bit, of integers or booleans.", "bit_xor")
less: Callable[[Node, Node], Node] = _binary("less", "x < y as bool; False next to NaN.")
not_equal: Callable[[Node, Node], Node] = _binary("not_equal", "x ≠ y as bool; True next to NaN.")


def cast(x: Node, dtype: DType | str) -> Node:
    """x in another dtype; x itself when it has it already.

    Any dtypes: float -> int truncates and saturates, NaN gives 0; int -> int wraps. Floats are real numbers between ops: what is
    cast to bf16 or f16 and back inside of a graph may keep its digits, so that is no way to round; a cast to 8 bits rounds. Raises
    DTypeError (no dtype has that name).
    """
    dt = parse_dtype(dtype)
    return x if x.dtype == dt else apply(ATOMIC["cast"], (x,), {"dtype": dt})


def bitcast(x: Node, dtype: DType | str) -> Node:
    """The same bytes read as another dtype (little-endian); the last axis scales with the width.

    Any dtypes. Raises ShapeError (the last axis is no multiple), DTypeError.
    """
    dt = parse_dtype(dtype)
    return x if x.dtype == dt else apply(ATOMIC["bitcast"], (x,), {"dtype": dt})


def where(condition: Node, x: Node, y: Node) -> Node:
    """Return x where the condition is True, else y. Strict: one shape, x and y of one dtype. Raises ShapeError, DTypeError."""
    return apply(ATOMIC["where"], (condition, x, y))


def sum(x: Node, axis: int | Sequence[int] | None = None) -> Node:
    """Return the sum over the axes (all by default), which disappear; the dtype stays.

    Raises AttributeValueError (axis), DTypeError.
    """
    axes = several_axes("sum", axis, x.rank)
    return apply(ATOMIC["sum"], (x,), {"axes": axes}) if axes else x


def reduce_max(x: Node, axis: int | Sequence[int] | None = None) -> Node:
    """Return the maximum over the axes (all by default), which disappear; over no elements, −inf or the integers' minimum.

    Raises AttributeValueError (axis), DTypeError.
    """
    axes = several_axes("reduce_max", axis, x.rank)
    return apply(ATOMIC["reduce_max"], (x,), {"axes": axes}) if axes else x


def reshape(x: Node, shape: Sequence[Dim] | Dim) -> Node:
    """The same elements in C order under another shape; one size may be −1.

    Any dtype. Raises ShapeError (another number of elements).
    """
    sizes = [shape] if isinstance(shape, (int, np.integer, d.Expr)) else list(shape)
    unknown = [i for i, s in enumerate(sizes) if isinstance(s, (int, np.integer)) and s == -1]
    if len(unknown) > 1:
        raise ShapeError(f"reshape of {show(x)} to {tuple(sizes)}: only one size may be −1")
    if unknown:
        rest = d.product([s for s in sizes if not (isinstance(s, (int, np.integer)) and s == -1)])
        total = x.type.size()
        quotient = exact_div(total, rest) if rest != 0 else None
        if quotient is None:
            raise ShapeError(f"reshape of {show(x)} to {tuple(map(str, sizes))}: {d.format_dim(total)} elements are not "
                             f"a multiple of {d.format_dim(rest)}")
        sizes[unknown[0]] = quotient
    new = _shape(tuple(sizes))
    return x if new == x.shape else apply(ATOMIC["reshape"], (x,), {"shape": new})


def permute(x: Node, axis: Sequence[int]) -> Node:
    """x with its axes in another order: axis i of the result is axis axis[i] of x.

    Any dtype. Raises AttributeValueError (no order of all axes).
    """
    order = axis_order("permute", axis, x.rank)
    return x if order == tuple(range(x.rank)) else apply(ATOMIC["permute"], (x,), {"axes": order})


def expand(x: Node, shape: Sequence[Dim]) -> Node:
    """Repeat axes of size 1 up to `shape` (same rank).

    Any dtype. Raises ShapeError.
    """
    new = _shape(tuple(shape))
    return x if new == x.shape else apply(ATOMIC["expand"], (x,), {"shape": new})


def pad(x: Node, padding: Sequence[tuple[Dim, Dim]], value: float | int | bool = 0) -> Node:
    """Add (before, after) elements of `value` at each axis.

    Any dtype. Raises AttributeValueError (a pair per axis, amounts ≥ 0), DTypeError (the value does not fit).
    """
    fitted = constant(value, x.dtype).attrs["value"]
    pairs = tuple((a, b) for a, b in padding)
    if all(a == 0 and b == 0 for a, b in pairs) and len(pairs) == x.rank:
        return x
    return apply(ATOMIC["pad"], (x,), {"padding": pairs, "value": fitted})


def slice(x: Node, bounds: Sequence[tuple[Dim, Dim, int]]) -> Node:
    """start:stop:step at each axis, inside the axis (no clamping; for step < 0, stop may be −1 = before the first).

    Any dtype. x[a:b] clamps like Python. Raises AttributeValueError.
    """
    full = tuple((a, b, s) for a, b, s in bounds)
    if len(full) == x.rank and all(
            (a == 0 and b == size and s == 1) for (a, b, s), size in zip(full, x.shape, strict=True)):
        return x
    return apply(ATOMIC["slice"], (x,), {"bounds": full})


def gather(x: Node, index: Node, axis: int = 0) -> Node:
    """x[:axis] + index.shape + x[axis+1:]: slices of x along `axis` at `index`; out of range (negative too) reads 0.

    x of any dtype, index of integers. Raises AttributeValueError (axis), DTypeError.
    """
    return apply(ATOMIC["gather"], (x, index), {"axis": one_axis("gather", axis, x.rank)})


def scatter(base: Node, index: Node, updates: Node, axis: int = 0, mode: str = "set") -> Node:
    """base with `updates` written (set), added (add) or maximised (max) at `index` along `axis`; out of range is dropped.

    base[a…, s, b…], index[i…] of integers, updates[a…, i…, b…] of base's dtype. Raises AttributeValueError (axis, mode),
    ShapeError, DTypeError.
    """
    return apply(ATOMIC["scatter"], (base, index, updates),
                 {"axis": one_axis("scatter", axis, base.rank), "mode": mode})


# ---- shorthands built from the rows -----------------------------------------------------------------------------------------


def fill(value: bool | int | float, shape: Sequence[Dim], dtype: DType) -> Node:
    """Return a tensor in which every element is `value`."""
    c = constant(value, dtype)
    return expand(reshape(c, (1,) * len(tuple(shape))), shape) if shape else c


def dim_fill(value: Dim, shape: Sequence[Dim], dtype: DType = i32) -> Node:
    """Return a tensor in which every element is the run-time value of `value`, an expression of dims."""
    c = constant(value, dtype)
    return expand(reshape(c, (1,) * len(tuple(shape))), shape) if shape else c


def bit_or(x: Node, y: Node) -> Node:
    """Return x or y, bit by bit: (x xor y) xor (x and y).

    Strict: one shape and dtype. Raises ShapeError, DTypeError.
    """
    return bit_xor(bit_xor(x, y), bit_and(x, y))


def logical_not(x: Node) -> Node:
    """not x for booleans, ~x for integers.

    x[…] of booleans or integers -> its shape and dtype. Raises DTypeError.
    """
    need("logical_not", x, "bool", "int", "uint")
    return bit_xor(x, fill(True if x.dtype.kind == "bool" else -1 if x.dtype.kind == "int" else int(np.iinfo(x.dtype.numpy).max),
                           x.shape, x.dtype))
