"""plan_text: the text of `print(plan)`, which fits on one screen for every plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensor_graphs.language import dims as d
from tensor_graphs.paths.fit_terminal import SCREEN_LINES, duration, fitted, human
from tensor_graphs.paths.path import is_way_on

if TYPE_CHECKING:
    from tensor_graphs.paths.plan import Evidence, MemoryUse, Plan, Variant


def on_one_screen(plan: Plan) -> str:
    """Return inputs, outputs and variants, the most expensive steps of the slowest variant, and the memory at the largest sizes."""
    g = plan.graph
    lines = [repr(plan)]
    for what, nodes in (("inputs", g.inputs), ("states", g.states), ("outputs", g.outputs)):
        if listed := [f"{name} {node.type}" for name, node in nodes.items()]:
            lines.append(f"  {what}: {', '.join(listed[:6])}{f', and {len(listed) - 6} more' if len(listed) > 6 else ''}")
    lines += [f"  precision: {plan.precision}"] if plan.precision else []
    lines += [f"  {plan.prepared}"] if plan.prepared else []
    lines += [f"  note: {n}" for n in (*plan.notes[:3], *beyond(plan))]
    lines += plan.cells.map()[:SCREEN_LINES // 4]
    for v in plan.variants[:8]:
        costed = f" at {', '.join(f'{n}={s}' for n, s in v.at.items())}" if v.at else ""
        lines.append(f"{plan.cells.where(v.cell)}path {v.path.id}, {v.calls}, {expected(v)}{costed}, "
                     f"{v.measured_share:.0%} of it from measured rows")
    lines += [f"… {len(plan.variants) - 8} more variants"] if len(plan.variants) > 8 else []
    lines += [line for v in plan.variants[:8] for line in at_once(v)]
    dearest = max(plan.variants, key=lambda v: v.predicted)
    steps = dearest_steps(dearest)
    room = max(5, min(14, SCREEN_LINES - len(lines) - 6))
    if steps:
        at = f" for {dearest.cell}" if dearest.cell.ranges else ""
        lines.append(f"the most expensive steps{at}:")
    for e in steps[:room]:
        source = "measured" if e.measured else "estimate"
        lines.append(f"  {e.seconds * 1e6:9.1f} µs × {e.calls:<4d} {e.chosen:22s} {source}  "
                     f"{f'{e.steps}: ' if e.steps else ''}{e.title}")
    if len(steps) > room:
        lines.append(f"  {sum(e.seconds * e.calls for e in steps[room:]) * 1e6:9.1f} µs in {len(steps) - room} more")
    lines += added_up(dearest)
    use = plan.memory()
    sizes = ", ".join(f"{n}={s}" for n, s in plan.largest.items())
    lines.append(f"memory{f' at {sizes}' if sizes else ''}: {next_to_parameters(use)}{while_binding(use)}"
                 + "".join(f"; on {other.device} {human(other.total)}" for other in use.elsewhere))
    lines.append("more: tg.explain(plan) says why, and what else there is; plan.memory(n=…); plan.variants[0].program.instructions")
    return fitted(lines)


def dearest_steps(v: Variant) -> list[Evidence]:
    """Return the evidence of the kernels that a run calls, those that take most of its time first."""
    return sorted((e for e in v.evidence if not is_way_on(e.chosen) and e.calls), key=lambda e: -e.seconds * e.calls)


def beyond(plan: Plan) -> list[str]:
    """Return a note if the graph allows larger sizes than those that kernels were chosen for, else no note."""
    ends = {name: (high, d.bounds(plan.graph.dims[name])[1]) for name, _, high in plan.cells.box.ranges}
    short = {name: most for name, (high, most) in ends.items() if high < most}
    if not short:
        return []
    spans = " and ".join(f"{name} = {ends[name][0] + 1}..{most}" for name, most in short.items())
    return [f"runs at {spans} take the kernels chosen below that, and may be slow; largest={short} plans for them"]


def next_to_parameters(use: MemoryUse) -> str:
    """Return text on the bytes that a plan allocates and the caller's: "1.1 MB beside 2.1 MB of parameters"."""
    rest = f" ({human(use.bind_only)} more are read only while it is bound)" if use.bind_only else ""
    return f"{human(use.allocated)} beside {human(use.parameters)} of parameters{rest}"


def while_binding(use: MemoryUse) -> str:
    """Return text on the peak of bytes computed from parameters while a plan is bound, if it exceeds the bytes kept; else ""."""
    if use.bind_peak <= use.bound:
        return ""
    return f"; {human(use.bind_peak)} made of parameters while it is bound, {human(use.bound)} after"


def added_up(v: Variant) -> list[str]:
    """Return the line below the steps of a variant: their sum, and how the expected time of a run follows from it."""
    calls = dearest_steps(v)
    if not calls:
        return []
    total = sum(e.calls * e.seconds for e in calls) + sum(seconds for _, seconds in v.path.copies.values())
    line = f"  = {duration(total)}"
    if v.whole is not None:
        line += f"; measured as a whole: {duration(v.whole.seconds)}"
    else:
        calls_take = v.predicted - v.around
        if abs(total - calls_take) > 0.01 * calls_take:
            line += f", {duration(calls_take)} as its parts were measured"
        line += f", and {duration(v.around)} around the calls"
    if raised := {f"{e.margin:.3g}" for e in calls if e.margin > 1}:
        line += f"; the choice counts estimates × {' or × '.join(sorted(raised))}, so that measurements win"
    return [line]


def at_once(v: Variant) -> list[str]:
    """Return a line that names the kernel that runs all steps in one launch, if the path has one; else no line."""
    return [f"  one kernel in place of all launches for runs of one token: {name}; what is listed runs at other sizes"
            for name in [v.path.all_steps] if name]


def expected(v: Variant) -> str:
    """Return the expected time of a run of a variant, as text."""
    if v.whole is None:
        return f"{duration(v.predicted)} predicted"
    return f"{duration(v.whole.seconds)} measured as a whole (trace {v.whole.trace}, of {v.whole.among} paths)"
