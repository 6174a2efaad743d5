"""twins: whether `equal` ever proves two graphs that differ on an edge only, or refutes two that are the same function.

    python benchmarks/twins.py different [--twins 10000] [--graphs 500] [--seed 0] [--processes 2] [--store FILE]
    python benchmarks/twins.py equal [--twins 5000] …
    python benchmarks/twins.py examples

*different*: boundary mutants of random graphs and of small models (tests/proof/boundary_mutants.py), each with inputs at which
the float64 interpreter shows the difference; none may be proved. *equal*: the same graphs with a node written otherwise, rules
applied, composites written out; none may be refuted. *examples*: the pairs of examples/equality; none may be refuted, at least
60 % are to be proved, each in less than 2 s. Prints verdicts by kind, and each wrong one as two .tg texts; the exit code is 1
when there is one. --store keeps what is done, one line per graph, and the same command goes on from there.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import multiprocessing
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import at_least, new_file
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.text import print_graph
from tensor_graphs.proof.equality import EqualityVerdict, equal
from tests.proof.boundary_mutants import twins
from tests.proof.equal_twins import EqualTwin, equal_twins, pair_twin, rule_twin
from tests.proof.example_pairs import names, pair
from tests.proof.twin_graphs import models, random_graph

log = logging.getLogger(__name__)

MODEL_SHARE = 12
"""One graph in so many is a model."""


class OutOfTime(Exception):
    """A twin took longer than it may."""


def _stop(number: int, frame: FrameType | None) -> None:
    raise OutOfTime


def limited(left: Any, right: Any, seconds: int) -> tuple[str, EqualityVerdict | None]:
    """The verdict's status and the verdict; none where it takes longer, or raises, which it never may."""
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)           # of this process: the machine may be busy with others
    try:
        verdict = equal(left, right)
        return ("proved" if verdict.proved else verdict.status), verdict
    except OutOfTime:
        return "out of time", None
    except Exception as error:
        log.exception("equal raised")
        return f"raised {type(error).__name__}", None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def graph_of(number: int) -> Graph:
    if number % MODEL_SHARE == MODEL_SHARE - 1:
        found = list(models().values())
        return found[number // MODEL_SHARE % len(found)]
    return random_graph(number)


def pairs(mode: str, number: int, count: int) -> Iterator[tuple[str, Any, Any, Any]]:
    """kind, both graphs, and the witness of a mutant."""
    graph = graph_of(number)
    if mode == "different":
        for twin in twins(graph, number, count):
            yield twin.kind, twin.left, twin.right, twin.witness
        return
    made: list[EqualTwin | None] = [*equal_twins(graph, number, count - count // 3)]
    made += [rule_twin(k, number) for k in range(number * (count // 3), (number + 1) * (count // 3) - 1)]
    made.append(pair_twin(number))
    for equal_twin in made:
        if equal_twin is not None:
            yield equal_twin.kind, equal_twin.left, equal_twin.right, None


def job(given: tuple[str, int, int, int]) -> dict[str, Any]:
    mode, number, count, limit = given
    rows: list[tuple[str, str, float]] = []
    wrong: list[dict[str, Any]] = []
    for kind, left, right, witness in pairs(mode, number, count):
        start = time.process_time()
        status, verdict = limited(left, right, limit)
        seconds = time.process_time() - start
        bad = status.startswith("raised") or status == ("proved" if mode == "different" else "refuted")
        if (
            bad
            and witness is not None
            and witness.overflow
            and verdict is not None
            and "no overflow of integers" in verdict.assuming
        ):
            status, bad = (
                "proved, but for overflow",
                False,
            )  # what the verdict says is not so, and so is what it takes for granted
        rows.append((kind, status, seconds))
        if bad:
            said = (
                ""
                if witness is None
                else (
                    f"{witness.output}: {witness.left!r} and {witness.right!r} at {dict(witness.binding)}, "
                    + ", ".join(f"{k} = {v.ravel()[:12].tolist()}" for k, v in witness.values.items())
                )
            )
            wrong.append(
                {
                    "number": number,
                    "kind": kind,
                    "left": print_graph(left),
                    "right": print_graph(right),
                    "witness": said,
                    "verdict": status if verdict is None else verdict.show(),
                }
            )
    return {"number": number, "rows": rows, "wrong": wrong}


PROVED, SECONDS = 0.6, 2.0
"""What is asked of the examples: the share that is proved, and the time of each."""


def examples(limit: int) -> int:
    counts: Counter[str] = Counter()
    late: list[str] = []
    for name in names():
        left, right = pair(name)
        start = time.process_time()
        status, verdict = limited(left, right, limit)
        seconds = time.process_time() - start
        counts[status] += 1
        late += [name] if seconds > SECONDS else []
        reason = "" if verdict is None or verdict.proved else verdict.show() if status == "refuted" else verdict.reason
        print(f"{status:12} {seconds:6.2f} s  {name:36} {reason}", flush=True)
    total = sum(counts.values())
    print(
        f"{total} pairs: "
        + ", ".join(f"{v} {k}" for k, v in counts.most_common())
        + f"; {counts['proved'] / total:.0%} proved; "
        f"above {SECONDS:g} s: {', '.join(late) or 'none'}"
    )
    raised = sum(v for k, v in counts.items() if k.startswith("raised"))
    return 1 if raised or counts["refuted"] or counts["proved"] < PROVED * total or late else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=("different", "equal", "examples"))
    parser.add_argument("--twins", type=at_least(1), default=None, help="how many are judged (default: 10000, equal: 5000)")
    parser.add_argument("--graphs", type=at_least(1), default=500, help="of how many graphs (default: %(default)s)")
    parser.add_argument("--seed", type=at_least(0), default=0, help="of the first graph; each has the next one")
    parser.add_argument("--limit", type=at_least(1), default=20, help="processor seconds for one verdict (default: %(default)s)")
    parser.add_argument("--processes", type=at_least(1), default=1)
    parser.add_argument("--store", type=new_file, help="what is done, one JSON line per graph; goes on from there")
    given = parser.parse_args()
    if given.mode == "examples":
        return examples(given.limit)
    wanted = given.twins or (10_000 if given.mode == "different" else 5_000)
    each = math.ceil(wanted / given.graphs * 1.25)  # some graphs have few edges
    done: dict[int, dict[str, Any]] = {}
    if given.store and given.store.exists():
        done = {row["number"]: row for row in map(json.loads, given.store.read_text().splitlines())}
    todo = [(given.mode, given.seed + k, each, given.limit) for k in range(given.graphs) if given.seed + k not in done]
    begin = time.perf_counter()
    with multiprocessing.get_context("fork").Pool(given.processes, maxtasksperchild=20) as pool:
        for row in pool.imap_unordered(job, todo):
            done[row["number"]] = row
            if given.store:
                with given.store.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            for wrong in row["wrong"]:
                print(
                    f"WRONG, graph {wrong['number']}, {wrong['kind']}\n{wrong['left']}--- and\n{wrong['right']}"
                    f"--- {wrong['witness']}\n"
                    f"{wrong['verdict']}\n",
                    flush=True,
                )
            if sys.stderr.isatty() or len(done) % 25 == 0:
                count = sum(len(r["rows"]) for r in done.values())
                bad = sum(len(r["wrong"]) for r in done.values())
                print(
                    f"\r{len(done)} of {given.graphs} graphs, {count} twins, {bad} wrong, {time.perf_counter() - begin:.0f} s",
                    end="" if sys.stderr.isatty() else "\n",
                    file=sys.stderr,
                    flush=True,
                )
    return report(list(done.values()), wanted)


def report(rows: list[dict[str, Any]], wanted: int) -> int:
    """The table; 1 for a wrong verdict, or fewer twins than wanted."""
    counts: dict[str, Counter[str]] = {}
    seconds: list[float] = []
    for row in rows:
        for kind, status, taken in row["rows"]:
            counts.setdefault(kind.split(":")[0] if kind.startswith("rule") else kind, Counter())[status] += 1
            seconds.append(taken)
    statuses = sorted({s for c in counts.values() for s in c})
    print(f"\n{'kind':52}" + "".join(f"{s:>14}" for s in statuses))
    for kind, found in sorted(counts.items()):
        print(f"{kind:52}" + "".join(f"{found[s] or '':>14}" for s in statuses))
    total = sum(counts.values(), Counter())
    print(f"{'all':52}" + "".join(f"{total[s]:>14}" for s in statuses))
    wrong = sum(len(r["wrong"]) for r in rows)
    seconds.sort()
    print(
        f"{len(seconds)} twins of {len(rows)} graphs, {wrong} wrong; seconds of processor time for a verdict: "
        f"median {seconds[len(seconds) // 2]:.3f}, "
        f"99 % {seconds[int(len(seconds) * 0.99)]:.2f}, most {seconds[-1]:.1f}"
    )
    if len(seconds) < wanted:
        print(f"fewer than the {wanted} that were asked for")
    return 1 if wrong or len(seconds) < wanted else 0


if __name__ == "__main__":
    sys.exit(main())
