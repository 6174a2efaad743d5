"""part_kernels: kernels of graphs that tests of the compiler register: a right one, and one that forgets a factor."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import tensor_graphs as tg
from tensor_graphs.kernels.kernel import HostCall, Kernel, source_of
from tensor_graphs.kernels.registry import register, unregister
from tensor_graphs.language.anonymous_composite import part_of

Arrays = Sequence[np.ndarray]


def norm_linear() -> tg.Graph:
    """linear(rms_norm(x, g), w), in other words."""
    n, k, m = tg.dim("n", 1, 4096), tg.dim("k", 1, 65536), tg.dim("m", 1, 65536)
    x, g, w = tg.input("x", (n, k)), tg.input("g", (k,)), tg.input("w", (m, k))
    squares = tg.sum(x * x, axis=-1, keepdims=True) * tg.reciprocal(tg.constant(k, tg.f32))
    return tg.graph(tg.linear((x * g) * tg.reciprocal(tg.sqrt(squares + 1e-6)), w))


PART = part_of(norm_linear())


def fused(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x, g, w = (a.astype(np.float64) for a in ins)
    with np.errstate(all="ignore"):
        inverse = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6)
        outs[0][...] = (x * inverse * g) @ w.T


def forgetful(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x, g, w = ins
    with np.errstate(all="ignore"):
        outs[0][...] = (x * g) @ w.T


def _kernel(function: Any) -> Kernel:
    return Kernel(f"trial.{function.__name__}", "numpy", PART.name, lambda spec: HostCall(function), lambda spec: None,
                  source_of(function), __name__, composite=PART)


def sum_norm() -> tg.Graph:
    """s = x + y and rms_norm(s, g)."""
    n, k = tg.dim("n", 1, 4096), tg.dim("k", 1, 65536)
    x, y, g = tg.input("x", (n, k)), tg.input("y", (n, k)), tg.input("g", (k,))
    return tg.graph({"sum": x + y, "out": tg.rms_norm(x + y, g)})


def add_norm(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x, y, g = (a.astype(np.float64) for a in ins)
    with np.errstate(all="ignore"):
        outs[0][...] = x + y
        outs[1][...] = (x + y) / np.sqrt(np.mean((x + y) ** 2, axis=-1, keepdims=True) + 1e-6) * g


BOTH = part_of(sum_norm())
ADD_NORM = Kernel("trial.add_norm", "numpy", BOTH.name, lambda spec: HostCall(add_norm), lambda spec: None, source_of(add_norm),
                  __name__, composite=BOTH)
FUSED, FORGETFUL = _kernel(fused), _kernel(forgetful)


def declare_add_relu() -> None:
    """relu(x + y), in C."""
    n = tg.dim("n", 1, 4096)
    x, y = tg.input("x", (n,)), tg.input("y", (n,))
    source = """#include "vec.h"
    TG_KERNEL(add_relu) {
        (void)floats;
        for (int64_t i = 0; i < ints[0]; i++) {
            float sum = ((const float *)ptr[1])[i] + ((const float *)ptr[2])[i];
            ((float *)ptr[0])[i] = sum > 0 || sum != sum ? sum : 0.0f;
        }
    }"""
    tg.c_kernel(tg.graph(tg.relu(x + y)), source=source, entry="add_relu", dtypes=["f32"], ints=lambda spec: spec.inputs[0].shape)


def naive_softmax(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    """Without the largest element subtracted: exp overflows beyond 88."""
    with np.errstate(all="ignore"):
        raised = np.exp(ins[0])
        outs[0][...] = raised / raised.sum(attrs["axis"], keepdims=True)


def _of_softmax(name: str, assuming: tuple[str, ...]) -> Kernel:
    return Kernel(f"trial.{name}", "numpy", "softmax", lambda spec: HostCall(naive_softmax), lambda spec: None,
                  source_of(naive_softmax), __name__, assuming=assuming)


NAIVE, CAREFUL = _of_softmax("naive_softmax", ()), _of_softmax("assuming_softmax", ("no overflow",))


@contextmanager
def registered(*kernels: Kernel) -> Iterator[None]:
    for kernel in kernels:
        register(kernel)
    try:
        yield
    finally:
        for kernel in kernels:
            unregister(kernel.name)


if os.environ.get("TENSOR_GRAPHS_WORKER"):
    for each in (FUSED, FORGETFUL, ADD_NORM, NAIVE, CAREFUL):
        register(each)
    declare_add_relu()
