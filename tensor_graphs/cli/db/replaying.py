"""replaying: the point at which a kernel was wrong, run once more in this process, where a debugger can stop in the kernel."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from tensor_graphs.cli import options
from tensor_graphs.errors import TensorGraphsError


def replay(
    trace: Annotated[int, typer.Argument(min=1, help="The number of a trace whose numbers are wrong (tg db failures).")],
    imports: options.Imports = None,
    db: options.DatabaseAt = None,
    json: options.Json = False,
) -> None:
    """Run a kernel once, in this process, on the inputs at which it was wrong, and compare it with the oracle. Nothing is stored.
    Exit code 1 if it is wrong again."""
    from tensor_graphs.costs.filing import VERIFIER
    from tensor_graphs.kernels.kernel import KernelError
    from tensor_graphs.kernels.one_op import signature_of_graph
    from tensor_graphs.kernels.registry import kernel_named
    from tensor_graphs.language.text import parse_graph
    from tensor_graphs.profiling.measure.descriptors import InputError
    from tensor_graphs.profiling.measure.failing_point import FailingPointError, compared, inputs_of
    from tensor_graphs.records import MissingRecord, queries

    store = options.database(db, create=False)
    try:
        (row,) = queries.evidence(store, trace)
    except MissingRecord as e:
        raise options.NotPossible(f"{store.location} has no trace {trace}\n  fix: tg db failures has their numbers") from e
    if row.status == "PASSED":
        raise options.NotPossible(f"trace {trace} passed, so there is no point at which its kernel was wrong\n"
                                  "  fix: a trace that did not (tg db failures)")
    try:
        graph = signature_of_graph(parse_graph(queries.graph_text(store, row.graph_key)[0])).graph
    except (ValueError, TensorGraphsError) as e:
        raise options.NotPossible(f"trace {trace} is about no single op that can be read here: {e}\n"
                                  "  fix: the trace of a kernel (tg db failures)") from e
    try:
        kernel = kernel_named(row.implementation_name)
    except KernelError as e:
        why = str(e).partition("\n")[0]
        raise options.NotPossible(f"{why}\n  fix: tg db replay {trace} --import FILE, of the module that defines it") from e
    try:
        conditions = queries.trace_conditions(store, trace)[trace]
        point, inputs, origin = inputs_of(graph, conditions, row.verifier == VERIFIER)
        outputs = compared(kernel, graph, point, inputs)
    except (FailingPointError, InputError, KernelError) as e:
        raise options.NotPossible(f"trace {trace} cannot be run again: {e}") from e
    edited = kernel.identity != row.source_hash
    if json:
        options.print_json({
            "trace_id": trace, "kernel": kernel.name, "edited": edited, "point": None if point is None else str(point),
            "inputs": origin, "outputs": [{**dataclasses.asdict(each), "right": each.right} for each in outputs],
        })  # fmt: skip
    else:
        print(f"{kernel.name}{' (edited since)' if edited else ''} on {row.graph_name}" + (f" at {point}" if point else ""))
        print(f"inputs: {origin}")
        for each in outputs:
            words = f", {each.words}" if each.words else ""
            print(f"output {each.output}: error {each.error:.3g} {'<=' if each.right else '>'} {each.limit:.2g}{words}")
    if not all(each.right for each in outputs):
        raise typer.Exit(1)
