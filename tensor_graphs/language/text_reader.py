"""text_reader: reads a graph from `.tg` text, by recursive descent. Every error names its position in the text."""

from __future__ import annotations

import difflib
import inspect
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from tensor_graphs.errors import TensorGraphsError, listed
from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.atomic import ATOMIC, AtomicOp
from tensor_graphs.language.attribute_data import array_value
from tensor_graphs.language.composite import LIBRARY, CompositeOp
from tensor_graphs.language.composites import arithmetic
from tensor_graphs.language.defined_ops import DefinedOp, defined_op
from tensor_graphs.language.dim_reader import parse_dim
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DTYPES, DType
from tensor_graphs.language.errors import LanguageError, Location, written_at
from tensor_graphs.language.graph import Graph, graph
from tensor_graphs.language.node import ArrayValue, Node, Op, TensorType, apply
from tensor_graphs.language.op_names import apply_written, find_op, written_constant
from tensor_graphs.language.operands import as_node
from tensor_graphs.language.operators import index_tensor
from tensor_graphs.language.subgraph import Body
from tensor_graphs.language.text_tokens import TextError, Token, Tokens, shown
from tensor_graphs.language.text_writer import KEYWORDS, VERSION

T = TypeVar("T")
MAX_NESTING = 64
"""limit on nested brackets, signs and powers; each level takes several of Python's stack frames"""
MAX_DIGITS = 1000
"""limit on the digits of a whole number; Python itself refuses to read more than 4300"""
LEAVES = ("input", "parameter", "state")
_BYTES = "base64 of the little-endian bytes of as many elements as the shape says, in C order"

_BINARY: dict[str, tuple[int, str]] = {
    **{text: (0, name) for text, name in (("<", "less"), (">", "greater"), ("<=", "less_equal"), (">=", "greater_equal"))},
    "|": (1, "bit_or"), "^": (2, "bit_xor"), "&": (3, "bit_and"), "+": (4, "add"), "-": (4, "sub"),
    "*": (5, "mul"), "/": (5, "div"), "//": (5, "floor_div"), "%": (5, "mod"), "@": (5, "matmul"),
}
"""binary operator -> (how tightly it binds, in Python's order; the function of arithmetic.py for it)"""

_OF_NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
    "floor_div": lambda a, b: a // b, "mod": lambda a, b: a % b}


def parse_graph(text: str, filename: str = "<text>", ops: Mapping[str, CompositeOp] | None = None) -> Graph:
    """Return the graph written in a `.tg` text. ops: user-registered composites, by the names that calls in the text may use.

    Raises TextError with line, column and a caret.
    """
    reader = _GraphReader(text, filename, ops or {})
    try:
        return reader.graph()
    except RecursionError:
        raise reader.tokens.error("this is nested too deeply for the stack of the process") from None


