"""rewrites/passes/read_blocks.py: products and rows of dequantised weights are read as bytes, and mean what they meant."""

from __future__ import annotations

import numpy as np

import tensor_graphs as tg
from tensor_graphs.language.composites.quantise import quantized
from tensor_graphs.language.graph import Graph
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.rewrites.passes.apply_precision import apply_form
from tensor_graphs.rewrites.passes.fuse import fuse
from tensor_graphs.rewrites.passes.read_blocks import read_blocks

N = tg.dim("n", 1, 8)
BYTES = tg.parameter("w", (40, 2 * 34), tg.u8)
WEIGHT = tg.dequantize(BYTES, format="Q8_0")
X = tg.input("x", (N, 64), tg.f32)


def ops(g: Graph) -> list[str]:
    return sorted(n.op.name for n in g.nodes if n.op.kind in ("atomic", "composite"))


def same(g: Graph) -> list[str]:
    """The ops of the graph that reads blocks, after its outputs were compared with the graph's own."""
    rng = np.random.default_rng(0)
    weight, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((40, 64), (40,)))
    values = {"w": quantized(weight, "Q8_0"), "b": bias}
    inputs = {"x": rng.standard_normal((3, 64)).astype(np.float32), "ids": np.array([3, 0, 39], np.int32)}
    result = read_blocks(g)
    outs = [interpret(each, {k: v for k, v in inputs.items() if k in each.inputs},
                      {k: v for k, v in values.items() if k in each.parameters}).outputs for each in (g, result.graph)]
    for name in g.outputs:
        np.testing.assert_allclose(outs[1][name], outs[0][name], rtol=1e-12)
        assert result.images.get(g.outputs[name], g.outputs[name]) is result.graph.outputs[name]
    return ops(result.graph)


def test_a_product_becomes_one_op_with_its_bias() -> None:
    bias = tg.parameter("b", (40,), tg.f32)
    assert same(tg.graph({"y": tg.linear(X, WEIGHT), "z": tg.linear(X, WEIGHT, bias)})) == ["block_linear", "block_linear"]


def test_the_largest_of_a_product_is_that_of_all_its_numbers() -> None:
    value, index = tg.linear_argmax(X, WEIGHT)
    assert same(tg.graph({"value": value, "index": index})) == ["argmax", "block_linear", "reduce_max"]


def test_x_is_rounded_in_products_of_blocks_whose_word_says_so_and_in_no_others() -> None:
    y = {"y": tg.linear(X, WEIGHT), "z": tg.linear(X, tg.parameter("v", (40, 64), tg.f32))}
    g = tg.graph(y)
    formed = apply_form(g, {"product": "int8x2"}).graph
    assert [n.attrs["to"] for n in formed.nodes if n.op.name == "rounded"] == ["int8x2"] and tg.equal(formed, g).proved
    read = read_blocks(formed).graph
    assert {n.op.name for n in read.nodes if n.op.facts.product} == {"rounded_block_linear", "linear"}
    assert tg.equal(read, formed).proved
    quantised = apply_form(tg.graph({"z": y["z"]}), {"product": "int8", "weight": "q8_0"}).graph
    assert "rounded_block_linear" in ops(read_blocks(quantised).graph)


def test_rows_of_bytes_are_chosen_and_dequantised_then() -> None:
    ids = tg.input("ids", (N,), tg.i32)
    for g in (tg.graph({"y": tg.embedding(WEIGHT, ids, scale=3.0)}), tg.graph({"y": tg.embedding(WEIGHT, ids, dtype=tg.f64)})):
        assert {"dequantize", "gather"} <= set(same(g)) and "embedding" not in same(g)
        (rows,) = [n for n in read_blocks(g).graph.nodes if n.op.name == "gather"]
        assert rows.dtype is tg.u8


def test_other_uses_of_the_numbers_stay() -> None:
    for y in (X @ WEIGHT.T, tg.linear(X.cast(tg.bf16), WEIGHT), WEIGHT + 1.0, tg.linear(X, tg.parameter("v", (40, 64), tg.f32))):
        g = tg.graph({"y": y})
        assert read_blocks(g).graph is g


def test_no_loops_take_a_product_of_blocks_in() -> None:
    g = read_blocks(tg.graph({"y": tg.relu(tg.linear(tg.rms_norm(X), WEIGHT)) + 1.0})).graph
    assert "block_linear" in ops(fuse(g).graph)


def test_a_device_without_a_kernel_of_bytes_computes_the_numbers_once() -> None:
    g = tg.graph({"y": tg.linear(X, WEIGHT)})
    assert "c.block_linear" in str(tg.compile(g, backends=("numpy", "c"), database=":memory:"))
    plan = tg.compile(g, backends=("numpy",), database=":memory:")
    assert "block_linear" not in str(plan) and "linear" in str(plan)
