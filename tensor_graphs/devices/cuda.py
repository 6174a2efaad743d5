"""cuda: NVIDIA GPUs, through the driver's own interface (cuda.bindings, the extra `cuda`). Imported when a plan needs one.

All work runs in the order of the calls, on the default stream of the device's primary context. Libraries that use that context too
(torch) see what was written without further synchronisation. Memory comes from the device's pool.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tensor_graphs.devices import nvrtc
from tensor_graphs.devices.cpu import CPU
from tensor_graphs.devices.device import Device, DeviceError, DeviceLost, Memory
from tensor_graphs.devices.device_registry import register_device
from tensor_graphs.devices.free_memory import OutOfMemory

log = logging.getLogger(__name__)

HEADERS = Path(__file__).resolve().parent.parent / "codegen"
"""Folder of the headers of generated kernels."""

OLDEST = 80
"""Ten times the lowest compute capability for which generated kernels are written."""

OVERLAPS = (9, 0)
"""Compute capability from which on a kernel can be placed on the device while the one before it ends."""

UNITS = (((12, 0), {"flops_f32": 128, "flops_f64": 2, "flops_bf16": 512, "flops_f16": 512, "flops_f8e4m3": 1024}),
         ((10, 0), {"flops_f32": 128, "flops_f64": 64, "flops_bf16": 4096, "flops_f16": 4096, "flops_f8e4m3": 8192}),
         ((9, 0), {"flops_f32": 128, "flops_f64": 64, "flops_bf16": 2048, "flops_f16": 2048, "flops_f8e4m3": 4096}),
         ((8, 9), {"flops_f32": 128, "flops_f64": 2, "flops_bf16": 512, "flops_f16": 512, "flops_f8e4m3": 1024}),
         ((8, 6), {"flops_f32": 128, "flops_f64": 2, "flops_bf16": 512, "flops_f16": 512}),
         ((8, 0), {"flops_f32": 64, "flops_f64": 32, "flops_bf16": 1024, "flops_f16": 1024}),
         ((0, 0), {"flops_f32": 64, "flops_f64": 2}))
"""(lowest compute capability, multiply-adds of a multiprocessor per clock by the constant's name), the newest first: of float units
and of tensor cores that add in f32 and skip no zeros. Source: data sheets of A100, RTX A6000, L40S, H200, B200 and RTX PRO 6000,
divided by their clocks and multiprocessors. GPUs for games may have half of the tensor cores' rates, so these are upper bounds."""

STREAM = 0
"""The default stream of the context."""

STAGED, STAGES = 4096, 64
"""STAGED: most bytes of a copy that goes through pinned host memory, so that the caller need not wait for it to begin. STAGES:
number of such buffers in each direction."""

_LOST = frozenset({"CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_LAUNCH_TIMEOUT", "CUDA_ERROR_ASSERT",
                   "CUDA_ERROR_MISALIGNED_ADDRESS", "CUDA_ERROR_ILLEGAL_INSTRUCTION", "CUDA_ERROR_INVALID_ADDRESS_SPACE",
                   "CUDA_ERROR_INVALID_PC", "CUDA_ERROR_HARDWARE_STACK_ERROR", "CUDA_ERROR_ECC_UNCORRECTABLE",
                   "CUDA_ERROR_CONTEXT_IS_DESTROYED", "CUDA_ERROR_UNKNOWN"})
"""Errors after which the context fails all calls."""

_thread = threading.local()
"""Attribute `device`: the device whose context is the thread's current one."""


TENSOR_MAP_KINDS = {"u8": "CU_TENSOR_MAP_DATA_TYPE_UINT8", "u16": "CU_TENSOR_MAP_DATA_TYPE_UINT16",
                    "tf32": "CU_TENSOR_MAP_DATA_TYPE_TFLOAT32"}

FILL_SHARED = """extern "C" __global__ void fill_shared(unsigned word, unsigned count) {
    extern __shared__ unsigned words[];
    for (unsigned i = threadIdx.x; i < count; i += blockDim.x) ((volatile unsigned *)words)[i] = word;
}"""


NO_DRIVER = "NVIDIA's driver is not here (it is installed with the system, not by pip); release 580 or newer is needed"


def why_missing(index: int = 0) -> str | None:
    """Return all that is missing before this GPU can be used, with what to do, as text; None if nothing is."""
    reason = nvrtc.why_missing()
    if reason is not None:
        return reason if _has_driver() else f"{reason}; {NO_DRIVER}"
    from cuda.bindings import driver

    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as e:                                       # the driver's library is not there
        log.debug("the driver's library: %s", e)
        return NO_DRIVER
    if int(status):
        return f"NVIDIA's driver finds no device it can use ({status.name})"
    status, count = driver.cuDeviceGetCount()
    if int(status) or index >= count:
        return f"cuda:{index} is not here; the driver lists {0 if int(status) else count} devices"
    return None


def _has_driver() -> bool:
    """Return whether the driver's library can be loaded, without cuda.bindings."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def make_known(index: int = 0) -> Device | None:
    """Register the device cuda:index and return it; None where there is none (`why_missing` says why)."""
    return register_device(Cuda(index)) if why_missing(index) is None else None


class Replay:
    """Launches that were captured once, and run again in one call."""

    def __init__(self, device: Cuda, graph: Any) -> None:
        self.device, self.graph = device, graph
        weakref.finalize(self, _destroy, device, graph).atexit = False

    def run(self) -> None:
        self.device.check(self.device.driver.cuGraphLaunch(self.graph, STREAM), "cuGraphLaunch")


def _tensor_map(driver: Any, kind: str, at: int, sizes: Sequence[int], steps: Sequence[int], box: Sequence[int],
                every: Sequence[int]) -> tuple[Any, ...]:
    """Return the driver's answer to a request for a map (kernels.kernel.TensorMap) of the array at an address. An array with an
    empty axis gets a map that is never used, as no block is launched for it."""
    answer: tuple[Any, ...] = driver.cuTensorMapEncodeTiled(
        getattr(driver.CUtensorMapDataType, TENSOR_MAP_KINDS[kind]), len(sizes), at,
        [driver.cuuint64_t(max(1, n)) for n in sizes], [driver.cuuint64_t(n) for n in steps],
        [driver.cuuint32_t(n) for n in box], [driver.cuuint32_t(n) for n in every],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE, driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
    return answer


class Cuda(Device):
    """One GPU. alignment: that of the pool, more than the widest access. target: the architecture for which texts are compiled; for
    9.0 the one with instructions that no later generation has (tensor_cores.cuh)."""

    kind = "cuda"
    alignment = 256

    def __init__(self, index: int = 0) -> None:
        from cuda.bindings import driver

        self.driver, self.index, self.name, self.dlpack = driver, index, f"cuda:{index}", (2, index)
        self._lock = threading.Lock()
        self.check(driver.cuInit(0), "cuInit")
        self.handle = self.check(driver.cuDeviceGet(index), "cuDeviceGet")
        self._context = self.check(driver.cuDevicePrimaryCtxRetain(self.handle), "cuDevicePrimaryCtxRetain")
        self.use()
        attribute = driver.CUdevice_attribute
        self.capability = tuple(self._attribute(a) for a in (attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                                                             attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR))
        self.multiprocessors = self._attribute(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        self.architecture = f"sm_{self.capability[0]}{self.capability[1]}"
        self.target = f"{self.architecture}a" if self.capability == (9, 0) else self.architecture
        self._pool = self.check(driver.cuDeviceGetDefaultMemPool(self.handle), "cuDeviceGetDefaultMemPool")
        keep = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        self.check(driver.cuMemPoolSetAttribute(self._pool, keep, driver.cuuint64_t(2**64 - 1)), "cuMemPoolSetAttribute")
        self._stages = int(self.check(driver.cuMemHostAlloc(2 * STAGED * STAGES, 0), "memory of the host that the device reads"))
        self._staged, self._staging = 0, threading.Lock()
        self._modules: dict[str, Any] = {}
        self._entries: dict[tuple[str, str], Any] = {}
        self._seconds, self._last = 0.0, self.mark()

    # ---- the driver ----

    def use(self) -> None:
        """Make this device's context the current one of the calling thread."""
        if getattr(_thread, "device", None) is not self:
            self.check(self.driver.cuCtxSetCurrent(self._context), "cuCtxSetCurrent")
            _thread.device = self

    def check(self, result: tuple[Any, ...], what: str) -> Any:
        """Return the values of a driver's call. Raises DeviceError, DeviceLost, OutOfMemory."""
        status, *values = result
        if int(status):
            if status.name == "CUDA_ERROR_OUT_OF_MEMORY":
                raise OutOfMemory(f"{what}: {self.name} has no memory left\n"
                                  "  fix: smaller sizes, or give back what others hold there")
            if status.name in _LOST:
                raise DeviceLost(f"{what}: the context of {self.name} is lost ({status.name}): a kernel that ran before went "
                                  "wrong, and nothing can be computed there any more\n  fix: a new process")
            raise DeviceError(f"{what} failed on {self.name}: {status.name}")
        return values[0] if len(values) == 1 else tuple(values) if values else None

    def _attribute(self, which: Any) -> int:
        return int(self.check(self.driver.cuDeviceGetAttribute(which, self.handle), "cuDeviceGetAttribute"))

    # ---- memory ----

    def capacity(self) -> int | None:
        return int(self.check(self.driver.cuDeviceTotalMem(self.handle), "cuDeviceTotalMem"))

    def free(self) -> int:
        """Return the bytes that can be allocated: free ones, and those that our pool holds and does not use."""
        self.use()
        d = self.driver
        free, _ = self.check(d.cuMemGetInfo(), "cuMemGetInfo")
        held, used = (int(self.check(d.cuMemPoolGetAttribute(self._pool, a), "cuMemPoolGetAttribute")) for a in (
            d.CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, d.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT))
        return int(free) + held - used

    def require(self, nbytes: int, what: str, fix: str) -> None:
        left = self.free()
        if nbytes > left:
            raise OutOfMemory(f"{what} takes {nbytes / 1e9:.3g} GB of {self.name}, which has {left / 1e9:.3g} GB left\n"
                              f"  fix: {fix}")

    def allocate(self, nbytes: int) -> Memory:
        if not nbytes:
            return Memory(self, 0, 0, None)
        self.use()
        what = f"an allocation of {nbytes / 1e9:.3g} GB"
        if nbytes > (self.capacity() or 0):                             # a pool would take all that there is before it gave up
            raise OutOfMemory(f"{what}: {self.name} has not so much in all\n  fix: smaller sizes")
        result = self.driver.cuMemAllocAsync(nbytes, STREAM)
        if int(result[0]):                                              # what the pool holds in pieces may do as a whole
            self.synchronise()
            self.driver.cuMemPoolTrimTo(self._pool, 0)
            result = self.driver.cuMemAllocAsync(nbytes, STREAM)
            if int(result[0]):
                self.driver.cuMemPoolTrimTo(self._pool, 0)
        address = int(self.check(result, what))
        owner = _Owner()
        weakref.finalize(owner, _give_back, self, address).atexit = False
        return Memory(self, address, nbytes, owner)

    def upload(self, source: Memory, into: Memory) -> None:
        assert source.device is CPU
        if not into.nbytes:
            return
        self.use()
        if into.nbytes > STAGED:
            self.check(self.driver.cuMemcpyHtoD(into.address, source.address, into.nbytes), "a copy to the device")
            return
        with self._staging:
            place = self._stage()
            ctypes.memmove(place, source.address, into.nbytes)
            self.check(self.driver.cuMemcpyHtoDAsync(into.address, place, into.nbytes, STREAM), "a copy to the device")

    def download(self, source: Memory, into: Memory) -> None:
        self.download_all([(source, into)])

    def download_all(self, pairs: Sequence[tuple[Memory, Memory]]) -> None:
        self.use()
        with self._staging:
            staged: list[tuple[int, int, int]] = []
            for source, into in pairs:
                assert into.device is CPU
                if source.nbytes > STAGED or len(staged) == STAGES:
                    self.check(self.driver.cuMemcpyDtoH(into.address, source.address, source.nbytes), "a copy from the device")
                elif source.nbytes:
                    place = self._stages + STAGED * (STAGES + len(staged))
                    begun = self.driver.cuMemcpyDtoHAsync(place, source.address, source.nbytes, STREAM)
                    self.check(begun, "a copy from the device")
                    staged.append((into.address, place, source.nbytes))
            if staged:
                self.synchronise()
            for address, place, nbytes in staged:
                ctypes.memmove(address, place, nbytes)

    def _stage(self) -> int:
        """Return a buffer for a copy to the device; when all are used, wait for the work begun, and start with the first again."""
        if self._staged == STAGES:
            self.synchronise()
            self._staged = 0
        self._staged += 1
        return self._stages + STAGED * (self._staged - 1)

    def copy(self, source: Memory, into: Memory) -> None:
        if source.nbytes:
            self.use()
            self.check(self.driver.cuMemcpyDtoDAsync(into.address, source.address, source.nbytes, STREAM), "a copy on the device")

    def fill(self, memory: Memory, byte: int) -> None:
        if memory.nbytes:
            self.use()
            self.check(self.driver.cuMemsetD8Async(memory.address, byte, memory.nbytes, STREAM), "a fill of memory")

    # ---- time ----

    def synchronise(self) -> None:
        self.use()
        self.check(self.driver.cuStreamSynchronize(STREAM), "waiting for the device")

    def lost(self) -> bool:
        (status,) = self.driver.cuStreamSynchronize(STREAM)
        return status.name in _LOST

    def mark(self, stream: Any = STREAM) -> Any:
        self.use()
        d = self.driver
        event = self.check(d.cuEventCreate(0), "cuEventCreate")
        if stream == STREAM:
            self.check(d.cuEventRecord(event, STREAM), "cuEventRecord")
        else:
            external = d.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL
            self.check(d.cuEventRecordWithFlags(event, stream, external), "cuEventRecordWithFlags")
        return _Event(self, event)

    def come_before(self, stream: int) -> None:
        event = self.mark()
        self.check(self.driver.cuStreamWaitEvent(stream, event.event, 0), "cuStreamWaitEvent")

    def between(self, first: Any, last: Any) -> float:
        self.check(self.driver.cuEventSynchronize(last.event), "waiting for the device")
        return float(self.check(self.driver.cuEventElapsedTime(first.event, last.event), "cuEventElapsedTime")) * 1e-3

    def passed(self, mark: Any) -> bool:
        (status,) = self.driver.cuEventQuery(mark.event)
        if status.name == "CUDA_ERROR_NOT_READY":
            return False
        self.check((status,), "asking for a mark")
        return True

    def clock(self) -> float:
        with self._lock:                                            # from one reading to the next: an event's time has few digits
            now = self.mark()
            self._seconds += self.between(self._last, now)
            self._last = now
            return self._seconds

    # ---- what it is ----

    def hardware(self) -> tuple[str, int, tuple[tuple[str, str], ...]]:
        name = self.check(self.driver.cuDeviceGetName(128, self.handle), "cuDeviceGetName")
        version = int(self.check(self.driver.cuDriverGetVersion(), "cuDriverGetVersion"))
        gib = round((self.capacity() or 0) / (1 << 30)) << 30
        return (name.split(b"\0")[0].decode(), gib,
                (("compute_capability", ".".join(map(str, self.capability))),
                 ("driver", f"CUDA {version // 1000}.{version % 1000 // 10}"), ("multiprocessors", str(self.multiprocessors))))

    def peaks(self) -> Mapping[str, float]:
        """Return peak rates from its highest clocks and its units: memory moves two words a clock, a unit does one multiply-add a
        clock. Rates are left out where the driver does not report a clock (a part of a GPU, a GPU on a board)."""
        of = self.driver.CUdevice_attribute
        memory, wires, clock = (self._attribute(a) for a in (of.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE,
                                                             of.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH,
                                                             of.CU_DEVICE_ATTRIBUTE_CLOCK_RATE))          # kHz, bits, kHz
        units = next(u for least, u in UNITS if self.capability >= least) if clock else {}
        rates = {name: 2e3 * self.multiprocessors * clock * count for name, count in units.items()}
        return {"read_bandwidth": 2e3 * memory * wires / 8, **rates} if memory and wires else rates

    def features(self) -> frozenset[str]:
        return frozenset({self.architecture})

    # ---- images ----

    def entry(self, text: str, name: str, shared: int) -> Any:
        """Return the kernel `name` of a text, compiled for this device now unless the cache has it. Raises ToolchainError."""
        self.use()
        d = self.driver
        with self._lock:
            if (text, name) not in self._entries:
                if text not in self._modules:
                    cubin = nvrtc.compiled(text, self.target, HEADERS)
                    self._modules[text] = self.check(d.cuModuleLoadData(cubin), "loading an image")
                self._entries[text, name] = self.check(d.cuModuleGetFunction(self._modules[text], name.encode()), f"finding {name}")
            entry = self._entries[text, name]
            if shared > 48 << 10:
                most = d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                self.check(d.cuFuncSetAttribute(entry, most, shared), "asking for shared memory")
            return entry

    def launch(self, entry: Any, grid: int, block: int, shared: int, parameters: int, stream: Any = STREAM,
               waits: bool = False) -> None:
        """Begin a kernel. parameters: address of an array of the addresses of its arguments. waits: the kernel itself waits for
        those before it (kernel.Launch); in a capture, whose launches need no Python in between, it may be placed before those
        end."""
        d = self.driver
        if self.shared_byte is not None:
            self._fill_shared(self.shared_byte)
            self._prefer_shared(entry, 100)
        if waits and stream != STREAM and self.capability >= OVERLAPS:
            how = d.CUlaunchAttribute()
            how.id = d.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            how.value.programmaticStreamSerializationAllowed = 1
            config = d.CUlaunchConfig()
            config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
            config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
            config.sharedMemBytes, config.hStream, config.attrs, config.numAttrs = shared, stream, [how], 1
            self.check(d.cuLaunchKernelEx(config, entry, parameters, 0), "a launch")
            return
        self.check(d.cuLaunchKernel(entry, grid, 1, 1, block, 1, 1, shared, stream, parameters, 0), "a launch")
        if self.shared_byte is not None:
            self._prefer_shared(entry, -1)

    def tensor_map(self, kind: str, at: int, sizes: Sequence[int], steps: Sequence[int], box: Sequence[int],
                   every: Sequence[int]) -> bytes:
        encoded = self.check(_tensor_map(self.driver, kind, at, sizes, steps, box, every), "a tensor map")
        return ctypes.string_at(int(encoded.getPtr()), 128)

    def _fill_shared(self, byte: int) -> None:
        """Fill the shared memory of each multiprocessor, by blocks that take all of it. The next kernel finds those bytes, if it
        gets as large a part of the level-1 cache and no other launch comes between."""
        most = self._attribute(self.driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
        arguments = np.array([byte * 0x01010101, most // 4], np.uint64)
        parameters = arguments.ctypes.data + 8 * np.arange(len(arguments), dtype=np.uint64)
        entry, blocks = self.entry(FILL_SHARED, "fill_shared", most), 2 * self.multiprocessors
        result = self.driver.cuLaunchKernel(entry, blocks, 1, 1, 1024, 1, 1, most, STREAM, parameters.ctypes.data, 0)
        self.check(result, "a launch")

    def _prefer_shared(self, entry: Any, percent: int) -> None:
        """Set the percentage of the level-1 cache that is shared memory for a kernel (-1: the driver chooses)."""
        which = self.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        self.check(self.driver.cuFuncSetAttribute(entry, which, percent), "asking for shared memory")

    def captured(self, work: Callable[[Any], None]) -> Replay | None:
        """Capture the launches of `work` on the stream that it gets, without running them; None where that is impossible."""
        self.use()
        try:
            return self._captured(work)
        except (DeviceError, OutOfMemory) as e:
            log.debug("launches are not captured: %s", e)
            return None

    def _captured(self, work: Callable[[Any], None]) -> Replay:
        d = self.driver
        stream = self.check(d.cuStreamCreate(d.CUstream_flags.CU_STREAM_NON_BLOCKING), "cuStreamCreate")
        try:
            mode = d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
            self.check(d.cuStreamBeginCapture(stream, mode), "cuStreamBeginCapture")
            try:
                work(stream)
            finally:
                ended = d.cuStreamEndCapture(stream)                # whatever went wrong, the capture ends
            graph = self.check(ended, "cuStreamEndCapture")
            try:
                return Replay(self, self.check(d.cuGraphInstantiate(graph, 0), "cuGraphInstantiate"))
            finally:
                d.cuGraphDestroy(graph)
        finally:
            d.cuStreamDestroy(stream)


class _Owner:
    """Owner of an allocation, which is freed with it."""


class _Event:
    def __init__(self, device: Cuda, event: Any) -> None:
        self.event = event
        weakref.finalize(self, device.driver.cuEventDestroy, event).atexit = False


def _give_back(device: Cuda, address: int) -> None:
    try:
        device.use()
        device.driver.cuMemFreeAsync(address, STREAM)
    except DeviceError:                                             # the context is lost, and all its memory with it
        log.debug("memory of %s was not given back", device.name)


def _destroy(device: Cuda, graph: Any) -> None:
    device.driver.cuGraphExecDestroy(graph)
