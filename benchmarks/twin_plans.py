"""Which kernel calls a model in atomic ops gets of those that the same model in composites has: `python benchmarks/twin_plans.py`.

For Gemma-3-270M and MiniLM at their true sizes (bf16 and f32 weights): steps before and after recognition, calls of the cheapest
path of the composite graph (unmeasured kernels at their guess), how many of them the atomic twin's cheapest path has, and seconds:
of writing out, of recognition, and of the glance that a graph in composites gets.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections import Counter
from tempfile import TemporaryDirectory

import tensor_graphs as tg
from tensor_graphs.choice.path_listing import list_paths
from tensor_graphs.models.bert import BertSpec, bert_graph
from tensor_graphs.models.gemma3 import Gemma3Spec, LayerKind, Output, Rope, gemma3_graph
from tensor_graphs.paths.path import EXPAND
from tensor_graphs.rewrites.passes.recognise import forms, recognise, steps, write_out


def gemma(layers: int, dtype: tg.DType = tg.bf16, output: Output = "logits") -> tg.Graph:
    """Gemma-3-270M cut to so many layers."""
    kinds: tuple[LayerKind, ...] = tuple("full" if i % 6 == 5 else "sliding" for i in range(layers))
    spec = Gemma3Spec(vocabulary=262144, hidden=640, ffn=2048, heads=4, kv_heads=1, head_dim=256, layers=kinds, window=512,
                      eps=1e-6, scale=256**-0.5, sliding_rope=Rope(1e4), full_rope=Rope(1e6))
    return gemma3_graph(spec, max_positions=4096, weight_dtype=dtype, output=output)


def minilm() -> tg.Graph:
    return bert_graph(BertSpec(vocabulary=30522, hidden=384, ffn=1536, layers=6, heads=12, positions=512, token_types=2, eps=1e-12,
                               normalise=True))


def calls(graph: tg.Graph, folder: str) -> Counter[str]:
    """Calls by kernel on the cheapest path."""
    path = next(list_paths(graph, database=f"{folder}/bench.db", backends=("c", "numpy")))
    return Counter({f"{name} {key}": path.calls[key] for key, name in path.choices.items() if name != EXPAND})


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    started = time.perf_counter()
    forms()
    print(f"definitions to look for: {time.perf_counter() - started:.2f} s, once")
    heads = " ".join(f"{h:>9}" for h in ("atoms", "recognised", "calls", "found", "share", "write s", "find s", "glance ms"))
    print(f"{'model':26} {heads}")
    models = {"MiniLM, 6 layers": minilm(), **{f"Gemma-3-270M, {n} layers": gemma(n) for n in (1, 2, 18)},
              "Gemma-3-270M, 18, f32": gemma(18, tg.f32), "Gemma-3-270M, 18, token": gemma(18, output="token")}
    with TemporaryDirectory() as folder:
        for name, graph in models.items():
            times = [time.perf_counter()]
            twin = write_out(graph)
            times.append(time.perf_counter())
            made = recognise(twin)
            times.append(time.perf_counter())
            recognise(graph)
            times.append(time.perf_counter())
            one, two = calls(graph, folder), calls(twin, folder)
            found = (one & two).total()
            write, find, glance = (b - a for a, b in itertools.pairwise(times))
            print(f"{name:26} {steps(twin):9} {steps(made.graph):10} {one.total():9} {found:9} {found / one.total():9.1%} "
                  f"{write:9.2f} {find:9.2f} {glance * 1e3:9.1f}")


if __name__ == "__main__":
    main()
