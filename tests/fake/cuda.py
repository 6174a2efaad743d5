"""cuda: a GPU that is none: NVIDIA's driver as far as `devices/cuda.py` calls it, over memory of the host, and kernels as C++.

So whatever is between a kernel's text and its row is seen without a GPU: memory, zones, launches, an error after which the context
is lost, a kernel that does not end. Threads take turns (tests/codegen/emulated.py), in the other order every second launch. It
computes as soon as it is asked to, and its times are the host's.

`install()` makes it known as cuda:0, in a worker too if the variable is set that names its folder; `remove()` forgets it.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import time
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.codegen import emulated

VARIABLE = "TENSOR_GRAPHS_EMULATED_CUDA"
"""names the folder of what is compiled, where this is to be the GPU"""

MOST_SHARED = 227 << 10
ATTRIBUTES = {"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": 9, "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": 0,
              "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT": 2, "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": MOST_SHARED,
              "CU_DEVICE_ATTRIBUTE_CLOCK_RATE": 2_000_000, "CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE": 3_200_000,
              "CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH": 6000}
TOTAL = 4 << 30


_real: list[Any] = []
"""NVIDIA's, while this one is in its place"""


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_NOT_SUPPORTED = 801
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


class _Names:
    """An enum of the driver's: each name is itself."""

    def __getattr__(self, name: str) -> str:
        return name


def _said(*values: Any) -> tuple[Any, ...]:
    return (CUresult.CUDA_SUCCESS, *values)


class Driver:
    """What `cuda.bindings.driver` has, as far as it is called. lost: the error that every call gives from now on."""

    CUdevice_attribute, CUmemPool_attribute, CUfunction_attribute = _Names(), _Names(), _Names()
    cuuint64_t = int

    def __init__(self) -> None:
        self.lost: CUresult | None = None
        self._held: dict[int, np.ndarray] = {}
        self.launches, self.shared = 0, 0

    def __getattr__(self, name: str) -> Any:
        """A call by which nothing happens here."""
        if not name.startswith("cu"):
            raise AttributeError(name)
        return lambda *given: (self.lost,) if self.lost is not None else _said(*SILENT.get(name, ()))

    def cuDeviceGetAttribute(self, which: str, device: int) -> tuple[Any, ...]:
        return _said(ATTRIBUTES[which])

    def cuMemAllocAsync(self, nbytes: int, stream: int) -> tuple[Any, ...]:
        if self.lost is not None:
            return self.lost, 0
        if nbytes > TOTAL:
            return CUresult.CUDA_ERROR_OUT_OF_MEMORY, 0
        raw = np.full(nbytes + 256, 0xC3, np.uint8)
        address = raw.ctypes.data + -raw.ctypes.data % 256
        self._held[address] = raw
        return _said(address)

    def cuMemFreeAsync(self, address: int, stream: int) -> tuple[Any, ...]:
        self._held.pop(address, None)
        return _said()

    def _moved(self, into: int, source: int, nbytes: int, stream: int = 0) -> tuple[Any, ...]:
        if self.lost is not None:
            return (self.lost,)
        ctypes.memmove(into, source, nbytes)
        return _said()

    cuMemcpyHtoD = cuMemcpyDtoH = cuMemcpyHtoDAsync = cuMemcpyDtoHAsync = cuMemcpyDtoDAsync = _moved

    def cuMemHostAlloc(self, nbytes: int, flags: int) -> tuple[Any, ...]:
        return self.cuMemAllocAsync(nbytes, 0)

    def cuMemsetD8Async(self, address: int, byte: int, nbytes: int, stream: int) -> tuple[Any, ...]:
        if self.lost is not None:
            return (self.lost,)
        ctypes.memset(address, byte, nbytes)
        return _said()

    CUstream_flags = CUstreamCaptureMode = _Names()

    def cuStreamBeginCapture(self, stream: Any, mode: str) -> tuple[Any, ...]:
        """Kernels here are functions that run; what they would do later is in nobody's hands."""
        return (CUresult.CUDA_ERROR_NOT_SUPPORTED,)

    def cuEventRecord(self, event: list[float], stream: int) -> tuple[Any, ...]:
        event[:] = [time.perf_counter()]
        return _said()

    def cuEventCreate(self, flags: int) -> tuple[Any, ...]:
        return _said([0.0])

    def cuEventQuery(self, event: list[float]) -> tuple[Any, ...]:
        """As if the device were far behind the host, which it never is: nothing is repeated for that."""
        return (CUresult.CUDA_ERROR_NOT_READY if self.lost is None else self.lost,)

    def cuEventElapsedTime(self, first: list[float], last: list[float]) -> tuple[Any, ...]:
        return (self.lost, 0.0) if self.lost is not None else _said((last[0] - first[0]) * 1e3)

    def cuFuncSetAttribute(self, function: Any, which: str, value: int) -> tuple[Any, ...]:
        return (CUresult.CUDA_ERROR_INVALID_VALUE,) if value > MOST_SHARED else _said()

    def cuLaunchKernel(self, entry: Any, x: int, y: int, z: int, block: int, by: int, bz: int, shared: int, stream: Any,
                       parameters: int, extra: int) -> tuple[Any, ...]:
        if self.lost is not None:
            return (self.lost,)
        if x >= 1 << 31:
            return (CUresult.CUDA_ERROR_INVALID_VALUE,)
        library, called, count, waits = entry
        places = (ctypes.c_uint64 * count).from_address(parameters)
        words = np.array([ctypes.c_uint64.from_address(at).value for at in places], np.uint64)
        self.launches += 1
        library.tg_fill_shared(self.shared)
        order = self.launches % 2
        if library.tg_run(called, words.ctypes.data_as(ctypes.c_void_p), x, block, shared, order, self.shared, waits):
            self.lost = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
        return _said()


