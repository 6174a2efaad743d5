"""operators: Python's operators, indexing and methods of nodes, the writes of states, and how nodes and graphs are pickled.

They make nodes with ops, which are defined in terms of `Node`, and node.py imports no op; so this module installs them on the
classes. `tensor_graphs/__init__.py` imports it, so an import of any module of the package installs them.
"""

from __future__ import annotations

import copyreg
import operator as python_operators
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tensor_graphs.errors import no_attribute
from tensor_graphs.language import atomic, composites
from tensor_graphs.language import dims as d
from tensor_graphs.language.axis import one_axis
from tensor_graphs.language.composites import arithmetic, normalisation, products
from tensor_graphs.language.composites.writes import write_at
from tensor_graphs.language.dim_proofs import dim_ge, proved_equal
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.errors import AttributeValueError, DTypeError, NoValueError, ShapeError
from tensor_graphs.language.explain_call_errors import worded
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.leaves import AS_TENSOR, State, constant
from tensor_graphs.language.node import Node
from tensor_graphs.language.operands import Operand, is_number, keep

_VALUES_OF = ("compile the graph and run it: tg.bind(tg.compile(tg.graph(x))).run(inputs); "
              "tg.interpret(tg.graph(x), inputs) for the oracle's")

_REFLECTED = {"add": "__radd__", "subtract": "__rsub__", "multiply": "__rmul__", "divide": "__rtruediv__",
              "true_divide": "__rtruediv__", "floor_divide": "__rfloordiv__", "remainder": "__rmod__", "power": "__rpow__",
              "left_shift": "__rlshift__", "right_shift": "__rrshift__", "bitwise_and": "__rand__", "bitwise_or": "__ror__",
              "bitwise_xor": "__rxor__", "less": "__gt__", "less_equal": "__ge__", "greater": "__lt__",
              "greater_equal": "__le__", "equal": "__eq__", "not_equal": "__ne__"}
_COMPARISONS = ("__gt__", "__ge__", "__lt__", "__le__", "__eq__", "__ne__")
"""numpy's name of an operator -> the method of the operator's right operand; the methods that compare"""


def _absent(operator: str) -> Any:
    """Return a method that raises the error for a Python operator that tensors do not support."""
    def method(self: object, *operands: object) -> Any:
        from tensor_graphs.language.absent_operators import no_operator  # a door: of what tensors do not have

        raise no_operator(operator)

    return method


