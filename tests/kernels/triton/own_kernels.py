"""own_kernels: kernels in Triton as a user writes them, right and wrong ones. Imported where there is a GPU: it imports triton."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import triton
import triton.language as tl

import tensor_graphs as tg
from tensor_graphs.kernels.registry import unregister

N = tg.dim("n", 0, 4096)


def gated() -> tg.Graph:
    x, y = (tg.input(name, (N, 96), tg.bf16) for name in "xy")
    return tg.graph(tg.silu(x) * y)


@triton.jit
def gate_program(to, x, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(x + at, mask=at < count, other=0.0).to(tl.float32)
    silu = (gate / (1.0 + tl.exp(-gate))).to(to.dtype.element_ty).to(tl.float32)
    tl.store(to + at, (silu * tl.load(y + at, mask=at < count, other=0.0).to(tl.float32)).to(to.dtype.element_ty), mask=at < count)


def launch(outs: Sequence[Any], ins: Sequence[Any], count: int) -> None:
    if count:
        gate_program[(triton.cdiv(count, 1024),)](outs[0], *ins, count, BLOCK=1024)


@tg.kernel(gated(), backend="triton", contiguous=True)
def gate(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
    launch(outs, ins, outs[0].numel())


@tg.kernel(gated(), backend="triton", contiguous=True)
def gate_without_its_end(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
    launch(outs, ins, outs[0].numel() // 1024 * 1024)


@tg.kernel(gated(), backend="triton", contiguous=True)
def gate_that_asks(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
    """A kernel that waits for the device, which cannot be captured; it is called each time."""
    if not outs[0].numel() or float(ins[0][0, 0]) == 0.0:
        outs[0].zero_()
    launch(outs, ins, outs[0].numel())


MADE = (gate, gate_without_its_end, gate_that_asks)
if not os.environ.get("TENSOR_GRAPHS_WORKER"):                      # a test declares them, for as long as it runs
    for _each in MADE:
        unregister(_each.name)
