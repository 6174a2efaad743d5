"""profiles_beside_a_neighbour: does a second profile heal the choices that a first one beside a busy neighbour spoiled?

    python benchmarks/profiles_beside_a_neighbour.py --budget 25 --seed 1

Twelve small graphs are profiled while a child process keeps two cores busy on and off (products and copies of large arrays, by a
seeded pattern), then again without it. Then, on the machine as it is now, each graph's choice is run in turns with all other paths
that differ from it in one choice, and once more with the one that seemed the best: the ratio in the table is that of the whole
paths' medians, in the middle of so many rounds. It should run on a machine on which nothing else works.

Exit code 1 where a choice takes more than `--limit` times the best measured path.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path as FilePath
from typing import Any

sys.path.insert(0, str(FilePath(__file__).resolve().parent.parent))

from rich.progress import Progress, TextColumn, TimeElapsedColumn

import tensor_graphs as tg
from benchmarks.arguments import at_least, new_file
from tensor_graphs.choice.cost_table import ESTIMATE_MARGIN, CostTable
from tensor_graphs.choice.forms import forms
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.choice.profile_graph import profile_graph
from tensor_graphs.choice.request import Request
from tensor_graphs.choice.search import sizes_to_cost
from tensor_graphs.costs.measured_rates import known_rates
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import all_kernels, by_op
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language.graph import Graph
from tensor_graphs.measure.judge import Judge
from tensor_graphs.measure.timing.in_graph_steps import Deployed, measure_deployed
from tensor_graphs.paths.path import EXPAND, Cost, NoPathError, Path, Paths
from tensor_graphs.records.database import Database, open_database

BACKENDS = ("c", "numpy")

SEARCHED = 2000
"""paths among which candidates are looked for"""

NEIGHBOUR = """
import random, sys, threading, time
import numpy as np
draw = random.Random(int(sys.argv[1]))
a, big = np.ones((384, 384), np.float32), np.zeros(1 << 24, np.float32)
until = 0.0
def work():
    other = np.empty_like(big)
    while True:
        if time.monotonic() < until:
            for _ in range(4):
                a @ a
            other[:] = big
        else:
            time.sleep(0.01)
for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
while True:
    until = time.monotonic() + draw.uniform(0.3, 4.0)
    time.sleep(max(0.0, until - time.monotonic()))
    time.sleep(draw.uniform(0.2, 2.0))
"""
"""what keeps two cores and the memory busy, on and off; its argument is the seed"""


def graphs() -> dict[str, Graph]:
    """Twelve small graphs by name, of 20 µs to some milliseconds."""
    def x(*shape: int, name: str = "x") -> Any:
        return tg.input(name, shape, tg.f32)

    def w(*shape: int, name: str = "w") -> Any:
        return tg.parameter(name, shape, tg.f32)

    heads = [tg.reshape(tg.linear(x(48, 64), w(64, 64, name=n)), (48, 4, 16)) for n in "qkv"]
    hidden = tg.gelu(tg.linear(x(16, 128), w(512, 128, name="up")), approximate="tanh")
    made = {
        "gelu times gate": tg.gelu(x(64, 512), approximate="tanh") * x(64, 512, name="gate"),
        "softmax of 64 rows": tg.softmax(x(64, 512)),
        "softmax of 512 short rows": tg.softmax(x(512, 32)),
        "norm": tg.rms_norm(x(128, 256), w(256, name="g")),
        "linear, one row": tg.linear(x(1, 1024), w(1024, 1024)),
        "linear, 32 rows": tg.linear(x(32, 256), w(256, 256)),
        "linear, tall": tg.linear(x(256, 128), w(64, 128)),
        "dot": tg.dot(x(96, 128), x(128, 96, name="y")),
        "attention": tg.attention(*heads, scale=0.25, causal=True),
        "mlp": tg.linear(hidden, w(128, 512, name="down")),
        "norm, linear, softmax": tg.softmax(tg.linear(tg.rms_norm(x(16, 256)), w(64, 256))),
        "silu of a sum": tg.silu(x(256, 256) + x(256, 256, name="y")),
    }
    return {name: tg.graph({"y": node}) for name, node in made.items()}


def profile_all(database: Database, budget: float, progress: Progress, what: str, chosen: Mapping[str, Graph]) -> None:
    task = progress.add_task(what, total=len(chosen))
    for name, graph in chosen.items():
        progress.update(task, description=f"{what}: {name}")
        report = profile_graph(graph, database=database, budget=budget, backends=BACKENDS)
        progress.advance(task)
        progress.console.print(f"{what}: {name}: {report.measured} measured ({report.again} again), {report.failed} failed, "
                               f"{report.deployed} steps in place, {report.left} left, {report.seconds:.1f} s", highlight=False)


def candidates(graph: Graph, database: Database, most: int) -> tuple[Graph, list[Path], Paths]:
    """The path that would be chosen, first, and those that differ from it in one choice, cheapest first."""
    request = Request(graph, None, BACKENDS, database)
    for form in forms(prepare(graph, recipes=database).graph, request):
        (binding,) = sizes_to_cost(form.graph)
        book = CostTable.of(request, ESTIMATE_MARGIN)
        table = by_op(all_kernels(BACKENDS))
        try:
            first = book.paths(form.graph, table, binding).cheapest()
        except NoPathError:
            continue
        paths = book.paths(form.graph, table, binding, partial(_cost, book, binding))
        found = [first]
        for path in itertools.islice(paths, SEARCHED):
            differs = [key for key in first.choices if path.choices.get(key, first.choices[key]) != first.choices[key]]
            if len(differs) == 1:
                found.append(path)
            if len(found) > most or path.cost > 20 * first.cost:
                break
        return form.graph, found, paths
    raise SystemExit("nothing computes this graph")


def _cost(book: CostTable, binding: Mapping[str, int], kernel: Kernel, signature: Signature) -> Cost | None:
    """Of what may be used, and of what is right and was called slow or implausible at these sizes: it would be a candidate."""
    verdict, row = book.verdict(kernel, signature), book.time(kernel, signature, binding)
    lost = row is not None and row.status in ("TIMEOUT", "IMPLAUSIBLE") and verdict is not None and not verdict.refuted
    return book.estimate(kernel, signature, binding) if lost else book.cost(kernel, signature, binding)


def in_turns(judge: Judge, graph: Graph, paths: Sequence[Path], of: Paths, rounds: int) -> list[list[float]]:
    """Of each path, in each round, the median seconds of its whole runs; in a round all run in turns in one worker."""
    kernels = {a.kernel.name: a.kernel for p in paths for a in of.kernels(p).values() if a.kernel is not None}
    runs: list[list[Deployed]] = [measure_deployed(judge, graph, list(paths), kernels, {}, BACKENDS) for _ in range(rounds)]
    return [[statistics.median(each[i].whole) for each in runs] for i in range(len(paths))]


def over(own: Sequence[float], other: Sequence[float]) -> float:
    """How many times the other's time this one takes: the middle of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(own, other, strict=True))


