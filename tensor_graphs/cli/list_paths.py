"""list_paths: the ways to run a graph, cheapest first."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from tensor_graphs.cli import options


def register(app: typer.Typer) -> None:
    app.command("list-paths")(list_paths)


def list_paths(
    file: Annotated[str, typer.Argument(help="A .tg file.")],
    limit: Annotated[int, typer.Option(min=1, help="At most this many paths.")] = 50,
    at: options.At = None,
    tolerance: options.GraphTolerance = None,
    backends: options.Backends = "c,numpy,torch",
    db: options.DatabaseAt = None,
    json: options.Json = False,
) -> None:
    """List the paths of a graph: price, whether it is measured, the largest kernel error on file, and the steps."""
    from tensor_graphs.compiler.choose import list_paths as enumerate_paths

    graph = options.read_graph(file)
    found = list(
        islice(
            enumerate_paths(
                graph,
                backends=options.backends(backends),
                tolerance=tolerance,
                database=options.database(db),
                at=options.sizes(at, graph),
            ),
            limit,
        )
    )
    if json:
        options.print_json(
            [
                {"id": p.id, "price_us": p.seconds * 1e6, "measured": p.measured, "error": p.error, "steps": p.steps()}
                for p in found
            ]
        )
        return
    for p in found:
        error = "error unknown" if p.error is None else f"error {p.error:.1e}"
        print(f"{p.id}  {p.seconds * 1e6:10.1f} µs  {'measured' if p.measured else 'guess':8s} {error}")
        for step in p.steps():
            if step["kernel"] != "expand":
                print(f"      {step['kernel']:20s} × {step['calls']:<3d} {step['op']}")
    if len(found) == limit:
        print(f"(the first {limit}; --limit shows more)")
