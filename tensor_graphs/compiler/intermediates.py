"""intermediates: in which float dtype a graph's values are kept between its ops: as written, wider for a tight tolerance, or,
where that is asked for, narrower in products.

A kernel's error is measured; how much a whole graph amplifies the rounding of its values is predicted (costs/rounding.py). Where
the prediction is beyond the tolerance, the graph is rewritten with wider intermediates (rewrites/widen.py): float32 where that is
wider and does, else float64 (decisions 0006 and 0044). Products of bfloat16 are never made by themselves (rewrites/narrow.py,
decision 0060).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from weakref import WeakKeyDictionary

from tensor_graphs.compiler.reach import check_reach
from tensor_graphs.compiler.request import Request, Wanted
from tensor_graphs.costs.rounding import predicted_error
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.registry import writes_kernels
from tensor_graphs.language.dtypes import parse_dtype
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node
from tensor_graphs.language.part import PartOp
from tensor_graphs.phases import phase

WIDER: tuple[Literal["float32", "float64"], ...] = ("float32", "float64")
"""how wider intermediates are called, the narrower ones first"""

NARROWER: Literal["bfloat16"] = "bfloat16"
"""the word for products by parameters of bf16 that are made of such values"""

REWRITTEN: tuple[Literal["bfloat16", "float32", "float64"], ...] = (NARROWER, *WIDER)
"""the words for which the graph is another one"""

WANTED: tuple[Wanted, ...] = ("auto", "as_written", *REWRITTEN)

NO_BETTER = 1.1
"""times the predicted error of float64 that float32 may have beyond the tolerance: what outputs are rounded to decides there"""


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


_worded: WeakKeyDictionary[Graph, dict[tuple[str, Sequence[str]], tuple[Graph, Mapping[Node, Node]]]] = WeakKeyDictionary()
"""graph -> the same with other intermediates (of which dtype, for which backends), and the images of `Intermediates`"""


def _widened(graph: Graph, word: str = WIDER[-1], last_step: bool = False) -> Graph:
    """The graph with wider values between its ops, of their last steps too where asked for, or with narrower products; itself where
    nothing of it changes."""
    if word == NARROWER:
        from tensor_graphs.rewrites.narrow import narrow  # a door, as the next one

        return narrow(graph)
    from tensor_graphs.rewrites.widen import widen  # a door: most graphs run as they are written

    return widen(graph, parse_dtype(word), last_step=last_step)


def as_written(graph: Graph, why: str = "", backends: Sequence[str] = ()) -> Intermediates:
    """The graph as it is."""
    predicted = predicted_error(graph, backends)
    return Intermediates(graph, False, predicted, why or f"as written, predicted error {predicted:.1e}")


@phase("prepare")
def rewritten(graph: Graph, word: str = "float64", why: str = "asked for", backends: Sequence[str] = ()) -> Intermediates:
    """The graph with intermediates of one of REWRITTEN; as it is, when none of it changes. Parts are written out, as they are
    of the dtypes that were written; where some could be said otherwise, and where a backend writes kernels for whatever it is
    given, new ones are formed."""
    fused, there = writes_kernels(backends), _worded.setdefault(graph, {})
    key = word, tuple(backends)
    if key not in there:
        wide = _widened(graph, word, last_step=True)
        images: Mapping[Node, Node] = {}
        recipes = any(isinstance(n.op, PartOp) and n.op.recipes for n in graph.nodes)
        if wide is not graph and (recipes or fused):
            from tensor_graphs.compiler.rewriting import said_anew

            wide, images = said_anew(wide, recipes, fused, backends)
        there[key] = wide, images
    made, images = there[key]
    return Intermediates(made, True, predicted_error(graph, backends), f"{word}, {why}", graph, images)


@phase("prepare")
def decide(graph: Graph, tolerance: float, wanted: Wanted = "auto", backends: Sequence[str] = ()) -> Intermediates:
    """The graph to run within a tolerance. Raises IntermediatesError for another word than those of WANTED."""
    if wanted not in WANTED:
        raise IntermediatesError(f"intermediates are {wanted!r}\n  fix: one of {', '.join(WANTED)}")
    if wanted in REWRITTEN:
        return rewritten(graph, wanted, backends=backends)
    predicted = predicted_error(graph, backends)
    if wanted == "as_written" or predicted <= tolerance or _widened(graph) is graph:
        return as_written(graph, backends=backends)
    why = (f"since rounding the values as they are written is predicted to cost {predicted:.1e}, beyond the tolerance "
           f"{tolerance:.1e}")
    return rewritten(graph, _narrowest(graph, tolerance, backends), why, backends)


def _narrowest(graph: Graph, tolerance: float, backends: Sequence[str]) -> str:
    """The word for the narrowest intermediates with which the prediction is within the tolerance, or hardly above that of the
    widest."""
    *others, widest = WIDER
    for word in others:
        made = _widened(graph, word, last_step=True)
        if made is not graph:
            left = predicted_error(made, backends)
            if left <= tolerance or left <= NO_BETTER * predicted_error(_widened(graph, widest, last_step=True), backends):
                return word
    return widest


def forms(graph: Graph, request: Request) -> Iterator[Intermediates]:
    """The form of a request's graph, as it was prepared, that `decide` names; with "auto" then the other one, for when no path of
    the first is within the tolerance.

    Whoever lists, measures or compiles goes through this, so that all three speak of the same graph. Raises NoPathError for a
    tolerance that no form can meet.
    """
    tolerance, backends = request.allowed, request.here
    check_reach(graph, tolerance)
    decided = decide(graph, tolerance, request.intermediates, backends)
    yield decided
    if request.intermediates != "auto":
        return
    if decided.wide:
        yield as_written(graph, f"as written, since no path with wider values between the ops is within the tolerance "
                                f"{tolerance:.1e}; the predicted error {decided.predicted:.1e} is beyond it too", backends)
    elif _widened(graph) is not graph:
        yield rewritten(graph, why="since no path is accurate enough as the graph is written", backends=backends)
