"""plan: chooses the paths of a graph for all sizes, and writes them to a file that other verbs can run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tensor_graphs.cli import drawing, option_groups, options
from tensor_graphs.cli.graphs import graph_of, typical
from tensor_graphs.cli.measured_on import measured_on

if TYPE_CHECKING:
    from tensor_graphs.language.graph import Graph


def plan(
    *,
    source: options.Source,
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
    choice: option_groups.GraphOptions,
    memory_limit: options.MemoryLimit = None,
    common: option_groups.Common,
) -> None:
    """Choose the paths of a graph, print them on one screen, and write them to a file that --plan runs again."""
    from tensor_graphs.choice.compile import compile_graph

    if pin is not None:
        options.check_new(pin, force)                               # before anything is compared
    graph = graph_of(source, choice, choice.max_positions, greedy=not logits)
    store = common.store(pinned=plan_file is not None)
    on = measured_on(source, choice, store, asked=plan_file is not None)
    with options.status("compiling", common.json) as update:
        plan = compile_graph(graph, **choice.request(), **on, database=store, at=typical(graph, at), progress=update,
                             largest=options.sizes(largest, graph, "--largest"), memory_limit=memory_limit, path=plan_file)
    pinned = plan.pin.made_of(_in_words(source, graph, choice, logits))
    if pin is not None:
        pinned.save(pin, overwrite=force)
    if svg is not None or dot is not None:
        from tensor_graphs.views.diagram import of_plan

        drawing.write(of_plan(plan, typical(graph, at), Path(source).name), svg, dot)
    if common.json:
        options.print_json({"pin": pinned.to_json(), "file": None if pin is None else str(pin), "memory": plan.memory().to_json(),
                            "predicted_us": [v.predicted * 1e6 for v in plan.variants],
                            "measured_share": [v.measured_share for v in plan.variants]})
        return
    print(plan)
    if pin is not None:
        print(f"pinned: {pin} (tg run, chat, embed, explain and plan take it: --plan {pin})")


def _in_words(source: str, graph: Graph, choice: option_groups.GraphOptions, logits: bool) -> str:
    """Return the command-line arguments from which the graph was built."""
    if source.endswith((".tg", ".onnx")):
        return source if choice.dims is None else f"{source} --dims {choice.dims}"
    dtypes = {p.dtype for p in graph.parameters.values() if p.dtype.is_float}
    return " ".join([source, *(f"--dtype {dtype.numpy.name}" for dtype in dtypes),
                     *([f"--activations {choice.activations}"] if choice.activations else []),
                     *([f"--max-positions {choice.max_positions}"] if choice.max_positions is not None else []),
                     *(["--logits"] if logits else [])])
