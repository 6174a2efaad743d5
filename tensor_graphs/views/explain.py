"""explain: the choices in a plan and the reasons for them, on one screen or as data."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tensor_graphs.argument_checks import whole
from tensor_graphs.choice.choice_evidence import Choice
from tensor_graphs.codegen import backend
from tensor_graphs.kernels.kernel import ANY_OP
from tensor_graphs.kernels.registry import is_registered
from tensor_graphs.language.errors import GraphError
from tensor_graphs.language.explain_call_errors import worded
from tensor_graphs.language.graph import Graph
from tensor_graphs.paths.fit_terminal import human
from tensor_graphs.paths.path import EXPAND, is_way_on
from tensor_graphs.paths.plan import Evidence, Plan, Variant, given_sizes
from tensor_graphs.paths.plan_text import added_up, at_once, beyond, dearest_steps, expected, next_to_parameters, while_binding
from tensor_graphs.views.compare import compare

MOST_STEPS = 9
"""Most lines of a recipe's derivation on the screen."""

LONGEST_REASON = 240
"""Most characters of the reason for refusing a kernel on the screen."""


def explain_data(plan: Plan, dims: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Return the plan as plain data: variants with their steps, evidence per signature, memory, notes. Raises as `explain`."""
    _require_plan(plan)
    return {"graph": plan.graph.structural_key, "tolerance": plan.tolerance, "accuracy": plan.measured,
            "backends": list(plan.backends), "precision": plan.precision, "words": dict(plan.words), "prepared": plan.prepared,
            "notes": [*plan.notes, *beyond(plan)],
            "unmeasured": list(plan.unmeasured), "memory": plan.memory(**dict(dims or {})).to_json(),
            "memory_elsewhere": {use.device: use.to_json() for use in plan.memory(**dict(dims or {})).elsewhere},
            "variants": [_variant(v) for v in plan.variants]}


def _require_plan(value: Any, taker: str = "explain") -> None:
    if not isinstance(value, Plan):
        if isinstance(getattr(value, "plan", None), Plan):
            raise GraphError(f"{taker} takes a plan, and this is {value!r}", fix="its plan: tg.explain(model.plan)")
        what = "a graph" if isinstance(value, Graph) else f"a {type(value).__name__}"
        raise GraphError(f"{taker} takes a plan, and this is {what}", fix="tg.explain(tg.compile(graph))")


def _variant(v: Variant) -> dict[str, Any]:
    return {"range": v.cell.to_json() or None, "priced_at": dict(v.at),
            "path": v.path.id, "predicted_us": v.predicted * 1e6,
            "all_steps": v.path.all_steps or None,
            "whole": None if v.whole is None else {"us": v.whole.seconds * 1e6, "trace": v.whole.trace, "paths": v.whole.among},
            "measured_share": v.measured_share,
            "copies": {way: {"number": n, "us": seconds * 1e6} for way, (n, seconds) in v.path.copies.items()},
            "instructions": len(v.program.instructions), "bind_instructions": len(v.program.bind_instructions),
            "choices": [{
                "what": e.title, "steps": e.steps, "kernel": e.chosen,
                "calls": e.calls, "us_per_call": e.seconds * 1e6, "margin": e.margin, "measured": e.measured,
                "error": e.error, "why": e.note, **_rows(e),
                "others": [{"kernel": n, "us_per_call": s * 1e6, "measured": m} for n, s, m in e.others],
                "refused": [{"kernel": n, "why": w} for n, w in e.refused]} for e in v.evidence]}


def _rows(e: Evidence) -> dict[str, Any]:
    """Return the database rows that a choice rests on: for its time (with the age now), and for its comparison with the oracle."""
    if not isinstance(e, Choice):
        return {"trace": None, "measured_at": None, "age_seconds": None, "verdict_trace": None, "rows": 0, "rows_agreeing": 0,
                "suspect": "", "covered": "", "derivation": []}
    return {"trace": e.trace, "measured_at": None if e.measured_at is None else e.measured_at.isoformat(),
            "age_seconds": None if e.measured_at is None else (datetime.now(UTC) - e.measured_at).total_seconds(),
            "verdict_trace": e.verdict_trace, "rows": e.times, "rows_agreeing": e.agreeing, "suspect": e.doubt,
            "derivation": e.derivation.splitlines(),
            "covered": e.covered}


def _measured(e: Evidence) -> str:
    """Return text that names the database row of a time; "" where it was not measured."""
    row = _rows(e)
    of = f" (of {row['rows']} rows {row['rows_agreeing']} agree)" if row["rows"] > 1 else ""
    return "" if row["trace"] is None else f"measured, trace {row['trace']}{of}, {age(row['age_seconds'])}"


def _whole(e: Evidence) -> str:
    """Return text on the measured time of a part as a unit in the chosen way, and its row; "" where it was not measured."""
    row = _measured(e)
    return f" | as a whole {e.seconds * 1e6:.1f} µs, {row}" if row else ""


def _arranged(v: Variant, name: str) -> list[str]:
    """Return a line with the actions of a searched schedule that differ from the default rules'; none for other kernels."""
    kernel = v.kernels.get(name)
    if kernel is None or not kernel.remade:
        return []
    step = next(i for i in (*v.program.instructions, *v.program.bind_instructions) if i.kernel == name)
    actions: str = importlib.import_module(kernel.module).differs(kernel, v.program.signatures[step.signature].spec)
    return [f"{'':17}arranged by a search: {actions}"]


def _derived(v: Variant, e: Evidence) -> list[str]:
    """Return the rules by which reductions in loops were fused into one pass, one per line."""
    kernel, signature = v.kernels.get(e.chosen), v.program.signatures.get(e.signature)
    if kernel is None or kernel.module != backend.__name__ or kernel.op != ANY_OP or signature is None:
        return []
    return [f"{'':17}derived: {line[:100]}" for line in backend.derivation_of(signature.spec)]


def _refused(e: Evidence) -> list[str]:
    """Return a line for each kernel that may not be used. A long reason is cut; `explain_data` has all of it."""
    return [f"{'':17}refused: {name}: {why if len(why) <= LONGEST_REASON else why[:LONGEST_REASON - 1] + '…'}"
            for name, why in e.refused]


def age(seconds: float) -> str:
    """Return a time in seconds as text for people: 3 days, 5 hours, 12 minutes."""
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return "just now" if seconds < 60 else "1 minute"


def _elsewhere(v: Variant, wanted: Mapping[str, int]) -> str:
    """Return a note if a variant was costed at other sizes than the requested ones, with the way to have it costed at these."""
    other = {n: s for n, s in wanted.items() if v.at.get(n, s) != s}
    sizes = ", ".join(f"{n}={s}" for n, s in other.items())
    return f", not at {sizes} (tg.compile(graph, at={other}) costs it there)" if other else ""


@worded
def explain(plan: Plan, dims: Mapping[str, int] | None = None, rows: int = 14, at: Mapping[str, int] | None = None,
            against: Plan | None = None) -> str:
    """Return one screen of text: for each variant the most expensive choices, the evidence for each, and the alternatives.

    dims: sizes for the memory: `at` by default, and the largest for dims in neither. rows: number of choices shown per variant. at:
    requested sizes: the variant that serves them comes first, and all others have one line. against: another plan of the graph:
    only the differences are shown, with their reasons and their costs in time, error and memory (compare.py). Raises GraphError for
    an object that is no plan, PlanError for sizes that do not fit.
    """
    _require_plan(plan)
    rows = whole("rows", rows, 1)
    if against is not None:
        _require_plan(against, "explain's against=")
        return "\n".join(compare(plan, against, sizes=given_sizes(plan.graph, at or dims, "at")).lines(rows))
    wanted = given_sizes(plan.graph, at, "at")
    at_memory = plan.binding(dims or wanted)
    use = plan.memory(**at_memory)
    out = [f"graph {plan.graph.structural_key[:12]} · {plan.asked} · backends {', '.join(plan.backends)}"]
    out += [f"{of}: {text}" for of, text in (("accuracy", plan.measured), ("precision", plan.precision)) if text]
    out += [plan.prepared] if plan.prepared else []
    out += [f"note: {n}" for n in (*plan.notes, *beyond(plan))]
    asked = [v for v in plan.variants if set(v.cell.dims) & set(wanted) and v.cell.holds(wanted)]
    out += plan.cells.map()
    for v in (*asked, *(v for v in plan.variants if v not in asked)):
        costed = ", ".join(f"{n}={s}" for n, s in v.at.items())
        other = _elsewhere(v, wanted) if v in asked or not asked else ""
        out.append(f"{plan.cells.where(v.cell)}path {v.path.id} · {v.calls} · {expected(v)}"
                   f"{' at ' + costed if costed else ''}{other} · {v.measured_share:.0%} of it from measured rows")
        out += at_once(v)
        if asked and v not in asked:
            continue
        dearest = dearest_steps(v)
        for e in dearest[:rows]:
            error = "" if e.error is None else f" error {e.error:.1e}"
            other = f" | next: {e.others[0][0]} {e.others[0][1] * 1e6:.0f} µs" if e.others else ""
            rows_used = _rows(e)
            source = _measured(e) or ("measured" if e.measured else "estimate")
            out.append(f"  {e.seconds * 1e6:9.1f} µs × {e.calls:<3d} {e.chosen:18s} {source:8s}{error}"
                       f"  {e.title[:58]}{other}")
            out += [f"{'':17}computes {e.steps}"] if e.steps else []
            out += _arranged(v, e.chosen)
            out += _derived(v, e)
            if rows_used["suspect"]:
                out.append(f"{'':17}suspect: {rows_used['suspect']}; tg profile measures it again")
            out += [f"{'':17}compared at {rows_used['covered']}"] if rows_used["covered"] else []
            out += _refused(e)
        out += [f"  {seconds * 1e6:9.1f} µs in {n} copies {way} between devices" for way, (n, seconds) in v.path.copies.items()]
        for e in v.evidence:
            if is_way_on(e.chosen) and e.chosen != EXPAND:
                out.append(f"{'':13}× {e.calls:<3d} {e.chosen}: {e.title[:58]}{_whole(e)}")
                steps = e.derivation.splitlines() if isinstance(e, Choice) else []
                out += [f"{'':17}{line[:100]}" for line in steps[:MOST_STEPS]]
                out += [f"{'':17}… (all of it: tg explain --json)"] if len(steps) > MOST_STEPS else []
            rival = next((f" | next: {name} {seconds * 1e6:.0f} µs{'' if measured else ', estimate'}"
                          for name, seconds, measured in e.others if measured or is_registered(name)), "")
            if e.chosen == EXPAND and (e.refused or rival or _whole(e)):
                out.append(f"{'':13}by its definition: {e.title[:58]}{_whole(e)}{rival}")
                out += [f"{'':17}computes {e.steps}"] if e.steps and rival else []
                out += _refused(e)
        if len(dearest) > rows:
            rest = sum(e.seconds * e.calls for e in dearest[rows:])
            out.append(f"  {rest * 1e6:9.1f} µs in {len(dearest) - rows} more")
        out += added_up(v)
    parts = {"states": use.states, "made of parameters": use.bound, "arena": use.arena, "kernels' own": use.scratch,
             "outputs": use.outputs}
    sizes = ", ".join(f"{n}={s}" for n, s in at_memory.items())
    out.append(f"memory{f' at {sizes}' if sizes else ''}: {next_to_parameters(use)} "
               f"({', '.join(f'{name} {human(n)}' for name, n in parts.items() if n or name == 'arena')}){while_binding(use)}"
               + "".join(f"; on {other.device} {human(other.total)}" for other in use.elsewhere))
    return "\n".join(out)
