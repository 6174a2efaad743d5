"""composite: named ops that are defined by a graph of other ops. The definition is matcher, oracle and documentation.

    @composite
    def silu(x, *, beta=1.0):
        '''x · sigmoid(beta·x).'''
        return x * sigmoid(x * beta)

Parameters before the `*` are operands (tensors; `None` where the default is None; one `*xs` takes any number), those after it are
attributes and belong to the node's identity. So does `axis` where it is the last before the `*`: it may be given by position, as to
numpy's functions. Calling `silu(x)` makes one node; `expand(node)` replaces it by its definition.
A composite may carry `direct` (a float64 evaluation in numpy), `gradient` (its own gradient graph) and several outputs.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_fields
from typing import Any, overload

import numpy as np

from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, parse_dtype
from tensor_graphs.language.errors import AttributeValueError, DTypeError, LanguageError
from tensor_graphs.language.facts import UNKNOWN, OpFacts
from tensor_graphs.language.node import Node, Op, TensorType, apply, encode_attribute, rebuild, walk

Build = Callable[..., Node | tuple[Node, ...]]

RULE_CHECKS: list[Callable[[Sequence[str], Sequence[Node], Sequence[Node | None], Sequence[Node | None]], str | None]] = []
"""What compares a gradient of a user's own with that of the definition: (operands' names, placeholders of operands and cotangents,
the one's gradients, the other's) -> how they differ. The language evaluates nothing: the package's page puts one here."""

AXIS = "axis"
"""The attribute that may stand before the `*`."""


@dataclass(frozen=True, eq=False)
class Definition:
    """A composite expanded once for given operand types: placeholders and the graph over them."""

    arguments: tuple[Node, ...]
    outputs: tuple[Node, ...]
    digest: str


def definition_digest(outputs: Sequence[Node]) -> str:
    """Return what identifies a definition: the digest of the digests of its outputs, over placeholders."""
    return hashlib.sha256("|".join(o.digest for o in outputs).encode()).hexdigest()


