"""pattern: the patterns of rules, given as text, and the search for them in an e-graph.

    permute(permute(x, axes=a), axes=b)         # x: any tensor; a, b: attribute values, passed to the replacement
    mul(x, 1)                                   # a tensor of nothing but ones
    topk(x, k=k)[1]                             # the second output
    _f(reshape(x, shape=s), reshape(y, shape=s))    # any op that works element by element, passed as `f`

Names are ops of the table or of the library, with all their attributes (attributes that are left out have their defaults), after a
"," or, as in .tg files, a ";". Operands of commutative ops match in either order. A name that occurs twice must match the same
class, or the same attribute value.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from tensor_graphs.errors import TensorGraphsError, close_to
from tensor_graphs.language import atomic, composites, leaves
from tensor_graphs.language.atomic import ATOMIC, AtomicOp
from tensor_graphs.language.composite import LIBRARY, CompositeOp, expand_all
from tensor_graphs.language.dtypes import DTYPES, DType, bool_, f32, i32, parse_dtype
from tensor_graphs.language.errors import DTypeError, LanguageError
from tensor_graphs.language.node import Node, Op, TensorType, encode_attribute, walk
from tensor_graphs.rewrites.egraph import EGraph, same_number
from tensor_graphs.rewrites.enode import ENode, is_commutative
from tensor_graphs.rewrites.errors import PatternError

WRITTEN = {"bit_and": "and"}
"""Names, in patterns, of ops whose name is a Python keyword."""

ANY_OP = "_"
"""Prefix of op variables: a name that starts with it matches any op that works element by element."""


@dataclass(frozen=True)
class Variable:
    name: str


@dataclass(frozen=True)
class Literal:
    number: int
    value: bool | int | float


@dataclass(frozen=True)
class AttributeVariable:
    name: str


@dataclass(frozen=True)
class Application:
    """An op applied to patterns. `number` identifies it among the pattern's parts."""

    number: int
    name: str
    operands: tuple[Pattern, ...]
    attributes: tuple[tuple[str, Any], ...]
    output: int = 0

    @cached_property
    def absent(self) -> tuple[str, ...]:
        """Return the optional operands that the application leaves out. Operands are read in order, so these are the last ones."""
        op = LIBRARY.get(self.name)
        if op is None or op.variadic:
            return ()
        return tuple(n for n in op.operands[len(self.operands):] if n in op.optional)


Pattern = Variable | Literal | Application

Match = dict[Any, Any]
"""A match: tensor variable -> class; attribute variable -> value; op variable -> op; number of a part -> its e-node or class."""


KINDS = ("float", "int", "uint", "bool")


def is_among(dtype: DType, words: Sequence[str]) -> bool:
    """Return whether a dtype is among these kinds ("uint") and names ("u8")."""
    return dtype.kind in words or dtype.name in words


def dtype_words(dtypes: Any, where: str) -> tuple[str, ...]:
    """Return kinds and names of dtypes as a tuple for `is_among`. Raises PatternError for an unknown one."""
    words = []
    for word in dtypes if isinstance(dtypes, (tuple, list)) else (dtypes,):
        if word in KINDS:
            words.append(word)
            continue
        try:
            words.append(parse_dtype(word).name)
        except DTypeError:
            raise PatternError(f"{where} says {word!r}, which is no dtype and no kind of them",
                               fix=f"kinds: {', '.join(KINDS)}; dtypes: {', '.join(DTYPES)}") from None
    if not words:
        raise PatternError(f"{where} says no dtype", fix=f"kinds: {', '.join(KINDS)}; dtypes: {', '.join(DTYPES)}")
    return tuple(words)


_SEMICOLON = re.compile(r"""("[^"]*"|'[^']*')|;""")


