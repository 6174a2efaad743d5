"""run_graph: `tg run FILE.onnx`: runs a graph once, on inputs of a file or random ones, and writes or shows its outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tensor_graphs.cli import option_groups, options
from tensor_graphs.cli.graphs import within
from tensor_graphs.phase_times import IMPORT, phase

if TYPE_CHECKING:
    import numpy as np

    from tensor_graphs.frontends.onnx.importer import OnnxModel

TYPICAL = 4
"""size of a dim of random inputs, where the dim's range has it"""


READ = {"model", "memory_limit", "imports", "db", "json", *(
    field.name for group in (option_groups.GraphFiles, option_groups.ModelOptions) for field in dataclasses.fields(group))}
"""parameters of `tg run` that a run of an ONNX file reads"""


def was_run(context: typer.Context, source: str, files: option_groups.GraphFiles, choice: option_groups.ModelOptions,
            decoder: option_groups.DecoderOptions) -> bool:
    """Run an ONNX file and return True; return False for any other model. Raises UsageError for options of the other kind."""
    if not options.is_onnx(source):
        if files != option_groups.GraphFiles():
            raise options.UsageError("--inputs, --dims and --out are for .onnx files\n  fix: --prompt TEXT or --ids 2,9259,…")
        return False
    for name in context.params:
        if name not in READ and getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE":
            raise options.UsageError(f"--{name.replace('_', '-')} is for decoders, and {source} is a graph\n"
                                     "  fix: leave it out; its inputs are those of --inputs FILE.npz")
    run_file(source, files, choice, decoder)
    return True


def run_file(source: str, files: option_groups.GraphFiles, choice: option_groups.ModelOptions,
             decoder: option_groups.DecoderOptions) -> None:
    """Compile and run an ONNX model once, and print its outputs or write them to an .npz file.

    Raises NotPossible for a file that cannot be read or written, and what `compile_graph` and `run` raise.
    """
    with phase(IMPORT):
        import numpy as np

        from tensor_graphs.choice.compile import compile_graph
        from tensor_graphs.measure.points.inputs import make_inputs
        from tensor_graphs.runtime.compiled_graph import bind

    arrays: dict[str, Any]
    dims: dict[str, int] = {}
    if files.inputs is not None:
        model, arrays = _with_inputs(source, files.inputs, files.dims)
        graph = model.graph
    else:
        model = options.read_onnx(source, files.dims)
        graph = model.graph
        dims = within(graph, dict.fromkeys(graph.dims, TYPICAL))
        arrays = {name: array for name, array in make_inputs(graph, dims, 0).items() if name in graph.inputs}
    with options.status("compiling", decoder.json) as update:
        plan = compile_graph(graph, tolerance=choice.tolerance, backends=options.given_backends(choice.backends),
                             threads=choice.threads, precision=choice.precision, path=choice.plan, progress=update,
                             database=options.database(decoder.db, pinned=choice.plan is not None),
                             memory_limit=decoder.memory_limit, weights=None if choice.tolerance is None else model.weights)
    results = bind(plan, model.weights).run(arrays, dims=dims or None)
    if files.inputs is not None:
        model.require_indices(arrays)
    outputs = {name: np.asarray(results[ours]) for name, ours in model.outputs.items()}
    if files.out is not None:
        try:
            with files.out.open("wb") as file:                  # of a path, numpy changes the name to *.npz
                np.savez(file, **outputs)  # type: ignore[arg-type]
        except OSError as e:
            raise options.NotPossible(f"--out {files.out} cannot be written: {e.strerror}\n  fix: another file") from None
    _show(outputs, files.out, decoder.json)


def _with_inputs(source: str, file: Path, dims: str | None) -> tuple[OnnxModel, dict[str, Any]]:
    """Return the model, and the arrays of an .npz file by the names of the graph's inputs. Inputs on which shapes depend are fixed
    to their arrays. Raises NotPossible for names that are not the model's inputs."""
    import numpy as np

    from tensor_graphs.frontends.onnx.importer import from_onnx_with

    try:
        stored = np.load(file, allow_pickle=False)
        if isinstance(stored, np.ndarray):
            raise ValueError("it is one array without a name")
        with stored:
            arrays = {name: np.asarray(array) for name, array in stored.items()}
    except Exception as e:                                # numpy, zipfile and zlib have many kinds for a damaged file
        raise options.NotPossible(f"--inputs {file} cannot be read: {e or type(e).__name__}\n"
                                  "  fix: an .npz file, numpy.savez(FILE, name=array)") from None
    model = from_onnx_with(source, arrays, options.ranges(dims))
    wanted = {*model.inputs, *model.values}
    if not wanted <= set(arrays) <= wanted | set(model.unused):
        raise options.NotPossible(f"--inputs {file} has {', '.join(arrays) or 'nothing'}\n"
                                  f"  fix: the model's inputs: {', '.join(sorted(wanted)) or 'none'}")
    return model, {model.inputs[name]: array for name, array in arrays.items() if name in model.inputs}


def _show(outputs: Mapping[str, np.ndarray], out: Path | None, json: bool) -> None:
    """Print the outputs, or their types where they are in a file."""
    import numpy as np

    if json:
        shown = {name: {"dtype": str(x.dtype), "shape": list(x.shape), **({} if out is not None else {"values": x.tolist()})}
                 for name, x in outputs.items()}
        options.print_json({"file": None if out is None else str(out), "outputs": shown})
        return
    for name, x in outputs.items():
        print(f"{name} {x.dtype}{list(x.shape)}")
        if out is None:
            print(np.array2string(x, threshold=32, precision=6))
    if out is not None:
        print(f"written: {out}")
