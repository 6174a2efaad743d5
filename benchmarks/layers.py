"""Choosing and lowering a model of few and of many equal layers: seconds of processors, phase by phase, and their ratio.

    python benchmarks/layers.py --few 18 --many 180 --json layers.json

A layer is a norm, two products that may be joined, and a gated sum; its weights are its own. Verdicts are on file before anything
is timed, no plan is taken from one, and recipes are found in the cache folder. What is chosen is one question for all layers, so
choosing should hardly grow; preparing and lowering go through every node, so they should grow as the nodes do. Both run as written:
within a tolerance few and many layers might take different forms.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tensor_graphs as tg
from benchmarks.arguments import at_least, new_file
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.choice.storing import VARIABLE
from tensor_graphs.language.graph import Graph
from tensor_graphs.phase_times import OURS

PHASES = ("prepare", "choose", "lower")


def layers(count: int, width: int = 256) -> Graph:
    n = tg.dim("n", 1, 64)
    x = tg.input("x", (n, width), tg.f32)
    for i in range(count):
        h = tg.rms_norm(x)
        up, gate = (tg.linear(h, tg.parameter(f"{name}{i}", (width, width), tg.f32)) for name in ("up", "gate"))
        x = x + tg.silu(gate) * up
    return tg.graph(x)


def seconds(count: int, backends: tuple[str, ...]) -> dict[str, float]:
    """Processor seconds of each phase of compiling so many layers."""
    graph = layers(count)
    gc.collect()                                                    # or what the one before left would be counted here,
    gc.freeze()                                                     # and what was imported looked through, which `tg` keeps out too
    before = {name: spent.worked for name, spent in OURS.so_far().items()}
    compile_graph(graph, backends=backends)
    return {name: OURS.so_far()[name].worked - before.get(name, 0.0) for name in PHASES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--few", type=at_least(1), default=18)
    parser.add_argument("--many", type=at_least(1), default=180)
    parser.add_argument("--times", type=at_least(1), default=3)
    parser.add_argument("--backends", default="c,numpy")
    parser.add_argument("--json", type=new_file, help="where everything is written")
    given = parser.parse_args()
    os.environ[VARIABLE] = "off"
    backends = tuple(given.backends.split(","))
    seconds(given.few, backends)                                    # verdicts and recipes
    measured = {count: [seconds(count, backends) for _ in range(given.times)] for count in (given.few, given.many)}
    found = {count: {name: statistics.median(each[name] for each in rows) for name in PHASES} for count, rows in measured.items()}
    few, many = found[given.few], found[given.many]
    print(f"{'phase':10s} {given.few:>6d} layers {given.many:>6d} layers   ratio")
    for name in PHASES:
        print(f"{name:10s} {few[name]:11.3f} s {many[name]:11.3f} s {many[name] / max(few[name], 1e-9):7.2f}")
    if given.json:
        given.json.write_text(json.dumps({"few": given.few, "many": given.many, "seconds": measured}, indent=1))


if __name__ == "__main__":
    main()