def parse_pattern(text: str, first: int = 0) -> Application:
    """Return a pattern read from text; its parts are numbered from `first`. Raises PatternError."""
    if not isinstance(text, str):
        raise PatternError(f"the pattern is {text!r}, of type {type(text).__name__}", fix='text: @tg.rule("add(x, y)")')
    try:
        # .tg sets attributes off by ";", and people copy from there
        tree = ast.parse(_SEMICOLON.sub(lambda m: m.group(1) or ",", text.strip()), mode="eval").body
    except SyntaxError as e:
        raise PatternError(f"the pattern {text!r} cannot be read: {e.msg}", fix="op(operand, …, attribute=name)") from None
    pattern = _PatternReader(text, first).read(tree)
    if not isinstance(pattern, Application):
        raise PatternError(f"the pattern {text!r} applies no op", fix="a pattern is an op on something")
    return pattern


class _PatternReader:
    def __init__(self, text: str, first: int) -> None:
        self.text, self.count = text, first

    def next(self) -> int:
        self.count += 1
        return self.count

    def wrong(self, why: str, fix: str | None = None) -> PatternError:
        return PatternError(f"the pattern {self.text!r}: {why}", fix=fix)

    def read(self, tree: ast.expr) -> Pattern:
        match tree:
            case ast.Name(id=name):
                return Variable(name)
            case ast.Constant(value=bool() | int() | float() as value):
                return Literal(self.next(), value)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return Literal(self.next(), -value)
            case ast.Subscript(value=ast.Call() as call, slice=ast.Constant(value=int() as index)):
                return self.application(call, index)
            case ast.Call() as call:
                return self.application(call, 0)
        raise self.wrong(f"{ast.unparse(tree)!r} is no part of a pattern", "names, numbers, and ops on them")

    def application(self, call: ast.Call, output: int) -> Application:
        if not isinstance(call.func, ast.Name):
            raise self.wrong(f"{ast.unparse(call.func)!r} is no op")
        name = WRITTEN.get(call.func.id, call.func.id)
        attributes = {str(k.arg): self.attribute(k.value) for k in call.keywords}
        if not name.startswith(ANY_OP):
            op = ATOMIC.get(name) or LIBRARY.get(name)
            if op is None:
                raise self.no_op(name)
            names = op.attributes
            for attribute in attributes:
                if attribute not in names:
                    raise self.wrong(f"{name} has no attribute {attribute!r}", f"it has {', '.join(names) or 'none'}")
            for attribute in names:
                default = op.signature.parameters[attribute].default if isinstance(op, CompositeOp) else inspect.Parameter.empty
                if attribute not in attributes:
                    if default is inspect.Parameter.empty:
                        raise self.wrong(f"the attribute {attribute!r} of {name} is not said", f"{attribute}=a_name")
                    attributes[attribute] = default
        number = self.next()
        return Application(number, name, tuple(self.read(a) for a in call.args), tuple(sorted(attributes.items())), output)

    def no_op(self, name: str) -> PatternError:
        """Return an error for an unknown op; for the name of a language function, it shows the ops that the function applies."""
        function = next((f for f in (getattr(atomic, name, None), getattr(composites, name, None)) if inspect.isfunction(f)), None)
        if function is None or name.startswith("_"):
            close = close_to(name, [*ATOMIC, *LIBRARY])
            meant = f"{', '.join(close)}? Or" if close else "Write"
            return self.wrong(f"there is no op {name!r}",
                              f"{meant} an atomic op, a library composite, or _name for any elementwise op")
        template = _made_by(function)
        return self.wrong(f"{name!r} is a function that makes other ops, and no op itself",
                          f"write what it makes: {template}" if template else "write the ops that it makes")

    def attribute(self, tree: ast.expr) -> Any:
        if isinstance(tree, ast.Name):
            return AttributeVariable(tree.id)
        try:
            return ast.literal_eval(tree)
        except ValueError:
            raise self.wrong(f"{ast.unparse(tree)!r} is no attribute value") from None


