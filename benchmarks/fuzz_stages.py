"""fuzz_stages: random stage programs, in every form that codegen gives them, as C against the stage interpreter.

    python benchmarks/fuzz_stages.py --seeds 0..10000 [--processes 2]
    python benchmarks/fuzz_stages.py --seeds 0..1000 --sanitized

tests/fuzzing says how. --sanitized: in a program of its own, with the compiler's sanitizers, in one form for each seed. What fails
is made smaller and printed. The exit code is 1 when something fails.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import at_least
from benchmarks.fuzz_graphs import seed_range
from benchmarks.renewed_processes import renewed_map
from tests.fuzzing.stage_runs import FORMS, Case, failures, form_of, sanitized_failures, shrunk, told

BLOCK = 40
"""programs that are compiled together"""

LIFE = 25
"""blocks of a process: the libraries that it has loaded fill its memory"""


def block(seeds: range, sanitized: bool) -> tuple[int, list[str]]:
    """How many programs ran, and what is to be said of those that failed."""
    found = sanitized_failures if sanitized else partial(failures, keep=False)
    cases = [Case(s, form) for s in seeds for form in ((form_of(s),) if sanitized else FORMS)]
    texts = []
    for case, why in found(cases):
        small = shrunk(case, lambda c: bool(sanitized_failures([c])))       # a process of its own: it may crash
        texts.append(told(small, why))
    return len(cases), texts


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=seed_range, default=range(200), help="A..B, B excluded (default: 0..200)")
    parser.add_argument("--processes", type=at_least(1), default=1)
    parser.add_argument("--sanitized", action="store_true", help="with the address and undefined-behaviour sanitizers")
    given = parser.parse_args()
    blocks = [given.seeds[i:i + BLOCK] for i in range(0, len(given.seeds), BLOCK)]
    begin, count, wrong = time.perf_counter(), 0, 0
    try:
        run = partial(block, sanitized=given.sanitized)
        for number, (ran, texts) in enumerate(renewed_map(run, blocks, given.processes, LIFE)):
            count, wrong = count + ran, wrong + len(texts)
            for text in texts:
                print(f"\n{text}\n", flush=True)
            if number % 5 == 4:
                print(f"{count} programs of {min(len(given.seeds), (number + 1) * BLOCK)} seeds, {wrong} failures, "
                      f"{time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
    except BrokenProcessPool:
        print(f"a process died after {count} programs: --sanitized shows in which", flush=True)
        return 1
    print(f"{count} programs: {wrong} failures")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
