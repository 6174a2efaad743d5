"""written_ops: how the ops that a file names are found and applied. What the text form and the JSON form have in common.

A composite of the library is known by its name. Any other is written with its definition, as `name#digest`: where the process
has that very op, it is used; else an op is made that has the written definition, so that a graph means the same everywhere.
"""

from __future__ import annotations

import hashlib
import itertools
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.atomic import ATOMIC, AtomicOp
from tensor_graphs.language.composite import LIBRARY, CompositeOp, Definition, definition_digest
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.errors import AttributeValueError, LanguageError
from tensor_graphs.language.graph import replace_dims
from tensor_graphs.language.leaves import _shape
from tensor_graphs.language.node import ArrayValue, Node, Op, TensorType, apply, encode_attribute, walk

DIGEST_LENGTH = 12
"""hexadecimal digits of the digest in a written name"""

_user_ops: weakref.WeakValueDictionary[tuple[str, str], CompositeOp] = weakref.WeakValueDictionary()


def is_library(op: CompositeOp) -> bool:
    return LIBRARY.get(op.name) is op


def written_name(node: Node) -> str:
    """The name under which a user composite's node is written: `name#digest`; the op is kept for reading it back."""
    assert isinstance(node.op, CompositeOp)
    digest = _written_digest(node.op.identity(node), [i.type for i in node.inputs])
    _user_ops[node.op.name, digest] = node.op
    return f"{node.op.name}#{digest}"


def _written_digest(definition: str, types: Sequence[TensorType]) -> str:
    """Of the definition and of all operand types: those that the definition does not read are not in its own digest."""
    text = "|".join([definition, *map(str, types)])
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def find_op(name: str) -> Op | None:
    """The op that has this name in every process: atomic, of the library, or copy_to."""
    return leaves.COPY_TO if name == leaves.COPY_TO.name else ATOMIC.get(name) or LIBRARY.get(name)


# ---- composites that are written with their definition --------------------------------------------------------------------------


MAX_DEPTH = 64
"""definitions inside of one another; each level takes several of Python's stack frames"""


