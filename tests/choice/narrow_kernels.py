"""narrow_kernels: kernels of somebody's own for values of bf16, for a graph and for a composite, which round once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import tensor_graphs as tg
from tensor_graphs.kernels.kernel import HostCall, Kernel, source_of
from tensor_graphs.kernels.registry import register
from tensor_graphs.language.anonymous_composite import part_of

Arrays = Sequence[np.ndarray]

N = tg.dim("n", 1, 64)
WIDE, OUT = 32, 48


def normed(x: tg.Node) -> tg.Node:
    """Four values of bf16 in a row."""
    gain, weight = tg.parameter("gain", (WIDE,), tg.bf16), tg.parameter("weight", (OUT, WIDE), tg.bf16)
    return tg.tanh(tg.linear(tg.rms_norm(x, gain), weight) * 2.0)


def rows() -> tg.Node:
    return tg.input("x", (N, WIDE), tg.bf16)


@tg.composite
def leaning(x: tg.Node, *, by: float = 1.5) -> tg.Node:
    """x · sigmoid(by · x) + x."""
    return x * tg.sigmoid(x * by) + x


PART = part_of(tg.graph(normed(rows())))


def run_normed(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x, gain, weight = (i.astype(np.float32) for i in ins)
    with np.errstate(all="ignore"):
        inverse = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(1e-6))
        outs[0][...] = np.tanh((x * inverse * gain) @ weight.T * 2).astype(outs[0].dtype)


def run_leaning(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x = ins[0].astype(np.float32)
    with np.errstate(all="ignore"):
        outs[0][...] = (x / (1 + np.exp(-x * np.float32(attrs["by"]))) + x).astype(outs[0].dtype)


def _kernel(function: Any, composite: Any) -> Kernel:
    return Kernel(f"numpy.{function.__name__}", "numpy", composite.name, lambda spec: HostCall(function), lambda spec: None,
                  source_of(function), __name__, composite=composite)


NORMED, LEANING = _kernel(run_normed, PART), _kernel(run_leaning, leaning)

if os.environ.get("TENSOR_GRAPHS_WORKER"):
    for each in (NORMED, LEANING):
        register(each)
