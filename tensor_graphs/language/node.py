"""node: one application of an op, immutable and hash-consed, so that equal applications are one object.

A node has its op, its operands, its attributes and the type (shape, dtype) of each of its outputs. Every attribute that changes the
value is part of its identity; the line of code that made it is not.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.errors import AttributeValueError, Location, where_written, written_at
from tensor_graphs.language.op_facts import OpFacts

if TYPE_CHECKING:
    from tensor_graphs.language.operators import TensorOperators
else:
    TensorOperators = object                            # operators.py puts them on Node


@dataclass(frozen=True, slots=True)
class TensorType:
    """The shape (ints or expressions of dims) and dtype of one value."""

    shape: tuple[Dim, ...]
    dtype: DType

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(d.format_dim(s) for s in self.shape)}]"

    @property
    def rank(self) -> int:
        return len(self.shape)

    def at(self, binding: Mapping[str, int]) -> TensorType:
        """Return the type with every dim replaced by its value."""
        return TensorType(tuple(d.evaluate(s, binding) for s in self.shape), self.dtype)

    def size(self) -> Dim:
        """Return the number of elements."""
        return d.product(self.shape)

    def nbytes(self) -> Dim:
        return self.size() * self.dtype.itemsize


class Op(Protocol):
    """The operation of a node: an atomic op, a composite op or a leaf. Compared by identity."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def group(self) -> str: ...

    @property
    def facts(self) -> OpFacts: ...

    def infer(self, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> tuple[TensorType, ...]:
        """Return the types of the outputs. Raises ShapeError, DTypeError or AttributeValueError."""

    def identity(self, node: Node) -> str:
        """Return the part of the op's meaning that its name does not determine (for a composite: the digest of its definition)."""


@dataclass(frozen=True, slots=True)
class ArrayValue:
    """A constant array as an attribute value: raw little-endian bytes, C order."""

    dtype: DType
    shape: tuple[int, ...]
    data: bytes

    @staticmethod
    def of(array: np.ndarray, dtype: DType) -> ArrayValue:
        contiguous = np.ascontiguousarray(array, dtype=dtype.numpy)
        return ArrayValue(dtype, tuple(array.shape), contiguous.tobytes())

    def array(self) -> np.ndarray:
        return np.frombuffer(self.data, dtype=self.dtype.numpy).reshape(self.shape)


def encode_attribute(value: Any) -> str:
    """Return an attribute value as text that differs for different values: 1, 1.0 and True, or 0.0 and −0.0; all NaNs are equal."""
    if type(value) is int and -(1 << 63) <= value < 1 << 64:         # most are; other types are tested one by one
        return str(value)
    if type(value) is tuple:
        return "(" + ",".join([encode_attribute(v) for v in value]) + ")"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, np.integer)):
        if not -(1 << 63) <= value < 1 << 64:
            raise AttributeValueError(f"an attribute is {d.shown_int(int(value))}, which is beyond 64 bits")
        return str(int(value))
    if isinstance(value, (float, np.floating)):
        return "f:" + float(value).hex()
    if isinstance(value, str):
        return "s:" + repr(value)
    if isinstance(value, DType):
        return "t:" + value.name
    if isinstance(value, d.Expr):
        # with the bounds: two dims of one name and different ranges are different dims
        return "d:" + d.format_dim(value) + "".join(f";{s.name}:{s.lo}:{s.hi}" for s in sorted(value.symbols.values(), key=str))
    if isinstance(value, ArrayValue):
        return f"a:{value.dtype.name}:{value.shape}:{hashlib.sha256(value.data).hexdigest()}"
    if isinstance(value, d.HoldsDims):
        return value.encoded
    if isinstance(value, tuple):
        return encode_attribute(tuple(value))
    raise TypeError(f"an attribute of type {type(value).__name__} has no encoding: {value!r}")


