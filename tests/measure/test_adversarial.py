"""Kernels are compared on extreme values, where there is one right answer: careless ones show, honest ones are not refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.meaning.same_math import SAME_MATH
from tensor_graphs.measure.isolation.replies import ReportedOutput
from tensor_graphs.measure.judge import Judge
from tensor_graphs.measure.points import adversarial
from tensor_graphs.measure.points.adversarial import adversarial_points, rows_of, settled_rows
from tensor_graphs.measure.points.extremes import Extreme
from tensor_graphs.measure.points.inputs import Point, point_inputs
from tensor_graphs.records.database import Database
from tests.measure.careless_kernels import CARELESS, ROWS

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
    by_chance = "in a timed run" in verdict.log                     # values that a perturbation copies may tie, too
    assert verdict.status == "INCORRECT_NUMERICAL" and (where in verdict.log or by_chance), verdict.log


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


@pytest.mark.parametrize(("seed", "row"), [(4100, 0), (107100, 8), (142700, 8)])
def test_what_six_roundings_agree_on_by_chance_is_no_answer(seed: int, row: int) -> None:
    """Scores of huge values that cancel tie but for rounding: drawn as here, the first six choose the key that the oracle does."""
    p = tg.dim("p", 0, 2048)
    n = tg.dim("n", 0, 2048)
    q, k, v = (tg.input(name, shape, tg.bf16) for name, shape in (("q", (n, 4, 64)), ("k", (n + p, 2, 64)), ("v", (n + p, 2, 64))))
    signature = signature_of(tg.attention(q, k, v, scale=0.125, causal=True, start=p))
    (point,) = (each for each in adversarial_points(signature, seed) if each.extreme == "huge" and each.only is None)
    inputs = point_inputs(signature.graph, point)
    answer = interpret(signature.graph, inputs, dims=point.binding).outputs
    (other,) = interpret(signature.graph, inputs, dims=point.binding, mode="jittered", jitter=1000).outputs.values()
    ((name, every),) = settled_rows(signature, point, answer, SAME_MATH).items()
    right = rows_of(answer[name])[row]
    assert np.abs(rows_of(other)[row] - right).max() > 0.5 * np.abs(right).max() and not every[row]


def test_only_the_rows_that_are_asked_for_are_settled_and_nothing_is_computed_where_none_is_left(
        monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (tg.input(name, (n, 2, 8), tg.f32) for name, n in (("q", N), ("k", M), ("v", M)))
    signature = signature_of(tg.attention(q, k, v, scale=0.5))
    (point,) = (p for p in adversarial_points(signature) if p.extreme == "large")
    answer = interpret(signature.graph, point_inputs(signature.graph, point), dims=point.binding).outputs
    ((name, every),) = settled_rows(signature, point, answer, SAME_MATH).items()
    assert not every.all()
    asked = np.zeros_like(every)
    asked[np.flatnonzero(~every)[:1]] = True
    times: list[int] = []

    def counted(*args: Any, **more: Any) -> Any:
        times.append(more["jitter"])
        return interpret(*args, **more)

    monkeypatch.setattr(adversarial, "interpret", counted)
    assert not settled_rows(signature, point, answer, SAME_MATH, asked={name: asked})[name].any()
    assert 1 <= len(times) < adversarial.ROUNDED_EXTREMES
    if every.any():
        asked[np.flatnonzero(every)[0]] = True
        assert settled_rows(signature, point, answer, SAME_MATH, asked={name: asked})[name].sum() == 1
    times.clear()
    assert not settled_rows(signature, point, answer, SAME_MATH, asked={name: np.zeros_like(every)})[name].any() and not times


def test_a_row_that_is_wrong_and_settled_is_refused_beside_one_that_is_not_settled(judge: Judge) -> None:
    """Whole rows that cancel are nobody's fault; a row beside them that is off by a thousandth is the kernel's."""
    node = tg.linear(tg.input("x", (N, 64), tg.f32), tg.input("w", (24, 64), tg.f32))
    signature = signature_of(node)
    point = Point((("n", 9),), 7, form="repeated", axis=1)
    (name,) = signature.graph.outputs
    expected = judge.expected(signature, point)
    assert expected is not None
    right = expected[name].astype(np.float32)

    def verdict(values: np.ndarray) -> str | None:
        told = ReportedOutput({name: values.shape}, (), False)
        found = judge._compare(signature, point, told, lambda count: values.copy().view(np.uint8).reshape(-1), [0.0] * 4)
        return None if found is None else found.status

    assert verdict(right) is None
    off = right.copy()
    off[4] *= np.float32(1.001)
    assert judge._wrong_rows(signature, point, name, off, expected[name], 1e-4, False).tolist() == [i == 4 for i in range(9)]
    assert verdict(off) == "INCORRECT_NUMERICAL"


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
