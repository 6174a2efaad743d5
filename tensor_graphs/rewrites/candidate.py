"""candidate: a piece of a graph that rules say otherwise: found by find_recipes.py, filed by recipe_rows.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensor_graphs.language import leaves
from tensor_graphs.language.errors import LanguageError
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node
from tensor_graphs.language.part import over


@dataclass(frozen=True, eq=False)
class Other:
    """The outputs of an offer, said otherwise."""

    outputs: tuple[Node, ...]
    rules: tuple[str, ...]
    derivation: str
    numeric_class: str


@dataclass(frozen=True, eq=False)
class Offer:
    """A piece of a graph, between operands and outputs, with other wordings of it. stands: the other wording holds the piece's own
    as definitions, so it takes the piece's place."""

    operands: tuple[Node, ...]
    outputs: tuple[Node, ...]
    inside: frozenset[Node]
    others: tuple[Other, ...]
    stands: bool = False

    def alone(self, outputs: Sequence[Node]) -> Graph | None:
        """Return the outputs as a graph over the operands as inputs; None where they read anything else."""
        inputs = [leaves.input(f"x{i}", o.shape, o.dtype) for i, o in enumerate(self.operands)]
        try:
            return make_graph(over(outputs, self.operands, inputs))
        except LanguageError:
            return None
