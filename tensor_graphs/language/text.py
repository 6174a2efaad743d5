"""text: the `.tg` form of a graph: what people write, read and diff, and the command line takes.

    tg 1                                        # version, the first line
    dim n 1..4096
    input x f32[n, 640]
    parameter w f32[10, 640]
    state k f32[4096, 640]
    h = rms_norm(x; eps=1e-06)                  # operands; attributes (those with defaults may be left out)
    y = softmax(h @ w.T + 1.0)                  # operators broadcast, as in Python
    (best, at) = topk(y; k=4)                   # several outputs
    output y = y
    update k = write_rows(k, x; start={n - 1})  # dims among attributes stand in braces

`print_graph` writes one call per line and every attribute, so that parse_graph(print_graph(g)) is g: the same nodes, names, order.
Constants: `constant(2.5, f32)`, `constant([1, 2], i32)`, `constant({n + 1}, i32)`, `constant(base64("…"), f32[2, 3])`.
Composites that are not in the library are written with their definition: `define name#digest(a f32[n]) { … return %0 }`.
"""

from __future__ import annotations

import base64
import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves, tensor
from tensor_graphs.language.atomic import ATOMIC
from tensor_graphs.language.composite import LIBRARY, CompositeOp
from tensor_graphs.language.composites import arithmetic
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DTYPES, DType
from tensor_graphs.language.graph import Graph, graph
from tensor_graphs.language.json_form import defined_op
from tensor_graphs.language.node import ArrayValue, Node, Op, TensorType, apply, walk
from tensor_graphs.language.values import array_value, is_library, known_user_op, remember

VERSION = 1
LISTED_ELEMENTS = 32
"""constant arrays up to this size are written as numbers, larger ones as base64"""


class TextError(TensorGraphsError):
    """A `.tg` text that says no graph: where (file, line, column), the line with a caret, what is wrong, and a fix."""

    def __init__(self, message: str, filename: str, line: int, column: int, source: str, fix: str | None = None) -> None:
        self.filename, self.line, self.column = filename, line, column
        text = f"{filename}:{line}:{column}: {message}\n    {source}\n    {' ' * (column - 1)}^"
        super().__init__(text + (f"\n  fix: {fix}" if fix else ""))


# ---- printing ---------------------------------------------------------------------------------------------------------------

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*\Z")
_KEYWORDS = frozenset({"dim", "input", "parameter", "state", "output", "update", "define", "return", "constant", "base64", "true",
                       "false", "none", "nan", "inf", "tg"})


def print_graph(g: Graph) -> str:
    """The graph as text; equal graphs give equal text."""
    out = [f"tg {VERSION}"]
    out += [f"dim {name} {lo}..{hi}" for name, (lo, hi) in ((n, d.bounds(s)) for n, s in g.dims.items())]
    definitions: dict[str, list[str]] = {}
    printer = _Printer(definitions, set(g.dims))
    body: list[str] = []
    for node in g.nodes:
        printer.node(node, body)
    read = {node.attrs["name"] for node in g.nodes if node.op is leaves.STATE}
    for name, value in g.updates.items():
        if name not in read:
            body.append(f"state {_leaf_name(name)} {format_type(value.type)}")
    for block in definitions.values():
        out += block
    out += body
    out += [f"output {_leaf_name(name)} = {printer.names[node]}" for name, node in g.outputs.items()]
    out += [f"update {_leaf_name(name)} = {printer.names[node]}" for name, node in g.updates.items()]
    return "\n".join(out) + "\n"


def _leaf_name(name: str) -> str:
    return name if _PLAIN.match(name) and name not in _KEYWORDS else json.dumps(name)


def format_type(t: TensorType) -> str:
    return f"{t.dtype.name}[{', '.join(d.format_dim(s) for s in t.shape)}]"


