"""Products that round their operands to TF32: held to that where they say so, to all bits where they do not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.verdict_stability import compared
from tensor_graphs.kernels.registry import load_backend
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.meaning.precision import TF32
from tensor_graphs.measure.judge import Judge
from tensor_graphs.records.database import Database
from tests.measure.fewer_bits_kernels import KERNELS, PRODUCTS

SEEDS = (1, 2)

BY_NAME = {kernel.name: kernel for kernel in KERNELS}


@pytest.fixture(scope="module")
def judge(shared: Database) -> Iterator[Judge]:
    load_backend("numpy")
    with Judge(shared, timeout=60.0) as made:
        yield made


def statuses(judge: Judge, of: str, kernel: str) -> set[str]:
    node = PRODUCTS[of]
    (count,) = compared(judge, node, [BY_NAME[f"fewer.{node.op.name}_{kernel}"]], SEEDS).values()
    return set(count.statuses)


@pytest.mark.parametrize("bits", ["rounded_to_10", "cut_to_10"])
@pytest.mark.parametrize("of", PRODUCTS)
def test_one_that_says_so_passes_on_rows_of_any_length(judge: Judge, of: str, bits: str) -> None:
    assert statuses(judge, of, f"{bits}_says_so") == {"PASSED"}


@pytest.mark.parametrize("of", PRODUCTS)
def test_one_that_does_not_say_so_is_wrong(judge: Judge, of: str) -> None:
    assert statuses(judge, of, "rounded_to_10") == {"INCORRECT_NUMERICAL"}


@pytest.mark.parametrize("bits", ["rounded_to_7", "half_wrong"])
@pytest.mark.parametrize("of", PRODUCTS)
def test_one_of_fewer_bits_than_it_says_is_wrong(judge: Judge, of: str, bits: str) -> None:
    assert statuses(judge, of, f"{bits}_says_so") == {"INCORRECT_NUMERICAL"}


def test_a_worker_says_the_same_and_the_row_has_what_it_was_held_to(judge: Judge) -> None:
    signature = signature_of(PRODUCTS["linear"])
    verdict = judge.examine(BY_NAME["fewer.linear_rounded_to_10_says_so"], signature, {"n": 20})
    assert verdict.status == "PASSED" and verdict.error is not None and 1e-4 < verdict.error < TF32.limit
    kernel = BY_NAME["fewer.linear_rounded_to_10_says_so"]
    assert judge.record(kernel, signature, verdict, None).tolerance == TF32.limit
    assert judge.examine(BY_NAME["fewer.linear_rounded_to_10"], signature, {"n": 20}).status == "INCORRECT_NUMERICAL"
