"""fewer_bits_kernels: products of f32 that round their operands first, to as many bits of fraction as their names say; as kernels
of the plain product, and of the one of operands rounded to TF32.

The worker imports this module by name, as it would a user's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import tensor_graphs as tg
from tensor_graphs.kernels.kernel import HostCall, Kernel, source_of
from tensor_graphs.language.composite import LIBRARY
from tensor_graphs.language.node import Node

Arrays = Sequence[np.ndarray]

N = tg.dim("n", 1, 96)

OPERANDS: dict[str, tuple[str, Node, Node]] = {
    "linear": ("linear", tg.input("x", (N, 96)), tg.input("w", (40, 96))),
    "linear of 1": ("linear", tg.input("x", (N, 128)), tg.input("w", (1, 128))),
    "dot": ("dot", tg.input("x", (N, 24)), tg.input("y", (24, 3))),
    "dot of a column": ("dot", tg.input("x", (N, 8, 128)), tg.input("y", (N, 128, 1))),
}

PRODUCTS = {name: LIBRARY[op](x, y) for name, (op, x, y) in OPERANDS.items()}

ROUNDED = {name: LIBRARY[f"rounded_{op}"](x, y, to="tf32") for name, (op, x, y) in OPERANDS.items()}

KERNELS: list[Kernel] = []


def rounded(x: np.ndarray, bits: int) -> np.ndarray:
    """To the nearest with so many bits of fraction, ties to even; what has no such neighbour stays."""
    words, cut = np.ascontiguousarray(x).view(np.uint32).astype(np.uint64), 23 - bits
    made = (words + (1 << cut - 1) - 1 + (words >> cut & 1)) >> cut << cut
    near: np.ndarray = (made & 0xFFFFFFFF).astype(np.uint32).view(np.float32)
    return np.where(np.isfinite(x) & np.isfinite(near), near, x)


def cut_off(x: np.ndarray, bits: int) -> np.ndarray:
    words = np.ascontiguousarray(x).view(np.uint32) >> np.uint32(23 - bits) << np.uint32(23 - bits)
    return np.where(np.isfinite(x), words.view(np.float32), x)


def product(x: np.ndarray, y: np.ndarray, op: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.matmul(x.astype(np.float64), (y.T if op == "linear" else y).astype(np.float64))


def of_bits(name: str, op: str, of: Callable[[np.ndarray], np.ndarray]) -> None:
    def multiply(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
        with np.errstate(all="ignore"):
            outs[0][...] = product(of(ins[0]), of(ins[1]), op)

    kernel = Kernel(f"fewer.{op}_{name}", "numpy", op, lambda spec: HostCall(multiply), lambda spec: None,
                    f"{name} of {op}\n{source_of(multiply)}{source_of(rounded)}{source_of(cut_off)}", __name__)
    KERNELS.extend((kernel, replace(kernel, name=f"fewer.rounded_{op}_{name}", op=f"rounded_{op}")))


def half_wrong(op: str) -> None:
    """Right but for every 7th row, which is off by 1 in 100: a TF32 kernel that is none."""
    def multiply(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
        with np.errstate(all="ignore"):
            outs[0][...] = product(ins[0], ins[1], op)
            outs[0][::7] *= np.float32(1.01)

    KERNELS.append(Kernel(f"fewer.rounded_{op}_half_wrong", "numpy", f"rounded_{op}", lambda spec: HostCall(multiply),
                          lambda spec: None, f"half wrong {op}\n{source_of(multiply)}", __name__))


for each in ("linear", "dot"):
    of_bits("rounded_to_10", each, lambda x: rounded(x, 10))
    of_bits("cut_to_10", each, lambda x: cut_off(x, 10))
    of_bits("rounded_to_7", each, lambda x: rounded(x, 7))
    half_wrong(each)

if os.environ.get("TENSOR_GRAPHS_WORKER"):                          # known only where they are judged
    from tensor_graphs.kernels.registry import register

    for kernel in KERNELS:
        register(kernel)
