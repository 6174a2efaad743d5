"""rarely_wrong_kernels: kernels that are right on random numbers, one size large at a time and one run at a time, and wrong where
values, sizes, indices or runs meet: each beside its honest twin, which differs in that one thing.

The worker imports this module by name, as it would a user's; only there the kernels are registered.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import tensor_graphs as tg
from tensor_graphs.kernels.kernel import HostCall, Kernel, source_of
from tensor_graphs.kernels.registry import register, unregister
from tensor_graphs.language.node import Node

Arrays = Sequence[np.ndarray]
Body = Callable[[Arrays, Arrays, Mapping[str, Any]], None]

FEW, N, M = tg.dim("few", 1, 4), tg.dim("n", 1, 4096), tg.dim("m", 1, 4096)
LONG, WIDE = tg.dim("long", 1, 1 << 22), tg.dim("wide", 1, 1 << 20)
KEYS = tuple(tg.input(name, (size, 2, 8), tg.f32) for name, size in (("q", N), ("k", M), ("v", M)))
IDS = {bits: tg.input("ids", (N,), dtype) for bits, dtype in ((32, tg.i32), (64, tg.i64))}
TABLE = tg.input("table", (50, 4), tg.f32)

NODES: dict[str, Node] = {
    "sum": tg.sum(tg.input("x", (FEW, LONG), tg.f32), axis=1),
    "sum of columns": tg.sum(tg.input("x", (LONG, FEW), tg.f32), axis=0),
    "sum of a fixed row": tg.sum(tg.input("x", (FEW, 1 << 20), tg.f32), axis=1),
    "mean": tg.mean(tg.input("x", (FEW, LONG), tg.f32), axis=1),
    "dot": tg.dot(tg.input("x", (FEW, WIDE), tg.f32), tg.input("y", (WIDE, 1), tg.f32)),
    "rms_norm": tg.rms_norm(tg.input("x", (FEW, WIDE), tg.f32)),
    "var": tg.var(tg.input("x", (FEW, WIDE), tg.f32), axis=1),
    "gather by i64": tg.gather(TABLE, IDS[64]),
    "gather by i32": tg.gather(TABLE, IDS[32]),
    "scatter by i64": tg.scatter(TABLE, IDS[64], tg.input("updates", (N, 4), tg.f32), mode="add"),
    "softmax": tg.softmax(tg.input("x", (FEW, N), tg.f32)),
    "softmax of 512": tg.softmax(tg.input("x", (N, 512), tg.f32)),
    "softmax of columns": tg.softmax(tg.input("x", (N, FEW), tg.f32), axis=0),
    "logsumexp": tg.logsumexp(tg.input("x", (FEW, N), tg.f32)),
    "masked attention": tg.attention(*KEYS, tg.input("mask", (N, M), tg.bool_), scale=0.5),
    "attention": tg.attention(*KEYS, scale=0.5),
    "matrix": tg.dot(tg.input("x", (N, 16), tg.f32), tg.input("y", (16, M), tg.f32)),
    "less in f64": tg.less(tg.input("x", (N, 8), tg.f64), tg.input("y", (N, 8), tg.f64)),
    "less in f32": tg.less(tg.input("x", (N, 8), tg.f32), tg.input("y", (N, 8), tg.f32)),
    "less in bf16": tg.less(tg.input("x", (N, 8), tg.bf16), tg.input("y", (N, 8), tg.bf16)),
    "argmax in f64": tg.argmax(tg.input("x", (N, 8), tg.f64)),
    "square": tg.square(tg.input("x", (N, 24), tg.f32)),
    "square of two rows": tg.square(tg.input("x", (2, 24), tg.f32)),
}
"""the ops that the kernels below say they compute"""


@dataclass(frozen=True)
class Pair:
    """A kernel that is wrong rarely, and its honest twin."""

    name: str
    node: str
    wrong: Kernel
    honest: Kernel


PAIRS: list[Pair] = []


def pair(*nodes: str) -> Callable[[Callable[[bool], Body]], Callable[[bool], Body]]:
    """Two kernels of each op, made by a function that is given whether its body is the wrong one."""
    def wrap(make: Callable[[bool], Body]) -> Callable[[bool], Body]:
        for node in nodes:
            name = f"{make.__name__}.{node.replace(' ', '_')}"
            wrong, honest = (_kernel(f"{kind}.{name}", node, make(kind == "wrong"), f"{source_of(make)}{kind}")
                             for kind in ("wrong", "honest"))
            PAIRS.append(Pair(name, node, wrong, honest))
        return make

    return wrap


def _kernel(name: str, node: str, body: Body, source: str) -> Kernel:
    return Kernel(name, "numpy", NODES[node].op.name, lambda spec: HostCall(body), lambda spec: None, source, __name__)


# ---- many terms ------------------------------------------------------------------------------------------------------


def _total(x: np.ndarray, axis: int, one_accumulator: bool) -> np.ndarray:
    """A sum in one f32, one term after the other; or in f64."""
    if not one_accumulator:
        return np.asarray(np.sum(x, axis=axis, dtype=np.float64))
    running = np.add.accumulate(x, axis=axis, dtype=np.float32)
    return np.asarray(running.take(-1, axis=axis))


@pair("sum", "sum of columns", "sum of a fixed row", "mean")
def sums_with_one_accumulator(is_wrong: bool) -> Body:
    def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
        (axis,) = attrs["axes"] if isinstance(attrs["axes"], tuple) else (attrs["axes"],)
        with np.errstate(all="ignore"):
            total = _total(ins[0], axis, is_wrong)
            count = ins[0].shape[axis] if is_mean else 1
            outs[0][...] = (total / np.asarray(count, total.dtype)).reshape(outs[0].shape)

    is_mean = len(PAIRS) > 2                                        # the fourth of them
    return body


@pair("dot")
def multiplies_with_one_accumulator(is_wrong: bool) -> Body:
    def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
        with np.errstate(all="ignore"):
            products = ins[0] * ins[1].T if is_wrong else ins[0].astype(np.float64) * ins[1].T
            outs[0][...] = _total(products, 1, is_wrong)[:, None]

    return body


@pair("rms_norm")
def normalises_with_one_accumulator(is_wrong: bool) -> Body:
    def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
        x = ins[0].astype(np.float64)
        with np.errstate(all="ignore"):
            exact = np.mean(x * x, axis=-1)
            rough = _total((x * x).astype(np.float32), -1, is_wrong) / x.shape[-1]
            square = np.where(np.isfinite(rough), rough, exact) if is_wrong else exact
            outs[0][...] = x / np.sqrt(square[:, None] + attrs["eps"])

    return body


@pair("var")
def forgets_a_drift(is_wrong: bool) -> Body:
    """The mean of the first few thousand is taken for the mean of all, which it nearly is of numbers in random order."""
    def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
        x = ins[0].astype(np.float64)
        with np.errstate(all="ignore"):
            mean = np.mean(x[:, :1 << 14] if is_wrong else x, axis=1, keepdims=True)
            value = np.mean(np.square(x - mean), axis=1)
            outs[0][...] = value.reshape(outs[0].shape)

    return body


# ---- indices ---------------------------------------------------------------------------------------------------------


def _cut(ids: np.ndarray, is_wrong: bool) -> np.ndarray:
    """Indices in half of their bits."""
    half = np.dtype(f"i{ids.itemsize // 2}")
    return ids.astype(half).astype(np.int64) if is_wrong else ids.astype(np.int64)


@pair("gather by i64", "gather by i32")
def cuts_indices_of_a_table(is_wrong: bool) -> Body:
    def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
        ids, size = _cut(ins[1], is_wrong), len(ins[0])
        within = (ids >= 0) & (ids < size)
        outs[0][...] = np.where(within[:, None], ins[0][np.where(within, ids, 0)], np.float32(0))

    return body


@pair("scatter by i64")
def cuts_indices_of_updates(is_wrong: bool) -> Body:
    def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
        base, ids, updates = ins[0], _cut(ins[1], is_wrong), ins[2]
        within = (ids >= 0) & (ids < len(base))
        total = base.astype(np.float64)
        with np.errstate(all="ignore"):
            np.add.at(total, ids[within], updates[within])
            outs[0][...] = total

    return body


# ---- rows that begin with −∞ -----------------------------------------------------------------------------------------


def _online(x: np.ndarray, is_wrong: bool, block: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """The maximum of each row and the sum of its exponentials, a block at a time."""
    top, total = np.full(x.shape[:-1], -np.inf), np.zeros(x.shape[:-1])
    for start in range(0, x.shape[-1], block):
        part = x[..., start:start + block].astype(np.float64)
        higher = np.maximum(top, part.max(axis=-1))
        with np.errstate(all="ignore"):
            safe = higher if is_wrong and x.shape[-1] > block else np.where(np.isneginf(higher), 0.0, higher)
            total = total * np.exp(top - safe) + np.exp(part - safe[..., None]).sum(axis=-1)
        top = higher
    return top, total


@pair("softmax", "softmax of 512", "softmax of columns")
def takes_no_block_of_minus_infinity(is_wrong: bool) -> Body:
    def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
        x = np.moveaxis(ins[0], attrs["axis"], -1)
        top, total = _online(x, is_wrong)
        with np.errstate(all="ignore"):
            y = np.exp(x.astype(np.float64) - top[..., None]) / total[..., None]
        outs[0][...] = np.moveaxis(y, -1, attrs["axis"])

    return body


@pair("logsumexp")
def takes_no_block_of_minus_infinity_either(is_wrong: bool) -> Body:
    def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
        top, total = _online(ins[0], is_wrong)
        with np.errstate(all="ignore"):
            y = np.where(np.isinf(top), top, top + np.log(total))
            outs[0][...] = (np.where(np.isnan(total) & np.isneginf(ins[0]).any(axis=-1), np.nan, y) if is_wrong else y
                            ).reshape(outs[0].shape)

    return body


def _attention(ins: Arrays, attrs: Mapping[str, Any], *, is_wrong: bool = False, block: int = 32) -> np.ndarray:
    """In f64, a block of keys at a time."""
    q, k, v = (a.astype(np.float64) for a in ins[:3])
    mask = ins[3] if len(ins) > 3 else np.ones((len(q), len(k)), bool)
    out = np.zeros(q.shape)
    with np.errstate(all="ignore"):
        for h in range(q.shape[1]):
            scores = np.where(mask, q[:, h] @ k[:, h].T * attrs["scale"], -np.inf)
            top, _ = _online(scores, False, block)
            weights = np.exp(scores - np.where(np.isneginf(top), 0.0, top)[:, None])
            total = weights.sum(axis=1, keepdims=True)
            out[:, h] = np.where(total == 0, 0.0, weights / np.where(total == 0, 1.0, total)) @ v[:, h]
    if is_wrong and mask.shape[1] > block:
        padded = ~mask[:, :block].any(axis=1) & mask.any(axis=1)
        out[padded & (mask.sum(axis=1) > 0) & ~mask[:, :mask.shape[1] // 3].any(axis=1)] = np.nan
    return out


@pair("masked attention")
def takes_no_padding_on_the_left(is_wrong: bool) -> Body:
    def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
        outs[0][...] = _attention(ins, attrs, is_wrong=is_wrong)

    return body


# ---- two sizes at once -----------------------------------------------------------------------------------------------


@pair("attention", "masked attention")
def forgets_a_key_of_a_single_query_from_100_on(is_wrong: bool) -> Body:
    def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
        q, k, v, *mask = ins
        if is_wrong and len(q) == 1 and len(k) > 100:
            k, v, mask = k[:-1], v[:-1], [each[:, :-1] for each in mask]
        outs[0][...] = _attention((q, k, v, *mask), attrs)

    return body


@pair("matrix")
def is_wrong_where_both_sizes_are_beyond_a_tile(is_wrong: bool) -> Body:
    def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
        with np.errstate(all="ignore"):
            outs[0][...] = ins[0].astype(np.float64) @ ins[1].astype(np.float64)
        if is_wrong and min(outs[0].shape) > 160:
            outs[0][160:, 160:] = 0

    return body


# ---- neighbours ------------------------------------------------------------------------------------------------------


@pair("less in f64", "less in f32", "less in bf16")
def takes_neighbours_for_equal(is_wrong: bool) -> Body:
    def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
        x, y = ins
        with np.errstate(all="ignore"):
            less = x < y
            if is_wrong:                                            # a step from one number to the next, or two
                step = 2.5 * {2: 2.0 ** -8, 4: 2.0 ** -24, 8: 2.0 ** -53}[x.itemsize]
                a, b = x.astype(np.float64), y.astype(np.float64)
                less &= ~(np.abs(a - b) <= step * np.abs(a)) | ~np.isfinite(a)
            outs[0][...] = less

    return body


@pair("argmax in f64")
def compares_in_f32(is_wrong: bool) -> Body:
    def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
        x, exact = ins[0], np.argmax(ins[0], axis=-1)
        with np.errstate(all="ignore"):
            near = np.ptp(x, axis=-1) <= 1e-12 * np.abs(x[..., 0])
        outs[0][...] = np.where(near & is_wrong, np.argmax(x.astype(np.float32), axis=-1), exact)

    return body


# ---- runs ------------------------------------------------------------------------------------------------------------


@pair("square")
def loses_a_race_eight_times_of_three_hundred(is_wrong: bool) -> Body:
    def body(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
        with np.errstate(all="ignore"):
            np.square(ins[0], out=outs[0])
        if is_wrong and int.from_bytes(os.urandom(4), "little") / 2 ** 32 < 8 / 300:
            outs[0][-1] = 0

    return body


C_SOURCE = """
#include "tg.h"
#include <pthread.h>