def _made_by(function: Callable[..., Any]) -> str:
    """Return the ops that a language function applies to small tensors, as a pattern; "" if it does not take tensors alone."""
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.default is inspect.Parameter.empty
             and p.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for dtype in (bool_, i32, f32):
        try:
            result = function(*(leaves.input(n, (2, 3), dtype) for n in names))
        except (TensorGraphsError, TypeError, ValueError, AttributeError):
            continue
        if isinstance(result, Node):
            return f"{_as_pattern(result)} ({'for booleans' if dtype is bool_ else f'at {dtype.name}'})"
    return ""


def _as_pattern(node: Node) -> str:
    if node.op in leaves.NAMED_LEAVES:
        return str(node.attrs["name"])
    source = node
    while source.op.facts.view:                          # a number, spread over a shape
        source = source.inputs[0]
    if source.op is leaves.CONSTANT:
        return str(source.attrs["value"])
    name = next((w for w, n in WRITTEN.items() if n == node.op.name), node.op.name)
    return f"{name}({', '.join([*map(_as_pattern, node.inputs), *(f'{k}={v}' for k, v in node.attrs.items())])})"


def elementwise(op: Op, types: tuple[TensorType, ...]) -> bool:
    """Return whether each element of the result depends only on the operands' elements at the same position."""
    if not types or any(t.shape != types[0].shape for t in types):
        return False
    if isinstance(op, AtomicOp):
        return op.elementwise
    return isinstance(op, CompositeOp) and not op.opaque and _composite_elementwise(op)


@cache
def _composite_elementwise(op: CompositeOp) -> bool:
    """Return whether the definition, on operands of one generic type, consists of elementwise atomic ops and fills alone."""
    if op.variadic or op.attributes:
        return False
    for dtype in (f32, i32, bool_):
        try:
            definition = op.define([TensorType((3, 5), dtype)] * len(op.operands), {})
        except LanguageError:
            continue
        if len(definition.outputs) != 1 or definition.outputs[0].shape != (3, 5):
            return False
        moved = set()
        for node in walk(expand_all(definition.outputs)):
            if node.op.kind == "leaf":
                if node.op.name == "constant" and not node.shape:
                    moved.add(node)
            elif node.op.facts.view:
                if node.inputs[0] not in moved:
                    return False
                moved.add(node)
            elif not isinstance(node.op, AtomicOp) or not node.op.elementwise:
                return False
        return True
    return False


def search(e: EGraph, pattern: Application, index: Mapping[str, list[tuple[int, ENode]]],
           bound: Match, kinds: tuple[str, ...] = ()) -> Iterator[tuple[int, Match]]:
    """Yield (class, match), in a fixed order, for the matches of a pattern whose values have these kinds, given bindings."""
    if pattern.name.startswith(ANY_OP):
        candidates = [pair for name in index for pair in index[name]]
    else:
        candidates = index.get(pattern.name, [])
    for operand in pattern.operands:
        if isinstance(operand, Variable) and operand.name in bound:
            home = e.find(bound[operand.name])
            candidates = [pair for pair in candidates if home in pair[1].children]
            break
    needed = next((p.name for p in pattern.operands if isinstance(p, Application) and not p.name.startswith(ANY_OP)), None)
    for number, node in candidates:
        if needed is not None and not any(needed in e.of(c).ops for c in node.children):
            continue
        if kinds and not is_among(e.types[node.term].dtype, kinds):
            continue
        for match in _match_node(e, pattern, node, bound):
            yield number, match


def _may(e: EGraph, pattern: Pattern, number: int) -> bool:
    """Return whether a class has an e-node of the op that a pattern's part requires: a cheap test before anything is bound."""
    if isinstance(pattern, Application):
        return pattern.name.startswith(ANY_OP) or pattern.name in e.of(number).ops
    return True