class CompositeOp:
    """A named op with a definition. Call it with operands and attributes to make a node.

    direct(roles, attrs, out_types) -> array or tuple: float64 evaluation; `roles` maps operand names to arrays (absent ones are
    missing, `*xs` is a list), `attrs` has dims evaluated. gradient(node, grads) -> {operand name: gradient node or None}; compared
    with that of the definition where it is first used, unless gradient_checked is False (meaning/gradient_rule.py).
    conditions(node): what must hold between sizes in addition to what its definition requires (see conditions.py).
    facts: what else is true of it (see facts.py).
    """

    kind = "composite"
    group = "composite"
    loop = False
    """True if `made_of` is no definition, and is computed `turns` times"""

    def __init__(self, build: Build, *, name: str | None = None, direct: Callable[..., Any] | None = None,
                 gradient: Callable[..., Any] | None = None, gradient_checked: bool = True, opaque: bool = False,
                 conditions: Callable[[Node], Any] | None = None, facts: OpFacts = UNKNOWN) -> None:
        self.name, self.facts = name or build.__name__, facts
        self.build, self.direct, self.gradient_rule, self.opaque = build, direct, gradient, opaque
        self.conditions, self.gradient_checked = conditions, gradient_checked
        self.signature = inspect.signature(build)
        # what `help`, `inspect.signature` and completion read: a composite is called like the function that defines it
        self.__name__ = self.__qualname__ = self.name
        self.__module__, self.__doc__, self.__signature__ = build.__module__, build.__doc__, self.signature
        self.__annotations__ = dict(build.__annotations__)
        parameters = list(self.signature.parameters.values())
        operands = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.POSITIONAL_ONLY)]
        axis = operands.pop() if operands and operands[-1].name == AXIS else None
        if any(p.name == AXIS for p in operands) or any(p.kind is p.VAR_KEYWORD for p in parameters):
            raise AttributeValueError(f"composite {self.name}{self.signature}: operands, then axis, then attributes after a *",
                                      fix=f"move {AXIS} behind the operands, and name every attribute")
        self.operands = tuple(p.name for p in operands)
        self.optional = frozenset(p.name for p in operands if p.default is None)
        self.variadic = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
        self.attributes = tuple(p.name for p in parameters if p is axis or p.kind is p.KEYWORD_ONLY)
        self._definitions: dict[tuple[Any, ...], Definition] = {}

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickled by name: one of the library, or the module's global that it was defined as."""
        return (_of_library, (self.name,)) if LIBRARY.get(self.name) is self else self.build.__qualname__

    def __deepcopy__(self, memo: object) -> CompositeOp:
        return self

    def __get__(self, instance: object, owner: type | None = None) -> CompositeOp:
        """Itself, as an attribute of a class too; `help` takes what has this method for a function, and shows the signature."""
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound = self._bind(args, kwargs)
        operands: list[Node] = []
        absent: list[str] = []
        for name in self.operands:
            value = bound.arguments[name]
            if value is None and name in self.optional:
                absent.append(name)
                continue
            operands.append(self._operand(name, value))
        if self.variadic:
            operands += [self._operand(self.variadic, v) for v in bound.arguments.get(self.variadic, ())]
        attrs = {name: _attribute(self.name, name, bound.arguments[name], self.signature.parameters[name].default)
                 for name in self.attributes}
        if absent:
            attrs["absent"] = tuple(absent)
        node = apply(self, operands, attrs)
        if len(node.types) == 1:
            return node
        return tuple(leaves.item(node, i) for i in range(len(node.types)))

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as e:
            from tensor_graphs.language.call_errors import misfit  # a door: of wrong calls

            raise misfit(self.name, self.signature, kwargs, e) from None
        bound.apply_defaults()
        return bound

    def _operand(self, name: str, value: Any) -> Node:
        if not isinstance(value, Node):
            if name == self.variadic:
                fix = "the tensors one by one, " + ", ".join([f"{self.name}(a, b", *(f"{a}=…" for a in self.attributes)]) + ")"
            elif self.signature.parameters[name].default not in (None, inspect.Parameter.empty):
                at = self.operands.index(name)
                order = [str(p) for p in self.signature.parameters.values()]
                fix = f"an attribute stands behind a *: def {self.name}({', '.join([*order[:at], '*', *order[at:]])})"
            elif isinstance(value, leaves.State):
                fix = leaves.AS_TENSOR
            else:
                fix = "wrap numbers and arrays with tg.constant"
            raise DTypeError(f"{self.name}: operand {name!r} is {type(value).__name__}, a tensor is needed", fix=fix)
        return value

    def roles(self, node: Node) -> dict[str, Any]:
        """Operand name -> node (absent ones are missing; a variadic name -> list of nodes)."""
        return self.by_role(node.inputs, node.attrs)

    def by_role(self, values: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
        """The same naming for any values given in operand order (arrays, buffers, types)."""
        names = [n for n in self.operands if n not in attrs.get("absent", ())]
        out: dict[str, Any] = dict(zip(names, values, strict=False))
        if self.variadic:
            out[self.variadic] = list(values[len(names):])
        return out

    def infer(self, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> tuple[TensorType, ...]:
        return tuple(o.type for o in self.define([i.type for i in inputs], attrs).outputs)

    def identity(self, node: Node) -> str:
        return self.define([i.type for i in node.inputs], node.attrs).digest

    def made_of(self, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Definition:
        """Return the graph to count or search in, but not to compute with: the definition, or the step of a loop."""
        return self.define(types, attrs)

    def turns(self, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Dim:
        """Return how often the graph of `made_of` is computed."""
        return 1

    def define(self, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Definition:
        """The definition for operands of these types, built once."""
        key = (tuple(types), tuple((k, encode_attribute(v)) for k, v in sorted(attrs.items())))
        cached = self._definitions.get(key)
        if cached is not None:
            return cached
        arguments = tuple(leaves.argument(i, t) for i, t in enumerate(types))
        named = self.by_role(arguments, attrs)
        rest = named.pop(self.variadic, []) if self.variadic else []
        positional = [named.get(n) for n in self.operands]
        keywords = {k: v for k, v in attrs.items() if k != "absent"}
        built = self.build(*positional, *rest, **keywords)
        outputs = built if isinstance(built, tuple) else (built,)
        for o in outputs:
            if not isinstance(o, Node):
                raise LanguageError(f"the definition of {self.name} returned {o!r}, a tensor is needed")
        definition = Definition(arguments, outputs, definition_digest(outputs))
        self._definitions[key] = definition
        return definition


def _attribute(op: str, name: str, value: Any, default: Any = None) -> Any:
    """A keyword value as an attribute: lists become tuples, numpy scalars Python ones, names of dtypes dtypes where the default is
    one."""
    if isinstance(default, DType):
        return parse_dtype(value)
    if isinstance(value, (list, tuple)):
        return tuple(_attribute(op, name, v) for v in value)
    if isinstance(value, np.generic):
        value = value.item()
    try:
        encode_attribute(value)
    except TypeError:
        if name == AXIS:
            raise AttributeValueError(f"{op}: axis is {value!r}, an int is needed") from None
        raise AttributeValueError(f"{op}: attribute {name!r} cannot be {value!r}",
                                  fix="numbers, strings, dtypes, dims and tuples of them; tensors come before the *") from None
    return value


@overload
def composite(build: Build, *, name: str | None = None, direct: Callable[..., Any] | None = None,
              gradient: Callable[..., Any] | None = None, gradient_checked: bool = True, opaque: bool = False) -> CompositeOp: ...
@overload
def composite(build: None = None, *, name: str | None = None, direct: Callable[..., Any] | None = None,
              gradient: Callable[..., Any] | None = None, gradient_checked: bool = True,
              opaque: bool = False) -> Callable[[Build], CompositeOp]: ...
def composite(build: Build | None = None, **options: Any) -> CompositeOp | Callable[[Build], CompositeOp]:
    """Make a named op of a function that builds its definition. See the module's docstring.

    A second composite of the same name is another op: identity includes the digest of the definition. Raises AttributeValueError
    for what is no function, for a name that is no text, and for a signature that is not operands, then axis, then attributes; the
    op raises what its definition raises.
    """
    name = options.get("name")
    if name is not None and not isinstance(name, str):
        raise AttributeValueError(f"a composite is named {name!r}, of type {type(name).__name__}", fix='a text: name="silu"')
    if build is None:
        return lambda b: composite(b, **options)
    if not callable(build):
        raise AttributeValueError(f"a composite of {build!r}: it is defined by a function",
                                  fix="@tg.composite above def silu(x): …, which returns a tensor")
    return CompositeOp(build, **options)


LIBRARY: dict[str, CompositeOp] = {}


def _of_library(name: str) -> CompositeOp:
    return LIBRARY[name]


def library(**options: Any) -> Callable[[Build], CompositeOp]:
    """`composite` for the ops that come with the package: known by name in `.tg` text, docs and conformance tables."""
    return lambda build: put_in_library(CompositeOp(build, **options))


def put_in_library(op: CompositeOp) -> CompositeOp:
    """The op, which is known by its name from now on."""
    if op.name in LIBRARY:
        raise ValueError(f"two library composites are named {op.name}")
    LIBRARY[op.name] = op
    return op


def of_one_output(rule: Callable[[Node, Node], dict[str, Any]]) -> Callable[[Node, tuple[Node | None, ...]], dict[str, Any]]:
    """Return `gradient` for `composite`: rule(node, gradient of its first output); nothing where that is None."""
    return lambda node, grads: {} if grads[0] is None else rule(node, grads[0])


def expand(node: Node, inputs: Sequence[Node] | None = None) -> tuple[Node, ...]:
    """The outputs of a composite node's definition, on the node's operands (or on `inputs` of the same types)."""
    if not isinstance(node.op, CompositeOp):
        raise LanguageError(f"{node.op.name} is not a composite, it has no definition")
    definition = node.op.define([i.type for i in node.inputs], node.attrs)
    return instantiate(definition, tuple(inputs if inputs is not None else node.inputs))


def instantiate(definition: Definition, inputs: Sequence[Node]) -> tuple[Node, ...]:
    """A definition's outputs with its arguments replaced."""
    by_argument = dict(zip(definition.arguments, inputs, strict=True))

    def replace(node: Node, new: tuple[Node, ...]) -> Node | None:
        return by_argument.get(node) if node.op is leaves.ARGUMENT else None

    return tuple(rebuild(definition.outputs, replace))


MOST_WRITTEN_OUT = 1 << 16
"""nodes that definitions are copied to in one `expand_all`: some seconds, and a hundred layers of a decoder. Definitions that
use each other twice double with each level, so a text of a page could ask for more nodes than any machine holds"""


class TooManyNodesError(LanguageError):
    """A graph whose definitions come to more nodes than are written out."""


class WrittenOut:
    """Definitions over their own arguments, each rewritten once for all nodes that it defines, so that their operands are not
    walked again; counts what it copies."""

    def __init__(self, rewrite: Callable[[Sequence[Node]], list[Node]],
                 written: Callable[[Node], Definition] | None = None) -> None:
        """rewrite: of a definition's outputs, like `expand_all`; it may come back here for the definitions inside. written: the
        definition of a composite node, by default its own."""
        self.rewrite, self.written = rewrite, written or defined
        self._known: dict[Definition, tuple[Definition, int]] = {}
        self._made = 0

    def instantiate(self, node: Node, inputs: Sequence[Node]) -> tuple[Node, ...]:
        """The outputs of a composite node's definition, rewritten, on these operands.

        Raises TooManyNodesError beyond MOST_WRITTEN_OUT nodes.
        """
        definition = self.written(node)
        if definition not in self._known:
            new = tuple(self.rewrite(definition.outputs))
            self._known[definition] = with_fields(definition, outputs=new), len(walk(new))
        written, count = self._known[definition]
        self._made += count
        if self._made > MOST_WRITTEN_OUT:
            raise TooManyNodesError(
                f"the definitions of this graph come to more than {MOST_WRITTEN_OUT} nodes when they are written out; the last one "
                f"was {node.op.name}, of {count} nodes",
                fix="fewer calls of definitions within definitions: each that calls another twice doubles it")
        return instantiate(written, inputs)


def defined(node: Node) -> Definition:
    """The definition of a composite node."""
    assert isinstance(node.op, CompositeOp)
    return node.op.define([i.type for i in node.inputs], node.attrs)


def is_loop(op: Op) -> bool:
    """Return True for a loop: its `made_of` is no definition, and is computed in each iteration."""
    return isinstance(op, CompositeOp) and op.loop


def looked_into(node: Node) -> Definition:
    """Return `made_of` for a composite node: the graph to count or search in."""
    assert isinstance(node.op, CompositeOp)
    return node.op.made_of([i.type for i in node.inputs], node.attrs)


def atoms_in(outputs: Sequence[Node]) -> list[Node]:
    """The outputs in atomic ops, as far as they go, to look for something in: as by `expand_all`, and in place of each loop what it
    is made of. Raises TooManyNodesError."""
    return expand_all(outputs, written=looked_into, loops=True)


def expand_all(outputs: Sequence[Node], keep: Callable[[Node], bool] = lambda node: False,
               written: Callable[[Node], Definition] = defined, loops: bool = False) -> list[Node]:
    """The outputs with every composite replaced by its definition, recursively, except those that `keep` holds. written: what
    stands in place of a composite, where it is not its own definition. loops: in place of those too, which have none.

    Raises TooManyNodesError where that takes more than MOST_WRITTEN_OUT nodes.
    """
    inside = WrittenOut(lambda inner: _expand_all(inner, keep, inside, loops), written)
    return _expand_all(outputs, keep, inside, loops)


def _expand_all(outputs: Sequence[Node], keep: Callable[[Node], bool], inside: WrittenOut, loops: bool) -> list[Node]:
    cache: dict[Node, tuple[Node, ...]] = {}

    def replace(node: Node, new: tuple[Node, ...]) -> Node | None:
        if node.op is leaves.ITEM and node.inputs[0] in cache:
            index: int = node.attrs["index"]
            return cache[node.inputs[0]][index]
        if isinstance(node.op, CompositeOp) and (not node.op.opaque or (loops and node.op.loop)) and not keep(node):
            inner = inside.instantiate(node, new)
            if len(inner) == 1:
                return inner[0]
            cache[node] = inner
            return inner[0]          # never read directly: every user of a node with several outputs is an item
        return None

    return rebuild(list(outputs), replace)


def resolve_attributes(attrs: Mapping[str, Any], binding: Mapping[str, int]) -> dict[str, Any]:
    """Attributes with every expression of dims replaced by its value."""
    def one(v: Any) -> Any:
        if isinstance(v, d.Expr):
            return d.evaluate(v, binding)
        if isinstance(v, d.HoldsDims):
            return v.with_dims(binding)
        return tuple(one(x) for x in v) if isinstance(v, tuple) else v

    return {k: one(v) for k, v in attrs.items()}
