"""offer: a piece of a graph that rules say otherwise: found by reword.py, kept on file by recipe_file.py."""

from __future__ import annotations

from dataclasses import dataclass

from tensor_graphs.language.node import Node


@dataclass(frozen=True, eq=False)
class Other:
    """The outputs of an offer, said otherwise."""

    outputs: tuple[Node, ...]
    rules: tuple[str, ...]
    derivation: str
    numeric_class: str


@dataclass(frozen=True, eq=False)
class Offer:
    """A piece of a graph, between operands and outputs, and what else says the same of those operands."""

    operands: tuple[Node, ...]
    outputs: tuple[Node, ...]
    inside: frozenset[Node]
    others: tuple[Other, ...]
