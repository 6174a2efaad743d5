"""graph_forms: types of the graphs that are compiled: PreparedGraph (prepare.py), and GraphForm, one whose words choose dtypes
(precision_forms.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.precision import KINDS, WRITTEN

SEVERAL = 3
"""most sites with one kind and word that a text lists by name; more are counted"""


@dataclass(frozen=True)
class PreparedGraph:
    """The graph to compile. note: text on the changes to the written graph ("" for none). parts: text on the parts that were
    formed. images: node -> its replacement, for changed nodes of the written graph and of the graph before parts were formed; a
    node whose value is no longer computed has none."""

    graph: Graph
    note: str = ""
    parts: str = ""
    images: Mapping[Node, Node] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class GraphForm:
    """A graph in one form. graph: the one to run. words: site or pattern -> dtype name (meaning/precision.py); {} means as written.
    why: the reason, for people. written: the graph as written, if `graph` differs. images: node of `written` -> its replacement."""

    graph: Graph
    words: Mapping[str, str]
    why: str
    written: Graph | None = None
    images: Mapping[Node, Node] = field(default_factory=dict, repr=False, compare=False)

    @property
    def text(self) -> str:
        """Text of the words and the reason, for people."""
        return f"{words_text(self.words)}, {self.why}"


def as_written(graph: Graph) -> GraphForm:
    """Return the form in which a graph is unchanged."""
    return GraphForm(graph, {}, "nothing narrower than the graph says")


def words_text(words: Mapping[str, str]) -> str:
    """Return the text of a form's words: "as written", "f32" (all sites), "between f32 · product:layers.3.* bf16", or for more than
    SEVERAL sites with one kind and word "product bf16 × 18"."""
    if set(words) == set(KINDS) and len(set(words.values())) == 1:
        return "as written" if WRITTEN in words.values() else words["between"]
    alike: dict[tuple[str, str], list[str]] = {}
    for site, word in words.items():
        alike.setdefault((site.partition(":")[0], word), []).append(site)
    texts = [[f"{kind} {word} × {len(names)}"] if len(names) > SEVERAL else [f"{site} {word}" for site in names]
             for (kind, word), names in alike.items()]
    return " · ".join(text for of_word in texts for text in of_word) or "as written"


def following(first: Mapping[Node, Node], second: Mapping[Node, Node]) -> dict[Node, Node]:
    """Compose the images of two consecutive passes: for the nodes that either pass replaced, their images after both."""
    return {**second, **{n: second.get(image, image) for n, image in first.items()}}
