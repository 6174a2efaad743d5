"""gpu: measures what a GPU's memory and arithmetic deliver, and the products of its backends; calibration.py stores it.

Times are the device's own. Constants, all of them maxima of a few short runs:

| name | unit | what |
|---|---|---|
| `read_bandwidth[N B]` | byte/s | all blocks reading the same N bytes again and again, past the caches of single multiprocessors |
| `copy_bandwidth[N B]` | byte/s | copying half of N bytes to the other half; what is read and what is written count |
| `read_bandwidth`, `copy_bandwidth` | byte/s | of the largest N, which no cache holds |
| `flops_f32`, `flops_f64` | flop/s | fused multiply-adds in registers, two operations each |
| `clock` | Hz | of a multiprocessor that has a block of these, in f32, to itself |
| `call_overhead` | s | one more launch in a replay of launches that wait for each other |
| `flops_bf16`, `flops_f16`, `flops_f8e4m3` | flop/s | this backend's product of square matrices |
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensor_graphs.costs.measured_rates import FLOPS, READ
from tensor_graphs.costs.roofline import estimate_seconds, says_of
from tensor_graphs.devices.device import Device, Memory
from tensor_graphs.devices.free_memory import OutOfMemory
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import device_of
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language import leaves
from tensor_graphs.language.composites import linear, scaled_linear
from tensor_graphs.language.dtypes import DTYPES
from tensor_graphs.language.graph import graph
from tensor_graphs.language.node import Node
from tensor_graphs.measure.points.single_op_plans import single_kernel_plan
from tensor_graphs.measure.rates.table import CALL, CHAIN, COPY, REPEATS, Speed, sized, takers
from tensor_graphs.measure.timing.launch_ahead import HostAhead
from tensor_graphs.runtime.arrays import device_array
from tensor_graphs.runtime.compiled_graph import bind
from tensor_graphs.runtime.device_array import empty

log = logging.getLogger(__name__)

CLOCK = "clock"

WORKING_SETS, MOVED = tuple(1 << 20 + 2 * k for k in range(6)), 2 << 30
"""bytes: 1 MiB (in the second-level cache of all GPUs known to us) to 1 GiB (memory); least bytes moved by a measurement"""

PRODUCTS = {"flops_bf16": "bf16", "flops_f16": "f16", "flops_f8e4m3": "f8e4m3"}
"""name of the constant -> dtype of both operands"""

PRODUCT_SIZE, PRODUCT_RUNS = 4096, 8
"""rows, inputs and outputs of that matrix product (137 Gflop); its runs in a row"""

THREADS, BLOCKS, ROUNDS, CHAINS = 256, 8, 1 << 14, 8
"""threads per block; blocks per multiprocessor, all of which run simultaneously; rounds per thread; multiply-adds per round"""

TEXT = f"""
extern "C" __global__ void read_again(unsigned *out, const uint4 *data, long long count, long long times) {{
    const long long step = gridDim.x * {THREADS}LL;
    unsigned found = 0;
    for (long long turn = 0; turn < times; turn++)          /* another block's part each turn: nothing stays in registers */
#pragma unroll 8
        for (long long i = (blockIdx.x + turn) % gridDim.x * {THREADS} + threadIdx.x; i < count; i += step) {{
            const uint4 x = __ldcg(data + i);
            found ^= x.x ^ x.y ^ x.z ^ x.w;
        }}
    if (found == 0x9e3779b9u) *out = found;                 /* so that it is read at all */
}}
extern "C" __global__ void copy_again(uint4 *to, const uint4 *from, long long count, long long times) {{
    const long long step = gridDim.x * {THREADS}LL;
    for (long long turn = 0; turn < times; turn++)
#pragma unroll 8
        for (long long i = (blockIdx.x + turn) % gridDim.x * {THREADS} + threadIdx.x; i < count; i += step)
            to[i] = __ldcg(from + i);
}}
extern "C" __global__ void nothing(long long unused) {{}}
""" + "".join(f"""
extern "C" __global__ void add_products_{kind}({name} *out, const {name} *given, long long *cycles, long long rounds) {{
    const long long begun = clock64();
    {name} sums[{CHAINS}] = {{}};
    const {name} x = given[0], y = given[1];
#pragma unroll 16
    for (int i = 0; i < (int)rounds; i++)
#pragma unroll
        for (int k = 0; k < {CHAINS}; k++) sums[k] = {add}(sums[k], x, y + k);
    {name} all = 0;
    for (int k = 0; k < {CHAINS}; k++) all += sums[k];
    if (all == -1) *out = all;
    if (blockIdx.x == 0 && threadIdx.x == 0) *cycles = clock64() - begun;
}}
""" for kind, name, add in (("f32", "float", "fmaf"), ("f64", "double", "fma")))


def gpu_speeds(device: Device) -> dict[str, Speed]:
    """Return the constants of the device itself: bandwidths by working set, f32 and f64 arithmetic, the clock, launch overhead."""
    speeds: dict[str, Speed] = {}
    limit = (device.capacity() or 0) // 4
    for name, of in ((READ, _reading), (COPY, _copying)):
        for nbytes in (n for n in WORKING_SETS if n <= limit):
            times = max(1, MOVED // nbytes)
            try:
                run = of(device, nbytes, times)
            except OutOfMemory:                                     # other processes hold memory: measure only sizes that fit
                break
            speeds[sized(name, nbytes)] = speeds[name] = Speed(times * nbytes / _fastest(device, run), "byte/s")
    threads = _blocks(device) * THREADS
    for name, kind in ((FLOPS, "f32"), ("flops_f64", "f64")):
        seconds = _fastest(device, _adding_products(device, kind, ROUNDS)[0])
        speeds[name] = Speed(2.0 * CHAINS * ROUNDS * threads / seconds, "flop/s")
    run, cycles = _adding_products(device, "f32", BLOCKS * ROUNDS, alone=True)
    seconds = _fastest(device, run)
    speeds[CLOCK] = Speed(cycles() / seconds, "Hz")
    speeds[CALL] = Speed(_fastest(device, _in_a_row(device)) / CHAIN, "s")
    return speeds


def products_of(backend: str) -> dict[str, Speed]:
    """Return the speed of a backend's matrix products by dtype, without those that have no kernel, or whose kernel raises."""
    speeds = {}
    for name in PRODUCTS:
        if isinstance(product_kernel(backend, name), str):
            continue
        try:
            speeds[name] = Speed(product_speed(backend, name), "flop/s")
        except Exception as e:                                      # anyone's kernel, or no memory: the others' constants count
            log.warning("%s: %s was not measured: %s: %s", backend, name, type(e).__name__, e)
    return speeds


