"""memory_limit: check if a plan fits into the memory it may use at its largest sizes, and find the largest sizes that would fit."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping
from dataclasses import replace

from tensor_graphs.language import dims as d
from tensor_graphs.paths.lower import PlanError
from tensor_graphs.paths.memory import place
from tensor_graphs.paths.plan import Plan

STEPS = 4096
"""steps in which all dims are reduced together, where reducing a single dim is not enough"""


def check_room(plan: Plan) -> None:
    """Raise PlanError where the plan needs more than its capacity at its largest sizes; the message has the need, its causes and a
    fix."""
    for binding in _largest_per_variant(plan, plan.largest):
        text = plan.over_capacity(binding)
        if text is not None:
            raise PlanError(f"{text}\n  fix: {_fix(plan)}")


def _largest_per_variant(plan: Plan, largest: Mapping[str, int]) -> list[dict[str, int]]:
    """Return the largest sizes at which each variant is used, for the last variant first; each variant serves its cell of sizes."""
    bindings = [v.cell.largest(largest) for v in reversed(plan.variants)]
    return [binding for binding in bindings if all(size <= largest[n] for n, size in binding.items())]


def fits(plan: Plan, largest: Mapping[str, int]) -> bool:
    """Return whether the plan would fit if it were laid out for these largest sizes."""
    bindings = _largest_per_variant(plan, largest)
    variants = tuple(replace(v, layout=place(v.layout.intervals, v.cell.largest(largest))) for v in plan.variants)
    smaller = replace(plan, variants=variants, largest=dict(largest))
    return all(smaller.over_capacity(b) is None for b in bindings)


def _fix(plan: Plan) -> str:
    """Return advice with the largest sizes that fit. A single dim is reduced if that is enough (dims of the plan's table are tried
    first), else all dims together."""
    names = sorted(plan.graph.dims, key=lambda n: (n not in plan.table_dims, n))
    lowest = {n: d.bounds(s)[0] for n, s in plan.graph.dims.items()}
    cache = ", a shorter cache" if plan.graph.states else ""
    for name in names:
        highest = _highest(lambda v, n=name: fits(plan, {**plan.largest, n: v}), lowest[name], plan.largest[name])  # type: ignore[misc]
        if highest is not None:
            return _said({name: highest}) + f"{cache}, or a higher memory limit"
    if names:
        def between(step: int) -> dict[str, int]:
            return {n: lowest[n] + (plan.largest[n] - lowest[n]) * step // STEPS for n in names}

        step = _highest(lambda s: fits(plan, between(s)), 0, STEPS)
        if step is not None:
            return _said(between(step)) + f"{cache}, or a higher memory limit"
    what = "at its sizes" if not names else "at the smallest sizes either"
    return f"a higher memory limit{cache.replace(',', ' or', 1)}: it does not fit {what}"


def _said(sizes: Mapping[str, int]) -> str:
    literal = ", ".join(f'"{n}": {v}' for n, v in sizes.items())
    typed = ",".join(f"{n}={v}" for n, v in sizes.items())
    return f"largest={{{literal}}} ({typed} is the most that fits; tg explain: --largest {typed})"


def _highest(good: Callable[[int], bool], low: int, high: int) -> int | None:
    """Return the highest int in low..high for which `good` holds, if it holds up to some int and not beyond; None where low
    fails."""
    good_ones = bisect.bisect_left(range(low, high + 1), True, key=lambda n: not good(n))
    return low + good_ones - 1 if good_ones else None
