"""graphs: what verbs that take `FILE.tg|MODEL` share."""

from __future__ import annotations

from pathlib import Path

from tensor_graphs.cli import options
from tensor_graphs.language.dims import bounds
from tensor_graphs.language.graph import Graph


def graph_of(source: str, dtype: str, max_positions: int | None) -> Graph:
    """The graph of a .tg file, a model folder or a built-in shape; of a decoder the greedy one, which `tg run` runs by default."""
    from tensor_graphs.frontends.huggingface import BUILTIN, model_graph

    if Path(source).is_dir() or source in BUILTIN:
        return model_graph(source, dtype=dtype, max_positions=max_positions, greedy=True)
    return options.read_graph(source)


def typical(graph: Graph, at: str | None) -> dict[str, int]:
    """--at, or for a decoder (dims n, m, p) one new token behind 256."""
    given = options.sizes(at, graph)
    if set(graph.dims) == {"n", "m", "p"}:
        return {"n": 1, "m": 1, "p": min(256, bounds(graph.dims["p"])[1]), **given}
    return given
