"""wrong_kernels: kernels on a fake device that are wrong where only its own memory shows it. Workers import this module."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tensor_graphs.devices.device_registry import device_named
from tensor_graphs.kernels.kernel import HostCall, Kernel, Spec, source_of
from tensor_graphs.kernels.registry import register
from tests.fake import backend as backend
from tests.fake.device import Fake

Arrays = Sequence[np.ndarray]


def writes_only_once(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any], done: list[int] = []) -> None:  # noqa: B006
    """The second run finds its outputs in the arena, where the first one left them."""
    if not done:
        np.maximum(ins[0], 0, out=outs[0])
    done.append(1)


def changes_its_operand(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    """The copy that it was given; the caller's array on the host stays as it is."""
    np.maximum(ins[0], 0, out=outs[0])
    if ins[0].size:
        ins[0].reshape(-1)[:1] += 1


def writes_behind_its_output(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    np.maximum(ins[0], 0, out=outs[0])
    base = outs[0].base
    if isinstance(base, np.ndarray) and outs[0].size:
        at = outs[0].ctypes.data - base.ctypes.data + outs[0].nbytes
        base[at:at + 4] = 0


def honest(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    np.maximum(ins[0], 0, out=outs[0])


def far(spec: Spec) -> HostCall:
    """An honest kernel of a device to which a copy takes much longer than any call."""
    device = device_named("fake")
    assert isinstance(device, Fake)
    device.latency = 4e-3
    return HostCall(honest)


def honest_of_two(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    np.multiply(ins[0], ins[1], out=outs[0])


def kernel(function: Any, op: str = "relu") -> Kernel:
    return Kernel(f"fake.{function.__name__}", "fake", op, lambda spec: HostCall(function), lambda spec: None,
                  source_of(function), __name__)


KERNELS = {f.__name__: kernel(f) for f in (writes_only_once, changes_its_operand, writes_behind_its_output, honest)}
KERNELS["honest_of_two"] = kernel(honest_of_two, "mul")
KERNELS["far"] = replace(kernel(honest), name="fake.far", build=far)
KERNELS["contiguous"] = replace(kernel(honest_of_two, "mul"), name="fake.contiguous", contiguous=True)
KERNELS["contiguous_and_wrong"] = replace(kernel(changes_its_operand), name="fake.contiguous_and_wrong", contiguous=True)

if os.environ.get("TENSOR_GRAPHS_WORKER"):                          # where a kernel of the table is judged, and nowhere else
    for each in KERNELS.values():
        register(each)
