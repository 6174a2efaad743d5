"""The oracle's walk: what it takes and refuses, definitions and direct forms, memory, depth, and rounding as written."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensor_graphs as tg
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language.composite import CompositeOp, expand_all
from tensor_graphs.language.dtypes import bf16, f16, f32, f64, i32, i64, u8
from tensor_graphs.language.node import Node, TensorType
from tensor_graphs.meaning import interpreter
from tensor_graphs.meaning.errors import InterpreterError, MeaningError
from tensor_graphs.meaning.exact_definitions import chooses
from tensor_graphs.meaning.interpreter import evaluate, interpret, solve
from tests.strategies import bindings, graphs, leaf_arrays

N = tg.dim("n", 1, 6)
X = tg.input("x", (N, 3))
W = tg.parameter("w", (3, 2))
VALUES = np.arange(6.0).reshape(2, 3)
WEIGHTS = np.ones((3, 2))


def said(build: Any, error: type[MeaningError] = MeaningError) -> str:
    """The message of an error without its place and the quoted line."""
    with pytest.raises(error) as caught:
        build()
    text, _, fix = str(caught.value).partition("\n  fix: ")
    return text.split("\n")[0].partition(": ")[2] + (f" | {fix}" if fix else "")


# ---- what comes out --------------------------------------------------------------------------------------------------


def test_outputs_and_updates_come_by_name_in_the_order_of_the_graph():
    k, v = tg.state("k", (2, 3)), tg.state("v", (2, 3))
    x = tg.input("x", (2, 3))
    g = tg.graph({"b": x * 2.0, "a": k.read() + x}, {v: x, k: k.read() + 1.0})
    found = interpret(g, {"x": VALUES}, states={"k": np.full((2, 3), 5.0)})
    assert list(found.outputs) == ["b", "a"] and list(found.updates) == ["v", "k"]
    np.testing.assert_array_equal(found.outputs["a"], VALUES + 5)
    np.testing.assert_array_equal(found.updates["k"], np.full((2, 3), 6.0))
    np.testing.assert_array_equal(found.updates["v"], VALUES)


def test_floats_are_real_numbers_and_everything_else_keeps_its_dtype():
    x = tg.input("x", (3,), bf16)
    g = tg.graph([x * 0.1, x.cast(u8), x < 2.0])
    outputs = list(interpret(g, {"x": np.array([1.0, 2.0, 3.0])}).outputs.values())
    assert [o.dtype for o in outputs] == [np.float64, np.uint8, np.bool_]
    np.testing.assert_array_equal(outputs[0], np.array([1.0, 2.0, 3.0]) * 0.1)


def test_as_written_every_output_has_its_own_dtype():
    x = tg.input("x", (3,), bf16)
    outputs = interpret(tg.graph([x * 0.1, x.cast(f16), x]), {"x": np.array([1.0, 2.0, 3.0])}, mode="as_written").outputs
    assert [o.dtype for o in outputs.values()] == [bf16.numpy, f16.numpy, bf16.numpy]


def test_results_share_no_memory_with_what_was_given():
    x, k = tg.input("x", (2, 3), f64), tg.state("k", (2, 3), f64)
    given, held = VALUES.copy(), VALUES.copy()
    g = tg.graph([x, tg.reshape(x, (6,)), x, k.read()], {k: x})
    for mode in ("real", "as_written"):
        found = interpret(g, {"x": given}, states={"k": held}, mode=mode)
        for result in (*found.outputs.values(), *found.updates.values()):
            result[...] = -1
        np.testing.assert_array_equal(given, VALUES)
        np.testing.assert_array_equal(held, VALUES)


def test_results_can_be_written_to_and_share_no_memory_with_each_other():
    x = tg.input("x", (3, 4), tg.f64)
    y, constant = tg.exp(x), tg.constant(np.arange(4.0), tg.f64)
    graph = tg.graph({"y": y, "again": y, "turned": tg.permute(y, (1, 0)), "part": tg.slice(y, [(0, 2, 1), (0, 4, 1)]),
                      "x": x, "constant": constant, "more": tg.upsample(x, (2,))})
    given = np.random.default_rng(0).normal(size=(3, 4))
    first = tg.interpret(graph, {"x": given}).outputs
    kept = {name: a.copy() for name, a in first.items()}
    for name, array in first.items():
        array[...] = -1.0
        assert all(not np.shares_memory(array, other) for n, other in first.items() if n != name), name
    for name, array in tg.interpret(graph, {"x": given}).outputs.items():
        np.testing.assert_array_equal(array, kept[name])


def test_what_the_oracle_made_itself_is_handed_on_without_a_copy():
    x = tg.input("x", (256, 1024), tg.f64)
    graph, given = tg.graph(tg.tanh(x)), {"x": np.ones((256, 1024))}
    assert peak(lambda: interpret(graph, given)) < 1.5 * given["x"].nbytes


def test_a_state_that_is_not_given_is_zero():
    k = tg.state("k", (2, 3))
    np.testing.assert_array_equal(interpret(tg.graph(k.read())).outputs["out"], np.zeros((2, 3)))


def test_an_argument_and_a_node_in_the_middle_can_be_asked_for():
    a = leaves.argument(0, TensorType((2, 3), f32))
    b = a * 2.0
    first, second = evaluate([b + 1.0, b], {a: VALUES}, {})
    np.testing.assert_array_equal(first, VALUES * 2 + 1)
    np.testing.assert_array_equal(second, VALUES * 2)


def test_a_dim_has_its_size_in_constants_and_attributes():
    g = tg.graph([tg.constant(N * N + 1, i64), tg.softmax(X) * tg.constant(N, f32), atomic.iota((N,), 0, i32)])
    found = list(interpret(g, {"x": VALUES}).outputs.values())
    assert found[0] == 5 and found[2].tolist() == [0, 1]
    np.testing.assert_allclose(found[1].sum(axis=1), [2.0, 2.0])


def test_a_constant_of_dims_that_its_dtype_does_not_hold_is_refused():
    big = tg.dim("big", 1, 100_000)
    g = tg.graph(tg.constant(big * big))
    assert interpret(g, dims={"big": 40_000}).outputs["out"] == 1_600_000_000
    assert said(lambda: interpret(g, dims={"big": 50_000})) == (
        "the constant big**2 is 2500000000 at these sizes, which i32 does not hold | give the constant a wider dtype")


def test_a_device_changes_no_value():
    np.testing.assert_array_equal(evaluate([leaves.copy_to(X, "cuda:0")], {X: VALUES}, {"n": 2})[0], VALUES)


# ---- what goes in ----------------------------------------------------------------------------------------------------


def test_dims_are_found_in_the_shapes_of_inputs_and_need_not_be_given():
    g = tg.graph(X @ W)
    assert interpret(g, {"x": VALUES}, {"w": WEIGHTS}).outputs["out"].shape == (2, 2)
    assert interpret(g, {"x": VALUES}, {"w": WEIGHTS}, dims={"n": 2}).outputs["out"].shape == (2, 2)
    assert solve(g, {"x": (4, 3)}) == {"n": 4}


def test_what_is_no_graph_and_values_without_names_are_named_with_the_fix():
    g = tg.graph(tg.input("x", (3,)))
    with pytest.raises(tg.TensorGraphsError, match="interpret takes a graph, and this is a builtins.int(.|\n)*fix: tg.graph"):
        interpret(3)
    assert said(lambda: interpret(g, 3)) == "inputs are given by name, and this is 3 | {'x': …}"


def test_a_dim_that_no_axis_is_has_to_be_given():
    m = tg.dim("m", 1, 9)
    g = tg.graph(tg.input("x", (m + 1,)))
    assert interpret(g, {"x": np.zeros(4)}, dims={"m": 3}).outputs["out"].shape == (4,)
    assert said(lambda: interpret(g, {"x": np.zeros(4)})) == (
        "the dim 'm' has no size: no input has an axis that is exactly m | give it: dims={'m': …}")
    assert said(lambda: interpret(g, {"x": np.zeros(4)}, dims={"m": 4})) == (
        "the input 'x' is f32[m + 1], at m = 4 [5]; the given array is [4]")


@pytest.mark.parametrize("build, message", [
    (lambda: interpret(tg.graph(X @ W), {}, {"w": WEIGHTS}),
     "the input 'x', f32[n, 3], is not given | inputs={'x': …}; given are none"),
    (lambda: interpret(tg.graph(X @ W), {"x": VALUES}, {"v": WEIGHTS}),
     "the parameter 'w', f32[3, 2], is not given | parameters={'w': …}; given are 'v'"),
    (lambda: interpret(tg.graph(X), {"x": VALUES, "y": VALUES}), "the graph has no input named 'y' | it has 'x'"),
    (lambda: interpret(tg.graph(X), {"x": VALUES}, states={"k": VALUES}),
     "the graph has no state named 'k' | leave it out: the graph has no states"),
    (lambda: interpret(tg.graph(X), {"x": VALUES}, dims={"m": 1}), "the graph has no dim named 'm' | it has 'n'"),
    (lambda: interpret(tg.graph(X), {"x": np.zeros(3)}),
     "the input 'x' is f32[n, 3], the given array is [3] | 2 axes are needed, there are 1"),
    (lambda: interpret(tg.graph(X), {"x": np.zeros((2, 4))}),
     "the input 'x' is f32[n, 3], at n = 2 [2, 3]; the given array is [2, 4]"),
    (lambda: interpret(tg.graph(X), {"x": np.zeros((7, 3))}),
     ("the dim 'n' is 7 by axis 0 of the input 'x', it ranges from 1 to 6 | give a size in range, or make the dim wider "
      "where it is made")),
    (lambda: interpret(tg.graph(X), {"x": VALUES}, dims={"n": 3}),
     "the dim 'n' is 3 by `dims` and 2 by axis 0 of the input 'x' | one dim has one size"),
    (lambda: interpret(tg.graph([X, tg.input("y", (N,))]), {"x": VALUES, "y": np.zeros(3)}),
     "the dim 'n' is 2 by axis 0 of the input 'x' and 3 by axis 0 of the input 'y' | one dim has one size"),
    (lambda: interpret(tg.graph(X), {"x": VALUES}, mode="exact"), "the mode is 'exact' | 'real' or 'as_written'"),  # type: ignore[arg-type]
    (lambda: evaluate([X], {}, {"n": 2}), "the input 'x', f32[n, 3], is not given"),
    (lambda: evaluate([tg.topk(X, k=1)[0].inputs[0]], {X: VALUES}, {"n": 2}),
     "topk has 2 outputs | evaluate its items: item(node, index)"),
])
def test_what_does_not_fit_is_named(build, message):
    assert said(build) == message


def test_arrays_are_taken_when_their_dtype_holds_the_same_numbers():
    ids, x, b = tg.input("ids", (2,), u8), tg.input("x", (2,)), tg.input("b", (2,), tg.bool_)
    for whole in ([1, 255], np.array([1, 255]), np.array([1, 255], np.int16)):
        assert evaluate([ids], {ids: whole}, {})[0].dtype == np.uint8
    for number in ([1, 2], [1.0, 2.0], np.array([1, 2], np.float16), np.array([1, 2]).astype(bf16.numpy)):
        np.testing.assert_array_equal(evaluate([x], {x: number}, {})[0], [1.0, 2.0])
    assert evaluate([b], {b: [True, False]}, {})[0].dtype == np.bool_
    empty = tg.input("e", (0,), i32)
    assert evaluate([empty], {empty: []}, {})[0].dtype == np.int32


@pytest.mark.parametrize("dtype, given, message", [
    (u8, [1, 256], "the input 'x' is u8[2], the given integers range from 1 to 256 | u8 holds 0 to 255"),
    (i32, [0.0, 1.0], "the input 'x' is i32[2], the given array is of float64 | convert it: array.astype('int32')"),
    (tg.bool_, [0, 1], "the input 'x' is bool[2], the given array is of int64 | convert it: array.astype('bool')"),
    (f32, [True, False], "the input 'x' is f32[2], the given array is of bool | convert it: array.astype('float32')"),
    (f32, np.zeros(2, np.complex64),
     "the input 'x' is f32[2], the given array is of complex64 | convert it: array.astype('float32')"),
])
def test_arrays_are_refused_when_numbers_would_be_lost(dtype, given, message):
    x = tg.input("x", (2,), dtype)
    assert said(lambda: interpret(tg.graph(x), {"x": given})) == message


def test_an_error_says_where_in_the_users_code_the_leaf_was_made():
    y = tg.input("y", (2,))
    with pytest.raises(MeaningError) as caught:
        interpret(tg.graph(y))
    assert caught.value.location is y.location
    assert 'y = tg.input("y", (2,))' in str(caught.value)


# ---- composites ------------------------------------------------------------------------------------------------------


def close(a: np.ndarray, b: np.ndarray) -> None:
    """Equal to about 40 bits where both are finite; what overflows on one way may be infinite on the other only."""
    if a.dtype.kind != "f":
        np.testing.assert_array_equal(a, b)
        return
    finite = np.isfinite(a) & np.isfinite(b)
    scale = np.max(np.abs(a[finite]), initial=1.0)
    np.testing.assert_allclose(a[finite], b[finite], rtol=1e-9, atol=1e-12 * min(scale, 1e300))


@settings(max_examples=60)
@given(data=st.data())
def test_direct_forms_definitions_and_expanded_graphs_mean_the_same(data):
    graph = data.draw(graphs(dtypes=(f32, f64, i32, tg.bool_), steps=5))
    binding = data.draw(bindings(graph))
    given = leaf_arrays(graph, binding)
    direct = interpret(graph, **given, dims=binding).outputs
    defined = interpret(graph, **given, dims=binding, use_direct=False).outputs
    named = {leaf: given[kind][name] for kind in given for name, leaf in getattr(graph, kind).items()}
    expanded = evaluate(expand_all(list(graph.outputs.values())), named, binding)
    if any(n.op.name in ("floor", "cast", "less", "not_equal", "bitcast", "sin", "exp2") for n in graph.nodes):
        return                                              # a last bit may decide, and grow without bound
    for name, other in zip(graph.outputs, expanded, strict=True):
        close(direct[name], defined[name])
        close(defined[name], other)


@settings(max_examples=60)
@given(data=st.data())
def test_a_random_graph_has_a_value_of_its_type_in_both_modes(data):
    graph = data.draw(graphs())
    binding = data.draw(bindings(graph))
    given = leaf_arrays(graph, binding)
    for mode in ("real", "as_written"):
        found = interpret(graph, **given, dims=binding, mode=mode)
        for declared, results in ((graph.outputs, found.outputs), (graph.updates, found.updates)):
            for name, node in declared.items():
                assert results[name].shape == node.type.at(binding).shape
                wanted = np.float64 if mode == "real" and node.dtype.kind == "float" else node.dtype.numpy
                assert results[name].dtype == wanted


@settings(max_examples=40)
@given(data=st.data())
def test_as_written_in_f64_and_without_roundings_is_the_definition_in_real_mode(data):
    graph = data.draw(graphs(dtypes=(f64, i32, tg.bool_), composites=False))
    binding = data.draw(bindings(graph))
    given = leaf_arrays(graph, binding)
    if any(n.types[0].dtype.kind == "float" and n.types[0].dtype is not f64 for n in graph.nodes):
        return
    a, b = (interpret(graph, **given, dims=binding, mode=mode).outputs for mode in ("real", "as_written"))
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])


def test_as_written_follows_the_definition_of_a_composite():
    @tg.composite(direct=lambda roles, attrs, types: roles["x"] * 3.0)
    def thrice(x: Node) -> Node:
        return x + x + x

    x = tg.input("x", (1,), bf16)
    value = np.array([1.0078125])                           # 2x is exact, 3x = 3.0234375 lies between two values of bf16
    assert evaluate([thrice(x)], {x: value}, {})[0][0] == 3.0234375
    assert float(evaluate([thrice(x)], {x: value}, {}, "as_written")[0][0]) == 3.03125


@pytest.mark.parametrize("node, choosing", [
    (tg.concat(X, X), True), (tg.flip(X, axis=(1,)), True),
    (tg.argmax(tg.input("t", (5,))), True), (tg.embedding(W, tg.input("i", (2,), i32)), True),
    (tg.embedding(W, tg.input("i", (2,), i32), scale=2.0), False), (tg.softmax(X), False), (tg.cumsum(X), False),
    (tg.cumsum(tg.input("k", (3,), i32)), True), (tg.embedding(W, tg.input("i", (2,), i32), dtype=f16), False),
    (tg.write_at(X, X, 0), True),
], ids=lambda x: x.op.name if isinstance(x, Node) else str(x))
def test_what_only_chooses_and_moves_is_known(node, choosing):
    if isinstance(node.op, CompositeOp):
        assert chooses(node.op.define([i.type for i in node.inputs], node.attrs)) is choosing
    else:
        assert choosing and node.op.kind == "atomic"        # flip is a slice backwards


def test_a_choosing_composite_is_evaluated_directly_as_written_too():
    k = tg.input("k", (100_000,), i32)                      # its definition sums a triangle of 5·10⁹ elements
    found = evaluate([tg.cumsum(k)], {k: np.ones(100_000, np.int32)}, {}, "as_written")[0]
    np.testing.assert_array_equal(found, np.arange(1, 100_001))


def test_an_opaque_composite_is_never_expanded():
    @tg.composite(opaque=True, direct=lambda roles, attrs, types: np.sort(roles["x"]))
    def ordered(x: Node) -> Node:
        return x * 1.0

    x = tg.input("x", (3,), bf16)
    for options in ({}, {"use_direct": False}, {"mode": "as_written"}):
        assert evaluate([ordered(x)], {x: [3.0, 1.0, 2.0]}, {}, **options)[0].tolist() == [1.0, 2.0, 3.0]


def made(direct: Any) -> Node:
    @tg.composite(direct=direct)
    def faulty(x: Node) -> Node:
        return x + 1.0

    node: Node = faulty(tg.input("x", (2, 3)))
    return node


@pytest.mark.parametrize("direct, message", [
    (lambda roles, attrs, types: roles["x"].T,
     "the direct evaluation of faulty gives float64[3, 2], its definition f32[2, 3]"),
    (lambda roles, attrs, types: roles["x"] > 0, "the direct evaluation of faulty gives bool[2, 3], its definition f32[2, 3]"),
    (lambda roles, attrs, types: (roles["x"], roles["x"]), "the direct evaluation of faulty gives 2 outputs, its definition 1"),
])
def test_a_direct_form_is_held_to_the_type_of_its_definition(direct, message):
    node = made(direct)
    assert said(lambda: evaluate([node], {node.inputs[0]: VALUES}, {})) == message


def test_a_direct_form_cannot_write_to_its_operands():
    def careless(roles: Any, attrs: Any, types: Any) -> Any:
        roles["x"] += 1.0
        return roles["x"]

    node = made(careless)
    given = VALUES.copy()
    with pytest.raises(ValueError, match="read-only") as caught:
        evaluate([node], {node.inputs[0]: given}, {})
    assert "in the direct evaluation of faulty, written at test_interpreter.py:" in caught.value.__notes__[0]
    np.testing.assert_array_equal(given, VALUES)


def test_an_error_inside_of_a_definition_names_the_composite_and_the_users_line():
    x, at = tg.input("x", (4,)), tg.input("at", (2,), i32)
    node = tg.write_at(x, tg.input("v", (2,)), at)
    with pytest.raises(InterpreterError, match=r"in write_at_index: scatter\(set\): the index 1 of axis 0 occurs 2 times") as e:
        interpret(tg.graph(node), {"x": np.zeros(4), "v": np.ones(2), "at": np.array([1, 1])})
    assert e.value.location is node.location


# ---- accuracy, memory, depth -----------------------------------------------------------------------------------------


def test_a_table_of_weights_is_read_in_float64_whatever_its_size():
    table, ids = tg.parameter("t", (70_000, 32), bf16), tg.input("ids", (2,), i32)
    values = np.linspace(-3, 3, 70_000 * 32).reshape(70_000, 32).astype(bf16.numpy)
    assert values.size * 8 > interpreter.KEPT_WIDE
    found = interpret(tg.graph(tg.embedding(table, ids, scale=0.1)), {"ids": [69_999, 3]}, {"t": values}).outputs["out"]
    np.testing.assert_array_equal(found, values[[69_999, 3]].astype(np.float64) * 0.1)


def peak(run: Any) -> int:
    """The largest number of bytes that were allocated at a time."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_of_a_table_only_the_rows_that_are_taken_are_widened():
    table, ids = tg.parameter("t", (70_000, 32), bf16), tg.input("ids", (2,), i32)
    values = np.ones((70_000, 32), bf16.numpy)
    for node in (tg.embedding(table, ids, scale=3.0), atomic.gather(table, ids)):
        graph = tg.graph(node)
        assert peak(lambda g=graph: interpret(g, {"ids": [5, 70_000]}, {"t": values})) < values.nbytes
        assert interpret(graph, {"ids": [5, 70_000]}, {"t": values}).outputs["out"][1].tolist() == [0.0] * 32


