"""profile: measures what the compiler needs to know about a graph, within a budget; it can be resumed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated

import typer

from tensor_graphs.cli import option_groups, options
from tensor_graphs.cli.graphs import graph_of, typical
from tensor_graphs.cli.measured_on import measured_on

COUNTS = ("measured", "again", "already_known", "deployed", "paths", "failed", "left", "arisen", "seconds", "device_seconds",
          "search_seconds", "over_seconds")
"""keys of the JSON document that are fields of the report"""


def profile(
    *,
    source: options.Source,
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
    choice: option_groups.GraphOptions,
    again: Annotated[
        bool, typer.Option("--again", help="Measure everything anew, also what is known and not in doubt.")
    ] = False,
    inputs: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUES", help="Real values of an input: w=model.safetensors:norm.weight, s=0.5. Repeatable."),
    ] = None,
    kernel: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Just this kernel, wherever its op occurs. Repeatable."),
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
    common: option_groups.Common,
) -> None:
    """Measure kernels for a graph and store every row. Ctrl-C is safe; the next call goes on from there. With --kernel or --op
    each verdict is a line, and the exit code is 1 where a kernel is wrong."""
    from tensor_graphs.choice.profile_graph import profile_graph
    from tensor_graphs.measure.queue.profile_report import LEFT, NOT_OFFERED

    graph = graph_of(source, choice, choice.max_positions)
    store = common.store()
    single = bool(kernel or op)
    if paths and (single or inputs):
        raise options.UsageError("--paths measures whole paths on random values\n  fix: --paths, or --kernel, --op and --inputs")
    if tune and (single or paths):
        raise options.UsageError("--tune goes with a whole graph\n  fix: --tune, or --kernel, --op and --paths")
    if strategy is not None and not tune:
        raise options.UsageError("--strategy says how --tune searches\n  fix: --tune SECONDS, or no --strategy")
    if single and inputs:
        raise options.UsageError("--inputs goes with a whole graph\n  fix: --inputs, or --kernel and --op")
    with options.progress("profiling", common.json) as show:
        report = profile_graph(graph, **choice.request() | {"backends": options.backends(choice.backends)}, budget=budget,
                               **measured_on(source, choice, store, inputs="accuracy_inputs"), per_kernel=per_kernel,
                               database=store, at=typical(graph, at), inputs=named(inputs or []), kernels=kernel or (),
                               ops=op or (), tune=tune or 0.0, strategy=strategy, on_start=lambda ahead: options.note(str(ahead)),
                               paths=paths or 0, again=again, on_step=lambda done, total, what: show(done, total, what[:60]),
                               on_verdict=None if common.json else lambda verdict: print(verdict, flush=True))
    if common.json:
        options.print_json(
            {
                **{name: getattr(report, name) for name in COUNTS},
                "ahead": {name: value for name, value in dataclasses.asdict(report.ahead).items() if name != "budget"},
                "statuses": report.statuses, "interrupted": report.interrupted, "unused_inputs": list(report.unused),
                "rests": [dataclasses.asdict(rest) for rest in report.rests], "may_save": report.may_save,
                "verdicts": [{**dataclasses.asdict(verdict), "ratio": verdict.ratio} for verdict in report.verdicts],
                "tuned": [dataclasses.asdict(search) for search in report.tuned],
                "walked": [dataclasses.asdict(walk) for walk in report.walked], "walked_share": report.walked_share,
                "sizes": [dict(sizes) for sizes in report.sizes], "database": store.location,
            }
        )
    else:
        counts, *more = report.summary("command", lambda sizes: f"--at {','.join(f'{n}={s}' for n, s in sizes.items())}")
        print("\n".join((f"{counts} · {store.location}", *more)))
    if report.interrupted:
        options.told = True
        if not common.json:
            print(options.STOPPED)
        raise typer.Exit(130)
    refused = [name for name in kernel or () if {v.status for v in report.verdicts if v.kernel == name} == {NOT_OFFERED}]
    if refused:
        raise options.NotPossible(f"{', '.join(refused)}: not offered for this graph; the lines above say why\n"
                                  f"  fix: without it, or --op, which measures all that is offered")
    if single and any(v.status not in ("PASSED", NOT_OFFERED, LEFT) for v in report.verdicts):
        raise typer.Exit(1)


def named(pairs: Sequence[str]) -> dict[str, str]:
    """Return name -> values, from pairs such as `w=model.safetensors:norm.weight`. Raises UsageError."""
    out: dict[str, str] = {}
    for pair in pairs:
        name, sign, values = pair.partition("=")
        if not (name and sign and values):
            raise options.UsageError(f"--inputs: {pair!r} names no values\n  fix: --inputs w=model.safetensors:norm.weight")
        if name in out:
            raise options.UsageError(f"--inputs: {name!r} is given twice\n  fix: once each")
        out[name] = values
    return out
