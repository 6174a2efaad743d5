"""compare: compares two plans of one graph, step by step: the differences, the reasons for them, and their costs.

In: plans that were chosen, or pinned and run again. Out: for each range of sizes that one path of each plan serves, the steps that
differ, with the difference in time; then errors and memory. The differences of the steps add up to that of the paths.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensor_graphs.language.errors import GraphError
from tensor_graphs.paths.fit_terminal import duration, human
from tensor_graphs.paths.path import EXPAND, is_way_on
from tensor_graphs.paths.plan import Evidence, MemoryUse, Plan, Variant
from tensor_graphs.paths.plan_text import next_to_parameters
from tensor_graphs.paths.size_cells import Cell

BESIDE, NO_STEP = "beside the steps: copies, and what parts take as a whole", "no step of its own"

LONGEST = 100
"""Characters of a reason, or of the description of a step, on the screen."""


@dataclass(frozen=True)
class Side:
    """The choice of one plan for an op. seconds: of all its calls; 0 where the op is expanded, as its steps count. why_not: the
    reason why the other plan's choice was not taken ("" where that plan does not compute the op)."""

    way: str
    calls: int
    seconds: float
    measured: bool
    error: float | None
    why_not: str = ""

    def __str__(self) -> str:
        if is_way_on(self.way):
            return "its definition" if self.way == EXPAND else self.way
        error = "" if self.error is None else f", error {self.error:.1e}"
        return f"{self.way} × {self.calls} {duration(self.seconds)} ({'measured' if self.measured else 'estimate'}{error})"


@dataclass(frozen=True)
class Difference:
    """An op that the plans compute differently; a side is None where its path does not reach the op."""

    what: str
    a: Side | None
    b: Side | None

    @property
    def seconds(self) -> float:
        """Seconds that B takes longer than A."""
        return (self.b.seconds if self.b else 0.0) - (self.a.seconds if self.a else 0.0)


@dataclass(frozen=True)
class Range:
    """Sizes that one path of each plan serves. same: number of steps that are alike."""

    cell: Cell
    a: Variant
    b: Variant
    same: int
    differences: tuple[Difference, ...]

    @property
    def priced_alike(self) -> bool:
        return dict(self.a.at) == dict(self.b.at)


@dataclass(frozen=True)
class Comparison:
    """Result of `compare`. names: of the two plans, for people."""

    names: tuple[str, str]
    plans: tuple[Plan, Plan]
    ranges: tuple[Range, ...]
    sizes: Mapping[str, int]
    memory: tuple[MemoryUse, MemoryUse]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self, rows: int = 14) -> list[str]:
        """Return lines for people; at most `rows` steps of a range."""
        out = []
        for letter, name, plan in zip("AB", self.names, self.plans, strict=True):
            form = f" · precision {plan.precision}" if self.plans[0].graph != self.plans[1].graph else ""
            out.append(f"{letter}: {name} · {plan.asked} · backends {', '.join(plan.backends)}{form}")
        for r in self.ranges:
            out += self._range(r, rows)
        used = [next_to_parameters(m) for m in self.memory]
        at = ", ".join(f"{n}={s}" for n, s in self.sizes.items())
        kinds = [f"{kind} {human(x)} → {human(y)}" for kind, (x, y) in self._memory().items() if x != y and kind != "total"]
        out.append(f"memory{f' at {at}' if at else ''}: " + (used[0] + " in both" if not kinds else
                                                          f"A {used[0]}, B {used[1]} ({', '.join(kinds)})"))
        return out

    def _memory(self) -> dict[str, tuple[int, int]]:
        a, b = (m.to_json() for m in self.memory)
        return {kind: (a[kind], b[kind]) for kind in a if isinstance(a[kind], int)}

    def _range(self, r: Range, rows: int) -> Iterator[str]:
        where = r.cell.where
        if not r.differences:
            yield f"{where}the same path {r.a.path.id}, {duration(r.a.predicted)}" if r.a.path.id == r.b.path.id else \
                f"{where}the same steps, {r.same} of them"
            return
        sides = [f"{letter} {duration(v.predicted)}, {v.calls}, {_error(v)}, path {v.path.id}"
                 for letter, v in (("A", r.a), ("B", r.b))]
        yield f"{where}{'; '.join(sides)}"
        at = [", ".join(f"{n}={s}" for n, s in v.at.items()) for v in (r.a, r.b)]
        if r.priced_alike:
            ratio = r.b.predicted / r.a.predicted if r.a.predicted else 1.0
            yield f"  B takes {ratio:.3g} × the time of A{f' at {at[0]}' if at[0] else ''}; {r.same} steps are alike"
        else:
            yield (f"  A is costed at {at[0]}, B at {at[1]}, so their times do not compare "
                   "(in Python: sizes in at= cost both there)")
        for d in r.differences[:rows]:
            yield f"  {d.seconds * 1e6:+10.1f} µs  {d.what[:LONGEST]}"
            yield f"{'':17}A: {d.a if d.a else 'not reached'}   B: {d.b if d.b else 'not reached'}"
            for letter, mine, other in (("A", d.a, d.b), ("B", d.b, d.a)):
                if mine and other and mine.why_not:
                    yield f"{'':17}{letter} has not {_named(other.way)}: {mine.why_not[:LONGEST]}"
        more = r.differences[rows:]
        if more:
            yield f"  {sum(d.seconds for d in more) * 1e6:+10.1f} µs  in {len(more)} more"

    def to_json(self) -> dict[str, Any]:
        def side(s: Side | None) -> dict[str, Any] | None:
            return None if s is None else {"way": s.way, "calls": s.calls, "us": s.seconds * 1e6, "measured": s.measured,
                                           "error": s.error, "why_not": s.why_not}

        def path(v: Variant) -> dict[str, Any]:
            return {"path": v.path.id, "predicted_us": v.predicted * 1e6, "measured": v.path.measured, "error": v.path.error,
                    "calls": v.path.kernel_calls, "priced_at": dict(v.at)}

        return {"names": list(self.names), "tolerance": [p.tolerance for p in self.plans],
                "backends": [list(p.backends) for p in self.plans], "precision": [p.precision for p in self.plans],
                "memory": [m.to_json() for m in self.memory],
                "ranges": [{"cell": r.cell.to_json(), "a": path(r.a), "b": path(r.b), "priced_alike": r.priced_alike,
                            "same": r.same,
                            "differences": [{"what": d.what, "us": d.seconds * 1e6, "a": side(d.a), "b": side(d.b)}
                                            for d in r.differences]} for r in self.ranges]}


