"""show: prints a graph in its text form, with types."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tensor_graphs.cli import drawing, option_groups, options
from tensor_graphs.cli.graphs import graph_of, typical


def show(
    *,
    source: Annotated[
        str, typer.Argument(metavar="FILE|MODEL", help="A .tg file, a model folder, or a built-in shape.", show_default=False)
    ] = "",
    dtypes: option_groups.SourceOptions,
    max_positions: options.MaxPositions = None,
    expand: Annotated[bool, typer.Option("--expand", help="Replace every composite by its definition.")] = False,
    svg: drawing.Svg = None,
    dot: drawing.Dot = None,
    kernel: Annotated[
        str | None,
        typer.Option("--source", metavar="KERNEL|STEP", help="The text of a kernel, by its name or by a step of the graph's plan."),
    ] = None,
    backends: options.Backends = None,
    at: options.At = None,
    common: option_groups.Common,
) -> None:
    """Print a graph in canonical text (inputs, nodes, outputs, updates) and its structural key; or draw it; or print the text of
    a kernel."""
    if kernel is not None:
        _show_source(source, kernel, dtypes, max_positions, backends, at, common)
        return
    if not source:
        raise options.UsageError("tg show: which graph?\n  fix: a .tg file, a model folder or a built-in shape; or --source KERNEL")
    from tensor_graphs.language.json_writer import graph_to_json
    from tensor_graphs.language.text_writer import print_graph
    from tensor_graphs.rewrites.passes.recognise import write_out

    graph = graph_of(source, dtypes, max_positions)
    if expand:
        graph = write_out(graph)
    if svg is not None or dot is not None:
        from tensor_graphs.views.diagram import of_graph

        drawing.write(of_graph(graph, Path(source).name), svg, dot)
        if not common.json:
            return
    if common.json:
        import json

        options.print_json({"structural_key": graph.structural_key, "graph": json.loads(graph_to_json(graph)),
                            "text": print_graph(graph), "nodes": len(graph.nodes)})
    else:
        print(print_graph(graph), end="")
        print(f"# structural key {graph.structural_key}")


def _show_source(source: str, kernel: str, dtypes: option_groups.SourceOptions, max_positions: int | None, backends: str | None,
                 at: str | None, common: option_groups.Common) -> None:
    """Print the source of the kernel with that name, or of the kernels in a plan of the graph."""
    from dataclasses import asdict

    from tensor_graphs.views.kernel_text import texts_in, texts_named

    if source:
        from tensor_graphs.choice.compile import compile_graph

        graph = graph_of(source, dtypes, max_positions)
        sizes = typical(graph, at)
        with options.status("compiling", common.json) as update:
            plan = compile_graph(graph, backends=options.given_backends(backends), database=common.store(), at=sizes,
                                 progress=update)
        texts = texts_in(plan, plan.variant({**plan.variants[0].at, **sizes}), kernel)
    else:
        texts = texts_named(kernel)
    if common.json:
        options.print_json([asdict(text) for text in texts])
    else:
        print("\n".join(text.lines() for text in texts), end="")
