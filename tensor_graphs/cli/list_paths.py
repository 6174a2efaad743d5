"""list_paths: lists the paths of a graph, ordered by cost."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tensor_graphs.cli import option_groups, options
from tensor_graphs.cli.graphs import graph_of, typical
from tensor_graphs.cli.measured_on import measured_on

if TYPE_CHECKING:
    from tensor_graphs.paths.path import Path as GraphPath


def list_paths(
    *,
    source: options.Source,
    limit: Annotated[int, typer.Option(min=1, max=options.MOST_ROWS, help="At most this many paths.")] = 50,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Also draw the listed paths, time against error, into this file.")
    ] = None,
    measured: Annotated[bool, typer.Option("--measured", help="Only paths whose steps are all measured at these sizes.")] = False,
    at: options.At = None,
    choice: option_groups.GraphOptions,
    common: option_groups.Common,
) -> None:
    """List the paths of a graph by worth: cost, whether it is measured, the largest kernel error on file, and the steps; of all
    paths but the first, what they do otherwise."""
    from tensor_graphs.choice.cost_table import ESTIMATE_MARGIN
    from tensor_graphs.choice.path_listing import list_paths as enumerate_paths
    from tensor_graphs.choice.path_listing import not_offered
    from tensor_graphs.choice.prepare import prepare
    from tensor_graphs.views.pareto import picture

    graph = graph_of(source, choice, choice.max_positions)
    names = options.backends(choice.backends)
    store = common.store()
    listing = enumerate_paths(graph, **choice.request() | {"backends": names} | measured_on(source, choice, store), database=store,
                              at=typical(graph, at), measured=measured)
    paths: Iterable[GraphPath] = islice(listing, limit)
    formed = (prepare(graph, backends=names) if names else prepare(graph)).parts
    for text in (*not_offered(graph, names), *([formed] if formed else [])):
        options.note(text)
    if svg is not None:
        drawn = list(paths)
        paths = drawn
        sizes = ", ".join(f"{n}={s}" for n, s in typical(graph, at).items())
        title = f"{len(drawn)} paths of {Path(source).name}" + (f" at {sizes}" if sizes else "")
        options.write_file(svg, picture(drawn, title), "--svg")
    if common.json:
        options.print_json(
            [
                {"id": p.id, "predicted_us": p.seconds * 1e6, "measured": p.measured, "error": p.error, "small_swaps": p.small,
                 "steps": p.steps(), "of": listing.total.number, "of_is_exact": listing.total.exact}
                for p in paths
            ]
        )
        return
    count, first, estimated = 0, None, False
    for p in paths:                                                 # printed as they are found: there may be very many
        count += 1
        print("\n".join(p.lines(first)))
        first = first or p
        estimated = estimated or not p.measured
    print(f"({count} of {listing.total} paths{'; --limit shows more' if count < listing.total.number else ''})")
    if estimated:
        print(f"(ordered with estimates × {ESTIMATE_MARGIN:g}, so that measurements win; tg profile measures)")
