"""costs: the cost model that is fitted to this machine's measurements: train it, and see how good it is."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from tensor_graphs.cli import options
from tensor_graphs.cli.verbs import Verbs


def register(app: typer.Typer) -> None:
    made = Verbs(no_args_is_help=True, help="A cost model fitted to what was measured on this machine.")
    made.command("train")(train)
    made.command("check")(check)
    app.add_typer(made, name="costs")


def train(
    db: options.DatabaseAt = None,
    backends: options.Backends = None,
    threads: options.Threads = None,
    forget: Annotated[bool, typer.Option("--forget", help="Remove the model: guesses are rooflines again.")] = False,
    json: options.Json = False,
) -> None:
    """Fit the model to all times on file of this machine; `tg plan` and the rest guess with it from then on."""
    from tensor_graphs.costs import learned
    from tensor_graphs.costs.training import fitted, samples_of

    if forget:
        learned.file_of_machine().unlink(missing_ok=True)
        if json:
            options.print_json({"forgotten": True})
        else:
            print("guesses are rooflines again")
        return
    with options.database(db, create=False) as database:
        samples = samples_of(database, options.backends(backends), threads)
    model = fitted(samples)
    path = learned.keep(model)
    if json:
        options.print_json({"rows": model.rows, "features": len(model.names), "file": str(path)})
    else:
        print(f"fitted to {model.rows} times by {len(model.names)} features: {path}\n"
              "tg costs check says how good it is on ops that it has not seen; tg costs train --forget removes it")


def check(db: options.DatabaseAt = None, backends: options.Backends = None, threads: options.Threads = None,
          json: options.Json = False) -> None:
    """Predict each fifth of the graphs on file from the others: the model, the roofline, the nearest neighbour."""
    from tensor_graphs.costs.training import APART, checked, samples_of

    with options.database(db, create=False) as database:
        samples = samples_of(database, options.backends(backends), threads)
    found = checked(samples)
    graphs = len({s.graph for s in samples})
    if json:
        options.print_json({"rows": len(samples), "graphs": graphs, "checked": [dataclasses.asdict(q) for q in found]})
        return
    print(f"{len(samples)} times of {graphs} graphs, each predicted without those of its graph\n"
          f"{'':18s} {'off by':>7s} {'pairs':>6s} {'top 1':>6s} {'top 5':>6s}")
    for q in found:
        print(f"{q.name:18s} {q.factor:6.2f}× {q.pairs:6.0%} {q.top1:6.3f} {q.top5:6.3f}")
    print("off by: half of the predictions are within that factor. pairs: of kernels on one workload that differ by more than "
          f"{APART:.0%},\nhow many are in the right order. top 1, top 5: mean time of the best of the first 1, 5 ÷ the best time")
