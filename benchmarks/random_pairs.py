"""random_pairs: how often `equal` is wrong, does not know, and how long it takes, over random pairs of graphs.

    python benchmarks/random_pairs.py [--pairs 20000] [--seed 0] [--json FILE]

Half of the pairs are equal by construction (a random graph, and the same with random identities applied: association,
commutation, distribution, inverse pairs, shuffles of axes, split sums, split concatenations), half differ by
construction (one more change that is no identity) and are confirmed by the float64 interpreter to differ. Wrong are a
refutation of an equal pair and a proof of a different one; the command ends with code 1 when there is one, and prints
its seed: `random_pair(seed)` makes it again.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

import tensor_graphs as tg
from tensor_graphs.meaning.equality import equal
from tensor_graphs.meaning.interpreter import evaluate

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.meaning.random_graphs import random_pair


def differ(a: tg.Graph, b: tg.Graph, seed: int) -> bool | None:
    """Whether float64 results differ by more than 1e-6 of themselves at some sizes; None where all is NaN."""
    seen = False
    for trial, size in enumerate((5, 3, 8, 4)):
        rng = np.random.default_rng([seed, trial])
        leaves = {**a.inputs, **a.parameters, **b.inputs, **b.parameters}
        binding = {name: min(size + i, 9) for i, name in enumerate(sorted({**a.dims, **b.dims}))}
        values = {node: rng.standard_normal([int(s) for s in node.type.at(binding).shape]) for node in leaves.values()}
        with np.errstate(all="ignore"):
            x, y = evaluate([*a.roots, *b.roots], values, binding)
        if x.shape != y.shape:
            return True
        x, y = x.astype(np.float64), y.astype(np.float64)
        both = np.isfinite(x) & np.isfinite(y)
        seen = seen or bool(both.any())
        if np.any(np.abs(x - y)[both] > 1e-6 * np.maximum(np.abs(x), np.abs(y))[both] + 1e-12):
            return True
    return False if seen else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    times: list[float] = []
    wrong: list[tuple[int, str]] = []
    for k in range(given.pairs):
        seed = given.seed + k
        pair = random_pair(seed)
        if not pair.equal:
            really = differ(pair.left, pair.right, seed)
            if really is not True:
                counts["different pairs not confirmed, left out"] += 1
                continue
        start = time.perf_counter()
        verdict = equal(pair.left, pair.right)
        times.append(time.perf_counter() - start)
        kind = "equal" if pair.equal else "different"
        counts[f"{kind}: {verdict.status}"] += 1
        if verdict.status == "unknown":
            reasons[f"{kind}: {verdict.reason.split(':')[0][:60]}"] += 1
        if (pair.equal and verdict.status == "refuted") or (not pair.equal and verdict.proved):
            wrong.append((seed, verdict.show()))
            print(f"WRONG seed {seed}: {verdict.show()}", flush=True)
        if (k + 1) % 1000 == 0:
            print(f"{k + 1} pairs, {len(wrong)} wrong", file=sys.stderr, flush=True)
    times.sort()
    summary = {"pairs": given.pairs, "wrong": len(wrong), "counts": dict(sorted(counts.items())),
               "unknown": dict(reasons.most_common(12)),
               "seconds": {"median": times[len(times) // 2], "p99": times[math.ceil(len(times) * 0.99) - 1], "max": times[-1]}}
    for name, count in summary["counts"].items():  # type: ignore[attr-defined]
        print(f"{count:7d}  {name}")
    for name, count in reasons.most_common(12):
        print(f"   unknown {count:6d}  {name}")
    print(f"wrong {len(wrong)} of {len(times)}; seconds: " + ", ".join(f"{k} {v:.3f}" for k, v in summary["seconds"].items()))  # type: ignore[attr-defined]
    if given.json:
        given.json.write_text(json.dumps({**summary, "wrong_seeds": [s for s, _ in wrong]}, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
