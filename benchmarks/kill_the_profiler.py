"""kill_the_profiler: end a process that drains the profile queue, or its worker, at random moments, and look for what was lost.

    python benchmarks/kill_the_profiler.py --kills 200

A queue of small questions is drained by one process after the other; each is killed (SIGKILL) after a random time, or its worker
is, its supervisor, or the template of that. After each kill the database must be whole, and hold every row that it held before; at
the end the queue must be empty, and every question answered exactly once.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import sqlalchemy as sa
from rich.progress import Progress, TextColumn, TimeElapsedColumn

import tensor_graphs as tg
from tensor_graphs.costs.database_keys import environment_of, graph_record, implementation_of, timed_workload
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.measure.isolation.process_tree import descendants
from tensor_graphs.records import schema, upkeep
from tensor_graphs.records.database import Database, open_database
from tensor_graphs.records.rows import ProfileRequest

DRAIN = """
import sys
from tensor_graphs.measure.queue.requests import drain_queue
from tensor_graphs.records.database import open_database
print("begun", flush=True)
with open_database(sys.argv[1]) as database:
    print(drain_queue(database, budget=1e9, backends=("numpy",)), flush=True)
"""

LONGEST = 6.0
"""seconds from the start of the drain to the kill, at most"""


@dataclass
class Report:
    """What was killed how often, and everything that was found wrong (nothing, it is to be hoped)."""

    killed: Counter[str] = field(default_factory=Counter)
    ended_before: int = 0
    rows: int = 0
    questions: int = 0
    wrong: list[str] = field(default_factory=list)


def ask(database: Database, count: int) -> list[tuple[str, str]]:
    """File so many questions about small softmaxes, norms and roots; (source hash of the kernel, key of the workload) of each."""
    asked: list[tuple[str, str]] = []
    requests = []
    for number in range(count):
        x = tg.input("x", (4 + number // 3, 8), tg.f32)
        op, node = (("softmax", tg.softmax(x)), ("rms_norm", tg.rms_norm(x)), ("sqrt", tg.sqrt(x)))[number % 3]
        signature: Signature = signature_of(node)
        kernel = kernel_named(f"numpy.{op}")
        database.ensure_graph(graph_record(signature))
        workload = timed_workload(signature, {})
        requests.append(ProfileRequest(implementation_of(kernel), workload, environment_of("numpy"), priority=float(count - number),
                                       reason=signature.title()))
        asked.append((kernel.identity, workload.key))
    database.enqueue(*requests)
    return asked


def cold_rows(database: Database) -> Counter[tuple[int, int, str, str]]:
    """(implementation, workload, kind, status) of every row."""
    trace = schema.BenchmarkTrace
    with database.reading() as connection:
        return Counter((int(i), int(w), str(r), str(s)) for i, w, r, s in connection.execute(
            sa.select(trace.implementation_id, trace.workload_id, trace.kind, trace.status)))


def drain(file: Path) -> subprocess.Popen[str]:
    root = str(Path(__file__).resolve().parent.parent)
    return subprocess.Popen([sys.executable, "-c", DRAIN, str(file)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                            env={**os.environ, "PYTHONPATH": root})


def kill_at_random(file: Path, kills: int, questions: int, seed: int = 0, longest: float = LONGEST,
                   on_kill: Callable[[Report], None] = lambda _: None) -> Report:
    """Drain a new queue in `file` under so many kills. seed: of the moments, and of who is killed. on_kill: is told after each."""
    rng = random.Random(seed)
    report = Report(questions=questions)
    with open_database(file) as database:
        ask(database, questions)
        before = cold_rows(database)
        while sum(report.killed.values()) < kills:
            process = drain(file)
            assert process.stdout is not None
            process.stdout.readline()
            victim = rng.choice(("profiler", "profiler", "template", "supervisor", "worker"))
            time.sleep(rng.uniform(0.0, longest))
            children = descendants(process.pid)                     # the template, the supervisor, then its worker
            if process.poll() is not None:
                report.ended_before += 1
                if not upkeep.stats(database).waiting:
                    break
                continue
            target = dict(zip(("template", "supervisor", "worker"), children, strict=False)).get(victim, process.pid)
            os.kill(target, signal.SIGKILL)
            report.killed["profiler" if target == process.pid else victim] += 1
            if target != process.pid:                               # it goes on, and is ended somewhere else
                time.sleep(rng.uniform(0.0, longest / 4))
                process.kill()
                report.killed["profiler"] += 1
            process.communicate()
            report.wrong += upkeep.check(database).problems
            now = cold_rows(database)
            report.wrong += [f"a row was lost: {row}" for row in (before - now)]
            before = now
            report.rows = sum(now.values())
            on_kill(report)
        last = drain(file)
        said, _ = last.communicate(timeout=600)
        if last.returncode:
            report.wrong.append(f"the last drain failed: {said}")
        report.wrong += upkeep.check(database).problems
        found = cold_rows(database)
        report.rows = sum(found.values())
        stats = upkeep.stats(database)
        if stats.waiting or stats.claimed or stats.abandoned:
            report.wrong.append(f"of the queue {stats.waiting} wait, {stats.claimed} are claimed, {stats.abandoned} were given up")
        answered = [row for row in found if row[2] == "cold"]
        if len(answered) != questions:
            report.wrong.append(f"{questions} questions have {len(answered)} answers")
        report.wrong += [f"{n} rows instead of one: {row}" for row, n in found.items() if n != 1]
        report.wrong += [f"not passed: {row}" for row in found if row[3] != "PASSED"]
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--questions", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=float, default=1.0, help="seconds until the kill, at most")
    args = parser.parse_args()
    columns = (*Progress.get_default_columns(), TextColumn("{task.fields[rows]} rows"), TimeElapsedColumn())
    with tempfile.TemporaryDirectory() as folder, Progress(*columns) as progress:
        task = progress.add_task("kills", total=args.kills, rows=0)

        def on_kill(so_far: Report) -> None:
            progress.update(task, completed=so_far.killed.total(), rows=so_far.rows)

        report = kill_at_random(Path(folder) / "bench.db", args.kills, args.questions, args.seed, args.longest, on_kill)
    killed = ", ".join(f"{name} {n}" for name, n in sorted(report.killed.items()))
    print(f"killed: {killed}; {report.rows} rows for {report.questions} questions; {len(report.wrong)} things wrong")
    for line in report.wrong[:20]:
        print(f"  {line}")
    sys.exit(1 if report.wrong else 0)


if __name__ == "__main__":
    main()
