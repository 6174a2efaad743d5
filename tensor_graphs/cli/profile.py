"""profile: measure what the compiler would want to know about a graph, within a budget; resumable."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tensor_graphs.cli import options
from tensor_graphs.cli.graphs import graph_of, typical

if TYPE_CHECKING:
    from tensor_graphs.measure.queue.report import Answered
    from tensor_graphs.measure.queue.time_left import Ahead


def register(app: typer.Typer) -> None:
    app.command("profile")(profile)


def profile(
    source: Annotated[
        str, typer.Argument(metavar="FILE|MODEL", help="A .tg file, a model folder, or a built-in shape.")
    ],
    budget: Annotated[
        float, typer.Option(min=0.1, help="Seconds to spend on measuring; finding out what to measure comes on top.")
    ] = 60.0,
    per_kernel: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            metavar="SECONDS",
            help="Timed runs for each kernel (0.25, less of a small budget), from 0.6 on in several processes.",
        ),
    ] = None,
    at: options.At = None,
    dtype: options.WeightDtype = None,
    tolerance: options.GraphTolerance = None,
    intermediates: options.Intermediates = "auto",
    backends: options.Backends = None,
    threads: options.Threads = None,
    max_positions: options.MaxPositions = None,
    again: Annotated[
        bool, typer.Option("--again", help="Measure everything anew, also what is known and not in doubt.")
    ] = False,
    inputs: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUES", help="Real values of an input: w=model.safetensors:norm.weight, s=0.5. Repeatable."),
    ] = None,
    kernel: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Just this kernel, wherever its op occurs. Repeatable."),
    ] = None,
    op: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Just the kernels of this op. Repeatable.")
    ] = None,
    paths: Annotated[
        int | None,
        typer.Option(min=1, max=options.MOST_ROWS, metavar="N",
                     help="The first N listed paths as wholes, and the one that is written out the furthest."),
    ] = None,
    tune: Annotated[
        float | None, typer.Option(min=0.1, metavar="SECONDS", help="Then search schedules of generated kernels for as long.")
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(metavar="NAME", help="How: descent (as it is), beam, evolution, tree, random, or one of --import.")
    ] = None,
    imports: options.Imports = None,
    db: options.DatabaseAt = None,
    json: options.Json = False,
) -> None:
    """Measure kernels for a graph and store every row. Ctrl-C is safe; the next call goes on from there. With --kernel or --op
    each verdict is a line, and the exit code is 1 where a kernel is wrong."""
    from tensor_graphs.choice.profile_graph import profile_graph
    from tensor_graphs.measure.queue.report import LEFT, NOT_OFFERED

    graph = graph_of(source, dtype, max_positions)
    store = options.database(db)
    single = bool(kernel or op)
    if paths and (single or inputs):
        raise options.UsageError("--paths measures whole paths on random values\n  fix: --paths, or --kernel, --op and --inputs")
    if tune and (single or paths):
        raise options.UsageError("--tune goes with a whole graph\n  fix: --tune, or --kernel, --op and --paths")
    if strategy is not None and not tune:
        raise options.UsageError("--strategy says how --tune searches\n  fix: --tune SECONDS, or no --strategy")
    if single and inputs:
        raise options.UsageError("--inputs goes with a whole graph\n  fix: --inputs, or --kernel and --op")
    with options.progress("profiling", json) as show:
        report = profile_graph(graph, budget=budget, per_kernel=per_kernel, backends=options.backends(backends), database=store,
                               tolerance=tolerance, at=typical(graph, at), threads=threads, inputs=named(inputs or []), again=again,
                               kernels=kernel or (), ops=op or (), intermediates=intermediates, paths=paths or 0, tune=tune or 0.0,
                               strategy=strategy,
                               on_step=lambda done, total, what: show(done, total, what[:60]),
                               on_start=announce, on_verdict=None if json else print_at_once)
    if json:
        options.print_json(
            {
                "measured": report.measured,
                "again": report.again,
                "already_known": report.already_known,
                "deployed": report.deployed,
                "paths": report.paths,
                "failed": report.failed,
                "left": report.left,
                "arisen": report.arisen,
                "seconds": report.seconds,
                "device_seconds": report.device_seconds,
                "search_seconds": report.search_seconds,
                "over_seconds": report.over_seconds,
                "ahead": {name: value for name, value in dataclasses.asdict(report.ahead).items() if name != "budget"},
                "statuses": report.statuses,
                "interrupted": report.interrupted,
                "unused_inputs": list(report.unused),
                "rests": [dataclasses.asdict(each) for each in report.rests],
                "may_save": report.may_save,
                "verdicts": [{**dataclasses.asdict(each), "ratio": each.ratio} for each in report.verdicts],
                "tuned": [dataclasses.asdict(each) for each in report.tuned],
                "walked": [dataclasses.asdict(each) for each in report.walked],
                "walked_share": report.walked_share,
                "sizes": [dict(each) for each in report.sizes],
                "database": store.location,
            }
        )
    else:
        counts, *more = report.summary("command", lambda sizes: f"--at {','.join(f'{n}={s}' for n, s in sizes.items())}")
        print("\n".join((f"{counts} · {store.location}", *more)))
    if report.interrupted:
        options.told = True
        if not json:
            print(options.STOPPED)
        raise typer.Exit(130)
    refused = [name for name in kernel or () if {v.status for v in report.verdicts if v.kernel == name} == {NOT_OFFERED}]
    if refused:
        raise options.NotPossible(f"{', '.join(refused)}: not offered for this graph; the lines above say why\n"
                                  f"  fix: without it, or --op, which measures all that is offered")
    if single and any(v.status not in ("PASSED", NOT_OFFERED, LEFT) for v in report.verdicts):
        raise typer.Exit(1)


def announce(ahead: Ahead) -> None:
    """Say what the profile takes beside its budget, before it begins."""
    options.note(str(ahead))


def print_at_once(verdict: Answered) -> None:
    """A line as soon as it is known, also into a pipe."""
    print(verdict, flush=True)


def named(pairs: Sequence[str]) -> dict[str, str]:
    """`w=model.safetensors:norm.weight` and so on, by name. Raises UsageError."""
    out: dict[str, str] = {}
    for pair in pairs:
        name, sign, values = pair.partition("=")
        if not (name and sign and values):
            raise options.UsageError(f"--inputs: {pair!r} names no values\n  fix: --inputs w=model.safetensors:norm.weight")
        if name in out:
            raise options.UsageError(f"--inputs: {name!r} is given twice\n  fix: once each")
        out[name] = values
    return out
