"""graph: outputs by name, states with their updates, and everything those need. Immutable; known by its structural key."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.errors import GraphError, ShapeError
from tensor_graphs.language.node import Node, TensorType, apply, rebuild, walk


@dataclass(frozen=True, eq=False)
class Graph:
    """Named outputs and state updates. Equal graphs (same nodes, names and order) are `==`; see also `structural_key`.

    Attributes derived from the nodes: inputs, parameters, states (by name, in order of first use), dims (symbols by name).
    """

    outputs: Mapping[str, Node]
    updates: Mapping[str, Node]                # state name -> its value after the step

    @cached_property
    def roots(self) -> tuple[Node, ...]:
        return (*self.outputs.values(), *self.updates.values())

    @cached_property
    def nodes(self) -> list[Node]:
        """Operands before users."""
        return walk(self.roots)

    def _leaves(self, op: leaves.Leaf) -> dict[str, Node]:
        found: dict[str, Node] = {}
        for node in self.nodes:
            if node.op is op:
                name = node.attrs["name"]
                if found.setdefault(name, node) is not node:
                    raise GraphError(f"two different {op.name}s are named {name!r}: {found[name].type} and {node.type}",
                                     location=node.location, fix="names are unique within a graph")
        return found

    @cached_property
    def inputs(self) -> dict[str, Node]:
        return self._leaves(leaves.INPUT)

    @cached_property
    def parameters(self) -> dict[str, Node]:
        return self._leaves(leaves.PARAMETER)

    @cached_property
    def states(self) -> dict[str, Node]:
        """Those that are read, then those that are only written."""
        found = self._leaves(leaves.STATE)
        for name, value in self.updates.items():
            if name not in found:
                found[name] = leaves.state(name, value.shape, value.dtype).node
        return found

    @cached_property
    def dims(self) -> dict[str, d.Expr]:
        """The symbols that occur anywhere in shapes or attributes, by name."""
        found: dict[str, d.Expr] = {}
        for node in self.nodes:
            for symbol in _symbols_of(node):
                name = str(symbol)
                if found.setdefault(name, symbol) != symbol:
                    raise GraphError(f"two dims are named {name!r} and have different bounds", location=node.location)
        return dict(sorted(found.items()))

    @cached_property
    def structural_key(self) -> str:
        """sha256 of the canonical graph: ops, attributes, dtypes, shapes, wiring; no names of leaves or dims, no source lines."""
        c = self.canonical
        text = "|".join([*(o.digest for o in c.outputs), "#", *(f"{i}={u.digest}" for i, u in c.updates)])
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def canonical(self) -> CanonicalGraph:
        return canonicalise(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and list(self.outputs.items()) == list(other.outputs.items()) and dict(
            self.updates) == dict(other.updates)

    def __hash__(self) -> int:
        return hash((tuple(self.outputs.items()), frozenset(self.updates.items())))

    def __repr__(self) -> str:
        return (f"<graph of {len(self.nodes)} nodes: {len(self.inputs)} inputs, {len(self.parameters)} parameters, "
                f"{len(self.states)} states -> {', '.join(self.outputs)}>")


@dataclass(frozen=True)
class CanonicalGraph:
    """A graph with names stripped: leaves are numbered arguments in order of first use, dims are d0, d1, …

    leaf_names[i] is what argument i was called, dim_names[i] what dim i was called.
    """

    outputs: tuple[Node, ...]
    updates: tuple[tuple[int, Node], ...]
    leaf_names: tuple[str, ...]
    dim_names: tuple[str, ...]


def graph(outputs: Node | Sequence[Node] | Mapping[str, Node], updates: Mapping[leaves.State | str, Node] | None = None) -> Graph:
    """Make a graph of one output (named `out`), several (`out0`, `out1`, …) or named ones, and the final value of each state.

    Raises GraphError for values that are not tensors, an update whose type differs from its state, or names used twice.
    """
    if isinstance(outputs, Node):
        named: dict[str, Node] = {"out": outputs}
    elif isinstance(outputs, Mapping):
        named = dict(outputs)
    else:
        named = {f"out{i}": o for i, o in enumerate(outputs)}
    if not named and not updates:
        raise GraphError("a graph needs an output or a state update")
    changed: dict[str, Node] = {}
    states: dict[str, TensorType] = {}
    for key, value in (updates or {}).items():
        name = key.name if isinstance(key, leaves.State) else key
        if isinstance(key, leaves.State):
            states[name] = key.node.type
        changed[name] = value
    for name, value in (*named.items(), *changed.items()):
        if not isinstance(value, Node):
            raise GraphError(f"{name!r} is {type(value).__name__}, a tensor is needed")
        if len(value.types) != 1:
            raise GraphError(f"{name!r} has {len(value.types)} outputs; name each of them")
    made = Graph(named, changed)
    known = {n: node.type for n, node in made._leaves(leaves.STATE).items()} | states
    for name, value in changed.items():
        if name not in known:
            raise GraphError(f"an update of {name!r}, but the graph reads no state of that name",
                             fix="pass the State object as the key when the graph never reads it")
        if known[name] != value.type:
            raise ShapeError(f"state {name!r} is {known[name]}, its update is {value.type}")
    _ = made.inputs, made.parameters, made.states, made.dims
    return made


def _symbols_of(node: Node) -> list[d.Expr]:
    found: list[d.Expr] = []

    def visit(value: Any) -> None:
        if isinstance(value, d.Expr):
            found.extend(d.symbols(value))
        elif isinstance(value, tuple):
            for v in value:
                visit(v)

    for value in node.attrs.values():
        visit(value)
    if node.op.kind == "leaf":
        visit(node.attrs["shape"])
    return found


def substitute_dims(value: Any, mapping: Mapping[str, Dim]) -> Any:
    """An attribute value with dims replaced by name."""
    if isinstance(value, d.Expr):
        return d.substitute(value, mapping)
    if isinstance(value, tuple):
        return tuple(substitute_dims(v, mapping) for v in value)
    return value


def replace_dims(outputs: Sequence[Node], mapping: Mapping[str, Dim]) -> list[Node]:
    """The outputs with dims replaced by ints or other dims everywhere."""

    def replace(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        attrs = {k: substitute_dims(v, mapping) for k, v in node.attrs.items()}
        return apply(node.op, inputs, attrs)

    return rebuild(list(outputs), replace)


def canonicalise(g: Graph) -> CanonicalGraph:
    """Strip the names of leaves and dims (numbered by first use from the outputs)."""
    names: list[str] = []
    dim_names: list[str] = []
    mapping: dict[str, Dim] = {}
    for node in g.nodes:
        for symbol in _symbols_of(node):
            if str(symbol) not in mapping:
                lo, hi = d.bounds(symbol)
                mapping[str(symbol)] = d.dim(f"d{len(dim_names)}", lo, hi)
                dim_names.append(str(symbol))
    index: dict[str, int] = {}

    def replace(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        attrs = {k: substitute_dims(v, mapping) for k, v in node.attrs.items()} if mapping else node.attrs
        if node.op in leaves.NAMED_LEAVES:
            name = str(node.attrs["name"])
            number = index.setdefault(name, len(names))
            if number == len(names):
                names.append(name)
            return leaves.argument(number, TensorType(attrs["shape"], attrs["dtype"]))
        return apply(node.op, inputs, attrs)

    new = rebuild(list(g.roots), replace)
    outputs = tuple(new[: len(g.outputs)])
    updates = []
    for name, value in zip(g.updates, new[len(g.outputs):], strict=True):
        if name not in index:
            index[name] = len(names)
            names.append(name)
        updates.append((index[name], value))
    return CanonicalGraph(outputs, tuple(sorted(updates, key=lambda u: u[0])), tuple(names), tuple(dim_names))
