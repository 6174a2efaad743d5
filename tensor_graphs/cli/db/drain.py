"""drain: measures what plans requested and nobody has measured yet. Several of these may run on one machine simultaneously."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tensor_graphs.cli import option_groups, options
from tensor_graphs.cli.db.environment_text import place_in_words

if TYPE_CHECKING:
    from tensor_graphs.devices.environment import Environment
    from tensor_graphs.records.database import Database
    from tensor_graphs.records.work_queue import Queued

MOST_REASONS = 5
"""limit on the printed reasons why requests cannot be answered on this machine"""


def drain(
    *,
    budget: Annotated[float, typer.Option(min=0.1, help="Seconds to spend.")] = 60.0,
    again: Annotated[bool, typer.Option("--again", help="Abandoned requests, too: those whose workers died five times.")] = False,
    backends: options.Backends = None,
    threads: options.Threads = None,
    common: option_groups.Common,
) -> None:
    """Answer the requests in the profile queue, most urgent first. Ctrl-C is safe; the next call goes on from there."""
    from tensor_graphs.measure.queue.requests import Waiting, drain_queue
    from tensor_graphs.records import work_queue

    store = common.store(create=False)
    if again:
        work_queue.revive(store)
    with options.progress("draining", common.json) as show:
        def step(done: int, left: Waiting, what: str) -> None:
            worth = f"{left.seconds * 1e3:.3g} ms of plans in doubt"
            show(done, done + left.requests, f"{worth} · {what[:50]}")

        report = drain_queue(store, budget=budget, backends=options.backends(backends), threads=threads, on_step=step)
    if common.json:
        options.print_json(
            {
                "measured": report.measured, "failed": report.failed, "answered": report.answered, "obsolete": report.obsolete,
                "impossible": report.impossible, "left": report.left, "seconds": report.seconds, "statuses": report.statuses,
                "interrupted": report.interrupted, "database": store.location, "reasons": report.reasons,
                "queue": [dataclasses.asdict(queued) for queued in report.queue],
            }
        )
    else:
        print(f"{report.counts()}, {report.left} left in {report.seconds:.1f} s · {store.location}")
        for why in report.reasons[:MOST_REASONS]:
            print(f"  not possible here: {why}")
        if len(report.reasons) > MOST_REASONS:
            print(f"  … {len(report.reasons) - MOST_REASONS} more (--json lists them)")
        for line in queue_lines(store, report.queue, report.here):
            print(f"  {line}")
    if report.interrupted:
        options.told = True
        if not common.json:
            print(options.STOPPED)
        raise typer.Exit(130)


def queue_lines(store: Database, queue: Sequence[Queued], here: Sequence[Environment] | None = None) -> Iterator[str]:
    """Yield the queue's contents, a line per environment, and abandoned requests. here: environments that were drained."""
    from tensor_graphs.records import work_queue

    for q in sorted(queue, key=lambda q: (here is None or q.environment not in here, -q.waiting)):
        counts = {"waiting": q.waiting, "claimed by workers": q.claimed, "abandoned": q.abandoned, "of untrusted code": q.untrusted}
        listed = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        elsewhere = "" if here is None or q.environment in here else "another environment: "
        yield f"{listed}: {elsewhere}{place_in_words(q.environment)}, {q.environment.key()[:8]}"
    if any(q.untrusted for q in queue):
        yield "of untrusted code: its sources were imported; tg db trust NAME lets them run"
    if any(q.abandoned for q in queue):
        yield "abandoned, as their workers died again and again:"
        yield from (f"  {words}" for words in work_queue.abandoned(store))
        yield "  fix: tg db drain --again, or a compile that needs the number"
