"""convert: writes a model of a folder, or of a GGUF file, as a GGUF file, at a precision or at a size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensor_graphs.cli import options
from tensor_graphs.cli.measured_on import calibration_of
from tensor_graphs.phase_times import IMPORT, phase

if TYPE_CHECKING:
    from tensor_graphs.frontends.gguf.file_types import TypeChoice


def convert(
    *,
    model: Annotated[str, typer.Argument(help="A model folder (config.json, *.safetensors) or a .gguf file.")],
    file: Annotated[Path, typer.Argument(metavar="FILE.gguf", help="The file that is written.")],
    precision: Annotated[
        str | None, typer.Option(metavar="TYPE|WORDS", help="Type of the matrices in the file: F32, F16, BF16, Q8_0, Q6_K, Q5_K, "
                                 "Q4_K, Q5_0, Q4_0, MXFP4, …; or words of weights: weight=q4_0,weight:model.embed*=q8_0. "
                                 "[default: F32]")
    ] = None,
    size: Annotated[
        int | None, typer.Option("--bytes", min=1, help="Choose the type of each matrix: the least predicted error in at most this "
                                 "many bytes of tensors.")
    ] = None,
    bits: Annotated[
        float | None, typer.Option("--bits-per-weight", min=1.0, max=32.0, help="The same, with this many bits a number of the "
                                   "matrices.")
    ] = None,
    calibration: options.Calibration = None,
    database: options.DatabaseAt = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file, if it is there.")] = False,
    json: options.Json = False,
) -> None:
    """Write a model as a GGUF file, which `tg run`, `tg embed` and llama.cpp read."""
    with phase(IMPORT):
        from tensor_graphs.frontends.gguf.write import write_model
        from tensor_graphs.frontends.huggingface.load import load_model

    if sum(option is not None for option in (precision, size, bits)) > 1:
        raise options.UsageError("--precision, --bytes and --bits-per-weight each choose the types\n  fix: one of them")
    options.check_new(file, force)
    loaded = load_model(model)
    words: str | Mapping[str, str] = precision or "F32"
    document: dict[str, Any] = {}
    with options.status("reading activations", json) as update:
        chosen: TypeChoice | None = None
        if size is not None or bits is not None or calibration is not None:
            chosen = calibration_of(loaded, calibration, database, update)
        if chosen is not None and (size is not None or bits is not None):
            typed = chosen.within(size if size is not None else (bits or 0) / 8 * chosen.numbers + chosen.others)
            words, precision = typed.words, _counts(typed.words)
            document = {chosen.metric: typed.error, "words": typed.words}
        importance = None if chosen is None else chosen.importance
    with options.status("writing", json):
        write_model(loaded, file, precision=words, importance=importance)
    nbytes = file.stat().st_size
    if json:
        options.print_json({"file": str(file), "bytes": nbytes, "precision": precision or "F32", **document})
        return
    print(f"{file}: {nbytes / 1e6:.1f} MB, {precision or 'F32'}, {loaded.kind}")
    if document and chosen is not None:
        print(f"predicted {chosen.metric} {typed.error:.2e}; tg evaluate {file} --text FILE --against {model} measures it")


def _counts(words: Mapping[str, str]) -> str:
    """Return how many matrices have each word, the most frequent first."""
    return ", ".join(f"{count} {word}" for word, count in Counter(words.values()).most_common())
