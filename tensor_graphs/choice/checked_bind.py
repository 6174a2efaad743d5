"""checked_bind: binds a plan, and measures its error on weights on which it was not measured when it was compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.choice.graph_forms import words_text
from tensor_graphs.choice.request import Request
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language.explain_call_errors import worded
from tensor_graphs.paths.plan import Plan
from tensor_graphs.runtime.compiled_graph import CompiledGraph
from tensor_graphs.runtime.compiled_graph import bind as bind_unchecked


class AccuracyError(TensorGraphsError):
    """The weights that a plan is bound to make its error larger than was asked for."""


@worded
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
        _check_weights(plan, compiled.parameters)
    return compiled


def _check_weights(plan: Plan, weights: Mapping[str, Any]) -> None:
    """Raise AccuracyError if a plan's error on these weights may exceed its tolerance, measured now unless it was before."""
    from tensor_graphs.choice.measured_accuracy import measured_accuracy, weights_key  # here: as written needs no oracle

    assert plan.given is not None
    if plan.weights == weights_key(weights, plan.graph):
        return
    request = Request(plan.given, plan.accuracy, plan.backends, plan.database or ":memory:", plan.measured_at, weights=weights,
                      inputs=plan.inputs)
    accuracy = measured_accuracy(request).of(plan)
    if not accuracy.allowed.allowed:
        others = "random weights" if plan.weights == "drawn" else "other weights"
        raise AccuracyError(f"the plan's error on these weights may be larger than asked: {accuracy}\n  on {others}, "
                            f"in the form {words_text(plan.words)}, it was {plan.measured}\n"
                            "  fix: tg.compile(graph, tolerance=…, weights=…) with these weights; check=False binds them anyway")
