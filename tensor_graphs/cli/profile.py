"""profile: measure what the compiler would want to know about a graph, within a budget; resumable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from tensor_graphs.cli import options
from tensor_graphs.cli.graphs import graph_of, typical


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
    dtype: options.WeightDtype = "float32",
    tolerance: options.GraphTolerance = None,
    backends: options.Backends = "c,numpy",
    threads: options.Threads = None,
    max_positions: options.MaxPositions = None,
    again: Annotated[
        bool, typer.Option("--again", help="Measure everything anew, also what is known and not in doubt.")
    ] = False,
    inputs: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUES", help="Real values of an input: w=model.safetensors:norm.weight, s=0.5. Repeatable."),
    ] = None,
    db: options.DatabaseAt = None,
    json: options.Json = False,
) -> None:
    """Measure kernels for a graph and store every row. Ctrl-C is safe; the next call goes on from there."""
    from tensor_graphs.compiler.profile_graph import profile_graph

    graph = graph_of(source, dtype, max_positions)
    store = options.database(db)
    with options.progress("profiling", json) as show:
        report = profile_graph(
            graph,
            budget=budget,
            per_kernel=per_kernel,
            backends=options.backends(backends),
            database=store,
            tolerance=tolerance,
            at=typical(graph, at),
            threads=threads,
            inputs=named(inputs or []),
            again=again,
            on_step=lambda done, total, what: show(done, total, what[:60]),
        )
    if json:
        options.print_json(
            {
                "measured": report.measured,
                "again": report.again,
                "already_known": report.already_known,
                "deployed": report.deployed,
                "failed": report.failed,
                "left": report.left,
                "seconds": report.seconds,
                "device_seconds": report.device_seconds,
                "search_seconds": report.search_seconds,
                "statuses": report.statuses,
                "interrupted": report.interrupted,
                "unused_inputs": list(report.unused),
                "database": store.location,
            }
        )
    else:
        repeated = f" ({report.again} of these again)" if report.again else ""
        print(
            f"{report.measured} measured{repeated}, {report.already_known} known already, {report.failed} failed, "
            f"{report.deployed} steps measured in place, {report.left} left in {report.seconds:.1f} s · {store.location}"
        )
        for name in report.unused:
            print(f"{name}: no measured op reads it directly, so its values were of no use")
        if report.device_seconds > 0.5 and not report.interrupted:
            options.note(
                f"{report.device_seconds:.1f} s went into measuring the device's bandwidth and flops, which is done once a month"
            )
        if report.seconds > budget + report.device_seconds and report.search_seconds > 0.5 and not report.interrupted:
            options.note(f"{report.search_seconds:.1f} s went into finding out what to measure, beside the budget")
    if report.interrupted:
        options.told = True
        if not json:
            print(options.STOPPED)
        raise typer.Exit(130)


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
