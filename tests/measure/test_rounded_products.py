"""Kernels of products whose operands are rounded to TF32 are held to that; kernels of plain products to all bits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tensor_graphs as tg
from benchmarks.verdict_stability import compared
from tensor_graphs.kernels.registry import load_backend
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.composites.rounded import rounded
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.same_math import SAME_MATH, UNITS, licensed_unit, same_math_limit
from tensor_graphs.measure.judge import Judge
from tensor_graphs.records.database import Database
from tests.measure.fewer_bits_kernels import KERNELS, PRODUCTS, ROUNDED

SEEDS = (1, 2)

UNIT = 2.0 ** -11

BY_NAME = {kernel.name: kernel for kernel in KERNELS}


@pytest.fixture(scope="module")
def judge(shared: Database) -> Iterator[Judge]:
    load_backend("numpy")
    with Judge(shared, timeout=60.0) as made:
        yield made


def statuses(judge: Judge, node: Node, bits: str) -> set[str]:
    (count,) = compared(judge, node, [BY_NAME[f"fewer.{node.op.name}_{bits}"]], SEEDS).values()
    return set(count.statuses)


@pytest.mark.parametrize("bits", ["rounded_to_10", "cut_to_10"])
@pytest.mark.parametrize("of", ROUNDED)
def test_a_kernel_that_rounds_to_tf32_computes_the_rounded_product_of_rows_of_any_length(judge: Judge, of: str, bits: str) -> None:
    assert statuses(judge, ROUNDED[of], bits) == {"PASSED"}


@pytest.mark.parametrize("of", PRODUCTS)
def test_a_kernel_that_rounds_to_tf32_is_wrong_for_the_plain_product(judge: Judge, of: str) -> None:
    assert statuses(judge, PRODUCTS[of], "rounded_to_10") == {"INCORRECT_NUMERICAL"}


@pytest.mark.parametrize("bits", ["rounded_to_7", "half_wrong"])
@pytest.mark.parametrize("of", ROUNDED)
def test_a_kernel_with_fewer_bits_than_tf32_is_wrong_for_the_rounded_product(judge: Judge, of: str, bits: str) -> None:
    assert statuses(judge, ROUNDED[of], bits) == {"INCORRECT_NUMERICAL"}


def test_a_worker_gives_the_same_verdict_and_the_row_has_the_limit(judge: Judge) -> None:
    kernel, signature = BY_NAME["fewer.rounded_linear_rounded_to_10"], signature_of(ROUNDED["linear"])
    verdict = judge.examine(kernel, signature, {"n": 20})
    assert verdict.status == "PASSED" and verdict.error is not None and 1e-4 < verdict.error < UNITS * UNIT
    assert judge.record(kernel, signature, verdict, None).tolerance == UNITS * UNIT


def test_the_unit_of_a_graph_is_that_of_the_coarsest_rounding_in_any_definition() -> None:
    x, y = tg.input("x", (4, 8)), tg.input("y", (4, 8), tg.bf16)

    @tg.composite
    def inside(a: Node) -> Node:
        return tg.exp(rounded(a, to="bf16x2"))

    assert licensed_unit([tg.exp(x)]) == 0
    assert licensed_unit([inside(x)]) == 2.0 ** -17
    assert licensed_unit([inside(x), *ROUNDED.values()]) == UNIT
    assert same_math_limit([x.type], UNIT) == UNITS * UNIT
    assert same_math_limit([x.type], 2.0 ** -17) == same_math_limit([x.type]) == SAME_MATH["f32"]
    assert same_math_limit([y.type], UNIT) == same_math_limit([y.type]) == SAME_MATH["bf16"]
