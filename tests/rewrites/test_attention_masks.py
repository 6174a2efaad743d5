"""Attention in the words of people is attention, with what it says in attributes; what is only nearly that stays what it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.language import atomic
from tensor_graphs.language.anonymous_composite import PartOp, PartRecipe
from tensor_graphs.language.composite import LIBRARY, expand_all
from tensor_graphs.language.node import Node, walk
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.rewrites.egraph import EGraph
from tensor_graphs.rewrites.rules import ALL
from tests.rewrites.attention_wordings import HIDDEN, WORDINGS, attended, given, hidden, masked, places, qkv, spread, turned

SIZES = {"n": 5, "s": 7}


def recipes_of(graph: tg.Graph) -> list[tuple[tg.Graph, PartRecipe, Node]]:
    """The graph by each recipe that has an attention, and that."""
    made = prepare(graph).graph
    found = []
    for part in dict.fromkeys(n.op for n in made.nodes if isinstance(n.op, PartOp)):
        for recipe in part.recipes:
            def written(node: Node, part: PartOp = part, recipe: PartRecipe = recipe) -> Any:
                op = recipe.op if node.op is part else node.op
                return op.define([i.type for i in node.inputs], node.attrs)     # type: ignore[attr-defined]

            roots = expand_all(made.roots, lambda n: not isinstance(n.op, PartOp), written)
            attentions = [n for n in walk(roots) if n.op.name == "attention"]
            if attentions:
                found.append((tg.graph(dict(zip(made.outputs, roots, strict=True))), recipe, attentions[0]))
    return found


@pytest.mark.parametrize("name", WORDINGS)
def test_a_wording_is_attention_and_says_so_step_by_step(name: str) -> None:
    wording = WORDINGS[name]
    other, recipe, node = recipes_of(wording.graph)[0]
    usual = tg.attention(*node.inputs[:3], scale=0.25).attrs
    assert {k: v for k, v in node.attrs.items() if v != usual.get(k)} == wording.says and len(node.inputs) == 3
    assert not any(n.op.name in ("softmax", "exp", "where") for n in walk(other.roots))
    for rule in recipe.rules:
        assert rule in recipe.derivation
    assert any(rule in recipe.rules for rule in ("attention/online", "attention/hidden"))
    values = given(wording.graph, SIZES)
    at = {k: SIZES[k] for k in wording.graph.dims}
    (mine,), (want,) = (interpret(g, values, dims=at).outputs.values() for g in (other, wording.graph))
    np.testing.assert_allclose(mine, want, rtol=1e-10, atol=1e-12)


def test_repeated_heads_are_read_where_they_lie() -> None:
    for name, heads in (("grouped heads", (4, 2)), ("one head of keys", (4, 1)), ("groups as an axis", (6, 2))):
        q, k, v = recipes_of(WORDINGS[name].graph)[0][2].inputs
        assert (q.shape[1], k.shape[1], v.shape[1]) == (*heads, heads[1])


@pytest.mark.parametrize("change", [
    lambda m, x: tg.where(m, x, HIDDEN), lambda m, x: tg.where(atomic.logical_not(m), HIDDEN, x),
    lambda m, x: x + tg.where(m, 0.0, HIDDEN)], ids=["seen", "hidden", "added"])
def test_a_query_that_sees_nothing_has_no_value_in_either_wording(change: Any) -> None:
    """Attention alone says 0 there, softmax NaN."""
    graph = masked(change)
    other, _, node = recipes_of(graph)[0]
    assert len(node.inputs) == 4
    values = given(graph)
    (mine,), (want,) = (interpret(g, values).outputs.values() for g in (other, graph))
    assert np.isnan(want[:, -1]).all() and not np.isnan(want[:, :-1]).any()
    np.testing.assert_allclose(mine, want, rtol=1e-10, atol=1e-12)


def per_head() -> tg.Graph:
    q, k, v = qkv((2,))
    return attended(tg.where(tg.input("m", (2, 6, 9), tg.bool_), tg.dot(q, turned(k)), HIDDEN), v)


def other_axis() -> tg.Graph:
    q, k, v = qkv((), 9, 9)
    return tg.graph(tg.dot(tg.softmax(tg.dot(q, turned(k)), axis=0), v))


NEARLY = {
    "hidden by a number that is finite": hidden(lambda x, i, j: tg.where(tg.less_equal(j, i), x, -1e9)),
    "another mask for each head": per_head(),
    "weights of the other axis": other_axis(),
}


@pytest.mark.parametrize("name", NEARLY)
def test_what_is_nearly_attention_is_none(name: str) -> None:
    assert recipes_of(NEARLY[name]) == []


BY_MASK = {
    "every other key": lambda x, i, j: tg.where(tg.less(i, j + j), x, HIDDEN),
    "before the query": lambda x, i, j: tg.where(tg.less(j, i), x, HIDDEN),
    "places that may wrap": lambda x, i, j: tg.where(tg.less_equal(tg.cast(j, tg.i8), tg.cast(i, tg.i8)), x, HIDDEN),
    "two orders": lambda x, i, j: tg.where(tg.bit_and(tg.less_equal(j, i), tg.less_equal(j, i + 1)), x, HIDDEN),
}


@pytest.mark.parametrize("name", BY_MASK)
def test_other_comparisons_of_places_stay_masks(name: str) -> None:
    graph = hidden(BY_MASK[name])
    for other, _, node in recipes_of(graph):
        assert not node.attrs["causal"] and not node.attrs["window"]
        values = given(graph)
        (mine,), (want,) = (interpret(g, values).outputs.values() for g in (other, graph))
        np.testing.assert_allclose(mine, want, rtol=1e-10, atol=1e-12)


def test_one_order_and_a_mask_are_both_kept() -> None:
    q, k, v = qkv((2,))
    i, j = (atomic.iota((6, 9), axis, tg.i32) for axis in (0, 1))
    scores = tg.dot(q, turned(k)) * 0.25
    graph = attended(tg.where(spread(tg.bit_and(tg.less_equal(j, i), tg.input("m", (6, 9), tg.bool_)), scores), scores, HIDDEN), v)
    other, _, node = next(row for row in recipes_of(graph) if row[2].attrs["causal"])
    assert len(node.inputs) == 4
    values = given(graph)
    (mine,), (want,) = (interpret(g, values).outputs.values() for g in (other, graph))
    np.testing.assert_allclose(mine, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("axes", "is_seen"), [((1,), True), ((-1,), True), (1, True), (-1, True), (0, False), (None, False),
                                               ((0, 1), False)])
def test_that_some_key_is_seen_is_read_whatever_the_axes_are_written_as(axes: Any, is_seen: bool) -> None:
    """The definition of `any` takes one axis, several, or None for all; what is recognised says them as it was found."""
    (rule,) = [r for r in ALL if r.name == "attention/some-key-is-seen"]
    i, j = places(6, 9)
    e = EGraph()
    number = e.add(LIBRARY["any"](tg.less_equal(j, i), axes=axes))
    assert len(list(rule.candidates(e, {"any": [(number, node) for node in e.of(number).nodes]}))) == is_seen


def test_a_graph_that_asks_whether_anything_at_all_is_true_is_reworded() -> None:
    x, m = tg.input("x", (4, 3, 3)), tg.input("m", (4, 8), tg.bool_)
    some = tg.pad(tg.log2(tg.cast(tg.reshape(tg.any(m), (1, 1)), tg.f32) + 0.25), ((0, 3), (2, 0)))
    graph = tg.graph(tg.linear(x, some))
    values = given(graph)
    (mine,), (want,) = (interpret(g, values).outputs.values() for g in (prepare(graph).graph, graph))
    np.testing.assert_allclose(mine, want, rtol=1e-6)
