"""Rows along an axis of fixed size that are copies of few: what the oracle says of the few holds for all of them."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.anonymous_composite import part_of
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.measure.comparison_pipeline import compare
from tensor_graphs.measure.isolation.replies import ReportedOutput
from tensor_graphs.measure.judge import Judge, JudgeTask
from tensor_graphs.measure.points.fewer_rows import axis_of, fewer, row_name
from tensor_graphs.measure.points.inputs import Form, Point, point_inputs
from tensor_graphs.records.database import Database

X, BIAS, IDS = tg.input("x", (256, 512), tg.f32), tg.input("b", (512,), tg.f32), tg.input("i", (4096,), tg.i32)
PART = part_of(tg.graph(tg.exp(X) * BIAS + X))(X, BIAS)
BASE = Point((), 1)
ROWS = {
    "softmax": (tg.softmax(X), "[0]=256"), "softmax down columns": (tg.softmax(X, axis=0), "[1]=512"),
    "sum of rows": (tg.sum(X, axis=1), "[0]=256"), "biased": (tg.add(X, BIAS), "[1]=512"), "a part": (PART, "[-1]=512"),
    "sum of all": (tg.sum(X), None), "small": (tg.softmax(tg.input("s", (64, 8), tg.f32)), None),
    "sums so far": (tg.cumsum(tg.cumsum(X, axis=0), axis=1).inputs[0], "[1]=512"),
    "table": (tg.embedding(tg.input("t", (4096, 64), tg.f32), IDS), None),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_found_along_an_axis_of_which_no_row_depends_on_another(judge: Judge, name: str) -> None:
    node, axis = ROWS[name]
    found = judge._look_for_rows(signature_of(node), BASE)
    assert found is None if axis is None else found is not None and found[0] == axis


def test_an_op_that_depends_on_where_a_row_lies_has_no_such_rows(judge: Judge) -> None:
    """Its mask says which numbers of a row count: other ones for each row."""
    masked = tg.where(tg.less(tg.iota((256, 512), 1, tg.i32), tg.iota((256, 512), 0, tg.i32)), X, 0.0)
    part: Node = part_of(tg.graph(masked))(X)
    assert judge._look_for_rows(signature_of(part), BASE) is None


@pytest.mark.parametrize("form", ["apart", "gaps", "repeated", "uniform", "unaligned"])
@pytest.mark.parametrize("name", ["softmax", "softmax down columns", "sum of rows", "a part"])
def test_what_comes_of_few_rows_is_what_comes_of_all(judge: Judge, name: str, form: Form) -> None:
    signature = signature_of(ROWS[name][0])
    rows = judge._look_for_rows(signature, BASE)
    assert rows is not None
    point = Point((), 7, form=form, rows=rows)
    inputs = point_inputs(signature.graph, point)
    axis = axis_of((256, 512), rows[0])
    different = 1 if form == "uniform" or (form, axis) == ("repeated", 0) else rows[1]
    assert inputs["x0"].shape == (256, 512) and np.unique(inputs["x0"], axis=axis).shape[axis or 0] == different
    found, wanted = judge.expected(signature, point), interpret(signature.graph, inputs).outputs["y0"]
    assert found is not None
    np.testing.assert_allclose(found["y0"], wanted, rtol=1e-9, atol=1e-12)


def test_one_row_in_another_ones_place_shows(judge: Judge) -> None:
    signature = signature_of(tg.softmax(X))
    point = Point((), 7, form="unaligned", rows=judge._look_for_rows(signature, BASE))
    right = interpret(signature.graph, point_inputs(signature.graph, point)).outputs["y0"].astype(np.float32)
    for swapped in (False, True):
        out = right.copy()
        if swapped:
            other = next(i for i in range(256) if not np.array_equal(right[i], right[100]))
            out[[100, other]] = out[[other, 100]]
        told = ReportedOutput(shapes={"y0": (256, 512)}, outside=(), mutated=False)
        verdict = judge._compare(signature, point, told, lambda count, out=out: out.reshape(-1).view(np.uint8)[:count], [0.0] * 4)
        assert verdict is None if not swapped else verdict is not None and verdict.status == "INCORRECT_NUMERICAL"


def test_fewer_rows_need_an_op_that_takes_them() -> None:
    graph = signature_of(tg.reshape(X, (512, 256))).graph
    assert fewer(graph, row_name(0, 256), 24) is None                 # the attribute says how many elements there are
    assert fewer(signature_of(tg.softmax(X)).graph, row_name(0, 100), 24) is None


def test_the_oracle_is_asked_ahead_until_it_is_enough(shared: Database) -> None:
    kernel, signature = kernel_named("numpy.softmax"), signature_of(tg.softmax(tg.input("s", (tg.dim("n", 1, 64), 8), tg.f32)))
    asked = JudgeTask(kernel, signature, {"n": 20})
    with Judge(shared) as judge:
        judge.foresee([asked], lambda: True)
        assert not judge._points
        judge.foresee([asked, asked], lambda: False)
        (points,) = judge._points.values()
        assert points == judge._compared_points(asked) and not judge._points  # taken by whoever compares


def test_a_part_of_which_a_worker_has_the_words_alone_is_compared_on_few_rows(judge: Judge) -> None:
    """Its numbers are spread over the shape, which is a fixed one there."""
    steps = tg.graph((X * 3.0 + 7.0) * X)
    asked = JudgeTask(kernel_named("gen.loops"), signature_of(part_of(steps)(X)), {})
    assert judge._look_for_rows(asked.signature, BASE) is not None
    ((_, verdict),) = compare(judge, [asked])
    assert verdict.status == "PASSED", verdict.log
