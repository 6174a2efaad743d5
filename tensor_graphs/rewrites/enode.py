"""enode: one application of an op on e-classes, and the attribute keys by which applications are compared.

A term is an application of an op on other terms, as it was written, for proofs. An op with several outputs has one e-node for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensor_graphs.language.node import Op, encode_attribute

AttributeKey = tuple[tuple[str, str], ...]
Key = tuple[Op, AttributeKey, tuple[int, ...], int]


@dataclass(frozen=True, slots=True, eq=False)
class ENode:
    """One output of an op on children (numbers of e-classes; in a term, of terms). `term`: the term from which the e-node came."""

    op: Op
    attrs: Mapping[str, Any]
    attrs_key: AttributeKey
    children: tuple[int, ...]
    output: int
    term: int

    @property
    def key(self) -> Key:
        return (self.op, self.attrs_key, self.children, self.output)


def attribute_key(attrs: Mapping[str, Any]) -> AttributeKey:
    """Return the attributes as strings, sorted by name; different values give different strings."""
    return tuple((name, encode_attribute(attrs[name])) for name in sorted(attrs))


def is_commutative(op: Op) -> bool:
    return bool(getattr(op, "commutative", False))
