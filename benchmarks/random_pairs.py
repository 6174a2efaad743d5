"""random_pairs: how often `equal` is wrong, does not know, and how long it takes, over random pairs of graphs.

    python benchmarks/random_pairs.py [--pairs 20000] [--seed 0] [--json FILE]

Half of the pairs are equal by construction (a random graph, and the same with random identities applied: association,
commutation, distribution, inverse pairs, shuffles of axes, split sums, split concatenations), half differ by
construction (one more change that is no identity) and are confirmed by the float64 interpreter to differ; those that it does
not confirm are left out, and drawn again: --pairs says how many are judged. Wrong are a refutation of an equal pair and a proof
of a different one; the command ends with code 1 when there is one, and prints its seed: `random_pair(seed)` makes it again.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from pathlib import Path

from tensor_graphs.proof.equality import equal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import at_least, new_file
from tests.proof.random_graphs import differ, random_pair


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=at_least(1), default=20_000, help="how many are judged (default: %(default)s)")
    parser.add_argument("--seed", type=at_least(0), default=0, help="of the first pair; each has the next one")
    parser.add_argument("--json", type=new_file, help="store the numbers as JSON here")
    given = parser.parse_args()
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    times: list[float] = []
    wrong: list[tuple[int, str]] = []
    seed, left_out = given.seed - 1, 0
    while len(times) < given.pairs:
        seed += 1
        pair = random_pair(seed)
        if not pair.equal:
            really = differ(pair.left, pair.right, seed)
            if really is not True:
                left_out += 1
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
        if len(times) % 1000 == 0:
            print(f"{len(times)} pairs, {len(wrong)} wrong", file=sys.stderr, flush=True)
    times.sort()
    drawn = seed + 1 - given.seed
    summary = {"pairs": len(times), "drawn": drawn, "left_out": left_out, "wrong": len(wrong),
               "counts": dict(sorted(counts.items())),
               "unknown": dict(reasons.most_common(12)),
               "seconds": {"median": times[len(times) // 2], "p99": times[math.ceil(len(times) * 0.99) - 1], "max": times[-1]}}
    for name, count in summary["counts"].items():  # type: ignore[attr-defined]
        print(f"{count:7d}  {name}")
    for name, count in reasons.most_common(12):
        print(f"   unknown {count:6d}  {name}")
    print(f"{drawn} pairs drawn, {left_out} of them left out: drawn to differ, and not confirmed to")
    print(f"wrong {len(wrong)} of {len(times)}; seconds: " + ", ".join(f"{k} {v:.3f}" for k, v in summary["seconds"].items()))  # type: ignore[attr-defined]
    if given.json:
        given.json.write_text(json.dumps({**summary, "wrong_seeds": [s for s, _ in wrong]}, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