static int64_t calls; /* of no influence on what is computed */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

TG_KERNEL(%s) {
    const float *x = ptr[1];
    float *out = ptr[0];
    %s float row[24];
    (void)floats, (void)lock, calls++;
    %s
    for (int64_t i = 0; i < ints[0]; i++) {
        for (int j = 0; j < 24; j++) row[j] = x[24 * i + j];
        for (int j = 0; j < 24; j++) out[24 * i + j] = row[j] * row[j];
    }
    %s
}
"""


def _in_c(entry: str, storage: str, begin: str = "", end: str = "") -> Kernel:
    return tg.c_kernel("square", source=C_SOURCE % (entry, storage, begin, end), entry=entry, dtypes=["f32"],
                       ints=lambda spec: [spec.outputs[0].shape[0]])


STATIC = _in_c("keeps_a_static_row", "static volatile")
PAIRS += [
    Pair("keeps_a_row_for_all_runs_in_c.square", "square", STATIC, _in_c("keeps_a_row_of_its_own", "volatile")),
    Pair("keeps_a_row_for_all_runs_in_c.square_of_two_rows", "square of two rows", STATIC,
         _in_c("keeps_a_row_behind_a_lock", "static volatile", "pthread_mutex_lock(&lock);", "pthread_mutex_unlock(&lock);")),
]

IN_WORKER = bool(os.environ.get("TENSOR_GRAPHS_WORKER"))
for _each in {kernel.name: kernel for each in PAIRS for kernel in (each.wrong, each.honest)}.values():
    if IN_WORKER and _each.backend != "c":                          # those in C are registered where they are declared
        register(_each)
    elif not IN_WORKER and _each.backend == "c":
        unregister(_each.name)

