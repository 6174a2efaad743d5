"""graph_forms: types for the forms in which a graph is compiled: prepared (prepare.py), and with intermediates of some dtype
(intermediate_dtypes.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node

WIDER: tuple[Literal["float32", "float64"], ...] = ("float32", "float64")
"""names of the options for wider intermediates, the narrower first"""

NARROWER: Literal["bfloat16"] = "bfloat16"
"""name of the option for products of bf16 values with bf16 parameters"""

REWRITTEN: tuple[Literal["bfloat16", "float32", "float64"], ...] = (NARROWER, *WIDER)
"""names of the options for which the graph is rewritten"""


@dataclass(frozen=True)
class PreparedGraph:
    """The graph to compile. note: a text on what was changed in the written graph ("" for nothing). parts: a text on the parts
    formed. images: for each changed node, of the written graph or of the graph before parts were formed, its replacement; a node
    whose value is no longer computed has none."""

    graph: Graph
    note: str = ""
    parts: str = ""
    images: Mapping[Node, Node] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Intermediates:
    """A decision on intermediates. graph: the one to run. why: a readable reason.

    written: the graph as written, where the one to run differs. images: replacements of nodes of the widened graph where parts were
    formed in it, and of nodes of the written graph where pieces of it stay unchanged."""

    graph: Graph
    wide: bool
    why: str
    written: Graph | None = None
    images: Mapping[Node, Node] = field(default_factory=dict, repr=False, compare=False)
