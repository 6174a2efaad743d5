"""defined_ops: composites that are not in the library; a file contains their definitions.

A composite of the library is identified by its name. Any other is written with its definition, as `name#digest`. On reading, the
process's op of that name and digest is used if there is one; else an op is made from the written definition.
"""

from __future__ import annotations

import hashlib
import itertools
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tensor_graphs.language import dims as d
from tensor_graphs.language.composite import LIBRARY, CompositeOp, Definition, definition_digest
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.errors import LanguageError
from tensor_graphs.language.graph import replace_dims
from tensor_graphs.language.node import Node, TensorType, encode_attribute, walk
from tensor_graphs.language.subgraph import NAME, Body

DIGEST_LENGTH = 12
"""number of hexadecimal digits of the digest in a written name"""

_user_ops: weakref.WeakValueDictionary[tuple[str, str], CompositeOp] = weakref.WeakValueDictionary()


def is_library(op: CompositeOp) -> bool:
    return LIBRARY.get(op.name) is op


def written_name(node: Node) -> str:
    """Return the name under which a user composite's node is written: `name#digest`. The op is remembered for reading it back."""
    assert isinstance(node.op, CompositeOp)
    digest = _written_digest(node.op.identity(node), [i.type for i in node.inputs])
    _user_ops[node.op.name, digest] = node.op
    return f"{node.op.name}#{digest}"


def written_body_name(body: Body) -> str:
    """Return the name under which a body is written."""
    return f"{NAME}#{_written_digest(body.definition.digest, body.types)}"


def _written_digest(definition: str, types: Sequence[TensorType]) -> str:
    """Return the digest of a definition's digest and all operand types; the former does not cover operands that are not read."""
    return hashlib.sha256("|".join([definition, *map(str, types)]).encode()).hexdigest()[:DIGEST_LENGTH]


MAX_DEPTH = 64
"""limit on the nesting of definitions; each level takes several of Python's stack frames"""


class DefinedOp(CompositeOp):
    """A composite read from a file: its definition is a graph over operands of the written types (dims may be renamed).

    printed: True if it was written from a composite, so that its calls name attributes; else it has no attributes.
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
        """Return the written definition, its dims renamed to those of `types` and `attrs`. Raises LanguageError for other types."""
        if self._attrs is None and list(types) == self._types:
            self._attrs = dict(attrs)
        key = (tuple(types), tuple((k, encode_attribute(v)) for k, v in sorted(attrs.items())))
        definition = self._made.get(key)
        if definition is None:
            definition = self._made[key] = self._renamed(types, attrs)
        return definition

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
                            f"the operands are {', '.join(map(str, types)) or 'none'}",
                            fix="operands of those types, or another definition")


def _pairs(old: Any, new: Any) -> Iterator[tuple[d.Expr, Dim]]:
    """Yield (expression, its counterpart) from two values of the same structure; parts of `old` without dims are not compared."""
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
    """Return True if the renaming turns the first of every pair into the second; False where a dim leaves its range."""
    try:
        return all(d.substitute(old, mapping) == new for old, new in pairs)
    except d.DimError:
        return False


def _renamings(pairs: Sequence[tuple[d.Expr, Dim]]) -> Iterator[dict[str, Dim]]:
    """Yield renamings of symbols that turn the first of every pair into the second; usually one, and {} for no change."""
    renamed: dict[str, Dim] = {}
    for old, new in pairs:
        if d.symbols(old) == (old,) and renamed.setdefault(str(old), new) != new:
            return
    names = sorted({str(s) for old, _ in pairs for s in d.symbols(old)} - set(renamed))
    free = sorted({s for _, new in pairs for s in d.symbols(new)} - set(renamed.values()), key=str)
    for chosen in itertools.islice(itertools.permutations(free, len(names)), 1000):
        mapping = renamed | dict(zip(names, chosen, strict=True))
        if _becomes(pairs, mapping):
            yield {} if all(old == new for old, new in pairs) else mapping


def defined_op(name: str, digest: str, arguments: Sequence[Node], outputs: Sequence[Node]) -> CompositeOp:
    """Return the composite `name#digest` with this definition; without a digest, a composite that only the file defines.

    Raises LanguageError when the definition has another digest: it was changed and its name was not.
    """
    actual = _written_digest(definition_digest(outputs), [a.type for a in arguments])
    if digest and actual != digest:
        raise LanguageError(f"the definition named {name}#{digest} has the digest {actual}, so it is not the one that was printed",
                            fix=f"name it {name}, and leave the digest away where it is called too, if the change is meant")
    key = (name, actual if digest else f"{actual} as written")
    op = _user_ops.get(key)
    if op is None:
        op = _user_ops[key] = DefinedOp(name, arguments, outputs, printed=bool(digest))
    return op
