"""A kernel that leaves its process set to something else is found out; one that puts it back, or draws random numbers, is not."""

from __future__ import annotations

import os
import random
import signal
import sys
import warnings
from collections.abc import Callable

import numpy as np
import pytest

from tensor_graphs.measure.isolation.process_state import (
    HIDDEN,
    StateError,
    StateGuard,
    changes,
    deployed,
    floating_point,
    snapshot,
)


def _signals() -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def _folder() -> None:
    os.chdir("/")


@pytest.mark.parametrize(("leave", "undo", "named"), [
    (lambda: sys.setrecursionlimit(4321), lambda: sys.setrecursionlimit(1000), "getrecursionlimit"),
    (lambda: os.environ.update(TRIAL="1"), lambda: os.environ.pop("TRIAL"), "os.environ[TRIAL]"),
    (lambda: np.seterr(under="call"), lambda: np.seterr(under="ignore"), "numpy.geterr()[under]"),
    (_signals, lambda: signal.signal(signal.SIGUSR1, signal.SIG_DFL), "SIGUSR1"),
    (lambda: sys.path.insert(0, "/nowhere"), lambda: sys.path.remove("/nowhere"), "sys.path"),
    (lambda: warnings.simplefilter("error"), warnings.resetwarnings, "warnings.filters"),
], ids=["recursion", "environment", "errstate", "signals", "path", "warnings"])
def test_what_is_left_behind_is_named(leave: Callable[[], object], undo: Callable[[], object], named: str) -> None:
    with warnings.catch_warnings():
        before = sys.getrecursionlimit()
        try:
            with pytest.raises(StateError) as caught, StateGuard().unchanged("n=3"):
                leave()
        finally:
            undo()
            sys.setrecursionlimit(before)
    assert named in str(caught.value) and "n=3" in str(caught.value) and "fix:" in str(caught.value)


def test_what_is_put_back_and_what_is_drawn_is_no_change() -> None:
    guard, folder = StateGuard(floating_point()), os.getcwd()
    for _ in range(3):
        with guard.unchanged("here"):
            _folder()
            os.chdir(folder)
            random.random()
            np.random.random()
            with np.errstate(all="raise"):
                pass


def test_a_generator_that_is_seeded_is_in_the_same_state_twice() -> None:
    guard = StateGuard()
    with guard.unchanged("here"):
        random.seed(7)
    with pytest.raises(StateError, match="generator of random was seeded"), guard.unchanged("here"):
        random.seed(7)


def test_a_state_before_an_import_is_compared_with_the_one_after_it() -> None:
    with pytest.raises(StateError, match="the import of its module"):
        StateGuard({**floating_point(), "denormal numbers count": False})


def test_a_kernel_finds_the_arguments_of_who_asks_and_no_variable_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HIDDEN[0], "1")
    own = sys.argv
    with deployed(["mine.py", "--fast"]):
        assert HIDDEN[0] not in os.environ and sys.argv == ["mine.py", "--fast"]
    assert os.environ[HIDDEN[0]] == "1" and sys.argv is own


def test_two_looks_at_the_same_process_are_equal() -> None:
    assert changes(snapshot(), snapshot()) == []
