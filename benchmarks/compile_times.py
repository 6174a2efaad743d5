"""compile_times: how long a graph that nobody compiled before takes to compile, the C compiler and the comparison with the oracle
included.

    python benchmarks/compile_times.py
    python benchmarks/compile_times.py --only softmax,norm --json compile_times.json

For each graph of kernels_cpu.py two new processes call `tg.compile`, nothing profiled: one with empty folders for caches and the
database (first), one whose cache folder has this package's own C code compiled, but nothing of the graph (later). Seconds of the
clock, without the import of the package; then the medians.

Ends with 1 where the median of the first ones is above 1.5 s.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.arguments import new_file
from tensor_graphs.devices.environment import fingerprint

LIMIT = 1.5
"""seconds"""

LIBRARY = "from tensor_graphs.kernels.c import library; library.ahead().join(); library.settle()"

COMPILE = """
import sys, time
from pathlib import Path
import tensor_graphs as tg
from tensor_graphs.language.text_reader import parse_graph
graph = parse_graph(Path(sys.argv[1]).read_text())
begin = time.perf_counter()
tg.compile(graph, threads=2)
print(time.perf_counter() - begin)
"""


def in_folder(folder: Path, *arguments: str) -> str:
    """What a new process of Python with its caches and its database in a folder prints."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "XDG_DATA_HOME": str(folder / "data"),
                   "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    environment.pop("TENSOR_GRAPHS_DB", None)
    done = subprocess.run([sys.executable, "-c", *arguments], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="graphs whose kind or name holds one of these words, split by commas")
    parser.add_argument("--json", type=new_file)
    given = parser.parse_args()
    import torch

    from benchmarks.cpu_graphs import cases
    from tensor_graphs.language.text_writer import print_graph

    words = given.only.split(",")
    chosen = [(f"{c.kind}: {c.name}", c.graph) for c in cases(torch) if any(word in f"{c.kind}: {c.name}" for word in words)]
    if not chosen:
        parser.error(f"--only {given.only!r} is in the name of no graph")
    found: dict[str, tuple[float, float]] = {}
    print(f"{'graph':38} {'first':>6} {'later':>6}", flush=True)
    with tempfile.TemporaryDirectory() as whole:
        folder = Path(whole)
        in_folder(folder / "library", LIBRARY)
        for number, (name, graph) in enumerate(chosen):
            file = folder / f"{number}.tg"
            file.write_text(print_graph(graph), encoding="utf-8")
            later = folder / f"later{number}"
            shutil.copytree(folder / "library", later)
            first = folder / f"first{number}"
            found[name] = float(in_folder(first, COMPILE, str(file))), float(in_folder(later, COMPILE, str(file)))
            print(f"{name:38} {found[name][0]:6.2f} {found[name][1]:6.2f}", flush=True)
            shutil.rmtree(first)
            shutil.rmtree(later)
    first_median, later_median = (statistics.median(seconds[k] for seconds in found.values()) for k in (0, 1))
    print(f"median of {len(found)}: {first_median:.2f} s first, {later_median:.2f} s later; "
          f"the longest {max(s[0] for s in found.values()):.2f} s and {max(s[1] for s in found.values()):.2f} s")
    if given.json:
        given.json.write_text(json.dumps({"seconds": found, "environment": asdict(fingerprint("c"))}, indent=1, default=str))
    return int(first_median > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
