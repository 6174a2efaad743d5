"""new_backend: writes a project with a minimal conforming backend, as a starting point."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tensor_graphs.cli import options


def new_backend(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the backend and of its Python package.")],
    into: Annotated[Path, typer.Option(help="The folder in which the project's folder is made.")] = Path(),
    json: options.Json = False,
) -> None:
    """Write a project with a backend that runs: a capability table, a view function, five kernels, a README."""
    from tensor_graphs.kernels.skeleton import write_skeleton

    written = write_skeleton(name, into)
    lines = {str(f): len(f.read_text(encoding="utf-8").splitlines()) for f in written}
    if json:
        options.print_json({"name": name, "folder": str(into / name), "files": lines, "lines": sum(lines.values())})
        return
    for file, count in lines.items():
        print(f"{count:5d} lines  {file}")
    print(f"next: tg conformance --module {into / name / name / 'backend.py'}")
