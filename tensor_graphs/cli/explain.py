"""explain: what would be chosen for a graph, and why."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensor_graphs.cli import options
from tensor_graphs.cli.graphs import graph_of, typical
from tensor_graphs.phases import IMPORT, phase

if TYPE_CHECKING:
    from tensor_graphs.paths.plan import Plan


def register(app: typer.Typer) -> None:
    app.command("explain")(explain)


def explain(
    source: Annotated[
        str, typer.Argument(metavar="FILE|MODEL", help="A .tg file, a model folder, or a built-in shape.")
    ],
    at: options.At = None,
    largest: options.Largest = None,
    plan: options.PlanFile = None,
    dtype: options.WeightDtype = None,
    tolerance: options.GraphTolerance = None,
    intermediates: options.Intermediates = "auto",
    backends: options.Backends = None,
    threads: options.Threads = None,
    max_positions: options.MaxPositions = None,
    diff: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--diff",
            metavar="A B",
            help="Compare two plans step by step: each a file of tg plan --pin, tolerance=…, backends=…, or now (as the other "
            "options say).",
        ),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Choices shown per variant.")] = 14,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Each step beside the least that the device lets it take: bytes, speed, time lost.")
    ] = False,
    roofline: Annotated[
        Path | None, typer.Option("--roofline", metavar="FILE", help="Also draw these steps below the roof into this SVG file.")
    ] = None,
    memory_limit: options.MemoryLimit = None,
    imports: options.Imports = None,
    db: options.DatabaseAt = None,
    json: options.Json = False,
) -> None:
    """Compile a graph and say which kernels were chosen, on which rows or guesses, and what else there was."""
    with phase(IMPORT):
        from tensor_graphs.choice.compile import compile_graph
        from tensor_graphs.views.compare import compare
        from tensor_graphs.views.explain import explain as explain_text
        from tensor_graphs.views.explain import explain_data

    if (kernels or roofline is not None) and diff is not None:
        raise options.UsageError("--kernels and --roofline are of one plan\n  fix: without --diff")
    graph = graph_of(source, dtype, max_positions)
    sizes = options.sizes(at, graph)
    asked: dict[str, Any] = {"tolerance": tolerance, "backends": options.given_backends(backends), "path": plan}
    several = [asked] if diff is None else [{**asked, **side(each)} for each in diff]
    store = options.database(db, pinned=plan is not None)
    with options.status("compiling", json) as update:

        def compiled(given: Mapping[str, Any], there: Mapping[str, int]) -> Plan:
            return compile_graph(graph, database=store, at=there, threads=threads, progress=update,
                                 largest=options.sizes(largest, graph, "--largest"), memory_limit=memory_limit,
                                 intermediates=intermediates, **given)

        made, *others = (compiled(each, typical(graph, at)) for each in several)
        found = None
        if diff is not None:
            found = compare(made, others[0], diff, sizes, lambda plan, there: compiled({"path": plan.pin}, there))
    with phase("explain"):
        if found is not None:
            if json:
                options.print_json(found.to_json())
            else:
                print("\n".join(found.lines(rows)))
            return
        if kernels or roofline is not None:
            from tensor_graphs.views.roofline_chart import kernel_table, picture

            table = kernel_table(made, store, typical(graph, at), threads)
            if roofline is not None:
                options.write_file(roofline, picture(table, f"steps of {Path(source).name}"), "--roofline")
            if json:
                options.print_json(table.to_json())
            else:
                print("\n".join(table.lines(rows)))
            return
        if json:
            options.print_json(explain_data(made, sizes))
        else:
            print(explain_text(made, sizes, rows, sizes))


def side(text: str) -> dict[str, Any]:
    """What one side of --diff changes of the options. Raises UsageError."""
    name, sign, value = text.partition("=")
    if text == "now":
        return {}
    if sign and name == "backends":
        return {"backends": options.backends(value), "path": None}
    if sign and name == "tolerance":
        try:
            return {"tolerance": options.tolerance_of(float(value)), "path": None}
        except ValueError:
            raise options.UsageError(f"--diff: {value!r} is no tolerance\n  fix: tolerance=1e-5") from None
    return {"path": text, "tolerance": None, "backends": None}      # those of the pin
