"""How long rewriting takes on Gemma 3's layers, and how large the e-graphs get: `python benchmarks/saturate_gemma.py [layers …]`.

Prints, for one layer and for decoders of so many (1 and 18 by default) at Gemma-3-270M's sizes (bf16 weights, one graph for all
prefill lengths): nodes, regions and how many of them are distinct, e-nodes and classes of all of them, the largest e-graph, seconds
of saturation (both levels), of extraction and of everything, seconds of CPU, peak memory, paid nodes before and after, and whether
the levels are saturated.
"whole" is one e-graph without regions, for up to two layers. Templates of recognition are made once for a process and are timed
by themselves.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tensor_graphs as tg
from benchmarks.arguments import at_least
from tensor_graphs.models.gemma3 import Gemma3Spec, Rope, gemma3_graph
from tensor_graphs.rewrites.composites import sketches
from tensor_graphs.rewrites.egraph import EGraph
from tensor_graphs.rewrites.extract import Extractor, add_graph, paid_nodes
from tensor_graphs.rewrites.graph_regions import Solver, peak_memory, regions, solve_by_regions
from tensor_graphs.rewrites.report import Report
from tensor_graphs.rewrites.rules import ALL
from tensor_graphs.rewrites.saturate import Budget, saturate

BUDGET = Budget(seconds=60.0, nodes=20000)
COLUMNS = ("nodes", "regions", "distinct", "e-nodes", "classes", "largest", "saturate", "extract", "in all", "CPU s", "MiB", "paid",
           "after")


def decoder(layers: int) -> tg.Graph:
    """Gemma-3-270M cut to so many layers: five sliding ones, then a full one, and so on."""
    kinds = tuple("full" if i % 6 == 5 else "sliding" for i in range(layers))
    spec = Gemma3Spec(vocabulary=262144, hidden=640, ffn=2048, heads=4, kv_heads=1, head_dim=256, layers=kinds,  # type: ignore[arg-type]
                      window=512, eps=1e-6, scale=256**-0.5, sliding_rope=Rope(1e4), full_rope=Rope(1e6))
    return gemma3_graph(spec, max_positions=4096, weight_dtype=tg.bf16)


def show(name: str, values: tuple[float | int, ...], report: Report) -> None:
    cells = " ".join(f"{v:8.2f}" if isinstance(v, float) else f"{v:8}" for v in values)
    starved = [rule for rule, row in report.rules.items() if row.starved]
    print(f"{name:>12} {cells}  {report.saturated} {report.stopped} {f'starved: {starved}' if starved else ''}", flush=True)


def one_layer() -> None:
    """A layer's own regions, without embedding, tables and head."""
    chain = regions(decoder(3)).chain[3:5]
    started, worked = time.perf_counter(), time.process_time()
    solver = Solver(ALL, "reassociating", BUDGET)
    solved = [solver.solve(region.graph) for region in chain]
    r, elapsed, worked = solver.report, time.perf_counter() - started, time.process_time() - worked
    show("layer alone", (sum(len(c.graph.nodes) for c in chain), 2, len(solver.known), r.e_nodes, r.classes, r.largest,
                         r.saturation, r.extraction, elapsed, worked, peak_memory(), sum(paid_nodes(c.graph) for c in chain),
                         sum(s.graphs[0].paid for s in solved)), r.together)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("layers", type=at_least(1), nargs="*", default=[1, 18], help="how many the decoders have (default: 1 18)")
    asked = parser.parse_args().layers
    started = time.perf_counter()
    sketches()
    print(f"templates of recognition: {time.perf_counter() - started:.2f} s, once")
    print(f"{'':>12} {' '.join(f'{name:>8}' for name in COLUMNS)}  saturated")
    one_layer()
    for layers in asked:
        graph = decoder(layers)
        before = paid_nodes(graph)
        started, worked = time.perf_counter(), time.process_time()
        (made,), solver = solve_by_regions(graph, ALL, "reassociating", BUDGET)
        r, elapsed, worked = solver.report, time.perf_counter() - started, time.process_time() - worked
        show(f"{layers}", (len(graph.nodes), r.regions, r.distinct, r.e_nodes, r.classes, r.largest, r.saturation, r.extraction,
                           elapsed, worked, r.memory, before, paid_nodes(made.graph)), r.together)
        if layers <= 2:
            e = EGraph()
            outputs, updates = add_graph(e, graph)
            started, worked = time.perf_counter(), time.process_time()
            done = saturate(e, ALL, BUDGET)
            middle = time.perf_counter()
            (best,) = Extractor(done.views["reassociating"], outputs, updates).extract()
            now = time.perf_counter()
            show(f"{layers}, whole", (len(graph.nodes), 1, 1, done.report.e_nodes, done.report.classes, done.report.e_nodes,
                                      done.report.seconds, now - middle, now - started,
                                      time.process_time() - worked, peak_memory(), before, best.paid), done.report)


if __name__ == "__main__":
    main()