class DefinedOp(CompositeOp):
    """A composite read from a file: its definition is a graph, for operands of the written types (dims may be renamed).

    printed: it stands for a composite whose attributes its calls still name; else it has none.
    """

    def __init__(self, name: str, arguments: Sequence[Node], outputs: Sequence[Node], printed: bool) -> None:
        super().__init__(lambda *xs: tuple(xs), name=name)
        self.printed = printed
        self.depth: int = 1 + max((n.op.depth for n in walk(outputs) if isinstance(n.op, DefinedOp)), default=0)
        if self.depth > MAX_DEPTH:
            raise LanguageError(f"the definition of {name} uses others, and these others, {self.depth} levels deep",
                                fix=f"at most {MAX_DEPTH} levels: write the innermost ones out")
        self.written = Definition(tuple(arguments), tuple(outputs), definition_digest(outputs))
        self._types = [a.type for a in arguments]
        self._attrs: Mapping[str, Any] | None = None                # those of the first call with the written types
        self._made: dict[tuple[Any, ...], Definition] = {}

    def define(self, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Definition:
        """The written definition, its dims renamed to those of `types` and `attrs`. Raises LanguageError for other types."""
        if self._attrs is None and list(types) == self._types:
            self._attrs = dict(attrs)
        key = (tuple(types), tuple((k, encode_attribute(v)) for k, v in sorted(attrs.items())))
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._renamed(types, attrs)
        return found

    def _renamed(self, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Definition:
        pairs = list(_pairs([t.shape for t in self._types], [t.shape for t in types])) if len(types) == len(self._types) else None
        if pairs is not None and all(a.dtype == b.dtype for a, b in zip(self._types, types, strict=True)):
            for mapping in _renamings([*pairs, *_pairs(dict(self._attrs or {}), dict(attrs))]):
                if not mapping:
                    if list(types) == self._types:
                        return self.written
                    continue
                new = replace_dims([*self.written.arguments, *self.written.outputs], mapping)
                count = len(self._types)
                if [a.type for a in new[:count]] == list(types):
                    return Definition(tuple(new[:count]), tuple(new[count:]), definition_digest(new[count:]))
        raise LanguageError(f"{self.name} was written for {', '.join(map(str, self._types))}, "
                            f"the operands are {', '.join(map(str, types)) or 'none'}")


def _pairs(old: Any, new: Any) -> Iterator[tuple[d.Expr, Dim]]:
    """(expression, what stands in its place), from two values of one structure; what has no dim in it is not compared."""
    if isinstance(old, d.Expr):
        if isinstance(new, (int, d.Expr)):
            yield old, new
    elif isinstance(old, Mapping):
        for k, v in old.items():
            yield from _pairs(v, new.get(k))
    elif isinstance(old, (tuple, list)) and isinstance(new, (tuple, list)):
        for a, b in zip(old, new, strict=False):
            yield from _pairs(a, b)


def _becomes(pairs: Sequence[tuple[d.Expr, Dim]], mapping: Mapping[str, Dim]) -> bool:
    """Whether every first is its second under a renaming; not where a dim's range is no part of the other's."""
    try:
        return all(d.substitute(old, mapping) == new for old, new in pairs)
    except d.DimError:
        return False


def _renamings(pairs: Sequence[tuple[d.Expr, Dim]]) -> Iterator[dict[str, Dim]]:
    """What each symbol may have become so that every first is its second: at most a few, usually one; {} when nothing changed."""
    known: dict[str, Dim] = {}
    for old, new in pairs:
        if d.symbols(old) == (old,) and known.setdefault(str(old), new) != new:
            return
    names = sorted({str(s) for old, _ in pairs for s in d.symbols(old)} - set(known))
    free = sorted({s for _, new in pairs for s in d.symbols(new)} - set(known.values()), key=str)
    for chosen in itertools.islice(itertools.permutations(free, len(names)), 1000):
        mapping = known | dict(zip(names, chosen, strict=True))
        if _becomes(pairs, mapping):
            yield {} if all(old == new for old, new in pairs) else mapping


def defined_op(name: str, digest: str, arguments: Sequence[Node], outputs: Sequence[Node]) -> CompositeOp:
    """The composite `name#digest`, of this definition; without a digest, one that only files define.

    Raises LanguageError when the definition has another digest: it was changed and its name was not.
    """
    found = _written_digest(definition_digest(outputs), [a.type for a in arguments])
    if digest and found != digest:
        raise LanguageError(f"the definition named {name}#{digest} has the digest {found}, so it is not the one that was printed",
                            fix=f"name it {name}, and leave the digest away where it is called too, if the change is meant")
    key = (name, found if digest else f"{found} as written")
    op = _user_ops.get(key)
    if op is None:
        op = _user_ops[key] = DefinedOp(name, arguments, outputs, printed=bool(digest))
    return op


# ---- calls ----------------------------------------------------------------------------------------------------------------------


def apply_written(op: Op, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> Node:
    """The node that a file says: op, operands, every attribute. Raises a LanguageError for what no builder would have made."""
    for node in inputs:
        if len(node.types) != 1:
            if op is not leaves.ITEM:
                raise LanguageError(f"an operand of {op.name} is {node.op.name}, which has {len(node.types)} outputs")
    if isinstance(op, AtomicOp):
        return apply(op, inputs, _atomic_attributes(op, inputs, attrs))
    if isinstance(op, CompositeOp):
        if not isinstance(op, DefinedOp):
            _check_call(op, inputs, attrs)
        elif attrs and not op.printed:
            raise AttributeValueError(f"{op.name} has no attributes, got {', '.join(attrs)}",
                                      fix="write the values into its definition")
        return apply(op, inputs, attrs)
    return _structural(op, inputs, attrs)


def _check_call(op: CompositeOp, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> None:
    absent = attrs.get("absent", ())
    if not isinstance(absent, tuple) or not set(absent) <= op.optional:
        raise AttributeValueError(f"{op.name}: absent is {absent!r}",
                                  fix=f"a tuple of {', '.join(sorted(op.optional)) or 'nothing'}")
    if set(attrs) - {"absent"} != set(op.attributes):
        raise AttributeValueError(f"{op.name} has the attributes {op.attributes}, got {tuple(k for k in attrs if k != 'absent')}")
    count = len(op.operands) - len(absent)
    if len(inputs) < count or (len(inputs) > count and not op.variadic):
        raise LanguageError(f"{op.name} takes {count} operands here, got {len(inputs)}")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_dim(value: Any) -> bool:
    return _is_int(value) or isinstance(value, d.Expr)


def _tuple_of(check: Any, length: int | None = None) -> Any:
    return lambda v: isinstance(v, tuple) and (length is None or len(v) == length) and all(map(check, v))


_ATTRIBUTES: dict[str, tuple[Any, str]] = {
    "axis": (_is_int, "an int"),
    "axes": (_tuple_of(_is_int), "a tuple of ints"),
    "dtype": (lambda v: isinstance(v, DType), "a dtype"),
    "shape": (_tuple_of(_is_dim), "a tuple of sizes"),
    "padding": (_tuple_of(_tuple_of(_is_dim, 2)), "a tuple of pairs (before, after)"),
    "value": (lambda v: isinstance(v, (bool, int, float)), "a number"),
    "bounds": (lambda v: _tuple_of(_tuple_of(_is_dim, 3))(v) and all(_is_int(b[2]) for b in v), "a tuple of (start, stop, step)"),
    "mode": (lambda v: isinstance(v, str), "a string"),
}
"""What each attribute of an atomic op may be, and the words for it. A test holds it to the op table."""


def _atomic_attributes(op: AtomicOp, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(attrs)
    for name, value in attrs.items():
        if name not in op.attributes:
            continue                                                # infer lists those that there are
        check, words = _ATTRIBUTES[name]
        if not check(value):
            raise AttributeValueError(f"{op.name}: {name} is {value!r}, {words} is needed")
        if name == "shape":
            made[name] = _shape(value)
        if name == "value" and inputs:
            made[name] = leaves.constant(value, inputs[0].dtype).attrs["value"]
    return made


_LEAF_ATTRIBUTES = {leaves.CONSTANT: {"value", "shape", "dtype"}, leaves.ARGUMENT: {"index", "shape", "dtype"},
                    leaves.ITEM: {"index"}, leaves.COPY_TO: {"device"}}


def _structural(op: Op, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> Node:
    wanted = _LEAF_ATTRIBUTES.get(op, {"name", "shape", "dtype"})
    if set(attrs) != wanted:
        raise AttributeValueError(f"{op.name} has the attributes {tuple(sorted(wanted))}, got {tuple(attrs)}")
    count = 1 if op in (leaves.ITEM, leaves.COPY_TO) else 0
    if len(inputs) != count:
        raise LanguageError(f"{op.name} takes {count} operands, got {len(inputs)}")
    if op is leaves.COPY_TO:
        return leaves.copy_to(inputs[0], attrs["device"])
    if "index" in attrs and (not _is_int(attrs["index"]) or attrs["index"] < 0):
        raise AttributeValueError(f"{op.name}: index is {attrs['index']!r}, an int ≥ 0 is needed")
    if op is leaves.ITEM:
        return leaves.item(inputs[0], attrs["index"])
    shape, dtype = attrs["shape"], attrs["dtype"]
    if not _tuple_of(_is_dim)(shape) or not isinstance(dtype, DType):
        raise AttributeValueError(f"{op.name}: the type is {dtype!r}, {shape!r}; a dtype and a tuple of sizes are needed")
    if op is leaves.ARGUMENT:
        return leaves.argument(attrs["index"], TensorType(_shape(shape), dtype))
    if op is leaves.CONSTANT:
        return written_constant(attrs["value"], TensorType(shape, dtype))
    if op is leaves.STATE:
        return leaves.state(attrs["name"], shape, dtype).node
    return (leaves.input if op is leaves.INPUT else leaves.parameter)(attrs["name"], shape, dtype)


def written_constant(value: Any, t: TensorType) -> Node:
    """A constant as it was written: a number or a dim with shape (), or an array that has this very type."""
    if isinstance(value, ArrayValue):
        if (value.shape, value.dtype) != (t.shape, t.dtype):
            raise AttributeValueError(f"the constant is {t}, its array is {value.dtype.name}{list(value.shape)}")
        return apply(leaves.CONSTANT, (), {"value": value, "shape": value.shape, "dtype": value.dtype})
    if not isinstance(value, (bool, int, float, d.Expr)) or t.shape:
        raise AttributeValueError(f"a constant of type {t} cannot be {value!r}", fix="a number, a dim, or an array of that type")
    return leaves.constant(value, t.dtype)
