"""checked_bind: binds a plan, and measures its error on weights on which it was not measured when it was compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.paths.plan import Plan
from tensor_graphs.runtime.compiled_graph import CompiledGraph
from tensor_graphs.runtime.compiled_graph import bind as bind_unchecked


def bind(plan: Plan, parameters: Mapping[str, Any] | None = None, *, check: bool = True) -> CompiledGraph:
    """Bind parameters to a plan and return the compiled graph. parameters: name -> array; a lazy mapping is read name by name.

    A contiguous array of the right dtype is used without a copy, so changing it changes later runs. check: for a plan that was
    compiled with a tolerance, measure the error on these parameters, unless it was measured on them; it takes some seconds, once
    for each plan and parameters. Raises RunError, and AccuracyError if the error may exceed the tolerance.
    """
    if not isinstance(check, bool):
        raise ArgumentError(f"check is {check!r}\n  fix: check=True or check=False")
    compiled = bind_unchecked(plan, parameters)
    if check and plan.accuracy.terms and plan.given is not None and plan.graph.parameters:
        from tensor_graphs.choice.measured_accuracy import check_weights  # here: as written needs no oracle

        check_weights(plan, compiled.parameters)
    return compiled
