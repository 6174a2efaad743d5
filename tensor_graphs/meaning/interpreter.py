"""interpreter: the float64 oracle. It computes what a graph means, without any kernel, as the reference of every error.

    interpret(graph, {"x": array}, {"w": array}).outputs["y"]

It computes the value of every node, operands first; algebra.py has the arithmetic. It keeps a stack of frames, so neither the depth
of a graph nor that of nested composites is limited. An array is dropped after its last use. A large leaf (a weight) stays in the
caller's dtype and is widened for each op that reads it: one piece at a time where the op's row declares it (`OpFacts.piecewise`),
or only the rows that a gather takes.

A scan is a loop over its step; in real mode, the carried values are never rounded.

A composite is evaluated by its `direct` if it has one (in real mode; a test compares it with the definition), else by its
definition at these sizes. As written, the definition decides where values are rounded; `direct` then serves only composites that
merely choose and move values (write_rows, topk, concat, …), so that nothing is rounded, composites that are rounded once (mod:
`OpFacts.determined`), and opaque ones. Jittered is as written, with sums as if added in another order; where the two differ, a
result depends on what a definition leaves open.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.atomic import AtomicOp
from tensor_graphs.language.composite import CompositeOp, Definition, resolve_attributes
from tensor_graphs.language.composites.scan import ScanOp
from tensor_graphs.language.dtypes import BY_NUMPY, DType
from tensor_graphs.language.explain_call_errors import worded
from tensor_graphs.language.graph import Graph, require_graph
from tensor_graphs.language.node import ArrayValue, Node, walk
from tensor_graphs.language.subgraph import Turns
from tensor_graphs.meaning.algebra import Array, AsWritten, At, Jittered, Real, carrier, narrow, wide
from tensor_graphs.meaning.errors import MeaningError
from tensor_graphs.meaning.exact_definitions import chooses

Mode = Literal["real", "as_written", "jittered"]

ALGEBRAS: Mapping[Mode, type[Real]] = {"real": Real, "as_written": AsWritten, "jittered": Jittered}

KEPT_WIDE = 16 << 20
"""Float leaves of up to this many bytes in float64 are widened once; larger ones are widened for each op that reads them."""


@dataclass(frozen=True)
class Result:
    """Results of a graph: its outputs and the new values of its states, by name, in the graph's order."""

    outputs: dict[str, Array]
    updates: dict[str, Array]


@worded
def interpret(graph: Graph, inputs: Mapping[str, Any] | None = None, parameters: Mapping[str, Any] | None = None,
              states: Mapping[str, Any] | None = None, dims: Mapping[str, int] | None = None, mode: Mode = "real",
              use_direct: bool = True, jitter: int = 1) -> Result:
    """Return the outputs and state updates of a graph.

    inputs, parameters, states: arrays (or what numpy.asarray takes) by name. A missing state is zero, as when a session starts;
    unknown parameters are ignored. dims: sizes by name; the size of a dim that is an axis of an input is taken from the input.
    Floats are returned as float64 in real mode, in their dtype as written; results share no memory with arguments. jitter: the seed
    of mode jittered. Raises MeaningError for missing or unfit values, InterpreterError for undefined results.
    """
    graph = require_graph(graph, "interpret")
    leaf_values: dict[Node, Any] = {}
    for kind, declared, values in (("input", graph.inputs, inputs or {}), ("parameter", graph.parameters, parameters or {}),
                                   ("state", graph.states, states or {})):
        if not isinstance(values, Mapping):
            raise MeaningError(f"{kind}s are given by name, and this is {values!r:.60}",
                               fix=f"{{{', '.join(f'{name!r}: …' for name in declared)}}}")
        for name, leaf in declared.items():
            if name in values:
                leaf_values[leaf] = _array(leaf, values[name])
            elif kind != "state":
                raise MeaningError(f"the {kind} {name!r}, {leaf.type}, is not given", leaf.location,
                                   fix=f"{kind}s={{{name!r}: …}}; given are {_listed(values)}")
        unknown = [name for name in values if name not in declared and not (kind == "state" and name in graph.updates)]
        if unknown and kind != "parameter":
            raise MeaningError(f"the graph has no {kind} named {unknown[0]!r}",
                               fix=f"it has {_listed(declared)}" if declared else f"leave it out: the graph has no {kind}s")
    binding = solve(graph, {name: leaf_values[leaf].shape for name, leaf in graph.inputs.items()}, dims)
    for leaf in graph.states.values():
        if leaf not in leaf_values:
            leaf_values[leaf] = np.zeros(_shape(leaf, binding), dtype=leaf.dtype.numpy)
    results = evaluate(graph.roots, leaf_values, binding, mode, use_direct, jitter)
    count = len(graph.outputs)
    return Result(dict(zip(graph.outputs, results[:count], strict=True)),
                  dict(zip(graph.updates, results[count:], strict=True)))


