"""json_writer: writes a graph as JSON, exactly; the database stores it next to the text form. json_reader.py reads it.

`{"tensor_graphs": 1, "dims": {"n": [1, 64]}, "definitions": {…}, "nodes": [{"op": …, "inputs": [0, 1], "attrs": {…}}, …],
"outputs": {"y": 2}, "updates": {}}`; inputs of a node are indices of earlier nodes. Definitions are those of composites that are
not in the library, under `name#digest`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.composite import CompositeOp, Definition, defined
from tensor_graphs.language.defined_ops import is_library, written_body_name, written_name
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.graph import Graph, graph
from tensor_graphs.language.node import ArrayValue, Node, walk
from tensor_graphs.language.subgraph import Body

VERSION = 1


def graph_to_json(graph: Graph) -> str:
    """Return the graph as one line of JSON; equal graphs give equal text."""
    definitions: dict[str, Any] = {}
    nodes = _write(graph.roots, definitions)
    index = {n: i for i, n in enumerate(walk(graph.roots))}
    data = {"tensor_graphs": VERSION, "dims": {name: list(d.bounds(s)) for name, s in graph.dims.items()},
            "definitions": definitions, "nodes": nodes, "outputs": {k: index[n] for k, n in graph.outputs.items()},
            "updates": {k: index[n] for k, n in graph.updates.items()}}
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False)


def node_to_json(node: Node) -> str:
    """Return the JSON form of a graph whose only output is the node, or its first output."""
    return graph_to_json(graph(leaves.item(node, 0)))


def _write(roots: Sequence[Node], definitions: dict[str, Any]) -> list[dict[str, Any]]:
    order = walk(roots)
    index = {n: i for i, n in enumerate(order)}
    rows = []
    for node in order:
        name = node.op.name
        if isinstance(node.op, CompositeOp) and not is_library(node.op):
            name = written_name(node)
            if name not in definitions:
                _define(name, defined(node), definitions)
        rows.append({"op": name, "inputs": [index[i] for i in node.inputs],
                     "attrs": {k: _body(v, definitions) if isinstance(v, Body) else to_data(v) for k, v in node.attrs.items()}})
    return rows


def _define(name: str, definition: Definition, definitions: dict[str, Any]) -> None:
    definitions[name] = None                                      # so that it precedes the definitions that it uses
    roots = [*definition.arguments, *definition.outputs]
    at = {n: i for i, n in enumerate(walk(roots))}
    definitions[name] = {"nodes": _write(roots, definitions), "arguments": [at[a] for a in definition.arguments],
                         "outputs": [at[o] for o in definition.outputs]}


def _body(body: Body, definitions: dict[str, Any]) -> dict[str, str]:
    name = written_body_name(body)
    if name not in definitions:
        _define(name, body.definition, definitions)
    return {"body": name}


def to_data(value: Any) -> Any:
    """Return an attribute value as JSON data. Floats are hexadecimal text, so that every bit (−0.0, an ulp) is kept."""
    if isinstance(value, np.generic):
        value = value.item()                                        # the same attribute as the Python number: equal encodings
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, DType):
        return {"dtype": value.name}
    if isinstance(value, d.Expr):
        return {"dim": d.format_dim(value)}
    if isinstance(value, ArrayValue):
        return {"array": base64.b64encode(value.data).decode(), "dtype": value.dtype.name, "shape": list(value.shape)}
    if isinstance(value, tuple):
        return [to_data(v) for v in value]
    raise TypeError(f"an attribute of type {type(value).__name__} cannot be written: {value!r}")
