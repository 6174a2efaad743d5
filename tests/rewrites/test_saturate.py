"""Saturation and recipes: levels, budgets, reports, the same result every time, and what is found."""

from __future__ import annotations

import random

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.language.text import parse_graph, print_graph
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.rewrites.egraph import EGraph
from tensor_graphs.rewrites.errors import RewriteError
from tensor_graphs.rewrites.extract import Extractor, add_graph, paid_nodes
from tensor_graphs.rewrites.recipes import Recipes, recipes
from tensor_graphs.rewrites.rules import ALL, allowed
from tensor_graphs.rewrites.saturate import Budget, saturate
from tests.proof.random_graphs import expression

X = tg.input("x", (2, 8))
SMALL = Budget(nodes=600, rounds=5, seconds=60.0, expanding=8, expanding_depth=2, depth=4)


def found(graph: tg.Graph, wanted: tg.Graph, *assuming: str, options: tuple[str, ...] = ()) -> list[str]:
    """The rules that lead from one graph to another."""
    made = recipes(graph, rules=allowed(assuming, options), count=1,
                   budget=Budget(expanding_depth=8, depth=13, rounds=20, seconds=60.0))
    return [s.rule for s in made.derive_graph(wanted)]


def value(graph: tg.Graph, given: dict[str, np.ndarray]) -> np.ndarray:
    sizes = {k: {"n": 3, "m": 4}[k] for k in graph.dims}
    return interpret(graph, {n: given[n] for n in graph.inputs}, dims=sizes).outputs["out"]


def test_the_invariants_hold_after_every_round() -> None:
    e = EGraph()
    add_graph(e, tg.graph(tg.softmax(X * 2.0) + tg.rms_norm(X)))
    rounds = []

    def check(e: EGraph) -> None:
        e.check_invariants()
        rounds.append(e.size)

    saturate(e, ALL, SMALL, after_round=check)
    assert len(rounds) >= 3 and rounds[-1] > rounds[0]


def test_what_only_reassociates_is_not_in_the_bitwise_snapshot() -> None:
    y, z = tg.input("y", (2, 8)), tg.input("z", (2, 8))
    e = EGraph()
    outputs, updates = add_graph(e, tg.graph(X * z + y * z))
    done = saturate(e, ALL, SMALL)
    costs = {level: Extractor(view, outputs, updates).extract()[0].paid for level, view in done.views.items()}
    assert costs == {"bitwise": 3, "reassociating": 2}


def test_two_runs_find_the_same_in_the_same_order() -> None:
    def run() -> list[str]:
        return [print_graph(r.graph) for r in recipes(tg.graph(tg.softmax(X * 2.0) * 3.0 + X), count=8, budget=SMALL).list]

    assert run() == run()


def test_a_starved_rule_means_not_saturated() -> None:
    total = X
    for k in range(6):
        total = total + tg.input(f"a{k}", (2, 8))
    e = EGraph()
    add_graph(e, tg.graph(total))
    report = saturate(e, ALL, Budget(expanding=3, seconds=60.0)).report
    assert report.rules["algebra/associate-add"].starved and not report.saturated["reassociating"]
    assert report.saturated["bitwise"] and "reassociating: not saturated" in report.show()
    assert "unattributed" in report.show() and report.unattributed >= 0


def test_a_budget_of_nodes_ends_a_run_aloud() -> None:
    e = EGraph()
    add_graph(e, tg.graph(tg.layer_norm(X) + tg.softmax(X)))
    report = saturate(e, ALL, Budget(nodes=20)).report
    assert report.stopped == "more than 20 e-nodes" and not any(report.saturated.values())


def test_products_with_zero_are_not_written_in_ever_more_ways() -> None:
    at = tg.cast(tg.iota((64,), 0, tg.i64), tg.f64)
    zero, one = (tg.full((64,), number, tg.f64) for number in (0.0, 1.0))
    e = EGraph()
    add_graph(e, tg.graph((tg.cast(zero + at * one, tg.f32) + tg.full((64,), 0.0, tg.f32)) * tg.full((64,), 0.5, tg.f32)))
    report = saturate(e, ALL, Budget(expanding_depth=1, nodes=1500, matches=500, expanding=30, seconds=60.0)).report
    assert all(report.saturated.values()) and e.size < 100, (report.saturated, e.size)


def test_every_library_definition_written_out_is_recognised() -> None:
    from tensor_graphs.language.composite import expand

    cases = [tg.softmax(X), tg.rms_norm(X, eps=1e-5), tg.rms_norm(X, tg.input("g", (8,)), eps=1e-6, offset=1.0),
             tg.log_softmax(X),
             tg.layer_norm(X, tg.input("g", (8,)), tg.input("b", (8,)), eps=1e-5), tg.mean(X, axis=1, keepdims=True),
             tg.dot(X, tg.input("w", (8, 3))), tg.linear(X, tg.input("w", (3, 8))), tg.silu(X), tg.tanh(X), tg.exp(X),
             tg.sigmoid(X),
             tg.gelu(X), tg.var(X, axis=1), tg.logsumexp(X, axis=0), tg.minimum(X, tg.input("y", (2, 8))),
             tg.gated(X, tg.input("y", (2, 8)), activation="silu")]
    for node in cases:
        (best,) = recipes(tg.graph(expand(node)[0]), level="bitwise", count=1).list
        assert best.graph.outputs["out"].op is node.op, (node, print_graph(best.graph))