SILENT = {"cuDeviceGetCount": (1,), "cuDeviceGet": (0,), "cuDevicePrimaryCtxRetain": (0,), "cuDeviceGetDefaultMemPool": (0,),
          "cuMemGetInfo": (TOTAL, TOTAL), "cuMemPoolGetAttribute": (0,), "cuDeviceTotalMem": (TOTAL,),
          "cuDeviceGetName": (b"an emulated GPU",), "cuDriverGetVersion": (13000,)}
"""what calls give that have no effect"""


@cache
def _words(text: str, name: str) -> int:
    """How many words a kernel of a text is given."""
    own = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#include"))
    said = subprocess.run(["g++", "-E", "-P", "-x", "c++", "-"], input=own, capture_output=True, text=True, check=True).stdout
    given = re.search(rf"\b{name}\s*\(([^)]*)\)\s*{{", said)
    assert given is not None
    return given[1].count(",") + 1


def install(folder: Path) -> None:
    """Make it cuda:0 of this process, where there is no other. folder: of what is compiled."""
    import cuda.bindings.driver
    import cuda.bindings.nvrtc

    _real.append(cuda.bindings.driver)
    made = Driver()
    sys.modules["cuda.bindings.driver"] = cuda.bindings.driver = made  # type: ignore[assignment]

    from tensor_graphs.devices.cuda import Cuda
    from tensor_graphs.devices.device_registry import register_device
    from tensor_graphs.kernels import registry

    class EmulatedCuda(Cuda):
        """A GPU whose kernels are compiled for the host."""

        def entry(self, text: str, name: str, shared: int) -> Any:
            if shared > 48 << 10:
                self.check(self.driver.cuFuncSetAttribute(None, "", shared), "asking for shared memory")
            count = _words(text, name)
            whole = text if "numbers.cuh" in text else f'#include "numbers.cuh"\n{text}'
            library = emulated._library(whole, (name,), count, folder)
            waits = any(word in text for word in ("__sync", "__shfl", "numbers.cuh"))
            return library, ctypes.cast(getattr(library, f"call_{name}"), ctypes.c_void_p), count, waits

        def _fill_shared(self, byte: int) -> None:
            self.driver.shared = byte

    register_device(EmulatedCuda())
    for backend in ("cuda", "gencuda"):
        registry.reset(backend)


def remove() -> None:
    """Forget it; NVIDIA's driver, if there is one, is asked again."""
    import cuda.bindings

    from tensor_graphs.devices.device_registry import unregister_device
    from tensor_graphs.kernels import registry

    sys.modules["cuda.bindings.driver"] = cuda.bindings.driver = _real.pop()
    unregister_device("cuda:0")
    for backend in ("cuda", "gencuda"):
        registry.reset(backend)


if os.environ.get("TENSOR_GRAPHS_WORKER") and VARIABLE in os.environ:
    install(Path(os.environ[VARIABLE]))
