"""graphs: what verbs that take `FILE.tg|MODEL` share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tensor_graphs.cli import groups, options
from tensor_graphs.errors import close_to
from tensor_graphs.language.dims import clamp
from tensor_graphs.language.graph import Graph
from tensor_graphs.phases import IMPORT, phase

STEP = {"n": 1, "m": 1, "p": 256}
"""sizes for which a decoder's cost is estimated: one token, in the midst of a text"""


def graph_of(source: str, dtypes: groups.Dtypes, max_positions: int | None, greedy: bool = True) -> Graph:
    """The graph of a .tg file, a model folder or a built-in shape; of a decoder the greedy one, which `tg run` runs by default, or
    the one with all logits."""
    with phase(IMPORT):
        from tensor_graphs.frontends.huggingface.load import BUILTIN, model_graph

    if Path(source).is_dir() or source in BUILTIN:
        return model_graph(source, dtype=dtypes.dtype, activations=dtypes.activations, max_positions=max_positions,
                           greedy=greedy)
    near = close_to(source, BUILTIN)
    if near and not Path(source).exists():
        raise options.NotPossible(f"there is no file, folder or built-in shape {source!r}\n  fix: did you mean {near[0]}?")
    return options.read_graph(source)


def typical(graph: Graph, at: str | None) -> dict[str, int]:
    """--at, or for a decoder (dims n, m, p) one new token behind 256."""
    sizes = options.sizes(at, graph)
    return {**within(graph, STEP), **sizes} if graph.dims.keys() == STEP.keys() else sizes


def within(graph: Graph, sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes that suit most models, each as near as the range of the graph's dim lets it be."""
    return {name: clamp(size, graph.dims[name]) for name, size in sizes.items()}
