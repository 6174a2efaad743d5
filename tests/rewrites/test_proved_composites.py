"""Library composites in other words: proved to be there, offered as recipes, and computed by the kernels of the composite."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.language.anonymous_composite import PartOp
from tensor_graphs.language.composite import expand_all
from tensor_graphs.language.node import Node
from tensor_graphs.records.database import Database, open_database
from tensor_graphs.rewrites import proved_composites
from tensor_graphs.rewrites.proved_composites import offers_of_composites

N = tg.dim("n", 1, 64)
X, ROWS = tg.input("x", (N, 48)), tg.input("x", (16, 48))
W, MATRIX, TURNED = tg.parameter("w", (48,)), tg.parameter("m", (32, 48)), tg.parameter("m", (48, 32))


def mean_of_squares(x: Node) -> Node:
    return tg.mean(x * x, axis=-1, keepdims=True) + 1e-6


WORDS = {
    "weights at the root first": (X * (tg.reciprocal(tg.sqrt(mean_of_squares(X))) * W), "rms_norm"),
    "a sum over a number": ((X * W) / tg.sqrt(tg.sum(X * X, axis=-1, keepdims=True) / 48.0 + 1e-6), "rms_norm"),
    "products and their sum": (tg.sum(tg.reshape(ROWS, (16, 1, 48)) * MATRIX, axis=-1), "linear"),
    "products and their sum along columns": (tg.sum(tg.reshape(ROWS, (16, 48, 1)) * TURNED, axis=1), "dot"),
    "rows of products": (tg.sum(tg.input("p", (48,)) * tg.input("q", (48,)), axis=-1), "dot"),
}


@pytest.mark.parametrize("words", WORDS)
def test_a_composite_in_other_words_is_offered_with_the_value_of_the_words(words: str) -> None:
    said, name = WORDS[words]
    graph = prepare(tg.graph(said), recipes=False, backends=("numpy",)).graph
    (offer,) = offers_of_composites(graph)
    (new,) = offer.others[0].outputs
    assert new.op.name == name and offer.others[0].rules == (f"proved/{name}",)
    rng = np.random.default_rng(0)
    sizes = dict.fromkeys(graph.dims, 5)
    values = {n.attrs["name"]: rng.standard_normal([sizes.get(str(s), s) for s in n.shape])        # type: ignore[call-overload]
              for n in (*graph.inputs.values(), *graph.parameters.values())}
    inputs, weights = ({n: values[n] for n in group} for group in (graph.inputs, graph.parameters))
    got, expected = (tg.interpret(tg.graph(y), inputs, weights, dims=sizes).outputs["out"] for y in (new, said))
    np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_a_piece_that_is_no_composite_is_offered_as_none() -> None:
    without_root = X * (tg.reciprocal(mean_of_squares(X)) * W)
    of_columns = tg.sum(tg.reshape(ROWS, (16, 1, 48)) * MATRIX, axis=1)
    for y in (without_root, of_columns):
        assert not offers_of_composites(prepare(tg.graph(y), recipes=False, backends=("numpy",)).graph)


def test_what_is_read_elsewhere_too_stays_as_it_is() -> None:
    squares = mean_of_squares(X)
    graph = tg.graph({"norm": X * (tg.reciprocal(tg.sqrt(squares)) * W), "squares": squares})
    assert not offers_of_composites(prepare(graph, recipes=False, backends=("numpy",)).graph)


@pytest.mark.parametrize("backends", [("gen",), ("numpy",)])
def test_what_is_equal_for_numbers_alone_is_none(backends: tuple[str, ...]) -> None:
    target = np.array([0, -2, 3, 2, 0])                             # of one class: the loss is 0 but at the 0s
    graph = tg.graph(tg.cross_entropy(tg.input("x", (5, 1)), tg.constant(target, tg.i64), axis=1))
    x = np.array([[np.inf], [np.inf], [np.nan], [-np.inf], [3]], np.float32)
    found = tg.bind(tg.compile(graph, backends=backends)).run({"x": x})
    np.testing.assert_array_equal(found["out"], [np.nan, 0, 0, 0, 0])


def test_a_graph_in_composites_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proved_composites, "PartSearch", None)
    x = X
    for i in range(2):
        x = x + tg.linear(tg.rms_norm(x, W), tg.parameter(f"w{i}", (48, 48)))
    assert offers_of_composites(tg.graph(x)) == []


def test_the_kernels_of_the_composite_are_ways_of_its_words(database: Database) -> None:
    graph = tg.graph(WORDS["weights at the root first"][0])
    plan = tg.compile(graph, database=database, backends=("c", "numpy"))
    assert set(plan.variants[0].kernels) <= {"c.rms_norm", "numpy.rms_norm"}
    assert "proved to be rms_norm" in tg.explain(plan)
    x, w = (np.random.default_rng(i).standard_normal(shape).astype(np.float32) for i, shape in enumerate([(7, 48), (48,)]))
    got = tg.bind(plan, {"w": w}).run({"x": x})["out"]
    wide = np.float64(x)
    np.testing.assert_allclose(got, wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-6) * w, rtol=1e-4, atol=1e-6)


def test_the_words_are_a_way_beside_it_and_so_is_what_they_are_joined_to() -> None:
    made = prepare(tg.graph(tg.silu(WORDS["weights at the root first"][0])), backends=("gen", "numpy")).graph
    (part,) = {n.op for n in made.nodes if isinstance(n.op, PartOp)}
    assert any("proved/rms_norm" in recipe.rules for recipe in part.recipes)
    words = expand_all(made.roots, lambda n: not isinstance(n.op, PartOp))
    assert not any(n.op.name == "rms_norm" for n in tg.graph(words[0]).nodes)


@pytest.fixture
def database(tmp_path):                                              # type: ignore[no-untyped-def]
    with open_database(tmp_path / "bench.db") as made:
        yield made
