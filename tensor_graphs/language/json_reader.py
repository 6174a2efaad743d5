"""json_reader: reads a graph that json_writer.py wrote, as the same nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.attribute_data import from_data
from tensor_graphs.language.defined_ops import defined_op, written_body_name
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.graph import Graph, graph
from tensor_graphs.language.json_writer import VERSION
from tensor_graphs.language.node import Node, Op, walk
from tensor_graphs.language.op_names import apply_written, find_op
from tensor_graphs.language.subgraph import Body

STRUCTURAL: dict[str, Op] = {op.name: op for op in (
    leaves.INPUT, leaves.PARAMETER, leaves.STATE, leaves.CONSTANT, leaves.ARGUMENT, leaves.ITEM, leaves.COPY_TO)}


class JsonFormError(TensorGraphsError):
    """JSON that is no graph of this version; the message gives the position."""


def graph_from_json(text: str) -> Graph:
    """Return the graph that `graph_to_json` wrote: the same nodes. Raises JsonFormError, or the error of an op."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as e:
        raise JsonFormError(f"line {e.lineno}, column {e.colno}: {e.msg}") from None
    except RecursionError:
        raise JsonFormError("this is no JSON of a graph: its brackets are nested too deeply") from None
    except ValueError as e:                                        # a number of thousands of digits
        raise JsonFormError(f"this is no JSON of a graph: {str(e).partition(';')[0]}") from None
    if not isinstance(data, dict) or "tensor_graphs" not in data:
        raise JsonFormError("this JSON is no graph: it has no 'tensor_graphs' version")
    if data["tensor_graphs"] != VERSION:
        raise JsonFormError(f"version {data['tensor_graphs']!r} of the JSON form; this package reads version {VERSION}")
    try:
        symbols: dict[str, Dim] = {name: d.dim(name, lo, hi) for name, (lo, hi) in data["dims"].items()}
        reader = _JsonReader(data["definitions"], symbols)
        nodes = reader.nodes(data["nodes"])
        outputs = {k: _pick(nodes, i, f"output {k!r}") for k, i in data["outputs"].items()}
        updates = {k: _pick(nodes, i, f"update {k!r}") for k, i in data["updates"].items()}
        read = {n.attrs["name"] for n in walk([*outputs.values(), *updates.values()]) if n.op is leaves.STATE}
        # a state that is only written has the type of its new value
        return graph(outputs, {k if k in read else leaves.state(k, v.shape, v.dtype): v for k, v in updates.items()})
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as e:
        what = f"{e.args[0]!r} is missing" if isinstance(e, KeyError) and e.args else f"{e}"
        raise JsonFormError(f"this JSON is no graph of version {VERSION}: {what}") from None


def node_from_json(text: str, several: bool = False) -> Node:
    """Return the node that `node_to_json` wrote. several: True if it has several outputs. Raises what `graph_from_json` raises."""
    (out,) = graph_from_json(text).outputs.values()
    return out.inputs[0] if several else out


def _pick(nodes: Sequence[Node], index: Any, what: str) -> Node:
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(nodes):
        raise ValueError(f"{what} is node {index!r}, there are {len(nodes)}")
    return nodes[index]


class _JsonReader:
    """Reader of rows of nodes; it reads each definition once."""

    def __init__(self, definitions: Mapping[str, Any], symbols: Mapping[str, Dim]) -> None:
        self.definitions, self.symbols = definitions, symbols
        self.ops: dict[str, Op | None] = {}
        self.reading: set[str] = set()

    def nodes(self, rows: Sequence[Mapping[str, Any]]) -> list[Node]:
        nodes: list[Node] = []
        for number, row in enumerate(rows):
            inputs = [_pick(nodes, i, f"an operand of node {number}") for i in row["inputs"]]
            attrs = {k: self.attribute(v) for k, v in row["attrs"].items()}
            nodes.append(apply_written(self.op(row["op"]), inputs, attrs))
        return nodes

    def attribute(self, data: Any) -> Any:
        """Return the value of an attribute from its JSON data; where that names a definition, a Body."""
        if isinstance(data, dict) and set(data) == {"body"}:
            body = Body(*self.definition(data["body"]))
            if "#" in data["body"] and written_body_name(body) != data["body"]:
                raise ValueError(f"the definition of {data['body']} was changed: it is {written_body_name(body)}")
            return body
        return from_data(data, self.symbols)

    def definition(self, name: str) -> tuple[list[Node], list[Node]]:
        """Return the arguments and outputs of a written definition."""
        if name in self.reading:
            raise ValueError(f"the definition of {name} uses itself")
        self.reading.add(name)
        body = self.definitions[name]
        nodes = self.nodes(body["nodes"])
        self.reading.discard(name)
        return ([_pick(nodes, i, f"an argument of {name}") for i in body["arguments"]],
                [_pick(nodes, i, f"an output of {name}") for i in body["outputs"]])

    def op(self, name: str) -> Op:
        """Return the op of this name: structural, atomic, of the library, or built from its written definition."""
        op: Op | None = STRUCTURAL.get(name) or find_op(name)
        if op is None and name not in self.ops and name in self.definitions:
            self.ops[name] = None                                  # a definition that uses itself finds no op
            arguments, outputs = self.definition(name)
            base, hash_, digest = name.rpartition("#")
            self.ops[name] = defined_op(base if hash_ else name, digest if hash_ else "", arguments, outputs)
        op = op or self.ops.get(name)
        if op is None:
            raise ValueError(f"no op is named {name!r}")
        return op
