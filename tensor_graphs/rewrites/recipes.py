"""recipes: graphs that mean the same as a given one, found by saturation, with the rules that lead to each.

    found = recipes(graph)
    found.list[0].graph, found.list[0].rules
    print(found.derivation(0))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensor_graphs.language.graph import Graph
from tensor_graphs.rewrites.egraph import EGraph
from tensor_graphs.rewrites.errors import RewriteError
from tensor_graphs.rewrites.extract import Extractor, add_graph, paid_nodes
from tensor_graphs.rewrites.provenance import Step, derive, show_steps
from tensor_graphs.rewrites.report import Report
from tensor_graphs.rewrites.rule import LEVELS, NumericClass, Rewrite
from tensor_graphs.rewrites.saturate import USUAL, Budget, Saturated, saturate


@dataclass(frozen=True)
class Recipe:
    """One graph. `rules`: those of its derivation, in the order of their first use; none for the graph itself."""

    graph: Graph
    cost: float
    paid: int
    rules: tuple[str, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Recipes:
    """What was found, the cheapest first, and the e-graph that says why."""

    list: tuple[Recipe, ...]
    saturated: Saturated
    outputs: dict[str, int]
    updates: dict[str, int]

    @property
    def report(self) -> Report:
        return self.saturated.report

    def derivation(self, index: int) -> str:
        """How the given graph becomes a recipe, step by step."""
        if not 0 <= index < len(self.list):
            raise RewriteError(f"there is no recipe {index}", fix=f"0 to {len(self.list) - 1}")
        return show_steps(self.saturated.egraph, [*self.list[index].steps])

    def derive_graph(self, other: Graph) -> tuple[Step, ...]:
        """How the given graph becomes another one. Raises RewriteError when they were not found equal."""
        return _steps(self.saturated.egraph, self.outputs, self.updates, other)


def recipes(graph: Graph, *, level: NumericClass = "reassociating", count: int = 10, rules: Sequence[Rewrite] | None = None,
            budget: Budget = USUAL) -> Recipes:
    """Up to `count` graphs that mean the same, up to a level. `rules`: by default all that take nothing for granted."""
    from tensor_graphs.rewrites.admission import USER_RULES
    from tensor_graphs.rewrites.rules import ALL

    e = EGraph()
    outputs, updates = add_graph(e, graph)
    chosen = (*ALL, *(r for r in USER_RULES if not r.assuming)) if rules is None else rules
    done = saturate(e, chosen, budget, LEVELS[:LEVELS.index(level) + 1])
    found = []
    for made in Extractor(done.views[level], outputs, updates).extract(count):
        steps = _steps(e, outputs, updates, made.graph)
        found.append(Recipe(made.graph, made.cost, paid_nodes(made.graph), tuple(dict.fromkeys(s.rule for s in steps)), steps))
    return Recipes(tuple(found), done, outputs, updates)


def _steps(e: EGraph, outputs: dict[str, int], updates: dict[str, int], other: Graph) -> tuple[Step, ...]:
    new_outputs, new_updates = add_graph(e, other)
    if new_outputs.keys() != outputs.keys() or new_updates.keys() != updates.keys():
        raise RewriteError("the graphs have other outputs", fix="the same names of outputs and states")
    steps: dict[Step, None] = {}
    for old, new in ((outputs, new_outputs), (updates, new_updates)):
        for name, term in old.items():
            steps.update(dict.fromkeys(derive(e, term, new[name])))
    return tuple(steps)