def evaluate(nodes: Sequence[Node], leaf_values: Mapping[Node, Any], binding: Mapping[str, int], mode: Mode = "real",
             use_direct: bool = True, jitter: int = 1) -> list[Array]:
    """Return the values of nodes, each with one output.

    leaf_values: an array for every input, parameter, state and argument that they need. binding: the size of each dim.
    use_direct=False: evaluate every composite by its definition, except opaque ones. jitter: the seed of mode jittered. Floats are
    returned as float64 in real mode, in their dtype as written. Raises MeaningError, InterpreterError, DimError.
    """
    if mode not in ALGEBRAS:
        raise MeaningError(f"the mode is {mode!r}", fix="'real' or 'as_written'")
    with np.errstate(all="ignore"):
        results = _Walk(leaf_values, binding, mode, use_direct, jitter).run(nodes)
        twice = [any(x is before for before in results[:i]) for i, x in enumerate(results)]
        return [_own(x, node.dtype, mode, again) for x, node, again in zip(results, nodes, twice, strict=True)]


def _own(x: Array, dtype: DType, mode: Mode, again: bool) -> Array:
    """Return x as a writable array that shares no memory; inside of the walk arrays are read-only, and some are views of arguments.
    Memory that only x refers to is not copied, unless already returned (`again`): copying 100 MB takes as long as many ops."""
    if mode != "real" and dtype.kind == "float":
        x = narrow(x, dtype)
    if not again and isinstance(x.base, np.ndarray) and _seen_by(x) == _ALONE:
        base = x.base
        whole = (base.shape, base.strides, base.dtype) == (x.shape, x.strides, x.dtype)
        if whole and base.flags.owndata and base.flags.writeable and base.flags.c_contiguous:
            return base
    return np.array(x, order="C")


def _seen_by(view: Array) -> int:
    """Return the number of references to the array behind a view, including those of this function."""
    base = view.base
    return sys.getrefcount(base)


_ALONE = _seen_by(np.empty(1).view())


# ---- what is given ---------------------------------------------------------------------------------------------------


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, names)) or "none"


def _called(leaf: Node) -> str:
    return f"the {leaf.op.name} {leaf.attrs.get('name', leaf.attrs.get('index'))!r}"


