"""leaves: values that no op computes — inputs, parameters, states, constants — and the two structural ops.

`item` is one output of a node that has several; `copy_to` names the device on which a value is stored. Neither changes a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tensor_graphs.errors import no_attribute
from tensor_graphs.language import dims as d
from tensor_graphs.language.dim_proofs import dim_ge
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, bool_, f32, i32, parse_dtype
from tensor_graphs.language.errors import AttributeValueError, DTypeError, GraphError, ShapeError
from tensor_graphs.language.node import ArrayValue, Node, TensorType, apply
from tensor_graphs.language.op_facts import UNKNOWN, OpFacts


class Leaf:
    """The op of a leaf: it has no operands, and its type is among its attributes."""

    kind = group = "leaf"
    facts = UNKNOWN

    def __init__(self, name: str) -> None:
        self.name = name

    def infer(self, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> tuple[TensorType, ...]:
        return (TensorType(attrs["shape"], attrs["dtype"]),)

    def identity(self, node: Node) -> str:
        return ""

    def __repr__(self) -> str:
        return self.name


INPUT, PARAMETER, STATE, CONSTANT, ARGUMENT = (
    Leaf(n) for n in ("input", "parameter", "state", "constant", "argument")
)
"""argument: the placeholder of an operand inside a composite's definition or a canonical graph, identified by its number alone."""
NAMED_LEAVES = (INPUT, PARAMETER, STATE)


