"""Does a wrong kernel ever pass? Every family of tests/measure/wrong_at_random.py, at so many seeds each; and the right ones.

    python benchmarks/wrong_kernels_at_random.py --seeds 20

A seed says where a kernel is wrong (its sizes, values, operands, memory); what the judge asks is drawn anew each time. Printed:
each family, how often it passed, and what else was found. Ends with 1 where a wrong kernel passed or a right one did not.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("TRIAL_SEED", "0")

from rich.progress import track

from benchmarks.arguments import at_least
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.measure.judge import Judge
from tensor_graphs.records.database import open_database
from tests.measure.wrong_at_random import FAMILIES, NODES, TOOLS, kernel_of, right_kernel

TYPICAL = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seeds", type=at_least(1), default=20)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--only", default="", help="families whose names hold this")
    args = parser.parse_args()
    wanted = [each for each in FAMILIES.values() if args.only in each.name]
    found: dict[str, Counter[str]] = {each.name: Counter() for each in wanted}
    right: dict[str, Counter[str]] = {f"right {tool} {node}": Counter() for tool in TOOLS for node in NODES if not args.only}
    logs: list[str] = []
    start = time.time()
    with tempfile.TemporaryDirectory() as folder:
        for seed in track(range(args.first, args.first + args.seeds), "seeds", disable=not sys.stderr.isatty()):
            os.environ["TRIAL_SEED"] = str(seed)
            with open_database(Path(folder) / f"{seed}.db") as database, Judge(database) as judge:
                for each in wanted:
                    signature = signature_of(NODES[each.node])
                    verdict = judge.examine(kernel_of(each, seed), signature, dict.fromkeys(signature.dim_names, TYPICAL))
                    found[each.name][verdict.status] += 1
                    if verdict.status not in (each.status, "RUNTIME_ERROR"):
                        logs.append(f"{each.name} at seed {seed}: {verdict.status} {verdict.log[:160]}")
                    elif verdict.status != each.status:
                        logs.append(f"{each.name} at seed {seed} ended otherwise: {verdict.log[-300:]}")
                for name, statuses in right.items():
                    _, tool, node = name.split(" ", 2)
                    signature = signature_of(NODES[node])
                    verdict = judge.examine(right_kernel(tool, node), signature, dict.fromkeys(signature.dim_names, TYPICAL))
                    statuses[verdict.status] += 1
                    if verdict.status != "PASSED":
                        logs.append(f"{name} at seed {seed}: {verdict.status} {verdict.log[-300:]}")
            print(f"seed {seed}: {time.time() - start:.0f} s", file=sys.stderr, flush=True)
    for name, statuses in {**found, **right}.items():
        print(f"{name:60s} {', '.join(f'{status} {count}' for status, count in statuses.items())}")
    print("\n".join(logs))
    passed = sum(statuses["PASSED"] for statuses in found.values())
    refused = sum(sum(statuses.values()) - statuses["PASSED"] for statuses in right.values())
    print(f"{len(found)} wrong families × {args.seeds} seeds: {passed} passed; {len(right)} right kernels × {args.seeds} seeds: "
          f"{refused} refused; {time.time() - start:.0f} s")
    sys.exit(1 if passed or refused else 0)


if __name__ == "__main__":
    main()
