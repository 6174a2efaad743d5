"""form: a graph as it is compiled, with which values between its ops, and the words for these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node

WIDER: tuple[Literal["float32", "float64"], ...] = ("float32", "float64")
"""how wider intermediates are called, the narrower ones first"""

NARROWER: Literal["bfloat16"] = "bfloat16"
"""the word for products by parameters of bf16 that are made of such values"""

REWRITTEN: tuple[Literal["bfloat16", "float32", "float64"], ...] = (NARROWER, *WIDER)
"""the words for which the graph is another one"""


@dataclass(frozen=True)
class Intermediates:
    """What was decided. graph: the one to run. predicted: relative error of the graph as it was written. why: for people.

    written: the graph as it was written, when the one to run is another. images: what became of nodes of the widened graph where
    parts were formed in it, and of those of the written one where it has pieces that are as they were written.
    """

    graph: Graph
    wide: bool
    predicted: float
    why: str
    written: Graph | None = None
    images: Mapping[Node, Node] = field(default_factory=dict, repr=False, compare=False)
