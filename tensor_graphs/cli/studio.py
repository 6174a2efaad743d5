"""studio: writes a page on a graph and its plan: boxes that open, steps with reasons, paths side by side, memory, a run."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from tensor_graphs.cli import option_groups, options
from tensor_graphs.cli.graphs import graph_of, typical
from tensor_graphs.cli.measured_on import measured_on


def studio(
    *,
    source: options.Source,
    html: Annotated[Path, typer.Option("--html", metavar="FILE", help="Write the page into this file. It loads nothing.",
                                       show_default=False)],
    paths: Annotated[int, typer.Option("--paths", min=1, max=100, help="Paths to show side by side.")] = 8,
    run: Annotated[bool, typer.Option("--run", help="Run it, step by step, and show that run.")] = False,
    plan_file: options.PlanFile = None,
    at: options.At = None,
    choice: option_groups.GraphOptions,
    common: option_groups.Common,
) -> None:
    """Write one HTML file that shows a graph, its plan and the reasons for it: open it in a browser."""
    from tensor_graphs.choice.compile import compile_graph
    from tensor_graphs.choice.path_listing import list_paths
    from tensor_graphs.studio.data import page_data
    from tensor_graphs.studio.page import html_page
    from tensor_graphs.views.timeline import timeline

    graph = graph_of(source, choice, choice.max_positions)
    store = common.store()
    on, sizes, title = measured_on(source, choice, store), typical(graph, at), Path(source).name
    with options.status("compiling", common.json) as update:
        plan = compile_graph(graph, **choice.request(), **on, database=store, at=sizes, progress=update, path=plan_file)
        update("listing paths")
        listed = list(islice(list_paths(graph, **choice.request(), **on, database=store, at=sizes), paths))
        update("running it step by step")
        trace = timeline(plan, store, sizes, title, choice.threads) if run else None
    data = page_data(graph, plan, title, sizes, paths=listed, run=trace)
    options.write_file(html, html_page(data), "--html")
    if common.json:
        options.print_json({"file": str(html), "path": data["path"], "us": data["us"], "steps": len(data["steps"])})
    else:
        print(f"{html}: {title}, {len(data['steps'])} kinds of steps, {len(listed)} paths; open it in a browser")