def compare(a: Plan, b: Plan, names: tuple[str, str] = ("the first", "the second"), sizes: Mapping[str, int] | None = None,
            costed: Callable[[Plan, Mapping[str, int]], Plan] | None = None) -> Comparison:
    """Return a comparison of two plans of one graph. sizes: at which memory is compared (default: the largest); ranges that contain
    them come first. costed: returns a plan with equal choices and its costs at given sizes, for ranges in which the two were costed
    at different sizes; without it their times are not compared there. Raises GraphError for plans of different graphs, PlanError
    for a size outside of its dim's range."""
    if a.pin.written != b.pin.written and a.graph != b.graph:
        raise GraphError(f"these are plans of different graphs, {a.pin.written[:12]} and {b.pin.written[:12]}",
                         fix="two plans of one graph")
    ranges = []
    for v, w in itertools.product(a.variants, b.variants):
        cell = v.cell.meet(w.cell)
        if cell is not None:
            if costed is not None and dict(v.at) != dict(w.at):
                at = _within(cell, v.at, w.at)
                v, w = (x if dict(x.at) == at else costed(plan, at).variant(at) for x, plan in ((v, a), (w, b)))
            ranges.append(_range(cell, v, a, w, b))
    ranges.sort(key=lambda r: (not r.cell.holds(sizes or {}), [low for _, low, _ in r.cell.ranges]))
    at = a.binding(sizes or {})
    return Comparison(names, (a, b), tuple(ranges), at, (a.memory(**at), b.memory(**b.binding(sizes or {}))))


def _within(cell: Cell, *priced_at: Mapping[str, int]) -> dict[str, int]:
    """Return sizes in a cell: those at which one of the plans was costed, if the cell has them, else its lowest."""
    lowest = {**priced_at[0], **{name: low for name, low, _ in cell.ranges}}
    return dict(next((at for at in priced_at if cell.holds(at)), lowest))


def _range(cell: Cell, v: Variant, a: Plan, w: Variant, b: Plan) -> Range:
    mine, theirs = ({e.signature: e for e in x.evidence} for x in (v, w))
    differences, same = [], 0
    for key in dict.fromkeys([*mine, *theirs]):
        x, y = mine.get(key), theirs.get(key)
        if x is not None and y is not None and (x.chosen, x.calls) == (y.chosen, y.calls) and _identity(v, x) == _identity(w, y):
            same += not is_way_on(x.chosen)
            continue
        title = next(e.title for e in (x, y) if e is not None)
        differences.append(Difference(title, _side(x, y, a, v, w), _side(y, x, b, w, v)))
    rest = [x.predicted - sum(e.seconds * e.calls for e in x.evidence if not is_way_on(e.chosen)) for x in (v, w)]
    if abs(rest[1] - rest[0]) > 1e-9:
        differences.append(Difference(BESIDE, *(Side(NO_STEP, 1, r, False, None) for r in rest)))
    differences.sort(key=lambda d: (not _is_rewritten(d), -abs(d.seconds)))
    return Range(cell, v, w, same, tuple(differences))


def _is_rewritten(d: Difference) -> bool:
    """Return True if one of the plans expands the op. Its steps are listed as differences too, after their cause."""
    return any(s is not None and is_way_on(s.way) for s in (d.a, d.b))


def _identity(v: Variant, e: Evidence) -> str | None:
    return v.path.identities.get(e.chosen)


def _side(e: Evidence | None, other: Evidence | None, plan: Plan, mine: Variant, theirs: Variant) -> Side | None:
    if e is None:
        return None
    seconds = 0.0 if is_way_on(e.chosen) else e.seconds * e.calls
    why = ""
    if other is not None:
        if e.chosen != other.chosen:
            why = _why_not(other.chosen, e, plan.backends)
        elif _identity(mine, e) != _identity(theirs, other):
            why = "its code is another one there"
    return Side(e.chosen, e.calls, seconds, e.measured, e.error, why)


def _why_not(name: str, e: Evidence, backends: Sequence[str]) -> str:
    """Return the reason why a plan did not choose the kernel, recipe or definition of this name for an op."""
    refused = dict(e.refused).get(name)
    if refused is not None:
        return refused
    seconds, measured = {n: (s, m) for n, s, m in e.others}.get(name, (None, False))
    if seconds is None:
        backend = name.partition(".")[0]
        return "not offered there" if is_way_on(name) or backend in backends else f"the backend {backend} was not allowed"
    cost = f"{duration(seconds)} a call ({'measured' if measured else 'estimate'}), not {duration(e.seconds)}"
    return cost if seconds >= e.seconds else f"{cost}: its path was given, or other steps of that way take more"


def _named(way: str) -> str:
    return "the definition" if way == EXPAND else way


def _error(v: Variant) -> str:
    return "error unknown" if v.path.error is None else f"error {v.path.error:.1e}"
