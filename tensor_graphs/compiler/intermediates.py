"""intermediates: in which float dtype a graph's values are kept between its ops: as written, or wider for a tight tolerance.

A kernel's error is measured; how much a whole graph amplifies the rounding of its values is predicted (costs/rounding.py). Where
the prediction is beyond the tolerance, the graph is rewritten with float64 intermediates (rewrites/widen.py, decision 0006).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from tensor_graphs.compiler.request import Wanted
from tensor_graphs.costs.rounding import predicted_error
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node
from tensor_graphs.language.part import PartOp

WANTED: tuple[Wanted, ...] = ("auto", "as_written", "float64")


class IntermediatesError(TensorGraphsError):
    """Another word for the dtype of intermediates than those of WANTED."""


@dataclass(frozen=True)
class Intermediates:
    """What was decided. graph: the one to run. predicted: relative error of the graph as it was written. why: for people.

    written: the graph as it was written, when the one to run is another. images: what became of nodes of the widened graph where
    parts were formed in it.
    """

    graph: Graph
    wide: bool
    predicted: float
    why: str
    written: Graph | None = None
    images: Mapping[Node, Node] = field(default_factory=dict, repr=False, compare=False)


_worded: WeakKeyDictionary[Graph, tuple[Graph, Mapping[Node, Node]]] = WeakKeyDictionary()
"""graph -> the same with float64 intermediates, and the images of `Intermediates`"""


def _widened(graph: Graph, last_step: bool = False) -> Graph:
    """The graph with float64 between its ops, of their last steps too where asked for; itself where it holds no narrower float."""
    from tensor_graphs.rewrites.widen import widen  # a door: most graphs run as they are written

    return widen(graph, last_step=last_step)


def as_written(graph: Graph, why: str = "") -> Intermediates:
    """The graph as it is."""
    predicted = predicted_error(graph)
    return Intermediates(graph, False, predicted, why or f"as written, predicted error {predicted:.1e}")


def in_float64(graph: Graph, why: str = "asked for") -> Intermediates:
    """The graph with float64 intermediates; as it is, when it holds no narrower float. Parts are written out, as they are of the
    dtypes that were written; where some could be said otherwise, that is looked for again."""
    if graph not in _worded:
        wide = _widened(graph, last_step=True)
        images: Mapping[Node, Node] = {}
        if wide is not graph and any(isinstance(n.op, PartOp) and n.op.recipes for n in graph.nodes):
            from tensor_graphs.compiler.rewriting import said_otherwise

            wide, images = said_otherwise(wide)
        _worded[graph] = wide, images
    made, images = _worded[graph]
    return Intermediates(made, True, predicted_error(graph), f"float64, {why}", graph, images)


def decide(graph: Graph, tolerance: float, wanted: Wanted = "auto") -> Intermediates:
    """The graph to run within a tolerance. Raises IntermediatesError for another word than those of WANTED."""
    if wanted not in WANTED:
        raise IntermediatesError(f"intermediates are {wanted!r}\n  fix: one of {', '.join(WANTED)}")
    if wanted == "as_written":
        return as_written(graph)
    if wanted == "float64":
        return in_float64(graph)
    predicted = predicted_error(graph)
    if predicted <= tolerance or _widened(graph) is graph:
        return as_written(graph)
    return in_float64(graph, f"since rounding the values as they are written is predicted to cost {predicted:.1e}, beyond the "
                             f"tolerance {tolerance:.1e}")


def forms(graph: Graph, tolerance: float, wanted: Wanted = "auto") -> Iterator[Intermediates]:
    """The form that `decide` names; with "auto" then the other one, for when no path of the first is within the tolerance.

    Whoever lists, measures or compiles goes through this, so that all three speak of the same graph.
    """
    decided = decide(graph, tolerance, wanted)
    yield decided
    if wanted != "auto":
        return
    if decided.wide:
        yield as_written(graph, f"as written, since no path with float64 between the ops is within the tolerance {tolerance:.1e}; "
                                f"the predicted error {decided.predicted:.1e} is beyond it too")
    elif _widened(graph) is not graph:
        yield in_float64(graph, "since no path is accurate enough as the graph is written")
