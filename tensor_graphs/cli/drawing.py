"""drawing: the options --dot and --svg of several verbs: a diagram as text for Graphviz, and as a drawing by Graphviz."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tensor_graphs.cli import options

Svg = Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Draw it into this file; Graphviz has to be installed.")]
Dot = Annotated[Path | None, typer.Option("--dot", metavar="FILE", help="Write the diagram's text for Graphviz into this file.")]


def check(svg: Path | None) -> None:
    """Raise DiagramError if --svg is given and Graphviz is missing; called before anything that takes long."""
    if svg is not None:
        from tensor_graphs.views.diagram import placer

        placer()


def write(text: str, svg: Path | None, dot: Path | None) -> None:
    """Write a diagram to the files of --dot and --svg, if given. Raises NotPossible and DiagramError."""
    if dot is not None:
        options.write_file(dot, text, "--dot")
    if svg is not None:
        from tensor_graphs.views.diagram import laid_out

        options.write_file(svg, laid_out(text), "--svg")
