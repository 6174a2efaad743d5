"""text_writer: writes a graph as `.tg` text, one call per line with every attribute, so that it reads back as the same nodes."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import numpy as np

from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.composite import CompositeOp, Definition, defined
from tensor_graphs.language.defined_ops import DIGEST_LENGTH, is_library, written_body_name, written_name
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.errors import GraphError
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import ArrayValue, Node, TensorType, walk
from tensor_graphs.language.subgraph import Body

VERSION = 1
NAME = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*"
KEYWORDS = frozenset({"dim", "input", "parameter", "state", "output", "update", "define", "return", "constant", "base64", "true",
                      "false", "none", "nan", "inf", "tg"})
"""names that a leaf, output or value can only have in quotes"""

LISTED_ELEMENTS = 32
"""1-D constant arrays of up to this many elements are written as numbers, others as base64"""

_PLAIN = re.compile(NAME, re.ASCII)


def is_plain(name: str) -> bool:
    """Return True if a name can be written without quotes."""
    return _PLAIN.fullmatch(name) is not None and name not in KEYWORDS


def print_graph(g: Graph) -> str:
    """Return the graph as text; equal graphs give equal text."""
    out = [f"tg {VERSION}"]
    out += [f"dim {name} {lo}..{hi}" for name, (lo, hi) in ((n, d.bounds(s)) for n, s in g.dims.items())]
    definitions: dict[str, list[str]] = {}
    writer = _ScopeWriter(definitions, set(g.dims))
    for node in g.nodes:
        writer.node(node)
    for node in g.states.values():
        if node not in writer.names:                               # it is written, and never read
            writer.node(node)
    for block in definitions.values():
        out += block
    out += writer.lines
    out += [f"output {quoted(name)} = {writer.names[node]}" for name, node in g.outputs.items()]
    out += [f"update {quoted(name)} = {writer.names[node]}" for name, node in g.updates.items()]
    return "\n".join(out) + "\n"


def quoted(name: str) -> str:
    """Return the name unchanged, or as a string where it could be misread."""
    return name if is_plain(name) else json.dumps(name)


def format_type(t: TensorType) -> str:
    return f"{t.dtype.name}[{', '.join(d.format_dim(s) for s in t.shape)}]"


def format_value(value: Any) -> str:
    """Return an attribute value as text that reads back exactly."""
    if isinstance(value, np.generic):
        value = value.item()                                       # the same attribute as the Python number: equal encodings
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value)                                         # shortest text that is this float; also inf, -inf, nan
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, DType):
        return value.name
    if isinstance(value, d.Expr):
        return "{" + d.format_dim(value) + "}"
    if isinstance(value, ArrayValue):
        return f"base64({_base64(value)}, {format_type(TensorType(value.shape, value.dtype))})"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(format_value, value)) + ("," if len(value) == 1 else "") + ")"
    raise TypeError(f"no text for an attribute {value!r}")


class _ScopeWriter:
    """Writer of the lines of one scope (the graph, or a definition); it also has the name of each value."""

    def __init__(self, definitions: dict[str, list[str]], taken: set[str]) -> None:
        self.definitions = definitions
        self.taken = set(taken)
        self.names: dict[Node, str] = {}
        self.lines: list[str] = []
        self.count = 0

    def fresh(self) -> str:
        self.count += 1
        return f"%{self.count - 1}"

    def node(self, node: Node) -> None:
        """Write the node's line; the lines of its operands must be written already."""
        if node.op in leaves.NAMED_LEAVES:
            self.leaf(node)
        elif node.op is leaves.CONSTANT:
            self.names[node] = self.fresh()
            self.lines.append(f"{self.names[node]} = constant({_constant(node)})")
        elif node.op is leaves.ARGUMENT:                           # named by the line of the definition
            if node not in self.names:
                raise GraphError("a graph over placeholders (a canonical graph) has no text form", location=node.location,
                                 fix="replace them by inputs")
        elif node.op is not leaves.ITEM:                           # named by the line of the node it belongs to
            self.call(node)

    def leaf(self, node: Node) -> None:
        name, t = str(node.attrs["name"]), format_type(node.type)
        if is_plain(name) and name not in self.taken:
            self.taken.add(name)
            self.names[node] = name
            self.lines.append(f"{node.op.name} {name} {t}")
        else:
            self.names[node] = self.fresh()
            self.lines.append(f"{self.names[node]} = {node.op.name} {json.dumps(name)} {t}")

    def call(self, node: Node) -> None:
        operands = ", ".join(self.names[i] for i in node.inputs)
        attrs = ", ".join(f"{k}={self.body(v) if isinstance(v, Body) else format_value(v)}" for k, v in node.attrs.items())
        name = node.op.name
        if isinstance(node.op, CompositeOp) and not is_library(node.op):
            name = self.define(node)
        values = [leaves.item(node, i) for i in range(len(node.types))]
        for value in values:
            self.names[value] = self.fresh()
        targets = ", ".join(self.names[value] for value in values)
        self.lines.append(f"{targets if len(values) == 1 else f'({targets})'} = {name}({operands}{'; ' if attrs else ''}{attrs})")

    def define(self, node: Node) -> str:
        """Write the definition of a user composite, once, and return the name that calls use."""
        assert isinstance(node.op, CompositeOp)
        name = written_name(node)
        base, digest = name[:-DIGEST_LENGTH - 1], name[-DIGEST_LENGTH:]
        name = f"{quoted(base)}#{digest}"
        return name if name in self.definitions else self.written(name, node, defined(node))

    def body(self, body: Body) -> str:
        """Write the definition of a body, once, and return its name."""
        name = written_body_name(body)
        return name if name in self.definitions else self.written(name, body.outputs[0], body.definition)

    def written(self, name: str, node: Node, definition: Definition) -> str:
        """Write a definition under `name`, and return the name. node: the node whose location errors report."""
        inner = _ScopeWriter(self.definitions, self.taken)
        arguments = []
        for i, argument in enumerate(definition.arguments):
            inner.names[argument] = next(a for a in (f"{'_' * k}a{i}" for k in range(len(inner.taken) + 1)) if a not in inner.taken)
            inner.taken.add(inner.names[argument])
            arguments.append(f"{inner.names[argument]} {format_type(argument.type)}")
        for n in walk(definition.outputs):
            if n.op in leaves.NAMED_LEAVES:
                raise GraphError(f"the definition of {name.rpartition('#')[0]} reads the {n.op.name} {n.attrs['name']!r}, "
                                 "which is no operand of it", location=node.location, fix="pass it as an operand")
            inner.node(n)
        self.definitions[name] = [f"define {name}({', '.join(arguments)}) {{", *(f"  {line}" for line in inner.lines),
                                  f"  return {', '.join(inner.names[o] for o in definition.outputs)}", "}"]
        return name


def _constant(node: Node) -> str:
    value, dtype = node.attrs["value"], node.attrs["dtype"]
    if not isinstance(value, ArrayValue):
        return f"{format_value(value)}, {dtype.name}"
    array = value.array()
    floats = dtype.kind == "float"
    if array.ndim == 1 and array.size <= LISTED_ELEMENTS and not (floats and np.isnan(array).any()):    # NaN has a payload
        items = [float(x) for x in array] if floats else [bool(x) if dtype.kind == "bool" else int(x) for x in array]
        return f"[{', '.join(map(format_value, items))}], {dtype.name}"
    return f"base64({_base64(value)}), {format_type(node.type)}"


def _base64(value: ArrayValue) -> str:
    return f'"{base64.b64encode(value.data).decode()}"'
