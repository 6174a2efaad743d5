"""graphs: functions shared by the verbs that take `FILE.tg|MODEL`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tensor_graphs.cli import option_groups, options
from tensor_graphs.errors import close_to
from tensor_graphs.language.dims import clamp
from tensor_graphs.language.graph import Graph
from tensor_graphs.phase_times import IMPORT, phase

STEP = {"n": 1, "m": 1, "p": 256}
"""sizes at which a decoder's cost is estimated: one new token after 256"""


def graph_of(source: str, dtypes: option_groups.SourceOptions, max_positions: int | None, greedy: bool = True) -> Graph:
    """Return the graph of a .tg file, a model folder or file, or a built-in shape. greedy: for a decoder, that of the likeliest
    tokens, which `tg run` uses by default; else the graph with all logits. Raises UsageError for options of another kind."""
    with phase(IMPORT):
        from tensor_graphs.frontends.huggingface.load import BUILTIN, model_graph

    if dtypes.dims is not None and not options.is_onnx(source):
        raise options.UsageError(f"--dims {dtypes.dims} is for .onnx files, and {source} is none\n  fix: leave it out")
    if is_model(source) or source in BUILTIN:
        return model_graph(source, dtype=dtypes.dtype, activations=dtypes.activations, max_positions=max_positions,
                           greedy=greedy)
    for option, dtype in (("--dtype", dtypes.dtype), ("--activations", dtypes.activations)):
        if dtype is not None:
            raise options.UsageError(f"{option} {dtype} is for a model, and {source} is a graph, which has its dtypes\n"
                                     "  fix: leave it out")
    near = close_to(source, BUILTIN)
    if near and not Path(source).exists():
        raise options.NotPossible(f"there is no file, folder or built-in shape {source!r}\n  fix: did you mean {near[0]}?")
    return options.read_graph(source, dtypes.dims)


def is_model(source: str) -> bool:
    """Return True for a model folder or a GGUF file."""
    from tensor_graphs.frontends.gguf.model import is_gguf

    return (Path(source).is_dir() and not options.is_onnx(source)) or is_gguf(source)


def typical(graph: Graph, at: str | None) -> dict[str, int]:
    """Return the sizes of --at; for a decoder (dims n, m, p), sizes not given there are those of one new token after 256."""
    sizes = options.sizes(at, graph)
    return {**within(graph, STEP), **sizes} if graph.dims.keys() == STEP.keys() else sizes


def within(graph: Graph, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return `sizes` clamped to the ranges of the graph's dims."""
    return {name: clamp(size, graph.dims[name]) for name, size in sizes.items()}
