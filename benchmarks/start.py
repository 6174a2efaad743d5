"""From the command to the first token: `tg run` in fresh processes, cold (no cache folder, no database) and warm, phase by phase.

    python benchmarks/start.py --times 3 --json start.json
    python benchmarks/start.py --model my-gemma --prompt "w2 w9" --times 1
    python benchmarks/start.py --backends cuda,gencuda --dtype bfloat16 --times 1

Each cold start has a new folder for caches and the database, and is followed by a warm one in the same folder. Printed are the
medians over the starts of each kind: seconds of the clock and of processors for each phase, what lies in no phase, and the whole
up to the first token; and the decode step that was run over the one that was predicted. On a machine that others use compare the
seconds of processors. Python keeps its bytecode, also where PYTHONDONTWRITEBYTECODE says that it shall not.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.arguments import at_least, new_file
from tensor_graphs.devices.environment import fingerprint

AFTER = "next tokens"
"""the phase behind the first token"""


def start(arguments: list[str], folder: Path) -> dict[str, Any]:
    """What `tg run --json` says in a new process whose caches and database lie in a folder."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "XDG_DATA_HOME": str(folder / "data")}
    for name in ("TENSOR_GRAPHS_DB", "PYTHONDONTWRITEBYTECODE"):    # by the latter each start would compile all sources
        environment.pop(name, None)
    done = subprocess.run([sys.executable, "-m", "tensor_graphs.cli.main", "run", *arguments, "--json"], env=environment,
                          stdout=subprocess.PIPE, check=True)
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def medians(starts: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Phase -> medians of its milliseconds; with a row for all up to the first token."""
    names = list(dict.fromkeys(name for one in starts for name in one["phases"] if name != AFTER))
    found = {name: {kind: statistics.median(one["phases"].get(name, {kind: 0.0})[kind] for one in starts)
                    for kind in ("ms", "processor_ms")} for name in names}
    whole = {kind: statistics.median(sum(p[kind] for name, p in one["phases"].items() if name != AFTER) for one in starts)
             for kind in ("ms", "processor_ms")}
    return {**found, "all": whole}


def show(kind: str, found: dict[str, dict[str, float]]) -> None:
    print(f"{kind:16s} {'seconds':>8s}  {'share':>5s}  {'processor':>9s}")
    for name, row in found.items():
        print(f"{name:16s} {row['ms'] / 1e3:8.3f}  {row['ms'] / found['all']['ms']:5.1%}  {row['processor_ms'] / 1e3:9.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gemma-3-270m", help="a folder, or a built-in shape, whose weights are drawn")
    parser.add_argument("--prompt", help="default: the ids 2,9259,10")
    parser.add_argument("--times", type=at_least(1), default=3, help="starts of each kind")
    parser.add_argument("--tokens", type=at_least(1), default=16)
    parser.add_argument("--backends", help="of the plan; default: those of `tg run`")
    parser.add_argument("--dtype", default="float32", help="what weights are kept in, as `tg run` takes it")
    parser.add_argument("--json", type=new_file, help="where everything is written")
    given = parser.parse_args()
    arguments = [given.model, "--dtype", given.dtype, "--tokens", str(given.tokens), "--ignore-eos"]
    arguments += ["--prompt", given.prompt] if given.prompt else ["--ids", "2,9259,10"]
    arguments += [] if Path(given.model).is_dir() else ["--random-weights", "0"]
    arguments += ["--backends", given.backends] if given.backends else []
    starts: dict[str, list[dict[str, Any]]] = {"cold": [], "warm": []}
    for _ in range(given.times):
        with tempfile.TemporaryDirectory() as folder:
            for kind in starts:
                starts[kind].append(start(arguments, Path(folder)))
    found = {kind: medians(all_of) for kind, all_of in starts.items()}
    for kind, rows in found.items():
        show(kind, rows)
        off = [statistics.median(one["step_ms"]) / one["predicted_step_ms"] for one in starts[kind] if one["step_ms"]]
        print(f"a step took {statistics.median(off):.2f} of what was predicted\n" if off else "")
    if given.json:
        document = {"environment": dataclasses.asdict(fingerprint("c")), "arguments": arguments, "medians": found, "starts": starts}
        given.json.write_text(json.dumps(document, indent=1, default=str))


if __name__ == "__main__":
    main()
