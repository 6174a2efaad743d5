"""recipes: graphs that mean the same as a given one (its recipes), found by saturation, with the rules that lead to each.

    found = recipes(graph)
    found.list[0].graph, found.list[0].rules
    print(found.derivation(0))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensor_graphs.language.graph import Graph
from tensor_graphs.rewrites.conditions import checked
from tensor_graphs.rewrites.egraph import EGraph
from tensor_graphs.rewrites.errors import RewriteError
from tensor_graphs.rewrites.extract import Extractor, add_graph, is_paid, paid_nodes
from tensor_graphs.rewrites.graph_regions import LARGE, RegionReport, solve_by_regions
from tensor_graphs.rewrites.provenance import RuleStep, derive, show_steps
from tensor_graphs.rewrites.report import Report
from tensor_graphs.rewrites.rule import LEVELS, NumericClass, Rewrite
from tensor_graphs.rewrites.saturate import USUAL, Budget, Saturated, saturate


@dataclass(frozen=True)
class Recipe:
    """One graph. rules: those of its derivation, in the order of first use; none for the original graph. steps: the derivation in
    one e-graph. by_region: for each distinct region that changed, its derivation as text."""

    graph: Graph
    cost: float
    paid: int
    rules: tuple[str, ...]
    steps: tuple[RuleStep, ...]
    by_region: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipes:
    """The recipes, the cheapest first, with the e-graph that proves them. regions: None for a graph that was saturated in one
    e-graph; if regions were used, the e-graph holds only the original graph, and `report` sums all saturations."""

    list: tuple[Recipe, ...]
    saturated: Saturated
    outputs: dict[str, int]
    updates: dict[str, int]
    regions: RegionReport | None = None

    @property
    def report(self) -> Report:
        return self.saturated.report

    def derivation(self, index: int) -> str:
        """Return the derivation of a recipe from the original graph, step by step, as text."""
        if not 0 <= index < len(self.list):
            raise RewriteError(f"there is no recipe {index}", fix=f"0 to {len(self.list) - 1}")
        if self.list[index].by_region:
            return "\n\n".join(f"region {i}:\n{text}" for i, text in enumerate(self.list[index].by_region, 1))
        return show_steps(self.saturated.egraph, [*self.list[index].steps])

    def holds(self, other: Graph) -> bool:
        """Return whether another graph with the same outputs was found equal to the original graph."""
        e = self.saturated.egraph
        outputs, updates = add_graph(e, other)
        return all(e.find(old[name]) == e.find(new[name])
                   for old, new in ((self.outputs, outputs), (self.updates, updates)) for name in old)

    def derive_graph(self, other: Graph) -> tuple[RuleStep, ...]:
        """Return the steps from the original graph to another one. Raises RewriteError if they were not found equal."""
        return _steps(self.saturated.egraph, self.outputs, self.updates, other)


def recipes(graph: Graph, *, level: NumericClass = "reassociating", count: int = 10, rules: Sequence[Rewrite] | None = None,
            budget: Budget = USUAL, whole: bool | None = None, assuming: Sequence[str] = ()) -> Recipes:
    """Return up to `count` graphs that mean the same, up to a numeric class, `level`. rules: by default all without assumptions.

    assuming: conditions on values (conditions.CONDITIONS) that the caller guarantees; rules that assume only these run, too, also
    user-registered ones. whole: use one e-graph for the entire graph; by default up to regions.LARGE paid nodes, else regions.
    """
    from tensor_graphs.rewrites.rules import allowed

    chosen = allowed(checked(assuming, "what recipes")) if rules is None else tuple(rules)
    if whole is False or (whole is None and sum(map(is_paid, graph.nodes)) > LARGE):
        return _by_regions(graph, chosen, level, budget, count)
    e = EGraph()
    outputs, updates = add_graph(e, graph)
    done = saturate(e, chosen, budget, LEVELS[:LEVELS.index(level) + 1])
    result = []
    for best in Extractor(done.views[level], outputs, updates).extract(count):
        steps = _steps(e, outputs, updates, best.graph)
        result.append(Recipe(best.graph, best.cost, paid_nodes(best.graph), tuple(dict.fromkeys(s.rule for s in steps)), steps))
    return Recipes(tuple(result), done, outputs, updates)


def _by_regions(graph: Graph, rules: Sequence[Rewrite], level: NumericClass, budget: Budget, count: int) -> Recipes:
    graphs, solver = solve_by_regions(graph, rules, level, budget, count)
    rows = []
    for best in graphs:
        used: list[str] = []
        texts = []
        for kind, index in best.chosen.items():
            solved = solver.known[kind]
            steps = solved.steps(index)
            used += [s.rule for s in steps]
            if steps:
                texts.append(show_steps(solved.egraph, steps))
        rows.append(Recipe(best.graph, best.cost, paid_nodes(best.graph), tuple(dict.fromkeys(used)), (), tuple(texts)))
    e = EGraph()
    outputs, updates = add_graph(e, graph)
    return Recipes(tuple(rows), Saturated(e, {}, solver.report.together), outputs, updates, solver.report)


def _steps(e: EGraph, outputs: dict[str, int], updates: dict[str, int], other: Graph) -> tuple[RuleStep, ...]:
    new_outputs, new_updates = add_graph(e, other)
    if new_outputs.keys() != outputs.keys() or new_updates.keys() != updates.keys():
        raise RewriteError("the graphs have other outputs", fix="the same names of outputs and states")
    steps: dict[RuleStep, None] = {}
    for old, new in ((outputs, new_outputs), (updates, new_updates)):
        for name, term in old.items():
            steps.update(dict.fromkeys(derive(e, term, new[name])))
    return tuple(steps)
