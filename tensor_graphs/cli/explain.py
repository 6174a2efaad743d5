"""explain: shows which kernels would be chosen for a graph, and why."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensor_graphs.cli import option_groups, options
from tensor_graphs.cli.graphs import graph_of, typical
from tensor_graphs.cli.measured_on import measured_on
from tensor_graphs.phase_times import IMPORT, phase

if TYPE_CHECKING:
    from tensor_graphs.paths.plan import Plan


def explain(
    *,
    source: options.Source,
    at: options.At = None,
    largest: options.Largest = None,
    plan: options.PlanFile = None,
    choice: option_groups.GraphOptions,
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
    common: option_groups.Common,
) -> None:
    """Compile a graph and say which kernels were chosen, on which measurements or estimates, and what else there was."""
    with phase(IMPORT):
        from tensor_graphs.choice.compile import compile_graph
        from tensor_graphs.views.compare import compare
        from tensor_graphs.views.explain import explain as explain_text
        from tensor_graphs.views.explain import explain_data

    if (kernels or roofline is not None) and diff is not None:
        raise options.UsageError("--kernels and --roofline are of one plan\n  fix: without --diff")
    graph = graph_of(source, choice, choice.max_positions)
    sizes = options.sizes(at, graph)
    store = common.store(pinned=plan is not None)
    request = {**choice.request(), **measured_on(source, choice, store, asked=bool(plan or diff)), "path": plan}
    requests = [request] if diff is None else [{**request, **side(text)} for text in diff]

    def print_either(result: Any) -> None:
        if common.json:
            options.print_json(result.to_json())
        else:
            print("\n".join(result.lines(rows)))

    with options.status("compiling", common.json) as update:

        def compiled(request: Mapping[str, Any], where: Mapping[str, int]) -> Plan:
            return compile_graph(graph, database=store, at=where, progress=update,
                                 largest=options.sizes(largest, graph, "--largest"), memory_limit=memory_limit, **request)

        first, *others = (compiled(request, typical(graph, at)) for request in requests)
        comparison = None
        if diff is not None:
            at_pin = {"tolerance": None, "backends": None}
            comparison = compare(first, others[0], diff, sizes,
                                 lambda plan, where: compiled({**request, **at_pin, "path": plan.pin}, where))
    with phase("explain"):
        if comparison is not None:
            print_either(comparison)
            return
        if kernels or roofline is not None:
            from tensor_graphs.views.roofline_chart import kernel_table, picture

            table = kernel_table(first, store, typical(graph, at), choice.threads)
            if roofline is not None:
                options.write_file(roofline, picture(table, f"steps of {Path(source).name}"), "--roofline")
            print_either(table)
            return
        if common.json:
            options.print_json(explain_data(first, sizes))
        else:
            print(explain_text(first, sizes, rows, sizes))


def side(text: str) -> dict[str, Any]:
    """Return the changes to the options that one side of --diff makes. Raises UsageError."""
    name, sign, value = text.partition("=")
    if text == "now":
        return {}
    if sign and name == "backends":
        return {"backends": options.backends(value), "path": None}
    if sign and name == "tolerance":
        return {"tolerance": options.accuracy_of(value), "path": None}
    return {"path": text, "tolerance": None, "backends": None}      # those of the pin
