"""composite: named ops that are defined by a graph of other ops. The definition is pattern, reference and documentation.

    @composite
    def silu(x, *, beta=1.0):
        '''x · sigmoid(beta·x).'''
        return x * sigmoid(x * beta)

Parameters before the `*` are operands (tensors; `None` where the default is None; one `*xs` takes any number), those after it are
attributes and belong to the node's identity. An `axis` that is the last parameter before the `*` is an attribute too: it may be
passed by position, as to numpy's functions. Calling `silu(x)` makes one node; `expand(node)` replaces it by its definition. A
composite may have `direct` (a float64 evaluation in numpy), `gradient` (a gradient graph) and several outputs.
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
from tensor_graphs.language.node import Node, Op, TensorType, apply, encode_attribute, rebuild, walk
from tensor_graphs.language.op_facts import UNKNOWN, OpFacts

Build = Callable[..., Node | tuple[Node, ...]]

RULE_CHECKS: list[Callable[[Sequence[str], Sequence[Node], Sequence[Node | None], Sequence[Node | None]], str | None]] = []
"""Functions that compare a user-registered gradient with that of the definition: (operand names, placeholders of operands and
cotangents, registered gradients, gradients of the definition) -> how they differ. tensor_graphs/__init__.py adds one."""

AXIS = "axis"
"""The one attribute that may be written before the `*`."""


@dataclass(frozen=True, eq=False)
class Definition:
    """A composite expanded for given operand types: placeholders, and the outputs of a graph over them."""

    arguments: tuple[Node, ...]
    outputs: tuple[Node, ...]
    digest: str


def definition_digest(outputs: Sequence[Node]) -> str:
    """Return the digest that identifies a definition: a hash of the digests of its outputs, over placeholders."""
    return hashlib.sha256("|".join(o.digest for o in outputs).encode()).hexdigest()


class CompositeOp:
    """A named op with a definition. Call it with operands and attributes to make a node.

    direct(roles, attrs, out_types) -> array or tuple: float64 evaluation, with numpy's warnings off; `roles` maps operand names to
    arrays (absent ones are missing, `*xs` is a list), `attrs` has dims evaluated. gradient(node, grads) -> {operand name: gradient
    node or None}; compared with the gradient of the definition at its first use, unless gradient_checked is False
    (meaning/gradient_rule.py). conditions(node): conditions between sizes in addition to those of its definition (conditions.py).
    facts: further properties of the op (see op_facts.py).
    """

    kind = "composite"
    group = "composite"
    loop = False
    """True for a loop: its `made_of` is one step, not the definition, and is computed `turns()` times"""

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
        """Pickle the op by name: a library op by its name, any other as the global of the module that defines it."""
        return (_of_library, (self.name,)) if LIBRARY.get(self.name) is self else self.build.__qualname__

    def __deepcopy__(self, memo: object) -> CompositeOp:
        return self

    def __get__(self, instance: object, owner: type | None = None) -> CompositeOp:
        """Return the op itself, also when it is a class attribute; because of this method `help` shows the op like a function."""
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
        """Return operand name -> node; absent operands are missing, and a variadic name maps to a list of nodes."""
        return self.by_role(node.inputs, node.attrs)

    def by_role(self, values: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
        """Return operand name -> value, as `roles` does, for any values in operand order (arrays, buffers, types)."""
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
        """Return the graph to count or search in: the definition, or one step of a loop. It is not for computing values."""
        return self.define(types, attrs)

    def turns(self, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Dim:
        """Return the number of times that the graph of `made_of` is computed."""
        return 1

    def define(self, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Definition:
        """Return the definition for operands of these types, built once and kept."""
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
    """Return a keyword value as an attribute: lists become tuples, numpy scalars become Python numbers, and where the default is a
    dtype, a name becomes a dtype."""
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
    """Make a named op from a function that builds its definition. See the module's docstring.

    A second composite with the same name is another op, because the identity includes the digest of the definition. Raises
    AttributeValueError if `build` is no function, if the name is no string, and unless the signature is operands, then axis, then
    attributes. The op raises what its definition raises.
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
    """Return a decorator like `composite` for built-in ops, which have their name in `.tg` text, docs and conformance tables."""
    return lambda build: put_in_library(CompositeOp(build, **options))