def test_an_array_is_dropped_after_its_last_use():
    x = tg.input("x", (100_000,), f64)
    node = x
    for _ in range(30):
        node = tg.sqrt(node * node)
    given = np.ones(100_000)
    assert peak(lambda: evaluate([node], {x: given}, {})) < 5 * given.nbytes


def test_arrays_inside_of_definitions_are_dropped_too():
    @tg.composite
    def chain(x: Node) -> Node:
        for _ in range(30):
            x = tg.sqrt(x * x)
        return x

    x = tg.input("x", (100_000,), f64)
    node = chain(chain(x))
    given = np.ones(100_000)
    assert peak(lambda: evaluate([node], {x: given}, {})) < 6 * given.nbytes


def test_only_one_large_weight_at_a_time_is_in_float64(monkeypatch):
    monkeypatch.setattr(interpreter, "KEPT_WIDE", 1 << 16)
    x = tg.input("x", (1, 256))
    weights = {f"w{i}": np.ones((256, 256), np.float32) for i in range(12)}
    node = x
    for name in weights:
        node = tg.linear(node, tg.parameter(name, (256, 256)))
    node = node * tg.sum(tg.parameter("w0", (256, 256)))    # read again at the end: not kept in between
    one = 256 * 256 * 8
    graph = tg.graph(node)
    assert peak(lambda: interpret(graph, {"x": np.ones((1, 256))}, weights)) < 4 * one


