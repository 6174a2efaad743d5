"""call_overhead: what a run of a graph costs around its kernels, beside torch eager, on a tanh of 64 numbers.

    python benchmarks/call_overhead.py [--rounds 200] [--json FILE]

`run`: CompiledGraph.run on a numpy array, with a new output. `prepared`: the same arrays again. `torch`: torch.tanh on a tensor.
They take turns, many calls each; printed are the median, the quartiles and the fastest of the rounds, in microseconds for a call,
and the ratio of torch's median to ours. All must give the same numbers first, to 1e-6.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import tensor_graphs as tg
from benchmarks.arguments import at_least, new_file
from tensor_graphs.devices.environment import fingerprint

CALLS = 500
"""of each in one round"""


def contestants() -> dict[str, Callable[[], object]]:
    """Name -> one call. Raises AssertionError where they differ."""
    import torch

    x = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        plan = tg.compile(tg.graph(tg.tanh(tg.input("x", (4, 16)))), database=Path(folder) / "own.db")
    model, tensor, inputs = tg.bind(plan), torch.from_numpy(x), {"x": x}
    prepared = model.prepared(inputs)
    for found in (model.run(inputs)["out"], prepared.run()["out"], torch.tanh(tensor).numpy()):
        np.testing.assert_allclose(found, np.tanh(x.astype(np.float64)), rtol=1e-6, atol=1e-6)
    return {"run": lambda: model.run(inputs), "prepared": prepared.run, "torch": lambda: torch.tanh(tensor)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=at_least(3), default=200)
    parser.add_argument("--json", type=new_file)
    given = parser.parse_args()
    calls = contestants()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(given.rounds):
        for name, call in calls.items():
            began = time.perf_counter()
            for _ in range(CALLS):
                call()
            seconds[name].append((time.perf_counter() - began) / CALLS)
    medians = {name: float(np.median(values)) * 1e6 for name, values in seconds.items()}
    rows = []
    for name, values in seconds.items():
        low, high = (float(v) * 1e6 for v in np.percentile(values, (25, 75)))
        rows.append({"call": name, "median_us": medians[name], "quartiles_us": (low, high), "fastest_us": min(values) * 1e6})
        print(f"{name:9s} {medians[name]:7.2f} µs ({low:.2f} to {high:.2f}), fastest {min(values) * 1e6:.2f}; "
              f"torch ÷ it {medians['torch'] / medians[name]:.2f}")
    if given.json:
        environments = {name: asdict(fingerprint(name)) for name in ("c", "torch")}
        given.json.write_text(json.dumps({"rows": rows, "environments": environments}, indent=1, default=str))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