def put_in_library(op: CompositeOp) -> CompositeOp:
    """Add the op to LIBRARY under its name, and return it."""
    if op.name in LIBRARY:
        raise ValueError(f"two library composites are named {op.name}")
    LIBRARY[op.name] = op
    return op


def of_one_output(rule: Callable[[Node, Node], dict[str, Any]]) -> Callable[[Node, tuple[Node | None, ...]], dict[str, Any]]:
    """Return a `gradient` for `composite` from rule(node, gradient of the first output); {} where that gradient is None."""
    return lambda node, grads: {} if grads[0] is None else rule(node, grads[0])


def expand(node: Node, inputs: Sequence[Node] | None = None) -> tuple[Node, ...]:
    """Return the outputs of a composite node's definition, over the node's operands (or over `inputs` of the same types)."""
    if not isinstance(node.op, CompositeOp):
        raise LanguageError(f"{node.op.name} is not a composite, it has no definition")
    definition = node.op.define([i.type for i in node.inputs], node.attrs)
    return instantiate(definition, tuple(inputs if inputs is not None else node.inputs))


def instantiate(definition: Definition, inputs: Sequence[Node]) -> tuple[Node, ...]:
    """Return a definition's outputs with its arguments replaced by `inputs`."""
    by_argument = dict(zip(definition.arguments, inputs, strict=True))

    def replace(node: Node, new: tuple[Node, ...]) -> Node | None:
        return by_argument.get(node) if node.op is leaves.ARGUMENT else None

    return tuple(rebuild(definition.outputs, replace))


MOST_WRITTEN_OUT = 1 << 16
"""limit on the nodes that one `expand_all` copies from definitions: they take some seconds, and are a hundred layers of a decoder.
Definitions that each call the next one twice double with each level, so that a page of text could exhaust any machine"""


class TooManyNodesError(LanguageError):
    """A graph whose expanded definitions have more nodes than the limit."""


class WrittenOut:
    """Definitions over their placeholders, each rewritten once for all nodes that use it, so that operands are not walked again. It
    also counts the nodes that it copies."""

    def __init__(self, rewrite: Callable[[Sequence[Node]], list[Node]],
                 written: Callable[[Node], Definition] | None = None) -> None:
        """rewrite: rewrites a definition's outputs, like `expand_all`; it may call this object for definitions inside of them.
        written: returns the definition to use for a composite node; by default the node's definition."""
        self.rewrite, self.written = rewrite, written or defined
        self._known: dict[Definition, tuple[Definition, int]] = {}
        self._made = 0

    def instantiate(self, node: Node, inputs: Sequence[Node]) -> tuple[Node, ...]:
        """Return the outputs of a composite node's definition, rewritten, over `inputs`.

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
    """Return the definition of a composite node."""
    assert isinstance(node.op, CompositeOp)
    return node.op.define([i.type for i in node.inputs], node.attrs)


def is_loop(op: Op) -> bool:
    """Return True for a loop: its `made_of` is one step, not the definition, and is computed in each iteration."""
    return isinstance(op, CompositeOp) and op.loop


def looked_into(node: Node) -> Definition:
    """Return the graph to count or search in for a composite node (`made_of`)."""
    assert isinstance(node.op, CompositeOp)
    return node.op.made_of([i.type for i in node.inputs], node.attrs)


def atoms_in(outputs: Sequence[Node]) -> list[Node]:
    """Return the outputs expanded into atomic ops as far as possible, for a search: as by `expand_all`, and each loop is replaced
    by its step. Raises TooManyNodesError."""
    return expand_all(outputs, written=looked_into, loops=True)


def expand_all(outputs: Sequence[Node], keep: Callable[[Node], bool] = lambda node: False,
               written: Callable[[Node], Definition] = defined, loops: bool = False) -> list[Node]:
    """Return the outputs with every composite replaced by its definition, recursively, except nodes for which `keep` is True.
    written: returns the definition to use, by default the node's. loops: replace loops too, which are opaque.

    Raises TooManyNodesError if that copies more than MOST_WRITTEN_OUT nodes.
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
    """Return the attributes with every expression of dims replaced by its value."""
    def one(v: Any) -> Any:
        if isinstance(v, d.Expr):
            return d.evaluate(v, binding)
        if isinstance(v, d.HoldsDims):
            return v.with_dims(binding)
        return tuple(one(x) for x in v) if isinstance(v, tuple) else v

    return {k: one(v) for k, v in attrs.items()}
