"""fuzz_graphs: random graphs of all ops, along several paths each, against the float64 oracle (tests/fuzzing says how).

    python benchmarks/fuzz_graphs.py --seeds 0..10000 [--processes 2] [--store FILE] [--keep FOLDER]
    python benchmarks/fuzz_graphs.py --replay FILE

What fails is made smaller, printed as a .tg text with its values and choices, and kept in FOLDER; --replay runs such a file again.
--store keeps the seeds that are done, and the same command goes on from there. The exit code is 1 when something fails.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import at_least, new_file
from tests.fuzzing.cases import Runs, Ungrown, case_of, everything_known, ways_of
from tests.fuzzing.shrink import Failure, failure_of, from_text, shrunk, told

BLOCK = 10
"""seeds that a process takes at a time"""

LIFE = 20
"""blocks of a process, about: what is compiled and cached fills its memory"""

LONGEST = 60
"""seconds of the processor that a graph may take along all its paths: some run for ever …"""

WAITED = 10
"""… and times as many by the clock, as some may wait for ever; a shared machine takes most of a minute away"""


class TooLong(Exception):
    """A graph took longer than it may."""


def _stop(number: int, frame: FrameType | None) -> None:
    raise TooLong(f"more than {LONGEST} seconds of the processor, or {WAITED * LONGEST} in all")


def _limit(seconds: int) -> None:
    """Raise TooLong when a graph has taken so long; 0: no more."""
    for name in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(name, _stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(WAITED * seconds)


def seed_range(text: str) -> range:
    first, _, last = text.partition("..")
    found = range(int(first), int(last) if last else int(first) + 1)
    if not found or found[0] < 0:
        raise argparse.ArgumentTypeError(f"{text} is no range of seeds\n  fix: 0..200, of which 200 is none")
    return found


def judged(seed: int) -> dict[str, Any]:
    """One seed: how many paths ran, which kernels, and what failed, made smaller."""
    _limit(LONGEST)
    row: dict[str, Any] = {"seed": seed, "paths": 0, "kernels": [], "failures": []}
    way = None
    try:
        case = case_of(seed)
        runs = Runs(case)
        for way in ways_of(seed):
            why = runs.why_wrong(way)
            row["paths"] += 1
            if why is not None:
                _limit(0)
                row["failures"].append([why, told(shrunk(Failure(case, way, why)), seed)])
                break                                               # the others fail for the same reason, mostly
        row["kernels"] = sorted(runs.kernels)
    except Ungrown:
        pass                                                        # a seed that gives no graph is a row without paths
    except TooLong as e:
        row["failures"].append([str(e), f"seed {seed} ({way}): {e}"])
    finally:
        _limit(0)
    return row


def block(seeds: Sequence[int]) -> list[dict[str, Any]]:
    with everything_known():
        return [judged(s) for s in seeds]


def blocks(seeds: Sequence[int], processes: int) -> Iterable[list[dict[str, Any]]]:
    """What each block gives, in the order in which they end. Raises BrokenProcessPool for one in which a process dies."""
    parts = [seeds[i:i + BLOCK] for i in range(0, len(seeds), BLOCK)]
    if processes == 1:
        yield from map(block, parts)
        return
    for i in range(0, len(parts), processes * LIFE):                # new processes now and then
        with ProcessPoolExecutor(processes, multiprocessing.get_context("forkserver")) as pool:
            yield from pool.map(block, parts[i:i + processes * LIFE])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=seed_range, default=range(200), help="A..B, B excluded (default: 0..200)")
    parser.add_argument("--processes", type=at_least(1), default=1)
    parser.add_argument("--store", type=new_file, help="the seeds that are done, one JSON line each; goes on from there")
    parser.add_argument("--keep", type=Path, help="a folder for what fails, a file each")
    parser.add_argument("--replay", type=Path, help="a file that was kept, run again")
    given = parser.parse_args()
    if given.replay is not None:
        known = from_text(given.replay.read_text(encoding="utf-8"))
        with everything_known():
            found = failure_of(known.case, known.way)
        print("it runs as it should" if found is None else found.why)
        return 0 if found is None else 1
    done: set[int] = set()
    if given.store and given.store.exists():
        done = {int(json.loads(line)["seed"]) for line in given.store.read_text(encoding="utf-8").splitlines()}
    todo = [s for s in given.seeds if s not in done]
    begin, count, paths, kernels, failures = time.perf_counter(), 0, 0, set[str](), Counter[str]()
    try:
        for rows in blocks(todo, given.processes):
            for row in rows:
                count, paths = count + 1, paths + row["paths"]
                kernels.update(row["kernels"])
                for number, (why, text) in enumerate(row["failures"]):
                    failures[why.partition(":")[0]] += 1
                    print(f"\n{text}\n", flush=True)
                    if given.keep:
                        given.keep.mkdir(parents=True, exist_ok=True)
                        kept = "\n".join(text.split("\n# fuzz ", 1)[-1:]).rpartition("\nagain: ")[0]
                        (given.keep / f"{row['seed']}-{number}.tg").write_text(f"# fuzz {kept}", encoding="utf-8")
                if given.store:
                    with given.store.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({"seed": row["seed"], "failures": [w for w, _ in row["failures"]]}) + "\n")
            if sys.stderr.isatty() or count % 100 < BLOCK:
                share = count / max(1, len(todo))
                print(f"\r[{'#' * int(20 * share):20}] {count} of {len(todo)} graphs, {paths} paths, "
                      f"{sum(failures.values())} failures, {time.perf_counter() - begin:.0f} s",
                      end="" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)
    except BrokenProcessPool:
        print(f"\na process died after {count} graphs: --processes 1 --seeds {todo[count]}..{todo[-1] + 1} shows in which",
              flush=True)
        return 1
    print(f"{count} graphs, {paths} paths, {len(kernels)} kernels and definitions: {sum(failures.values())} failures"
          + "".join(f"\n  {n} × {why}" for why, n in failures.most_common()))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
