"""careless_kernels: kernels that are right on everyday numbers and sizes, and wrong on the values or sizes that are named.

The worker imports this module by name, as it would a user's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import tensor_graphs as tg
from tensor_graphs.kernels.kernel import HostCall, Kernel, source_of
from tensor_graphs.kernels.registry import register
from tensor_graphs.language.node import Node

Arrays = Sequence[np.ndarray]
Body = Callable[[Arrays, Arrays, Mapping[str, Any]], None]

N = tg.dim("n", 1, 96)
X = tg.input("x", (N, 24), tg.f32)
ROWS = {"softmax": tg.softmax(X), "relu": tg.relu(X), "argmax": tg.argmax(X), "rms_norm": tg.rms_norm(X)}

CARELESS: dict[str, tuple[Kernel, Node, str]] = {}
"""name -> the kernel, what it says it computes, and the words at which the judge must find it out"""


def careless(op: str, where: str) -> Callable[[Body], Body]:
    def wrap(body: Body) -> Body:
        kernel = Kernel(f"careless.{body.__name__}", "numpy", op, lambda spec: HostCall(body), lambda spec: None, source_of(body),
                        __name__)
        CARELESS[body.__name__] = kernel, ROWS[op], where
        return body

    return wrap


@careless("softmax", "large values")
def does_not_subtract_a_large_maximum(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    with np.errstate(all="ignore"):
        top = np.max(ins[0], axis=-1, keepdims=True)
        e = np.exp(ins[0] - np.where((top > 1000) & np.isfinite(top), 0, top))
        outs[0][...] = e / e.sum(axis=-1, keepdims=True)


@careless("argmax", "n=33 (large values)")
def takes_the_last_of_equal_maxima(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x = ins[0]
    backwards = np.argmax(x[:, ::-1], axis=-1)
    outs[0][...] = np.where(np.isnan(x).any(axis=-1), np.argmax(x, axis=-1), x.shape[-1] - 1 - backwards)


@careless("rms_norm", "wide values")
def squares_in_a_narrow_range(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x = ins[0].astype(np.float64)
    squares = np.where((np.abs(x) > 2e4) & np.isfinite(x), 4e8, x * x)
    outs[0][...] = x / np.sqrt(np.mean(squares, axis=-1, keepdims=True) + attrs["eps"])


@careless("relu", "n=65 (equal values)")
def forgets_what_lies_behind_a_tile_of_64(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    rows = ins[0].shape[0]
    outs[0][...] = np.maximum(ins[0], 0)
    if rows == 65:
        outs[0][64:] = 0


if os.environ.get("TENSOR_GRAPHS_WORKER"):                          # known only where they are judged
    for each, _, _ in CARELESS.values():
        register(each)
