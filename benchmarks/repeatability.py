"""repeatability: the same kernels, profiled twice in fresh processes, beside a neighbour that loads the machine now and then.

    python benchmarks/repeatability.py --kernels 40

Printed per kernel: its median time over the reference stream's in both runs, and how far apart they are; then how many of them are
within 5 %, and which pairs of kernels changed their order though their 99 % intervals were apart in both runs. The plain seconds
stand beside, so that what dividing by the reference stream is worth can be seen. The neighbour computes in one thread for up to
half a second, then rests as long.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tensor_graphs as tg
from tensor_graphs.costs.measured_rates import known_rates
from tensor_graphs.kernels.registry import all_kernels, by_op, kernel_named, matching, why_missing
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.measure.judge import Judge, JudgeTask
from tensor_graphs.measure.rates.calibration import measure_device
from tensor_graphs.measure.timing.statistics import thinned
from tensor_graphs.records.database import open_database

NEIGHBOUR = """
import random, time
import numpy as np
x = np.random.default_rng(0).random(1 << 22)
rng = random.Random(int(__import__("sys").argv[1]))
while True:
    end = time.monotonic() + rng.uniform(0.05, 0.5)
    while time.monotonic() < end:
        x.sum(); sum(range(20000))
    time.sleep(rng.uniform(0.05, 0.5))
"""

WITHIN = 0.05


def cases() -> list[tuple[str, Signature]]:
    """(kernel, what it computes): memory-bound and arithmetic, small and large, of every backend that is here."""
    def x(*shape: int, name: str = "x", dtype: Any = tg.f32) -> Any:
        return tg.input(name, shape, dtype)

    nodes = [
        *(tg.softmax(x(n, k)) for n, k in ((4, 256), (64, 1024), (512, 1024))),
        *(tg.rms_norm(x(n, 640), x(640, name="w")) for n in (1, 128, 1024)),
        *(tg.linear(x(n, k), x(m, k, name="w", dtype=dtype)) for n, k, m, dtype in (
            (1, 640, 1024, tg.f32), (1, 640, 2048, tg.f32), (1, 2048, 640, tg.bf16), (1, 640, 16384, tg.f32),
            (32, 640, 2048, tg.f32))),
        *(tg.silu(x(n, 2048)) for n in (1, 256)),
        *(tg.add(x(n, 640), x(n, 640, name="y")) for n in (16, 2048)),
        *(tg.gated(x(n, 2048), x(n, 2048, name="y")) for n in (1, 128)),
        *(tg.attention(x(1, 4, 256), x(s, 1, 256, name="k"), x(s, 1, 256, name="v"), scale=0.0625) for s in (64, 1024)),
    ]
    table = by_op(all_kernels([b for b in ("c", "numpy", "torch") if why_missing(b) is None]))
    signatures = map(signature_of, nodes)
    return [(kernel.name, signature) for signature in signatures for kernel in matching(signature.spec, table)]


def chosen(count: int) -> list[tuple[str, Signature]]:
    """So many of the cases, evenly."""
    return thinned(cases(), count)


def profile_once(count: int, budget: float) -> list[dict[str, Any]]:
    """Every kernel's row, as a plain document. They take turns, as the kernels of one signature do when a graph is profiled."""
    rows = []
    with tempfile.TemporaryDirectory() as folder, open_database(Path(folder) / "bench.db") as database:
        measure_device(database)
        with Judge(database, rates=known_rates(database, ("c", "numpy"))) as judge:
            asked = [JudgeTask(kernel_named(name), signature, {}, time_at={}) for name, signature in chosen(count)]
            for each, verdict in zip(asked, judge.examine_interleaved(asked, budget=budget), strict=True):
                times = {k: verdict.timing.get(k) for k in ("cold", "over_reference")}
                rows.append({"kernel": each.kernel.name, "what": each.signature.title(), "status": verdict.status,
                             "log": verdict.log, **times})
    return rows


def fresh(count: int, budget: float) -> list[dict[str, Any]]:
    command = [sys.executable, __file__, "--once", "--kernels", str(count), "--budget", str(budget)]
    found: list[dict[str, Any]] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return found


def apart(a: dict[str, Any], b: dict[str, Any]) -> int:
    """−1 where a's interval lies below b's, 1 where above, 0 where they meet."""
    return -1 if a["high"] < b["low"] else int(a["low"] > b["high"])


def swapped(first: list[dict[str, Any]], second: list[dict[str, Any]], what: str) -> list[tuple[str, str]]:
    """Pairs of kernels whose intervals are apart in both runs, in different orders."""
    found = []
    for i, j in itertools.combinations(range(len(first)), 2):
        if apart(first[i][what], first[j][what]) * apart(second[i][what], second[j][what]) < 0:
            found.append((f"{first[i]['kernel']} {first[i]['what']}", f"{first[j]['kernel']} {first[j]['what']}"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", type=int, default=40)
    parser.add_argument("--budget", type=float, default=0.5, help="seconds for each kernel")
    parser.add_argument("--quiet", action="store_true", help="without the neighbour")
    parser.add_argument("--once", action="store_true", help="profile once, print the rows as JSON")
    args = parser.parse_args()
    if args.once:
        print(json.dumps(profile_once(args.kernels, args.budget)))
        return
    runs = []
    for number in range(2):
        neighbour = None if args.quiet else subprocess.Popen([sys.executable, "-c", NEIGHBOUR, str(number)],
                                                             env={**os.environ, "OMP_NUM_THREADS": "1"})
        try:
            started = time.monotonic()
            runs.append(fresh(args.kernels, args.budget))
            print(f"run {number + 1}: {len(runs[-1])} kernels in {time.monotonic() - started:.0f} s")
        finally:
            if neighbour is not None:
                neighbour.kill()
                neighbour.wait()
    both = [(a, b) for a, b in zip(*runs, strict=True) if a["status"] == b["status"] == "PASSED"]
    for a, b in zip(*runs, strict=True):
        if (a, b) not in both:
            print(f"{a['kernel']} {a['what']}: {a['status']} {a['log'][:100]} / {b['status']} {b['log'][:100]}")
    close = {"cold": 0, "over_reference": 0}
    for a, b in both:
        moved = {what: abs(a[what]["median"] / b[what]["median"] - 1) for what in close}
        for what, by in moved.items():
            close[what] += by <= WITHIN
        print(f"{a['kernel']:18s} {a['what'][:60]:60s} {a['over_reference']['median']:9.3f} {b['over_reference']['median']:9.3f} "
              f"{moved['over_reference']:6.1%}   {a['cold']['median']:9.4f} {b['cold']['median']:9.4f} ms {moved['cold']:6.1%}")
    first, second = [a for a, _ in both], [b for _, b in both]
    print(f"within {WITHIN:.0%}: {close['over_reference']} of {len(both)} over the reference stream, {close['cold']} in seconds")
    for what in close:
        pairs = swapped(first, second, what)
        print(f"pairs that changed their order though apart, by {what}: {len(pairs)}")
        for one, other in pairs[:5]:
            print(f"  {one} · {other}")


if __name__ == "__main__":
    main()
