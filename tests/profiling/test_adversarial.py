"""Kernels are compared on extreme values, where there is one right answer: careless ones show, honest ones are not refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.meaning.same_math import SAME_MATH
from tensor_graphs.profiling.measure.adversarial import adversarial_points, settled_rows
from tensor_graphs.profiling.measure.extremes import Extreme
from tensor_graphs.profiling.measure.inputs import Point, point_inputs
from tensor_graphs.profiling.measure.judge import Judge
from tensor_graphs.records.database import Database
from tests.profiling.careless_kernels import CARELESS, ROWS

KINDS: tuple[Extreme, ...] = get_args(Extreme)
N = tg.dim("n", 1, 4096)
M = tg.dim("m", 1, 4096)


@pytest.fixture(scope="module")
def judge(shared: Database) -> Iterator[Judge]:
    with Judge(shared, timeout=60.0) as made:
        yield made


def points(node: Node) -> list[Point]:
    return adversarial_points(signature_of(node))


def settled(node: Node, kind: Extreme) -> list[bool]:
    """Of each row of the answer at the point of this kind, whether it is one whatever is rounded."""
    signature = signature_of(node)
    (point,) = (p for p in adversarial_points(signature) if p.extreme == kind)
    answer = interpret(signature.graph, point_inputs(signature.graph, point), dims=point.binding).outputs
    return [bool(row) for rows in settled_rows(signature, point, answer, SAME_MATH).values() for row in rows.flat]


def is_settled(node: Node, kind: Extreme) -> bool:
    return all(settled(node, kind))


@pytest.mark.parametrize("name", CARELESS)
def test_a_kernel_that_is_wrong_on_rare_values_or_sizes_only_is_found_out_by_them(judge: Judge, name: str) -> None:
    kernel, node, where = CARELESS[name]
    verdict = judge.examine(kernel, signature_of(node), {"n": 20})
    assert verdict.status == "INCORRECT_NUMERICAL" and where in verdict.log, verdict.log


@pytest.mark.parametrize("backend", ["numpy", "c", "torch"])
@pytest.mark.parametrize("op", ["softmax", "rms_norm"])
def test_our_own_kernels_pass_on_them(judge: Judge, backend: str, op: str) -> None:
    verdict = judge.examine(kernel_named(f"{backend}.{op}"), signature_of(ROWS[op]), {"n": 20})
    assert verdict.status == "PASSED", verdict.log


def test_a_point_of_each_kind_is_asked_where_floats_are_read() -> None:
    for node in ROWS.values():
        assert [p.extreme for p in points(node)] == list(KINDS)
    assert points(tg.input("a", (N,), tg.i32) + tg.input("b", (N,), tg.i32)) == []


def test_ops_whose_definition_is_stable_have_one_answer_at_each_of_them() -> None:
    for node in ROWS.values():
        assert all(is_settled(node, kind) for kind in KINDS), node


def test_an_answer_that_hangs_on_rounding_is_no_answer() -> None:
    """Scores of 1e8 are known to ±8 in f32; of two numbers that all but cancel, little is left."""
    q, k, v = (tg.input(name, (n, 2, 8), tg.f32) for name, n in (("q", N), ("k", M), ("v", M)))
    attention = tg.attention(q, k, v, scale=0.5)
    assert not is_settled(attention, "large")
    assert any(settled(attention, "equal")), "but for a row of which the values happen to cancel"
    flat = tg.layer_norm(tg.input("x", (N, 7), tg.f32))
    assert not is_settled(flat, "equal") and is_settled(flat, "wide")


def test_a_kernel_is_not_refused_for_what_no_kernel_can_know(judge: Judge) -> None:
    q, k, v = (tg.input(name, (n, 2, 8), tg.f32) for name, n in (("q", N), ("k", M), ("v", M)))
    signature = signature_of(tg.attention(q, k, v, scale=0.5))
    for backend in ("numpy", "c"):
        verdict = judge.examine(kernel_named(f"{backend}.attention"), signature, {"n": 5, "m": 9})
        assert verdict.status == "PASSED" and verdict.error is not None and verdict.error <= SAME_MATH["f32"], verdict.log


def test_fixed_sizes_that_take_the_oracle_long_are_left_out_and_dims_are_made_small_first() -> None:
    assert points(tg.linear(tg.input("x", (N, 2048), tg.f32), tg.input("w", (2048, 2048), tg.f32))) == []
    y, z = tg.input("y", (M, 256, 16), tg.f32), tg.input("z", (M, 256, 16), tg.f32)
    assert {p.binding["m"] for p in points(tg.add(y, z))} == {3}
    assert {p.binding["n"] for p in points(tg.relu(tg.input("x", (N, 64), tg.f32)))} == {17, 31, 33, 37, 65, 129, 257}
