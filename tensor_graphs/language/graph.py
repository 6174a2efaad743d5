"""graph: a Graph has named outputs, states with their updates, and all nodes that those need. It is immutable."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any

from tensor_graphs.errors import counted, no_attribute
from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.errors import GraphError, ShapeError
from tensor_graphs.language.node import Node, TensorType, alike, apply, rebuild, walk
from tensor_graphs.notebook import Pictured


@dataclass(frozen=True, eq=False)
class Graph(Pictured):
    """Named outputs and state updates. Equal graphs (same nodes, names and order) are `==`; see also `structural_key`.

    Attributes derived from the nodes: inputs, parameters, states (by name, in order of first use), dims (symbols by name).
    """

    outputs: Mapping[str, Node]
    updates: Mapping[str, Node]                # state name -> its value after the step

    if not TYPE_CHECKING:                                            # a checker of types knows what is there
        def __getattr__(self, name: str) -> Any:
            """Raise the error for a name that a graph does not have."""
            meant = {"compile": "tg.compile(graph)", "bind": "tg.bind(tg.compile(graph), parameters)",
                     "run": "tg.bind(tg.compile(graph), parameters).run(inputs)"}
            raise no_attribute("a graph", name, dir(type(self)), meant.get(name, ""), "graph.")

    @cached_property
    def roots(self) -> tuple[Node, ...]:
        return (*self.outputs.values(), *self.updates.values())

    @cached_property
    def nodes(self) -> list[Node]:
        """All nodes of the graph, operands before users."""
        return walk(self.roots)

    @cached_property
    def alike(self) -> dict[Node, Node]:
        """Each node -> the first node with the same op and attributes on operands of the same types (see node.py's `alike`)."""
        return alike(self.nodes)

    def with_roots(self, roots: Sequence[Node]) -> Graph:
        """Return a graph with the same names over new roots, in the order of `roots`: outputs, then updates of states."""
        count = len(self.outputs)
        return Graph(dict(zip(self.outputs, roots[:count], strict=True)), dict(zip(self.updates, roots[count:], strict=True)))

    def _leaves(self, op: leaves.Leaf) -> dict[str, Node]:
        leaves_by_name: dict[str, Node] = {}
        for node in self.nodes:
            if node.op is op:
                name = node.attrs["name"]
                if leaves_by_name.setdefault(name, node) is not node:
                    raise GraphError(f"two different {op.name}s are named {name!r}: {leaves_by_name[name].type} and {node.type}",
                                     location=node.location, fix="names are unique within a graph")
        return leaves_by_name

    @cached_property
    def inputs(self) -> dict[str, Node]:
        return self._leaves(leaves.INPUT)

    @cached_property
    def parameters(self) -> dict[str, Node]:
        return self._leaves(leaves.PARAMETER)

    @cached_property
    def states(self) -> dict[str, Node]:
        """States that are read, then states that are only written."""
        states = self._leaves(leaves.STATE)
        for name, value in self.updates.items():
            if name not in states:
                states[name] = leaves.state(name, value.shape, value.dtype).node
        return states

    @cached_property
    def dims(self) -> dict[str, d.Expr]:
        """The symbols that occur in shapes or attributes, by name."""
        dims: dict[str, d.Expr] = {}
        for node in dict.fromkeys(self.alike.values()):
            for symbol in _symbols_of(node):
                name = str(symbol)
                if dims.setdefault(name, symbol) != symbol:
                    raise GraphError(f"two dims are named {name!r} and have different bounds", location=node.location)
        return dict(sorted(dims.items()))

    @property
    def structural_key(self) -> str:
        """sha256 of the canonical graph: ops, attributes, dtypes, shapes, wiring; no names of leaves or dims, no source lines."""
        return self._canonical[0]

    @property
    def dim_order(self) -> tuple[str, ...]:
        """The names of the dims in order of first use: the canonical graph names them d0, d1, …"""
        return self._canonical[1]

    @cached_property
    def _canonical(self) -> tuple[str, tuple[str, ...]]:
        """The structural key and the dims of the canonical graph, whose leaves are arguments and whose dims are d0, d1, …, numbered
        by first use. Its digests equal `Node.digest`, but its nodes are not built: a node's part of the hashed text depends on op,
        attributes and operand types alone, so it is computed once for alike nodes, on stand-ins of these types."""
        dims: dict[str, Dim] = {}
        for symbol in [s for node in dict.fromkeys(self.alike.values()) for s in _symbols_of(node)]:
            if str(symbol) not in dims:
                dims[str(symbol)] = d.dim(f"d{len(dims)}", *d.bounds(symbol))
        numbers: dict[tuple[object, str], int] = {}    # of leaves: an input and a parameter may have one name
        digests: dict[Node, str] = {}
        texts: dict[Node, str] = {}                          # of the first of those that are alike
        stands: dict[Node, Node] = {}                       # for it, where it is an operand
        typed: dict[tuple[TensorType, ...], Node] = {}
        for node, first in self.alike.items():
            named = node.op in leaves.NAMED_LEAVES
            number = numbers.setdefault((node.op, node.attrs["name"]), len(numbers)) if named else 0
            if first not in texts:
                attrs = {k: substitute_dims(v, dims) for k, v in node.attrs.items()}
                stand_in = (leaves.argument(0, TensorType(attrs["shape"], attrs["dtype"])) if named else
                        apply(node.op, [stands[self.alike[i]] for i in node.inputs], attrs))
                texts[first], stands[first] = stand_in.said, typed.setdefault(stand_in.types, stand_in)
            own = texts[first].replace("('index', '0')", f"('index', '{number}')") if named else texts[first]
            digests[node] = hashlib.sha256("".join([own, *[digests[i] for i in node.inputs]]).encode()).hexdigest()
        updates = sorted((numbers.setdefault((leaves.STATE, name), len(numbers)), digests[value])
                         for name, value in self.updates.items())
        text = "|".join([*(digests[o] for o in self.outputs.values()), "#", *(f"{i}={digest}" for i, digest in updates)])
        return hashlib.sha256(text.encode()).hexdigest(), tuple(dims)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and list(self.outputs.items()) == list(other.outputs.items()) and dict(
            self.updates) == dict(other.updates)

    def __copy__(self) -> Graph:
        return self

    def __deepcopy__(self, memo: object) -> Graph:
        """Return the graph itself: it is immutable."""
        return self

    def __hash__(self) -> int:
        return hash((tuple(self.outputs.items()), frozenset(self.updates.items())))

    def __repr__(self) -> str:
        def listed(nodes: Mapping[str, Node]) -> str:
            named = [f"{name} {node.type}" for name, node in nodes.items()]
            return ", ".join(named[:4]) + (f", and {len(named) - 4} more" if len(named) > 4 else "")

        held = "".join(f"; {counted(len(group), what)}"
                       for what, group in (("parameter", self.parameters), ("state", self.states)) if group)
        taken, results = listed(self.inputs) or "no inputs", listed(self.outputs) or "no outputs"
        return f"<graph of {len(self.nodes)} nodes: {taken} -> {results}{held}>"


def graph(outputs: Node | Sequence[Node] | Mapping[str, Node], updates: Mapping[leaves.State | str, Node] | None = None) -> Graph:
    """Return a graph of one output (named `out`), several (`out0`, `out1`, …) or named ones, and the final value of each state.

    Raises GraphError for outputs that are not tensors (a Python function, a torch module), an update of an unknown state, or names
    used twice. Raises ShapeError for an update whose type differs from its state's.
    """
    if updates is not None and not isinstance(updates, Mapping):
        raise GraphError(f"updates, the second argument of tg.graph, is a dict of states and their new values, not {updates!r}",
                         fix="several outputs are one list or dict: tg.graph([x, y]), or tg.graph({\"a\": x, \"b\": y})")
    if isinstance(outputs, Node):
        named: dict[str, Node] = {"out": outputs}
    elif isinstance(outputs, Mapping):
        named = dict(outputs)
    elif isinstance(outputs, Iterable) and not isinstance(outputs, str) and not _is_torch_module(outputs):
        named = {f"out{i}": o for i, o in enumerate(outputs)}
    else:
        raise _no_graph("graph takes tensors", outputs)
    if not named and not updates:
        raise GraphError("a graph needs an output or a state update", fix="tg.graph({\"y\": tensor})")
    changed: dict[str, Node] = {}
    states: dict[str, TensorType] = {}
    for key, value in (updates or {}).items():
        name = key.name if isinstance(key, leaves.State) else key
        if isinstance(key, leaves.State):
            states[name] = key.node.type
        changed[name] = value
    for name in named:
        if not isinstance(name, str):
            raise GraphError(f"an output is named by a text, not by {name!r}", fix="tg.graph({\"y\": tensor})")
    for name, value in (*named.items(), *changed.items()):
        if not isinstance(value, Node):
            raise GraphError(f"{name!r} is {type(value).__name__}, a tensor is needed",
                             fix="what an op returns, or tg.constant(value)")
        if len(value.types) != 1:
            raise GraphError(f"{name!r} has {len(value.types)} outputs", fix="a name for each of them")
    result = Graph(named, changed)
    types = {n: node.type for n, node in result._leaves(leaves.STATE).items()} | states
    for name, value in changed.items():
        if name not in types:
            raise GraphError(f"an update of {name!r}, but the graph reads no state of that name",
                             fix="pass the State object as the key when the graph never reads it")
        if types[name] != value.type:
            raise ShapeError(f"state {name!r} is {types[name]}, its update is {value.type}")
    _ = result.inputs, result.parameters, result.states, result.dims
    _check_sizes(result)
    return result


def _check_sizes(graph: Graph) -> None:
    """Raise ShapeError for a tensor that no machine can address at any size of its dims."""
    seen: set[TensorType] = set()
    for node in graph.nodes:
        for t in node.types:
            if t not in seen:
                seen.add(t)
                least = math.prod(max(d.bounds(s)[0], 0) for s in t.shape) * t.dtype.itemsize
                if least > d.MAX_SIZE:
                    raise ShapeError(f"{node.op.name} gives {t}, of {d.shown_int(least)} bytes: more than 64 bits can address",
                                     location=node.location, fix="smaller sizes")


def require_graph(value: Any, taker: str) -> Graph:
    """Return the value, a graph; for any other, raise GraphError with a fix. taker: the public function that was called."""
    if isinstance(value, Graph):
        return value
    raise _no_graph(f"{taker} takes a graph", value)


def _is_torch_module(value: Any) -> bool:
    return any(c.__name__ == "Module" and c.__module__.startswith("torch.nn.") for c in type(value).__mro__)


def _no_graph(wanted: str, value: Any) -> GraphError:
    """Return the error for a value that is no graph, or that cannot be made into one."""
    kind = type(value)
    if isinstance(value, Graph):
        what, fix = "this is a graph already", "use it as it is"
    elif isinstance(value, Node):
        what, fix = f"this is a tensor, {value.type}", "tg.graph(tensor)"
    elif _is_torch_module(value):
        what = f"this is a torch module ({kind.__name__})"
        fix = ("its graph: tg.from_torch(module, example_arguments).graph, or torch.compile(module, backend=\"tensor_graphs\"); "
               "the folder of a model loads with tg.load_model (`tg models` lists what does)")
    elif isinstance(value, (str, PathLike)):
        what = f"this is {str(value)!r}"
        fix = ("of a .tg file: tensor_graphs.language.text.parse_graph(text); of a model folder (config.json, *.safetensors): "
               "tensor_graphs.frontends.huggingface.load.load_model(folder).graph; of an ONNX file: tg.from_onnx(file).graph; "
               "GGUF files are not read yet")
    elif isinstance(value, leaves.State):
        what, fix = f"this is {value!r}", leaves.AS_TENSOR
    elif isinstance(getattr(value, "graph", None), Graph):
        what, fix = f"this is a {kind.__name__}", "its graph: .graph"
    elif callable(value):
        name = getattr(value, "__name__", getattr(value, "name", kind.__name__))
        what = f"this is a Python function ({name})"
        fix = "call it on tensors, and make a graph of what it returns: tg.graph(f(tg.input(\"x\", (4, 8), tg.f32)))"
    elif isinstance(value, (Mapping, Sequence)) and value:
        what, fix = f"this is a {kind.__name__}", "tg.graph of it, if it holds tensors"
    else:
        what, fix = f"this is a {kind.__module__}.{kind.__name__}", "tg.graph(tg.softmax(tg.input(\"x\", (4, 8), tg.f32)))"
    return GraphError(f"{wanted}, and {what}", fix=fix)


def _symbols_of(node: Node) -> list[d.Expr]:
    return [s for value in node.attrs.values() for s in d.symbols_in(value)]


def substitute_dims(value: Any, mapping: Mapping[str, Dim]) -> Any:
    """Return an attribute value with dims replaced by name."""
    if isinstance(value, d.Expr):
        return d.substitute(value, mapping)
    if isinstance(value, d.HoldsDims):
        return value.with_dims(mapping)
    if isinstance(value, tuple):
        return tuple(substitute_dims(v, mapping) for v in value)
    return value


def replace_dims(outputs: Sequence[Node], mapping: Mapping[str, Dim]) -> list[Node]:
    """Return the outputs with dims replaced, everywhere, by ints or other dims."""

    def replace(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        attrs = {k: substitute_dims(v, mapping) for k, v in node.attrs.items()}
        return apply(node.op, inputs, attrs)

    return rebuild(list(outputs), replace)
