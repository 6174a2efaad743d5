"""How long rewriting takes on Gemma 3's layers, and how large the e-graph gets: `python benchmarks/saturate_gemma.py [layers …]`.

Prints, for a decoder of so many layers at Gemma-3-270M's sizes (bf16 weights, one graph for all prefill lengths): nodes, e-nodes,
classes, seconds of both levels, whether they saturated, and paid nodes before and after. Templates of recognition are made once
for a process and are timed by themselves.
"""

from __future__ import annotations

import resource
import sys
import time

import tensor_graphs as tg
from tensor_graphs.models.gemma3 import Gemma3Spec, Rope, gemma3_graph
from tensor_graphs.rewrites.composites import sketches
from tensor_graphs.rewrites.egraph import EGraph
from tensor_graphs.rewrites.extract import Extractor, add_graph, paid_nodes
from tensor_graphs.rewrites.rules import ALL
from tensor_graphs.rewrites.saturate import Budget, saturate


def decoder(layers: int) -> tg.Graph:
    """Gemma-3-270M cut to so many layers, all sliding ones."""
    spec = Gemma3Spec(vocabulary=262144, hidden=640, ffn=2048, heads=4, kv_heads=1, head_dim=256, layers=("sliding",) * layers,
                      window=512, eps=1e-6, scale=256**-0.5, sliding_rope=Rope(1e4), full_rope=Rope(1e6))
    return gemma3_graph(spec, max_positions=4096, weight_dtype=tg.bf16)


def main() -> None:
    started = time.perf_counter()
    sketches()
    print(f"templates of recognition: {time.perf_counter() - started:.2f} s, once")
    heads = " ".join(f"{name:>8}" for name in ("nodes", "e-nodes", "classes", "seconds", "extract", "paid", "after"))
    print(f"{'layers':>6} {heads}  saturated")
    for layers in map(int, sys.argv[1:] or ["1"]):
        graph = decoder(layers)
        e = EGraph()
        outputs, updates = add_graph(e, graph)
        done = saturate(e, ALL, Budget(seconds=60.0, nodes=20000))
        started = time.perf_counter()
        (best,) = Extractor(done.views["reassociating"], outputs, updates).extract()
        r = done.report
        print(f"{layers:6} {len(graph.nodes):8} {r.e_nodes:8} {r.classes:8} {r.seconds:8.2f} {time.perf_counter() - started:8.2f} "
              f"{paid_nodes(graph):8} {best.paid:8}  {r.saturated} {r.stopped}")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
