"""trace: one run of a plan as a timeline for Perfetto or Chrome."""

from __future__ import annotations

import json as library
from pathlib import Path
from typing import Annotated

import typer

from tensor_graphs.cli import options
from tensor_graphs.cli.graphs import graph_of, typical


def register(app: typer.Typer) -> None:
    app.command("trace")(trace)


def trace(
    source: Annotated[
        str, typer.Argument(metavar="FILE|MODEL", help="A .tg file, a model folder, or a built-in shape.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The trace, as JSON for ui.perfetto.dev or chrome://tracing.")],
    plan: options.PlanFile = None,
    at: options.At = None,
    dtype: options.WeightDtype = None,
    tolerance: options.GraphTolerance = None,
    intermediates: options.Intermediates = "auto",
    backends: options.Backends = None,
    threads: options.Threads = None,
    max_positions: options.MaxPositions = None,
    imports: options.Imports = None,
    db: options.DatabaseAt = None,
    json: options.Json = False,
) -> None:
    """Run a graph once, step by step, on random values, and write when each step began and ended."""
    from tensor_graphs.choice.compile import compile_graph
    from tensor_graphs.views.timeline import timeline

    graph = graph_of(source, dtype, max_positions)
    store = options.database(db, pinned=plan is not None)
    with options.status("compiling", json) as update:
        made = compile_graph(graph, tolerance=tolerance, backends=options.given_backends(backends), database=store,
                             at=typical(graph, at), threads=threads, progress=update, path=plan, intermediates=intermediates)
        update("running")
        document = timeline(made, store, typical(graph, at), Path(source).name, threads)
    options.write_file(out, library.dumps(document) + "\n", "--out")
    said = document["otherData"]
    steps = sum(event["ph"] == "X" for event in document["traceEvents"]) - 1
    if json:
        options.print_json({"file": str(out), "steps": steps, **said})
        return
    print(f"{out}: {steps} steps, {said['step_by_step_us']:.0f} µs step by step ({said['in_steps_us']:.0f} in steps), "
          f"{said['one_go_us']:.0f} in one go; open it in ui.perfetto.dev or chrome://tracing")
