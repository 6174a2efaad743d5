"""explain: what would be chosen for a graph, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from tensor_graphs.cli import options
from tensor_graphs.cli.graphs import graph_of, typical
from tensor_graphs.phases import IMPORT, phase


def register(app: typer.Typer) -> None:
    app.command("explain")(explain)


def explain(
    source: Annotated[
        str, typer.Argument(metavar="FILE|MODEL", help="A .tg file, a model folder, or a built-in shape.")
    ],
    at: options.At = None,
    largest: options.Largest = None,
    plan: options.PlanFile = None,
    dtype: options.WeightDtype = "float32",
    tolerance: options.GraphTolerance = None,
    backends: options.Backends = None,
    threads: options.Threads = None,
    max_positions: options.MaxPositions = None,
    rows: Annotated[int, typer.Option(min=1, help="Choices shown per variant.")] = 14,
    memory_limit: options.MemoryLimit = None,
    imports: options.Imports = None,
    db: options.DatabaseAt = None,
    json: options.Json = False,
) -> None:
    """Compile a graph and say which kernels were chosen, on which rows or guesses, and what else there was."""
    with phase(IMPORT):
        from tensor_graphs.compiler.compile import compile_graph
        from tensor_graphs.compiler.explain import explain as explain_text
        from tensor_graphs.compiler.explain import explain_data

    graph = graph_of(source, dtype, max_positions)
    sizes = options.sizes(at, graph)
    with options.status("compiling", json) as update:
        made = compile_graph(
            graph,
            tolerance=tolerance,
            backends=options.given_backends(backends),
            database=options.database(db),
            at=typical(graph, at),
            threads=threads,
            progress=update,
            largest=options.sizes(largest, graph, "--largest"),
            memory_limit=memory_limit,
            path=plan,
        )
    with phase("explain"):
        if json:
            options.print_json(explain_data(made, sizes))
        else:
            print(explain_text(made, sizes, rows, sizes))
