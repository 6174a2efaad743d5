"""equal: decides if two graphs are the same function, and shows the proof or a counterexample."""

from __future__ import annotations

from typing import Annotated

import typer

from tensor_graphs.cli import options


def equal(
    left: Annotated[str, typer.Argument(metavar="A.tg", help="A .tg file.")],
    right: Annotated[str, typer.Argument(metavar="B.tg", help="Another one, with the same names of inputs.")],
    bits: Annotated[bool, typer.Option("--bits", help="Narrowing casts count; else floats are real numbers.")] = False,
    imports: options.Imports = None,
    json: options.Json = False,
) -> None:
    """Prove two graphs equal, or show inputs at which they differ; exit code 1 unless they are proved equal."""
    from tensor_graphs.proof.equality import equal as decide

    verdict = decide(options.read_graph(left), options.read_graph(right), bits=bits)
    if json:
        options.print_json(verdict.as_json())
    else:
        print(verdict.show())
    raise typer.Exit(0 if verdict.proved else 1)
