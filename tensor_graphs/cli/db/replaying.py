"""replaying: reruns the point at which a kernel was wrong, in this process, where a debugger can stop inside of the kernel."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from tensor_graphs.cli import option_groups, options
from tensor_graphs.errors import TensorGraphsError

if TYPE_CHECKING:
    from tensor_graphs.records.queries import FullTrace


def replay(
    *,
    trace: Annotated[int, typer.Argument(min=1, help="The number of a trace whose numbers are wrong (tg db failures).")],
    common: option_groups.Common,
) -> None:
    """Run a kernel once, in this process, on the inputs at which it was wrong, and compare it with the oracle. Nothing is stored.
    Exit code 1 if it is wrong again."""
    from tensor_graphs.costs.database_keys import VERIFIER
    from tensor_graphs.kernels.kernel import KernelError
    from tensor_graphs.kernels.one_op_signature import signature_of_graph
    from tensor_graphs.kernels.registry import kernel_named
    from tensor_graphs.language.text import parse_graph
    from tensor_graphs.measure.failing_point import FailingPointError, beyond_one_call, compared, inputs_of
    from tensor_graphs.measure.points.input_descriptors import InputError
    from tensor_graphs.records import MissingRecord, queries
    from tensor_graphs.records.logs import reason_of

    store = common.store(create=False)
    try:
        (row,) = queries.evidence(store, trace)
    except MissingRecord as e:
        raise options.NotPossible(f"{store.location} has no trace {trace}\n  fix: tg db failures has their numbers") from e
    if row.status == "PASSED":
        raise options.NotPossible(f"trace {trace} passed, so there is no point at which its kernel was wrong\n"
                                  "  fix: a trace that did not (tg db failures)")
    try:
        signature = signature_of_graph(parse_graph(queries.graph_text(store, row.graph_key)[0]))
    except (ValueError, TensorGraphsError) as e:
        raise options.NotPossible(f"trace {trace} is about no single op that can be read here: {e}\n"
                                  "  fix: the trace of a kernel (tg db failures)") from e
    try:
        kernel = kernel_named(row.implementation_name)
    except KernelError as e:
        why = str(e).partition("\n")[0]
        raise options.NotPossible(f"{why}\n  fix: tg db replay {trace} --import FILE, of the module that defines it") from e
    if row.status != "INCORRECT_NUMERICAL":
        raise options.NotPossible(_no_numbers(row, reason_of(queries.read_log(store, trace))))
    try:
        conditions = queries.trace_conditions(store, trace)[trace]
        point, inputs, origin = inputs_of(signature.graph, conditions, row.verifier == VERIFIER)
        outputs = compared(kernel, signature.graph, point, inputs)
    except (FailingPointError, InputError, KernelError) as e:
        raise options.NotPossible(f"trace {trace} cannot be run again: {e}") from e
    edited, right = kernel.identity != row.source_hash, all(output.right for output in outputs)
    note = beyond_one_call(point) if right and not edited else ""
    if common.json:
        options.print_json({
            "trace_id": trace, "kernel": kernel.name, "edited": edited, "point": None if point is None else str(point),
            "inputs": origin, "outputs": [{**dataclasses.asdict(output), "right": output.right} for output in outputs],
            "note": note,
        })  # fmt: skip
    else:
        what = " with ".join(filter(None, (row.graph_name, signature.attributes())))
        print(f"{kernel.name}{' (edited since)' if edited else ''} on {what}" + (f" at {point}" if point else ""))
        print(f"inputs: {origin}")
        for output in outputs:
            words = f", {output.words}" if output.words else ""
            print(f"output {output.output}: error {output.error:.3g} {'<=' if output.right else '>'} {output.limit:.2g}{words}")
        if note:
            print(note)
    if not right:
        raise typer.Exit(1)


def _no_numbers(row: FullTrace, reason: str) -> str:
    """Return why a trace that is not INCORRECT_NUMERICAL cannot be run again, and what to do instead."""
    return (f"trace {row.trace_id} cannot be run again: the trace says no point at which numbers are wrong, it is {row.status}: "
            f"{reason}\n  fix: in a program of yours the kernel itself runs on arrays of that size, my_kernel.run([x, …]), with a "
            "debugger around it (docs/backends.md, When it is wrong)")
