"""rewrites/passes/narrow.py: the same meaning to the last bit of the oracle, with products of bf16 where parameters are."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import tensor_graphs as tg
from tensor_graphs.costs.predicted_error import predicted_error
from tensor_graphs.language.graph import Graph
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.models.gemma3 import gemma3_graph
from tensor_graphs.rewrites.passes.narrow import narrow, narrowed_values
from tests.models.test_gemma3 import VARIANTS, ids_for, random_weights
from tests.strategies import ALL, bindings, graphs, leaf_arrays


def products(g: Graph) -> list[str]:
    return [str(n.type.dtype) for n in g.nodes if n.op.name == "linear"]


@settings(derandomize=True, max_examples=50, deadline=None)
@given(data=st.data(), g=graphs(dtypes=ALL))
def test_a_graph_without_products_by_parameters_of_bf16_stays_as_it_is(data: st.DataObject, g: Graph) -> None:
    weights = [n.inputs[1] for n in g.nodes if n.op.name == "linear"]
    made, binding = narrow(g).graph, data.draw(bindings(g))
    if not weights:
        assert made is g
    values = leaf_arrays(g, binding)
    with np.errstate(all="ignore"):
        before, after = (interpret(x, **values, dims=binding) for x in (g, made))
    for name in g.outputs:
        np.testing.assert_array_equal(after.outputs[name], before.outputs[name])


def test_both_operands_of_a_product_and_the_product_are_narrow_and_the_rest_is_not() -> None:
    x, w, b = tg.input("x", (5, 8)), tg.parameter("w", (4, 8), tg.bf16), tg.parameter("b", (4,))
    y = tg.linear(x, w, b)
    made = narrow(tg.graph({"y": tg.softmax(y)})).graph
    assert [f"{n.op.name} {n.dtype}" for n in made.nodes if n.op.kind in ("atomic", "composite")] == [
        "cast bf16", "linear bf16", "cast f32", "softmax f32"]
    (value,) = narrowed_values(tg.graph({"y": tg.softmax(y)}), [y])
    assert value is made.outputs["y"].inputs[0] and predicted_error(made) > 1e-3


def test_other_products_stay() -> None:
    x, wide, narrow_one = tg.input("x", (5, 8)), tg.parameter("w", (8, 8)), tg.parameter("v", (8, 8), tg.bf16)
    by_floats = tg.graph({"y": tg.softmax(tg.linear(x, wide))})
    by_an_input = tg.graph({"y": tg.softmax(tg.linear(x, tg.input("i", (8, 8), tg.bf16)))})
    the_last = tg.graph({"y": tg.linear(x, narrow_one).reshape(40)})
    of_bf16 = tg.graph({"y": tg.softmax(tg.linear(tg.input("h", (5, 8), tg.bf16), narrow_one))})
    for g in (by_floats, by_an_input, the_last, of_bf16):
        assert narrow(g).graph is g


def test_a_decoder_means_the_same_and_its_head_and_states_stay() -> None:
    spec = next(iter(VARIANTS.values()))
    g = gemma3_graph(spec, max_positions=32, weight_dtype=tg.bf16)
    made = narrow(g).graph
    assert set(products(g)) == {"f32"} and products(made).count("f32") == 1 and list(made.states) == list(g.states)
    weights, ids = random_weights(g), ids_for(spec)
    states, dims = {s: np.zeros(x.shape) for s, x in g.states.items()}, {"n": len(ids), "p": 0, "m": len(ids)}
    before, after = (interpret(x, {"ids": ids}, weights, states, dims).outputs["logits"] for x in (g, made))
    np.testing.assert_array_equal(after, before)