def _text(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _shape(node: Node, binding: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(d.evaluate(s, binding) for s in node.shape)


def _array(leaf: Node, value: Any) -> Array:
    """Return an argument as an array that fits the leaf's dtype: floats of any width for floats, integers in range for integers."""
    dtype = leaf.dtype
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as e:
        raise MeaningError(f"{_called(leaf)}, {leaf.type}, cannot be read as an array: {e}", leaf.location,
                           fix="give a numpy array (of a torch tensor in bfloat16: tensor.float().numpy())") from None
    if array.dtype == dtype.numpy:
        return array
    array_dtype = BY_NUMPY.get(array.dtype)                       # numpy itself knows floats of ml_dtypes by no common kind
    kind = "f" if array_dtype is not None and array_dtype.is_float else array.dtype.kind
    if array.size == 0 and not hasattr(value, "dtype"):     # an empty list has no dtype of its own
        return array.astype(dtype.numpy)
    if dtype.kind == "float" and kind in "fiu" and array.dtype.itemsize <= 8:
        return array
    if dtype.is_integer and kind in "iu":
        if array.size and not dtype.min <= array.min() <= array.max() <= dtype.max:
            raise MeaningError(f"{_called(leaf)} is {leaf.type}, the given integers range from {array.min()} to "
                               f"{array.max()}", leaf.location, fix=f"{dtype.name} holds {dtype.min} to {dtype.max}")
        return array.astype(dtype.numpy)
    raise MeaningError(f"{_called(leaf)} is {leaf.type}, the given array is of {array.dtype.name}", leaf.location,
                       fix=f"convert it: array.astype({dtype.numpy.name!r})")


def solve(graph: Graph, shapes: Mapping[str, Sequence[int]], sizes: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return a size for every dim of a graph: the given one, or the length of an input's axis that is exactly this dim.

    shapes: those of the inputs, by name. Raises MeaningError for sizes that are missing, contradictory, or out of range.
    """
    dims = dict(sizes or {})
    origin = dict.fromkeys(dims, "by `dims`")
    for name in dims:
        if name not in graph.dims:
            raise MeaningError(f"the graph has no dim named {name!r}",
                               fix=f"it has {_listed(graph.dims)}" if graph.dims else "leave it out: the graph has no dims")
    for name, leaf in graph.inputs.items():
        shape = shapes[name]
        if len(shape) != leaf.rank:
            raise MeaningError(f"the input {name!r} is {leaf.type}, the given array is {_text(shape)}", leaf.location,
                               fix=f"{leaf.rank} axes are needed, there are {len(shape)}")
        for axis, (dim, size) in enumerate(zip(leaf.shape, shape, strict=True)):
            symbol = str(dim)
            if not isinstance(dim, d.Expr) or graph.dims.get(symbol) != dim:
                continue
            if dims.setdefault(symbol, size) != size:
                raise MeaningError(f"the dim {symbol!r} is {dims[symbol]} {origin[symbol]} and {size} by axis {axis} of "
                                   f"the input {name!r}", leaf.location, fix="one dim has one size")
            origin.setdefault(symbol, f"by axis {axis} of the input {name!r}")
    for symbol, expression in graph.dims.items():
        if symbol not in dims:
            raise MeaningError(f"the dim {symbol!r} has no size: no input has an axis that is exactly {symbol}",
                               fix=f"give it: dims={{{symbol!r}: …}}")
        low, high = d.bounds(expression)
        size = dims[symbol]
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or not low <= size <= high:
            raise MeaningError(f"the dim {symbol!r} is {size!r} {origin[symbol]}, it ranges from {low} to {high}",
                               fix="give a size in range, or make the dim wider where it is made")
        dims[symbol] = int(size)
    return dims


# ---- the walk --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Schedule:
    """Nodes in order, and for each position the nodes that are read there for the last time (never a root)."""

    order: tuple[Node, ...]
    last_read: tuple[tuple[Node, ...], ...]

    @staticmethod
    def of(roots: Sequence[Node]) -> Schedule:
        order = walk(roots)
        last = {x: i for i, node in enumerate(order) for x in node.inputs}
        for root in roots:
            last.pop(root, None)
        after: list[list[Node]] = [[] for _ in order]
        for node, i in last.items():
            after[i].append(node)
        return Schedule(tuple(order), tuple(map(tuple, after)))


class _Stored:
    """A float leaf that is too large to be kept in float64; `array` widens it for one op."""

    __slots__ = ("data", "dtype")

    def __init__(self, data: Array, dtype: DType) -> None:
        self.data, self.dtype = data, dtype

    def array(self) -> Array:
        return _frozen(wide(self.data, self.dtype))


def _frozen(x: Array) -> Array:
    """Return a read-only view, so that no `direct` can write to an operand that other ops read."""
    view = np.asarray(x).view()                             # numpy makes scalars of arrays without axes
    view.flags.writeable = False
    return view


@dataclass
class _Frame:
    """A graph being evaluated: the user's, or the definition of the composite node `caller` of the frame below."""

    roots: Sequence[Node]
    schedule: Schedule
    values: dict[Node, tuple[Array | _Stored, ...]]
    caller: Node | None = None
    position: int = 0

    def read(self, node: Node) -> Array:
        value = self.values[node][0]
        return value.array() if isinstance(value, _Stored) else value

    def operands(self, node: Node) -> list[Array]:
        """Return the operands for the direct evaluation of a composite's node."""
        assert isinstance(node.op, CompositeOp)
        named = node.op.roles(node)
        stored = [named[role] for role in node.op.facts.piecewise if role in named and node.inputs.count(named[role]) == 1]
        values = {i: self.values[i][0] for i in stored}
        return [v.data if isinstance(v := values.get(i), _Stored) else self.read(i) for i in node.inputs]

    def finish(self, node: Node, value: tuple[Array | _Stored, ...]) -> None:
        """Store the value of the node at the current position, drop values that are not read again, and advance."""
        self.values[node] = value
        for old in self.schedule.last_read[self.position]:
            del self.values[old]
        self.position += 1


class _Walk:
    """One evaluation: the leaves, sizes and algebra that all of its frames share."""

    def __init__(self, leaf_values: Mapping[Node, Any], binding: Mapping[str, int], mode: Mode, use_direct: bool,
                 jitter: int = 1) -> None:
        self.leaf_values, self.binding, self.use_direct = leaf_values, binding, use_direct
        self.as_written = mode != "real"
        self.algebra = Jittered(jitter) if mode == "jittered" else ALGEBRAS[mode]()

    def run(self, roots: Sequence[Node], operands: Mapping[Node, tuple[Array | _Stored, ...]] | None = None,
            definition: Definition | None = None) -> list[Array]:
        """Return the values of roots. operands: values of arguments. definition: the one with the roots as outputs, if any."""
        for root in roots:
            if len(root.types) != 1:
                raise MeaningError(f"{root.op.name} has {len(root.types)} outputs", root.location,
                                   fix="evaluate its items: item(node, index)")
        schedule = Schedule.of(roots) if definition is None else _schedule(definition)
        frames = [_Frame(roots, schedule, dict(operands or {}))]
        while True:
            frame = frames[-1]
            if frame.position < len(frame.schedule.order):
                try:
                    inner = self.step(frame, frame.schedule.order[frame.position])
                except MeaningError as e:
                    callers = [f.caller for f in frames if f.caller is not None]
                    if not callers:
                        raise
                    within = ", in ".join(c.op.name for c in reversed(callers))
                    raise type(e)(f"in {within}: {e.message}", callers[0].location, e.fix) from None
                if inner is not None:
                    frames.append(inner)
                continue
            results = [frame.read(root) for root in frame.roots]
            frames.pop()
            if frame.caller is None:
                return results
            frames[-1].finish(frame.caller, tuple(results))

    def step(self, frame: _Frame, node: Node) -> _Frame | None:
        """Evaluate one node and return None; if its definition must be evaluated first, return a frame for the definition."""
        op = node.op
        if node in frame.values:                            # an argument of a definition
            frame.finish(node, frame.values[node])
        elif op is leaves.ITEM:
            frame.finish(node, (frame.values[node.inputs[0]][node.attrs["index"]],))
        elif op is leaves.COPY_TO:
            frame.finish(node, frame.values[node.inputs[0]])
        elif isinstance(op, leaves.Leaf):
            frame.finish(node, (self.leaf(node),))
        elif isinstance(op, AtomicOp):
            at = self.at(node)
            table = frame.values[node.inputs[0]][0] if node.inputs else None
            if op.name == "gather" and isinstance(table, _Stored):          # only the rows that it takes are widened
                value = wide(op.meaning(self.algebra, at, table.data, frame.read(node.inputs[1])), at.dtype)
            else:
                value = self.algebra.finish(at, op.meaning(self.algebra, at, *map(frame.read, node.inputs)))
            assert value.shape == at.shape and value.dtype == carrier(at.dtype), (node, value.shape, value.dtype)
            frame.finish(node, (_frozen(value),))
        elif isinstance(op, ScanOp):
            frame.finish(node, self.turns(node, list(map(frame.read, node.inputs))))
        elif isinstance(op, CompositeOp):
            definition = op.define([i.type for i in node.inputs], node.attrs)
            rounds_once = op.facts.determined or not self.as_written or chooses(definition)
            usable = op.opaque or (self.use_direct and rounds_once)
            if op.direct is not None and usable and (op.opaque or not self.takes_rows(frame, node, definition)):
                frame.finish(node, self.direct(op, node, frame.operands(node)))
            else:
                operands = {a: frame.values[i] for a, i in zip(definition.arguments, node.inputs, strict=True)}
                return _Frame(definition.outputs, _schedule(definition), operands, node)
        else:
            raise MeaningError(f"the oracle has no meaning for {op.name!r}", node.location)
        return None

    def turns(self, node: Node, values: list[Array]) -> tuple[Array, ...]:
        """Return the outputs of a scan, computed iteration by iteration."""
        at = self.at(node)
        turns = Turns(values, at.attrs)
        body = turns.step
        carries, stacks = turns.carries, [np.empty(t.shape, carrier(t.dtype)) for t in at.types[len(turns.carries):]]
        for t in turns.order(len(turns.sliced[0])):
            operands = (*carries, *(_frozen(x[t]) for x in turns.sliced), *turns.others)
            results = self.run(body.outputs, {a: (v,) for a, v in zip(body.arguments, operands, strict=True)}, body.definition)
            carries = results[:len(carries)]
            for stack, y in zip(stacks, results[len(carries):], strict=True):
                stack[t] = y
        return tuple(map(_frozen, (*carries, *stacks)))

    def takes_rows(self, frame: _Frame, node: Node, definition: Definition) -> bool:
        """Return True if the definition reads the large tables among its operands by gathers only."""
        tables = [a for a, i in zip(definition.arguments, node.inputs, strict=True) if isinstance(frame.values[i][0], _Stored)]
        if not tables:
            return False
        readers = [(x, k, reader) for reader in _schedule(definition).order for k, x in enumerate(reader.inputs) if x in tables]
        return bool(readers) and all(k == 0 and reader.op.name == "gather" for _, k, reader in readers)

    def at(self, node: Node) -> At:
        return At(node, resolve_attributes(node.attrs, self.binding), tuple(t.at(self.binding) for t in node.types),
                  tuple(i.type.at(self.binding) for i in node.inputs))

    def leaf(self, node: Node) -> Array | _Stored:
        if node.op is leaves.CONSTANT:
            at = self.at(node)
            value = at.attrs["value"]
            return _frozen(self.algebra.constant(at, value.array() if isinstance(value, ArrayValue) else value))
        if node not in self.leaf_values:
            raise MeaningError(f"{_called(node)}, {node.type}, is not given", node.location)
        data, dtype, shape = _array(node, self.leaf_values[node]), node.dtype, _shape(node, self.binding)
        if data.shape != shape:
            sizes = ", ".join(f"{name} = {size}" for name, size in self.binding.items())
            raise MeaningError(f"{_called(node)} is {node.type}{f', at {sizes} {_text(shape)}' if sizes else ''}; "
                               f"the given array is {_text(data.shape)}", node.location)
        if dtype.kind == "float":
            if self.as_written:
                data = narrow(data, dtype)
            if data.dtype != np.float64 and data.size * 8 > KEPT_WIDE:
                return _Stored(data, dtype)
        return _frozen(wide(data, dtype))

    def direct(self, op: CompositeOp, node: Node, values: list[Array]) -> tuple[Array, ...]:
        """Return the outputs of `direct`. Raises MeaningError unless their shapes and kinds are those of the definition."""
        at = self.at(node)
        assert op.direct is not None
        try:
            returned = op.direct(op.by_role(values, node.attrs), at.attrs, at.types)
        except Exception as e:
            e.add_note(f"in the direct evaluation of {op.name}, written at {node.location}")
            raise
        outputs = returned if isinstance(returned, tuple) else (returned,)
        if len(outputs) != len(at.types):
            raise MeaningError(f"the direct evaluation of {op.name} gives {len(outputs)} outputs, its definition "
                               f"{len(at.types)}", node.location)
        results = []
        for output, type in zip(outputs, at.types, strict=True):
            array, kind = np.asarray(output), type.dtype.kind
            if array.shape != type.shape or array.dtype.kind not in {"float": "fiu", "bool": "b"}.get(kind, "iu"):
                raise MeaningError(f"the direct evaluation of {op.name} gives {array.dtype.name}{_text(array.shape)}, "
                                   f"its definition {type}", node.location)
            array = array.astype(carrier(type.dtype), copy=False)
            if self.as_written and kind == "float":
                array = wide(narrow(array, type.dtype), type.dtype)
            results.append(_frozen(array))
        return tuple(results)


# ---- what is known of a definition, once -----------------------------------------------------------------------------

_schedules: weakref.WeakKeyDictionary[Definition, Schedule] = weakref.WeakKeyDictionary()


def _schedule(definition: Definition) -> Schedule:
    schedule = _schedules.get(definition)
    if schedule is None:
        schedule = _schedules[definition] = Schedule.of(definition.outputs)
    return schedule
