"""What the cost model sees of a signature's loops: it tells apart what takes another time, and sizes are those of the call."""

from __future__ import annotations

import math

import pytest

import tensor_graphs as tg
from tensor_graphs.costs.loop_features import shapes_of
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.node import Node


def seen(node: Node, **binding: int) -> dict[str, float]:
    return shapes_of(signature_of(node)).at(binding)


def size(n: int) -> float:
    return pytest.approx(math.log2(n + 1))                          # type: ignore[no-any-return]


def test_along_and_across_memory_are_told_apart() -> None:
    rows, columns = (seen(tg.sum(tg.input("x", (64, 96)), axis=axis)) for axis in (1, 0))
    assert (rows["stages: across memory"], columns["stages: across memory"]) == (0.0, 1.0)
    assert [rows[f"reduced, {where}"] for where in ("beside", "along", "below")] == [size(64), size(96), size(1)]
    assert [columns[f"reduced, {where}"] for where in ("beside", "along", "below")] == [size(1), size(64), size(96)]


def test_a_products_sizes_are_those_of_its_sums() -> None:
    found = seen(tg.linear(tg.input("x", (4, 64)), tg.parameter("w", (128, 64))))
    assert found["reduced, along"] == size(64) and found["reduced, beside"] == size(4 * 128)


def test_sizes_are_those_of_the_call() -> None:
    node = tg.softmax(tg.input("x", (tg.dim("n", 1, 512), 96), tg.bf16))
    small, large = seen(node, n=3), seen(node, n=300)
    assert small["stages: turns that threads share"] == size(3) and large["stages: turns that threads share"] == size(300)
    assert {name for name in small if small[name] != large[name]} == {
        "reduced, beside", "stages: turns that threads share", "stages: steps"}
    assert small["stages: conversions"] == 2.0 and small["stages: dear values"] >= 1.0 and small["stages: reductions"] == 2.0


def test_what_is_not_lowered_has_no_stages() -> None:
    found = seen(tg.dot(tg.input("x", (256, 256)), tg.input("y", (256, 256))))
    assert "stages" not in found and found["reduced, along"] == size(256)
