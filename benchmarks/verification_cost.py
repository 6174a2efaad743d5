"""What does it cost to compare a decoder's kernels with the oracle? Processor seconds, points and rows of each comparison.

    python benchmarks/verification_cost.py --json verification.json

On an empty database a built-in shape's decode graph is compiled with the kernels of the given backends; every comparison that this
asks for is listed, dearest first: processor seconds of the judge, of these the ones in which the oracle was asked, those of its
worker, and at how many points. A class of sizes belongs to the kernel that asked for it first. One comparison after the other, by
one worker, so that each has its own time. Processor time, as a neighbour on the machine makes wall time longer.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.arguments import at_least, new_file
from tensor_graphs.choice import search
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.frontends.huggingface.folder import GEMMA3_270M
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import DEFAULT_BACKENDS
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.measure.isolation import process_tree
from tensor_graphs.measure.judge import Judge, JudgeTask, Verdict
from tensor_graphs.measure.points.changed_rows import Updated
from tensor_graphs.measure.points.inputs import Point
from tensor_graphs.models.gemma3 import GEMMA3
from tensor_graphs.models.transformer import decoder_graph

LISTED = 25


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--backends", default=",".join(DEFAULT_BACKENDS))
    parser.add_argument("--positions", type=at_least(1), default=4096)
    parser.add_argument("--json", type=new_file, default=None)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []

    class Counting(Judge):
        """A judge that notes what each comparison took."""

        oracle = 0.0

        def foresee(self, asked: Sequence[JudgeTask], enough: Callable[[], bool]) -> None:
            """Nothing: what the oracle takes for a kernel belongs to that kernel."""

        def compare(self, asked: Sequence[JudgeTask]) -> Iterator[tuple[JudgeTask, Verdict]]:
            for each in asked:
                yield each, self.examine(each.kernel, each.signature, each.typical)

        def _kept(self, signature: Signature, point: Point) -> dict[str, np.ndarray | Updated] | None:
            begun = time.process_time()
            try:
                return super()._kept(signature, point)
            finally:
                self.oracle += time.process_time() - begun

        def examine(self, kernel: Kernel, signature: Signature, typical: Mapping[str, int], **more: Any) -> Verdict:
            self.ready()
            before = process_tree.worked(self.worker.pid or 0)
            pid, begun, start, self.oracle = self.worker.pid, time.process_time(), time.time(), 0.0
            verdict = super().examine(kernel, signature, typical, **more)
            worked = process_tree.worked(self.worker.pid or 0) - (before if self.worker.pid == pid else 0.0)
            rows.append({"kernel": kernel.name, "signature": signature.title(), "status": verdict.status,
                         "points": verdict.covered.get("points", 0),
                         "judge": time.process_time() - begun, "oracle": self.oracle, "worker": worked,
                         "wall": time.time() - start, "log": verdict.log})
            print(f"{len(rows):4d} {rows[-1]['judge']:7.2f} {worked:7.2f} s  {kernel.name:30s}", end="\r", file=sys.stderr)
            return verdict

    search.open_judge = lambda database, threads, rates: Counting(database, threads=threads, rates=rates)
    graph = decoder_graph(GEMMA3_270M.read.facts, GEMMA3, max_positions=args.positions)
    with tempfile.TemporaryDirectory() as folder:
        compile_graph(graph, backends=tuple(args.backends.split(",")), database=str(Path(folder) / "bench.db"))
    rows.sort(key=lambda row: -(row["judge"] + row["worker"]))
    for row in rows[:LISTED]:
        print(f"{row['judge']:8.2f} {row['oracle']:8.2f} {row['worker']:8.2f} s  {row['points']:3d} points  "
              f"{row['status']:20s} {row['kernel']:28s} {row['signature'][:70]}")
    total = {key: sum(row[key] for row in rows) for key in ("judge", "oracle", "worker", "wall", "points")}
    print(f"{len(rows)} comparisons at {total['points']:.0f} points: processor time of the judge {total['judge']:.1f} s, of that "
          f"of the oracle {total['oracle']:.1f} s, of its workers {total['worker']:.1f} s; wall {total['wall']:.1f} s")
    for row in rows:
        if row["status"] != "PASSED":
            print(f"not passed: {row['kernel']}: {row['status']} {row['log'][:200]}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if all(row["status"] == "PASSED" for row in rows) else 1)


if __name__ == "__main__":
    main()
