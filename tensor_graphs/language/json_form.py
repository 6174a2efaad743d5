"""json_form: a graph as JSON and back, exactly; what the database stores beside the text form.

`{"tensor_graphs": 1, "dims": {"n": [1, 64]}, "definitions": {…}, "nodes": [{"op": …, "inputs": [0, 1], "attrs": {…}}, …],
"outputs": {"y": 2}, "updates": {}}`; node inputs are positions of earlier nodes. Definitions hold the bodies of composites that are
not in the library, under `name#digest`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.atomic import ATOMIC
from tensor_graphs.language.composite import LIBRARY, CompositeOp, instantiate
from tensor_graphs.language.composite import Definition as CompositeDefinition
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, Op, apply, walk
from tensor_graphs.language.values import from_data, is_library, known_user_op, remember, to_data

VERSION = 1
STRUCTURAL: dict[str, Op] = {op.name: op for op in (
    leaves.INPUT, leaves.PARAMETER, leaves.STATE, leaves.CONSTANT, leaves.ARGUMENT, leaves.ITEM, leaves.COPY_TO)}


class JsonFormError(TensorGraphsError):
    """JSON that is no graph of this version; says where."""


def graph_to_json(graph: Graph) -> str:
    """The graph as one line of JSON; equal graphs give equal text."""
    definitions: dict[str, Any] = {}
    nodes = _write(graph.roots, definitions)
    index = {n: i for i, n in enumerate(walk(graph.roots))}
    data = {"tensor_graphs": VERSION, "dims": {name: list(d.bounds(s)) for name, s in graph.dims.items()},
            "definitions": definitions, "nodes": nodes, "outputs": {k: index[n] for k, n in graph.outputs.items()},
            "updates": {k: index[n] for k, n in graph.updates.items()}}
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False)


def _write(roots: Sequence[Node], definitions: dict[str, Any]) -> list[dict[str, Any]]:
    order = walk(roots)
    index = {n: i for i, n in enumerate(order)}
    rows = []
    for node in order:
        name = node.op.name
        if isinstance(node.op, CompositeOp) and not is_library(node.op):
            name = remember(node)
            if name not in definitions:
                definition = node.op.define([i.type for i in node.inputs], node.attrs)
                definitions[name] = None                          # keeps its place in front of what it uses
                body = walk([*definition.arguments, *definition.outputs])
                at = {n: i for i, n in enumerate(body)}
                definitions[name] = {"nodes": _write([*definition.arguments, *definition.outputs], definitions),
                                     "arguments": [at[a] for a in definition.arguments],
                                     "outputs": [at[o] for o in definition.outputs]}
        rows.append({"op": name, "inputs": [index[i] for i in node.inputs],
                     "attrs": {k: to_data(v) for k, v in node.attrs.items()}})
    return rows


def graph_from_json(text: str) -> Graph:
    """The graph that `graph_to_json` wrote: the same nodes. Raises JsonFormError, or what an op says of wrong operands."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as e:
        raise JsonFormError(f"line {e.lineno}, column {e.colno}: {e.msg}") from None
    if not isinstance(data, dict) or "tensor_graphs" not in data:
        raise JsonFormError("this JSON is no graph: it has no 'tensor_graphs' version")
    if data["tensor_graphs"] != VERSION:
        raise JsonFormError(f"version {data['tensor_graphs']!r} of the JSON form; this package reads version {VERSION}")
    try:
        symbols: dict[str, Dim] = {name: d.dim(name, lo, hi) for name, (lo, hi) in data["dims"].items()}
        nodes = _read(data["nodes"], data["definitions"], symbols)
        outputs = {k: nodes[i] for k, i in data["outputs"].items()}
        updates = {k: nodes[i] for k, i in data["updates"].items()}
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as e:
        raise JsonFormError(f"this JSON is no graph of version {VERSION}: {type(e).__name__}: {e}") from None
    return Graph(outputs, updates)


def _read(rows: Sequence[Mapping[str, Any]], definitions: Mapping[str, Any], symbols: Mapping[str, Dim]) -> list[Node]:
    nodes: list[Node] = []
    for number, row in enumerate(rows):
        if any(not 0 <= i < number for i in row["inputs"]):
            raise ValueError(f"node {number} reads {row['inputs']}, which are not all in front of it")
        attrs = {k: from_data(v, symbols) for k, v in row["attrs"].items()}
        nodes.append(apply(op_of(row["op"], definitions, symbols), [nodes[i] for i in row["inputs"]], attrs))
    return nodes


def op_of(name: str, definitions: Mapping[str, Any], symbols: Mapping[str, Dim]) -> Op:
    """The op of this name: structural, atomic, of the library, or made of its written definition. Raises ValueError."""
    found: Op | None = STRUCTURAL.get(name) or ATOMIC.get(name) or LIBRARY.get(name)
    if found is not None:
        return found
    base, _, digest = name.partition("#")
    made = known_user_op(base, digest)
    if made is None and name in definitions:
        body = definitions[name]
        nodes = _read(body["nodes"], definitions, symbols)
        made = defined_op(base, [nodes[i] for i in body["arguments"]], [nodes[i] for i in body["outputs"]])
    if made is None:
        raise ValueError(f"no op is named {name!r}")
    return made


class _Defined(CompositeOp):
    """A composite read from a file: it has one definition, for operands of these types."""

    def __init__(self, name: str, arguments: Sequence[Node], outputs: Sequence[Node]) -> None:
        super().__init__(lambda *xs: tuple(xs), name=name)
        self._arguments, self._outputs = tuple(arguments), tuple(outputs)

    def define(self, types: Any, attrs: Mapping[str, Any]) -> CompositeDefinition:
        import hashlib

        wanted = [a.type for a in self._arguments]
        if list(types) != wanted:
            raise ValueError(f"{self.name} was written for {', '.join(map(str, wanted))}, got {', '.join(map(str, types))}")
        digest = hashlib.sha256("|".join(o.digest for o in self._outputs).encode()).hexdigest()
        return CompositeDefinition(self._arguments, self._outputs, digest)


def defined_op(name: str, arguments: Sequence[Node], outputs: Sequence[Node]) -> CompositeOp:
    """A composite whose definition is this graph over placeholders."""
    return _Defined(name, arguments, outputs)


__all__ = ["JsonFormError", "defined_op", "graph_from_json", "graph_to_json", "instantiate", "op_of"]
