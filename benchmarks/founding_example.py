"""tanh of f32 on cuda:0: every way of it that is known here, each compared with the oracle and measured, the fastest chosen.

    python benchmarks/founding_example.py [--shapes 4x16,8192x4096] [--budget 40] [--device cuda:0]

Listed are: a kernel for tanh as it is, what its definition says (as one kernel, as several), torch's, and numpy's by copies there
and back. The operand and the result are on the device. The first paths of the list, the first of each of these ways and the chosen
one are run: the error against the float64 oracle, copies, and the time of the steps, copies among them. Ends with 1 where a path is
wrong, where one copies a value in vain, where a way is missing, or where the chosen one is not among the fastest.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import tensor_graphs as tg
from tensor_graphs.language.graph import Graph
from tensor_graphs.meaning.error_measure import measure
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.paths.path import NoPathError
from tensor_graphs.paths.path import Path as GraphPath
from tensor_graphs.runtime.compiled_graph import CompiledGraph

MOST, LISTED = 8, 500
"""paths that are run whatever they are; that are looked at for one of each way"""

LONG = 0.05
"""seconds from which on a path is run twice: most steps on the host would take minutes at the larger shape"""

CLOSE = 1.25
"""times the fastest that the chosen path may take: what two measurements of one thing differ by here"""

ON = {"cuda:0": ("gencuda", "torchcuda", "numpy"), "cpu": ("gen", "torch", "numpy")}


WAYS = {"a kernel for tanh": ("gen", "gencuda"), "torch's": ("torch", "torchcuda"), "numpy's": ("numpy",)}
"""what the list has to have, and whose kernel computes all of it there"""


def graphs(shape: tuple[int, ...], device: str) -> dict[str, Graph]:
    """tanh as one op, and in the words of its definition; the operand and the result are on the device."""
    there = tg.copy_to(tg.input("x", shape, tg.f32), device)
    small = tg.abs(there) * -2.0
    grown = tg.expm1(small)
    written = tg.where(tg.less(there, 0.0), 1.0, -1.0) * (grown / (grown + 2.0))
    return {"tanh": tg.graph(tg.copy_to(tg.tanh(there), device)), "written out": tg.graph(tg.copy_to(written, device))}


def ways_of(path: GraphPath) -> list[str]:
    """Which of the wanted ways a path is."""
    kernels = [k for k in path.choices.values() if k != "expand"]
    makers = {k.split(".")[0] for k in kernels}
    calls = path.kernel_calls
    found = [way for way, whose in WAYS.items() if calls == 1 and makers <= set(whose)]
    return [*found, *(["several kernels"] if calls > 1 and not makers & set(WAYS["numpy's"]) else [])]


def run(made: CompiledGraph, x: np.ndarray, device: str, repeats: int) -> tuple[np.ndarray, float, int, bool]:
    """(the result, seconds of the steps, copies between devices among them, how many those are, whether one is in vain: of a value
    that is there already, or that came from there)."""
    steps, there = made.executors[0].program.instructions, x if device == "cpu" else tg.device_array(x, device)
    moved = [(i.ins[0].buffer, i.outs[0].buffer, i.device) for i in steps if i.call.engine == "transfer"]
    brought = {into for _, into, _ in moved}
    vain = len({(source, device) for source, _, device in moved}) < len(moved) or any(source in brought for source, _, _ in moved)
    seconds = sum(t for _, _, t in made.profile({"x": there}, repeats=repeats))
    return np.asarray(made.run({"x": there})["out"]), seconds, len(moved), vain


def example(shape: tuple[int, ...], device: str, budget: float, database: Path) -> int:
    """How much is wrong with what is printed."""
    bad = 0
    x = np.random.default_rng(7).standard_normal(shape).astype(np.float32) * 3
    names = ON[device]
    fastest: dict[str, float] = {}
    for name, g in graphs(shape, device).items():
        right = interpret(g, {"x": x}).outputs["out"]
        start = time.perf_counter()
        tg.profile(g, budget=budget, backends=names, database=database)
        print(f"\n{name}, f32{list(shape)} on {device}: profiled in {time.perf_counter() - start:.1f} s", flush=True)
        seen: dict[str, float] = {}
        chosen = tg.compile(g, backends=names, database=database)
        listed = [chosen.variants[0].path, *itertools.islice(tg.list_paths(g, backends=names, database=database), LISTED)]
        first = {way: path for path in reversed(listed) for way in ways_of(path)}
        for way, whose in WAYS.items():
            if way not in first:                                    # behind many that are mixed
                with contextlib.suppress(NoPathError):              # torch has no kernel for all that is written out
                    path = next(iter(tg.list_paths(g, backends=[n for n in names if n in whose], database=database)))
                    first |= dict.fromkeys(set(ways_of(path)) - set(first), path)
        for path in {p.id: p for p in (*listed[:MOST], *first.values())}.values():
            out, seconds, copies, vain = run(tg.bind(tg.compile(g, path=path, backends=names, database=database)), x, device,
                                               9 if path.seconds < LONG else 2)
            error = measure(out, right, tg.f32).max_relative_error
            kernels = [k for k in path.choices.values() if k != "expand"]
            makers = {k.split(".")[0] for k in kernels}
            what = f"{kernels[0]}" if path.kernel_calls == 1 else f"{path.kernel_calls} kernels of {', '.join(sorted(makers))}"
            wrong = not error <= 1e-4
            bad += wrong + vain
            seen[path.id] = seconds
            for way in ways_of(path):
                fastest[f"{name}: {way}"] = min(seconds, fastest.get(f"{name}: {way}", seconds))
            print(f"  {path.seconds * 1e6:10.1f} µs {'measured' if path.measured else 'guess':8s} now {seconds * 1e6:9.1f} µs  "
                  f"error {error:.1e}{' WRONG' if wrong else ''}  {copies} copies{' IN VAIN' if vain else ''}  {what}",
                  flush=True)
        seconds = seen[listed[0].id]
        print(f"  chosen: {' '.join(sorted(set(chosen.variants[0].path.choices.values())))}, {seconds * 1e6:.1f} µs, "
              f"the fastest that was run {min(seen.values()) * 1e6:.1f} µs", flush=True)
        bad += seconds > CLOSE * min(seen.values()) and seconds - min(seen.values()) > 5e-6
    wanted = {"tanh: a kernel for tanh", "tanh: torch's", "tanh: numpy's", "tanh: several kernels",
              "written out: a kernel for tanh", "written out: several kernels"}
    if wanted - set(fastest):
        print(f"  MISSING: {', '.join(sorted(wanted - set(fastest)))}")
    return bad + len(wanted - set(fastest))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="4x16,8192x4096")
    parser.add_argument("--budget", type=float, default=40.0, help="seconds of measuring for each shape")
    parser.add_argument("--device", default="cuda:0", choices=sorted(ON))
    given = parser.parse_args()
    bad = 0
    for shape in (tuple(map(int, text.split("x"))) for text in given.shapes.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            bad += example(shape, given.device, given.budget, Path(folder) / "bench.db")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