def _match(e: EGraph, pattern: Pattern, number: int, bound: Match) -> Iterator[Match]:
    number = e.find(number)
    if isinstance(pattern, Variable):
        old = bound.get(pattern.name)
        if old is None:
            yield {**bound, pattern.name: number}
        elif e.find(old) == number:
            yield bound
    elif isinstance(pattern, Literal):
        eclass = e.classes[number]
        wanted = float(pattern.value) if eclass.type.dtype.kind == "float" else pattern.value
        if same_number(eclass.splat, wanted) and isinstance(pattern.value, bool) == (eclass.type.dtype.kind == "bool"):
            yield {**bound, pattern.number: number}
    else:
        for node in list(e.classes[number].nodes):
            yield from _match_node(e, pattern, node, bound)


def _match_node(e: EGraph, pattern: Application, node: ENode, bound: Match) -> Iterator[Match]:
    if len(node.children) != len(pattern.operands) or node.output != pattern.output:
        return
    if pattern.absent != node.attrs.get("absent", ()):     # layer_norm(x, w) is not layer_norm(x, bias=w)
        return
    orders = [node.children]
    if is_commutative(node.op) and len(node.children) == 2 and node.children[0] != node.children[1]:
        orders.append(node.children[::-1])
    orders = [o for o in orders if all(map(_may, itertools.repeat(e), pattern.operands, o))]
    if not orders:
        return
    if pattern.name.startswith(ANY_OP):
        if not elementwise(node.op, tuple(e.of(c).type for c in node.children)):
            return
        # one op with its attributes; the same name twice is the same op
        old = bound.get(pattern.name)
        if old is not None and (old.op is not node.op or old.attrs_key != node.attrs_key):
            return
        match: Match | None = {**bound, pattern.name: node}
    else:
        match = _attributes(pattern, node, bound) if node.op.name == pattern.name and _is_known(node.op) else None
    if match is None:
        return
    match = {**match, pattern.number: node}
    for children in orders:
        yield from _match_all(e, pattern.operands, children, match)


def _is_known(op: Op) -> bool:
    return ATOMIC.get(op.name) is op or LIBRARY.get(op.name) is op


def _match_all(e: EGraph, patterns: tuple[Pattern, ...], children: tuple[int, ...], bound: Match) -> Iterator[Match]:
    if not patterns:
        yield bound
        return
    for match in _match(e, patterns[0], children[0], bound):
        yield from _match_all(e, patterns[1:], children[1:], match)


def _attributes(pattern: Application, node: ENode, bound: Match) -> Match | None:
    match = bound
    for name, wanted in pattern.attributes:
        value = node.attrs[name]
        if isinstance(wanted, AttributeVariable):
            if wanted.name not in match:
                match = {**match, wanted.name: value}
                continue
            wanted = match[wanted.name]
        if encode_attribute(wanted) != encode_attribute(value):
            return None
    return match


def instance(e: EGraph, pattern: Pattern, match: Match) -> int:
    """Return the term of a match: the pattern with exactly the matched e-nodes and classes."""
    if isinstance(pattern, Variable):
        return int(match[pattern.name])
    if isinstance(pattern, Literal):
        return int(match[pattern.number])
    node: ENode = match[pattern.number]
    children = [instance(e, p, match) for p in pattern.operands]
    return e.add_term(node.op, node.attrs, children, node.output, e.types[node.term])


def variables(pattern: Pattern) -> dict[str, str]:
    """Return the names that a pattern binds, with "tensor", "attribute" or "op", in order of first use."""
    if isinstance(pattern, Variable):
        return {pattern.name: "tensor"}
    if isinstance(pattern, Literal):
        return {}
    kinds: dict[str, str] = {pattern.name: "op"} if pattern.name.startswith(ANY_OP) else {}
    for operand in pattern.operands:
        kinds.update(variables(operand))
    kinds.update({v.name: "attribute" for _, v in pattern.attributes if isinstance(v, AttributeVariable)})
    return kinds
