"""hostile_kernels: kernels that attack what measures them instead of doing the work, or do it where no clock runs.

Each row of HOSTILE says with which statuses it may end; PASSED is never among them. Those that forge a time do the work of `heavy`,
which takes three milliseconds, where the clock does not see it. The worker imports this module by name, as it would a user's.

What is not defended against: a candidate has the rights of the user who runs it. One that searches the system for the judge's
process can kill it, and one that finds the database file can write into it.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import hashlib
import os
import re
import signal
import socket
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from tensor_graphs.measure.timing.noise_reference import FEW_QUIET
from tests.measure.wrong_kernels import HOSTILE, Arrays, Body, add, right, softmax

clock, processor = time.perf_counter, time.thread_time
"""as they were before anything here replaced them"""

NOTHING_RIGHT = ("INCORRECT_NUMERICAL",)
STOPPED = ("RUNTIME_ERROR",)
FORGED = ("IMPLAUSIBLE", "RUNTIME_ERROR")


def hostile(*statuses: str, node: str = "relu", timeout: float = 30.0) -> Callable[[Body], Body]:
    return add(HOSTILE, "|".join(statuses), node, {}, timeout, True)


def heavy(outs: Arrays, ins: Arrays) -> None:
    """relu, in three milliseconds."""
    end = clock() + 3e-3
    right(outs, ins, {})
    while clock() < end:
        pass


_calls: dict[str, int] = {}


def calls(name: str) -> int:
    """How often this was asked in this process."""
    _calls[name] = _calls.get(name, 0) + 1
    return _calls[name]


def any_block() -> dict[str, Any] | None:
    """The local variables of the block of timed runs that this call is one of; None where it is not."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        found: dict[str, Any] = frame.f_locals
        if type(found.get("self")).__name__ == "_Runs":
            return found
        frame = frame.f_back
    return None


def block() -> dict[str, Any] | None:
    """The same of a cold run that counts; None where it is none."""
    found = any_block()
    return found if found is not None and found["count"] >= 2 and found["name"] == "cold" else None


def timed_by_now(name: str, verified: int = 14) -> bool:
    """Whether a kernel has been called so often that it must be on the clock."""
    return calls(name) > verified


# ---- it ends, or does not end -----------------------------------------------------------------------------------------