class TensorOperators:
    """Attributes that are copied to `Node` below: `+ − * / // % ** @ & | ^ ~ << >> < <= > >=`, `x[...]`, and methods.

    `==` tests if two tensors are the same node, and refuses numbers; `tg.equals` compares elements.
    """

    __slots__ = ()

    def _self(self) -> Node:
        return cast(Node, self)

    def _binary(self, op: str, other: Operand, swap: bool = False) -> Node:
        from tensor_graphs.language.composites import arithmetic

        build = getattr(arithmetic, op)
        return cast(Node, build(other, self) if swap else build(self, other))

    def __add__(self, o: Operand) -> Node: return self._binary("add", o)
    def __radd__(self, o: Operand) -> Node: return self._binary("add", o, True)
    def __sub__(self, o: Operand) -> Node: return self._binary("sub", o)
    def __rsub__(self, o: Operand) -> Node: return self._binary("sub", o, True)
    def __mul__(self, o: Operand) -> Node: return self._binary("mul", o)
    def __rmul__(self, o: Operand) -> Node: return self._binary("mul", o, True)
    def __truediv__(self, o: Operand) -> Node: return self._binary("div", o)
    def __rtruediv__(self, o: Operand) -> Node: return self._binary("div", o, True)
    def __floordiv__(self, o: Operand) -> Node: return self._binary("floor_div", o)
    def __rfloordiv__(self, o: Operand) -> Node: return self._binary("floor_div", o, True)
    def __mod__(self, o: Operand) -> Node: return self._binary("mod", o)
    def __rmod__(self, o: Operand) -> Node: return self._binary("mod", o, True)
    def __pow__(self, o: Operand) -> Node: return self._binary("pow", o)
    def __rpow__(self, o: Operand) -> Node: return self._binary("pow", o, True)
    def __and__(self, o: Operand) -> Node: return self._binary("bit_and", o)
    def __rand__(self, o: Operand) -> Node: return self._binary("bit_and", o, True)
    def __or__(self, o: Operand) -> Node: return self._binary("bit_or", o)
    def __ror__(self, o: Operand) -> Node: return self._binary("bit_or", o, True)
    def __xor__(self, o: Operand) -> Node: return self._binary("bit_xor", o)
    def __rxor__(self, o: Operand) -> Node: return self._binary("bit_xor", o, True)
    def __lt__(self, o: Operand) -> Node: return self._binary("less", o)
    def __gt__(self, o: Operand) -> Node: return self._binary("greater", o)
    def __le__(self, o: Operand) -> Node: return self._binary("less_equal", o)
    def __ge__(self, o: Operand) -> Node: return self._binary("greater_equal", o)
    def __lshift__(self, o: Operand) -> Node: return self._binary("left_shift", o)
    def __rlshift__(self, o: Operand) -> Node: return self._binary("left_shift", o, True)
    def __rshift__(self, o: Operand) -> Node: return self._binary("right_shift", o)
    def __rrshift__(self, o: Operand) -> Node: return self._binary("right_shift", o, True)
    __divmod__ = __rdivmod__ = _absent("divmod")
    __rmatmul__, __round__, __pos__, __contains__ = map(_absent, ("matmul", "round", "pos", "contains"))

    def __neg__(self) -> Node:
        from tensor_graphs.language.composites import arithmetic

        return cast(Node, arithmetic.neg(self))

    def __invert__(self) -> Node:
        return atomic.logical_not(self._self())

    def __matmul__(self, o: Operand) -> Node:
        return cast(Node, products.dot(self, o))

    def __eq__(self, o: object) -> bool:
        return self._same(o, "==", "equals")

    def __ne__(self, o: object) -> bool:
        return not self._same(o, "!=", "not_equal")

    __hash__ = object.__hash__

    def _same(self, o: object, sign: str, instead: str) -> bool:
        """Return True if o is the same node. Raises NoValueError for a number or an array: `x == 0` is meant element by element."""
        if self is o or isinstance(o, Node) or not (is_number(o) or isinstance(o, np.ndarray)):
            return self is o
        raise NoValueError(f"{self._self().type} {sign} {o!r}: {sign} asks whether two tensors are one, not about elements",
                           fix=f"tg.{instead}(x, {o if is_number(o) else 'array'}) is a bool tensor, element by element")

    def __bool__(self) -> bool:
        raise NoValueError(f"{self._self().type} has no truth value: the graph is being written, and nothing is computed yet",
                           fix="tg.where(condition, a, b) chooses element by element; the condition is a comparison: x < y, "
                               "tg.equals(x, y), tg.not_equal(x, y)")

    def __len__(self) -> int:
        raise NoValueError("len of a tensor", fix="x.shape[0], which is an int or a dim")

    def __iter__(self) -> Any:
        raise NoValueError(f"{self._self().type} is not iterable", fix="index it, x[i]")

    def __array__(self, *a: Any, **k: Any) -> Any:
        raise NoValueError(f"{self._self().type} holds no values yet", fix=_VALUES_OF)

    def __float__(self) -> float:
        raise self._no_value("float")

    def __int__(self) -> int:
        raise self._no_value("int")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **k: Any) -> Any:
        """Apply the reflected operator to an array or number of numpy on the left of a tensor; refuse all other numpy functions."""
        name = ufunc.__name__
        if method == "__call__" and name in _REFLECTED and len(inputs) == 2 and inputs[1] is self:
            left = inputs[0]
            if _REFLECTED[name] in _COMPARISONS and isinstance(left, np.ndarray) and left.ndim == 0:
                left = left[()]                                     # numpy hands its numbers over as arrays there
            return getattr(self, _REFLECTED[name])(left)
        raise self._no_value(f"np.{name}", name)

    def _no_value(self, asked: str, function: str = "") -> NoValueError:
        """Return the error for a function that needs values. function: numpy's name, for which there may be an op."""
        from tensor_graphs.language.foreign_names import FUNCTIONS

        named = (function, *FUNCTIONS.get(function, ()))
        ours = next((n for n in named if n and (hasattr(composites, n) or n in atomic.ATOMIC)), "")
        return NoValueError(f"{asked} of {self._self().type}: the graph is being written, and nothing is computed yet",
                            fix=f"tg.{ours} says the same of tensors" if ours else _VALUES_OF)

    if not TYPE_CHECKING:                                            # a checker of types knows what is there
        def __getattr__(self, name: str) -> Any:
            """Raise the error for a name that a tensor does not have."""
            from tensor_graphs.language.foreign_names import METHODS, VALUES, function_meant

            if name in VALUES:
                meant = "nothing is computed yet; " + _VALUES_OF
            elif name.startswith("_"):
                meant = ""
            else:
                meant = METHODS.get(name) or (f"tg.{name}(x, …)" if hasattr(composites, name) else function_meant(name))
            raise no_attribute("a tensor of a graph", name, dir(type(self)), meant, "x.")

    # ---- methods ----

    def cast(self, dtype: DType | str) -> Node:
        return atomic.cast(self._self(), dtype)

    def reshape(self, *shape: Any) -> Node:
        return atomic.reshape(self._self(), shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape)

    def permute(self, *axis: Any) -> Node:
        """Return x with its axes reordered, `x.permute(1, 0)` or `x.permute((1, 0))`: axis i of the result is axis axis[i] of x."""
        return atomic.permute(self._self(), axis[0] if len(axis) == 1 and not isinstance(axis[0], (int, np.integer)) else axis)

    def transpose(self, axis1: int = -2, axis2: int = -1) -> Node:
        """Return x with two axes exchanged (numpy.swapaxes), by default the last two."""
        x = self._self()
        order = list(range(x.rank))
        a, b = (one_axis("transpose", i, x.rank) for i in (axis1, axis2))
        order[a], order[b] = order[b], order[a]
        return atomic.permute(x, order)

    @property
    def T(self) -> Node:
        return self.transpose()

    def sum(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Node:
        """Return the sum over the axes (all by default), in x's dtype; integers wrap."""
        return keep(self._self(), atomic.sum(self._self(), axis), axis, keepdims)

    def max(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Node:
        """Return the maximum over the axes (all by default). NaN wins; over no elements it is −inf, or the integers' minimum."""
        return keep(self._self(), atomic.reduce_max(self._self(), axis), axis, keepdims)

    def min(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Node:
        """Return the minimum over the axes (all by default). NaN wins; over no elements it is +inf, or the integers' maximum."""
        return arithmetic.reduce_min(self._self(), axis, keepdims)

    def mean(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Node:
        """Return the mean over the axes (all by default), in x's float dtype."""
        return normalisation.mean(self._self(), axis, keepdims=keepdims)

    def __getitem__(self, index: Any) -> Node:
        return index_tensor(self._self(), index)


for _name, _method in vars(TensorOperators).items():
    if callable(_method) or isinstance(_method, property):
        setattr(Node, _name, worded(_method) if isinstance(_method, FunctionType) and not _name.startswith("_") else _method)


def _bound(value: Any, size: Dim, default: Dim, low: int, what: str) -> Dim:
    """Return a bound of a Python slice: a negative int counts from the back, ints are clamped to low … size + low, dims are not."""
    if value is None:
        return default
    if isinstance(value, np.integer):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (int, d.Expr)):
        raise AttributeValueError(f"{what} of a slice is {value!r}", fix="an int, a dim, or None")
    if isinstance(value, int):
        if value < 0:
            value = size + value
            return value if dim_ge(value, low) is True else d.dim_max(value, low)
        return value if dim_ge(size + low, value) is True else d.dim_min(value, size + low)
    return cast(Dim, value)


def index_tensor(x: Node, index: Any) -> Node:
    """Return x[index]: ints (negative too), slices with steps, None, one Ellipsis, dims, and one integer tensor (a gather).

    Raises AttributeValueError for an index out of range, too many indices, or a boolean mask (whose result has no static size).
    """
    from tensor_graphs.language.node import Node

    items = list(index) if isinstance(index, tuple) else [index]
    for i in items:
        if isinstance(i, (bool, np.bool_)) or (isinstance(i, Node) and i.dtype.kind == "bool") or (
                isinstance(i, (np.ndarray, list)) and np.asarray(i).dtype.kind == "b"):
            raise AttributeValueError(f"{x.type} indexed by a boolean mask: the size of the result would depend on values",
                                      fix="tg.where(mask, x, other) keeps the shape; gather with integer indices selects")
    named = sum(1 for i in items if i is not None and i is not Ellipsis)
    if sum(1 for i in items if i is Ellipsis) > 1:
        raise AttributeValueError("an index may hold only one Ellipsis (…)")
    if named > x.rank:
        raise AttributeValueError(f"{x.type} indexed with {named} indices, it has {x.rank} axes",
                                  fix=f"at most {x.rank}; None adds an axis of size 1")
    if not any(i is Ellipsis for i in items):
        items.append(Ellipsis)
    at = next(k for k, i in enumerate(items) if i is Ellipsis)
    items[at:at + 1] = [slice(None)] * (x.rank - named)

    bounds: list[tuple[Dim, Dim, int]] = []
    gathers: list[tuple[int, Node]] = []
    drop: set[int] = set()
    layout: list[int | None] = []                      # axis of x, or None for a new axis
    axis = 0
    for i in items:
        if i is None:
            layout.append(None)
            continue
        size = x.shape[axis]
        if isinstance(i, slice):
            step = 1 if i.step is None else i.step
            if isinstance(step, bool) or not isinstance(step, (int, np.integer)) or step == 0:
                raise AttributeValueError(f"the step of a slice is {step!r}", fix="an int other than 0")
            step = int(step)
            if step > 0:
                start, stop = _bound(i.start, size, 0, 0, "the start"), _bound(i.stop, size, size, 0, "the stop")
                if dim_ge(stop, start) is not True:
                    stop = d.dim_max(stop, start)
            else:
                start, stop = _bound(i.start, size, size - 1, -1, "the start"), _bound(i.stop, size, -1, -1, "the stop")
                if dim_ge(start, stop) is not True:
                    stop = d.dim_min(stop, start)
                if dim_ge(start, 0) is not True:      # a start before the first element: an empty slice from 0
                    length = start - stop
                    start = d.dim_max(start, 0)
                    stop = start - length
            bounds.append((0, 0, 1) if proved_equal(start, stop) else (start, stop, step))
        elif isinstance(i, (int, np.integer, d.Expr)):
            where = int(i) if isinstance(i, np.integer) else i
            if isinstance(where, int) and where < 0:
                where = size + where
            if dim_ge(where, 0) is False or dim_ge(size, where + 1) is False:
                raise AttributeValueError(f"index {i} of axis {axis}, which has size {d.format_dim(size)}, in {x.type}",
                                          fix=f"an index from {d.format_dim(0 - size)} to {d.format_dim(size - 1)}")
            bounds.append((where, where + 1, 1))
            drop.add(axis)
        elif isinstance(i, Node):
            bounds.append((0, size, 1))
            gathers.append((axis, i))
        elif isinstance(i, (list, np.ndarray)):
            array = np.asarray(i)
            if isinstance(size, int):
                if array.size and (array.min() < -size or array.max() >= size):
                    raise AttributeValueError(f"index {array.tolist()} of axis {axis}, which has size {size}",
                                              fix=f"indices from {-size} to {size - 1}")
                array = np.where(array < 0, array + size, array)
            bounds.append((0, size, 1))
            gathers.append((axis, constant(array)))
        else:
            raise AttributeValueError(f"a tensor cannot be indexed by {i!r}",
                                      fix="ints, slices, None, Ellipsis, dims, integer tensors")
        layout.append(axis)
        axis += 1
    if len(gathers) > 1:
        raise AttributeValueError("only one integer tensor per index", fix="index twice, or reshape to one axis and gather")
    out = atomic.slice(x, bounds)
    extra = 0
    if gathers:
        g_axis, g_index = gathers[0]
        out = atomic.gather(out, g_index, axis=g_axis)
        extra = g_index.rank - 1
    shape: list[Dim] = []
    for source in layout:
        if source is None:
            shape.append(1)
        elif source in drop:
            continue
        elif gathers and source == gathers[0][0]:
            shape.extend(gathers[0][1].shape)
        else:
            shape.append(out.shape[source + (extra if gathers and source > gathers[0][0] else 0)])
    return atomic.reshape(out, tuple(shape))


def write(state: State, value: Node, at: Dim | Node | None = None, axis: int = 0) -> Node:
    """Return a new value: `value` itself (at=None), or the old one with `value` written from index `at` along `axis`.

    `at` may be an int, a dim, or an integer tensor with one index per slice of `value`. Slices before row 0 are dropped, and so are
    slices beyond the last row; but if `at` is a dim or an input, a run with slices beyond the last row is refused. Raises
    ShapeError where the value never fits.
    """
    if not isinstance(value, Node):
        raise DTypeError(f"state {state.name!r}: the new value is {value!r}, a tensor is needed",
                         fix=AS_TENSOR if isinstance(value, State) else "wrap numbers and arrays with tg.constant")
    if at is None:
        if value.type != state.node.type:
            raise ShapeError(f"state {state.name!r} is {state.node.type}, the new value is {value.type}",
                             fix="a value of that type, or write(value, at=0, axis=0) for a part of it")
        return value
    result = write_at(state.node, value, at, axis=axis)
    if result.op.name == "write_rows":
        axis, start = result.attrs["axis"], result.attrs["start"]
        if dim_ge(state.node.shape[axis], start + value.shape[axis]) is False:
            raise ShapeError(f"state {state.name!r} is {state.node.type}, and {value.type} does not fit into it from "
                             f"{d.format_dim(start)} on along axis {axis}", fix="a longer state, or an earlier start")
    return result


def _refused(name: str) -> Callable[..., Any]:
    def operator(self: State, *other: Any) -> Any:
        raise DTypeError(f"{self!r} is no tensor: it has no {name}", fix=AS_TENSOR)

    return operator


State.write = write  # type: ignore[method-assign, assignment]
for _name in vars(TensorOperators):
    if _name.startswith("__") and _name.replace("__r", "__") in vars(python_operators) and _name not in ("__eq__", "__ne__"):
        setattr(State, _name, _refused(_name))


def _reduced_node(node: Node) -> tuple[Any, ...]:
    """Return the node for pickle, as JSON of the graph below it; unpickled, it is one object with an equal node."""
    from tensor_graphs.language.json_reader import node_from_json
    from tensor_graphs.language.json_writer import node_to_json

    return node_from_json, (node_to_json(node), len(node.types) > 1)


def _reduced_graph(graph: Graph) -> tuple[Any, ...]:
    """Return the graph for pickle, as its JSON form; unpickled, it is the same graph without locations. It may have any depth."""
    from tensor_graphs.language.json_reader import graph_from_json
    from tensor_graphs.language.json_writer import graph_to_json

    return graph_from_json, (graph_to_json(graph),)


copyreg.pickle(Node, _reduced_node)
copyreg.pickle(Graph, _reduced_graph)