class _GraphReader:
    def __init__(self, text: str, filename: str, ops: Mapping[str, CompositeOp]) -> None:
        self.given_ops = ops
        self.tokens = Tokens(text, filename)
        self.symbols: dict[str, Dim] = {}
        self.values: dict[str, Any] = {}
        self.states: dict[str, leaves.State] = {}
        self.results: dict[str, dict[str, Node]] = {"output": {}, "update": {}}
        self.user_ops: dict[str, CompositeOp] = {}
        self.bodies: dict[str, Body] = {}
        self.inside: str | None = None                             # the name of the definition being read
        self.leaf_types: dict[tuple[str, str], TensorType] = {}
        self.depth = 0
        self.peek, self.take, self.accept, self.expect = (
            self.tokens.peek, self.tokens.take, self.tokens.accept, self.tokens.expect)
        self.error = self.tokens.error

    def guard(self, token: Token, build: Callable[[], T], or_else: str = "another value here") -> T:
        """Return build(). Report an error of the language at the token's position, and give it to new nodes as their location.

        or_else: the fix for an error of Python itself."""
        try:
            with written_at(Location(self.tokens.filename, token.line)):
                return build()
        except TextError:
            raise
        except TensorGraphsError as e:
            message, fix = _without_place(e)
            raise self.error(message, token, fix) from None
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as e:
            raise self.error(str(e), token, or_else) from None

    # ---- statements ----

    def graph(self) -> Graph:
        self.version()
        while True:
            self.skip_lines()
            if self.peek().kind == "eof":
                break
            self.statement()
            self.end_of_line()
        outputs, updates = self.results["output"], self.results["update"]
        if not outputs and not updates:
            raise self.error("the text names no output", fix="a line like: output y = …")
        return self.guard(self.peek(), lambda: graph(outputs, {self.states[name]: value for name, value in updates.items()}))

    def version(self) -> None:
        lines = self.tokens.lines
        number = next((i for i, line in enumerate(lines) if line.split("#")[0].strip()), len(lines) - 1)
        first = re.match(r"\s*(\S*)", lines[number])
        if first is None or first[1] != "tg":
            at = Token("bad", "", number + 1, first.start(1) + 1 if first else 1)
            raise self.error("a .tg text starts with its version", at, f"make the first line: tg {VERSION}")
        self.skip_lines()
        self.take()
        version = self.take()
        if version.text != str(VERSION):
            raise self.error(f"version {version.text or '(none)'} of the text form; this package reads version {VERSION}", version,
                             f"make the first line: tg {VERSION}")
        self.end_of_line()

    def skip_lines(self) -> None:
        while self.peek().kind == "end":
            self.take()

    def end_of_line(self) -> None:
        token = self.peek()
        if token.kind not in ("end", "eof"):
            raise self.error(f"{shown(token)} behind the end of the statement", token, "one statement per line")

    def statement(self) -> None:
        token = self.peek()
        if token.kind == "name" and self.peek(1).text != "=":
            if token.text in ("dim", *LEAVES, "output", "update", "define"):
                if self.inside is not None:
                    raise self.error(f"{token.text!r} inside of the definition of {self.inside}", token,
                                     "a definition reads its operands and returns values; everything else stands outside of it")
                self.take()
                if token.text == "dim":
                    self.dim_statement()
                elif token.text == "define":
                    self.definition()
                elif token.text in LEAVES:
                    name_token = self.peek()
                    name = self.name(f"{token.text} x f32[2, 3]")
                    self.define_name(name, self.leaf(token.text, name, name_token), name_token)
                else:
                    self.result(token.text)
                return
        self.assignment()

    def assignment(self) -> None:
        targets = self.targets()
        self.expect("=")
        start = self.peek()
        if start.text in LEAVES and self.peek(1).kind == "string":
            if self.inside is not None:
                raise self.error(f"{start.text!r} inside of the definition of {self.inside}", start, "pass it as an operand")
            self.take()
            name_token = self.peek()
            value: Any = self.leaf(start.text, self.name(""), name_token)
        else:
            value = self.expression()
        count = len(value) if isinstance(value, tuple) else 1
        if len(targets) != count:
            left = "one name stands" if len(targets) == 1 else f"{len(targets)} names stand"
            raise self.error(f"{left} on the left, the call has {count} output{'s' if count > 1 else ''}", targets[0],
                             f"({', '.join('abcdefgh'[:count])}) = …" if 1 < count <= 8 else f"{count} on the left")
        for target, v in zip(targets, value if isinstance(value, tuple) else (value,), strict=True):
            self.define_name(target.text, v, target)

    def targets(self) -> list[Token]:
        return self.listed(")", self.target) or [self.target()] if self.accept("(") else [self.target()]

    def listed(self, close: str, read: Callable[[], T]) -> list[T]:
        """Return the items between commas, up to and including the closing bracket."""
        items: list[T] = []
        while not self.accept(close):
            items.append(read())
            if not self.accept(","):
                self.expect(close, f"',' or {close!r}")
                break
        return items

    def target(self) -> Token:
        token = self.take()
        if token.kind not in ("name", "ref") or token.text in KEYWORDS or "#" in token.text:
            raise self.error(f"a statement cannot start with {shown(token)}", token,
                             "name = op(…), or one of dim, input, parameter, state, output, update, define")
        return token

    def define_name(self, name: str, value: Any, token: Token) -> None:
        if name in self.values or name in self.symbols:
            raise self.error(f"the name {name!r} is taken already", token, "every name is given once")
        self.values[name] = value

    def dim_statement(self) -> None:
        name = self.take()
        if name.kind != "name" or "." in name.text or "#" in name.text:
            raise self.error("a dim needs a name", name, "dim n 1..4096")
        if name.text in self.symbols or name.text in self.values:
            raise self.error(f"the name {name.text!r} is taken already", name, "every name is given once")
        low = self.integer()
        self.expect("..")
        high = self.integer()
        self.symbols[name.text] = self.guard(name, lambda: d.dim(name.text, low, high))

    def integer(self) -> int:
        sign = -1 if self.accept("-") else 1
        token = self.take()
        if token.kind != "int":
            raise self.error("a whole number is needed here", token, "dim n 1..4096")
        return sign * self.whole(token)

    def whole(self, token: Token) -> int:
        if len(token.text) > MAX_DIGITS:
            raise self.error(f"a number of {len(token.text)} digits", token, f"at most {MAX_DIGITS}")
        return int(token.text)

    def real(self, token: Token) -> float:
        value = float(token.text)
        if math.isinf(value) or (value == 0.0 and any(c in "123456789" for c in token.text.lower().partition("e")[0])):
            raise self.error(f"{shown(token)} is beyond what a float64 holds", token,
                             f"{'inf' if value else '0.0'}, if that is meant")
        return value

    def name(self, example: str) -> str:
        token = self.take()
        if token.kind == "string" and token.text.endswith('"'):
            return self.string(token)
        if token.kind != "name" or token.text in KEYWORDS or "#" in token.text:
            raise self.error("a name is needed here", token, example)
        return token.text

    def string(self, token: Token) -> str:
        try:
            return str(json.loads(token.text))
        except ValueError as e:
            raise self.error(f"no string: {e}", token, r'like "a \"quoted\" name", as in JSON') from None

    def leaf(self, kind: str, name: str, token: Token) -> Node:
        t = self.type()
        first = self.leaf_types.setdefault((kind, name), t)
        if first != t:
            raise self.error(f"the {kind} {name!r} is {first} above", token, "one name, one type")
        if kind != "state":
            return self.guard(token, lambda: (leaves.input if kind == "input" else leaves.parameter)(name, t.shape, t.dtype))
        self.states[name] = self.guard(token, lambda: leaves.state(name, t.shape, t.dtype))
        return self.states[name].node

    def type(self) -> TensorType:
        dtype = self.dtype(", then a shape: f32[n, 640]")
        self.expect("[", "'[' and the shape")
        return TensorType(tuple(self.listed("]", lambda: self.dim_until((",", "]")))), dtype)

    def dtype(self, then: str = "") -> DType:
        token = self.take()
        if token.text not in DTYPES:
            raise self.error(f"{shown(token)} is no dtype", token,
                             _nearest(token.text, DTYPES) or f"one of {', '.join(DTYPES)}{then}")
        return DTYPES[token.text]

    def dim_until(self, stops: tuple[str, ...]) -> Dim:
        """Return a dim expression that ends before the first of the stops outside of parentheses."""
        start = self.peek()
        depth, parts = 0, []
        while not (depth == 0 and self.peek().text in stops):
            token = self.take()
            if token.kind in ("end", "eof"):
                raise self.error("a size is not closed", start, f"close it with {stops[-1]!r} on this line: f32[n, 640]")
            depth += {"(": 1, ")": -1}.get(token.text, 0)
            if depth > MAX_NESTING:
                raise self.error(f"nested more than {MAX_NESTING} deep", token, "fewer brackets, or a dim of its own")
            parts.append(token.text)
        if not parts:
            raise self.error("a size is missing", start, "a number, a dim, or an expression of dims: f32[n, 640]")
        return self.guard(start, lambda: parse_dim(" ".join(parts), self.symbols))

    def result(self, kind: str) -> None:
        token = self.peek()
        name = self.name(f"{kind} y = …")
        if kind == "update" and name not in self.states:
            raise self.error(f"no state is named {name!r}", token, f"state {name} f32[…] in front of it")
        if name in self.results[kind]:
            raise self.error(f"{kind} {name} is said twice", token, "each once; another name for another value" if kind == "output"
                             else "one update of each state")
        self.expect("=")
        at = self.peek()
        value = self.expression()
        if not isinstance(value, Node):
            what = f"{len(value)} values" if isinstance(value, tuple) else "a number"
            raise self.error(f"{kind} {name} is {what}, a tensor is needed", at,
                             "(a, b) = … gives each a name" if isinstance(value, tuple) else "constant(…, dtype) makes one")
        if kind == "update" and value.type != self.states[name].node.type:
            raise self.error(f"the state {name!r} is {self.states[name].node.type}, its update is {value.type}", at,
                             "an update has the state's shape and dtype")
        self.results[kind][name] = value

    def definition(self) -> None:
        token = self.take()
        if token.kind not in ("name", "string") or token.text in KEYWORDS:
            raise self.error("a definition needs a name", token, "define name(a f32[n]) {")
        base, digest = self.op_name(token)
        if token.text in self.user_ops or (not digest and find_op(base) is not None):
            raise self.error(f"the op {base!r} is there already", token, "another name")
        self.expect("(")
        outer, self.values, self.inside = self.values, {}, base
        arguments: list[Node] = []

        def argument() -> None:
            at = self.peek()
            name = self.name("define name(a f32[n]) {")
            t = self.type()
            arguments.append(self.guard(at, lambda: leaves.argument(len(arguments), t)))
            self.define_name(name, arguments[-1], at)

        self.listed(")", argument)
        self.expect("{")
        self.end_of_line()
        while True:
            self.skip_lines()
            if self.peek().kind == "eof" or self.peek().text == "}":
                raise self.error(f"the definition of {base} returns nothing", token, "a line 'return …', then a line '}'")
            if self.accept("return"):
                break
            self.statement()
            self.end_of_line()
        results = [self.returned()]
        while self.accept(","):
            results.append(self.returned())
        self.end_of_line()
        self.skip_lines()
        self.expect("}", "'}' on the line after 'return'")
        self.values, self.inside = outer, None
        self.user_ops[token.text] = self.guard(token, lambda: defined_op(base, digest, arguments, results))
        self.bodies[token.text] = Body(arguments, results)

    def returned(self) -> Node:
        token = self.peek()
        value = self.expression()
        if not isinstance(value, Node):
            raise self.error("a definition returns tensors", token, "constant(…, dtype) makes a tensor of a number")
        return value

    def op_name(self, token: Token) -> tuple[str, str]:
        """Return an op's written name, and the digest of its definition, or "" if none is written."""
        name, _, digest = token.text.rpartition("#") if "#" in token.text[-13:] else (token.text, "", "")
        return self.string(Token(token.kind, name, token.line, token.column)) if token.kind == "string" else name, digest

    # ---- expressions ----

    def nested(self, token: Token, read: Callable[[], T]) -> T:
        if self.depth == MAX_NESTING:
            raise self.error(f"nested more than {MAX_NESTING} deep", token, "give parts of it names on lines of their own")
        self.depth += 1
        try:
            return read()
        finally:
            self.depth -= 1

    def expression(self, level: int = 0, left: Any = None) -> Any:
        """Return an expression whose operators bind at least as tightly as `level`. left: its beginning, if already read."""
        if left is None:
            left = self.unary()
        while True:
            token = self.peek()
            if token.text in ("==", "!="):
                name = "equals" if token.text == "==" else "not_equal"
                raise self.error(f"{token.text!r} does not compare tensors", token, f"{name}(a, b), of equal shapes")
            binds, name = _BINARY.get(token.text, (-1, "")) if token.kind == "op" else (-1, "")
            if binds < level:
                return left
            self.take()
            right = self.expression(binds + 1)
            left = self.guard(token, lambda a=left, b=right, n=name: _binary(n, a, b))  # type: ignore[misc]
            if binds == 0 and _BINARY.get(self.peek().text, (-1, ""))[0] == 0:
                raise self.error("two comparisons in a row", self.peek(), "(a < b) & (b < c)")

    def unary(self) -> Any:
        return self.nested(self.peek(), self._unary)

    def _unary(self) -> Any:
        token = self.peek()
        if self.accept("-"):
            value = self.unary()
            if not isinstance(value, (Node, d.Expr, int, float)) or isinstance(value, bool):
                raise self.error("a minus sign in front of what is no number", token, "it stands in front of numbers and tensors")
            return self.guard(token, lambda: -value)
        if self.accept("~"):
            value = self.unary()
            if not isinstance(value, Node):
                raise self.error("a ~ in front of what is no tensor", token, "~x of a tensor of integers or bool")
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
                index = tuple(self.listed("]", self.index_item))
                value = self.guard(token, lambda v=value, i=index: index_tensor(_tensor(v), i))  # type: ignore[misc]
            elif self.accept("."):
                name = self.take()
                if name.text != "T":
                    raise self.error(f"a tensor has no {shown(name)} here", name, "x.T, or a call: op(x)")
                value = self.guard(token, lambda v=value: _tensor(v).T)  # type: ignore[misc]
            else:
                return value

    def index_item(self) -> Any:
        if self.accept(".."):
            self.expect(".", "'...'")
            return Ellipsis
        if self.accept("none"):
            return None
        parts: list[Any] = [None]
        while True:
            if self.peek().text not in (":", ",", "]"):
                parts[-1] = self.expression()
            colon = self.peek()
            if not self.accept(":"):
                break
            if len(parts) == 3:
                raise self.error("a slice has at most start:stop:step", colon, "x[a:b:step]; a comma is between axes")
            parts.append(None)
        if len(parts) == 1 and parts[0] is None:
            raise self.error("an index is missing", self.peek(), "x[i], x[a:b:step], x[...], x[none]")
        return parts[0] if len(parts) == 1 else slice(*parts)

    def primary(self) -> Any:
        token = self.take()
        if token.kind == "int":
            return self.whole(token)
        if token.kind == "float":
            return self.real(token)
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
        called = self.peek().text == "("
        if token.text == "constant" and called:
            return self.constant(token)
        if token.kind in ("name", "string") and called:
            return self.call(token)
        if token.kind in ("name", "ref") and token.text not in KEYWORDS:
            return self.lookup(token)
        raise self.tokens.unexpected("a value", token)

    def lookup(self, token: Token) -> Any:
        name, transposed = token.text, 0
        while name not in self.values and name.endswith(".T"):
            name, transposed = name[:-2], transposed + 1
        value = self.values.get(name, self.symbols.get(name) if not transposed else None)
        if value is None:
            there = [*self.values, *self.symbols]
            raise self.error(f"no value is named {shown(token)} above this line", token, _nearest(token.text, there)
                             or (f"one of {listed(there)}" if there else "input x f32[2, 3] on a line above"))
        for _ in range(transposed):
            value = self.guard(token, lambda v=value: _tensor(v).T)  # type: ignore[misc]
        return value

    def constant(self, token: Token) -> Node:
        self.expect("(")
        if self.accept("base64"):
            self.expect("(")
            data = self.take()
            text = self.string(data) if data.kind == "string" else ""
            self.expect(")")
            self.expect(",")
            t = self.type()
            self.expect(")")
            return self.guard(data, lambda: written_constant(array_value(text, t.dtype, t.shape), t), _BYTES)
        if self.accept("["):
            items = self.listed("]", self.element)
            dtype = self.constant_dtype()
            return self.guard(token, lambda: _listed_constant(items, dtype))
        value = self.attribute()
        dtype = self.constant_dtype()
        return self.guard(token, lambda: written_constant(value, TensorType((), dtype)))

    def element(self) -> bool | int | float:
        at = self.peek()
        value = self.attribute()
        if not isinstance(value, (bool, int, float)):
            raise self.error("an array is made of numbers", at, "constant([1, 2], i32)")
        return value

    def constant_dtype(self) -> DType:
        self.expect(",", "',' and a dtype")
        dtype = self.dtype()
        self.expect(")")
        return dtype

    def call(self, token: Token) -> Any:
        op = self.op(token)
        self.expect("(")
        operands: list[Any] = []
        attrs: dict[str, Any] = {}
        in_attributes = False
        while not self.accept(")"):
            if not in_attributes and self.accept(";"):
                in_attributes = True
                continue
            name = self.peek()
            if in_attributes or (name.kind == "name" and self.peek(1).text == "="):
                in_attributes = True
                if name.kind != "name":
                    raise self.tokens.unexpected("an attribute (name=value)", name,
                                                 "name=value, with commas between")
                self.take()
                self.expect("=", "'=' (attributes are written name=value)")
                if name.text in attrs:
                    raise self.error(f"the attribute {name.text!r} is given twice", name, "each attribute once")
                is_dtype = name.text == "dtype" and self.peek().kind == "name" and self.peek().text != "none"
                attrs[name.text] = self.dtype() if is_dtype else self.attribute()
            else:
                operands.append(self.expression())
            if self.peek().text not in (")", ";"):
                self.expect(",", "',' or ')'")
        return self.guard(token, lambda: _call(op, operands, attrs))

    def op(self, token: Token) -> Op:
        op = self.user_ops.get(token.text) or (
            find_op(token.text) or self.given_ops.get(token.text) if token.kind == "name" else None)
        if op is None:
            name, digest = self.op_name(token)
            what = f"no op is named {shown(Token('name', name, 0, 0))}"
            if digest:
                raise self.error(f"{what} with the digest {digest}", token, "its definition has to stand above")
            raise self.error(what, token, _nearest(name, [*ATOMIC, *LIBRARY, *self.user_ops, *self.given_ops, "copy_to"])
                             or f"a definition of {name} above this line; or, of a composite in Python, --import its file")
        return op

    def attribute(self) -> Any:
        """Return a number, an expression of dims, a string, a dtype, none, a definition above, or a tuple of those."""
        token = self.peek()
        if token.kind == "string":
            return self.string(self.take())
        if self.accept("none"):
            return None
        if token.text in DTYPES:
            return DTYPES[self.take().text]
        if token.text in self.bodies and token.kind == "name" and token.text not in self.values:
            return self.bodies[self.take().text]
        if token.text == "base64":
            return self.array()
        if token.text == "(":
            value = self.nested(token, self.parenthesis)
            return value if isinstance(value, tuple) or value is None else self.number(token, self.expression(0, value))
        return self.number(token, self.expression())

    def number(self, token: Token, value: Any) -> Any:
        if isinstance(value, (Node, tuple)):
            raise self.error("an attribute cannot be a tensor", token, "operands stand in front of the ';'")
        return value

    def parenthesis(self) -> Any:
        """Return the value in parentheses: (a, b), (a,) and () are tuples; (a) is a."""
        self.expect("(")
        items: list[Any] = []
        while not self.accept(")"):
            items.append(self.attribute())
            if not self.accept(","):
                self.expect(")", "',' or ')'")
                return items[0] if len(items) == 1 else tuple(items)
        return tuple(items)

    def array(self) -> ArrayValue:
        token = self.take()
        self.expect("(")
        data = self.take()
        text = self.string(data) if data.kind == "string" else ""
        self.expect(",")
        t = self.type()
        self.expect(")")
        return self.guard(token, lambda: array_value(text, t.dtype, t.shape), _BYTES)


