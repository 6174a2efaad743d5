"""plan_screen: what `print(plan)` shows: one screen, whatever the plan is of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensor_graphs.errors import counted
from tensor_graphs.language import dims as d
from tensor_graphs.paths.path import is_way_on
from tensor_graphs.paths.screen import SCREEN_LINES, duration, fitted, human

if TYPE_CHECKING:
    from tensor_graphs.paths.plan import MemoryUse, Plan, Variant


def on_one_screen(plan: Plan) -> str:
    """What is computed, its variants, the most expensive steps of the most expensive one, and the memory at the largest sizes."""
    g = plan.graph
    lines = [repr(plan)]
    for what, nodes in (("inputs", g.inputs), ("states", g.states), ("outputs", g.outputs)):
        listed = [f"{name} {node.type}" for name, node in nodes.items()]
        if listed:
            lines.append(f"  {what}: {', '.join(listed[:6])}{f', and {len(listed) - 6} more' if len(listed) > 6 else ''}")
    lines += [f"  intermediates: {plan.intermediates}"] if plan.intermediates else []
    lines += [f"  {plan.prepared}"] if plan.prepared else []
    lines += [f"  note: {n}" for n in (*plan.notes[:3], *beyond(plan))]
    lines += plan.cells.map()[:SCREEN_LINES // 4]
    for v in plan.variants[:8]:
        priced = f" at {', '.join(f'{n}={s}' for n, s in v.at.items())}" if v.at else ""
        calls = counted(len(v.program.instructions), "call")
        lines.append(f"{plan.cells.where(v.cell)}path {v.path.id}, {calls}, {expected(v)}{priced}, "
                     f"{v.measured_share:.0%} of it from measured rows")
    lines += [f"… {len(plan.variants) - 8} more variants"] if len(plan.variants) > 8 else []
    lines += [line for v in plan.variants[:8] for line in at_once(v)]
    dearest = max(plan.variants, key=lambda v: v.path.seconds)
    steps = sorted((e for e in dearest.evidence if not is_way_on(e.chosen) and e.calls), key=lambda e: -e.seconds * e.calls)
    room = max(5, min(14, SCREEN_LINES - len(lines) - 6))
    if steps:
        at = f" for {dearest.cell}" if dearest.cell.ranges else ""
        lines.append(f"the most expensive steps{at}:")
    for e in steps[:room]:
        source = "measured" if e.measured else "guess   "
        lines.append(f"  {e.seconds * 1e6:9.1f} µs × {e.calls:<4d} {e.chosen:22s} {source}  "
                     f"{f'{e.steps}: ' if e.steps else ''}{e.title}")
    if len(steps) > room:
        lines.append(f"  {sum(e.seconds * e.calls for e in steps[room:]) * 1e6:9.1f} µs in {len(steps) - room} more")
    lines += added_up(dearest)
    use = plan.memory()
    sizes = ", ".join(f"{n}={s}" for n, s in plan.largest.items())
    lines.append(f"memory{f' at {sizes}' if sizes else ''}: {human(use.allocated)} beside {human(use.parameters)} of parameters"
                 f"{while_binding(use)}"
                 + "".join(f"; on {other.device} {human(other.total)}" for other in use.elsewhere))
    lines.append("more: tg.explain(plan) says why, and what else there is; plan.memory(n=…); plan.variants[0].program.instructions")
    return fitted(lines)


def beyond(plan: Plan) -> list[str]:
    """A note where a run may have larger sizes than those that kernels were chosen for."""
    ends = {name: (high, d.bounds(plan.graph.dims[name])[1]) for name, _, high in plan.cells.box.ranges}
    short = {name: most for name, (high, most) in ends.items() if high < most}
    if not short:
        return []
    said = " and ".join(f"{name} = {ends[name][0] + 1}..{most}" for name, most in short.items())
    return [f"runs at {said} take the kernels chosen below that, and may be slow; largest={short} plans for them"]


def while_binding(use: MemoryUse) -> str:
    """What binding a plan holds of values made of parameters at its peak, where that is more than what stays."""
    if use.bind_peak <= use.bound:
        return ""
    return f"; {human(use.bind_peak)} made of parameters while it is bound, {human(use.bound)} after"


def added_up(v: Variant) -> list[str]:
    """The line beneath the steps of a variant: what they come to, and how that is what a run is expected to take."""
    calls = [e for e in v.evidence if not is_way_on(e.chosen) and e.calls]
    margins = sorted({e.margin for e in calls})
    copies = sum(seconds for _, seconds in v.path.copies.values())
    count = sum(e.calls * e.seconds for e in calls) + copies
    plain = sum(e.calls * e.seconds / e.margin for e in calls) + copies
    said = f"  = {duration(count)}"
    if margins and margins[-1] > 1:
        times = f"{max(1.0, margins[0]):.3g} to {margins[-1]:.3g}" if len(margins) > 1 else f"{margins[0]:.3g}"
        said += f", where guesses count × {times} so that measurements beat them; expected: {duration(plain)}"
    if v.whole is not None:
        return [f"{said}; in one go: {duration(v.predicted)}"] if calls else []
    if abs(plain + v.around - v.predicted) > 0.01 * v.predicted:
        return [f"{said}; with what parts took as a whole, {duration(v.predicted)}"] if calls else []
    return [f"{said}, and {duration(v.around)} around the calls"] if calls else []


def at_once(v: Variant) -> list[str]:
    """The line that says that one kernel runs all steps, where it does."""
    if not v.path.all_steps:
        return []
    return [f"  one kernel in place of all launches for runs of one token: {v.path.all_steps}; what is listed runs at other sizes"]


def expected(v: Variant) -> str:
    """What a run of a variant is expected to take, for people."""
    if v.whole is None:
        return f"{duration(v.predicted)} predicted"
    return f"{duration(v.whole.seconds)} measured as a whole (trace {v.whole.trace}, of {v.whole.among} paths)"