def test_a_chain_of_five_thousand_nodes_has_a_value():
    x = tg.input("x", (1,), i32)
    node = x
    for _ in range(5000):
        node = atomic.add(node, x)
    assert evaluate([node], {x: [1]}, {})[0].tolist() == [5001]


def test_composites_may_be_nested_deeper_than_python_recurses():
    def around(inner: Any) -> CompositeOp:
        return tg.composite(lambda x: inner(x), name="layer")

    x = tg.input("x", (1,), i32)
    argument = leaves.argument(0, x.type)
    op: Any = tg.composite(lambda x: atomic.add(x, x), name="double")
    for _ in range(1500):                                   # each definition is built while only one is missing
        op(argument)
        op = around(op)
    assert evaluate([op(x)], {x: [21]}, {})[0].tolist() == [42]


def test_a_value_with_several_outputs_is_evaluated_once():
    calls = []

    def halves(roles: Any, attrs: Any, types: Any) -> Any:
        calls.append(1)
        return roles["x"][:1], roles["x"][1:]

    @tg.composite(direct=halves)
    def split(x: Node) -> tuple[Node, Node]:
        return x[:1], x[1:]

    x = tg.input("x", (2,))
    a, b = split(x)
    assert [v.tolist() for v in evaluate([b, a, a + b], {x: [1.0, 2.0]}, {})] == [[2.0], [1.0], [3.0]]
    assert len(calls) == 1
