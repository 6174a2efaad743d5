"""draining: measure what plans asked for and nobody has measured yet. Any number of these may run on one machine at a time."""

from __future__ import annotations

from typing import Annotated

import typer

from tensor_graphs.cli import options


def drain(
    budget: Annotated[float, typer.Option(min=0.1, help="Seconds to spend.")] = 60.0,
    backends: options.Backends = None,
    threads: options.Threads = None,
    imports: options.Imports = None,
    db: options.DatabaseAt = None,
    json: options.Json = False,
) -> None:
    """Answer the requests in the profile queue, most urgent first. Ctrl-C is safe; the next call goes on from there."""
    from tensor_graphs.profiling.queue.requests import Waiting, drain_queue

    store = options.database(db, create=False)
    with options.progress("draining", json) as show:
        def step(done: int, left: Waiting, what: str) -> None:
            worth = f"{left.seconds * 1e3:.3g} ms of plans in doubt"
            show(done, done + left.requests, f"{worth} · {what[:50]}")

        report = drain_queue(store, budget=budget, backends=options.backends(backends), threads=threads, on_step=step)
    if json:
        options.print_json(
            {
                "measured": report.measured, "failed": report.failed, "answered": report.answered, "obsolete": report.obsolete,
                "impossible": report.impossible, "left": report.left, "seconds": report.seconds, "statuses": report.statuses,
                "interrupted": report.interrupted, "database": store.location,
            }
        )
    else:
        print(
            f"{report.measured} measured, {report.failed} failed, {report.answered} known already, {report.obsolete} obsolete, "
            f"{report.impossible} not possible here, {report.left} left in {report.seconds:.1f} s · {store.location}"
        )
    if report.interrupted:
        options.told = True
        if not json:
            print(options.STOPPED)
        raise typer.Exit(130)
