"""graph_forms: types for the forms in which a graph is compiled: prepared (prepare.py), and with words for its precision
(precision_forms.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.precision import KINDS, WRITTEN

SEVERAL = 3
"""sites of one kind and word that are named; of more their number is"""


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
class GraphForm:
    """A graph in one form. graph: the one to run. words: site or pattern -> dtype (meaning/precision.py), {} as written. why: a
    readable reason. written: the graph as written, where the one to run differs. images: replacements of its nodes."""

    graph: Graph
    words: Mapping[str, str]
    why: str
    written: Graph | None = None
    images: Mapping[Node, Node] = field(default_factory=dict, repr=False, compare=False)

    @property
    def text(self) -> str:
        """The words and the reason, for people."""
        return f"{words_text(self.words)}, {self.why}"


def as_written(graph: Graph) -> GraphForm:
    """Return the graph unchanged."""
    return GraphForm(graph, {}, "nothing narrower than the graph says")


def words_text(words: Mapping[str, str]) -> str:
    """Return a form's words for people: "as written", "f32" (all of it), "between f32 · product:layers.3.* bf16", or with more than
    SEVERAL sites of one kind and word "product bf16 × 18"."""
    if set(words) == set(KINDS) and len(set(words.values())) == 1:
        return "as written" if WRITTEN in words.values() else words["between"]
    alike: dict[tuple[str, str], list[str]] = {}
    for site, word in words.items():
        alike.setdefault((site.partition(":")[0], word), []).append(site)
    parts = [[f"{kind} {word} × {len(of)}"] if len(of) > SEVERAL else [f"{site} {word}" for site in of]
             for (kind, word), of in alike.items()]
    return " · ".join(part for of in parts for part in of) or "as written"


def following(first: Mapping[Node, Node], second: Mapping[Node, Node]) -> dict[Node, Node]:
    """Compose the images of two consecutive passes, for the nodes given to either of them."""
    return {**second, **{n: second.get(image, image) for n, image in first.items()}}
