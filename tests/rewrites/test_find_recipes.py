"""What else says a piece of a graph: found by rules, between operands and outputs, the graph's own words kept as the definition."""

from __future__ import annotations

import itertools
import random
import time

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.language.anonymous_composite import PartOp, PartRecipe, part_of
from tensor_graphs.language.composite import expand_all
from tensor_graphs.language.node import Node, walk
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.rewrites.check_recipe import compare
from tensor_graphs.rewrites.find_parts import form
from tensor_graphs.rewrites.passes.offer_recipes import reword
from tensor_graphs.rewrites.passes.result import PassResult
from tests.rewrites.parts_in import parts_in

N = tg.dim("n", 1, 64)
X = tg.input("x", (N, 8))


def weight(name: str, *shape: int) -> Node:
    return tg.parameter(name, shape)


def mlp(x: Node = X, i: int = 0) -> Node:
    gate, up = (tg.linear(x, weight(f"{name}{i}", 24, 8)) for name in ("gate", "up"))
    return tg.linear(tg.silu(gate) * up, weight(f"down{i}", 8, 24))


def heads(x: Node = X) -> dict[str, Node]:
    sizes = {"q": 16, "k": 8, "v": 12}
    return {name: tg.linear(x, weight(f"w{name}", size, 8), weight(f"b{name}", size)) for name, size in sizes.items()}


def chain() -> Node:
    """A · (B · c), said as (A · B) · c."""
    a, b, c = tg.input("a", (64, 48)), tg.input("b", (48, 32)), tg.input("c", (32, 1))
    return tg.dot(tg.dot(a, b), c)


def with_recipes(made: PassResult, choose: dict[str, PartRecipe] | None = None) -> list[Node]:
    """The roots with the first recipe of each part, or the given one."""
    def written(node: Node) -> object:
        assert isinstance(node.op, PartOp)
        return ((choose or {}).get(node.op.name) or node.op.recipes[0]).op.define([i.type for i in node.inputs], node.attrs)

    return expand_all(made.graph.roots, lambda n: not isinstance(n.op, PartOp), written)        # type: ignore[arg-type]


