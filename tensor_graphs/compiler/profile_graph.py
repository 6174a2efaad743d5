"""profile_graph: which measurements would settle the choices of a graph, asked of `profiling` until a budget is spent."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from tensor_graphs.compiler.choose import DEFAULT_TOLERANCE, PriceBook, as_database, resolve_backends
from tensor_graphs.compiler.compile import price_points
from tensor_graphs.compiler.intermediates import forms
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import all_kernels, by_op, matching
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language.graph import Graph
from tensor_graphs.paths.path import NoPathError, Paths, Price
from tensor_graphs.profiling.calibration import known_rates, measure_device
from tensor_graphs.profiling.judge import VERIFIER, Judge
from tensor_graphs.profiling.profile import ProfileReport, Question, answer, question_key, unanswered
from tensor_graphs.profiling.queue import settle_queue
from tensor_graphs.records.database import Database

OnStep = Callable[[int, int, str], None]
"""(done, total, what) for a progress bar"""


def questions_of(graph: Graph, *, backends: Sequence[str] | None, database: Database, tolerance: float,
                 at: Mapping[str, int] | None, largest: Mapping[str, int] | None, threads: int | None = None) -> list[Question]:
    """Every kernel that could run a signature of the graph, at the sizes the compiler prices at, weighed by guessed time.

    The signatures are the graph's own, and those inside the definitions that the cheapest path expands. What is cheapest by guesses
    changes as rows arrive: asked again then, the answer may name more. Raises NoPathError when nothing may be used.
    """
    here, _ = resolve_backends(backends)
    book = PriceBook(database, here, tolerance, threads).load()
    table = by_op(all_kernels(here))
    out: list[Question] = []
    for binding in price_points(graph, at, largest):
        paths = Paths(graph, table, partial(_price, book, binding))
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


def _price(book: PriceBook, binding: Mapping[str, int], kernel: Kernel, signature: Signature) -> Price | None:
    return book.price(kernel, signature, binding, True)


def profile_graph(graph: Graph, *, budget: float = 60.0, backends: Sequence[str] | None = None,
                  database: Database | str | Path | None = None, tolerance: float = DEFAULT_TOLERANCE,
                  at: Mapping[str, int] | None = None, largest: Mapping[str, int] | None = None, threads: int | None = None,
                  timeout: float | None = None, on_step: OnStep | None = None) -> ProfileReport:
    """Measure what the compiler would want to know about a graph, until the budget [s] is spent or nothing is left.

    Rounds: what the cheapest path could use is measured, which may make another path the cheapest, and so on until the cheapest one
    rests on rows only. Interrupting it (Ctrl-C) keeps every row measured so far; the next call goes on from there. timeout: seconds
    after which a kernel counts as hanging. Raises NoPathError when nothing may be used from the start.
    """
    store = as_database(database)
    tried = forms(graph, tolerance)                                 # what is measured is what would be run
    form = next(tried)
    started = time.perf_counter()
    report = ProfileReport()
    here, _ = resolve_backends(backends)
    seen: set[tuple[str, str]] = set()
    done = 0
    try:
        measure_device(store, here, threads=threads)
        with Judge(store, timeout=timeout, threads=threads, rates=known_rates(store, here, threads)) as judge:
            while True:
                try:
                    asked = questions_of(form.graph, backends=backends, database=store, tolerance=tolerance, at=at, largest=largest,
                                         threads=threads)
                except NoPathError:
                    other = next(tried, None)
                    if other is not None:
                        form = other
                        continue
                    if not seen:
                        raise
                    break                                           # what was measured leaves nothing to use: no question is left
                todo = unanswered(store, asked, VERIFIER, threads)
                new = {question_key(q) for q in asked} - seen
                seen |= new
                report.already_known += len(new - {question_key(q) for q in todo})
                report.left = len(todo)
                total = done + len(todo)
                for q, status in answer(judge, todo, budget=budget - (time.perf_counter() - started)):
                    done += 1
                    report.left -= 1
                    report.statuses[status] = report.statuses.get(status, 0) + 1
                    report.measured += status == "PASSED"
                    report.failed += status != "PASSED"
                    if on_step is not None:
                        on_step(done, total, f"{q.kernel.name} {q.signature.title()}")
                if not todo or report.left:
                    break
        settle_queue(store, here, threads)
    except KeyboardInterrupt:
        report.interrupted = True
    report.seconds = time.perf_counter() - started
    return report
