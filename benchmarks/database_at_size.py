"""database_at_size: how long the questions take in a database of a million traces.

    python benchmarks/database_at_size.py --traces 1000000 --json database_at_size.json

Fills a SQLite file with synthetic rows (straight into the tables, indexes built afterwards, in the tables of today),
then asks each question at many places drawn from a seed, stores batches of 100, vacuums, and asks again. Prints a table and stores
it as JSON: median and 95th percentile [ms], file size [MB].
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sqlite3
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tensor_graphs.devices.environment import Environment
from tensor_graphs.records import (
    GraphRecord,
    ImplementationRecord,
    SourceRecord,
    TraceRecord,
    WorkloadRecord,
    open_database,
    queries,
    upkeep,
)
from tensor_graphs.records.database import Database

GRAPHS, WORKLOADS, KERNELS, IDENTITIES, ENVIRONMENTS = 200, 10, 40, 5, 8
SMALL = 1000
"""traces in one more environment: what a compiler loads at its start"""
LIMITS_MS = {"best_implementation": 5.0, "insert a batch of 100": 20.0, "latest_traces, 1000 rows": 5.0}
TOLERANCE = 1e-3


def environment(number: int) -> Environment:
    return Environment(f"Machine {number}", 8 << 30, "linux-x86_64-glibc2.36", "c", (("compiler", "gcc 12"),), (("cores", "2"),))


def graph(number: int) -> GraphRecord:
    return GraphRecord(f"{number:064x}", f"tg 1\n# graph {number}\n" + "y = tanh(x)\n" * 20, "{}", f"op{number % 50}")


def kernel(number: int) -> ImplementationRecord:
    name = f"kernel{number % KERNELS}"
    source = SourceRecord(f"{name}.txt", f"/* {number} */" + "x" * 3000, trusted=True)
    return ImplementationRecord("KERNEL", name, "c", f"{number:064x}", sources=(source,))


def workload(number: int) -> WorkloadRecord:
    inputs = ({"name": "x", "dtype": "float32", "shape": [number, 64], "generator": "normal"},)
    return WorkloadRecord(graph(number // WORKLOADS).structural_key, {"d0": number % WORKLOADS}, inputs)


def references(database: Database) -> tuple[list[int], list[int], list[int]]:
    """Row ids of all kernels, workloads and environments, stored through the front door."""
    for each in range(GRAPHS):
        database.ensure_graph(graph(each))
    return (
        [database.ensure_implementation(kernel(each)) for each in range(KERNELS * IDENTITIES)],
        [database.ensure_workload(workload(each)) for each in range(GRAPHS * WORKLOADS)],
        [database.ensure_environment(environment(each)) for each in range(ENVIRONMENTS + 1)],
    )


def rows(count: int, ids: tuple[list[int], list[int], list[int]], seed: int) -> Iterator[tuple[Any, ...]]:
    """Traces in the order in which time passes. Each workload is served by 5 kernels, in all their identities."""
    draw = random.Random(seed)
    kernels, workloads, environments = ids
    log = zlib.compress(b"Segmentation fault in worker\n" + b"at some address\n" * 20)
    for number in range(count + SMALL):
        small = number >= count
        each = (number - count) // 4 if small else draw.randrange(len(workloads))
        first = each % KERNELS
        identity = 0 if small else draw.randrange(IDENTITIES)
        code = (first + (number % 4 if small else draw.randrange(5))) % KERNELS + KERNELS * identity
        place = environments[ENVIRONMENTS] if small else environments[draw.randrange(ENVIRONMENTS)]
        second = number * 30
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(1_700_000_000 + second)) + f".{number % 1_000_000:06d}"
        failed = draw.random() < 0.03
        samples = [] if failed else [round(draw.uniform(1, 2), 4) for _ in range(10)]
        median = statistics.median(samples) if samples else None
        yield (
            kernels[code], workloads[each], place, "cold", "RUNTIME_ERROR" if failed else "PASSED", json.dumps(samples),
            len(samples), median, None if failed else 0.05, None if failed else draw.uniform(1e-8, 1e-6), 1e-3,
            "plain", 3.0, None if median is None else 3.0 / median, 1000, "perf_counter", "2", stamp,
            log if failed else None, '{"threads": 0}',
        )  # fmt: skip


COLUMNS = (
    "implementation_id", "workload_id", "environment_id", "kind", "status", "samples_ms", "sample_count", "median_ms", "spread",
    "max_relative_error", "tolerance", "baseline", "baseline_ms", "speedup_factor", "seed", "timer", "verifier", "timestamp",
    "full_log", "conditions",
)  # fmt: skip


def fill(file: Path, count: int, seed: int) -> float:
    """Seconds that it took."""
    started = time.perf_counter()
    with open_database(file) as database:
        ids = references(database)
    raw = sqlite3.connect(file, isolation_level=None)
    raw.execute("PRAGMA synchronous = OFF")
    raw.execute("PRAGMA cache_size = -262144")
    indexes = raw.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = 'benchmark_traces' AND sql IS NOT NULL"
    ).fetchall()
    raw.execute("BEGIN")
    for name, _ in indexes:
        raw.execute(f"DROP INDEX {name}")
    insert = f"INSERT INTO benchmark_traces ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
    raw.executemany(insert, rows(count, ids, seed))
    for _, sql in indexes:
        raw.execute(sql)
    raw.execute("COMMIT")
    raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    raw.close()
    return time.perf_counter() - started


def timed(ask: Callable[[Any], Any], times: int, seed: int, prepare: Callable[[random.Random], Any]) -> dict[str, float]:
    """Percentiles [ms] of asking at places drawn from the seed; the first question, which compiles the statement, is left out."""
    draw = random.Random(seed)
    ask(prepare(draw))
    taken = []
    for _ in range(times):
        given = prepare(draw)
        begin = time.perf_counter()
        ask(given)
        taken.append((time.perf_counter() - begin) * 1e3)
    ordered = sorted(taken)
    at = lambda share: round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)  # noqa: E731
    return {"p50_ms": at(0.5), "p95_ms": at(0.95), "min_ms": round(ordered[0], 3), "asked": times}


def questions(database: Database) -> dict[str, tuple[Callable[[random.Random], Any], int]]:
    """Name -> (the question, how often it is asked)."""

    def best(draw: random.Random) -> None:
        each = draw.randrange(GRAPHS * WORKLOADS)
        here = environment(draw.randrange(ENVIRONMENTS))
        found = queries.best_implementation(database, workload(each).graph_key, workload(each), here, TOLERANCE)
        assert all(row.status == "PASSED" for row in found)

    def board(draw: random.Random) -> None:
        found = queries.leaderboard(
            database, graph(draw.randrange(GRAPHS)).structural_key, environment=environment(draw.randrange(ENVIRONMENTS))
        )
        assert all(row.median_ms for row in found)

    def anywhere(draw: random.Random) -> None:
        assert len(queries.leaderboard(database, graph(draw.randrange(GRAPHS)).structural_key)) > 10

    def past(draw: random.Random) -> None:
        assert len(queries.history(database, f"kernel{draw.randrange(KERNELS)}", limit=100)) == 100

    def past_here(draw: random.Random) -> None:
        here = environment(draw.randrange(ENVIRONMENTS))
        assert queries.history(database, f"kernel{draw.randrange(KERNELS)}", environment=here, limit=100)

    def failed(draw: random.Random) -> None:
        assert len(queries.failures(database, limit=100)) == 100

    def latest(draw: random.Random) -> None:
        assert len(queries.latest_traces(database, environment(ENVIRONMENTS), "cold", verifier="2")) == SMALL

    return {
        "best_implementation": (best, 200),
        "latest_traces, 1000 rows": (latest, 100),
        "leaderboard of a graph, one environment": (board, 50),
        "leaderboard of a graph, anywhere": (anywhere, 10),
        "history of a kernel, newest 100": (past, 50),
        "history of a kernel here, newest 100": (past_here, 50),
        "failures, newest 100": (failed, 50),
    }


def batch(draw: random.Random) -> list[TraceRecord]:
    """A hundred new traces of one environment, as a profiling run hands them in."""
    here = environment(draw.randrange(ENVIRONMENTS))
    return [
        TraceRecord(
            kernel(draw.randrange(KERNELS * IDENTITIES)), workload(draw.randrange(GRAPHS * WORKLOADS)), here, "cold", "PASSED",
            samples_ms=tuple(draw.uniform(1, 2) for _ in range(10)), max_relative_error=1e-7, tolerance=1e-3, verifier="2",
        )
        for _ in range(100)
    ]  # fmt: skip


def yardstick(_: object) -> None:
    """Says how busy the machine is: 4 to 5 ms on one free core of 2.5 GHz."""
    total = 0
    for each in range(100_000):
        total += each


def measure(file: Path, seed: int) -> dict[str, dict[str, float]]:
    with open_database(file) as database:
        asked = {name: timed(ask, times, seed, lambda draw: draw) for name, (ask, times) in questions(database).items()}
        asked["insert a batch of 100"] = timed(database.add_traces, 100, seed, batch)
        return {**asked, "yardstick: 100 000 additions": timed(yardstick, 50, seed, lambda draw: draw)}


def megabytes(file: Path) -> float:
    return round(sum(each.stat().st_size for each in file.parent.glob(file.name + "*")) / 1e6, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--traces", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--file", type=Path, help="keep the database here (default: a folder that is removed at the end)")
    parser.add_argument("--json", type=Path, help="store the numbers as JSON here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = given.file or Path(folder) / "large.db"
        if file.exists():
            sys.exit(f"{file} exists; name another file, or remove it")
        filled = fill(file, given.traces, given.seed)
        print(f"{given.traces} traces in {filled:.1f} s, {megabytes(file)} MB", file=sys.stderr)
        result: dict[str, Any] = {
            "traces": given.traces, "seed": given.seed, "python": platform.python_version(), "sqlite": sqlite3.sqlite_version,
            "fill_seconds": round(filled, 1), "file_mb": megabytes(file), "before_vacuum": measure(file, given.seed),
        }  # fmt: skip
        begin = time.perf_counter()
        with open_database(file) as database:
            upkeep.vacuum(database)
        result["vacuum_seconds"] = round(time.perf_counter() - begin, 1)
        result["file_mb_after_vacuum"] = megabytes(file)
        result["after_vacuum"] = measure(file, given.seed + 1)
    if given.json is not None:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"{'':42s} {'p50':>9s} {'p95':>9s} {'p50 after':>10s} {'p95 after vacuum [ms]':>21s}  limit")
    for name, before in result["before_vacuum"].items():
        after = result["after_vacuum"][name]
        limit = f"{LIMITS_MS[name]:g}" if name in LIMITS_MS else ""
        numbers = f"{before['p50_ms']:9.2f} {before['p95_ms']:9.2f} {after['p50_ms']:10.2f} {after['p95_ms']:21.2f}"
        print(f"{name:42s} {numbers}  {limit}")
    print(
        f"file {result['file_mb']} MB, vacuum {result['vacuum_seconds']} s, then {result['file_mb_after_vacuum']} MB; "
        f"filled in {result['fill_seconds']} s"
    )


if __name__ == "__main__":
    main()
