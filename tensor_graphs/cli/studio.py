"""studio: shows a graph, its plan, and the database of measurements on one page: served on this machine, or written as a file."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from tensor_graphs.cli import option_groups, options
from tensor_graphs.cli.graphs import graph_of, typical
from tensor_graphs.cli.measured_on import measured_on
from tensor_graphs.phase_times import IMPORT, phase

STATISTIC = "norm"
"""measure of the errors of --front, as in `tg pareto`"""


def studio(
    *,
    source: Annotated[
        str | None, typer.Argument(metavar="[FILE|MODEL]", show_default=False,
                                   help="A .tg or .onnx file, a model folder, a .gguf file, or a built-in shape; or a database of "
                                        "measurements (.db). Left out: the database alone."),
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", show_default=False,
                                              help="Write the page into this file, which loads nothing; serve nothing.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")] = 8090,
    paths: Annotated[int, typer.Option("--paths", min=1, max=100, help="Paths to show side by side.")] = 8,
    run: Annotated[bool, typer.Option("--run", help="Run it, step by step, and show that run.")] = False,
    front: Annotated[int, typer.Option("--front", min=0, max=100, metavar="FORMS", help="Measure up to this many forms with fewer "
                                       "and with more bits, and show time against error.")] = 0,
    plan_file: options.PlanFile = None,
    at: options.At = None,
    choice: option_groups.GraphOptions,
    common: option_groups.Common,
) -> None:
    """Show a graph, its plan, the reasons for it, and all measurements on one page: served on this machine alone, or (--html) in
    one file."""
    from tensor_graphs.studio.database import stored
    from tensor_graphs.studio.page import html_page

    if source is not None and source.endswith(".db"):
        if common.db is not None:
            raise options.UsageError(f"{source} and --db are both databases\n  fix: leave one of them out")
        source, store = None, options.database(source, create=False)
    else:
        store = common.store(create=source is not None)
    address = None if html is not None else _address(port)
    data: dict[str, Any] = {"title": "Measurements"}
    if source is not None:
        data = _of_graph(source, choice, common, store, at=at, plan_file=plan_file, paths=paths, run=run, front=front)
    if html is not None:
        options.write_file(html, html_page({**data, "database": stored(store)}), "--html")
        if common.json:
            options.print_json({"file": str(html), "title": data["title"], "path": data.get("path"), "us": data.get("us")})
        else:
            print(f"{html}: {data['title']}; open it in a browser")
        return
    _serve(html_page({**data, "live": True}), store, address, common.json)


def _of_graph(source: str, choice: option_groups.GraphOptions, common: option_groups.Common, store: Any, *, at: str | None,
              plan_file: Any, paths: int, run: bool, front: int) -> dict[str, Any]:
    """Return the data of the page of a graph."""
    from tensor_graphs.choice.compile import compile_graph
    from tensor_graphs.choice.measured_front import pareto
    from tensor_graphs.choice.path_listing import list_paths
    from tensor_graphs.studio.data import page_data, ten_times
    from tensor_graphs.views.roofline_chart import kernel_table
    from tensor_graphs.views.timeline import timeline

    graph = graph_of(source, choice, choice.max_positions)
    on, sizes, title = measured_on(source, choice, store), typical(graph, at), Path(source).name
    request = choice.request()
    with options.status("compiling", common.json) as update:
        plan = compile_graph(graph, **request, **on, database=store, at=sizes, progress=update, path=plan_file)
        update("listing paths")
        listed = list(islice(list_paths(graph, **request, **on, database=store, at=sizes), paths))
        accuracy, looser = ten_times(plan.accuracy), None
        if accuracy is not None:
            update("compiling with ten times the error")
            looser = compile_graph(graph, **{**request, "tolerance": accuracy}, **on, database=store, at=sizes)
        forms: Any = ()
        if front:
            update("measuring forms")
            forms = pareto(graph, statistic=STATISTIC, points=front, progress=update, database=store, at=sizes, **on,
                           backends=request["backends"], threads=request["threads"])
        update("running it step by step")
        trace = timeline(plan, store, sizes, title, choice.threads) if run else None
    return page_data(graph, plan, title, sizes, paths=listed, front=forms, statistic=STATISTIC, run=trace, looser=looser,
                     roofline=kernel_table(plan, store, sizes, choice.threads), database=store)


def _address(port: int) -> Any:
    """Return the socket on which the page will be served. Raises NotPossible without the packages of a server."""
    with phase(IMPORT):
        try:
            from tensor_graphs.serving.http.server import bound
            from tensor_graphs.studio.server import HOST
        except ModuleNotFoundError as e:
            raise options.NotPossible(f"tg studio needs the package {e.name} to serve its page\n"
                                      "  fix: pip install 'tensor_graphs[serve]', or --html FILE") from None
    return bound(HOST, port)


def _serve(page: str, store: Any, address: Any, as_json: bool) -> None:
    from tensor_graphs.studio.server import HOST, serve

    def report() -> None:
        url = f"http://{HOST}:{address.getsockname()[1]}"
        if as_json:
            options.print_line({"url": url})
        else:
            print(f"{url} shows it. Ctrl-C ends it.", flush=True)
        sys.stdout.flush()

    serve(page, store, address, report)
