"""candidate: a piece of a graph with equivalents found by rules. find_recipes.py finds them, recipe_rows.py files them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensor_graphs.language import leaves
from tensor_graphs.language.anonymous_composite import over
from tensor_graphs.language.errors import LanguageError
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node


@dataclass(frozen=True, eq=False)
class Other:
    """An equivalent of an offer's outputs, with the rules and derivation that lead to it."""

    outputs: tuple[Node, ...]
    rules: tuple[str, ...]
    derivation: str
    numeric_class: str


@dataclass(frozen=True, eq=False)
class Offer:
    """A piece of a graph between operands and outputs, with equivalents of it. stands: an equivalent contains the piece's nodes as
    definitions of composites, so it replaces the piece in the graph."""

    operands: tuple[Node, ...]
    outputs: tuple[Node, ...]
    inside: frozenset[Node]
    others: tuple[Other, ...]
    stands: bool = False

    def alone(self, outputs: Sequence[Node]) -> Graph | None:
        """Return the outputs as a graph whose inputs are the operands; None if they read any other leaf."""
        inputs = [leaves.input(f"x{i}", o.shape, o.dtype) for i, o in enumerate(self.operands)]
        try:
            return make_graph(over(outputs, self.operands, inputs))
        except LanguageError:
            return None
