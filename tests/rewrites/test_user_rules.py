"""The rules of users in one process: which there are, and what tells one set of them from another."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.language.anonymous_composite import PartOp
from tensor_graphs.language.composite import expand_all
from tensor_graphs.language.node import Node
from tensor_graphs.records import open_database
from tensor_graphs.rewrites import user_rules
from tensor_graphs.rewrites.errors import RewriteError
from tensor_graphs.rewrites.passes.offer_recipes import reword
from tensor_graphs.rewrites.passes.result import PassResult
from tensor_graphs.rewrites.recipe_rows import RecipeRows
from tensor_graphs.rewrites.rules import allowed
from tests.rewrites.parts_in import parts_in

X, Y = (tg.input(name, (64, 48), tg.i32) for name in "xy")


def absorb() -> None:
    tg.rule("max(x, min(x, y))", "bitwise", dtypes="int", name="mine/absorb")(lambda x, y: x)


def said_otherwise(made: PassResult) -> list[Node]:
    """The roots by the first recipe of each part."""
    def recipe(node: Node) -> object:
        assert isinstance(node.op, PartOp)
        return node.op.recipes[0].op.define([i.type for i in node.inputs], node.attrs)

    return expand_all(made.graph.roots, lambda n: not isinstance(n.op, PartOp), recipe)          # type: ignore[arg-type]


def test_a_rule_of_one_place_replaces_its_earlier_state() -> None:
    text = "import tensor_graphs as tg\ntg.rule('sub(x, neg(y))', 'bitwise', dtypes='int', name='mine')(lambda x, y: {})"
    digests = []
    for said in ("x + y", "y + x"):
        exec(text.format(said), {"__name__": "a_cell"})
        digests.append(user_rules.digest())
        assert [r.name for r in user_rules.user_rules()] == ["mine"]
    assert digests[0] != digests[1] and "" not in digests


def test_two_rules_of_one_name_are_a_mistake_and_the_same_one_again_is_none() -> None:
    for _ in range(2):
        absorb()
    with pytest.raises(RewriteError, match=r"a rule named 'mine/absorb' is declared already, at .*test_user_rules.py:\d+"):
        tg.rule("min(x, max(x, y))", "bitwise", dtypes="int", name="mine/absorb")(lambda x, y: x)
    assert [r.text for r in user_rules.user_rules()] == ["max(x, min(x, y))"]
    tg.rule("min(x, max(x, y))", "bitwise", dtypes="int")(lambda x, y: x)
    tg.rule("sub(x, neg(y))", "bitwise", dtypes="int")(lambda x, y: x + y)               # without a name
    assert len(user_rules.user_rules()) == 3


def test_it_runs_wherever_the_rules_of_the_package_do() -> None:
    absorb()
    (mine,) = user_rules.user_rules()
    assert allowed()[-1] is mine
    tg.rule("log(mul(x, y))", dtypes="float", assuming="logarithms of numbers > 0")(lambda x, y: tg.log(x) + tg.log(y))
    assert allowed()[-1] is mine and len(allowed(("logarithms of numbers > 0",))) > len(allowed())


@pytest.mark.parametrize(("graph", "ops"), [
    (tg.graph(tg.maximum(X, tg.minimum(X, Y)) * Y), {"mul"}),
    (tg.graph(tg.maximum(X + Y, tg.minimum(X + Y, Y))), {"add"}),
], ids=["joined with what reads it", "joined with what makes it"])
def test_a_rule_that_hands_a_variable_on_is_offered_with_the_step_beside_it(graph: tg.Graph, ops: set[str]) -> None:
    absorb()
    made = reword(graph)
    (part,) = parts_in(made.graph)
    assert [(r.rules, r.numeric_class) for r in part.recipes] == [(("mine/absorb",), "bitwise")]
    (root,) = said_otherwise(made)
    assert {n.op.name for n in tg.graph(root).nodes if n.op.kind != "leaf"} == ops
    rng = np.random.default_rng(0)
    values = {name: rng.integers(-9, 9, (64, 48), np.int32) for name in graph.inputs}
    np.testing.assert_array_equal(tg.interpret(tg.graph(root), values).outputs["out"], tg.interpret(graph, values).outputs["out"])


def test_what_is_the_variable_itself_is_no_recipe() -> None:
    absorb()
    assert not parts_in(reword(tg.graph(tg.maximum(X, tg.minimum(X, Y)))).graph)


def test_where_a_rule_holds_and_is_less_accurate_a_note_says_so_each_time() -> None:
    tg.rule("mul(x, y)", dtypes="float", name="mine/halves")(lambda x, y: (x * 2.0) * (y * 0.5))
    x, y = (tg.input(name, (64, 48)) for name in "xy")
    with open_database(":memory:") as database:
        for _ in range(2):
            rows = RecipeRows(database)
            assert not parts_in(reword(tg.graph(x * y), rows=rows).graph)
            assert rows.notes[0].startswith("mine/halves holds at mul f32[64, 48] and is not offered: it is predicted to be off by")
