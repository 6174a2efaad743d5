"""Kernels that take operands with gaps between their rows are judged on such operands: who ignores the gaps does not pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.kernel import HostCall, Kernel
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.measure.judge import Judge

Array = np.ndarray
NODE = tg.add(tg.input("x", (tg.dim("n", 1, 512), 24), tg.f32), tg.input("y", (tg.dim("n", 1, 512), 24), tg.f32))


def lying(x: Array, strides: Sequence[int]) -> Array:
    """The memory of x as if it lay with other strides."""
    return np.lib.stride_tricks.as_strided(x, x.shape, strides, writeable=False)


def dense(x: Array) -> Array:
    return lying(x, [24 * x.itemsize, x.itemsize])


BODIES: dict[str, Callable[[Array, Array], Array]] = {
    "right": lambda x, y: x + y,
    "no gaps": lambda x, y: dense(x) + dense(y),
    "no gaps in the second": lambda x, y: x + dense(y),
    "one operand's gaps for both": lambda x, y: x + lying(y, x.strides),
    "gaps in both or in none": lambda x, y: x + y if x.strides[0] > 96 and y.strides[0] > 96 else dense(x) + dense(y),
    "a row for all as rows": lambda x, y: x + (y if y.strides[0] else dense(y)),
    "one number for all as a row": lambda x, y: (x if x.strides[1] else lying(x, [0, 4])) + y,
    "right for nine rows": lambda x, y: np.concatenate([x[:9] + y[:9], dense(x)[9:] + dense(y)[9:]]),
}


def kernel_of(name: str) -> Kernel:
    def run(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
        outs[0][...] = BODIES[name](*ins)

    return Kernel(f"gaps.{name}", "numpy", "add", lambda spec: HostCall(run), lambda spec: None, name, __name__, contiguous=True,
                  strided=lambda spec, strides: HostCall(run))


if os.environ.get("TENSOR_GRAPHS_WORKER"):
    from tensor_graphs.kernels.registry import register

    for _name in BODIES:
        register(kernel_of(_name))


@pytest.mark.parametrize("name", BODIES)
def test_a_kernel_that_takes_gaps_must_be_right_about_them(judge: Judge, name: str) -> None:
    verdict = judge.examine(kernel_of(name), signature_of(NODE), {"n": 20})
    assert (verdict.status == "PASSED") == (name == "right"), verdict.log
    if name == "right":
        assert {"gaps", "repeated", "turned", "uniform"} <= set(verdict.covered["layouts"])
