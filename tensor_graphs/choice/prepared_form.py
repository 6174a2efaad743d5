"""prepared_form: the forms in which a graph is compiled: prepared (prepare.py), and with which values between its ops
(intermediates.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node

WIDER: tuple[Literal["float32", "float64"], ...] = ("float32", "float64")
"""the words for wider intermediates, the narrower ones first"""

NARROWER: Literal["bfloat16"] = "bfloat16"
"""the word for products by parameters of bf16 that are made of such values"""

REWRITTEN: tuple[Literal["bfloat16", "float32", "float64"], ...] = (NARROWER, *WIDER)
"""the words for which the graph is rewritten"""


@dataclass(frozen=True)
class PreparedGraph:
    """The graph to compile, and what was done to the written one, for people ("" where nothing was). parts: those formed.
    images: what a node of the graph as it was written, or as it was before parts were formed, has become, where that is another
    one; a node whose value is no longer computed has none."""

    graph: Graph
    note: str = ""
    parts: str = ""
    images: Mapping[Node, Node] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Intermediates:
    """A decision on intermediates. graph: the one to run. predicted: relative error of the graph as it was written. why: for
    people.

    written: the graph as it was written, when the one to run is another. images: what became of nodes of the widened graph where
    parts were formed in it, and of those of the written one where it has pieces that are as they were written.
    """

    graph: Graph
    wide: bool
    predicted: float
    why: str
    written: Graph | None = None
    images: Mapping[Node, Node] = field(default_factory=dict, repr=False, compare=False)
