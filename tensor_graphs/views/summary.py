"""summary: a plan at given sizes in a few rows: its most expensive steps, the source of each time, and the alternatives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tensor_graphs.errors import counted
from tensor_graphs.paths.fit_terminal import duration
from tensor_graphs.paths.path import EXPAND
from tensor_graphs.paths.plan import Evidence, Plan
from tensor_graphs.paths.plan_text import at_once, dearest_steps, expected

ROWS = 5
"""Number of steps that are shown."""


@dataclass(frozen=True)
class SummaryStep:
    """One row. seconds: of all calls in a run. share: of the time of all steps, 0 to 1. error: largest relative error measured
    against the oracle, None if it was never compared. rival: the next best way, for people."""

    what: str
    kernel: str
    calls: int
    seconds: float
    share: float
    measured: bool
    error: float | None
    rival: str


@dataclass(frozen=True)
class PlanSummary:
    """Rows of the most expensive steps. title: time of a run. rest: the steps left out. why: reason for choosing this path."""

    title: str
    steps: tuple[SummaryStep, ...]
    rest: str
    why: str


def summarise(plan: Plan, at: Mapping[str, int] | None = None, rows: int = ROWS) -> PlanSummary:
    """Return the summary of the variant that serves the sizes in `at`. Raises PlanError for a size outside of its dim's range."""
    v = plan.variant(at or {})
    steps = dearest_steps(v)
    total = sum(e.seconds * e.calls for e in steps) or 1.0
    sizes = ", ".join(f"{n}={s}" for n, s in v.at.items())
    rest = steps[rows:]
    estimates = 1.0 - v.measured_share
    basis = ("Every step was measured on this machine." if estimates == 0 else
             f"{estimates:.0%} of that time is estimated from bytes and operations; tg profile measures it.")
    return PlanSummary(
        f"{expected(v)}{f' at {sizes}' if sizes else ''}, {v.calls}"
        + "".join(f";{line}" for line in at_once(v)),
        tuple(SummaryStep(e.steps or e.title, e.chosen, e.calls, e.seconds * e.calls, e.seconds * e.calls / total, e.measured,
                          e.error, _rival(e)) for e in steps[:rows]),
        "" if not rest else f"and {counted(len(rest), 'more step')}, called {sum(e.calls for e in rest)} times in a run: "
                            f"{duration(sum(e.seconds * e.calls for e in rest))} in all",
        "It has the lowest expected time of all paths whose kernels agree with the float64 oracle"
        f"{f' within {plan.asked}' if plan.accuracy.terms else ''}. {basis}")


def _rival(e: Evidence) -> str:
    if not e.others:
        return ""
    name, seconds, measured = e.others[0]
    return f"{'definition' if name == EXPAND else name} {duration(seconds * e.calls)}{'' if measured else ' (estimate)'}"
