"""costs: trains the cost model that is fitted to this machine's measurements, and shows its accuracy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tensor_graphs.cli import options
from tensor_graphs.cli.typer_app import Verbs

if TYPE_CHECKING:
    from tensor_graphs.costs.learned.fit import Sample

Made = TypeVar("Made")


def register(app: typer.Typer) -> None:
    costs = Verbs(no_args_is_help=True, help="A cost model fitted to what was measured on this machine.")
    costs.command("train")(train)
    costs.command("check")(check)
    app.add_typer(costs, name="costs")


def train(
    db: options.DatabaseAt = None,
    backends: options.Backends = None,
    threads: options.Threads = None,
    forget: Annotated[bool, typer.Option("--forget", help="Remove the model: estimates are rooflines again.")] = False,
    json: options.Json = False,
) -> None:
    """Fit the model to all times on file of this machine; `tg plan` and the rest estimate with it from then on. Another one to the
    schedules that searches have looked at: later searches measure what it ranks first."""
    from tensor_graphs.costs.learned import cost_model
    from tensor_graphs.costs.learned.fit import fitted, samples_of
    from tensor_graphs.costs.learned.search_samples import schedules_of

    if forget:
        for what in (cost_model.CALLS, cost_model.SCHEDULES):
            cost_model.file_of_machine(what).unlink(missing_ok=True)
        if json:
            options.print_json({"forgotten": True})
        else:
            print("estimates are rooflines again, and searches measure what they propose")
        return
    with options.database(db, create=False) as database:
        samples = {cost_model.CALLS: samples_of(database, options.backends(backends), threads),
                   cost_model.SCHEDULES: schedules_of(database, threads)}
    models = _of_each(samples, fitted)
    files = {what: str(cost_model.keep(model, what)) for what, model in models.items()}
    if json:
        options.print_json({what: {"rows": model.rows, "features": len(model.names), "file": files[what]}
                            for what, model in models.items()})
        return
    for what, model in models.items():
        print(f"{what}: fitted to {model.rows} times by {len(model.names)} features: {files[what]}")
    print("tg costs check says how good it is on ops that it has not seen; tg costs train --forget removes it")


def _of_each(asked: Mapping[str, Sequence[Sample]], make: Callable[[Sequence[Sample]], Made]) -> dict[str, Made]:
    """Return make(samples) for each kind that has enough samples. Raises CannotTrain if none has."""
    from tensor_graphs.costs.learned.fit import CannotTrain

    results, refused = {}, []
    for what, samples in asked.items():
        try:
            results[what] = make(samples)
        except CannotTrain as e:
            refused.append(e)
    if not results:
        raise refused[0]
    return results


def check(db: options.DatabaseAt = None, backends: options.Backends = None, threads: options.Threads = None,
          json: options.Json = False) -> None:
    """Predict each fifth of the graphs on file from the others: the model, the roofline, the nearest neighbour."""
    from tensor_graphs.costs.learned.fit import APART, checked, samples_of
    from tensor_graphs.costs.learned.search_samples import schedules_of

    with options.database(db, create=False) as database:
        asked = {"times": samples_of(database, options.backends(backends), threads), "schedules": schedules_of(database, threads)}
    results = _of_each(asked, checked)
    graphs = {what: len({s.graph for s in samples}) for what, samples in asked.items()}
    if json:
        options.print_json({what: {"rows": len(asked[what]), "graphs": graphs[what],
                                   "checked": [dataclasses.asdict(q) for q in qualities]}
                            for what, qualities in results.items()})
        return
    for what, qualities in results.items():
        print(f"{len(asked[what])} {what} of {graphs[what]} graphs, each predicted without those of its graph\n"
              f"{'':18s} {'off by':>7s} {'pairs':>6s} {'top 1':>6s} {'top 5':>6s}")
        for q in qualities:
            print(f"{q.name:18s} {q.factor:6.2f}× {q.pairs:6.0%} {q.top1:6.3f} {q.top5:6.3f}")
    print("off by: half of the predictions are within that factor. pairs: of kernels on one workload that differ by more than "
          f"{APART:.0%},\nhow many are in the right order. top 1, top 5: mean time of the best of the first 1, 5 ÷ the best time")
