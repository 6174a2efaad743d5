"""trial_kernels: kernels that tests of the compiler register: right ones of several accuracies, and one that is refused."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensor_graphs.kernels.kernel import HostCall, Kernel, source_of
from tensor_graphs.kernels.registry import register

Arrays = Sequence[np.ndarray]


def _softmax(x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        e = np.exp(x.astype(np.float64) - x.max(axis=-1, keepdims=True))
        return np.asarray(e / e.sum(axis=-1, keepdims=True))


def rough(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    """Right to 2e-5: good enough for most."""
    outs[0][...] = _softmax(ins[0]) * (1 + 2e-5)


def exact(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = _softmax(ins[0])


def useless(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0].fill(0)


def sleepy(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = _softmax(ins[0])
    time.sleep(0.003)


def steady(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = _softmax(ins[0])
    time.sleep(0.002)


def moody(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    """Slow as long as a file is there, as beside a neighbour that keeps the machine busy."""
    outs[0][...] = _softmax(ins[0])
    if os.path.exists(os.environ.get("TRIAL_NEIGHBOUR", "")):
        time.sleep(0.008)


def two_faced(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    """Right where it is judged; elsewhere it computes nothing."""
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.endswith("bench.py"):
            outs[0][...] = _softmax(ins[0])
            return
        frame = frame.f_back
    outs[0].fill(0.5)


def _kernel(function: Any) -> Kernel:
    return Kernel(f"trial.{function.__name__}", "numpy", "softmax", lambda spec: HostCall(function), lambda spec: None,
                  source_of(function), __name__)


ROUGH, EXACT, USELESS, SLEEPY, TWO_FACED, STEADY, MOODY = map(
    _kernel, (rough, exact, useless, sleepy, two_faced, steady, moody))

if os.environ.get("TENSOR_GRAPHS_WORKER"):
    for each in (ROUGH, EXACT, USELESS, SLEEPY, TWO_FACED, STEADY, MOODY):
        register(each)