class Node(TensorOperators):
    """One application of an op. It is made by `apply`, not by a constructor; hash-consing makes equal nodes one object."""

    __slots__ = ("__weakref__", "_digest", "attrs", "inputs", "key", "location", "op", "types")

    op: Op
    inputs: tuple[Node, ...]
    attrs: Mapping[str, Any]
    types: tuple[TensorType, ...]
    location: Location | None
    key: tuple[Any, ...]
    _digest: str | None

    @property
    def digest(self) -> str:
        """A hash of the node and all that it depends on, the same in every process; computed when first read, as most never are."""
        if self._digest is not None:
            return self._digest
        todo = [self]                                   # a stack of our own, so depth is no limit
        while todo:
            node = todo[-1]
            unnamed = [i for i in node.inputs if i._digest is None]
            if unnamed:
                todo += unnamed
                continue
            node._digest = digest = hashlib.sha256("".join([node.said, *[i.digest for i in node.inputs]]).encode()).hexdigest()
            todo.pop()
        return digest

    @property
    def said(self) -> str:
        """The text that the node itself adds to the input of its digest; the digests of its operands follow."""
        return f"{self.op.kind}|{self.op.name}|{self.op.identity(self)}|{self.key[2]}|{'|'.join(map(str, self.types))}"

    @property
    def type(self) -> TensorType:
        """The type of the only output; an output of a node with several is taken by `item`."""
        if len(self.types) != 1:
            raise TypeError(f"{self.op.name} has {len(self.types)} outputs; take one with item(node, index)")
        return self.types[0]

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def rank(self) -> int:
        return len(self.shape)

    def is_op(self, name: str) -> bool:
        return self.op.name == name

    def __copy__(self) -> Node:
        return self

    def __deepcopy__(self, memo: object) -> Node:
        """Return the node itself: equal nodes are one object."""
        return self

    def __repr__(self) -> str:
        return f"<{self.op.name} {', '.join(map(str, self.types))}{f' at {self.location}' if self.location else ''}>"

    __hash__ = object.__hash__  # identity: hash-consing makes equal nodes the same object


_table: weakref.WeakValueDictionary[tuple[Any, ...], Node] = weakref.WeakValueDictionary()
_lock = threading.RLock()


def apply(op: Op, inputs: Sequence[Node], attrs: Mapping[str, Any] | None = None) -> Node:
    """Return the node for `op` on `inputs`: a new one, or the existing one with the same op, operands and attributes.

    Raises what `op.infer` raises.
    """
    attrs = dict(sorted(attrs.items())) if attrs else {}
    key = (op, tuple(map(id, inputs)), tuple([(k, encode_attribute(v)) for k, v in attrs.items()]))
    with _lock:
        existing = _table.get(key)
        if existing is not None:
            return existing
    types = op.infer(inputs, attrs)
    node = object.__new__(Node)
    node.op, node.inputs, node.attrs, node.types = op, tuple(inputs), attrs, types
    node.location, node.key, node._digest = where_written(), key, None
    with _lock:
        return _table.setdefault(key, node)


def is_step(node: Node) -> bool:
    """Return True if a node computes something when a graph is run: no leaf, no view, no item of another node."""
    return node.op.kind in ("atomic", "composite") and not node.op.facts.view


def walk(outputs: Iterable[Node]) -> list[Node]:
    """Return every node that the outputs need, operands before users, each once. It is iterative, so graphs may have any depth."""
    order: list[Node] = []
    seen: set[Node] = set()
    for root in outputs:
        stack: list[tuple[Node, Iterator[Node]]] = []
        if root not in seen:
            seen.add(root)
            stack.append((root, iter(root.inputs)))
        while stack:
            node, rest = stack[-1]
            for i in rest:
                if i not in seen:
                    seen.add(i)
                    stack.append((i, iter(i.inputs)))
                    break
            else:
                order.append(node)
                stack.pop()
    return order


def alike(order: Iterable[Node]) -> dict[Node, Node]:
    """Return node -> the first node with the same op and attributes, apart from names of leaves, on operands of the same types.
    order: operands before users. A result that depends on nothing else is computed once for all of them, such as equal layers."""
    representatives: dict[Node, Node] = {}
    firsts: dict[tuple[Any, ...], Node] = {}
    typed: dict[tuple[TensorType, ...], int] = {}
    number: dict[Node, int] = {}                        # of the types of a node's outputs
    for node in order:
        named = node.op.kind == "leaf" and "name" in node.attrs
        key = (node.op, node.types) if named else (node.op, node.key[2], *[number[i] for i in node.inputs])
        representatives[node] = first = firsts.setdefault(key, node)
        number[node] = typed.setdefault(node.types, len(typed)) if first is node else number[first]
    return representatives


def rebuild(outputs: Sequence[Node], replace: Callable[[Node, tuple[Node, ...]], Node | None]) -> list[Node]:
    """Return the outputs with every node, operands first, replaced by `replace(node, new_inputs)`; None keeps it (on new operands).

    A node made in place of another gets its location.
    """
    new: dict[Node, Node] = {}
    for node in walk(outputs):
        inputs = tuple(new[i] for i in node.inputs)
        with written_at(node.location):
            result = replace(node, inputs)
            if result is None:
                same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
                result = node if same else apply(node.op, inputs, node.attrs)
        new[node] = result
    return [new[o] for o in outputs]


def consumers(outputs: Sequence[Node]) -> dict[Node, list[Node]]:
    """Return the users of each node, repeated for repeated operands."""
    users: dict[Node, list[Node]] = {}
    for node in walk(outputs):
        users.setdefault(node, [])
        for i in node.inputs:
            users[i].append(node)
    return users
