"""show: a graph in its text form, with types."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tensor_graphs.cli import drawing, options
from tensor_graphs.cli.graphs import graph_of


def register(app: typer.Typer) -> None:
    app.command("show")(show)


def show(
    source: Annotated[
        str, typer.Argument(metavar="FILE|MODEL", help="A .tg file, a model folder, or a built-in shape.")
    ],
    dtype: Annotated[str, typer.Option(help="Of a model's weights.")] = "float32",
    max_positions: options.MaxPositions = None,
    expand: Annotated[bool, typer.Option("--expand", help="Replace every composite by its definition.")] = False,
    svg: drawing.Svg = None,
    dot: drawing.Dot = None,
    imports: options.Imports = None,
    json: options.Json = False,
) -> None:
    """Print a graph in canonical text: inputs, nodes, outputs, updates, and its structural key."""
    from tensor_graphs.language.json_form import graph_to_json
    from tensor_graphs.language.text_writer import print_graph
    from tensor_graphs.rewrites.recognise import write_out

    drawing.check(svg)
    graph = graph_of(source, dtype, max_positions)
    if expand:
        graph = write_out(graph)
    if svg is not None or dot is not None:
        from tensor_graphs.compiler.diagram import of_graph

        drawing.write(of_graph(graph, Path(source).name), svg, dot)
        if not json:
            return
    if json:
        import json as library

        options.print_json(
            {
                "structural_key": graph.structural_key,
                "graph": library.loads(graph_to_json(graph)),
                "text": print_graph(graph),
                "nodes": len(graph.nodes),
            }
        )
    else:
        print(print_graph(graph), end="")
        print(f"# structural key {graph.structural_key}")
