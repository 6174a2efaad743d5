"""Are a user's kernels for graphs found, judged, and chosen where they are faster? In Gemma 3 270M's step, and in two layers.

    python benchmarks/own_kernels_in_models.py [--models layers gemma] [--budget 300] [--json FILE]

The kernels of own_kernels.py (numpy, C, torch; each also as a slow one, which computes several times) are registered; neither
model is touched. Printed for each: the places where its graph was found, the judge's verdict, its time there, and the calls that
the plan gives it after `tg profile`. Where paths were run as a whole, the chosen one is as fast as the fastest of them, within what
times vary by; else for each part and each other way to compute it the path is priced, too, and never cheaper.

Ends with 1 where there are fewer places than the model has, a verdict is not PASSED, a slow kernel has no time or is chosen, or
another path is faster as far as is known.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tensor_graphs as tg
from benchmarks.arguments import new_file
from benchmarks.own_kernels import registered, two_layers
from tensor_graphs.choice.cost_table import ESTIMATE_MARGIN, NEAR, CostTable, typical_sizes
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.choice.request import Request
from tensor_graphs.frontends.huggingface.load import model_graph
from tensor_graphs.kernels.kernel import Spec
from tensor_graphs.kernels.registry import all_kernels, by_op
from tensor_graphs.language.anonymous_composite import PartOp

BACKENDS = ("c", "numpy", "torch")
MODELS: dict[str, tuple[Callable[[], tg.Graph], dict[str, int], int]] = {
    "layers": (lambda: two_layers(640, 1), {}, 2),
    "gemma": (lambda: model_graph("gemma-3-270m", dtype="float32", greedy=False), {"n": 1, "m": 1, "p": 64}, 36)}
"""name -> graph, sizes, places of each of the two graphs at least"""


def look(graph: tg.Graph, at: Mapping[str, int], least: int, budget: float, database: str) -> dict[str, Any]:
    """What became of each kernel in one model, and what is wrong."""
    wrong: list[str] = []
    rows: list[dict[str, Any]] = []
    options: dict[str, Any] = {"database": database, "at": at, "backends": BACKENDS}
    with registered() as kernels:
        report = tg.profile(graph, kernels=[k.name for k in kernels], budget=budget, **options)
        tg.profile(graph, budget=budget, **options)
        plan = tg.compile(graph, **options)
        sizes = typical_sizes(plan.graph, at)
        book = CostTable.of(Request(graph, **options), ESTIMATE_MARGIN)
        paths = book.paths(plan.graph, by_op(all_kernels(BACKENDS)), sizes, lambda k, s: book.cost(k, s, sizes))
        path = paths.costed(plan.variant(sizes).path)
        parts = [n for n in prepare(graph, recipes=False).graph.nodes if isinstance(n.op, PartOp)]
        for kernel in kernels:
            there = [s for s in paths.parts if kernel.computes(s.spec)]
            places = sum(kernel.computes(Spec.of(n)) for n in parts)
            timed = [row for s in there if (row := book.timed(kernel, s, sizes)) is not None]
            said = sorted({v.status for v in report.verdicts if v.kernel == kernel.name})
            calls = sum(path.calls.get(s.key, 0) for s in there if path.choices.get(s.key) == kernel.name)
            rows.append({"kernel": kernel.name, "places": places, "signatures": len(there), "timed": len(timed), "verdicts": said,
                         "us": [row.median_ms * 1e3 for row, _ in timed if row.median_ms is not None], "calls": calls})
            wrong += [f"{kernel.name}: {places} places, of {least} at least"] if places < least else []
            wrong += [f"{kernel.name}: {', '.join(said) or 'no verdict'}"] if said != ["PASSED"] else []
            wrong += [f"{kernel.name} is slow, and chosen"] if calls and ".slow_" in kernel.name else []
            wrong += [f"{kernel.name} was not timed"] if not timed else []
        tried = [(each.seconds, p) for each in book.tried(plan.graph, sizes) if (p := paths.still(each.path)) is not None]
        ran = {p.id: seconds for seconds, p in tried}
        limit = path.cost * (1 - 1e-9)
        if path.id in ran:                                          # what was run as a whole decides, whatever steps cost alone …
            limit = NEAR * min(p.cost for _, p in tried)            # … unless a path that never was is cheaper than all that were
            if ran[path.id] * NEAR > min(ran.values()):
                wrong.append(f"the path took {ran[path.id] * 1e6:.0f} µs as a whole, another one {min(ran.values()) * 1e6:.0f}")
        for s in paths.parts:
            for way in paths.alternatives(s) if s.key in path.choices else ():
                other = paths.reworded(path, {s: way})
                if other is not None and other.id not in ran and (other.measured or not ran) and other.cost < limit:
                    wrong.append(f"{s.title()} by {way.name}: {other.cost * 1e6:.2f} µs instead of {path.cost * 1e6:.2f}")
        said_by = [str(plan.prepared), *(line for line in tg.explain(plan).splitlines() if ".own_" in line or ".slow_" in line)]
    return {"rows": rows, "wrong": wrong, "explain": said_by}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--budget", type=float, default=300.0, help="seconds of each of the two profiles, at most")
    parser.add_argument("--json", type=new_file)
    given = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    for name in given.models:
        make, at, least = MODELS[name]
        with tempfile.TemporaryDirectory() as folder:
            found[name] = look(make(), at, least, given.budget, str(Path(folder) / "bench.db"))
        print(f"{name}\n  {found[name]['explain'][0]}")
        for row in found[name]["rows"]:
            times = ", ".join(f"{us:.1f}" for us in row["us"]) or "never"
            print(f"  {row['kernel']:28} {row['places']:3} places  {', '.join(row['verdicts']):8} timed {times} µs; "
                  f"{row['calls']} calls in the plan")
        print(*(f"  wrong: {each}" for each in found[name]["wrong"]), sep="\n", flush=True)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))
    return int(any(each["wrong"] for each in found.values()))


if __name__ == "__main__":
    sys.exit(main())
