"""reference_graph: converts a FlashInfer-Trace definition's reference, Python code for torch, to a Graph. The code is parsed by
`ast` and never run.

In: the reference, and the definition's axes, inputs and outputs. Out: a Graph with inputs and outputs of these names; a var axis is
a dim of that name (1 to LARGEST_SIZE), a const axis its value. Straight-line code is accepted: a function `run`, assignments of
expressions with functions of torch/functions.py, asserts that the shapes alone decide, calls of other straight-line functions, one
return. All other code (loops, branches, writing in place, values read back from tensors) raises OpaqueReference with the line and
the reason.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensor_graphs.frontends.torch.functions import (
    BUILTINS,
    DTYPES,
    FUNCTIONS,
    MATH,
    AnyDevice,
    OpaqueReference,
    Scalar,
    is_number,
    refuse,
    wrapped,
)
from tensor_graphs.language import dims as d
from tensor_graphs.language import graph as make_graph
from tensor_graphs.language.dim_proofs import dim_ge, proved_equal
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, parse_dtype
from tensor_graphs.language.errors import LanguageError
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.leaves import input as make_input
from tensor_graphs.language.node import Node

LONGEST = 200_000  # characters of a reference that are read
DEEPEST_CALL, MOST_STATEMENTS = 8, 5_000  # DEEPEST_CALL: nesting of calls
LARGEST_SIZE = 1 << 24  # of a var axis, which a definition leaves open
LARGEST_POWER, LARGEST_BASE = 64, 2**31  # of powers of plain numbers: larger ones would take for ever


def reference_graph(reference: str, axes: Mapping[str, Mapping[str, Any]], inputs: Mapping[str, Mapping[str, Any]],
                    outputs: Mapping[str, Mapping[str, Any]]) -> Graph:
    """Return the graph that a reference computes, checked against the shapes and dtypes that the definition declares.

    axes: {"type": "const", "value": 64} or {"type": "var"} by name. inputs, outputs: {"shape": [axis, …] or None for a Python
    number, "dtype": "bfloat16"} by name, in order. Raises OpaqueReference with a message of one line.
    """
    try:
        return _translate(reference, axes, inputs, outputs)
    except OpaqueReference:
        raise
    except _REFUSED as error:
        raise OpaqueReference(_one_line(error)) from error


_REFUSED = (LanguageError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError, MemoryError)


def _one_line(error: BaseException) -> str:
    text = (str(error).splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\w+ at [^:]*(:\d+)?: ", "", text)


def _translate(reference: str, axes: Mapping[str, Any], inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Graph:
    if len(reference) > LONGEST:
        refuse(f"the reference is longer than {LONGEST} characters")
    try:
        module = ast.parse(reference)
    except SyntaxError as error:
        raise OpaqueReference(f"line {error.lineno}: no Python: {error.msg}") from error
    sizes = {name: _axis_size(name, axis) for name, axis in axes.items()}
    reader = _ReferenceReader(module)
    nodes = {name: make_input(name, *_declared(name, spec, sizes)) for name, spec in inputs.items()}
    values = [node if inputs[name]["shape"] is not None else Scalar(node) for name, node in nodes.items()]
    result = reader.call_run(list(inputs), values)
    return make_graph.graph(_named_outputs(result, outputs, sizes))


def _axis_size(name: str, axis: Mapping[str, Any]) -> Dim:
    if axis["type"] == "const":
        value = axis["value"]
        return value if type(value) is int else refuse(f"axis {name!r} is {value!r}")
    return d.dim(name, 1, LARGEST_SIZE) if axis["type"] == "var" else refuse(f"axis {name!r} is neither const nor var")


def _declared(name: str, spec: Mapping[str, Any], sizes: Mapping[str, Dim]) -> tuple[tuple[Dim, ...], DType]:
    for axis in spec["shape"] or ():
        if axis not in sizes:
            refuse(f"{name!r} has an axis {axis!r} that the definition does not declare")
    try:
        dtype = parse_dtype(spec["dtype"])
    except LanguageError:
        refuse(f"{name!r} is of {spec['dtype']}, which has no counterpart here")
    if dtype.is_float and dtype not in DTYPES.values():             # torch cannot add them, and rounds to them differently (0085)
        refuse(f"{name!r} is of {spec['dtype']}, in which no reference is read")
    return tuple(sizes[axis] for axis in spec["shape"] or ()), dtype


def _named_outputs(result: Any, outputs: Mapping[str, Any], sizes: Mapping[str, Dim]) -> dict[str, Node]:
    if isinstance(result, Mapping):
        if set(result) != set(outputs):
            refuse(f"it returns {', '.join(map(str, result))}; declared are {', '.join(outputs)}")
        named = {name: result[name] for name in outputs}
    else:
        values = list(result) if isinstance(result, (tuple, list)) else [result]
        if len(values) != len(outputs):
            refuse(f"it returns {len(values)} values; declared are {len(outputs)}")
        named = dict(zip(outputs, values, strict=True))
    for name, value in named.items():
        shape, dtype = _declared(name, outputs[name], sizes)
        if not isinstance(value, Node):
            refuse(f"output {name!r} is {type(value).__name__}, no tensor")
        same = len(shape) == value.rank and all(map(proved_equal, shape, value.shape))
        if not same or value.dtype is not dtype:
            declared = f"{dtype}[{', '.join(map(d.format_dim, shape))}]"
            refuse(f"output {name!r} is {value.type}; declared is {declared}")
    return named


# ---- the text --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Module:
    """A module, bound to a name by an import."""

    name: str


@dataclass(frozen=True)
class _Method:
    """A method of the tensor `owner`, or (owner None) a function of torch."""

    name: str
    owner: Node | None = None


@dataclass(frozen=True, eq=False)
class _Function:
    """A function of the reference; scope: the values of names in the code around it."""

    definition: ast.FunctionDef
    scope: dict[str, Any]
    defaults: tuple[Any, ...]

    @property
    def parameters(self) -> list[str]:
        arguments = self.definition.args
        return [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]


_OUTSIDE = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.FunctionDef)
_MODULES = ("torch", "math", "torch.nn.functional", "torch.nn", "typing", "__future__")
_GRADIENTLESS = ("no_grad", "inference_mode")
_WITHOUT_MEANING = ("typing", "__future__")


class _ReferenceReader:
    """Interpreter of one reference's syntax tree; names: current values of its variables."""

    def __init__(self, module: ast.Module) -> None:
        self.names: dict[str, Any] = dict(BUILTINS)
        self.depth = self.statements = 0
        for statement in module.body:
            if isinstance(statement, ast.FunctionDef) and statement.name == "run" and "run" in self.names:
                refuse("it has several functions named run")
            if not (isinstance(statement, _OUTSIDE) or _is_text(statement)):
                refuse(f"line {statement.lineno}: {_kind(statement)} outside of run")
            self.at(statement)

    def call_run(self, inputs: Sequence[str], values: Sequence[Any]) -> Any:
        """Return the result of the function run; the inputs are passed by position."""
        run = self.names.get("run")
        if not isinstance(run, _Function):
            refuse("it has no function named run")
        parameters, line = run.parameters, run.definition.lineno
        if set(parameters) == set(inputs) and parameters != list(inputs):
            refuse(f"line {line}: run takes the inputs in another order than the definition says them")
        if not 0 <= len(parameters) - len(inputs) <= len(run.defaults):
            refuse(f"line {line}: run takes {len(parameters)} inputs; declared are {len(inputs)}")
        return self.call_function(run, list(values), {})

    def function(self, definition: ast.FunctionDef) -> _Function:
        """Return a function definition, whose calls are inlined. Refuse decorators and arguments that are not supported."""
        for decorator in definition.decorator_list:
            if not self.without_gradient(decorator):
                refuse(f"{definition.name} is decorated with {ast.unparse(decorator)}")
        arguments = definition.args
        if arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
            refuse(f"{definition.name} takes * or ** or keyword arguments")
        return _Function(definition, self.names, tuple(self.value(default) for default in arguments.defaults))

    def call_function(self, function: _Function, arguments: list[Any], named: dict[str, Any]) -> Any:
        name, parameters = function.definition.name, function.parameters
        if len(arguments) > len(parameters) or not set(named) <= set(parameters[len(arguments) :]):
            refuse(f"{name} does not take these arguments")
        bound = dict(zip(parameters[len(parameters) - len(function.defaults) :], function.defaults, strict=True))
        bound |= dict(zip(parameters, arguments, strict=False)) | named
        if len(bound) < len(parameters):
            refuse(f"{name} lacks arguments")
        if self.depth >= DEEPEST_CALL:
            refuse(f"functions within functions, {DEEPEST_CALL} deep")
        outside, self.names, self.depth = self.names, {**function.scope, **bound}, self.depth + 1
        try:
            return self.body(function.definition.body, name)
        finally:
            self.names, self.depth = outside, self.depth - 1

    def body(self, statements: Sequence[ast.stmt], name: str) -> Any:
        """Return the result of a function body, which is straight-line code."""
        for statement in statements[:-1]:
            self.at(statement)
        last = statements[-1]
        if isinstance(last, ast.With) and all(self.without_gradient(item.context_expr) for item in last.items):
            return self.body(last.body, name)
        if not isinstance(last, ast.Return) or last.value is None:
            refuse(f"line {last.lineno}: {name} does not end by returning a value")
        return self.at(last)

    def without_gradient(self, node: ast.expr) -> bool:
        target = node.func if isinstance(node, ast.Call) else node
        return (isinstance(target, ast.Attribute) and target.attr in _GRADIENTLESS
                and self.value(target.value) == _Module("torch"))

    # -- statements --------------------------------------------------------------------------------------------------

    def at(self, statement: ast.stmt) -> Any:
        """Run a statement, and put its line in front of the message of every error in it."""
        self.statements += 1
        try:
            if self.statements > MOST_STATEMENTS:
                refuse(f"more than {MOST_STATEMENTS} statements, with those of the functions it calls")
            return self.value(statement.value) if isinstance(statement, ast.Return) and statement.value else (
                self.statement(statement))
        except OpaqueReference as error:
            message = str(error)  # an error in a called function has its line already
            raise OpaqueReference(message if message.startswith("line ") else f"line {statement.lineno}: {message}") from error
        except _REFUSED as error:
            raise OpaqueReference(f"line {statement.lineno}: {_one_line(error)}") from error

    def statement(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Assign):
            value = self.value(statement.value)
            for target in statement.targets:
                self.bind(target, value)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            self.bind(statement.target, self.value(statement.value))
        elif isinstance(statement, ast.AugAssign):
            old = self.name(statement.target) if isinstance(statement.target, ast.Name) else None
            if not (is_number(old) or isinstance(old, (tuple, str))):
                refuse("a tensor is changed in place")
            self.bind(statement.target, self.binary(statement.op, old, self.value(statement.value)))
        elif isinstance(statement, ast.Assert):
            if self.value(statement.test) is not True:
                refuse(f"the assert {ast.unparse(statement.test)} does not hold for these shapes")
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            self.imports(statement)
        elif isinstance(statement, ast.FunctionDef):
            self.names[statement.name] = self.function(statement)
        elif isinstance(statement, ast.With) and all(self.without_gradient(i.context_expr) for i in statement.items):
            for inner in statement.body:
                self.at(inner)
        elif not (isinstance(statement, ast.Pass) or _is_text(statement)):
            refuse(_kind(statement))

    def bind(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)) and not any(isinstance(e, ast.Starred) for e in target.elts):
            if not isinstance(value, (tuple, list)) or len(value) != len(target.elts):
                refuse(f"{ast.unparse(target)} does not unpack what stands on the right")
            for element, part in zip(target.elts, value, strict=True):
                self.bind(element, part)
        else:
            refuse("a tensor is written into" if isinstance(target, ast.Subscript) else f"{ast.unparse(target)} is assigned")

    def imports(self, statement: ast.Import | ast.ImportFrom) -> None:
        for alias in statement.names:
            if isinstance(statement, ast.Import):
                whole, name = alias.name, alias.asname or alias.name.partition(".")[0]
                module = whole if alias.asname else whole.partition(".")[0]
                self.names[name] = _Module(module) if whole in _MODULES else refuse(f"it imports {whole}")
            else:
                whole = f"{statement.module}.{alias.name}"
                if statement.module in _WITHOUT_MEANING:
                    continue
                self.names[alias.asname or alias.name] = (
                    _Module(whole) if whole in _MODULES else self.attribute(_Module(str(statement.module)), alias.name))

    # -- expressions -------------------------------------------------------------------------------------------------

    def value(self, node: ast.expr) -> Any:
        for kind, read in _EXPRESSIONS:
            if isinstance(node, kind):
                return read(self, node)
        return refuse(_kind(node))

    def name(self, node: ast.Name) -> Any:
        return self.names[node.id] if node.id in self.names else refuse(f"{node.id} is not known here")

    def sequence(self, node: ast.Tuple | ast.List) -> Any:
        values = (self.value(element) for element in node.elts)
        return tuple(values) if isinstance(node, ast.Tuple) else list(values)

    def mapping(self, node: ast.Dict) -> Any:
        if not all(isinstance(key, ast.Constant) for key in node.keys):
            refuse("a dict whose keys are not written out")
        return {self.value(key): self.value(value) for key, value in zip(node.keys, node.values, strict=True) if key}

    def unary(self, node: ast.UnaryOp) -> Any:
        value = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            return not value if isinstance(value, bool) else refuse("not of a value that is known only when it runs")
        if isinstance(value, Node):
            names = {ast.USub: "neg", ast.Invert: "logical_not"}
            return FUNCTIONS[names[type(node.op)]](value) if type(node.op) in names else value
        if not is_number(value) or isinstance(node.op, ast.Invert):
            refuse(f"{ast.unparse(node)}")
        return -value if isinstance(node.op, ast.USub) else value

    def binary(self, op: ast.operator, x: Any, y: Any) -> Any:
        if isinstance(x, tuple) and isinstance(y, tuple) and isinstance(op, ast.Add):
            return x + y
        if type(op) not in _OPERATORS:
            refuse(f"the operator {type(op).__name__}")
        name, compute = _OPERATORS[type(op)]
        if not (is_number(x) and is_number(y)):
            return FUNCTIONS[name](x, y)
        if compute is None:
            refuse(f"{name} of numbers")
        static = not (isinstance(x, d.Expr) or isinstance(y, d.Expr))
        if isinstance(op, ast.Pow) and not (static and abs(y) <= LARGEST_POWER and abs(x) <= LARGEST_BASE):
            refuse("a power of a size, or a large one")
        if isinstance(op, ast.Div) and not static:
            refuse("a quotient of sizes that are not known")
        if not static and (isinstance(x, float) or isinstance(y, float)):
            refuse("a number made of a size that is not known")
        return compute(x, y)

    def comparison(self, node: ast.Compare) -> Any:
        left, result = self.value(node.left), None
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.value(right_node)
            one = self.compare(op, left, right)
            if len(node.ops) > 1 and not isinstance(one, bool):
                refuse("a chain of comparisons of tensors")
            result = one if result is None else result and one
            left = right
        return result

    def compare(self, op: ast.cmpop, x: Any, y: Any) -> Any:
        if isinstance(op, (ast.Is, ast.IsNot)):
            if x is not None and y is not None:
                refuse("is, of something other than None")
            return (x is y) == isinstance(op, ast.Is)
        if isinstance(op, (ast.In, ast.NotIn)):
            if not isinstance(y, (tuple, list)):
                refuse("in, of something other than a tuple")
            return any(self.compare(ast.Eq(), x, item) for item in y) == isinstance(op, ast.In)
        name, decide = _COMPARISONS[type(op)]
        if isinstance(x, (Node, Scalar)) or isinstance(y, (Node, Scalar)):
            return FUNCTIONS[name](x, y)
        if isinstance(x, (tuple, list)) and isinstance(y, (tuple, list)) and isinstance(op, (ast.Eq, ast.NotEq)):
            same = len(x) == len(y) and all(self.compare(ast.Eq(), a, b) for a, b in zip(x, y, strict=True))
            return same == isinstance(op, ast.Eq)
        if isinstance(x, d.Expr) or isinstance(y, d.Expr):
            return _decided(op, x, y)
        return bool(decide(x, y))

    def logic(self, node: ast.BoolOp) -> Any:
        values = [self.value(operand) for operand in node.values]
        if not all(isinstance(operand, bool) for operand in values):
            refuse("and, or of values that are known only when it runs")
        return all(values) if isinstance(node.op, ast.And) else any(values)

    def choice(self, node: ast.IfExp) -> Any:
        test = self.value(node.test)
        if not isinstance(test, bool):
            refuse("a branch on a value that is known only when it runs")
        return self.value(node.body if test else node.orelse)

    def attribute(self, owner: Any, name: str) -> Any:
        if isinstance(owner, _Module):
            return _from_module(owner.name, name)
        if isinstance(owner, Node):
            if name in _PROPERTIES:
                return _PROPERTIES[name](owner)
            if name in FUNCTIONS:
                return _Method(name, owner)
            in_place = name.endswith("_") and not name.startswith("_")
            refuse("a tensor is changed in place" if in_place else f"tensors' {name} is not known here")
        if name in ("values", "indices") and isinstance(owner, tuple) and hasattr(owner, name):
            return getattr(owner, name)
        return refuse(f".{name} of {type(owner).__name__}")

    def index(self, node: ast.Subscript) -> Any:
        owner, index = self.value(node.value), self.value(node.slice)
        if isinstance(owner, (tuple, list)):
            return owner[index] if isinstance(index, (int, slice)) else refuse("an index that is not known")
        if not isinstance(owner, Node):
            refuse(f"an index of {type(owner).__name__}")
        if isinstance(index, Node):
            return wrapped(owner, index, 0)
        parts = index if isinstance(index, tuple) else (index,)
        if not all(part is None or part is ... or isinstance(part, (slice, d.Expr)) or type(part) is int for part in parts):
            refuse("an index by tensors along several axes, by a mask or by a list")
        return owner[index]

    def call(self, node: ast.Call) -> Any:
        function = self.value(node.func)
        if any(isinstance(part, ast.Starred) for part in node.args) or any(part.arg is None for part in node.keywords):
            refuse("a call with * or **")
        arguments = [self.value(argument) for argument in node.args]
        named = {str(argument.arg): self.value(argument.value) for argument in node.keywords}
        if isinstance(function, _Method):
            named = {_SYNONYMS.get(name, name): value for name, value in named.items()}
            first = [function.owner] if function.owner is not None else [named.pop("input")] if "input" in named else []
            return FUNCTIONS[function.name](*first, *arguments, **named)
        if isinstance(function, _Function):
            return self.call_function(function, arguments, named)
        if callable(function):
            return function(*arguments, **named)
        return refuse(f"a call of {ast.unparse(node.func)}")


