"""trace: records one run of a plan as a timeline for Perfetto or Chrome."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tensor_graphs.cli import option_groups, options
from tensor_graphs.cli.graphs import graph_of, typical
from tensor_graphs.cli.measured_on import measured_on


def trace(
    *,
    source: options.Source,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The trace, as JSON for ui.perfetto.dev or chrome://tracing.")],
    plan: options.PlanFile = None,
    at: options.At = None,
    choice: option_groups.GraphOptions,
    common: option_groups.Common,
) -> None:
    """Run a graph once, step by step, on random values, and write when each step began and ended."""
    from tensor_graphs.choice.compile import compile_graph
    from tensor_graphs.views.timeline import timeline

    graph = graph_of(source, choice, choice.max_positions)
    store = common.store(pinned=plan is not None)
    on = measured_on(source, choice, store, asked=plan is not None)
    with options.status("compiling", common.json) as update:
        compiled = compile_graph(graph, **choice.request(), **on, database=store, at=typical(graph, at), progress=update, path=plan)
        update("running")
        document = timeline(compiled, store, typical(graph, at), Path(source).name, choice.threads)
    options.write_file(out, json.dumps(document) + "\n", "--out")
    times = document["otherData"]
    steps = sum(event["ph"] == "X" for event in document["traceEvents"]) - 1
    if common.json:
        options.print_json({"file": str(out), "steps": steps, **times})
        return
    print(f"{out}: {steps} steps, {times['step_by_step_us']:.0f} µs step by step ({times['in_steps_us']:.0f} in steps), "
          f"{times['one_go_us']:.0f} in one go; open it in ui.perfetto.dev or chrome://tracing")
