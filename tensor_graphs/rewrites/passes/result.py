"""result: the type that every pass over an entire graph returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tensor_graphs.language.anonymous_composite import PartOp
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node
from tensor_graphs.rewrites.rule import BITWISE, LEVELS, NumericClass

PassClass = NumericClass | Literal["approximate"]
APPROXIMATE: PassClass = "approximate"
CLASSES: tuple[PassClass, ...] = (*LEVELS, APPROXIMATE)
"""Numeric classes of passes: those of rules, and approximate, where outputs are other real numbers."""


@dataclass(frozen=True)
class PassResult:
    """Result of a pass. graph: the new graph, or the very same graph if the pass changes nothing.

    images: node of the old graph -> node that computes its value now. A node that is absent is unchanged, or its value is no longer
    computed. note: what was done, for people; "" for nothing to report.
    """

    graph: Graph
    images: Mapping[Node, Node] = field(default_factory=dict, repr=False)
    numeric: PassClass = BITWISE
    note: str = ""

    def then(self, after: PassResult) -> PassResult:
        """Return the result of this pass and then `after`, which ran on its graph, with images of nodes of both old graphs."""
        images = {**after.images, **{n: after.images.get(image, image) for n, image in self.images.items()}}
        notes = "; ".join(note for note in (self.note, after.note) if note)
        return PassResult(after.graph, images, max(self.numeric, after.numeric, key=CLASSES.index), notes)


def count_parts(parts: Mapping[PartOp, int]) -> str:
    """Return the parts with their counts and recipes, for people; "" if there are none."""
    return "; ".join(f"{count} {op.name}" + (f": {', '.join(r.name for r in op.recipes)}" if op.recipes else "")
                     for op, count in parts.items())