_EXPRESSIONS: tuple[tuple[type[ast.expr], Callable[[_ReferenceReader, Any], Any]], ...] = (
    (ast.Constant, lambda _, node: node.value), (ast.Name, _ReferenceReader.name), (ast.Tuple, _ReferenceReader.sequence),
    (ast.List, _ReferenceReader.sequence), (ast.Dict, _ReferenceReader.mapping), (ast.UnaryOp, _ReferenceReader.unary),
    (ast.BinOp, lambda reader, node: reader.binary(node.op, reader.value(node.left), reader.value(node.right))),
    (ast.Compare, _ReferenceReader.comparison), (ast.BoolOp, _ReferenceReader.logic), (ast.IfExp, _ReferenceReader.choice),
    (ast.Attribute, lambda reader, node: reader.attribute(reader.value(node.value), node.attr)),
    (ast.Subscript, _ReferenceReader.index), (ast.Call, _ReferenceReader.call),
    (ast.Slice, lambda reader, node: slice(*(part and reader.value(part) for part in (node.lower, node.upper, node.step)))),
)  # fmt: skip

_OPERATORS: Mapping[type[ast.operator], tuple[str, Callable[[Any, Any], Any] | None]] = {
    ast.Add: ("add", operator.add), ast.Sub: ("sub", operator.sub), ast.Mult: ("mul", operator.mul),
    ast.Div: ("div", operator.truediv), ast.FloorDiv: ("floor_divide", operator.floordiv),
    ast.Mod: ("remainder", operator.mod), ast.Pow: ("pow", operator.pow), ast.MatMult: ("matmul", None),
    ast.BitAnd: ("bitwise_and", None), ast.BitOr: ("bitwise_or", None), ast.BitXor: ("bitwise_xor", None),
}  # fmt: skip
_COMPARISONS: Mapping[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Lt: ("lt", operator.lt), ast.LtE: ("le", operator.le), ast.Gt: ("gt", operator.gt),
    ast.GtE: ("ge", operator.ge), ast.Eq: ("eq", operator.eq), ast.NotEq: ("ne", operator.ne),
}  # fmt: skip
_SYNONYMS = {"axis": "dim", "keepdims": "keepdim"}  # torch takes numpy's words, too


