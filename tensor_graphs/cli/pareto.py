"""pareto: lists the forms of a graph or a model that no other one beats in measured time and error, or in bytes and error."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tensor_graphs.cli import option_groups, options
from tensor_graphs.cli.graphs import graph_of, is_model, typical
from tensor_graphs.cli.measured_on import calibration_of
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
    points: Annotated[int, typer.Option("--points", min=2, max=100, help="Most forms to compile, or to list.")] = 12,
    objective: Annotated[
        Literal["time", "bytes"], typer.Option("--objective", help="Measured time against measured error; or, of a model, bytes of "
                                               "its GGUF file against predicted error: `tg convert --bytes` writes it.")
    ] = "time",
    calibration: options.Calibration = None,
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

    if objective == "bytes":
        _list_files(source, points, calibration, common)
        return
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


def _list_files(source: str, points: int, calibration: str | None, common: option_groups.Common) -> None:
    """Print GGUF files of a model that no other one beats in bytes and predicted error."""
    if not is_model(source):
        raise options.NotPossible(f"{source} is no model, so it has no GGUF file\n  fix: a model folder or a .gguf file")
    from tensor_graphs.choice.graph_forms import words_text
    from tensor_graphs.costs.form_front import spaced
    from tensor_graphs.frontends.huggingface.load import load_model

    with options.status("reading activations", common.json) as update:
        choice = calibration_of(load_model(source), calibration, common.db, update)
        files = [choice.typed(form) for form in spaced(choice.front, points, "nbytes")]
    if common.json:
        options.print_json([{"bytes": file.nbytes, "predicted_error": file.error, "statistic": choice.metric,
                             "precision": dict(file.words)} for file in files])
        return
    print(f"     bytes   bits {'predicted ' + choice.metric:>16s}  precision")
    for file in files:
        bits = 8 * (file.nbytes - choice.others) / choice.numbers
        print(f"{file.nbytes / 1e6:7.1f} MB {bits:6.2f} {file.error:16.1e}  {words_text(file.words)}")