def values(roots: list[Node], graph: tg.Graph, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    leaf = {**graph.inputs, **graph.parameters}
    sizes = dict.fromkeys(graph.dims, 5)
    given = {name: rng.standard_normal([sizes.get(str(s), s) for s in node.shape]) for name, node in leaf.items()}
    found = interpret(tg.graph({f"r{i}": r for i, r in enumerate(roots)}), {n: given[n] for n in graph.inputs},
                      parameters={n: given[n] for n in graph.parameters}, dims=sizes, mode="real").outputs
    return [found[f"r{i}"] for i in range(len(roots))]


@pytest.mark.parametrize(("made", "rule", "gone", "come"), [
    (lambda: tg.graph(mlp()), "join/two", {"linear": 3}, {"linear": 2, "concat": 1, "slice": 2}),
    (lambda: tg.graph(heads()), "join/three-with-bias", {"linear": 3}, {"linear": 1, "concat": 2, "slice": 3}),
    (lambda: tg.graph(chain()), "product/associate-dot", {"dot": 2}, {"dot": 2}),
])
def test_a_piece_is_said_otherwise_and_its_definition_is_what_stood_there(made: object, rule: str, gone: dict[str, int],
                                                                        come: dict[str, int]) -> None:
    graph = made()                                                  # type: ignore[operator]
    found = reword(graph)
    (part,) = parts_in(found.graph)
    assert any(rule in r.rules for r in part.recipes) and rule in part.recipes[0].derivation
    assert expand_all(found.graph.roots, lambda n: not isinstance(n.op, PartOp)) == list(graph.roots)
    other = with_recipes(found)
    assert other != list(graph.roots)
    for roots, wanted in ((graph.roots, gone), (other, come)):
        names = [n.op.name for n in walk(roots)]
        assert {name: names.count(name) for name in wanted} == wanted
    for got, want in zip(values(other, graph), values(list(graph.roots), graph), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


def test_a_chain_is_associated_the_cheap_way() -> None:
    found = reword(tg.graph(chain()))
    outer, inner = (n for n in reversed(walk(with_recipes(found))) if n.op.name == "dot")
    assert inner.shape == (48, 1) and outer.shape == (64, 1)


def test_equal_layers_are_one_part() -> None:
    x: Node = X
    for i in range(3):
        x = x + mlp(x, i)
    found = reword(tg.graph(x))
    assert list(parts_in(found.graph).values()) == [3]


def test_what_gains_nothing_is_left_alone() -> None:
    for graph in (tg.graph(tg.linear(X, weight("w", 8, 8))), tg.graph(tg.softmax(tg.rms_norm(X, weight("g", 8)))),
                  tg.graph(tg.linear(tg.tanh(tg.linear(X, weight("a", 8, 8))), weight("b", 8, 8)))):
        assert reword(graph).graph is graph or reword(graph).graph.structural_key == graph.structural_key


def test_where_nodes_went_is_said() -> None:
    graph = tg.graph(heads())
    found = reword(graph)
    for node in graph.roots:
        image = found.images[node]
        assert expand_all([image], lambda n: not isinstance(n.op, PartOp)) == [node]


def test_somebodys_parts_stay_in_it_and_the_operands_are_theirs_too() -> None:
    """A norm feeds both products; somebody has a kernel for a norm with a product."""
    x, g, w = tg.input("x", (N, 8)), tg.input("g", (8,)), tg.input("w", (tg.dim("m", 1, 64), 8))
    mine = part_of(tg.graph(tg.linear(tg.rms_norm(x, g), w)))
    h = tg.rms_norm(X, weight("g", 8))
    a, b = (tg.linear(h, weight(name, 8, 8)) for name in "ab")
    graph = tg.graph(a * b)
    formed = form(graph, (mine,))
    found = reword(graph, formed.images)
    (part,) = parts_in(found.graph)
    assert [n.op.name for n in walk(part.written.outputs) if isinstance(n.op, PartOp)] == [*formed.places] * 2
    assert expand_all(found.graph.roots, lambda n: isinstance(n.op, PartOp) and bool(n.op.recipes)) != list(graph.roots)
    assert expand_all(found.graph.roots) == expand_all(graph.roots)
    (got,), (want,) = values(with_recipes(found), graph), values(list(graph.roots), graph)
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


def product_graph(rng: random.Random) -> tg.Graph:
    """A few products, gates and norms of each other, some of them read several times."""
    pool: list[Node] = [X, tg.rms_norm(X, weight("g", 8))]
    for i in range(rng.randrange(3, 7)):
        x, y = rng.choice(pool), rng.choice(pool)
        pool.append(rng.choice([
            lambda x=x, i=i: tg.linear(x, weight(f"w{i}", 8, 8)),
            lambda x=x, i=i: tg.linear(x * weight(f"s{i}", 8), weight(f"v{i}", 8, 8)),
            lambda x=x, i=i: tg.dot(x, weight(f"d{i}", 8, 8)), lambda x=x, y=y: x + y, lambda x=x, y=y: tg.silu(x) * y,
            lambda x=x, i=i: tg.dot(tg.dot(x, weight(f"a{i}", 8, 4)), weight(f"b{i}", 4, 8))])())
    return tg.graph({"one": pool[-1], "other": pool[-2]})


@pytest.mark.parametrize("seed", range(12))
def test_recipes_of_random_graphs_are_what_they_stand_for(seed: int) -> None:
    graph = product_graph(random.Random(seed))
    found = reword(graph)
    want = values(list(graph.roots), graph)
    assert expand_all(found.graph.roots, lambda n: not isinstance(n.op, PartOp)) == list(graph.roots)
    for part in parts_in(found.graph):
        for recipe in part.recipes:
            got = values(with_recipes(found, {part.name: recipe}), graph)
            for a, b in zip(got, want, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)


def test_the_random_graphs_have_recipes() -> None:
    """So that the test above compares more than nothing."""
    assert sum(bool(parts_in(reword(product_graph(random.Random(seed))).graph)) for seed in range(12)) >= 6


def test_a_part_has_the_dims_of_its_operands_and_no_others() -> None:
    """What says a dim by itself (a shape to expand to) stays outside: in a part nobody would know its size."""
    n, m = tg.dim("n", 0, 9), tg.dim("m", 1, 6)
    spread = tg.cast(tg.expand(tg.reshape(tg.erf(tg.constant(0.8, tg.f32)), (1, 1)), (n + 1, 3)), tg.u8)
    product = tg.dot(spread, tg.cast(tg.expand(tg.reshape(tg.input("x", (3,)), (3, 1)), (3, m)), tg.u8))
    places = tg.sin(tg.iota((5, n, 4), axis=2, dtype=tg.f32)) * 0.5
    for node in (product, tg.linear(places, weight("w", 1, 4), weight("b", 1))):
        graph = tg.graph(node)
        assert reword(graph).graph.dims == graph.dims


def test_sizes_that_do_not_fit_each_other_are_not_those_at_which_recipes_are_compared() -> None:
    """At the size that is looked at first the pad is negative; and the other words need not mention every dim."""
    n, m = tg.dim("n", 0, 9), tg.dim("m", 1, 6)
    x, w = tg.input("x", (n, 4)), tg.input("w", (4, 4))
    own, other = tg.graph(tg.pad(x * 2.0, [(0, 1 - n), (0, 0)])), tg.graph(tg.pad(x + x, [(0, 1 - n), (0, 0)]))
    assert compare(own, other).passed and not compare(own, tg.graph(tg.pad(x * 3.0, [(0, 1 - n), (0, 0)]))).passed
    rows = tg.sum(tg.expand(tg.reshape(w, (1, 4, 4)), (m, 4, 4)) * 0.0, axis=0)
    assert compare(tg.graph(w + rows), tg.graph(w + 0.0)).passed


def test_a_machine_that_is_slow_finds_the_same_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = tg.graph(heads())
    quick = reword(graph).note
    clock = itertools.count(0.0, 100.0)
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))     # every look at it is minutes after the last
    assert quick and reword(graph).note == quick
