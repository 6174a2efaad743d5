"""conformance: the table of ops and dtypes that a backend computes correctly."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tensor_graphs.cli import onnx_conformance, options
from tensor_graphs.cli.importing import imported


def conformance(
    backend: Annotated[
        str | None, typer.Option(help="Whose kernels: c, gen, numpy, torch, cuda, …, an installed one, or (default) the module's.")
    ] = None,
    module: Annotated[
        str | None, typer.Option(help="The module of a backend that is not installed: path/to/backend.py, or its name.")
    ] = None,
    ops: Annotated[str | None, typer.Option(help="Comma-separated ops (default: all).")] = None,
    out: Annotated[Path | None, typer.Option(help="Write BACKEND.md and BACKEND.json into this folder.")] = None,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Instead of a backend, the node tests of the onnx package; --out writes onnx.md.")
    ] = False,
    time: Annotated[
        bool, typer.Option("--time", help="Also the median time of one instance per cell, at a stated size.")
    ] = False,
    threads: options.Threads = None,
    imports: options.Imports = None,
    json: options.Json = False,
) -> None:
    """Compare every kernel of a backend with the oracle, op by op and dtype by dtype; or, --onnx, ONNX files with their expected
    values. Exit code 1 when one is wrong."""
    from tensor_graphs.measure.conformance.backend import judge_backend, kernels_of, keys
    from tensor_graphs.measure.conformance.table import document, json_text, markdown
    from tensor_graphs.measure.judge import Judge
    from tensor_graphs.records.database import open_database

    if onnx:
        if backend is not None or module is not None or time:
            raise options.UsageError("--onnx judges ONNX files, no backend\n  fix: --onnx with --ops, --out or --json alone")
        onnx_conformance.conformance(ops, out, json)
        return
    name = _backend(backend, module)
    chosen = [n.strip() for n in ops.split(",") if n.strip()] if ops is not None else None
    if chosen is not None and out is not None:
        raise options.UsageError("--out writes whole tables\n  fix: leave --ops out, or print: tg conformance … > FILE")
    if chosen == []:
        raise options.UsageError("--ops names no op\n  fix: --ops add,softmax")
    cells = keys(chosen)
    kernels_of(name)  # raises for a missing backend, before a folder is made or a process started
    onnx_conformance.make_folder(out)
    with (
        options.progress(f"judging {name}", quiet=False, total=len(cells)) as show,
        open_database(":memory:") as database,
        Judge(database, threads=threads) as judge,
    ):
        table = judge_backend(name, judge, cells=cells, timed=time, on_step=show)
    if out is not None:
        (out / f"{name}.json").write_text(json_text(table), encoding="utf-8")
        (out / f"{name}.md").write_text(markdown(table), encoding="utf-8")
    if json:
        options.print_json(document(table))
    elif out is not None:
        print(f"{name}: {', '.join(f'{n} {kind}' for kind, n in table.counts().items() if n)} · {out / name}.md, .json")
        for cell in table.failed:
            print(f"  {cell.op} {cell.dtype}: {cell.reason}")
    else:
        print(markdown(table), end="")
    if table.failed:
        raise typer.Exit(1)


def _backend(backend: str | None, module: str | None) -> str:
    """Return the backend's name, after importing and registering its module if one is given."""
    from tensor_graphs.kernels.registry import BACKENDS, register_backend

    if module is not None:
        loaded = imported(module, "--module")
        name = getattr(loaded, "NAME", None)
        if not isinstance(name, str):
            says = "has no NAME" if name is None else f"has a NAME that is no text, {name!r}"
            raise options.NotPossible(
                f"--module: {module} {says}, so it is no backend\n  fix: NAME = \"{backend or '…'}\" at the top of the module"
            )
        if backend is not None and name != backend:
            raise options.NotPossible(
                f"--module: {module} is the backend {name!r}, and --backend says {backend!r}\n"
                f"  fix: --backend {name}, or leave it out"
            )
        register_backend(name, loaded)
        return name
    if backend is None:
        raise options.UsageError("whose table?\n  fix: --backend numpy, or --module path/to/backend.py")
    if backend not in BACKENDS:
        raise options.UsageError(
            f"--backend: {backend!r} is no backend\n  fix: {', '.join(sorted(BACKENDS))}; "
            "or --module path/to/backend.py for one that is not installed"
        )
    return backend