_PROPERTIES: Mapping[str, Callable[[Node], Any]] = {
    "shape": lambda x: x.shape, "dtype": lambda x: x.dtype, "ndim": lambda x: x.rank, "device": lambda _: AnyDevice(),
    "T": lambda x: x.transpose(0, 1) if x.rank == 2 else refuse(".T of a tensor that is no matrix"),
    "mT": lambda x: x.transpose(-2, -1),
}  # fmt: skip


def _from_module(module: str, name: str) -> Any:
    whole = f"{module}.{name}"
    if whole in _MODULES:
        return _Module(whole)
    if module == "math" and name in MATH:
        return MATH[name]
    if module in ("torch", "torch.nn.functional"):
        if module == "torch" and name in DTYPES:
            return DTYPES[name]
        if module == "torch" and name in ("inf", "pi", "e"):
            return MATH[name]
        if module == "torch" and name == "device":
            return lambda *_: AnyDevice()
        if name in FUNCTIONS:
            return _Method(name)
    return refuse(f"{whole} is not known here")


def _decided(op: ast.cmpop, x: Any, y: Any) -> bool:
    """Return the result of a comparison of sizes that their bounds alone decide; else raise OpaqueReference."""
    if not all(isinstance(side, (int, d.Expr)) for side in (x, y)):
        refuse("a size beside something else")
    if isinstance(op, (ast.Eq, ast.NotEq)):
        if proved_equal(x, y):
            return isinstance(op, ast.Eq)
        if dim_ge(x, y + 1) is True or dim_ge(y, x + 1) is True:
            return isinstance(op, ast.NotEq)
        refuse("a comparison of sizes that are not known")
    low, high, strict = {
        ast.Lt: (x, y, 1), ast.LtE: (x, y, 0), ast.Gt: (y, x, 1), ast.GtE: (y, x, 0),
    }[type(op)]  # fmt: skip
    holds = dim_ge(high, low + strict)
    return holds if holds is not None else refuse("a comparison of sizes that are not known")


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


_KINDS = {
    "For": "a loop", "While": "a loop", "If": "a branch", "Lambda": "a function",
    "ListComp": "a loop", "GeneratorExp": "a loop", "DictComp": "a loop", "SetComp": "a loop", "Try": "a try",
    "Return": "a return in the middle", "Expr": "a call for its effect", "Raise": "a raise",
}  # fmt: skip


def _kind(node: ast.AST) -> str:
    return _KINDS.get(type(node).__name__, f"{type(node).__name__}, which is not known here")