def product_kernel(backend: str, name: str) -> Kernel | str:
    """Return the kernel with which this constant (a key of PRODUCTS) is measured, the fastest by estimate; or why there is none."""
    node = _product(name, PRODUCT_SIZE)
    taken = takers(backend, node)
    return taken if isinstance(taken, str) else min(taken, key=lambda kernel: _estimate(kernel, signature_of(node)))


def product_speed(backend: str, name: str) -> float:
    """Return the flop/s of a product of square matrices of this dtype (f8e4m3 to bf16). Raises ValueError without a kernel."""
    kernel = product_kernel(backend, name)
    if isinstance(kernel, str):
        raise ValueError(f"{backend} has no {name}: {kernel}")
    device, size = device_of(backend), PRODUCT_SIZE
    node = _product(name, size, device.name)
    rng = np.random.Generator(np.random.Philox(key=1))
    values = [rng.standard_normal((size, size), dtype=np.float32).astype(DTYPES[PRODUCTS[name]].numpy) for _ in range(2)]
    compiled = bind(single_kernel_plan(graph({"y": leaves.copy_to(node, device.name)}), kernel), {"w": values[1]})
    inputs, out = {"x": device_array(values[0], device.name)}, {"y": empty(device, (size, size), node.dtype)}

    def runs() -> None:
        for _ in range(PRODUCT_RUNS):
            compiled.run(inputs, out=out)

    return 2.0 * size ** 3 * PRODUCT_RUNS / _fastest(device, runs)


