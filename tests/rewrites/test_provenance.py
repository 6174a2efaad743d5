"""A derivation is a proof: each step is an equation, the steps alone lead from one side to the other, and can be read."""

from __future__ import annotations

import itertools
import random
import re

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.language import leaves
from tensor_graphs.language.node import Node, apply
from tensor_graphs.language.text import parse_graph
from tensor_graphs.meaning.interpreter import evaluate
from tensor_graphs.rewrites.egraph import EGraph
from tensor_graphs.rewrites.extract import add_graph
from tensor_graphs.rewrites.provenance import RuleStep, show_equation, show_steps
from tensor_graphs.rewrites.recipes import Recipes, recipes
from tensor_graphs.rewrites.rules import allowed
from tensor_graphs.rewrites.saturate import Budget
from tests.cli.command import ROOT
from tests.proof.random_graphs import expression

SMALL = Budget(nodes=600, rounds=5, seconds=60.0, expanding=8, expanding_depth=2, depth=4)
EXAMPLES = ROOT / "examples" / "rewrites"


def written(e: EGraph, term: int, made: dict[int, Node]) -> Node:
    """A term as a node of the language."""
    if term not in made:
        t = e.terms[term]
        made[term] = leaves.item(apply(t.op, [written(e, c, made) for c in t.children], t.attrs), t.output)
    return made[term]


def proves(e: EGraph, steps: tuple[RuleStep, ...], given: tg.Graph, wanted: tg.Graph) -> bool:
    """Whether the steps' equations, and congruence, make the outputs of two graphs equal: nothing else is known here."""
    fresh, made = EGraph(), dict[int, Node]()
    before, _ = add_graph(fresh, given)
    after, _ = add_graph(fresh, wanted)
    for s in steps:
        fresh.union(fresh.add(written(e, s.before, made)), fresh.add(written(e, s.after, made)), s.rule)
    fresh.rebuild()
    return all(fresh.find(before[name]) == fresh.find(after[name]) for name in before)


def assert_equations(e: EGraph, steps: tuple[RuleStep, ...], given: dict[str, np.ndarray], sizes: dict[str, int]) -> None:
    made = dict[int, Node]()
    for s in steps:
        left, right = written(e, s.before, made), written(e, s.after, made)
        names = {n: given[n.attrs["name"]] for n in tg.graph({"l": left, "r": right}).inputs.values()}
        a, b = evaluate([left, right], names, sizes, "real", use_direct=False)
        assert np.allclose(a, b, rtol=1e-9, atol=1e-9, equal_nan=True), s.rule
        text, other, *_ = show_equation(e, s.before, s.after)
        assert text != other.removeprefix("= ") and "…" not in text + other, s.rule


@pytest.fixture(scope="module")
def online() -> tuple[Recipes, tg.Graph, tg.Graph]:
    naive, wanted = (parse_graph((EXAMPLES / f"softmax_{name}.tg").read_text(encoding="utf-8")) for name in ("naive", "online"))
    found = recipes(naive, rules=allowed(("no overflow",), ("split",)), count=1, whole=True,
                    budget=Budget(expanding_depth=8, depth=13, rounds=20, seconds=60.0))
    return found, naive, wanted


def test_the_derivation_of_online_softmax_is_a_proof_of_equations(online: tuple[Recipes, tg.Graph, tg.Graph]) -> None:
    found, naive, wanted = online
    steps, e = found.derive_graph(wanted), found.saturated.egraph
    assert proves(e, steps, naive, wanted)
    assert not proves(e, steps[1:], naive, wanted)                 # the comparison can fail
    assert {s.rule for s in steps} >= {"softmax/naive-to-safe", "composite/expand", "softmax/split-max", "softmax/split-sum",
                                       "algebra/exp-rescaled", "algebra/factor-out-of-sum"}
    assert_equations(e, steps, {"x": np.random.default_rng(1).standard_normal((2, 8))}, {})


def test_it_goes_nowhere_and_back(online: tuple[Recipes, tg.Graph, tg.Graph]) -> None:
    """It had 47 steps, among them a subtraction that was written out and put together again with other operands."""
    found, _, wanted = online
    steps = found.derive_graph(wanted)
    assert len(steps) <= 36
    for a, b in itertools.pairwise(steps):
        assert not (a.rule == b.rule == "composite/expand" and a.after == b.before)


def test_derivations_of_recipes_of_random_graphs_are_proofs() -> None:
    rng = np.random.default_rng(3)
    given = {name: rng.standard_normal((3, 4)) for name in "xyz"}
    checked = 0
    for seed in range(25):
        graph = tg.graph(expression(random.Random(seed), 3))
        made = recipes(graph, count=4, budget=SMALL)
        for recipe in made.list:
            if recipe.steps:
                assert proves(made.saturated.egraph, recipe.steps, graph, recipe.graph), (seed, recipe.rules)
                assert_equations(made.saturated.egraph, recipe.steps, given, {k: {"n": 3, "m": 4}[k] for k in graph.dims})
                checked += 1
    assert checked > 30


def test_names_stand_for_what_is_long_and_meets_no_input() -> None:
    a = tg.input("A", (2, 8))
    graph = tg.graph(tg.neg(tg.neg(tg.exp(tg.sin(a) * 3.0) + tg.exp(tg.sin(a)))))
    found = recipes(graph, level="bitwise", count=1)
    text = show_steps(found.saturated.egraph, list(found.list[0].steps))
    assert re.search(r"neg\(neg\(B\)\)\n     = B\n       where B = \(exp\(", text), text


def test_a_chain_of_constants_is_said_as_it_was_written() -> None:
    i = tg.input("i", (4,), tg.i32)
    found = recipes(tg.graph(i + 1 + 2), level="bitwise", count=1)
    text = found.derivation(0)
    assert "constant/collect" in text and "((i + 1) + 2)\n     = (i + 3)" in text