def _call(op: Op, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """Return a call: atomic ops as written, composites with their defaults; several outputs as a tuple."""
    if any(isinstance(o, tuple) for o in operands):
        raise LanguageError(f"an operand of {op.name} is a call of several outputs", fix="(a, b) = … on a line of its own")
    if isinstance(op, AtomicOp) or op is leaves.COPY_TO or isinstance(op, DefinedOp):
        if not all(isinstance(o, Node) for o in operands):
            raise LanguageError(f"{op.name} takes tensors", fix="write numbers as constant(…, dtype), or use an operator")
        node = apply_written(op, operands, attrs)
        return node if len(node.types) == 1 else tuple(leaves.item(node, i) for i in range(len(node.types)))
    assert isinstance(op, CompositeOp)
    dtypes = [o.dtype for o in operands if isinstance(o, Node)]
    if not dtypes and operands:
        raise LanguageError(f"{op.name} of numbers only", fix="constant(…, dtype) makes a tensor of a number")
    nodes = [as_node(o, dtypes[0]) for o in operands]
    absent = attrs.pop("absent", ())
    if not isinstance(absent, tuple) or not set(absent) <= op.optional:
        raise LanguageError(f"{op.name} cannot do without {absent!r}",
                            fix=f"absent=… names {', '.join(sorted(op.optional)) or 'nothing'}")
    positional: list[Node | None] = []
    for name in op.operands:
        if name in absent or (not nodes and name in op.optional):
            positional.append(None)
        elif nodes:
            positional.append(nodes.pop(0))
        else:
            raise LanguageError(f"{op.name} needs the operand {name!r}", fix=f"it takes {', '.join(op.operands)}")
    if nodes and op.variadic is None:
        raise LanguageError(f"{op.name} takes {len(op.operands) - len(absent)} operands, got {len(operands)}",
                            fix=f"it takes {', '.join(op.operands) or 'none'}")
    unknown = [k for k in attrs if k not in op.attributes]
    if unknown:
        raise LanguageError(f"{op.name} has no attribute {unknown[0]!r}", fix=f"it has {', '.join(op.attributes) or 'none'}")
    for name in op.attributes:
        if name not in attrs and op.signature.parameters[name].default is inspect.Parameter.empty:
            raise LanguageError(f"{op.name} needs the attribute {name!r}", fix=f"it has {', '.join(op.attributes)}")
    return op(*positional, *nodes, **attrs)


def _tensor(value: Any) -> Node:
    if not isinstance(value, Node):
        what, fix = ("a call of several outputs", "a name for each: (a, b) = …") if isinstance(value, tuple) else (
            "a number", "constant(…, dtype) makes one")
        raise LanguageError(f"{what} is no tensor", fix=fix)
    return value


def _binary(name: str, a: Any, b: Any) -> Any:
    if isinstance(a, tuple) or isinstance(b, tuple):
        return _tensor(a if isinstance(a, tuple) else b)
    if isinstance(a, Node) or isinstance(b, Node):
        return a @ b if name == "matmul" else getattr(arithmetic, name)(a, b)
    if name not in _OF_NUMBERS:
        raise LanguageError("this operator stands between two numbers, a tensor is needed", fix="constant(…, dtype) makes one")
    return _OF_NUMBERS[name](a, b)


def _listed_constant(items: Sequence[Any], dtype: DType) -> Node:
    fitted = [leaves.constant(item, dtype).attrs["value"] for item in items]       # raises for what does not fit
    with np.errstate(over="ignore"):
        array = np.array(fitted, dtype=np.float64 if dtype.kind == "float" else dtype.numpy).astype(dtype.numpy)
    return apply(leaves.CONSTANT, (), {"value": ArrayValue.of(array, dtype), "shape": array.shape, "dtype": dtype})


def _nearest(name: str, names: Iterable[str]) -> str | None:
    for near in difflib.get_close_matches(name, list(names), 3):
        if difflib.SequenceMatcher(None, name, near).ratio() >= 0.8 or _one_letter_off(name, near):
            return f"{near}?"
    return None


def _one_letter_off(a: str, b: str) -> bool:
    """Return True if the names differ by one letter, inserted, omitted or replaced: f31 and f32, but not foo and floor."""
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[same:] in (b[same:], b[same + 1:]) or a[same + 1:] in (b[same:], b[same + 1:])


def _without_place(e: TensorGraphsError) -> tuple[str, str | None]:
    """Return (message, fix) of an error without its location, because the position in the text is reported instead."""
    text, _, fix = str(e).partition("\n  fix: ")
    location = getattr(e, "location", None)
    if isinstance(e, LanguageError) and location is not None:
        text = text.removeprefix(f"{type(e).__name__} at {location}: ").removesuffix(f"\n    {location.source()}")
    return text, fix or None


__all__ = ["MAX_NESTING", "parse_graph"]
