"""Of many runs of a kernel beside itself the one is kept that is farthest from a run alone."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.c.overlapped_calls import Arguments, Interleaved
from tensor_graphs.kernels.kernel import HostCall, Kernel, NativeCall
from tensor_graphs.kernels.registry import unregister
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.measure.concurrent_runs import RUNS, run_interleaved, run_under_load
from tensor_graphs.measure.isolation.memory_guards import Guarded
from tensor_graphs.measure.points.single_op_plans import single_kernel_plan

SQUARE = signature_of(tg.square(tg.input("x", (4, 24), tg.f32)))
X, Y = (np.random.default_rng(seed).standard_normal((4, 24)).astype(np.float32) for seed in (1, 2))
SOURCE = """
#include "tg.h"
TG_KERNEL(%s) {
    %s float all[96];
    const float *x = ptr[1];
    float *out = ptr[0];
    (void)floats;
    for (int64_t i = 0; i < ints[0]; i++) all[i] = x[i];
    for (int64_t i = 0; i < ints[0]; i++) out[i] = all[i] * all[i];
}
"""


def beside(body: Callable[..., None]) -> tuple[np.ndarray, float]:
    """The output that is kept of runs on X while another thread runs on Y; and how far it is from X²."""
    kernel = Kernel("own.square", "numpy", "square", lambda spec: HostCall(body), lambda spec: None, "", __name__)
    out = {"y0": Guarded((4, 24), np.dtype(np.float32))}
    out["y0"].array[...] = X * X
    apart = run_under_load(single_kernel_plan(SQUARE.graph, kernel), {}, {"x0": X}, {"x0": Y}, out, {})
    return out["y0"].array, apart


def test_outputs_that_never_differ_are_those_of_a_run_alone() -> None:
    found, apart = beside(lambda outs, ins, attrs: np.square(ins[0], out=outs[0]))
    np.testing.assert_array_equal(found, X * X)
    assert apart == 0


def test_one_wrong_run_of_hundreds_is_kept() -> None:
    count = [0]

    def body(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
        np.square(ins[0], out=outs[0])
        if ins[0][0, 0] == X[0, 0]:
            count[0] += 1
            outs[0][3, 5] += {60: 1.0, 61: 7.0}.get(count[0], 0.0)

    found, apart = beside(body)
    assert apart == pytest.approx(7.0, rel=1e-5) and found[3, 5] == np.float32(X[3, 5] ** 2 + np.float32(7))
    assert 61 < count[0] <= RUNS


def test_nan_is_farther_than_any_number() -> None:
    count = [0]

    def body(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
        count[0] += 1
        np.square(ins[0], out=outs[0])
        if count[0] > 40:
            outs[0][0, 0] = np.nan if count[0] % 2 else 1e30

    found, apart = beside(body)
    assert math.isinf(apart) and np.isnan(found[0, 0])


def test_what_a_run_raises_is_raised_and_no_thread_is_left() -> None:
    count = [0]

    def body(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
        count[0] += 1
        if count[0] > 9:
            raise ValueError("the tenth")
        np.square(ins[0], out=outs[0])

    before = threading.active_count()
    with pytest.raises(ValueError, match="the tenth"):
        beside(body)
    assert threading.active_count() == before


def test_a_kernel_in_python_may_keep_its_scratch_memory_for_all_runs() -> None:
    shared = np.empty_like(X)

    def body(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
        shared[...] = ins[0]
        np.multiply(shared, shared, out=outs[0])

    found, apart = beside(body)
    np.testing.assert_array_equal(found, X * X)
    assert apart == 0


@pytest.fixture(scope="module")
def kernels() -> Iterator[dict[str, Kernel]]:
    made = {storage: tg.c_kernel("square", source=SOURCE % (f"square_{storage}", word), entry=f"square_{storage}", dtypes=["f32"],
                                 ints=[96]) for storage, word in (("static", "static"), ("own", ""))}
    yield made
    for kernel in made.values():
        unregister(kernel.name)


def call_of(kernel: Kernel) -> NativeCall:
    call = kernel.build(SQUARE.spec)
    assert isinstance(call, NativeCall)
    return call


def test_a_call_in_the_middle_of_another_shows_what_both_write(kernels: Mapping[str, Kernel]) -> None:
    outs = [np.empty_like(X), np.empty_like(X)]
    first, second = Arguments([outs[0], X], [96], []), Arguments([outs[1], Y], [96], [])
    own, static = (Interleaved(call_of(kernels[name]).image) for name in ("own", "static"))
    blocks = static.run(first, second)
    assert blocks >= 2 * 96 and np.array_equal(outs[0], X * X)
    static.run(first, second, blocks // 2)
    assert np.array_equal(outs[1], Y * Y) and np.array_equal(outs[0].reshape(-1)[3:90], (Y * Y).reshape(-1)[3:90])
    for at in range(0, blocks, 7):
        outs[0].fill(0)
        own.run(first, second, at)
        assert np.array_equal(outs[0], X * X) and np.array_equal(outs[1], Y * Y)


@pytest.mark.parametrize(("storage", "is_right"), [("static", False), ("own", True)])
def test_outputs_of_a_call_that_met_another_are_kept_where_they_differ(kernels: Mapping[str, Kernel], storage: str,
                                                                      is_right: bool) -> None:
    out = {"y0": Guarded((4, 24), np.dtype(np.float32))}
    out["y0"].array[...] = X * X
    run_interleaved(call_of(kernels[storage]), {"x0": X}, {"x0": Y}, out, {}, 0.0)
    assert np.array_equal(out["y0"].array, X * X) is is_right


def test_a_compiler_without_such_a_flag_leaves_the_outputs_as_they_are(kernels: Mapping[str, Kernel],
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensor_graphs.kernels.c.overlapped_calls.FLAGS", ("-fno-such-flag-at-all",))
    out = {"y0": Guarded((4, 24), np.dtype(np.float32))}
    out["y0"].array[...] = X * X
    run_interleaved(call_of(kernels["static"]), {"x0": X}, {"x0": Y}, out, {}, 0.0)
    assert np.array_equal(out["y0"].array, X * X)
