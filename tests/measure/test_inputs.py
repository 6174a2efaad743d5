"""What kernels are fed: fixed by seed and name, legal for the op, and awkward where kernels go wrong."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.one_op_signature import signature_of_graph
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.node import Node
from tensor_graphs.measure.points.inputs import BIG_INPUT, Point, largest_sizes, make_inputs, point_inputs, work_points
from tensor_graphs.measure.points.single_op_plans import as_stored, plain_plan, single_kernel_plan, views_graph
from tensor_graphs.runtime.compiled_graph import bind

N, M = tg.dim("n", 1, 4096), tg.dim("m", 2, 30)


def graph_of(node: Node) -> tg.Graph:
    return signature_of(node).graph


def test_seed_and_name_fix_every_number() -> None:
    g = graph_of(tg.maximum(tg.input("a", (N, 8), tg.f32), tg.input("b", (N, 8), tg.f32)))
    one, again, other = (make_inputs(g, {"n": 9}, seed) for seed in (5, 5, 6))
    for name in g.inputs:
        np.testing.assert_array_equal(one[name], again[name])
        assert not np.array_equal(one[name], other[name])
    assert not np.array_equal(one["x0"], one["x1"])


def test_floats_hold_zeros_of_both_signs_tiny_and_large_numbers_and_one_small_row() -> None:
    g = graph_of(tg.relu(tg.input("a", (N, 32), tg.f32)))
    x = make_inputs(g, {"n": 40}, 3)["x0"]
    assert np.any((x == 0) & np.signbit(x)) and np.any((x == 0) & ~np.signbit(x)) and np.any(x == 8) and np.isfinite(x).all()
    rms = np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=1))
    assert np.sum(rms < 0.02) == 1


def test_operands_of_roots_and_logarithms_are_positive() -> None:
    for f in (tg.sqrt, tg.log2):
        assert (make_inputs(graph_of(f(tg.input("a", (N, 8), tg.f32))), {"n": 9}, 1)["x0"] > 0).all()


def test_row_numbers_reach_one_beyond_either_end_and_set_has_no_duplicates() -> None:
    table = tg.input("t", (10, 4), tg.f32)
    found = np.concatenate([make_inputs(graph_of(tg.gather(table, tg.input("i", (N,), tg.i32), axis=0)), {"n": 200}, s)["x1"]
                            for s in range(3)])
    assert found.min() == -1 and found.max() == 10
    scattered = tg.scatter(table, tg.input("i", (7,), tg.i32), tg.input("u", (7, 4), tg.f32), axis=0, mode="set")
    assert len(set(make_inputs(graph_of(scattered), {}, 1)["x1"].tolist())) == 7


def test_a_large_operand_is_made_once_and_is_the_same_for_every_seed() -> None:
    g = graph_of(tg.relu(tg.input("a", (BIG_INPUT // 1024 + 1, 1024), tg.f32)))
    assert make_inputs(g, {}, 1)["x0"] is make_inputs(g, {}, 2)["x0"]


def test_special_values_are_in_one_operand_only() -> None:
    g = graph_of(tg.maximum(tg.input("a", (N, 8), tg.f32), tg.input("b", (N, 8), tg.f32)))
    found = point_inputs(g, Point((("n", 5),), 4, special=True))
    assert np.isnan(found["x0"]).sum() == 1 and np.isinf(found["x0"]).sum() == 2 and np.isfinite(found["x1"]).all()


def test_sizes_include_the_ends_odd_ones_and_no_pair_of_equals_only() -> None:
    g = graph_of(tg.dot(tg.input("a", (N, M), tg.f32), tg.input("b", (M, 4), tg.f32)))
    points = work_points(g, {"n": 100, "m": 7})
    assert points[0] == {"n": 100, "m": 7} and {p["n"] for p in points} >= {1, 2, 100} and {p["m"] for p in points} >= {2, 3, 30}
    assert any(p["n"] % 2 and p["n"] > 16 for p in points)
    assert largest_sizes(g)[0] == {"n": 4096, "m": 30}
    assert largest_sizes(graph_of(tg.relu(tg.input("a", (3,), tg.f32)))) == [{}]


@pytest.mark.parametrize("node", [
    tg.linear(tg.input("x", (N, 6), tg.f32), tg.input("w", (5, 6), tg.f32), tg.input("b", (5,), tg.f32)),
    tg.softmax(tg.input("x", (N, M, 4), tg.f32)),
    tg.topk(tg.input("x", (N, 9), tg.f32), k=3)[0].inputs[0],
], ids=lambda n: n.op.name)
def test_strided_operands_hold_the_same_values(node: Node) -> None:
    g = signature_of(node).graph
    sizes = dict.fromkeys(g.dims, 5)
    inputs = make_inputs(g, sizes, 2)
    name = f"numpy.{node.op.name}"
    plan = single_kernel_plan(g, kernel_named(name)) if node.op.name != "topk" else plain_plan(g)
    assert plan is not None
    straight = bind(plan).run(inputs, dims=sizes)
    if node.op.name != "topk":
        windows = bind(single_kernel_plan(views_graph(g), kernel_named(name))).run(as_stored(g, inputs), dims=sizes)
        for output in g.outputs:
            np.testing.assert_allclose(windows[output], straight[output], rtol=1e-5, atol=1e-6)
    assert signature_of_graph(g).key == g.structural_key


def test_a_graph_of_two_ops_is_no_signature() -> None:
    with pytest.raises(ValueError, match="one op is needed, this one has 2"):
        signature_of_graph(tg.graph({"y": tg.relu(tg.exp(tg.input("x", (3,), tg.f32)))}))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux says what memory a process has")
def test_a_large_table_takes_the_memory_of_the_rows_that_are_read_alone() -> None:
    table = tg.input("t", (1 << 18, 512), tg.f32)                       # 512 MB
    g = graph_of(tg.gather(table, tg.input("i", (N,), tg.i32), axis=0))

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    before = resident()
    made = make_inputs(g, {"n": 500}, 1)
    index = made["x1"][(made["x1"] >= 0) & (made["x1"] < 1 << 18)]
    assert made["x0"][index].any(axis=1).all() and len(np.unique(index)) > 400
    assert resident() - before < 64 << 20


def test_operands_with_gaps_are_cut_out_of_arrays_of_different_widths_and_the_largest_out_of_the_narrowest() -> None:
    small = [tg.input(name, (N, 1, 8), tg.f32) for name in ("a", "b")]
    g = graph_of(tg.concat(*small, tg.input("c", (4096, 1, 8), tg.f32), axis=0))
    widths = {name: x.shape[1] for name, x in views_graph(g, "gaps", 1).inputs.items()}
    assert len(set(widths.values())) == 3 and widths["x2"] == min(widths.values())
    arrays = make_inputs(g, {"n": 5}, 1)
    assert {name: a.shape[1] for name, a in as_stored(g, arrays, "gaps", 1).items()} == widths
