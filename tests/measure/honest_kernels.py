"""honest_kernels: kernels that are right and whose times are true, though each has something that might raise an alarm."""

from __future__ import annotations

import concurrent.futures
import contextvars
import functools
import gc
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.measure.wrong_kernels import HONEST, Arrays, honest, right, softmax


@honest("relu")
def takes_five_milliseconds(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    time.sleep(0.005)
    right(outs, ins, attrs)


@honest("relu")
def takes_a_millisecond_of_work(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    end = time.perf_counter() + 1e-3
    while time.perf_counter() < end:
        pass
    right(outs, ins, attrs)


@honest("relu")
def is_sometimes_ten_times_as_slow(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    time.sleep(0.003 if random.random() < 0.1 else 0.0003)
    right(outs, ins, attrs)


@honest("relu")
def takes_long_over_its_first_call(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    _compiled(ins[0].shape)
    right(outs, ins, attrs)


@functools.cache
def _compiled(shape: tuple[int, ...]) -> None:
    time.sleep(0.05)


@honest("relu")
def becomes_faster_with_use(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    _uses[0] += 1
    time.sleep(0.002 / _uses[0])
    right(outs, ins, attrs)


_uses = [0]


@honest("relu")
def takes_longer_for_positive_numbers(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    time.sleep(1e-6 * int((ins[0] > 0).sum()))
    right(outs, ins, attrs)


@honest("softmax")
def is_full_of_denormals(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    tiny = np.full(4096, 1e-40, np.float32)
    for _ in range(8):
        tiny *= np.float32(0.999)
    outs[0][...] = softmax(ins[0]) + np.float64(tiny[0]) * 0


@honest("relu")
def flushes_denormal_numbers(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = np.where(ins[0] < np.finfo(np.float32).smallest_normal, 0, ins[0])
    outs[0][np.isnan(ins[0])] = np.nan


@honest("relu")
def goes_element_by_element(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x, y = ins[0], outs[0]
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            v = float(x[i, j])
            y[i, j] = v if v > 0 or v != v else 0.0


@honest("relu")
def writes_its_output_twice(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = 1e9
    right(outs, ins, attrs)


@honest("relu")
def works_backwards(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    for i in reversed(range(ins[0].shape[0])):
        np.maximum(ins[0][i], 0, out=outs[0][i])


@honest("relu")
def goes_through_a_copy_in_another_order(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = np.maximum(np.asfortranarray(ins[0]), 0)


@honest("relu")
def allocates_much(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    scratch = np.empty(8 << 20, np.uint8)
    scratch[::4096] = 1
    right(outs, ins, attrs)


@honest("relu")
def collects_garbage(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    gc.collect(0)
    right(outs, ins, attrs)


@honest("relu")
def raises_and_catches(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    try:
        raise KeyError("nothing")
    except KeyError:
        right(outs, ins, attrs)


@honest("relu")
def warns(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    warnings.warn("this is only a test", stacklevel=1)
    right(outs, ins, attrs)


@honest("relu")
def writes_a_file_of_its_own(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"scratch")
    right(outs, ins, attrs)


@honest("relu")
def starts_a_process_and_waits(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    if threading.active_count() >= 1 and not hasattr(starts_a_process_and_waits, "done"):
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        starts_a_process_and_waits.done = True  # type: ignore[attr-defined]
    right(outs, ins, attrs)


@honest("sum")
def keeps_a_pool_of_threads(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    half = ins[0].shape[1] // 2
    columns = (slice(0, half), slice(half, None))
    with np.errstate(all="ignore"):
        parts = _pool().map(lambda c: ins[0][:, c].sum(axis=0, dtype=np.float64), columns)
        for c, part in zip(columns, parts, strict=True):
            outs[0][c] = part


@functools.cache
def _pool() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(2)


@honest("relu")
def keeps_a_thread_that_sleeps(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    _sleeper()
    right(outs, ins, attrs)


@functools.cache
def _sleeper() -> None:
    threading.Thread(target=threading.Event().wait, daemon=True).start()


@honest("relu")
def uses_a_context_variable(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    token = _variable.set(1)
    right(outs, ins, attrs)
    _variable.reset(token)


_variable: contextvars.ContextVar[int] = contextvars.ContextVar("_variable")


@honest("relu")
def holds_its_operands_weakly(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    _seen.append(weakref.ref(ins[0]))
    del _seen[:-4]
    right(outs, ins, attrs)


_seen: list[Any] = []


@honest("relu")
def counts_its_calls(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    _counted[0] += 1
    right(outs, ins, attrs)


_counted = [0]


@honest("relu")
def sets_something_and_puts_it_back(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    before, folder = sys.getrecursionlimit(), os.getcwd()
    sys.setrecursionlimit(before + 1000)
    os.environ["TRIAL_FLAG"] = "1"
    try:
        os.chdir(tempfile.gettempdir())
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            right(outs, ins, attrs)
    finally:
        sys.setrecursionlimit(before)
        os.chdir(folder)
        del os.environ["TRIAL_FLAG"]


@honest("relu")
def draws_from_the_global_generators(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)
    outs[0][...] += np.float32(random.random() * 0 + np.random.random() * 0)


@honest("softmax")
def needs_no_largest_value_where_all_are_small(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x = ins[0].astype(np.float64)
    with np.errstate(all="ignore"):
        small = np.isfinite(x).all() and np.abs(x).max(initial=0.0) < 80
        e = np.exp(x)
        outs[0][...] = e / e.sum(axis=-1, keepdims=True) if small else softmax(x)


@honest("softmax")
def works_in_blocks(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x = ins[0].astype(np.float64)
    with np.errstate(all="ignore"):
        largest = np.full((*x.shape[:-1], 1), -np.inf)
        for block in np.array_split(x, 3, axis=-1):
            largest = np.maximum(largest, block.max(axis=-1, keepdims=True, initial=-np.inf))
        e = np.exp(x - largest)
        outs[0][...] = e / sum(b.sum(axis=-1, keepdims=True) for b in np.array_split(e, 3, axis=-1))


@honest("sum")
def sums_in_a_tree(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    rows = [r.astype(np.float64) for r in ins[0]]
    with np.errstate(all="ignore"):
        while len(rows) > 1:
            rows = [rows[i] + rows[i + 1] if i + 1 < len(rows) else rows[i] for i in range(0, len(rows), 2)]
    outs[0][...] = rows[0]


@honest("sum")
def sums_with_a_correction(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    """Kahan's: accurate where the numbers are finite; elsewhere the correction is NaN, so the plain sum says it."""
    with np.errstate(all="ignore"):
        total = np.zeros(ins[0].shape[1], np.float32)
        lost = np.zeros_like(total)
        for row in ins[0]:
            y = row - lost
            t = total + y
            lost = (t - total) - y
            total = t
        plain = ins[0].sum(axis=0, dtype=np.float64)
        outs[0][...] = np.where(np.isfinite(plain), total, plain)


@honest("dot")
def multiplies_the_other_way_round(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    with np.errstate(all="ignore"):
        outs[0][...] = (ins[1].T @ ins[0].T).T


@honest("linear")
def keeps_a_table_for_each_shape(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    order = _order(ins[0].shape[-1])
    with np.errstate(all="ignore"):
        outs[0][...] = ins[0][:, order].astype(np.float64) @ ins[1][:, order].T.astype(np.float64)


@functools.cache
def _order(size: int) -> np.ndarray:
    time.sleep(0.001)
    return np.argsort(np.random.default_rng(0).random(size))


@honest("square")
def multiplies_in_place(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = ins[0]
    with np.errstate(all="ignore"):
        np.multiply(outs[0], outs[0], out=outs[0])


@honest("rms_norm")
def scales_before_it_squares(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x = ins[0].astype(np.longdouble)
    with np.errstate(all="ignore"):
        outs[0][...] = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.longdouble(attrs["eps"]))


if os.environ.get("TENSOR_GRAPHS_WORKER"):
    from tensor_graphs.kernels.registry import register

    for each in HONEST:
        if each.kernel.module == __name__:
            register(each.kernel)
