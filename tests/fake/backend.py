"""backend: numpy's functions as kernels of a fake device. Importing it makes both known, as other backends are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from tensor_graphs.devices.device_registry import register_device, unregister_device
from tensor_graphs.kernels import identity
from tensor_graphs.kernels.kernel import HostCall, Kernel, Spec, source_of
from tensor_graphs.kernels.numpy import atomics, composites
from tensor_graphs.kernels.registry import register_backend, unregister_backend
from tests.fake.device import Fake
from tests.fake.device import view as view

NAME = "fake"
DEVICE = Fake.kind


def available() -> str | None:
    return None


def versions() -> dict[str, str]:
    return {"fake": "1"}


def anything(spec: Spec) -> str | None:
    return None


def call(function: Any, spec: Spec) -> HostCall:
    return HostCall(function)


def kernels() -> list[Kernel]:
    return [Kernel(name=f"{NAME}.{op}", backend=NAME, op=op, accepts=composites.ACCEPTS.get(op, anything),
                   build=partial(call, function), source=source_of(function), module=__name__,
                   in_place=((0, 0),) if in_place else ())
            for table in (atomics.TABLE, composites.TABLE) for op, (function, in_place) in table.items()]


def copy(outs: Sequence[Any], ins: Sequence[Any], attrs: Any) -> None:
    outs[0][...] = ins[0]


def build_copy(shape: Any, out_strides: Any, in_strides: Any, itemsize: int) -> HostCall:
    return HostCall(copy)


def copy_kernel() -> Kernel:
    return Kernel(name=f"{NAME}.copy", backend=NAME, op="copy", build=partial(call, copy), accepts=anything, source=source_of(copy),
                  module=__name__, build_copy=build_copy)


def make_known() -> Fake:
    """Register the backend and a device that has counted nothing yet."""
    unregister_device(Fake.kind)
    device = Fake()
    register_device(device)
    register_backend(NAME, __name__)
    identity.reached(__name__)                                      # read now: a test may put functions of its own into this module
    return device


def forget() -> None:
    unregister_backend(NAME)
    unregister_device(Fake.kind)


make_known()
