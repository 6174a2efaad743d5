"""kernels/c/backend.py: what the rows refuse they refuse with a reason, and what once was computed wrongly is computed rightly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.c.backend import MAX_COPY_RANK, ROWS, CRow, copy_call
from tensor_graphs.kernels.c.library import symbol_sources
from tensor_graphs.kernels.kernel import NativeCall, Spec
from tensor_graphs.kernels.registry import load_backend
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.measure.points.inputs import SAME_VALUES, Point, make_inputs, point_inputs
from tensor_graphs.measure.points.point_plan import taken_ways
from tensor_graphs.measure.points.single_op_plans import as_stored, single_kernel_plan, views_graph
from tensor_graphs.runtime.compiled_graph import bind
from tests.kernels.cases import applied
from tests.plans import check

KERNELS = {k.name: k for k in load_backend("c")}


def x(*shape: Any, dtype: DType = tg.f32) -> Node:
    return tg.input(f"x{'_'.join(map(str, shape))}{dtype.name}", shape, dtype)


def paged(dtype: DType, cache: DType, width: int = 4) -> Node:
    return tg.paged_attention(x(3, 2, 4, dtype=dtype), x(6, 2, 4, dtype=cache), tg.input("v", (6, 2, width), cache),
                              x(3, 2, dtype=tg.i32), x(3, dtype=tg.i32), page=2, scale=1.0)


def scaled(of_x: DType, of_w: DType, bias: Node | None = None, *, to: DType = tg.f32, **scales: Node) -> Node:
    return tg.scaled_linear(x(3, 4, dtype=of_x), x(5, 4, dtype=of_w), bias=bias, dtype=to, **scales)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


REFUSED: dict[str, tuple[Callable[[], Node], str]] = {
    "softmax of halves": (lambda: tg.softmax(x(3, dtype=tg.f16)), "f16 is not among {}"),
    "softmax of an inner axis": (lambda: tg.softmax(x(3, 4), axis=0), "the last axis only"),
    "linear with a double weight": (lambda: tg.linear(x(3, 4), x(5, 4, dtype=tg.f64)), "f32 or bf16 weights only"),
    "linear with a bf16 bias": (lambda: tg.linear(x(3, 4), x(5, 4), x(5, dtype=tg.bf16)), "f32 bias only"),
    "linear in f16": (lambda: tg.linear(x(3, 4, dtype=tg.f16), x(5, 4, dtype=tg.bf16)), "{} activations only"),
    "linear in bf16 by floats": (lambda: tg.linear(x(3, 4, dtype=tg.bf16), x(5, 4)), "bf16 only"),
    "linear in bf16 with a half bias": (lambda: tg.linear(x(3, 4, dtype=tg.bf16), x(5, 4, dtype=tg.bf16), x(5, dtype=tg.f16)),
                                        "bf16 or f32 bias only"),
    "scaled_linear with a scale": (lambda: scaled(tg.bf16, tg.bf16, x_scale=x()), "no scales"),
    "scaled_linear with scales of outputs": (lambda: scaled(tg.bf16, tg.bf16, weight_scale=x(5)), "no scales"),
    "scaled_linear by eight bits": (lambda: scaled(tg.bf16, tg.f8e4m3), "bf16 only"),
    "scaled_linear of halves": (lambda: scaled(tg.f16, tg.bf16), "bf16 only"),
    "scaled_linear to halves": (lambda: scaled(tg.bf16, tg.bf16, to=tg.f16), "results of bf16 or f32 only"),
    "scaled_linear with a double bias": (lambda: scaled(tg.bf16, tg.bf16, x(5, dtype=tg.f64)), "bf16 or f32 bias only"),
    "gather_linear by bytes": (lambda: tg.gather_linear(x(3, 4), x(6, 5, 4), x(3, dtype=tg.u8)),
                               "f32 or bf16 weights, i32 or i64 indices only"),
    "gather_linear of doubles": (lambda: tg.gather_linear(x(3, 4, dtype=tg.f64), x(6, 5, 4), x(3, dtype=tg.i32)),
                                 "f32 activations and bias only"),
    "gather_linear that broadcasts": (lambda: tg.gather_linear(x(1, 2, 4), x(6, 5, 4), x(3, 2, dtype=tg.i32)),
                                      "leading axes of x as the index has them, but for the last only"),
    "block_linear with a bf16 bias": (lambda: tg.block_linear(x(3, 32), x(5, 34, dtype=tg.u8), x(5, dtype=tg.bf16), format="Q8_0"),
                                      "f32 bias only"),
    "dot of vectors": (lambda: tg.dot(x(4), x(4, 5)), "matrices only"),
    "dot that broadcasts": (lambda: tg.dot(x(2, 1, 3, 4), x(1, 3, 4, 5)), "equal leading axes, or none on one side"),
    "norm with a double weight": (lambda: tg.rms_norm(x(3, 4), x(4, dtype=tg.f64)), "f32 or bf16 weights only"),
    "norm of doubles": (lambda: tg.rms_norm(x(3, 4, dtype=tg.f64), x(4)), "f32 activations only"),
    "attention over values of another width": (lambda: tg.attention(x(3, 2, 4), x(5, 2, 4), x(5, 2, 3), scale=1.0),
                                               "keys and values of one width only"),
    "attention over bf16 keys": (lambda: tg.attention(x(3, 2, 4), x(5, 2, 4, dtype=tg.bf16), x(5, 2, 4), scale=1.0), "{} only"),
    "rows of an inner axis": (lambda: tg.write_rows(x(3, 4), x(3, 2), start=1, axis=-1), "axis 0 only"),
    "slices of an inner axis": (lambda: tg.write_at_index(x(3, 4), x(3, 2), x(2, dtype=tg.i32), axis=1), "axis 0 only"),
    "rows at numbers of 8 bits": (lambda: tg.write_at_index(x(3, 4), tg.input("v", (2, 4)), x(2, dtype=tg.i8)),
                                  "an index of i32 or i64"),
    "pages of doubles": (lambda: paged(tg.f64, tg.f64), "f32 or bf16, one of them for keys and values"),
    "pages of values of another width": (lambda: paged(tg.f32, tg.f32, 3), "keys and values of one width only"),
    "table of float positions": (lambda: tg.rope_table(x(3), head_dim=4, theta=10.0)[0], "i32 positions of rank 1 only"),
    "tables of halves": (lambda: tg.rope_table(x(3, dtype=tg.i32), head_dim=4, theta=10.0, dtype=tg.f16)[0],
                         "f32 or f64 tables only"),
    "argmax of integers": (lambda: tg.argmax(x(3, dtype=tg.i32)), "f32 or f64 to i32 or i64 only"),
    "argmax of an inner axis": (lambda: tg.argmax(x(3, 4), axis=0), "the last axis only"),
}
"""name -> (application, what the kernel for its dtype says; {}: f32 or f64, where neither of two kernels takes it)"""


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_row_cannot_do_is_refused_with_a_reason(name: str) -> None:
    build, reason = REFUSED[name]
    spec = Spec.of(applied(build()))
    said = {k.name: k.accepts(spec) for k in KERNELS.values() if k.op == spec.op.name}
    assert all(said.values())
    wide, narrow, tiles = f"c.{spec.op.name}_f64", said.pop(f"c.{spec.op.name}_bf16", None), said.pop(f"c.{spec.op.name}_amx", None)
    said.pop(f"c.{spec.op.name}_f16", None)
    assert tiles in (None, reason, reason.format("f32"), reason.format("f32, bf16"), narrow)
    if "{}" in reason:
        assert said == {f"c.{spec.op.name}": reason.format("f32"), wide: reason.format("f64")}
    elif spec.op.name == "scaled_linear" or spec.outputs[0].dtype == tg.bf16:
        assert narrow == reason
    else:
        assert said[wide if wide in said and spec.outputs[0].dtype == tg.f64 else f"c.{spec.op.name}"] == reason


def test_every_row_calls_a_symbol_that_its_file_declares() -> None:
    known = symbol_sources()
    seen: set[str] = set()
    for row in ROWS:
        for node in samples_of(row):
            spec = Spec.of(applied(node))
            assert row.refuse(spec) is None
            call = row.build(spec)
            assert isinstance(call, NativeCall) and known[call.symbol].name == row.file
            assert len(call.ints) <= 32 and len(call.floats) <= 8 and len(call.pointers) + len(spec.outputs) <= 16
            seen.add(call.symbol)
    assert len(seen) > len(ROWS)                        # some rows choose among symbols


def samples_of(row: CRow) -> list[Node]:
    """Applications that a row takes."""
    wide = row.mark == "_f64"
    return samples(row.op if wide else row.op + row.mark, tg.f64 if wide else tg.f32)


def samples(op: str, dtype: DType) -> list[Node]:
    """Applications that the row of an op takes, with activations of this dtype."""
    def act(*shape: Any, name: str = "a") -> Node:
        return tg.input(name, shape, dtype)

    a = act(3, 4)
    own: dict[str, Callable[[], list[Node]]] = {
        "linear": lambda: [tg.linear(a, x(5, 4)), tg.linear(a, x(5, 4, dtype=tg.bf16), x(5))],
        "linear_bf16": lambda: [tg.linear(x(3, 4, dtype=tg.bf16), x(5, 4, dtype=tg.bf16), *bias)
                                for bias in ((), (x(5),), (x(5, dtype=tg.bf16),))],
        "scaled_linear_bf16": lambda: [scaled(tg.bf16, tg.bf16, bias, to=to) for bias in (None, x(5), x(5, dtype=tg.bf16))
                                       for to in (tg.f32, tg.bf16)],
        "scaled_linear_amx": lambda: samples("scaled_linear_bf16", tg.f32),
        "linear_amx": lambda: [*samples("linear", tg.f32), *samples("linear_bf16", tg.f32)],
        "dot_amx": lambda: [node for dtype in (tg.f32, tg.bf16) for node in samples("dot", dtype)],
        "gather_linear": lambda: [tg.gather_linear(x(3, each, 4), x(6, 5, 4, dtype=w), x(3, 2, dtype=i), *bias)
                                  for each in (1, 2) for w, i, bias in ((tg.f32, tg.i32, ()), (tg.bf16, tg.i64, (x(6, 5),)))],
        "block_linear": lambda: [tg.block_linear(x(3, 32), x(5, 34, dtype=tg.u8), *bias, format="Q8_0") for bias in ((), (x(5),))],
        "rounded_block_linear": lambda: [tg.rounded_block_linear(x(3, 32), x(5, 34, dtype=tg.u8), format="Q8_0", to=to)
                                         for to in ("int8", "int8x2")],
        "dot": lambda: [tg.dot(act(*s), act(*t, name="b")) for s, t in (
            ((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((3, 4), (2, 4, 5)))],
        "attention": lambda: [tg.attention(act(3, 2, 4), act(5, 2, 4, name="k"), act(5, 2, 4, name="v"), scale=1.0)],
        "attention_bf16": lambda: samples("attention", tg.bf16),
        "paged_attention": lambda: [paged(tg.f32, tg.f32), paged(tg.f32, tg.bf16), paged(tg.bf16, tg.bf16)],
        "write_rows": lambda: [tg.write_rows(a, x(2, 4), start=1), tg.write_rows(x(4), x(2), start=1, axis=-1)],
        "write_at_index": lambda: [tg.write_at_index(a, tg.input("v", (2, 4)), x(2, dtype=i)) for i in (tg.i32, tg.i64)],
        "rope_table": lambda: [tg.rope_table(x(3, dtype=tg.i32), head_dim=4, theta=10.0, dtype=t)[0] for t in (tg.f32, tg.f64)],
        "rms_norm": lambda: [tg.rms_norm(a), tg.rms_norm(a, x(4)), tg.rms_norm(a, x(4, dtype=tg.bf16))],
        "argmax": lambda: [tg.argmax(x(3, 4, dtype=t)) for t in (tg.f32, tg.f64)],
        "dot_bf16": lambda: samples("dot", tg.bf16),
        "dot_f16": lambda: samples("dot", tg.f16),
        "conv": lambda: [tg.conv1d(act(2, 4, 5), x(6, 4, 3), padding=1), tg.conv2d(act(1, 4, 3, 4), x(2, 2, 2, 2), x(2), groups=2)],
        "conv_depthwise": lambda: [tg.conv2d(x(1, 2, 3, 4, dtype=t), x(4, 1, 2, 2), x(4), groups=2)
                                   for t in (tg.f32, tg.bf16, tg.f16)],
        "conv_direct": lambda: [tg.conv1d(x(2, 4, 5), x(6, 4, 3), padding=1),
                                tg.conv2d(x(1, 3, 5, 4), x(5, 3, 3, 2), x(5), padding=1, stride=2)],
        "scatter": lambda: [tg.scatter(x(3, 4, dtype=t), x(2, dtype=i), tg.input("u", (2, 4), t), mode="add")
                            for t in (tg.f32, tg.f64, tg.i32, tg.i64) for i in (tg.i32, tg.i64)],
    }
    if op in own:
        return own[op]()
    return [getattr(tg, op)(a)]


def test_one_matrix_on_the_right_is_read_once_for_all_leading_axes_of_the_left_operand():
    for shape, rows in (((2, 7, 3, 12), 42), ((1, 9, 12), 9)):
        call = KERNELS["c.dot"].build(Spec.of(tg.dot(x(*shape), x(12, 5))))
        assert isinstance(call, NativeCall) and call.ints[:4] == (1, rows, 5, 12)
    a, b = numbers(2, 7, 3, 12), numbers(12, 5)
    graph = tg.graph(tg.dot(tg.input("a", a.shape), tg.input("b", b.shape)))
    assert np.allclose(bind(single_kernel_plan(graph, KERNELS["c.dot"])).run({"a": a, "b": b})["out"], a @ b, atol=1e-5)


@pytest.mark.parametrize("n, m, k", [(9, 4, 30), (64, 32, 17), (63, 32, 17), (300, 1, 40)])
def test_a_linear_of_many_rows_and_few_columns_is_that_of_numpy(n, m, k):
    values = {"x": numbers(n, k), "w": numbers(m, k, seed=1), "b": numbers(m, seed=2)}
    nodes = {name: tg.input(name, v.shape) for name, v in values.items()}
    actual = bind(single_kernel_plan(tg.graph(tg.linear(*nodes.values())), KERNELS["c.linear"])).run(values)["out"]
    assert np.allclose(actual, values["x"] @ values["w"].T + values["b"], atol=1e-4)


TAKEN = {"rms_norm": {"gaps", "repeated", "backwards"}, "softmax": {"gaps"},
         "argmax": {"gaps"}, "attention": {"gaps", "turned"}, "dot": {"gaps", "turned", "strided"}, "write_rows": {"gaps"}}
"""op -> ways to lie that its kernel must take, among others"""


@pytest.mark.parametrize("op", sorted({row.op for row in ROWS}))
def test_operands_with_gaps_are_read_where_they_lie(op: str) -> None:
    seen = set()
    for row in ROWS:
        for node in samples_of(row) if row.op == op else ():
            graph = signature_of(applied(node)).graph
            inputs = make_inputs(graph, {}, 1)
            expected = interpret(graph, inputs).outputs
            for form, axis, only in taken_ways(KERNELS[row.name], graph):
                seen.add(form)
                given = point_inputs(graph, Point((), 1, form=form, axis=axis, only=only))
                wanted = expected if form not in SAME_VALUES else interpret(graph, given).outputs
                left = [n for n in graph.inputs if only not in (None, n)]
                plan = single_kernel_plan(views_graph(graph, form, axis, left), KERNELS[row.name])
                found = bind(plan).run(as_stored(graph, given, form, axis, left))
                for name, value in found.items():
                    near = 2e-6 if value.dtype.itemsize > 2 else 2.0**-8
                    np.testing.assert_allclose(value, wanted[name], rtol=near, atol=2e-6, err_msg=f"{node} {form} {axis} {only}")
    assert seen >= TAKEN.get(op, set())


def test_a_copy_of_nine_axes_is_left_to_numpy() -> None:
    assert copy_call((2,) * MAX_COPY_RANK, (1,) * MAX_COPY_RANK, (1,) * MAX_COPY_RANK, 4) is not None
    assert copy_call((2,) * (MAX_COPY_RANK + 1), (1,) * 9, (1,) * 9, 4) is None


# ---- once wrong ------------------------------------------------------------------------------------------------------


def test_values_narrower_than_keys() -> None:
    q, k, v = tg.input("q", (3, 2, 4)), tg.input("k", (5, 2, 4)), tg.input("v", (5, 2, 3))
    check(tg.graph(tg.attention(q, k, v, scale=0.5)), {"q": numbers(3, 2, 4), "k": numbers(5, 2, 4), "v": numbers(5, 2, 3)},
          backends=("c", "numpy"))


def test_a_gate_of_scalars() -> None:
    for activation in ("gelu_tanh", "gelu", "silu"):
        g = tg.graph(tg.gated(tg.input("a", ()), tg.input("b", ()), activation=activation))
        check(g, {"a": numbers(), "b": numbers(seed=1)}, backends=("gen",))


@pytest.mark.parametrize("backend", ["c", "numpy"])
def test_rows_written_along_an_axis_counted_from_the_back(backend: str) -> None:
    base, value = tg.input("base", (3, 6)), tg.input("value", (3, 2))
    g = tg.graph(tg.write_rows(base, value, start=3, axis=-1))
    check(g, {"base": numbers(3, 6), "value": numbers(3, 2)}, backends=(backend, "numpy"))


@pytest.mark.parametrize("backend", ["gen", "numpy"])
def test_an_embedding_of_no_rows(backend: str) -> None:
    g = tg.graph(tg.embedding(tg.input("table", (0, 3)), tg.input("ids", (2,), tg.i32)))
    check(g, {"table": numbers(0, 3), "ids": np.array([0, 5], np.int32)}, backends=(backend, "numpy"))


# ---- wide activations -------------------------------------------------------------------------------------------------


def test_a_decoder_layer_with_f64_activations_runs_wholly_in_native_code() -> None:
    n, p, heads, width, hidden = tg.dim("n", 1, 40), tg.dim("p", 0, 20), 4, 8, 24

    def weight(name: str, *shape: int, dtype: DType = tg.f32) -> Node:
        return tg.parameter(name, shape, dtype)

    positions = tg.input("positions", (n,), tg.i32)
    cos, sin = tg.rope_table(positions, head_dim=width, theta=1e4, dtype=tg.f64)
    x = tg.embedding(weight("table", 50, hidden), tg.input("ids", (n,), tg.i32), scale=4.5, dtype=tg.f64)
    inner = tg.rms_norm(x, weight("norm", hidden), offset=1.0)
    q, k, v = (tg.reshape(tg.linear(inner, weight(name, count * width, hidden, dtype=tg.bf16)), (n, count, width))
               for name, count in (("q", heads), ("k", 2), ("v", 2)))
    caches = [tg.state(name, (64, 2, width), tg.f64) for name in ("keys", "values")]
    keys, values = (cache.write(rows, at=p) for cache, rows in zip(caches, (tg.rope(k, cos, sin), v), strict=True))
    seen = tg.attention(tg.rope(q, cos, sin), keys[:n + p], values[:n + p], scale=0.3, causal=True, start=p, window=9)
    x = x + tg.linear(tg.reshape(seen, (n, heads * width)), weight("o", hidden, heads * width), weight("bias", hidden))
    fed = tg.gated(tg.linear(x, weight("gate", 48, hidden)), tg.linear(x, weight("up", 48, hidden)))
    x = tg.layer_norm(x + tg.linear(fed, weight("down", hidden, 48)), weight("last", hidden))
    outputs = {"y": x, "narrow": tg.cast(tg.softmax(x), tg.f32), "best": tg.argmax(x)}
    g = tg.graph(outputs, dict(zip(caches, (keys, values), strict=True)))
    rng = np.random.default_rng(5)
    parameters = {name: (rng.standard_normal(node.shape) * 0.3).astype(node.dtype.numpy) for name, node in g.parameters.items()}
    states = {name: rng.standard_normal(node.shape) for name, node in g.states.items()}
    for count, before in ((1, 0), (1, 20), (7, 3), (40, 11)):
        ids = rng.integers(-1, 51, count).astype(np.int32)
        inputs = {"ids": ids, "positions": np.arange(before, before + count, dtype=np.int32)}
        compiled = check(g, inputs, parameters, states, {"n": count, "p": before}, backends=("c", "gen"))
        calls = [i.call for i in compiled.plan.variants[0].program.instructions]
        assert len(calls) > 20 and all(isinstance(call, NativeCall) for call in calls)
