"""saturate: run rules over an e-graph, level by level, within a budget.

The bitwise rules run first. After a snapshot, the reassociating rules run together with them. The numeric class of a result is the
level in which it first exists, because congruence carries a union of one level into classes of another.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tensor_graphs.rewrites.egraph import EGraph, View
from tensor_graphs.rewrites.report import Report
from tensor_graphs.rewrites.rule import LEVELS, Index, NumericClass, Rewrite

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Budget:
    """Limits of a saturation. matches: new ones of a rule per round. expanding: all matches of a rule that expands. nodes: all
    e-nodes.

    depth, expanding_depth: how many rules may have led to a match. Deeper matches do not count as starved: the run is saturated up
    to a depth. There are never more than four terms for each allowed e-node, except those of one replacement: this bounds memory.
    seconds: for the entire run; only a run that they stop depends on the machine's speed.
    """

    matches: int = 2000
    expanding: int = 60
    depth: int = 8
    expanding_depth: int = 3
    nodes: int = 6000
    rounds: int = 12
    seconds: float = 10.0


USUAL = Budget()


@dataclass(frozen=True)
class Saturated:
    """The e-graph, its snapshot after each level, and the report."""

    egraph: EGraph
    views: dict[NumericClass, View]
    report: Report


PATTERN_DEPTH = 6
"""Largest depth of a rule's pattern. A match can be new only if a class changed within this depth below its root."""


def index_of(e: EGraph, among: Mapping[int, int] | None = None, computed_numbers: bool = True) -> Index:
    """Return the e-nodes by op, of the classes `among` if given. computed_numbers: False to leave out e-nodes that compute a known
    number other than as a view of a constant."""
    index = Index()
    index.distance = among
    for number, eclass in e.classes.items():
        if among is None or number in among:
            for node in eclass.nodes:
                if computed_numbers or eclass.splat is None or not node.children or node.op.facts.view:
                    index.setdefault(node.op.name, []).append((number, node))
    return index


def changed_since(e: EGraph, round: int, depth: int | None) -> dict[int, int]:
    """Return the classes touched since a round began, and those up to `depth` ops above them, each with its distance."""
    reached = {number: 0 for number, eclass in e.classes.items() if eclass.touched >= round}
    front, distance = list(reached), 0
    while front and (depth is None or distance < depth):
        distance += 1
        above: dict[int, int] = {}
        for number in front:
            for parent in e.classes[number].parents:
                home = e.find(parent)
                if home not in reached:
                    reached[home] = above[home] = distance
        front = list(above)
    return reached


def saturate(e: EGraph, rules: Sequence[Rewrite], budget: Budget = USUAL, levels: Sequence[NumericClass] = LEVELS,
             after_round: Callable[[EGraph], None] = lambda e: None) -> Saturated:
    """Apply the rules until nothing new is found or the budget is used up; return the e-graph with its snapshots and report.
    after_round: called with each rebuilt e-graph. The caller selects rules whose assumptions are allowed."""
    started, report = time.perf_counter(), Report()
    views: dict[NumericClass, View] = {}
    done: set[tuple[object, ...]] = set()
    used: dict[str, int] = {}
    e.rebuild()
    seen, behind = set[str](), set[str]()                          # behind: those that were starved have to look everywhere
    for level in levels:
        active = [r for r in rules if LEVELS.index(r.numeric_class) <= LEVELS.index(level)]
        for r in active:
            report.of(r.name).starved = 0
        finished = False
        for round in range(1, budget.rounds + 1):
            report.rounds[level] = round
            before = e.changes
            e.round += 1
            # a value that is one number is a fill: 0 = 0·x for each x, and rules for products would write all of these
            full = index_of(e, None, False)
            near, above = (index_of(e, changed_since(e, e.round - 1, depth), False) for depth in (PATTERN_DEPTH, None))
            starved = 0
            for r in active:
                everywhere = r.name in behind or r.name not in seen or r.reach == "anywhere"
                index = full if everywhere else above if r.reach == "above" else near
                left = _run(e, r, index, budget, report, done, used, started)
                (behind.update if left else behind.difference_update)([r.name])
                starved += left
                seen.add(r.name)
            e.rebuild()
            after_round(e)
            log.debug("%s, round %d: %d e-nodes", level, round, e.size)
            if e.changes == before:
                finished = not starved
                report.stopped = _over(e, budget, started) if starved else ""     # too late for any rule to change anything
                break
            report.stopped = _over(e, budget, started)
            if report.stopped:
                break
        report.saturated[level] = finished
        views[level] = e.view()
        if report.stopped:
            for later in levels[list(levels).index(level) + 1:]:
                views[later], report.saturated[later], report.rounds[later] = views[level], False, 0
            break
    report.seconds, report.e_nodes, report.classes = time.perf_counter() - started, e.size, len(e.classes)
    log.info("%d e-nodes in %d classes, %.3f s, %s", report.e_nodes, report.classes, report.seconds, report.saturated)
    return Saturated(e, views, report)


def _over(e: EGraph, budget: Budget, started: float) -> str:
    if len(e.terms) > 4 * budget.nodes or e.size > budget.nodes:
        return f"more than {budget.nodes} e-nodes"
    if time.perf_counter() - started > budget.seconds:
        return f"more than {budget.seconds} s"
    return ""


def _run(e: EGraph, r: Rewrite, index: Index, budget: Budget, report: Report, done: set[tuple[object, ...]],
         used: dict[str, int], started: float) -> int:
    """Run one rule once over the e-graph; return 1 if matches were left for lack of budget, else 0."""
    row, clock = report.of(r.name), time.perf_counter()
    limit, quota = budget.matches, budget.expanding - used.get(r.name, 0) if r.expanding else budget.matches
    depth = budget.expanding_depth if r.expanding else budget.depth
    new = (c for c in r.candidates(e, index) if c.key not in done and e.generations[c.term] < depth)
    if len(e.terms) > 4 * budget.nodes or time.perf_counter() - started > budget.seconds:
        limit = quota = 0
    places = list(itertools.islice(new, limit + 1))
    left = len(places) > limit
    for candidate in places[:limit]:
        if quota <= 0 or len(e.terms) > 4 * budget.nodes:
            left = True
            break
        done.add(candidate.key)
        row.matches += 1
        e.generation = e.generations[candidate.term] + 1
        pairs = candidate.apply()
        if pairs is None:
            row.rejected += 1
            continue
        changed = False
        for a, b in pairs:
            changed |= e.union(a, b, r.name)
        row.applied += changed
        used[r.name] = used.get(r.name, 0) + changed
        quota -= changed
    e.generation = 0
    row.starved += left
    row.seconds += time.perf_counter() - clock
    return int(left)
