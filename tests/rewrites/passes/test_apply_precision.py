"""rewrites/passes/apply_precision.py: the same meaning to the last bit of the oracle in every form, rounded where words say it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensor_graphs as tg
from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.costs.predicted_error import predicted_error
from tensor_graphs.language.composite import LIBRARY
from tensor_graphs.language.composites.blocks import dequantized
from tensor_graphs.language.composites.quantise import quantize, quantized
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.errors import DTypeError
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.leaves import item
from tensor_graphs.language.node import Node, rebuild
from tensor_graphs.language.op_facts import UNKNOWN
from tensor_graphs.meaning.error_measure import measure
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.meaning.precision import BLOCKS, KINDS, WORDS, parse_form
from tensor_graphs.models.gemma3 import gemma3_graph
from tensor_graphs.rewrites.passes.apply_precision import apply_form, sites
from tensor_graphs.rewrites.passes.result import PassResult
from tests.kernels.cases import CASES, Draw, applied
from tests.models.test_gemma3 import VARIANTS, ids_for, random_weights
from tests.plans import compiled_of
from tests.strategies import ALL, bindings, graphs, leaf_arrays

N = tg.dim("n", 1, 32)


def widen(g: Graph, to: tg.DType = tg.f64) -> PassResult:
    return apply_form(g, parse_form(to.name))


def computed(g: Graph) -> list[Node]:
    return [n for n in g.nodes if n.op.kind in ("atomic", "composite")]


WORD = st.sampled_from(list(WORDS))


@pytest.mark.parametrize("word", BLOCKS)
def test_a_word_of_blocks_reads_the_numbers_of_the_quantised_parameter(word: str) -> None:
    w, table = tg.parameter("w", (6, 512), tg.f32), tg.parameter("t", (9, 512), tg.bf16)
    x, ids = tg.input("x", (N, 512), tg.f32), tg.input("i", (N,), tg.i32)
    g = tg.graph({"y": tg.linear(x + tg.embedding(table, ids).cast(tg.f32), w), "z": tg.dot(x, tg.permute(w, (1, 0)))})
    changed = apply_form(g, {"weight": word})
    assert changed.numeric == "approximate" and changed.graph.parameters == g.parameters
    assert sum(n.op is quantize for n in changed.graph.nodes) == 2
    rng = np.random.default_rng(0)
    inputs = {"x": rng.standard_normal((4, 512)), "i": np.arange(4)}
    weights = {"w": rng.standard_normal((6, 512)).astype(np.float32), "t": rng.standard_normal((9, 512)).astype(tg.bf16.numpy)}
    near = {name: dequantized(quantized(values, BLOCKS[word]), BLOCKS[word]) for name, values in weights.items()}
    out = interpret(changed.graph, inputs, weights, dims={"n": 4}).outputs
    expected = interpret(replace_dtypes(g), inputs, near, dims={"n": 4}).outputs
    for name in g.outputs:
        np.testing.assert_allclose(out[name], expected[name], rtol=1e-6, atol=1e-5)
    assert tg.equal(g, changed.graph).status == "approximate"
    assert tg.equal(g, changed.graph, bits=True).status != "approximate" and not tg.equal(g, changed.graph).proved


def replace_dtypes(g: Graph) -> Graph:
    """The graph with parameters of f32."""
    return g.with_roots(rebuild(g.roots, lambda n, i: tg.parameter("t", n.shape, tg.f32).cast(tg.bf16) if n.dtype is tg.bf16
                                and n.op.name == "parameter" else None))


def test_rows_that_are_no_whole_blocks_get_another_format_or_stay() -> None:
    x = tg.input("x", (N, 48), tg.f32)
    g = tg.graph(tg.linear(x, tg.parameter("w", (6, 48), tg.f32)))
    assert apply_form(g, {"weight": "q4_0"}).graph is g
    assert parse_form("q8_0") == {"weight": "q8_0"}
    with pytest.raises(ArgumentError, match="precision of product is 'q8_0'"):
        parse_form("product=q8_0")


def test_a_weight_that_is_stored_in_blocks_is_a_site() -> None:
    w = tg.dequantize(tg.parameter("w", (6, 34 * 2), tg.u8), format="Q8_0")
    g = tg.graph(tg.linear(tg.input("x", (N, 64), tg.f32), w))
    assert [site.key for site in sites(g) if site.kind == "weight"] == ["weight:w"]
    assert apply_form(g, {"weight": "q8_0"}).graph is g
    assert sum(n.op is quantize for n in apply_form(g, {"weight:w": "q4_0"}).graph.nodes) == 1


@settings(derandomize=True, max_examples=150, deadline=None)
@given(data=st.data(), g=graphs(dtypes=ALL))
def test_a_graph_means_exactly_the_same_in_every_form(data: st.DataObject, g: Graph) -> None:
    binding = data.draw(bindings(g))
    values = leaf_arrays(g, binding)
    form = {site.key: data.draw(WORD) for site in sites(g)} | data.draw(st.dictionaries(st.sampled_from(KINDS), WORD))
    changed = apply_form(g, form).graph
    assert {n: x.type for n, x in changed.outputs.items()} == {n: x.type for n, x in g.outputs.items()}
    assert {n: x.type for n, x in changed.inputs.items()} == {n: x.type for n, x in g.inputs.items()}
    assert list(changed.states) == list(g.states) and changed.parameters == g.parameters and changed.dims == g.dims
    with np.errstate(all="ignore"):
        before, after = (interpret(x, **values, dims=binding) for x in (g, changed))
    for name in g.outputs:
        np.testing.assert_array_equal(after.outputs[name], before.outputs[name])


@settings(derandomize=True, max_examples=150, deadline=None)
@given(data=st.data(), g=graphs(dtypes=ALL))
def test_a_widened_graph_means_exactly_the_same(data: st.DataObject, g: Graph) -> None:
    binding = data.draw(bindings(g))
    values = leaf_arrays(g, binding)
    wide = widen(g).graph
    assert {n: x.type for n, x in wide.outputs.items()} == {n: x.type for n, x in g.outputs.items()}
    assert {n: x.type for n, x in wide.inputs.items()} == {n: x.type for n, x in g.inputs.items()}
    assert list(wide.states) == list(g.states) and list(wide.parameters) == list(g.parameters) and wide.dims == g.dims
    with np.errstate(all="ignore"):
        before, after = (interpret(x, **values, dims=binding) for x in (g, wide))
    for name in g.outputs:
        np.testing.assert_array_equal(after.outputs[name], before.outputs[name])
    for name in g.updates:
        np.testing.assert_array_equal(after.updates[name], before.updates[name])


def test_every_value_between_is_wide_and_weights_stay() -> None:
    x, w, s = tg.input("x", (5, 8)), tg.parameter("w", (4, 8), tg.bf16), tg.state("s", (5, 4))
    y = tg.softmax(tg.linear(x, w)) + s.read()
    wide = widen(tg.graph({"y": y}, {s: y})).graph
    assert [f"{n.op.name} {n.dtype}" for n in computed(wide)] == [
        "cast f64", "linear f64", "softmax f64", "add f64", "cast f32"]
    assert wide.parameters["w"].dtype == tg.bf16 and wide.states["s"].dtype == tg.f64


def test_a_weight_that_an_op_takes_in_its_own_dtype_only_is_cast() -> None:
    wide = widen(tg.graph(tg.exp(tg.input("x", (8,)) * tg.parameter("w", (8,))))).graph
    assert [n.inputs[0].op.name for n in computed(wide) if n.op.name == "cast"][:2] == ["input", "parameter"]


def test_what_is_copied_to_a_device_is_narrow_on_the_way() -> None:
    x = tg.copy_to(tg.input("x", (4,), tg.bf16), "cuda:0")
    wide = widen(tg.graph(tg.copy_to(tg.tanh(x) * x, "cuda:0"))).graph
    copied = [n for n in wide.nodes if n.op.name == "copy_to"]
    assert [n.dtype for n in copied] == [tg.bf16, tg.bf16]
    assert [n.op.name for n in wide.nodes if n.op.kind != "leaf"] == ["copy_to", "cast", "tanh", "mul", "cast", "copy_to"]


def test_the_last_product_with_a_weight_is_as_wide_as_the_rest() -> None:
    x, w = tg.input("x", (N, 8)), tg.parameter("w", (4, 8))
    g = tg.graph(tg.linear(tg.rms_norm(tg.tanh(x)), w))
    assert {n.inputs[0].dtype for n in computed(widen(g).graph) if n.op.name.startswith("linear")} == {tg.f64}


def test_what_hangs_on_its_dtype_is_left_in_it() -> None:
    x = tg.input("x", (8,))
    g = tg.graph(tg.bitcast(tg.exp(x), tg.u32))
    (bits,) = [n for n in computed(widen(g).graph) if n.op.name == "bitcast"]
    assert bits.inputs[0].dtype == tg.f32 and bits.inputs[0].op.name == "cast"


@pytest.mark.parametrize("dtype", [tg.i32, tg.f64])
def test_a_graph_without_a_narrower_float_comes_back_as_it_is(dtype: tg.DType) -> None:
    g = tg.graph(tg.input("x", (8,), dtype) + 1)
    assert widen(g).graph is g


@pytest.mark.parametrize("name", sorted(VARIANTS)[:2])
@pytest.mark.parametrize("backends", [("numpy",), ("c", "numpy")])
def test_a_decoder_run_wide_is_off_by_the_rounding_of_its_logits_alone(name: str, backends: tuple[str, ...]) -> None:
    g = gemma3_graph(VARIANTS[name], max_positions=32)
    weights, ids = random_weights(g), ids_for(VARIANTS[name])
    expected = interpret(g, {"ids": ids}, weights, {s: np.zeros(x.shape) for s, x in g.states.items()},
                         {"n": len(ids), "p": 0, "m": len(ids)}).outputs["logits"]
    errors = []
    for graph in (g, widen(g).graph):
        compiled = compiled_of(graph, weights, backends)
        out = compiled.run({"ids": ids}, dims={"p": 0, "m": len(ids)}, session=compiled.session())["logits"]
        assert out.dtype == np.float32
        errors.append(measure(out, expected, tg.f32).max_relative_error)
    assert errors[1] <= 1e-6 and errors[1] < errors[0] / 2, errors
    assert predicted_error(widen(g).graph) < 1e-6 < errors[0] < predicted_error(g)


@pytest.mark.parametrize("op", CASES)
def test_every_op_means_the_same_when_its_dtype_is_wider(op: str) -> None:
    """All rows of both tables: an op whose meaning depends on its dtype shows here, and needs the fact `dtype_matters`."""
    for seed, dtype in enumerate((tg.f16, tg.bf16, tg.f32)):
        draw = Draw(seed, dtype)
        try:
            node = applied(CASES[op](draw))
        except DTypeError:                                  # an op of integers
            continue
        g = tg.graph([item(node, i) for i in range(len(node.types))])
        values = {name: draw.values[name] for name in g.inputs}
        for wide in (widen(g, tg.f32).graph, widen(g).graph):
            with np.errstate(all="ignore"):
                before, after = (interpret(x, values).outputs for x in (g, wide))
            for name in before:
                np.testing.assert_array_equal(after[name], before[name])


def test_an_op_that_hangs_on_its_dtype_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIBRARY["uniform"], "facts", UNKNOWN)
    with pytest.raises(AssertionError, match="Mismatched elements"):
        test_every_op_means_the_same_when_its_dtype_is_wider("uniform")


def test_a_loop_carries_wider_values() -> None:
    v = tg.input("v", (1 << 12,))
    last, rows = tg.scan(lambda c, x: (c + x, c * 2.0), tg.input("c", ()), v)
    wide = widen(tg.graph({"last": last, "rows": rows})).graph
    (loop,) = (n for n in wide.nodes if n.op.name == "scan")
    assert [str(t) for t in loop.types] == ["f64[]", "f64[4096]"]
    values = {"v": np.full(1 << 12, 0.1, np.float32), "c": np.float32(0)}
    written = tg.interpret(tg.graph({"last": last, "rows": rows}), values).outputs
    for name, y in tg.interpret(wide, values).outputs.items():
        np.testing.assert_array_equal(y, written[name])


@pytest.mark.parametrize("dtype", [tg.f32, tg.bf16])
@pytest.mark.parametrize(("word", "least", "most"), [("tf32", 1e-4, 2e-3), ("bf16x2", 1e-6, 4e-5), ("f8e4m3", 5e-3, 6e-2)])
def test_a_product_rounds_its_operands_to_a_format(word: str, least: float, most: float, dtype: DType) -> None:
    x, w, b = tg.input("x", (5, 96), dtype), tg.parameter("w", (33, 96), dtype), tg.parameter("b", (33,), dtype)
    g = tg.graph(tg.linear(x, w, b))
    formed = apply_form(g, {"product": word}).graph
    if dtype is tg.bf16 and word != "f8e4m3":
        assert formed == g                                          # bf16 has fewer bits than that
        return
    assert formed != g and formed.outputs["out"].type == g.outputs["out"].type
    rng = np.random.default_rng(0)
    arrays = {n: (rng.standard_normal(shape) * np.exp(rng.standard_normal((shape[0], *[1] * (len(shape) - 1))))).astype(dtype.numpy)
              for n, shape in (("x", (5, 96)), ("w", (33, 96)), ("b", (33,)))}
    arrays["x"][2] = 0
    feeds = {"x": arrays["x"]}, {"w": arrays["w"], "b": arrays["b"]}
    exact = interpret(g, *feeds).outputs["out"]
    np.testing.assert_allclose(interpret(formed, *feeds).outputs["out"], exact, rtol=1e-9, atol=1e-9)
    rounded = interpret(formed, *feeds, mode="as_written").outputs["out"].astype(np.float64)
    assert least < np.linalg.norm(rounded - exact) / np.linalg.norm(exact) < most


def test_a_product_of_another_op_stays_as_it_is_for_eight_bits_and_gets_rounded_operands_for_tf32() -> None:
    q, k, v = (tg.input(name, (16, 2, 64)) for name in "qkv")
    g = tg.graph(tg.attention(q, k, v, scale=0.125))
    assert apply_form(g, {"product": "f8e4m3"}).graph == g
    assert [n.op.name for n in apply_form(g, {"product": "tf32"}).graph.nodes].count("rounded") == 3