def compare(name: str, graph: Graph, database: Database, judge: Judge, most: int, rounds: int) -> dict[str, Any]:
    """What the choice takes over the best of its candidates."""
    form, paths, of = candidates(graph, database, most)
    row = {"graph": name, "paths": len(paths), "chosen": named(paths[0]), "best": named(paths[0]), "ratio": 1.0}
    times = in_turns(judge, form, paths, of, rounds)
    best = min(range(len(paths)), key=lambda i: over(times[i], times[0]))
    own = times[0]
    if best:                                                        # once more with that one alone: the best of many is lucky
        own, other = in_turns(judge, form, [paths[0], paths[best]], of, 2 * rounds)
        row |= {"best": named(paths[best]), "ratio": over(own, other)}
    return row | {"us": statistics.median(own) * 1e6}


def named(path: Path) -> str:
    return " ".join(dict.fromkeys(kernel for kernel in path.choices.values() if kernel != EXPAND))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=at_least(1), default=25, help="seconds for each graph in each profile")
    parser.add_argument("--graphs", type=at_least(1), default=12, help="only the first so many of the graphs")
    parser.add_argument("--paths", type=at_least(1), default=8, help="candidates that each choice is compared with, at most")
    parser.add_argument("--rounds", type=at_least(1), default=5)
    parser.add_argument("--seed", type=at_least(0), default=1, help="of the neighbour's pattern")
    parser.add_argument("--limit", type=float, default=1.1)
    parser.add_argument("--json", type=new_file, default=None)
    args = parser.parse_args()
    started = time.perf_counter()
    asked = dict(list(graphs().items())[: args.graphs])
    columns = (*Progress.get_default_columns()[:2], TextColumn("{task.completed}/{task.total}"), TimeElapsedColumn())
    with tempfile.TemporaryDirectory() as folder, open_database(FilePath(folder) / "bench.db") as database, \
            Progress(*columns) as progress:
        neighbour = subprocess.Popen([sys.executable, "-c", NEIGHBOUR, str(args.seed)])
        try:
            profile_all(database, args.budget, progress, "beside a neighbour", asked)
        finally:
            neighbour.kill()
            neighbour.wait()
        spoiled = {name: named(candidates(graph, database, 1)[1][0]) for name, graph in asked.items()}
        profile_all(database, args.budget, progress, "without it", asked)
        rows = []
        with Judge(database, rates=known_rates(database, BACKENDS)) as judge:
            task = progress.add_task("comparing", total=len(asked))
            for name, graph in asked.items():
                rows.append({**compare(name, graph, database, judge, args.paths, args.rounds), "chosen_before": spoiled[name]})
                progress.advance(task)
    print(f"{'graph':26s} {'µs':>9s} {'paths':>5s} {'ratio':>6s}  chosen (before, where it was another) | best measured")
    for row in rows:
        before = "" if row["chosen_before"] == row["chosen"] else f" (before: {row['chosen_before']})"
        best = "" if row["best"] == row["chosen"] else f" | {row['best']}"
        print(f"{row['graph']:26s} {row['us']:9.1f} {row['paths']:5d} {row['ratio']:6.3f}  {row['chosen']}{before}{best}")
    beyond = [row["graph"] for row in rows if not row["ratio"] <= args.limit]
    print(f"{len(rows) - len(beyond)} of {len(rows)} choices within {args.limit:g} × of the best measured path, "
          f"{time.perf_counter() - started:.0f} s" + (f"; beyond: {', '.join(beyond)}" if beyond else ""))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    sys.exit(1 if beyond else 0)


if __name__ == "__main__":
    main()
