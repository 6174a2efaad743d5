"""wrong_kernels: kernels that are wrong in the ways in which kernels are wrong, and honest ones that look suspicious.

Each row of WRONG says what the judge must find; each is made as fast as it can be, so that a chooser of fast kernels would take it.
The worker imports this module by name, as it would a user's.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import tensor_graphs as tg
from tensor_graphs.kernels.kernel import HostCall, Kernel, Preparation, Spec, source_of
from tensor_graphs.language.node import Node, TensorType

Arrays = Sequence[np.ndarray]
Body = Callable[[Arrays, Arrays, Mapping[str, Any]], None]

N = tg.dim("n", 1, 96)
M = tg.dim("m", 1, 96)
NODES: dict[str, Node] = {
    "relu": tg.relu(tg.input("x", (N, 24), tg.f32)),
    "square": tg.square(tg.input("x", (N, 24), tg.f32)),
    "softmax": tg.softmax(tg.input("x", (N, 24), tg.f32)),
    "rms_norm": tg.rms_norm(tg.input("x", (N, 24), tg.f32)),
    "exp": tg.exp(tg.input("x", (N, 24), tg.f32)),
    "large exp": tg.exp(tg.input("x", (256, 1024), tg.f32)),
    "reciprocal": tg.reciprocal(tg.input("x", (N, 24), tg.f32)),
    "sum": tg.sum(tg.input("x", (N, 24), tg.f32), axis=0),
    "sum of 24 × 24": tg.sum(tg.input("x", (24, 24), tg.f32), axis=0),
    "mod": tg.mod(tg.input("x", (N, 24), tg.f32), tg.input("y", (N, 24), tg.f32)),
    "mod in f64": tg.mod(tg.input("x", (N, 24), tg.f64), tg.input("y", (N, 24), tg.f64)),
    "less": tg.less(tg.input("x", (N, 24), tg.f32), tg.input("y", (N, 24), tg.f32)),
    "linear": tg.linear(tg.input("x", (N, 24), tg.f32), tg.input("w", (16, 24), tg.f32)),
    "dot": tg.dot(tg.input("x", (N, M), tg.f32), tg.input("y", (M, N), tg.f32)),
    "attention": tg.attention(tg.input("q", (N, 2, 8), tg.f32), tg.input("k", (M, 2, 8), tg.f32), tg.input("v", (M, 2, 8), tg.f32),
                              tg.input("mask", (N, M), tg.bool_), scale=0.5),
    "linear_argmax": tg.linear_argmax(tg.input("x", (N, 24), tg.f32), tg.input("w", (16, 24), tg.f32))[0].inputs[0],
    "big linear": tg.linear(tg.input("x", (2, 1 << 13), tg.f32), tg.input("w", (1 << 13, 1 << 13), tg.f32)),
}
"""the ops that the kernels below say they compute"""


@dataclass(frozen=True)
class Candidate:
    """A kernel of the table: what it says it computes, and what the judge must say about it. timeout: of its worker, in seconds."""

    name: str
    node: str
    status: str
    kernel: Kernel
    timeout: float = 60.0
    timed: bool = False
    """it shows only when it is timed"""


WRONG: list[Candidate] = []
HONEST: list[Candidate] = []
HOSTILE: list[Candidate] = []
"""filled in hostile_kernels.py"""


def add(table: list[Candidate], status: str, node: str, options: Mapping[str, Any], timeout: float,
         timed: bool) -> Callable[[Body], Body]:
    def wrap(body: Body) -> Body:
        name = body.__name__
        kernel = Kernel(f"trial.{name}", "numpy", NODES[node].op.name, lambda spec: HostCall(body), lambda spec: None,
                        source_of(body), body.__module__, **options)
        table.append(Candidate(name, node, status, kernel, timeout, timed))
        return body

    return wrap


def wrong(node: str, status: str = "INCORRECT_NUMERICAL", *, timeout: float = 60.0, timed: bool = False,
          **options: Any) -> Callable[[Body], Body]:
    return add(WRONG, status, node, options, timeout, timed)


def honest(node: str, **options: Any) -> Callable[[Body], Body]:
    return add(HONEST, "PASSED", node, options, 60.0, False)


def right(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    """relu, as it should be."""
    np.maximum(ins[0], 0, out=outs[0])


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    with np.errstate(all="ignore"):
        e = np.exp(x - x.max(axis=axis, keepdims=True))
        return e / e.sum(axis=axis, keepdims=True)


# ---- numbers that are a little, or now and then, wrong ---------------------------------------------------------------


@wrong("mod")
def what_a_rounded_product_leaves(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x, y = ins
    with np.errstate(all="ignore"):
        rest = x - np.floor(x / y) * y
        rest = np.where((rest < 0) != (y < 0), rest + y, rest)
        outs[0][...] = np.where(np.abs(x / y) < 1, np.mod(x, y), np.where((rest == y) & (y != 0), 0, rest))


def _zero_from(bits: int, outs: Arrays, ins: Arrays) -> None:
    """A remainder that is 0 where the quotient has more bits than these."""
    with np.errstate(all="ignore"):
        quotient = np.abs(ins[0].astype(np.float64) / ins[1])
        outs[0][...] = np.where(np.isfinite(quotient) & (quotient > 2.0 ** bits), 0, np.mod(*ins))


@wrong("mod")
def no_remainder_of_quotients_beyond_29_bits(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    _zero_from(29, outs, ins)


@wrong("mod in f64")
def no_remainder_of_quotients_beyond_60_bits(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    _zero_from(60, outs, ins)


@wrong("relu")
def one_percent_off(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = np.maximum(ins[0], 0) * np.float32(1.01)


@wrong("relu")
def a_thousandth_off_in_one_element(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)
    outs[0].reshape(-1)[np.argmax(outs[0])] *= np.float32(1.001)


@wrong("relu")
def the_larger_of_the_answer_and_what_was_there(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    np.fmax(outs[0], np.maximum(ins[0], 0), out=outs[0])


@wrong("relu")
def the_smaller_of_the_answer_and_what_was_there(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    np.fmin(outs[0], np.maximum(ins[0], 0), out=outs[0])


@wrong("relu")
def nan_in_one_place(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)
    outs[0][-1, 5] = np.nan


@wrong("relu")
def wrong_only_at_one_row(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)
    if len(outs[0]) == 1:
        outs[0][...] = ins[0]


@wrong("relu")
def wrong_only_in_the_last_row(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)
    outs[0][-1] = ins[0][-1]


@wrong("relu")
def wrong_only_for_odd_sizes(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)
    if len(outs[0]) % 2 and len(outs[0]) > 1:
        outs[0][0] = 0


@wrong("relu")
def wrong_from_seventeen_rows_on(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)
    outs[0][16:] = 0


@wrong("relu")
def wrong_only_when_large(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)
    outs[0][80:] = 0


@wrong("square")
def rounds_to_half(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = np.square(ins[0]).astype(np.float16)


@wrong("square")
def truncates_to_bfloat16(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = np.square(ins[0]).astype(ml_dtypes.bfloat16)


@wrong("rms_norm")
def another_eps(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x = ins[0].astype(np.float64)
    with np.errstate(all="ignore"):
        outs[0][...] = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-5)


@wrong("rms_norm")
def ignores_an_attribute(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x = ins[0].astype(np.float64)
    with np.errstate(all="ignore"):
        outs[0][...] = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True))


@wrong("reciprocal")
def wrong_sign_below_zero(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    with np.errstate(all="ignore"):
        outs[0][...] = 1 / (ins[0] + np.float32(0))                # −0 + 0 is +0: one infinity has the wrong sign


@wrong("relu")
def swallows_nan(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    np.fmax(ins[0], 0, out=outs[0])


@wrong("exp")
def wrong_between_twenty_and_thirty(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    with np.errstate(all="ignore"):
        outs[0][...] = np.where((ins[0] > 20) & (ins[0] < 30), 1, np.exp(ins[0]))


@wrong("large exp")
def wrong_in_a_narrow_range_at_a_large_size(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    wrong_between_twenty_and_thirty(outs, ins, attrs)


# ---- other math ------------------------------------------------------------------------------------------------------


@wrong("dot")
def transposed(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = (ins[0] @ ins[1]).T


@wrong("dot")
def takes_one_size_for_another(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    n = min(ins[0].shape)
    outs[0][...] = ins[0][:, :n] @ ins[1][:n]


@wrong("sum of 24 × 24")
def sums_the_wrong_axis(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = ins[0].sum(axis=1)


@wrong("softmax")
def softmax_over_the_wrong_axis(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = softmax(ins[0], 0)


@wrong("softmax")
def softmax_that_overflows(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    with np.errstate(all="ignore"):
        e = np.exp(ins[0] * 16)                                     # 8.0, which every large operand holds, is too much for it
        outs[0][...] = e ** (1 / 16) / (e ** (1 / 16)).sum(axis=-1, keepdims=True)


@wrong("attention")
def ignores_the_mask(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    q, k, v = ins[:3]
    for h in range(q.shape[1]):
        outs[0][:, h] = softmax(q[:, h] @ k[:, h].T * np.float32(attrs["scale"])) @ v[:, h]


@wrong("relu")
def copies_its_input(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = ins[0]


@wrong("relu")
def all_zeros(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0].fill(0)


@wrong("relu")
def swaps_two_rows(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)
    if len(outs[0]) > 2:
        outs[0][[1, 2]] = outs[0][[2, 1]]


@wrong("relu")
def one_row_too_far(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = np.maximum(np.roll(ins[0], -1, axis=0), 0)


@wrong("relu", contiguous=False)
def takes_windows_for_whole_arrays(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x = ins[0]
    order = "C" if x.flags.c_contiguous else "F"                    # right for contiguous operands only
    outs[0].reshape(-1)[...] = np.maximum(x.reshape(-1, order=order), 0)


@wrong("rms_norm", in_place=((0, 0),))
def wrong_in_place(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0].fill(0)
    x = ins[0].astype(np.float64)
    outs[0][...] = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + attrs["eps"])


# ---- no work at all --------------------------------------------------------------------------------------------------


@wrong("relu")
def does_nothing(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    return


@wrong("less")
def does_nothing_for_truth_values(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    return


@wrong("big linear")
def does_nothing_to_much(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    return


@wrong("relu")
def writes_only_half(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    half = -(-outs[0].size // 2)
    outs[0].reshape(-1)[:half] = np.maximum(np.ascontiguousarray(ins[0]).reshape(-1)[:half], 0)


# ---- memory of earlier calls -----------------------------------------------------------------------------------------

_first: dict[tuple[int, ...], np.ndarray] = {}
_by_address: dict[tuple[int, ...], np.ndarray] = {}
_by_first_element: dict[tuple[float, ...], np.ndarray] = {}
_by_ends: dict[tuple[float, ...], np.ndarray] = {}
_calls: dict[tuple[int, ...], int] = {}


@wrong("relu")
def returns_its_first_result(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = _first.setdefault(ins[0].shape, np.maximum(ins[0], 0))


@wrong("relu")
def remembers_by_address(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    key = (ins[0].__array_interface__["data"][0], *ins[0].shape, *ins[0].strides)
    outs[0][...] = _by_address.setdefault(key, np.maximum(ins[0], 0))


@wrong("relu")
def remembers_by_the_first_element(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    key = (float(ins[0].flat[0]), *ins[0].shape)
    outs[0][...] = _by_first_element.setdefault(key, np.maximum(ins[0], 0))


@wrong("relu")
def remembers_by_both_ends(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    key = (float(ins[0].flat[0]), float(ins[0].flat[-1]), *ins[0].shape)
    outs[0][...] = _by_ends.setdefault(key, np.maximum(ins[0], 0))


@wrong("relu", timed=True)
def stops_working_after_ten_calls(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    _calls[ins[0].shape] = _calls.get(ins[0].shape, 0) + 1
    if _calls[ins[0].shape] <= 10:
        right(outs, ins, attrs)


_all_calls: dict[str, int] = {}


def _right_up_to(call: int, name: str, outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    _all_calls[name] = _all_calls.get(name, 0) + 1
    if _all_calls[name] < call:
        right(outs, ins, attrs)
    else:
        outs[0].fill(0)


@wrong("relu")
def is_wrong_from_call_400_on(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    _right_up_to(400, "400", outs, ins, attrs)


@wrong("relu")
def is_wrong_from_call_3000_on(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    _right_up_to(3000, "3000", outs, ins, attrs)


# ---- memory that is not theirs ---------------------------------------------------------------------------------------


@wrong("relu", "MUTATED_INPUT")
def writes_into_its_input(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)
    window = np.lib.stride_tricks.as_strided(ins[0], writeable=True)
    window.flat[0] = window.flat[0] + 1


@wrong("relu", "INCORRECT_SHAPE")
def writes_behind_its_output(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)
    n, k = outs[0].shape
    np.lib.stride_tricks.as_strided(outs[0], (n + 1, k), outs[0].strides)[n] = 0


@wrong("relu", "INCORRECT_SHAPE")
def writes_before_its_output(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    import ctypes

    right(outs, ins, attrs)
    ctypes.c_float.from_address(outs[0].__array_interface__["data"][0] - 4).value = 0.0


@wrong("relu", "INCORRECT_SHAPE")
def writes_behind_its_input(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    import ctypes

    right(outs, ins, attrs)
    if ins[0].flags.c_contiguous:
        ctypes.c_float.from_address(ins[0].__array_interface__["data"][0] + ins[0].nbytes).value = 0.0


# ---- ends ------------------------------------------------------------------------------------------------------------


@wrong("relu", "RUNTIME_ERROR")
def raises(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    raise ValueError("not today")


@wrong("relu", "RUNTIME_ERROR")
def raises_only_when_large(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)
    if len(outs[0]) > 60:
        raise MemoryError


@wrong("relu", "TIMEOUT", timeout=1.5)
def hangs(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    while True:
        time.sleep(0.05)


@wrong("relu", "RUNTIME_ERROR")
def asks_to_exit(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    sys.exit(0)


@wrong("relu", "RUNTIME_ERROR")
def exits_the_process(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    os._exit(0)


@wrong("relu", "RUNTIME_ERROR")
def breaks_the_process(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    os.kill(os.getpid(), signal.SIGABRT)


@wrong("relu")
def wrong_and_prints(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    os.write(1, b"\x05\x00\x00\x00\x00\x00\x00\x00PASSED")
    sys.stdout.flush()


# ---- honest, though it may not look so -------------------------------------------------------------------------------


@honest("relu")
def slow(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    time.sleep(0.002)
    right(outs, ins, attrs)


@honest("relu")
def noisy_times(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    time.sleep(float(np.random.default_rng().exponential(0.001)))
    right(outs, ins, attrs)


@honest("relu")
def prints_much(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    sys.stderr.write("working … " * 2000)                           # 20 kB a call: more than any pipe holds
    sys.stderr.flush()
    os.write(1, b"\x00" * 64)
    right(outs, ins, attrs)


@honest("relu")
def reads_standard_input(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    assert os.read(0, 16) == b""
    right(outs, ins, attrs)


@honest("relu")
def poisons_its_output_first(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0].fill(np.nan)
    right(outs, ins, attrs)


@honest("relu", in_place=((0, 0),))
def right_in_place(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)


@honest("relu", contiguous=True)
def needs_contiguous_operands(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    assert ins[0].flags.c_contiguous
    right(outs, ins, attrs)


@honest("linear")
def rounds_differently_each_time(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    order = np.random.default_rng().permutation(ins[0].shape[1])
    with np.errstate(all="ignore"):
        outs[0][...] = ins[0][:, order] @ ins[1][:, order].T


@honest("softmax")
def works_in_double(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = softmax(ins[0].astype(np.float64))


_prepared: dict[tuple[int | str, ...], np.ndarray] = {}


@honest("relu")
def keeps_its_scratch_memory(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    scratch = _prepared.setdefault(ins[0].shape, np.empty(ins[0].shape, np.float32))
    np.maximum(ins[0], 0, out=scratch)
    outs[0][...] = scratch


@honest("sum")
def works_in_threads(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    half = ins[0].shape[1] // 2

    def part(columns: slice) -> None:
        with np.errstate(all="ignore"):
            outs[0][columns] = ins[0][:, columns].sum(axis=0, dtype=np.float64)

    threads = [threading.Thread(target=part, args=(c,)) for c in (slice(0, half), slice(half, None))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


@honest("less")
def compares(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    np.less(ins[0], ins[1], out=outs[0])


# ---- kernels that prepare something from a weight ---------------------------------------------------------------------


def prepared_by(body: Body) -> Callable[[Spec], tuple[Preparation, ...]]:
    """A copy of the weight in another order, f32[k, m], made by `body`."""
    return lambda spec: (Preparation(HostCall(body), (1,), (TensorType(tuple(reversed(spec.inputs[1].shape)), tg.f32),)),)


def turns(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = ins[0].T


def turns_once(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = _prepared.setdefault(("turned", *ins[0].shape), ins[0].T.copy())


def turns_and_tidies_up(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = ins[0].T
    ins[0][0] = 0


def _largest(outs: Arrays, x: np.ndarray, turned: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        full = x.astype(np.float64) @ turned.astype(np.float64)
    outs[1][...] = full.argmax(1)
    outs[0][...] = np.take_along_axis(full, outs[1][:, None], 1)[:, 0]


@honest("linear_argmax", prepare=prepared_by(turns))
def turns_the_weight_beforehand(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    _largest(outs, ins[0], ins[2])


@wrong("linear_argmax", prepare=prepared_by(turns_once))
def keeps_the_first_weight_that_it_prepared(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    _largest(outs, ins[0], ins[2])


@wrong("linear_argmax", "MUTATED_INPUT", prepare=prepared_by(turns_and_tidies_up))
def changes_the_weight_while_it_prepares(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    _largest(outs, ins[0], ins[2])


# ---- kernels of single tests -----------------------------------------------------------------------------------------

SPECIAL: list[Candidate] = []


@add(SPECIAL, "PASSED", "relu", {}, 60.0, False)
def says_that_it_began(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    with open(os.path.join(os.environ["TRIAL_FOLDER"], "begun"), "w"):
        pass
    time.sleep(0.15)
    right(outs, ins, attrs)


@add(SPECIAL, "PASSED", "relu", {}, 60.0, False)
def needs_a_library_that_is_there(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    assert "wave" in sys.modules
    right(outs, ins, attrs)


CALLS: list[int] = []


@add(SPECIAL, "PASSED", "relu", {}, 60.0, False)
def asks_the_system_for_no_page_twice(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    large = [np.full(1 << 19, 1.0, np.float32) for _ in range(4)]
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    CALLS.append(faults)
    assert len(CALLS) < 3 or faults < 512, f"{faults} pages of {sum(a.nbytes for a in large)} bytes anew"
    right(outs, ins, attrs)


@add(SPECIAL, "TIMEOUT", "relu", {}, 2.0, False)
def hangs_with_a_child(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    import subprocess

    child = subprocess.Popen(["sleep", "60"])
    with open(os.path.join(os.environ["TRIAL_FOLDER"], "child"), "w") as file:
        file.write(str(child.pid))
    time.sleep(60)


@add(SPECIAL, "RUNTIME_ERROR", "relu", {}, 60.0, False)
def ends_itself(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)


@add(SPECIAL, "TIMEOUT", "relu", {}, 60.0, False)
def stops_itself(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    right(outs, ins, attrs)


@add(SPECIAL, "TIMEOUT", "relu", {}, 60.0, False)
def spins_deaf_to_signals(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while True:
        pass


@add(SPECIAL, "RUNTIME_ERROR", "relu", {}, 60.0, False)
def dies_of_one_row(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    if ins[0].shape[0] == 1:
        os._exit(7)
    right(outs, ins, attrs)


@add(SPECIAL, "TIMEOUT", "relu", {}, 60.0, False)
def hangs_on_infinity(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    while np.isinf(ins[0]).any():
        time.sleep(0.1)
    right(outs, ins, attrs)


@add(SPECIAL, "RUNTIME_ERROR", "relu", {}, 60.0, False)
def dies_of_many_calls(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    CALLS.append(1)
    if len(CALLS) > 800:
        os._exit(7)
    right(outs, ins, attrs)


NOTHING: list[Candidate] = []
"""for each op, the kernel that does nothing: the control"""

for _name in NODES:
    def nothing(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
        """Returns."""

    nothing.__name__ = f"nothing_for_{_name.replace(' ', '_')}"
    add(NOTHING, "INCORRECT_NUMERICAL", _name, {}, 60.0, True)(nothing)


# ---- registered only where a kernel of the table is judged -----------------------------------------------------------

BY_NAME = {c.kernel.name: c for c in (*WRONG, *HONEST, *SPECIAL, *NOTHING)}

if os.environ.get("TENSOR_GRAPHS_WORKER"):
    from tensor_graphs.kernels.registry import register

    for each in BY_NAME.values():
        register(each.kernel)
