"""profile_graph: which measurements would settle the choices of a graph, asked of `profiling` until a budget is spent."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tensor_graphs.compiler.choose import DEFAULT_TOLERANCE, PriceBook, as_database, resolve_backends
from tensor_graphs.compiler.compile import price_points
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import all_kernels, by_op, matching
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language.graph import Graph
from tensor_graphs.paths.path import Paths
from tensor_graphs.profiling.judge import VERIFIER, Judge
from tensor_graphs.profiling.profile import ProfileReport, Question, answer, unanswered
from tensor_graphs.records.database import Database

OnStep = Callable[[int, int, str], None]
"""(done, total, what) for a progress bar"""


def questions_of(graph: Graph, *, backends: Sequence[str] | None, database: Database, tolerance: float,
                 at: Mapping[str, int] | None, largest: Mapping[str, int] | None, decompositions: bool = True) -> list[Question]:
    """Every kernel that could run a signature of the graph, at the sizes the compiler prices at, weighed by guessed time.

    The signatures are the graph's own, and those inside the definitions that the cheapest path expands.
    """
    here, _ = resolve_backends(backends)
    book = PriceBook(database, here, tolerance).load()
    table = by_op(all_kernels(here))
    out: list[Question] = []
    for binding in price_points(graph, at, largest):
        paths = Paths(graph, table, lambda k, s, b=binding: book.price(k, s, b, True))
        path = paths.cheapest()
        reached = {s.key: s for s in paths.known()}
        for key, calls in path.calls.items():
            s = reached[key]
            sizes = {n: int(binding[n]) for n in s.dim_names}
            for kernel in matching(s.spec, table):
                price = book.price(kernel, s, binding, True)
                if price is not None:
                    chosen = kernel.name == path.choices[key]
                    share = price.seconds * calls / max(path.seconds, 1e-9)      # every range of sizes counts alike
                    out.append(Question(kernel, s, sizes, share * (2.0 if chosen else 1.0)))
    return out


def profile_graph(graph: Graph, *, budget: float = 60.0, backends: Sequence[str] | None = None,
                  database: Database | str | Path | None = None, tolerance: float = DEFAULT_TOLERANCE,
                  at: Mapping[str, int] | None = None, largest: Mapping[str, int] | None = None, threads: int | None = None,
                  on_step: OnStep | None = None) -> ProfileReport:
    """Measure what the compiler would want to know about a graph, until the budget [s] is spent or nothing is left.

    Interrupting it (Ctrl-C) keeps every row measured so far; the next call goes on from there.
    """
    store = as_database(database)
    started = time.perf_counter()
    report = ProfileReport()
    asked = questions_of(graph, backends=backends, database=store, tolerance=tolerance, at=at, largest=largest)
    todo = unanswered(store, asked, VERIFIER)
    unique = {(q.kernel.identity, q.signature.key, tuple(sorted(q.binding.items()))) for q in asked}
    report.already_known = len(unique) - len(todo)
    numpy_table = by_op(all_kernels(("numpy",)))

    def plain(signature: Signature) -> Kernel | None:
        found = [k for k in matching(signature.spec, numpy_table) if k.name.startswith("numpy.")]
        return found[0] if found else None

    done = 0
    try:
        with Judge(store, threads=threads) as judge:
            for q, status in answer(judge, todo, budget=budget, baseline=plain):
                done += 1
                report.statuses[status] = report.statuses.get(status, 0) + 1
                report.measured += status == "PASSED"
                report.failed += status != "PASSED"
                if on_step is not None:
                    on_step(done, len(todo), f"{q.kernel.name} {q.signature.title()}")
    except KeyboardInterrupt:
        report.interrupted = True
    report.left = len(todo) - done
    report.seconds = time.perf_counter() - started
    return report