def _estimate(kernel: Kernel, signature: Signature) -> float:
    return estimate_seconds(signature, {}, kernel.backend, None, *says_of(kernel, signature.spec, {}))


def _product(name: str, size: int, device: str = "") -> Node:
    """Return the matrix product. device: name of the device to which its operand is copied first, if given."""
    kind = DTYPES[PRODUCTS[name]]
    x, w = leaves.input("x", (size, size), kind), leaves.parameter("w", (size, size), kind)
    x = leaves.copy_to(x, device) if device else x
    return scaled_linear(x, w) if kind.itemsize == 1 else linear(x, w)


# ---- kernels of our own ----


def _blocks(device: Device) -> int:
    return BLOCKS * int(dict(device.hardware()[2])["multiprocessors"])


def _launching(device: Device, name: str, *operands: Memory | int, alone: bool = False) -> Callable[..., None]:
    """Return a function that launches a kernel. alone: one block per multiprocessor, else as many as run simultaneously."""
    entry, blocks = device.entry(TEXT, name, 0), _blocks(device) // (BLOCKS if alone else 1)
    words = np.array([x.address if isinstance(x, Memory) else x for x in operands], np.uint64)
    places = words.ctypes.data + 8 * np.arange(len(words), dtype=np.uint64)

    def run(stream: Any = 0, alive: Sequence[object] = (words, operands)) -> None:      # what is given lives as long as this does
        device.launch(entry, blocks, THREADS, 0, places.ctypes.data, stream)

    return run


def _reading(device: Device, nbytes: int, times: int) -> Callable[[], None]:
    out, data = device.allocate(16), device.allocate(nbytes)
    device.fill(data, 0)
    return _launching(device, "read_again", out, data, nbytes // 16, times)


def _copying(device: Device, nbytes: int, times: int) -> Callable[[], None]:
    to, data = device.allocate(nbytes // 2), device.allocate(nbytes // 2)
    device.fill(data, 0)
    return _launching(device, "copy_again", to, data, nbytes // 32, times)


def _adding_products(device: Device, kind: str, rounds: int, alone: bool = False) -> tuple[Callable[[], None], Callable[[], int]]:
    """Return a run, and a function for the cycles that the first block of the last run took."""
    cycles = device_array(np.zeros(1, np.int64), device.name)
    x = device_array(np.array([0.5, 1.0], DTYPES[kind].numpy), device.name)
    run = _launching(device, f"add_products_{kind}", device.allocate(16), x.memory, cycles.memory, rounds, alone=alone)
    return run, lambda: int(cycles.numpy()[0])


def _in_a_row(device: Device) -> Callable[[], None]:
    """Return launches of an empty kernel; as in a plan, they are replayed where the device can."""
    launch = _launching(device, "nothing", 0)

    def launches(stream: Any = 0) -> None:
        for _ in range(CHAIN):
            launch(stream)

    replay = device.captured(launches)
    return launches if replay is None else replay.run


def _fastest(device: Device, run: Callable[[], None]) -> float:
    """Return the seconds of the fastest of REPEATS − 1 runs by the device's clock. The host queues launches ahead, as the device
    finishes an empty launch, or a product of eight-bit floats, before the host has launched the next."""
    run()
    ahead = HostAhead(device)
    return max(min(ahead.seconds(run) for _ in range(REPEATS - 1)), 1e-9)


def no_kernel(backend: str) -> dict[str, str]:
    """Return constant -> reason why this backend has no kernel for it."""
    return {name: why for name in PRODUCTS if isinstance(why := product_kernel(backend, name), str)}
