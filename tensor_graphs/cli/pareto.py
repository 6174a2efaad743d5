"""pareto: lists the forms of a graph or a model that no other one beats in measured time and error."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tensor_graphs.cli import option_groups, options
from tensor_graphs.cli.graphs import graph_of, is_model, typical
from tensor_graphs.phase_times import IMPORT, phase


def pareto(
    *,
    source: options.Source,
    statistic: Annotated[
        str, typer.Option("--statistic", metavar="NAME", help="Measure of the error against float64: max, norm, kl or cosine.")
    ] = "norm",
    output: Annotated[
        str | None, typer.Option("--output", metavar="NAME", help="Float output whose error counts. [default: the first]")
    ] = None,
    points: Annotated[int, typer.Option("--points", min=2, max=100, help="Most forms to compile.")] = 12,
    draws: Annotated[int, typer.Option("--draws", min=2, max=1000, help="Error draws of each form.")] = 8,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Also draw the forms, time against error.")] = None,
    at: options.At = None,
    dtypes: option_groups.SourceOptions,
    backends: options.Backends = None,
    threads: options.Threads = None,
    max_positions: options.MaxPositions = None,
    common: option_groups.Common,
) -> None:
    """Compile a graph in several forms, with fewer and with more bits, measure the time and the error of each, and list those that
    no other one beats in both. The words of a form, complete with --json, can be given to --precision."""
    with phase(IMPORT):
        from tensor_graphs.choice.graph_forms import words_text
        from tensor_graphs.choice.measured_front import pareto as measure_front
        from tensor_graphs.paths.fit_terminal import duration, human

    wanted: dict[str, Any] = {"backends": options.given_backends(backends), "threads": threads}
    graph = graph_of(source, dtypes, max_positions, greedy=False)
    if is_model(source):
        from tensor_graphs.frontends.huggingface.load import load_model

        model = load_model(source, dtype=dtypes.dtype, activations=dtypes.activations, max_positions=max_positions)
        graph, wanted["weights"], wanted["inputs"] = model.graph, model.weights, model.samples
    sizes = typical(graph, at)
    with options.status("compiling", common.json) as update:
        front = measure_front(graph, statistic=statistic, output=output, points=points, draws=draws, progress=update,
                               database=common.store(), at=sizes, **wanted)
    if svg is not None:
        from tensor_graphs.views.pareto import picture

        shown = ", ".join(f"{n}={s}" for n, s in sizes.items())
        title = f"{len(front)} forms of {Path(source).name}" + (f" at {shown}" if shown else "")
        options.write_file(svg, picture(front, title, f"{statistic} of the error, logarithmic"), "--svg")
    if common.json:
        options.print_json([point.to_json() for point in front])
        return
    print(f"      time   spread  {statistic:>9s}     bound  predicted   weights  precision")
    for p in front:
        predicted = "unknown" if p.predicted is None else f"{p.predicted:.1e}"
        print(f"{duration(p.seconds):>10s} {p.spread:7.1%}  {p.error:9.1e} {p.bound:9.1e} {predicted:>10s} {human(p.nbytes):>9s}  "
              f"{words_text(p.words)}")
