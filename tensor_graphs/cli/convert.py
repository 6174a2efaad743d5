"""convert: writes a model of a folder, or of a GGUF file, as a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tensor_graphs.cli import options
from tensor_graphs.phase_times import IMPORT, phase


def convert(
    *,
    model: Annotated[str, typer.Argument(help="A model folder (config.json, *.safetensors) or a .gguf file.")],
    file: Annotated[Path, typer.Argument(metavar="FILE.gguf", help="The file that is written.")],
    precision: Annotated[
        str, typer.Option(metavar="TYPE|WORDS", help="Type of the matrices in the file: F32, F16, BF16, Q8_0, Q6_K, Q5_K, Q4_K, "
                          "Q5_0, Q4_0, MXFP4, …; or words of weights: weight=q4_0,weight:model.embed*=q8_0.")
    ] = "F32",
    force: Annotated[bool, typer.Option("--force", help="Replace the file, if it is there.")] = False,
    json: options.Json = False,
) -> None:
    """Write a model as a GGUF file, which `tg run`, `tg embed` and llama.cpp read."""
    with phase(IMPORT):
        from tensor_graphs.frontends.gguf.write import write_model
        from tensor_graphs.frontends.huggingface.load import load_model

    options.check_new(file, force)
    loaded = load_model(model)
    with options.status("writing", json):
        write_model(loaded, file, precision=precision)
    size = file.stat().st_size
    if json:
        options.print_json({"file": str(file), "bytes": size, "precision": precision})
        return
    print(f"{file}: {size / 1e6:.1f} MB, {precision}, {loaded.kind}")