@hostile(*STOPPED)
def reads_at_address_zero(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    ctypes.string_at(0)


@hostile(*STOPPED)
def aborts(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    os.abort()


@hostile(*STOPPED)
def recurses_without_end(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    recurses_without_end(outs, ins, attrs)


@hostile("TIMEOUT", timeout=2.0)
def hangs_deep_in_c(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    """Holds the interpreter's lock while it does."""
    re.match(r"(a+)+$", "a" * 64 + "b")


@hostile("TIMEOUT", timeout=2.0)
def hangs_deaf_to_signals(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    time.sleep(600)


@hostile("TIMEOUT", timeout=3.0)
def hangs_once_it_is_timed(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)
    if timed_by_now("hangs"):
        time.sleep(600)


@hostile(*STOPPED)
def exits_early_as_if_all_were_well(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)
    if timed_by_now("exits"):
        os._exit(0)


@hostile(*STOPPED)
def raises_system_exit_zero(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)
    if timed_by_now("system exit"):
        raise SystemExit(0)


@hostile(*STOPPED)
def raises_keyboard_interrupt(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    raise KeyboardInterrupt


# ---- processes --------------------------------------------------------------------------------------------------------


@hostile(*STOPPED, "TIMEOUT", timeout=5.0)
def forks_and_both_go_on(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    if calls("forks") == 1:
        os.fork()
    right(outs, ins, attrs)


@hostile(*STOPPED)
def lets_a_child_answer_for_it(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    if os.fork():
        os._exit(0)
    right(outs, ins, attrs)


@hostile(*STOPPED)
def leaves_a_child_behind(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)
    if calls("child") == 1 and os.fork() == 0:
        time.sleep(600)
        os._exit(0)


@hostile(*STOPPED)
def leaves_a_daemon_behind(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)
    if calls("daemon") == 1:
        child = os.fork()
        if child == 0:
            os.setsid()
            if os.fork() == 0:
                while True:
                    pass
            os._exit(0)
        os.waitpid(child, 0)


@hostile(*STOPPED)
def kills_its_parent(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(0.05)


@hostile(*STOPPED)
def kills_its_group(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    os.killpg(0, signal.SIGKILL)


# ---- it works on after it has returned --------------------------------------------------------------------------------


@hostile("INCORRECT_NUMERICAL", *STOPPED)
def writes_its_output_a_little_later(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    y, x = outs[0], ins[0].copy()
    threading.Timer(0.005, lambda: np.maximum(x, 0, out=y)).start()


@hostile("INCORRECT_NUMERICAL", *STOPPED)
def changes_its_output_a_little_later(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)
    y = outs[0]
    threading.Timer(0.002, lambda: y.fill(7)).start()


@hostile(*FORGED)
def leaves_a_thread_that_works(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)
    if calls("works on") == 1:
        threading.Thread(target=_work_for_ever, daemon=True).start()


def _work_for_ever() -> None:
    x = np.ones((512, 512), np.float32)
    while True:
        np.dot(x, x)


@hostile("INCORRECT_NUMERICAL", *STOPPED)
def works_when_an_alarm_rings(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    y, x = outs[0], ins[0].copy()
    signal.signal(signal.SIGALRM, lambda *_: np.maximum(x, 0, out=y))
    signal.setitimer(signal.ITIMER_REAL, 3e-4)


@hostile("INCORRECT_NUMERICAL", *STOPPED)
def works_when_memory_is_collected(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    y, x = outs[0], ins[0].copy()
    gc.callbacks[:] = [lambda *_: np.maximum(x, 0, out=y)]


def _later(outs: Arrays, ins: Arrays, unset: Callable[[], None]) -> Callable[..., None]:
    """Does the work at the third event from now: behind the clock, before the output is copied."""
    pending = [list(outs), [ins[0].copy()]]
    seen = [0]

    def hook(*_: object) -> None:
        seen[0] += 1
        if seen[0] == 3 and pending:
            unset()
            heavy(pending[0], pending[1])
            pending.clear()

    return hook


@hostile("INCORRECT_NUMERICAL", *FORGED)
def works_in_a_profile_function(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    if block() is None:
        heavy(outs, ins)
        return
    sys.setprofile(_later(outs, ins, lambda: sys.setprofile(None)))


@hostile("INCORRECT_NUMERICAL", *FORGED)
def works_in_a_trace_function(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    if block() is None:
        heavy(outs, ins)
        return
    sys.settrace(_later(outs, ins, lambda: sys.settrace(None)))


def _before_the_copy(outs: Arrays, ins: Arrays, *, for_ever: bool) -> None:
    """Work in the function that copies the outputs away, and put the old one back unless it is for ever."""
    from tensor_graphs.measure.timing import bench

    kept = bench._KeptOutputs
    offer = kept.offer
    held = [list(outs), [ins[0].copy()]]

    def instead(self: Any, run: int, out: Any) -> None:
        if not for_ever:
            kept.offer = offer  # type: ignore[method-assign]
        heavy(held[0], held[1])
        offer(self, run, out)

    if not (for_ever and getattr(offer, "__name__", "") == "instead"):
        kept.offer = instead  # type: ignore[method-assign, assignment]


@hostile("INCORRECT_NUMERICAL", *FORGED)
def replaces_what_copies_its_output(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    if block() is not None:
        _before_the_copy(outs, ins, for_ever=True)
    else:
        heavy(outs, ins)


@hostile("INCORRECT_NUMERICAL", *FORGED)
def replaces_what_copies_its_output_for_a_moment(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    if block() is not None:
        _before_the_copy(outs, ins, for_ever=False)
    else:
        heavy(outs, ins)


# ---- it remembers -----------------------------------------------------------------------------------------------------

_answers: dict[object, np.ndarray] = {}


@hostile(*NOTHING_RIGHT)
def remembers_by_address_and_size(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    key = ("address", ins[0].ctypes.data, ins[0].shape)
    if key not in _answers:
        _answers[key] = np.maximum(ins[0], 0)
    outs[0][...] = _answers[key]


@hostile(*NOTHING_RIGHT)
def remembers_by_a_sample_of_the_values(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    key = ("sampled", ins[0].shape, ins[0].reshape(-1)[::97].tobytes())
    if key not in _answers:
        _answers[key] = np.maximum(ins[0], 0)
    outs[0][...] = _answers[key]


@hostile(*NOTHING_RIGHT)
def remembers_by_the_sum(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    key = ("sum", ins[0].shape, float(np.nansum(ins[0])) // 64)
    if key not in _answers:
        _answers[key] = np.maximum(ins[0], 0)
    outs[0][...] = _answers[key]


@hostile("IMPLAUSIBLE")
def remembers_by_the_whole_content(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    key = ("content", ins[0].shape, hashlib.blake2b(np.ascontiguousarray(ins[0])).digest())
    if key not in _answers:
        y = np.empty(ins[0].shape, np.float32)
        heavy([y], ins)
        _answers[key] = y
    outs[0][...] = _answers[key]


@hostile("IMPLAUSIBLE")
def computes_again_only_the_rows_that_changed(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x, y = ins[0], outs[0]
    kept = _rows.get(x.shape)
    changed = np.ones(len(x), dtype=bool) if kept is None else (x != kept[0]).any(axis=1)
    if kept is None or 2 * changed.sum() > len(x):
        heavy(outs, ins)
        _rows[x.shape] = (x.copy(), y.copy())
        return
    end = clock() + 3e-3 * changed.mean()
    y[...] = kept[1]
    y[changed] = np.maximum(x[changed], 0)
    while clock() < end:
        pass


_rows: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = {}


_urandom = os.urandom


@hostile("RUNTIME_ERROR")
def works_out_in_its_first_runs_what_it_will_be_asked(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    """Lets zeros be drawn for each run until the last blocks begin, and finds who makes its operands in its callers' frames."""
    from tensor_graphs.measure.points.inputs import perturb, restore
    from tensor_graphs.measure.timing import bench

    frame: Any = sys._getframe(1)
    while frame is not None and type(frame.f_locals.get("self")).__name__ != "_Runs":
        frame = frame.f_back
    found = {} if frame is None else frame.f_locals
    bench.urandom = bytes if found.get("name") == "cold" else _urandom
    if found.get("name") != "cold" or found["count"] == 0:
        heavy(outs, ins)
        return
    runs, number, secret = found["self"], found["k"], found["secret"]
    if ("run", number, secret) not in _answers:
        data = {n: a.copy() for n, a in runs.exact.items()}
        for ahead in range(number, number + 32):
            way = runs.way(ahead, secret, 0)
            perturb(data, way, runs.exact)
            y = np.empty(ins[0].shape, np.float32)
            heavy([y], list(data.values()))
            _answers["run", ahead, secret] = y
            restore(data, way, runs.exact)
    outs[0][...] = _answers["run", number, secret]


@hostile(*NOTHING_RIGHT)
def returns_the_answer_of_the_call_before(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    before = _answers.get(("before", ins[0].shape))
    now = np.maximum(ins[0], 0)
    outs[0][...] = now if before is None else before
    _answers["before", ins[0].shape] = now


@hostile(*NOTHING_RIGHT)
def returns_memory_as_it_finds_it(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = np.empty(outs[0].shape, outs[0].dtype)


@hostile(*NOTHING_RIGHT)
def trusts_that_its_output_is_as_it_left_it(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    if calls(f"left {outs[0].shape}") <= 2:
        right(outs, ins, attrs)


@hostile(*NOTHING_RIGHT, "IMPLAUSIBLE")
def is_right_only_until_it_is_timed(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    if timed_by_now("right until"):
        outs[0].fill(0)
    else:
        right(outs, ins, attrs)


@hostile("MUTATED_INPUT")
def changes_its_input_only_when_it_is_timed(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)
    if timed_by_now("changes"):
        np.lib.stride_tricks.as_strided(ins[0], writeable=True)[:, -1] = 0


# ---- other numbers, other shapes --------------------------------------------------------------------------------------


@hostile(*NOTHING_RIGHT)
def gives_a_constant(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0].fill(0.4)


@hostile(*NOTHING_RIGHT, node="softmax")
def gives_nan(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0].fill(np.nan)


@hostile("INCORRECT_NUMERICAL", "INCORRECT_DTYPE", "INCORRECT_SHAPE")
def writes_half_floats(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0].view(np.float16)[..., :ins[0].shape[-1]] = np.maximum(ins[0], 0)


@hostile("INCORRECT_NUMERICAL", "INCORRECT_SHAPE", *STOPPED)
def gives_its_output_another_shape(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    y = outs[0]
    y.shape = y.shape[::-1]
    y[...] = np.maximum(ins[0], 0).T


@hostile("INCORRECT_NUMERICAL", "INCORRECT_SHAPE", *STOPPED)
def gives_its_output_other_strides(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    n, k = outs[0].shape
    y = np.lib.stride_tricks.as_strided(outs[0], (n, k), (4, 4 * n))
    np.maximum(ins[0], 0, out=y)


@hostile("INCORRECT_NUMERICAL", *STOPPED)
def returns_an_array_of_its_own(outs: Any, ins: Arrays, attrs: Mapping[str, Any]) -> Any:
    try:
        outs[0] = np.maximum(ins[0], 0)
    except TypeError:
        pass
    return outs


class _Lazy:
    """Looks like an array, and is worked out by whoever looks."""

    def __init__(self, x: np.ndarray) -> None:
        self.x = x

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        return np.maximum(self.x, 0)


@hostile("INCORRECT_NUMERICAL", *STOPPED)
def gives_a_lazy_output(outs: Any, ins: Arrays, attrs: Mapping[str, Any]) -> Any:
    try:
        outs[0] = _Lazy(ins[0])
    except TypeError:
        pass
    return _Lazy(ins[0])


# ---- the clock --------------------------------------------------------------------------------------------------------


@hostile(*FORGED)
def replaces_the_clock(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    heavy(outs, ins)
    time.perf_counter = time.monotonic = time.time = lambda: 0.0


@hostile(*FORGED)
def replaces_the_clock_where_it_is_read(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    from tensor_graphs.measure.timing import bench
    from tensor_graphs.measure.timing import clock as theirs

    heavy(outs, ins)
    bench.now = theirs.now = lambda: clock() / 30  # type: ignore[assignment]


@hostile(*FORGED)
def replaces_the_watch(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    from tensor_graphs.measure.timing.clock import Watched

    heavy(outs, ins)
    if not hasattr(Watched.run, "forged"):
        run = Watched.run

        def forged(self: Any, *arguments: Any) -> float:
            run(self, *arguments)
            return 1e-7

        forged.forged = True  # type: ignore[attr-defined]
        Watched.run = forged  # type: ignore[method-assign]


@hostile(*FORGED)
def replaces_the_code_of_the_watch(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    from tensor_graphs.measure.timing.clock import Watched

    heavy(outs, ins)
    code = Watched.run.__code__
    if 0.0625 not in code.co_consts:
        constants = tuple(0.0625 if c == 0.0 and isinstance(c, float) else c for c in code.co_consts)
        Watched.run.__code__ = code.replace(co_consts=(*constants, 0.0625))


@hostile(*FORGED)
def replaces_what_it_says_of_its_times(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    from tensor_graphs.measure.isolation.signed_frames import Channel

    heavy(outs, ins)
    if not hasattr(Channel.send, "forged"):
        send = Channel.send

        def forged(self: Any, value: dict[str, Any]) -> None:
            for name in ("whole", "calls"):
                if name in value:
                    value[name] = [1e-6] * len(value[name])
            send(self, value)

        forged.forged = True  # type: ignore[attr-defined]
        Channel.send = forged  # type: ignore[method-assign]


@hostile(*FORGED)
def replaces_what_it_says_of_its_times_for_a_moment(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    """Finds the lists of times in the frames of who calls it."""
    heavy(outs, ins)
    frame: Any = sys._getframe(1)
    while frame is not None:
        for name in ("whole", "calls", "taken"):
            found = frame.f_locals.get(name)
            if isinstance(found, list):
                found[:] = [1e-6] * len(found)
        frame = frame.f_back


@hostile(*FORGED)
def sets_the_start_of_its_time_to_now(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    """Changes local variables in the frames of who calls it."""
    heavy(outs, ins)
    frame: Any = sys._getframe(1)
    while frame is not None:
        if isinstance(frame.f_locals.get("start"), float):
            frame.f_locals["start"] = clock()
            if sys.version_info < (3, 13):
                ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
        frame = frame.f_back


def slow_down(times: float) -> None:
    """Put another function behind the builtin clock, under whatever name it is held."""
    if "clock" not in _machine:
        true = time.clock_gettime

        @ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)
        def slow(_: object) -> float:
            return true(time.CLOCK_MONOTONIC) / times

        class Method(ctypes.Structure):
            _fields_ = (("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int))

        at = ctypes.c_void_p.from_address(id(time.perf_counter) + object.__basicsize__).value
        assert at is not None
        method = Method.from_address(at)
        assert method.name == b"perf_counter"
        _machine["clock"] = slow
        method.function = ctypes.cast(slow, ctypes.c_void_p)


_machine: dict[str, object] = {}


@hostile(*FORGED)
def slows_the_clock_in_machine_code(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    heavy(outs, ins)
    slow_down(20)


@hostile(*FORGED)
def slows_the_clock_by_half(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    work(outs, ins)
    slow_down(2)


@hostile(*FORGED)
def slows_the_clock_to_a_quarter(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    work(outs, ins)
    slow_down(4)


# ---- the clock, by a part of the time or in a part of the runs ----

PART = 0.002
"""of what a run took: it shows beside other programs too, for which a run may have waited most of its time (larger parts are in
test_blocks.py)"""


def work(outs: Arrays, ins: Arrays) -> None:
    """relu, in three milliseconds of the processor's time: what a thread waits for is nobody's work."""
    end = processor() + 3e-3
    right(outs, ins, {})
    while processor() < end:
        pass


def _lists() -> Iterator[tuple[str, list[float]]]:
    """The lists of times in the frames of who calls a kernel."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        for name in ("whole", "calls"):
            found = frame.f_locals.get(name)
            if isinstance(found, list):
                yield name, found
        frame = frame.f_back


@hostile(*FORGED)
def takes_a_part_off_its_times_in_the_frames_of_its_callers(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    work(outs, ins)
    for name, times in _lists():
        known, done = _done.get(name, (times, 0))
        done = done if known is times else 0
        times[done:] = [PART * each for each in times[done:]]
        _done[name] = times, len(times)


_done: dict[str, tuple[list[float], int]] = {}


class _Less(list[float]):
    """A list that keeps a part of what is added to it."""

    def append(self, value: float) -> None:
        super().append(PART * value)


@hostile(*FORGED)
def finds_the_watch_among_all_objects(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    """And puts lists of its own into its closures."""
    from tensor_graphs.measure.timing.clock import Watched

    work(outs, ins)
    if calls("among all") in (20, 60):
        for each in gc.get_objects():
            if isinstance(each, Watched) and type(each._taken) is list:
                less = _Less()
                for step in (step for segment in each.executor.segments for step in segment.steps):
                    for cell in getattr(getattr(getattr(step, "call", None), "run", None), "__closure__", None) or ():
                        if cell.cell_contents is each._taken:
                            cell.cell_contents = less
                each._taken = less


@hostile(*FORGED)
def puts_another_call_into_the_list_of_instructions(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    """One that is watched by nobody, and says itself what it took."""
    from tensor_graphs.kernels.kernel import HostCall
    from tensor_graphs.measure.timing.clock import Watched

    work(outs, ins)
    frame: Any = sys._getframe(1)
    while frame is not None:
        watched = frame.f_locals.get("self")
        if isinstance(watched, Watched) and block() is not None:
            for step in (step for segment in watched.executor.segments for step in segment.steps):
                step.call = HostCall(functools.partial(_unwatched, watched._taken))
        frame = frame.f_back


def _unwatched(taken: list[float], outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    work(outs, ins)
    taken.append(1e-6)


@hostile("RUNTIME_ERROR")
def edits_other_kernels(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    """Those that run after it in this process would compute nothing."""
    from tensor_graphs.kernels import registry
    from tensor_graphs.kernels.kernel import HostCall

    work(outs, ins)
    for kernel in registry.known():
        if kernel.op == "softmax":
            object.__setattr__(kernel, "build", lambda spec: HostCall(lambda *args: None))


@hostile("RUNTIME_ERROR")
def edits_an_op(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    """What its definition is made by."""
    from tensor_graphs.language.composite import LIBRARY

    work(outs, ins)
    LIBRARY["softmax"].build = lambda x, axis: x


def _on_its_way(change: Callable[[dict[str, Any]], None]) -> None:
    """Change what is said of blocks of cold runs, where it is packed: an attribute of an object, which nobody compares."""
    from tensor_graphs.measure.isolation.signed_frames import Channel

    if "change" not in _machine:
        for each in gc.get_objects():
            if isinstance(each, Channel):
                each._pack = functools.partial(_changed, each._pack)
    _machine["change"] = change


def _changed(pack: Any, value: dict[str, Any]) -> Any:
    change: Any = _machine["change"]
    if value.get("name") not in (None, "nothing", "plain"):
        change(value)
    return pack(value)


@hostile(*FORGED)
def takes_a_part_off_its_times_on_their_way(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    def change(said: dict[str, Any]) -> None:
        for name in ("whole", "calls", "busy"):
            said[name] = [PART * each for each in said[name]]

    work(outs, ins)
    _on_its_way(change)


@hostile(*FORGED)
def says_that_the_few_runs_that_were_fast_are_those_that_count(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    """So that the sum of all is true."""

    def change(said: dict[str, Any]) -> None:
        runs = len(said["whole"])
        fast = range(2, 2 + max(FEW_QUIET, runs // 20))
        for name in ("whole", "calls", "busy"):
            said[name] = [1e-5 if run in fast else each for run, each in enumerate(said[name])]
        said["switches"] = [0 if run in fast else 1 for run in range(runs)]

    work(outs, ins)
    _on_its_way(change)


@hostile(*FORGED)
def says_that_its_first_runs_took_all_the_time(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    """The runs that do not count."""

    def change(said: dict[str, Any]) -> None:
        for name in ("whole", "calls"):
            said[name] = [sum(said[name]) - 1e-5 * (len(said[name]) - 1), *[1e-5] * (len(said[name]) - 1)]

    work(outs, ins)
    _on_its_way(change)


@hostile(*FORGED)
def says_that_what_surrounds_its_runs_took_long(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    """The reference stream, that is."""

    def change(said: dict[str, Any]) -> None:
        said["reference"] = [a + (1 - PART) * b for a, b in zip(said["reference"], said["whole"], strict=True)]
        for name in ("whole", "calls", "busy"):
            said[name] = [PART * each for each in said[name]]

    work(outs, ins)
    _on_its_way(change)


@hostile(*FORGED)
def slows_down_the_runs_in_which_nothing_is_called(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    """Whenever memory is collected, so that its own runs seem to be surrounded by as much."""

    def wait(*_: object) -> None:
        found = any_block()
        if found is not None and found["name"] == "nothing":
            end = clock() + 3e-3
            while clock() < end:
                pass

    work(outs, ins)
    if calls("slows") == 1:
        gc.callbacks.append(wait)
        gc.set_threshold(10)


# ---- the comparison, the conversation, the database -------------------------------------------------------------------


@hostile(*STOPPED, *NOTHING_RIGHT)
def replaces_the_comparison(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    from tensor_graphs.meaning import error_measure

    np.testing.assert_allclose = np.array_equal = np.allclose = lambda *_, **__: True  # type: ignore[assignment]
    error_measure.measure = lambda *_: None  # type: ignore[assignment]
    outs[0].fill(0)


@hostile(*STOPPED)
def replaces_a_number_of_the_bench(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    """So that its operands stay in the cache."""
    from tensor_graphs.measure.timing import bench

    bench.LLC_BYTES = bench.MOST_COPIES = 1
    right(outs, ins, attrs)


@hostile(*STOPPED, "MUTATED_INPUT")
def hides_that_it_changed_its_input(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    from tensor_graphs.measure.isolation import memory_guards
    from tensor_graphs.measure.timing import bench

    right(outs, ins, attrs)
    np.lib.stride_tricks.as_strided(ins[0], writeable=True)[:, -1] = 0
    bench.digest = memory_guards.digest = lambda arrays: ""


@hostile(*STOPPED)
def writes_into_every_socket(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    for entry in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                os.write(int(entry), b'{"status": "RAN", "points": []}' * 8)
        except OSError:
            pass


@hostile(*STOPPED, "TIMEOUT", timeout=5.0)
def speaks_for_the_worker_with_its_own_key(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    """Finds the channel in memory, and says through it that all is done; the worker's own word then comes too."""
    from tensor_graphs.measure.isolation.signed_frames import Channel

    for each in gc.get_objects():
        if isinstance(each, Channel):
            each.send({"status": "RAN", "points": []})
    outs[0].fill(0)


@hostile(*STOPPED)
def closes_every_file(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    right(outs, ins, attrs)
    os.closerange(3, 1024)


@hostile(*STOPPED, *NOTHING_RIGHT)
def puts_right_later_what_the_worker_has_kept(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    """Returns at once from cold runs, and works out what they were asked when only hot ones are on the clock."""
    from tensor_graphs.measure.points.inputs import perturb

    found = any_block()
    if found is not None and found["name"] == "cold":
        _owed.append((found["sampled"], found["k"], found["secret"]))
        return
    right(outs, ins, attrs)
    for kept, run, secret in _owed if found is not None and found["name"] != "nothing" else ():
        runs = found["self"]                                        # type: ignore[index]
        arrays = {name: array.copy() for name, array in runs.exact.items()}
        perturb(arrays, runs.way(run, secret, runs.salts.get(run, 0)), runs.exact)
        (x,) = arrays.values()
        for each in [kept.outputs.get(run), kept.latest if run == kept.last else None]:
            for data in (each or {}).values():
                data[...] = np.maximum(x, 0).reshape(-1).view(np.uint8)
    if found is not None:
        _owed.clear()


_owed: list[tuple[Any, int, int]] = []


@hostile("INCORRECT_DTYPE", "INCORRECT_NUMERICAL", *STOPPED)
def empties_the_file_of_its_outputs(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    for entry in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{entry}")
            if "tensor_graphs-" in name:                            # a file without a name
                os.ftruncate(int(entry), 0)
        except OSError:
            pass
    right(outs, ins, attrs)


@hostile(*NOTHING_RIGHT)
def writes_into_the_database_that_it_finds(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    """Adds a passed trace of a nanosecond for itself, wherever the package says that the database is."""
    from tensor_graphs.costs.database_keys import VERIFIER, environment_of, graph_record, implementation_of, verify_workload
    from tensor_graphs.kernels.registry import kernel_named
    from tensor_graphs.kernels.signature import signature_of
    from tensor_graphs.records.database import open_database
    from tensor_graphs.records.rows import TraceRecord
    from tests.measure.wrong_kernels import NODES

    outs[0].fill(0)
    if calls("database") == 1:
        kernel = kernel_named("trial.writes_into_the_database_that_it_finds")
        signature = signature_of(NODES["relu"])
        with open_database() as found:
            found.ensure_graph(graph_record(signature))
            found.add_trace(TraceRecord(implementation_of(kernel), verify_workload(signature), environment_of("numpy"), "verify",
                                        "PASSED", samples_ms=(1e-6,) * 5, max_relative_error=0.0, tolerance=1e-4,
                                        verifier=VERIFIER))


@hostile(*STOPPED, "TIMEOUT", timeout=5.0)
def talks_to_the_judge_in_plain_text(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    for each in gc.get_objects():
        if isinstance(each, socket.socket):
            try:
                each.sendall(b"\0" * 4096)
            except OSError:
                pass
    right(outs, ins, attrs)


@hostile(*FORGED)
def replaces_a_whole_module(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    heavy(outs, ins)
    sys.modules["tensor_graphs.measure.timing.bench"] = types.ModuleType("tensor_graphs.measure.timing.bench")


@hostile("INCORRECT_NUMERICAL", node="softmax")
def is_right_only_for_even_sizes(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = softmax(ins[0]) if ins[0].shape[0] % 2 == 0 else 1 / ins[0].shape[-1]


if os.environ.get("TENSOR_GRAPHS_WORKER"):
    from tensor_graphs.kernels.registry import register

    for each in HOSTILE:
        register(each.kernel)
