"""What a verdict covers: sizes of the whole range, every layout that a plan hands over, values in every operand; and it says so."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

os.environ.setdefault("TRIAL_SEED", "0")                            # before the module is imported, here and in the worker

import tensor_graphs as tg
from tensor_graphs.choice.choice_evidence import in_words
from tensor_graphs.costs.database_keys import verify_workload
from tensor_graphs.devices import cuda
from tensor_graphs.kernels.kernel import HostCall, Spec
from tensor_graphs.kernels.registry import by_op, kernel_named, matching
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.kernels.strides import Strides, is_contiguous
from tensor_graphs.language.anonymous_composite import part_between
from tensor_graphs.language.node import apply
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.measure.isolation.memory_guards import guarded
from tensor_graphs.measure.judge import Judge
from tensor_graphs.measure.points.adversarial import adversarial_points, depends_on_special
from tensor_graphs.measure.points.inputs import (
    STORED,
    Form,
    Point,
    few_rows,
    is_held,
    largest_sizes,
    point_inputs,
    row_numbers,
    rows_read_by,
    take_rows,
)
from tensor_graphs.measure.points.point_plan import (
    BINS,
    covered,
    layout_points,
    rows_are_independent,
    size_points,
    taken_ways,
    together_points,
    ways_in_place,
)
from tensor_graphs.measure.points.single_op_plans import as_stored, single_kernel_plan, views_graph
from tensor_graphs.measure.timing.bench import Bench
from tensor_graphs.records import queries
from tensor_graphs.runtime.compiled_graph import bind
from tests.fake import cuda as emulated
from tests.measure.wrong_at_random import FAMILIES, NODES, kernel_of, right_kernel

N, M = tg.dim("n", 1, 4096), tg.dim("m", 1, 4096)
X, Y = tg.input("x", (N, 6), tg.f32), tg.input("y", (N, 6), tg.f32)
SAMPLE = ["numpy.wrong_in_a_band_of_row_counts.softmax", "c.wrong_above_a_row_count.linear", "torch.wrong_in_some_rows_of_many.sum",
          "numpy.computes_in_fewer_bits.i64_mul", "c.compares_in_floats.i64_less", "torch.wrong_for_some_magnitudes.add",
          "c.overflows_too_early.square", "numpy.wrong_at_an_end_of_the_table.embedding",
          "torch.ignores_a_special_of_one_operand.linear", "c.wrong_on_rows_in_some_order.sum",
          "numpy.nan_for_a_row_of_zeros.rms_norm", "c.wrong_for_unaligned_memory.add",
          "torch.wrong_for_the_same_memory_twice.mul", "numpy.wrong_for_stride_zero.add",
          "numpy.reads_backwards_axes_forwards.mul", "numpy.leaves_something_behind.add", "c.leaves_something_behind.softmax",
          "torch.right_where_it_is_judged.mul"]


@pytest.mark.parametrize("name", SAMPLE)
def test_a_kernel_that_is_wrong_somewhere_at_random_does_not_pass(judge: Judge, name: str) -> None:
    family = FAMILIES[name]
    signature = signature_of(NODES[family.node])
    verdict = judge.examine(kernel_of(family, int(os.environ["TRIAL_SEED"])), signature, dict.fromkeys(signature.dim_names, 20))
    assert verdict.status == family.status, verdict.log


@pytest.mark.parametrize(("tool", "node"), [("numpy", "i64 less"), ("torch", "softmax"), ("c", "embedding")])
def test_the_same_kernel_without_the_bug_passes_and_its_row_says_what_was_covered(judge: Judge, tool: str, node: str) -> None:
    kernel, signature = right_kernel(tool, node), signature_of(NODES[node])
    verdict = judge.examine(kernel, signature, {"n": 20})
    assert verdict.status == "PASSED", verdict.log
    row = judge.record(kernel, signature, verdict, None)
    assert row.workload.key == verify_workload(signature).key and "1–4096" in in_words(row.conditions["covered"])
    rows = queries.latest_traces(judge.database, row.environment)
    stored = queries.trace_conditions(judge.database, rows[kernel.identity, row.workload.key].trace_id)
    assert [each["covered"] for each in stored.values()] == [dict(verdict.covered)]


def test_there_are_sixty_families_of_wrong_kernels_of_numpy_torch_and_c() -> None:
    assert len(FAMILIES) >= 60
    assert all(sum(name.startswith(f"{tool}.") for name in FAMILIES) >= 20 for tool in ("numpy", "torch", "c"))


@pytest.fixture(scope="module")
def emulated_gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if cuda.why_missing() is None:                                  # there is one, and no kernel is run here
        yield
        return
    emulated.install(tmp_path_factory.mktemp("emulated"))
    yield
    emulated.remove()


@pytest.mark.parametrize("name", ["numpy.mul", "numpy.linear", "c.rms_norm", "c.linear", "c.softmax", "gen.loops",
                                  "gencuda.loops"])
@pytest.mark.usefixtures("emulated_gpu")
def test_a_kernel_is_shown_operands_that_lie_as_lowering_hands_them_over(name: str) -> None:
    x, kernel = tg.input("x", (N, 4, 64), tg.f32), kernel_named(name)
    nodes = [x * tg.input("y", (N, 1, 64), tg.f32), x * x, tg.softmax(x), tg.rms_norm(x, tg.input("w", (64,), tg.f32)),
             tg.linear(x, tg.input("m", (32, 64), tg.f32))]
    graphs = [s.graph for s in map(signature_of, nodes) if matching(s.spec, by_op([kernel]))]
    for graph in graphs:
        shown = set(taken_ways(kernel, graph))
        forms: tuple[Form, ...] = ("gaps", "repeated", "backwards", "turned", "uniform", "windows", "strided")
        for form, axis, only in itertools.product(forms, range(3), (None, *graph.inputs)):
            if (axis and form not in forms[:3]) or (only is not None and len(graph.inputs) == 1):
                continue
            views = views_graph(graph, form, axis, [n for n in graph.inputs if only not in (None, n)])
            (run,) = [i for i in single_kernel_plan(views, kernel).variants[0].program.instructions if i.signature]
            assert ((form, axis, only) in shown) == (not all(each.contiguous for each in run.ins))
        assert name != "gencuda.loops" or any(form == "repeated" for form, _, _ in shown)
    assert graphs


@pytest.mark.usefixtures("emulated_gpu")
def test_a_gpus_kernel_is_shown_each_point_three_times_in_a_row(judge: Judge) -> None:
    points = judge.points(kernel_named("gencuda.loops"), signature_of(tg.relu(X)), {"n": 20})
    assert len(points) == 3 * len(set(points)) and points == [p for p in points[::3] for _ in range(3)]


@pytest.mark.parametrize("seed", range(5))
def test_each_tenth_of_the_range_of_a_dim_is_asked_and_both_its_ends(seed: int) -> None:
    sizes = sorted({p.binding["n"] for p in size_points(signature_of(tg.relu(X)), seed)})
    assert sizes[0] == 1 and sizes[-1] == 4096
    for low in np.exp(np.linspace(np.log(4), np.log(4096 / 4096 ** 0.1), 40)):
        assert any(low <= size <= low * 4096 ** 0.1 for size in sizes), (low, sizes)
    assert sizes != sorted({p.binding["n"] for p in size_points(signature_of(tg.relu(X)), seed + 100)})
    assert len(sizes) <= BINS + 2


def test_each_dim_is_made_large_in_turn_and_fixed_large_sizes_take_no_long_time() -> None:
    dot = size_points(signature_of(tg.dot(tg.input("x", (N, M), tg.f32), tg.input("y", (M, 8), tg.f32))), 1)
    assert {max(p.binding.values()) for p in dot if p.binding["n"] > 1000} and any(p.binding["m"] > 1000 for p in dot)
    assert all(min(p.binding.values()) <= 7 for p in dot)
    wide = size_points(signature_of(tg.relu(tg.input("x", (N, 1 << 16), tg.f32))), 1)
    assert max(p.binding["n"] for p in wide) < 4096 and "of 1–4096" in covered(wide, signature_of(tg.relu(X)))["sizes"]["n"]


def test_rows_are_found_independent_where_they_are() -> None:
    table, ids = tg.input("t", (50, 4), tg.f32), tg.input("i", (N,), tg.i32)
    independent = {"relu": tg.relu(X), "add": tg.add(X, Y), "softmax": tg.softmax(X), "embedding": tg.embedding(table, ids),
                   "linear": tg.linear(X, tg.input("w", (5, 6), tg.f32))}
    for node in independent.values():
        assert rows_are_independent(signature_of(node), "n")
    dependent = [tg.sum(X, axis=0), tg.softmax(X, axis=0), tg.dot(tg.input("a", (3, N), tg.f32), X), tg.cumsum(X, axis=0)]
    for node in dependent:
        assert not rows_are_independent(signature_of(node), "n"), node


def test_which_dim_has_independent_rows_is_asked_of_each_order_of_the_dims() -> None:
    n, m = tg.dim("n", 1, 64), tg.dim("m", 1, 64)
    for first, second in (("n", "m"), ("m", "n")):
        x = tg.input("x", tuple({"n": n, "m": m}[name] for name in (first, second)), tg.f32)
        assert rows_are_independent(signature_of(tg.softmax(x)), first)
        assert not rows_are_independent(signature_of(tg.softmax(x)), second)



def test_of_copied_rows_the_oracle_computes_each_once_and_gets_the_same(judge: Judge) -> None:
    signature = signature_of(tg.softmax(X))
    point = Point((("n", 300),), 7, rows=("n", 24))
    inputs = point_inputs(signature.graph, point)
    assert inputs["x0"].shape == (300, 6) and len(np.unique(inputs["x0"], axis=0)) == 24 == few_rows(point).binding["n"]
    expected = judge.expected(signature, point)
    assert expected is not None
    np.testing.assert_allclose(expected["y0"], interpret(signature.graph, inputs).outputs["y0"], rtol=1e-12)
    np.testing.assert_array_equal(take_rows(np.arange(24.0)[:, None], signature.graph.inputs["x0"], "n", row_numbers(point))[:, 0],
                                  row_numbers(point))


@pytest.mark.parametrize("form", sorted(STORED))
@pytest.mark.parametrize("axis", [0, 1])
def test_a_window_holds_the_operand_however_it_is_stored(form: Form, axis: int) -> None:
    graph = signature_of(tg.add(X, Y)).graph
    inputs = point_inputs(graph, Point((("n", 5),), 3, form=form, axis=axis))
    plan = single_kernel_plan(views_graph(graph, form, axis), kernel_named("numpy.add"))
    given = plan.variants[0].program.instructions[-1].ins
    assert not given[0].contiguous or (form == "gaps" and axis == 0)    # a matrix cut along its first axis has none
    found = bind(plan).run(as_stored(graph, inputs, form, axis), dims={"n": 5})["y0"]
    np.testing.assert_array_equal(found, inputs["x0"] + inputs["x1"])


def test_a_kernel_is_shown_what_a_plan_may_hand_it_and_nothing_else() -> None:
    signature, base = signature_of(tg.add(X, Y)), {"n": 20}
    free = replace(right_kernel("numpy", "add"), contiguous=False)
    forms = {(p.form, p.axis) for p in layout_points(free, signature, base, 1)}
    assert forms == {("views", 0), ("unaligned", 0), ("windows", 0), ("strided", 0), ("repeated", 0), ("repeated", 1),
                     ("backwards", 0), ("backwards", 1), ("same", 0), ("overlapping", 0)}
    strict = replace(free, contiguous=True)
    assert {p.form for p in layout_points(strict, signature, base, 1)} == {"views", "unaligned", "same", "overlapping"}
    picky = replace(strict, strided=lambda spec, strides: None)
    assert layout_points(picky, signature, base, 1) == layout_points(strict, signature, base, 1)

    def first_only(spec: Spec, strides: Sequence[Strides]) -> HostCall | None:
        return HostCall(print) if is_contiguous(spec.inputs[1].shape, strides[1]) else None

    first = layout_points(replace(strict, strided=first_only), signature, base, 1)
    assert {(p.form, p.axis, p.only) for p in first} >= {("gaps", 1, None), ("gaps", 1, "x0"), ("uniform", 0, "x0")}
    assert "x1" not in {p.only for p in first}
    assert "backwards" not in {p.form for p in layout_points(replace(free, positive_strides=True), signature, base, 1)}


@pytest.mark.parametrize("seed", range(20))
def test_windows_have_few_rows_once_and_many_once(seed: int) -> None:
    """A kernel that walks rows without their stride is right about the first of them."""
    signature = signature_of(tg.add(X, Y))
    points = layout_points(replace(right_kernel("numpy", "add"), contiguous=False), signature, {"n": 1}, seed)
    for form in ("windows", "strided"):
        few, many = sorted(p.binding["n"] for p in points if p.form == form)
        assert 2 <= few <= 8 < many <= 80


def test_every_operand_is_huge_and_structured_in_turn() -> None:
    found = adversarial_points(signature_of(tg.add(X, Y)), 5)
    assert {p.only for p in found if p.extreme == "huge"} == {None, "x0", "x1"}
    assert {p.only for p in found if p.extreme == "structured"} == {None, "x0", "x1"}
    line = adversarial_points(signature_of(tg.sum(tg.input("x", (N,), tg.f32), axis=0)), 5)
    assert len([p for p in line if p.extreme == "structured"]) == 8         # a single row is in one order at a time


def test_of_a_large_table_only_the_rows_that_are_read_get_other_values() -> None:
    graph = signature_of(tg.embedding(tg.input("t", (1 << 13, 1 << 10), tg.f32), tg.input("i", (N,), tg.i32))).graph
    assert rows_read_by(graph, "x0") == "x1" and rows_read_by(graph, "x1") is None
    plain = point_inputs(graph, Point((("n", 7),), 3))["x0"].copy()
    extreme = point_inputs(graph, Point((("n", 7),), 3, extreme="huge"))
    changed = np.flatnonzero((extreme["x0"] != plain).any(axis=1))
    assert len(changed) and set(changed) <= set(extreme["x1"].tolist())
    again, held = point_inputs(graph, Point((("n", 7),), 4))["x0"], plain.any(axis=1)
    np.testing.assert_array_equal(again[held], plain[held])         # rows that nobody has read yet hold zeros


def test_a_number_that_matters_to_no_result_may_be_nan_there() -> None:
    """A masked value is multiplied by a weight of 0: the definition says NaN, a kernel need not read it."""
    where = signature_of(tg.where(tg.input("c", (N, 6), tg.bool_), X, Y))
    point = Point((("n", 30),), 3, special=True, only="x1")
    inputs = point_inputs(where.graph, point)
    asked = depends_on_special(where, point)["y0"]
    np.testing.assert_array_equal(asked, inputs["x0"] & ~np.isfinite(inputs["x1"]))


@pytest.mark.parametrize("most", [6, 7, 8, 9])
def test_rows_are_looked_at_within_the_range_of_their_dim(most: int) -> None:
    assert rows_are_independent(signature_of(tg.tanh(tg.input("x", (tg.dim("n", 1, most), 16), tg.f32))), "n") is (most >= 7)


def test_outputs_share_memory_with_operands_pair_by_pair_and_all_at_once(tmp_path: Path) -> None:
    """As a step of an optimizer does, which writes over each of its states."""
    operands = [tg.input(name, (6,), tg.f32) for name in "xyz"]
    x, y, z = operands
    part = part_between([x * 0.9 + z, y * 0.9 + z * z], operands)
    signature, kernel = signature_of(apply(part, operands)), kernel_named("gen.loops")
    pairs = kernel.sharing(signature.spec).pairs
    assert {(0, 0), (1, 1)} <= set(pairs) and len(ways_in_place(kernel, signature)) == len(pairs) + 1
    with (tmp_path / "outputs").open("wb") as file:
        bench = Bench(signature.graph, kernel, file.fileno())
        for way in ways_in_place(kernel, signature):
            inputs, guards = guarded({name: np.ones(6, np.float32) for name in signature.graph.inputs}, True)
            out = bench.outputs({})
            shared = bench.share(inputs, guards, out, way)
            assert shared == {n for n in inputs if any(g is guards[n] for g in out.values())}
            assert len(shared) == (2 if way == len(pairs) else 1)


def test_a_table_of_more_rows_than_memory_holds_is_compared_at_sizes_that_it_holds(judge: Judge) -> None:
    n = tg.dim("n", 1, 1 << 32)
    signature = signature_of(tg.gather(tg.input("x", (n,), tg.f32), tg.input("i", (4,), tg.i64), axis=0))
    assert [s["n"] for s in largest_sizes(signature.graph)] == [1024, 257]
    verdict = judge.examine(kernel_named("numpy.gather"), signature, {"n": 1 << 31})
    assert verdict.status == "PASSED", verdict.log
    assert str(verdict.covered["sizes"]["n"]).endswith("of 1–4294967296")   # as its row says: not all of it was seen


def test_sizes_without_a_bound_are_drawn_only_where_a_table_fits_into_memory() -> None:
    rows, width, count = (tg.dim(name, 2, (1 << 31) - 1) for name in ("rows", "width", "count"))
    signature = signature_of(tg.embedding(tg.input("t", (rows, width)), tg.input("i", (count,), tg.i64)))
    points = [p for seed in range(40) for p in (*together_points(signature, seed), *size_points(signature, seed))]
    assert len(points) > 200 and all(is_held(signature.graph, p.binding) for p in points)
