"""plan: what would be run, at all sizes; written to a file that other verbs run again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tensor_graphs.cli import drawing, options
from tensor_graphs.cli.graphs import graph_of, typical

if TYPE_CHECKING:
    from tensor_graphs.language.graph import Graph


def register(app: typer.Typer) -> None:
    app.command("plan")(plan)


def plan(
    source: Annotated[
        str, typer.Argument(metavar="FILE|MODEL", help="A .tg file, a model folder, or a built-in shape.")
    ],
    pin: Annotated[
        Path | None, typer.Option("--pin", metavar="FILE", help="Write the chosen paths to this file, by identity.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file of --pin.")] = False,
    plan_file: options.PlanFile = None,
    logits: Annotated[
        bool, typer.Option("--logits", help="Of a decoder, the graph that `tg run` uses where tokens are drawn (--temperature, …).")
    ] = False,
    svg: drawing.Svg = None,
    dot: drawing.Dot = None,
    at: options.At = None,
    largest: options.Largest = None,
    dtype: options.WeightDtype = None,
    tolerance: options.GraphTolerance = None,
    intermediates: options.Intermediates = "auto",
    backends: options.Backends = None,
    threads: options.Threads = None,
    max_positions: options.MaxPositions = None,
    memory_limit: options.MemoryLimit = None,
    imports: options.Imports = None,
    db: options.DatabaseAt = None,
    json: options.Json = False,
) -> None:
    """Choose the paths of a graph, print them on one screen, and write them to a file that --plan runs again."""
    from tensor_graphs.choice.compile import compile_graph

    if pin is not None:
        options.check_new(pin, force)                               # before anything is compared
    drawing.check(svg)
    graph = graph_of(source, dtype, max_positions, greedy=not logits)
    with options.status("compiling", json) as update:
        made = compile_graph(graph, tolerance=tolerance, backends=options.given_backends(backends),
                             database=options.database(db, pinned=plan_file is not None),
                             at=typical(graph, at), threads=threads, progress=update,
                             largest=options.sizes(largest, graph, "--largest"), memory_limit=memory_limit, path=plan_file,
                             intermediates=intermediates)
    pinned = made.pin.made_of(_in_words(source, graph, max_positions, logits))
    if pin is not None:
        pinned.save(pin, overwrite=force)
    if svg is not None or dot is not None:
        from tensor_graphs.views.diagram import of_plan

        drawing.write(of_plan(made, typical(graph, at), Path(source).name), svg, dot)
    if json:
        options.print_json({"pin": pinned.to_json(), "file": None if pin is None else str(pin), "memory": made.memory().to_json(),
                            "predicted_us": [v.predicted * 1e6 for v in made.variants],
                            "measured_share": [v.measured_share for v in made.variants]})
        return
    print(made)
    if pin is not None:
        print(f"pinned: {pin} (tg run, chat, embed, explain and plan take it: --plan {pin})")


def _in_words(source: str, graph: Graph, max_positions: int | None, logits: bool) -> str:
    """What a graph was made of, as it is typed."""
    if source.endswith(".tg"):
        return source
    kept = {p.dtype for p in graph.parameters.values() if p.dtype.is_float}
    said = [source, *(f"--dtype {dtype.numpy.name}" for dtype in kept),
            *([f"--max-positions {max_positions}"] if max_positions is not None else []), *(["--logits"] if logits else [])]
    return " ".join(said)