def format_value(value: Any) -> str:
    """An attribute value as text that reads back exactly."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value)                                        # shortest text that is this float; also inf, -inf, nan
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, DType):
        return value.name
    if isinstance(value, d.Expr):
        return "{" + d.format_dim(value) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(format_value, value)) + ("," if len(value) == 1 else "") + ")"
    raise TypeError(f"no text for an attribute {value!r}")


class _Printer:
    def __init__(self, definitions: dict[str, list[str]], taken: set[str]) -> None:
        self.names: dict[Node, str] = {}
        self.count = 0
        self.definitions = definitions
        self.taken = set(taken)

    def fresh(self) -> str:
        self.count += 1
        return f"%{self.count - 1}"

    def node(self, node: Node, out: list[str]) -> None:
        if node.op in leaves.NAMED_LEAVES:
            name, t = str(node.attrs["name"]), format_type(node.type)
            if _PLAIN.match(name) and name not in _KEYWORDS and name not in self.taken:
                self.taken.add(name)
                self.names[node] = name
                out.append(f"{node.op.name} {name} {t}")
            else:
                self.names[node] = self.fresh()
                out.append(f"{self.names[node]} = {node.op.name} {json.dumps(name)} {t}")
            return
        if node.op is leaves.CONSTANT:
            self.names[node] = self.fresh()
            out.append(f"{self.names[node]} = constant({_constant(node)})")
            return
        if node.op is leaves.ITEM:
            return                                                # named by the line of the node it belongs to
        if node.op is leaves.ARGUMENT:
            return                                                # named by the define line
        operands = ", ".join(self.names[i] for i in node.inputs)
        attrs = ", ".join(f"{k}={format_value(v)}" for k, v in node.attrs.items())
        name = node.op.name
        if isinstance(node.op, CompositeOp) and not is_library(node.op):
            name = self.define(node)
        call = f"{name}({operands}{'; ' if attrs else ''}{attrs})"
        if len(node.types) == 1:
            self.names[node] = self.fresh()
            out.append(f"{self.names[node]} = {call}")
            return
        parts = []
        for i in range(len(node.types)):
            item = leaves.item(node, i)
            self.names[item] = self.fresh()
            parts.append(self.names[item])
        out.append(f"({', '.join(parts)}) = {call}")

    def define(self, node: Node) -> str:
        """Print the definition of a user composite once; returns the name it is called by."""
        assert isinstance(node.op, CompositeOp)
        name = remember(node)
        if name in self.definitions:
            return name
        definition = node.op.define([i.type for i in node.inputs], node.attrs)
        inner = _Printer(self.definitions, self.taken)
        body: list[str] = []
        arguments = []
        for i, argument in enumerate(definition.arguments):
            inner.names[argument] = f"a{i}"
            inner.taken.add(f"a{i}")
            arguments.append(f"a{i} {format_type(argument.type)}")
        for n in walk(definition.outputs):
            inner.node(n, body)
        self.definitions[name] = [f"define {name}({', '.join(arguments)}) {{", *(f"  {line}" for line in body),
                                  f"  return {', '.join(inner.names[o] for o in definition.outputs)}", "}"]
        return name


def _constant(node: Node) -> str:
    value, dtype = node.attrs["value"], node.attrs["dtype"]
    if not isinstance(value, ArrayValue):
        return f"{format_value(value)}, {dtype.name}"
    array = value.array()
    floats = dtype.kind == "float"
    if array.ndim == 1 and array.size <= LISTED_ELEMENTS and not (floats and np.isnan(array.astype(np.float64)).any()):
        items = [float(x) for x in array] if floats else [bool(x) if dtype.kind == "bool" else int(x) for x in array]
        return f"[{', '.join(map(format_value, items))}], {dtype.name}"
    return f'base64("{base64.b64encode(value.data).decode()}"), {format_type(node.type)}'


# ---- reading ----------------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(r"""
    (?P<space>[ \t\r]+) | (?P<comment>\#(?![0-9a-f]{12}\b)[^\n]*)
  | (?P<float>(?:\d+\.(?!\.)\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+))
  | (?P<int>\d+)
  | (?P<ref>%\d+)
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*(?:\#[0-9a-f]{12})?)
  | (?P<string>"(?:[^"\\]|\\.)*")
  | (?P<op>\.\.|\*\*|//|<=|>=|[-+*/%@&|^~<>()\[\]{},;=:.])
""", re.VERBOSE)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    line: int
    column: int


_LEVELS: tuple[dict[str, str], ...] = (
    {"|": "bit_or"}, {"^": "bit_xor"}, {"&": "bit_and"},
    {"<": "less", ">": "greater", "<=": "less_equal", ">=": "greater_equal"},
    {"+": "add", "-": "sub"}, {"*": "mul", "/": "div", "//": "floor_div", "%": "mod", "@": "matmul"},
)
"""binary operators, loosest first"""


class _Parser:
    def __init__(self, text: str, filename: str) -> None:
        self.filename = filename
        self.lines = text.split("\n")
        self.symbols: dict[str, Dim] = {}
        self.values: dict[str, Any] = {}
        self.states: dict[str, leaves.State] = {}
        self.outputs: dict[str, Node] = {}
        self.updates: dict[leaves.State | str, Node] = {}
        self.tokens: list[_Token] = []
        self.at = 0
        self.user_ops: dict[str, CompositeOp] = {}

    # ---- tokens and errors ----

    def error(self, message: str, token: _Token | None = None, fix: str | None = None) -> TextError:
        t = token or self.peek()
        source = self.lines[t.line - 1] if t.line <= len(self.lines) else ""
        return TextError(message, self.filename, t.line, t.column, source.rstrip(), fix)

    def tokenise(self) -> None:
        for number, line in enumerate(self.lines, 1):
            at = 0
            while at < len(line):
                m = _TOKEN.match(line, at)
                if m is None:
                    self.tokens.append(_Token("bad", line[at], number, at + 1))
                    raise self.error(f"the character {line[at]!r} has no meaning here", self.tokens[-1])
                kind = str(m.lastgroup)
                if kind not in ("space", "comment"):
                    self.tokens.append(_Token(kind, m.group(), number, at + 1))
                at = m.end()
            self.tokens.append(_Token("end", "", number, len(line) + 1))
        self.tokens.append(_Token("eof", "", len(self.lines), len(self.lines[-1]) + 1))

    def peek(self) -> _Token:
        return self.tokens[min(self.at, len(self.tokens) - 1)]

    def take(self) -> _Token:
        token = self.peek()
        self.at += 1
        return token

    def accept(self, text: str) -> _Token | None:
        if self.peek().text == text and self.peek().kind in ("op", "name"):
            return self.take()
        return None

    def expect(self, text: str, what: str | None = None) -> _Token:
        token = self.peek()
        if token.text != text or token.kind not in ("op", "name"):
            found = f"{token.text!r}" if token.text else "the end of the line"
            raise self.error(f"expected {what or repr(text)}, found {found}", token)
        return self.take()

    def end_of_line(self) -> None:
        token = self.peek()
        if token.kind not in ("end", "eof"):
            raise self.error(f"{token.text!r} behind the end of the statement", token, "one statement per line")

    # ---- statements ----

    def parse(self) -> Graph:
        self.tokenise()
        self.skip_lines()
        first = self.peek()
        if first.text != "tg":
            raise self.error("a .tg text starts with its version", first, f"make the first line: tg {VERSION}")
        self.take()
        version = self.take()
        if version.text != str(VERSION):
            raise self.error(f"version {version.text or '(none)'} of the text form; this package reads version {VERSION}", version)
        self.end_of_line()
        while True:
            self.skip_lines()
            if self.peek().kind == "eof":
                break
            self.statement()
            self.end_of_line()
        if not self.outputs and not self.updates:
            raise self.error("the text names no output", fix="a line like: output y = …")
        last = self.peek()
        return self.guard(last, lambda: graph(self.outputs, self.updates))

    def skip_lines(self) -> None:
        while self.peek().kind == "end":
            self.take()

    def guard(self, token: _Token, build: Any) -> Any:
        """Run what may raise an error of the language, and say it at the line of the text."""
        try:
            return build()
        except TextError:
            raise
        except TensorGraphsError as e:
            raise self.error(_inner_message(e), token) from None
        except (ValueError, TypeError, OverflowError) as e:
            raise self.error(str(e), token) from None

    def statement(self) -> None:
        token = self.peek()
        following = self.tokens[self.at + 1] if self.at + 1 < len(self.tokens) else token
        if token.kind == "name" and following.text != "=":
            if token.text == "dim":
                self.take()
                self.dim_statement()
                return
            if token.text in ("input", "parameter", "state"):
                self.take()
                name_token = self.peek()
                name = self.leaf_name()
                self.define_name(name, self.leaf(token.text, name, name_token), name_token)
                return
            if token.text in ("output", "update"):
                self.take()
                self.result(token.text)
                return
            if token.text == "define":
                self.take()
                self.definition()
                return
        targets = self.targets()
        self.expect("=")
        start = self.peek()
        if start.text in ("input", "parameter", "state") and self.tokens[self.at + 1].kind == "string":
            self.take()
            name_token = self.peek()
            value: Any = self.leaf(start.text, self.leaf_name(), name_token)
        else:
            value = self.expression()
        if len(targets) == 1:
            if isinstance(value, tuple):
                raise self.error(f"the call has {len(value)} outputs, one name stands on the left", targets[0],
                                 f"({', '.join('abcdefgh'[:len(value)])}) = …")
            self.define_name(targets[0].text, value, targets[0])
            return
        if not isinstance(value, tuple) or len(value) != len(targets):
            count = len(value) if isinstance(value, tuple) else 1
            raise self.error(f"{len(targets)} names stand on the left, the call has {count} outputs", targets[0])
        for t, v in zip(targets, value, strict=True):
            self.define_name(t.text, v, t)

    def dim_statement(self) -> None:
        name = self.take()
        if name.kind != "name" or "." in name.text:
            raise self.error("a dim needs a name", name, "dim n 1..4096")
        if name.text in self.symbols:
            raise self.error(f"the dim {name.text!r} is declared twice", name)
        low = self.integer()
        self.expect("..")
        high = self.integer()
        self.symbols[name.text] = self.guard(name, lambda: d.dim(name.text, low, high))

    def integer(self) -> int:
        sign = -1 if self.accept("-") else 1
        token = self.take()
        if token.kind != "int":
            raise self.error("a whole number is needed here", token, "dim n 1..4096")
        return sign * int(token.text)

    def leaf_name(self) -> str:
        token = self.take()
        if token.kind == "string":
            return str(json.loads(token.text))
        if token.kind != "name" or token.text in _KEYWORDS:
            raise self.error("a name is needed here", token, "input x f32[n, 640]")
        return token.text

    def leaf(self, kind: str, name: str, token: _Token) -> Node:
        t = self.type()

        def build() -> Node:
            if kind == "state":
                self.states[name] = leaves.state(name, t.shape, t.dtype)
                return self.states[name].node
            return (leaves.input if kind == "input" else leaves.parameter)(name, t.shape, t.dtype)

        made: Node = self.guard(token, build)
        return made

    def type(self) -> TensorType:
        token = self.take()
        if token.text not in DTYPES:
            near = difflib.get_close_matches(token.text, DTYPES, 1)
            raise self.error(f"{token.text or 'nothing'!r} is no dtype", token,
                             f"{near[0]}?" if near else f"one of {', '.join(DTYPES)}, then a shape: f32[n, 640]")
        self.expect("[", "'[' and the shape")
        shape: list[Dim] = []
        while not self.accept("]"):
            shape.append(self.dim_until((",", "]")))
            if not self.accept(","):
                self.expect("]", "',' or ']'")
                break
        return TensorType(tuple(shape), DTYPES[token.text])

    def dim_until(self, stops: tuple[str, ...]) -> Dim:
        """A dim expression up to (not including) one of the stops outside of parentheses."""
        start = self.peek()
        depth, parts = 0, []
        while not (depth == 0 and self.peek().text in stops):
            token = self.take()
            if token.kind in ("end", "eof"):
                raise self.error("a size is not closed", start, "f32[n, 640]")
            depth += {"(": 1, ")": -1}.get(token.text, 0)
            parts.append(token.text)
        if not parts:
            raise self.error("a size is missing", start)
        text = " ".join(parts)
        found: Dim = self.guard(start, lambda: d.parse_dim(text, self.symbols))
        return found

    def targets(self) -> list[_Token]:
        if self.accept("("):
            found = [self.target()]
            while self.accept(","):
                if self.peek().text == ")":
                    break
                found.append(self.target())
            self.expect(")")
            return found
        return [self.target()]

    def target(self) -> _Token:
        token = self.take()
        if token.kind not in ("name", "ref") or token.text in _KEYWORDS:
            found = repr(token.text) if token.text else "the end of the line"
            raise self.error(f"a statement cannot start with {found}", token,
                             "name = op(…), or one of dim, input, parameter, state, output, update, define")
        return token

    def define_name(self, name: str, value: Any, token: _Token) -> None:
        if name in self.values or name in self.symbols:
            raise self.error(f"the name {name!r} is taken already", token, "every name is given once")
        self.values[name] = value

    def result(self, kind: str) -> None:
        token = self.peek()
        name = self.leaf_name()
        if kind == "update" and name not in self.states:
            raise self.error(f"no state is named {name!r}", token, f"state {name} f32[…] in front of it")
        table: dict[Any, Node] = self.outputs if kind == "output" else self.updates  # type: ignore[assignment]
        key: Any = name if kind == "output" else self.states[name]
        if name in self.outputs and kind == "output" or key in table:
            raise self.error(f"{kind} {name} is said twice", token)
        self.expect("=")
        at = self.peek()
        value = self.expression()
        if not isinstance(value, Node):
            raise self.error(f"{kind} {name} is no tensor", at)
        table[key] = value

    def definition(self) -> None:
        token = self.take()
        base, _, digest = token.text.partition("#")
        if token.kind != "name":
            raise self.error("a definition needs a name", token)
        self.expect("(")
        outer, self.values = self.values, {}
        arguments: list[Node] = []
        while not self.accept(")"):
            at = self.peek()
            name = self.leaf_name()
            arguments.append(leaves.argument(len(arguments), self.type()))
            self.define_name(name, arguments[-1], at)
            if not self.accept(","):
                self.expect(")", "',' or ')'")
                break
        self.expect("{")
        self.end_of_line()
        while True:
            self.skip_lines()
            if self.peek().kind == "eof":
                raise self.error(f"the definition of {token.text} is not closed", token, "a line with '}'")
            if self.accept("return"):
                break
            self.statement()
            self.end_of_line()
        results = [self.expression()]
        while self.accept(","):
            results.append(self.expression())
        self.skip_lines()
        self.expect("}")
        self.values = outer
        known = known_user_op(base, digest)
        self.user_ops[token.text] = known if known is not None else defined_op(base, arguments, results)

    # ---- expressions ----

    def expression(self, level: int = 0) -> Any:
        if level == len(_LEVELS):
            return self.unary()
        left = self.expression(level + 1)
        while self.peek().kind == "op" and self.peek().text in _LEVELS[level]:
            token = self.take()
            right = self.expression(level + 1)
            name = _LEVELS[level][token.text]
            left = self.guard(token, lambda a=left, b=right, n=name: self.binary(n, a, b))
        return left

    @staticmethod
    def binary(name: str, a: Any, b: Any) -> Any:
        if not isinstance(a, Node) and not isinstance(b, Node):
            fold = {"add": lambda: a + b, "sub": lambda: a - b, "mul": lambda: a * b, "div": lambda: a / b,
                    "floor_div": lambda: a // b}
            if name in fold:
                return fold[name]()
            raise ValueError("an operator between two numbers")
        if name == "matmul":
            return a @ b
        return getattr(arithmetic, name)(a, b)

    def unary(self) -> Any:
        token = self.peek()
        if self.accept("-"):
            value = self.unary()
            return self.guard(token, lambda: -value)
        if self.accept("~"):
            value = self.unary()
            return self.guard(token, lambda: ~value)
        base = self.postfix()
        if self.accept("**"):
            power = self.unary()
            return self.guard(token, lambda: arithmetic.pow(base, power))
        return base

    def postfix(self) -> Any:
        value = self.primary()
        while True:
            token = self.peek()
            if self.accept("["):
                index = self.index()
                base = value
                value = self.guard(token, lambda: tensor.index_tensor(base, index))
            elif self.accept("."):
                name = self.take()
                if name.text != "T":
                    raise self.error(f"a tensor has no {name.text!r} here", name, "x.T, or a call: op(x)")
                base = value
                value = self.guard(token, lambda: base.T)
            else:
                return value

    def index(self) -> tuple[Any, ...]:
        items: list[Any] = []
        while not self.accept("]"):
            items.append(self.index_item())
            if not self.accept(","):
                self.expect("]", "',' or ']'")
                break
        return tuple(items)

    def index_item(self) -> Any:
        if self.peek().text == "..":
            self.take()
            self.expect(".")
            return Ellipsis
        if self.accept("none"):
            return None
        parts: list[Any] = []
        current: Any = None
        seen_colon = False
        while self.peek().text not in (",", "]"):
            if self.accept(":"):
                parts.append(current)
                current, seen_colon = None, True
            else:
                current = self.expression()
        if not seen_colon:
            return current
        parts.append(current)
        return slice(*parts)

    def primary(self) -> Any:
        token = self.take()
        if token.kind == "int":
            return int(token.text)
        if token.kind == "float":
            return float(token.text)
        if token.text in ("nan", "inf"):
            return float(token.text)
        if token.text in ("true", "false"):
            return token.text == "true"
        if token.text == "(":
            value = self.expression()
            self.expect(")")
            return value
        if token.text == "{":
            value = self.dim_until(("}",))
            self.expect("}")
            return value
        if token.text == "constant" and self.peek().text == "(":
            return self.constant(token)
        if token.kind in ("name", "ref"):
            if self.peek().text == "(" and token.kind == "name":
                return self.call(token)
            return self.lookup(token)
        found = repr(token.text) if token.text else "the end of the line"
        raise self.error(f"expected a value, found {found}", token)

    def lookup(self, token: _Token) -> Any:
        name = token.text
        if name in self.values:
            return self.values[name]
        if name in self.symbols:
            return self.symbols[name]
        if name.endswith(".T") and name[:-2] in self.values:
            base = self.values[name[:-2]]
            return self.guard(token, lambda: base.T)
        near = difflib.get_close_matches(name, [*self.values, *self.symbols], 1)
        raise self.error(f"no value is named {name!r} above this line", token, f"{near[0]}?" if near else None)

    def constant(self, token: _Token) -> Node:
        self.expect("(")
        if self.accept("base64"):
            self.expect("(")
            data = self.take()
            self.expect(")")
            self.expect(",")
            t = self.type()
            self.expect(")")

            def build() -> Node:
                raw = base64.b64decode(json.loads(data.text), validate=True)
                shape = tuple(int(s) for s in t.shape)  # type: ignore[arg-type]
                return apply(leaves.CONSTANT, (), {"value": array_value(raw, t.dtype, shape), "shape": shape, "dtype": t.dtype})

            made: Node = self.guard(token, build)
            return made
        if self.accept("["):
            items = []
            while not self.accept("]"):
                items.append(self.attribute())
                if not self.accept(","):
                    self.expect("]", "',' or ']'")
                    break
            dtype = self.constant_dtype()
            listed: Node = self.guard(token, lambda: _listed_constant(items, dtype))
            return listed
        value = self.attribute()
        dtype = self.constant_dtype()
        scalar: Node = self.guard(token, lambda: leaves.constant(value, dtype))
        return scalar

    def constant_dtype(self) -> DType:
        self.expect(",", "',' and a dtype")
        token = self.take()
        if token.text not in DTYPES:
            raise self.error(f"{token.text!r} is no dtype", token, f"one of {', '.join(DTYPES)}")
        self.expect(")")
        return DTYPES[token.text]

    def call(self, token: _Token) -> Any:
        op = self.find_op(token)
        self.expect("(")
        operands: list[Any] = []
        attrs: dict[str, Any] = {}
        in_attributes = False
        while not self.accept(")"):
            if self.accept(";"):
                in_attributes = True
                continue
            named = self.peek().kind == "name" and self.tokens[self.at + 1].text == "=" and self.tokens[self.at + 1].kind == "op"
            if in_attributes or named:
                in_attributes = True
                name = self.take()
                if name.kind != "name":
                    raise self.error("an attribute is written name=value", name)
                self.expect("=")
                if name.text in attrs:
                    raise self.error(f"the attribute {name.text!r} is given twice", name)
                attrs[name.text] = self.attribute()
            else:
                operands.append(self.expression())
            if self.peek().text not in (")", ";"):
                self.expect(",", "',' or ')'")
        return self.guard(token, lambda: build_call(op, operands, attrs))

    def find_op(self, token: _Token) -> Op:
        name = token.text
        found: Op | None = self.user_ops.get(name) or ATOMIC.get(name) or LIBRARY.get(name)
        if name == "copy_to":
            found = leaves.COPY_TO
        if found is None:
            near = difflib.get_close_matches(name, [*ATOMIC, *LIBRARY], 1)
            raise self.error(f"no op is named {name!r}", token, f"{near[0]}?" if near else None)
        return found

    def attribute(self) -> Any:
        token = self.peek()
        if token.kind == "string":
            return json.loads(self.take().text)
        if self.accept("none"):
            return None
        if token.text in DTYPES:
            return DTYPES[self.take().text]
        if self.accept("("):
            items: list[Any] = []
            while not self.accept(")"):
                items.append(self.attribute())
                if not self.accept(","):
                    self.expect(")", "',' or ')'")
                    break
            return tuple(items)
        if self.accept("-"):
            value = self.attribute()
            if isinstance(value, bool) or not isinstance(value, (int, float, d.Expr)):
                raise self.error("a minus sign in front of what is no number", token)
            return -value
        value = self.expression()
        if isinstance(value, Node):
            raise self.error("an attribute cannot be a tensor", token, "operands stand in front of the ';'")
        return value


def build_call(op: Op, operands: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """A call as written: atomic ops strictly, composites with their defaults filled in."""
    numbers = [o for o in operands if not isinstance(o, Node)]
    if isinstance(op, CompositeOp):
        if numbers:
            dtypes = [o.dtype for o in operands if isinstance(o, Node)]
            if not dtypes:
                raise ValueError(f"{op.name} of numbers only")
            operands = [tensor.as_node(o, dtypes[0]) for o in operands]
        absent = attrs.get("absent", ())
        known = {*op.attributes, "absent"}
        unknown = [k for k in attrs if k not in known]
        if unknown and type(op) is CompositeOp:
            raise ValueError(f"{op.name} has no attribute {unknown[0]!r}; it has {', '.join(op.attributes) or 'none'}")
        if not op.operands and not op.variadic or type(op) is not CompositeOp or set(op.attributes) <= set(attrs) and absent:
            node = apply(op, list(operands), attrs)
        else:
            given = list(operands)
            positional: list[Any] = []
            for name in op.operands:
                positional.append(None if name in absent or not given and name in op.optional else given.pop(0) if given else _missing(op, name))
            made = op(*positional, *given, **{k: v for k, v in attrs.items() if k != "absent"})
            return made
        return node if len(node.types) == 1 else tuple(leaves.item(node, i) for i in range(len(node.types)))
    if numbers:
        raise ValueError(f"{op.name} takes tensors; write numbers as constant(…, dtype), or use an operator")
    return apply(op, list(operands), attrs)


def _missing(op: CompositeOp, name: str) -> Any:
    raise ValueError(f"{op.name} needs the operand {name!r}; it takes {', '.join(op.operands)}")


def _listed_constant(items: Sequence[Any], dtype: DType) -> Node:
    for item in items:
        leaves.constant(item, dtype)                                # raises for what does not fit
    array = np.array(items, dtype=np.float64 if dtype.kind == "float" else None).astype(dtype.numpy)
    return apply(leaves.CONSTANT, (), {"value": ArrayValue.of(array, dtype), "shape": array.shape, "dtype": dtype})


def _inner_message(e: TensorGraphsError) -> str:
    """The message of an error of the language without its own place (the text's line is said instead)."""
    text = str(e)
    head, sep, rest = text.partition(": ")
    message = rest if sep and " at " in head else text
    lines = [line for i, line in enumerate(message.split("\n")) if i == 0 or line.startswith("  fix")]
    return "\n  ".join(lines)


def parse_graph(text: str, filename: str = "<text>") -> Graph:
    """The graph that a `.tg` text says. Raises TextError with line, column and a caret."""
    return _Parser(text, filename).parse()
