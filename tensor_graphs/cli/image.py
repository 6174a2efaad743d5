"""image: draws a picture with the folder of a pipeline of diffusers."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from tensor_graphs.cli import option_groups, options
from tensor_graphs.cli.compiling import compiled_graph
from tensor_graphs.phase_times import IMPORT, phase

GUIDANCE = {"StableDiffusionPipeline": 7.5, "StableDiffusion3Pipeline": 7.0, "FluxPipeline": 3.5}
"""strength of guidance unless one is given, as in diffusers"""


def image(
    *,
    model: Annotated[str, typer.Argument(help="The folder of a pipeline that diffusers wrote (model_index.json, unet/, vae/, …).")],
    prompt: Annotated[str, typer.Option(help="What the picture shows.")],
    out: Annotated[Path, typer.Option(help="The PNG file to write.")],
    negative: Annotated[str, typer.Option(help="What the picture does not show.")] = "",
    steps: Annotated[int, typer.Option(help="Steps of the sampler.", min=1)] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the noise.", min=0)] = 0,
    size: Annotated[str | None, typer.Option(help="HEIGHTxWIDTH in pixels (default: 512x512, or the size of --init).")] = None,
    guidance: Annotated[float | None, typer.Option(help="Weight of the prompt; 1: no guidance (default: the family's).")] = None,
    sampler: Annotated[str | None, typer.Option(help="ddim, euler or dpm++ in place of the folder's; flow models: flow.")] = None,
    init: Annotated[Path | None, typer.Option(help="A PNG file to start from.")] = None,
    strength: Annotated[float, typer.Option(help="With --init: the share of the steps that change it.", min=0.0, max=1.0)] = 0.8,
    random_weights: Annotated[int | None, typer.Option(help="Draw the weights from this seed; the folder then needs none.")] = None,
    choice: option_groups.ModelOptions,
    common: option_groups.Common,
) -> None:
    """Draw a picture of a prompt."""
    with phase(IMPORT):
        from tensor_graphs.frontends.diffusers import open_pipeline
        from tensor_graphs.models.diffusion.schedules import SAMPLERS
        from tensor_graphs.serving.pictures import Painter, PictureRequest
        from tensor_graphs.serving.png import read_png, write_png

    if sampler is not None and sampler not in SAMPLERS:
        raise options.UsageError(f"--sampler {sampler} is not known\n  fix: one of {', '.join(SAMPLERS)}")
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise options.UsageError(f"--out {out} {'is a folder' if out.is_dir() else 'lies in no folder that there is'}\n"
                                 "  fix: a PNG file in a folder that exists")
    start = read_png(init) if init is not None else None
    height, width = _size(size) if size is not None else (512, 512) if start is None else start.shape[:2]
    with phase("read model"):
        pipeline = open_pipeline(model, random_seed=random_weights)
    wanted = PictureRequest(prompt, steps, seed, height, width, GUIDANCE[pipeline.kind] if guidance is None else guidance, negative,
                    sampler, start, strength)
    at = {"a": height // pipeline.multiple, "b": width // pipeline.multiple}
    painter = Painter(pipeline, _compiler(choice, common, at))
    times: list[float] = []
    picture = painter.draw(wanted, lambda step: times.append(time.perf_counter()))
    write_png(out, picture)
    seconds = [after - before for before, after in itertools.pairwise(times[1:])]
    if common.json:
        options.print_json({"file": str(out), "height": height, "width": width, "seed": seed, "steps": steps,
                            "step_seconds": min(seconds, default=None)})
        return
    print(f"{out}: {height} × {width} pixels" + (f", {min(seconds):.3f} s a step" if seconds else ""))


def _compiler(choice: option_groups.ModelOptions, common: option_groups.Common, at: Mapping[str, int]) -> Callable[..., Any]:
    """Return the function that compiles and binds one graph of the pipeline."""
    def compiler(name: str, graph: Any, weights: Mapping[str, Any]) -> Any:
        sizes = {d: size for d, size in at.items() if d in graph.dims}
        return compiled_graph(graph, weights, choice, common.db, at=sizes, quiet=common.json, what=f"compiling the {name}")[1].run

    return compiler


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,5})[x×](\d{1,5})", text)
    if match is None:
        raise options.UsageError(f"--size {text} is no size\n  fix: HEIGHTxWIDTH, as 512x768")
    return int(match[1]), int(match[2])
