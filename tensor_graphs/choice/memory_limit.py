"""memory_limit: make a plan fit into the memory it may use at its largest sizes, or find the largest sizes that would fit.

A variant that needs too much is lowered again in an order that needs less (paths/run_order.py): values die earlier, and some are
dropped and computed again.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping
from dataclasses import replace

from tensor_graphs.errors import counted
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.language import dims as d
from tensor_graphs.language.node import TensorType
from tensor_graphs.paths.fit_terminal import duration, human
from tensor_graphs.paths.lower import Finals, Instruction, Lowering, PlanError
from tensor_graphs.paths.lowered import lowered
from tensor_graphs.paths.memory import place
from tensor_graphs.paths.plan import Plan, Variant
from tensor_graphs.paths.run_order import RunOrder, SmallerArena, in_order

STEPS = 4096
"""steps in which all dims are reduced together, where reducing a single dim is not enough"""


ATTEMPTS = 8
"""orders that are tried for one variant: the arena is as large as predicted up to gaps between its values"""

COPY_RATE = 5e9
"""bytes/s assumed for copies and preparations of operands, whose times the evidence of a plan does not list"""


def within_limit(plan: Plan) -> Plan:
    """Return the plan, with variants that need more than a device may use in an order that needs less. Raises PlanError where that
    is not enough; the message has the need, its causes and a fix."""
    variants = tuple(_smaller(plan, v) for v in plan.variants)
    if variants != plan.variants:
        plan = replace(plan, variants=variants, notes=(*plan.notes, *dict.fromkeys(
            _cost(v) for v in variants if v.smaller is not None)))
    for binding in _largest_per_variant(plan, plan.largest):
        text = plan.over_capacity(binding)
        if text is not None:
            raise PlanError(f"{text}\n  fix: {_fix(plan)}")
    return plan


def _smaller(plan: Plan, v: Variant) -> Variant:
    """Return the variant in an order of smaller arenas, the smallest that was found where none fits; unchanged where it fits."""
    largest = v.cell.largest(plan.largest)
    sizes = {n: largest[n] for n in plan.graph.dims}
    before = v.layout.offsets(sizes)[1]
    choices, kernels = v.path.choices, v.kernels

    def kernel_of(key: str) -> Kernel:
        return kernels[choices[key]]

    for use, excess in replace(plan, variants=(v,)).excess(sizes):
        device = use.device
        target = goal = before.get(device, 0) - excess
        for _ in range(ATTEMPTS):
            if target <= 0:
                break
            ordered = _Ordered(v, device, sizes, target)
            new = lowered(plan.graph, v.path, kernel_of, plan.backends, largest, ordered)
            arena = new.layout.offsets(sizes)[1].get(device, 0)
            if arena < v.layout.offsets(sizes)[1][device]:
                v = replace(v, program=new.program, layout=new.layout, smaller=ordered.smaller(arena, before[device]))
            if arena <= goal or not ordered.reached:
                break
            target -= max(arena - goal, goal // 64)
    return v


class _Ordered:
    """The order of a variant's instructions for an arena of `target` bytes on a device, as an argument of `lowered`."""

    def __init__(self, v: Variant, device: str, sizes: Mapping[str, int], target: int) -> None:
        self.seconds = {e.signature: e.seconds for e in v.evidence}
        self.device, self.sizes, self.target = device, sizes, target

    def __call__(self, lowering: Lowering, finals: Finals) -> Finals:
        self.run = RunOrder(lowering, finals, self.device, self.sizes, self.time_of)
        self.run.end_early()
        self.reached = self.run.repeat(self.target)
        return in_order(lowering, finals, self.run.order)

    def time_of(self, ins: Instruction) -> float:
        moved = sum(int(d.evaluate(TensorType(o.shape, o.dtype).nbytes(), self.sizes)) for o in (*ins.outs, *ins.ins))
        return self.seconds.get(ins.signature, 0.0) or moved / COPY_RATE

    def smaller(self, arena: int, before: int) -> SmallerArena:
        again = self.run.repeated
        return SmallerArena(tuple(self.run.order), len(again), sum(self.run.seconds[i] for i in again), arena, before)


def _cost(v: Variant) -> str:
    """Return what an order saves and costs, for people."""
    smaller = v.smaller
    assert smaller is not None
    text = f"the memory limit changed the order of a run{f' at {v.cell}' if v.cell.ranges else ''}: the arena is "
    text += f"{human(smaller.arena)} instead of {human(smaller.before)}"
    if not smaller.calls:
        return text + ", and nothing is computed again"
    share = smaller.seconds / max(v.path.seconds, 1e-12)
    return text + f", and {counted(smaller.calls, 'call')} computed again take {duration(smaller.seconds)} (+{share:.1%})"


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