def test_near_misses_of_a_definition_are_not_recognised() -> None:
    wrong_axis = tg.exp(X - X.max(0, keepdims=True))
    graph = tg.graph(wrong_axis / wrong_axis.sum(1, keepdims=True))
    e = EGraph()
    add_graph(e, graph)
    saturate(e, ALL, SMALL, ("bitwise",))
    assert not any(n.op.name == "softmax" for c in e.classes.values() for n in c.nodes)


def test_naive_softmax_becomes_safe_only_where_overflow_is_ruled_out() -> None:
    naive = tg.graph(tg.exp(X) / tg.exp(X).sum(-1, keepdims=True))
    assert paid_nodes(recipes(naive, count=1).list[0].graph) == 3
    best = recipes(naive, rules=allowed(("no overflow",)), count=1).list[0]
    assert best.paid == 1 and best.rules == ("softmax/naive-to-safe",)


def test_products_that_share_an_input_are_joined() -> None:
    w, v = tg.parameter("w", (3, 8)), tg.parameter("v", (5, 8))
    best = recipes(tg.graph({"a": tg.linear(X, w), "b": tg.linear(X, v)}), count=1).list[0]
    assert best.paid == 1 and "join/two" in best.rules


def test_products_by_dot_are_joined_as_well() -> None:
    a, b, c = (tg.parameter(name, (8, m)) for name, m in (("a", 3), ("b", 5), ("c", 2)))
    graph = tg.graph({"p": X @ a, "q": X @ b, "r": X @ c})
    best = recipes(graph, count=1).list[0]
    assert best.paid == 1 and "join/three-dots" in best.rules
    two = recipes(tg.graph({"p": X @ a, "q": X @ b}), count=1).list[0]
    assert two.paid == 1 and "join/two-dots" in two.rules
    rng = np.random.default_rng(4)
    x, *weights = (rng.standard_normal(n.shape).astype(np.float32) for n in (X, a, b, c))
    given = dict(zip("abc", weights, strict=True))
    want, got = (interpret(g, {"x": x}, given).outputs for g in (graph, best.graph))
    assert all(np.allclose(got[name], want[name], rtol=1e-12, atol=1e-12) for name in "pqr")


def test_products_of_matrices_that_are_given_each_time_are_not_joined() -> None:
    """The concatenation would be paid at each run."""
    a, b = tg.parameter("a", (8, 3)), tg.input("b", (8, 5))
    assert recipes(tg.graph({"p": X @ a, "q": X @ b}), count=1).list[0].paid == 2


def test_a_norm_scale_is_folded_into_the_weight() -> None:
    g, w = tg.parameter("g", (8,)), tg.parameter("w", (3, 8))
    made = recipes(tg.graph(tg.linear(tg.rms_norm(X, g, offset=1.0), w)), count=12)
    assert any("product/norm-scale-into-weight" in r.rules for r in made.list)


def test_every_recipe_of_random_graphs_agrees_with_the_oracle() -> None:
    r = np.random.default_rng(3)
    given = {name: r.standard_normal((3, 4)) for name in "xyz"}
    checked = 0
    for seed in range(40):
        graph = tg.graph(expression(random.Random(seed), 3))
        made = recipes(graph, count=5, budget=SMALL)
        want = value(graph, given)
        for recipe in made.list:
            got = value(recipe.graph, given)
            assert np.allclose(got, want, rtol=1e-9, atol=1e-9 * max(1.0, float(np.abs(want).max()))), (seed, recipe.rules)
            assert parse_graph(print_graph(recipe.graph)) == recipe.graph
            checked += 1
    assert checked > 100


def test_a_recipe_that_is_not_there_is_an_error() -> None:
    made: Recipes = recipes(tg.graph(tg.exp(X)), count=1)
    with pytest.raises(RewriteError, match="there is no recipe 7"):
        made.derivation(7)
    with pytest.raises(RewriteError, match="not known to be equal"):
        made.derive_graph(tg.graph(tg.sin(X)))


def test_a_derivation_uses_only_edges_between_equal_terms() -> None:
    naive = tg.graph(tg.exp(X) / tg.exp(X).sum(-1, keepdims=True))
    made = recipes(naive, rules=allowed(("no overflow",)), count=5)
    e = made.saturated.egraph
    for recipe in made.list:
        for step in recipe.steps:
            assert e.find(step.before) == e.find(step.after) and step.before != step.after
