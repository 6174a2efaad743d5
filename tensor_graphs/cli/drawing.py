"""drawing: the options --dot and --svg of several verbs: a diagram as text for Graphviz, and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tensor_graphs.cli import options

if TYPE_CHECKING:
    from tensor_graphs.views.diagram import Diagram

Svg = Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Draw it into this file.")]
Dot = Annotated[Path | None, typer.Option("--dot", metavar="FILE", help="Write the diagram's text for Graphviz into this file.")]


def write(diagram: Diagram, svg: Path | None, dot: Path | None) -> None:
    """Write a diagram to the files of --dot and --svg, if given. Raises NotPossible."""
    if dot is not None:
        options.write_file(dot, diagram.dot(), "--dot")
    if svg is not None:
        options.write_file(svg, diagram.svg(), "--svg")