class _Item:
    name, kind, group, facts = "item", "structural", "structural", OpFacts(view=True)

    def infer(self, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> tuple[TensorType, ...]:
        return (inputs[0].types[attrs["index"]],)

    def identity(self, node: Node) -> str:
        return ""


class _CopyTo:
    name, kind, group, facts = "copy_to", "structural", "structural", OpFacts(view=True)

    def infer(self, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> tuple[TensorType, ...]:
        return inputs[0].types

    def identity(self, node: Node) -> str:
        return ""


ITEM, COPY_TO = _Item(), _CopyTo()


def _shape(shape: Sequence[Dim] | Dim) -> tuple[Dim, ...]:
    dims = (shape,) if isinstance(shape, (int, np.integer, d.Expr)) else tuple(shape)
    out: list[Dim] = []
    for axis, s in enumerate(dims):
        if isinstance(s, (int, np.integer)) and not isinstance(s, bool):
            s = int(s)
            if s < 0:
                raise ShapeError(f"axis {axis} of shape {tuple(dims)} is negative", fix="sizes are ≥ 0")
            if s > d.MAX_SIZE:
                raise ShapeError(f"axis {axis} of a shape is {d.shown_int(s)}, which is beyond 64 bits",
                                 fix=f"at most {d.MAX_SIZE}")
        elif isinstance(s, d.Expr) and dim_ge(s, 0) is False:
            raise ShapeError(f"axis {axis} of a shape is {s}, which is below 0 at every size", fix="sizes are ≥ 0")
        elif not isinstance(s, d.Expr):
            raise ShapeError(f"axis {axis} of a shape is {s!r}", fix="a size is an int or a tg.dim expression")
        out.append(s)
    return tuple(out)


def _name(kind: str, name: str) -> str:
    if not isinstance(name, str) or not name or any(c.isspace() or c in '"\\' for c in name):
        raise GraphError(f"{kind} needs a name without spaces, quotes and backslashes, got {name!r}", fix=f"tg.{kind}(\"x\", …)")
    return name


def input(name: str, shape: Sequence[Dim] | Dim, dtype: DType | str = f32) -> Node:
    """Return a value that the caller gives at every run. The dtype is f32 by default; sizes are ints or dims.

    Raises GraphError (the name), ShapeError (an invalid size), DTypeError (no dtype has that name).
    """
    return apply(INPUT, (), {"name": _name("input", name), "shape": _shape(shape), "dtype": parse_dtype(dtype)})


def parameter(name: str, shape: Sequence[Dim] | Dim, dtype: DType | str = f32) -> Node:
    """Return a persistent, constant value (a weight), given once when the graph is bound. Its shape is static.

    Raises GraphError (the name), ShapeError (a size that is no int), DTypeError.
    """
    shape = _shape(shape)
    if not all(d.is_static(s) for s in shape):
        raise ShapeError(f"parameter {name!r} has the symbolic shape {shape}", fix="a weight's sizes are ints")
    return apply(PARAMETER, (), {"name": _name("parameter", name), "shape": shape, "dtype": parse_dtype(dtype)})


AS_TENSOR = "its value before the step is a tensor: state.read()"


class State:
    """A persistent, mutable value (a KV cache). SSA: `read` returns the value before the step, `write` makes a new value.

    The graph names the final value in `updates`; whether memory is written in place is the planner's decision.
    """

    def __init__(self, node: Node) -> None:
        self.node = node

    def __repr__(self) -> str:
        return f"<state {self.name} {self.node.type}>"

    @property
    def name(self) -> str:
        return str(self.node.attrs["name"])

    if TYPE_CHECKING:
        def write(self, value: Node, at: Dim | Node | None = None, axis: int = 0) -> Node: ...  # operators.py
    else:                                                            # a checker of types knows what is there
        def __getattr__(self, name: str) -> Any:
            """Raise the error for a name that a state does not have; most often it is one of a tensor."""
            raise no_attribute("a state", name, dir(type(self)), AS_TENSOR if hasattr(Node, name) else "")

    def read(self) -> Node:
        """Return the value before the step, as a tensor."""
        return self.node


def state(name: str, shape: Sequence[Dim] | Dim, dtype: DType | str = f32) -> State:
    """Return a persistent, mutable tensor of static shape; it is zero when a session starts.

    Raises GraphError (the name), ShapeError (a size that is no int), DTypeError.
    """
    shape = _shape(shape)
    if not all(d.is_static(s) for s in shape):
        raise ShapeError(f"state {name!r} has the symbolic shape {shape}", fix="give it the largest size it may reach")
    return State(apply(STATE, (), {"name": _name("state", name), "shape": shape, "dtype": parse_dtype(dtype)}))


def constant(value: bool | int | float | Dim | np.ndarray | Sequence[Any], dtype: DType | str | None = None) -> Node:
    """Return a constant: a scalar, an expression of dims (its value at run time), or a small array.

    dtype defaults to f32 for floats, i32 for ints and dims, bool for booleans. Raises DTypeError when the value does not fit. A
    float is stored exactly and rounded when it is used; if it is beyond the dtype's largest number, it is then infinite (`x * 1e39`
    is refused, since it is hardly intended).
    """
    if isinstance(value, Node):
        raise DTypeError("a constant cannot be made of a tensor", fix="use the tensor itself")
    if isinstance(value, d.Expr):
        dt = parse_dtype(dtype) if dtype is not None else i32
        return apply(CONSTANT, (), {"value": value, "shape": (), "dtype": dt})
    if isinstance(value, (bool, np.bool_, int, np.integer, float, np.floating)):
        natural = bool_ if isinstance(value, (bool, np.bool_)) else i32 if isinstance(value, (int, np.integer)) else f32
        dt = parse_dtype(dtype) if dtype is not None else natural
        return apply(CONSTANT, (), {"value": _fit(value, dt), "shape": (), "dtype": dt})
    try:
        array = np.asarray(value)
    except ValueError:
        raise DTypeError("a constant's rows differ in length or depth", fix="as many elements in each row") from None
    if array.dtype.kind == "O":
        raise DTypeError(f"no constant can be made of a {type(value).__name__}, {value!r}", fix="numbers, a list of them, an array")
    if dtype is None:
        dtype = {"f": f32, "i": i32, "u": i32, "b": bool_}.get(array.dtype.kind) if array.dtype.name in (
            "float64", "int64", "bool", "float32", "int32") else parse_dtype(array.dtype)
        if dtype is None:
            raise DTypeError(f"no constant can be made of a numpy array of dtype {array.dtype}")
    dt = parse_dtype(dtype)
    if dt.kind in ("int", "uint") and array.size:
        info = np.iinfo(dt.numpy)
        if array.dtype.kind == "f" or array.min() < info.min or array.max() > info.max:
            raise DTypeError(f"the constant array does not fit {dt.name}", fix=f"{dt.name} holds {info.min} to {info.max}")
    if array.ndim == 0:
        return constant(array.item(), dt)
    return apply(CONSTANT, (), {"value": ArrayValue.of(array.astype(dt.numpy), dt), "shape": array.shape, "dtype": dt})


def _fit(value: Any, dtype: DType) -> bool | int | float:
    if dtype.kind == "bool":
        if value not in (0, 1):
            raise DTypeError(f"the constant {value!r} is no bool")
        return bool(value)
    if dtype.kind == "float":
        try:
            return float(value)
        except OverflowError:
            raise DTypeError(f"the constant {d.shown_int(int(value))} does not fit {dtype.name}",
                             fix="inf, or a smaller number") from None
    if isinstance(value, (float, np.floating)) and not float(value).is_integer():
        raise DTypeError(f"the constant {value!r} is not a whole number, the dtype is {dtype.name}",
                         fix="cast the tensor to a float dtype, or round the number")
    info = np.iinfo(dtype.numpy)
    if not info.min <= int(value) <= info.max:
        shown = d.shown_int(value) if isinstance(value, int) else repr(value)
        raise DTypeError(f"the constant {shown} does not fit {dtype.name}", fix=f"{info.min} to {info.max}")
    return int(value)


def item(node: Node, index: int) -> Node:
    """Return output number `index` of a node; a node with one output is returned itself."""
    if not 0 <= index < len(node.types):
        raise AttributeValueError(f"{node.op.name} has {len(node.types)} outputs, number {index} was asked for")
    return node if len(node.types) == 1 else apply(ITEM, (node,), {"index": index})


def copy_to(x: Node, device: str) -> Node:
    """Return x on another device ("cpu", "cuda:0"): no math, but it has a cost. Raises AttributeValueError, DTypeError."""
    if not isinstance(x, Node):
        raise DTypeError(f"copy_to: {type(x).__name__} is no tensor of a graph", fix="tg.constant(…); of arrays tg.device_array(…)")
    if not isinstance(device, str) or not device:
        raise AttributeValueError(f"a device is named by a string, got {device!r}", fix="'cpu' or 'cuda:0'")
    return apply(COPY_TO, (x,), {"device": device})


def argument(index: int, type: TensorType) -> Node:
    """Return placeholder number `index` of a definition or of a canonical graph."""
    return apply(ARGUMENT, (), {"index": index, "shape": type.shape, "dtype": type.dtype})
