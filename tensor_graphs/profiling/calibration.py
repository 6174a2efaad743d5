"""calibration: what this device's memory and arithmetic deliver, measured once per environment; guesses of times rest on it.

Constants (database table device_constants): read_bandwidth [byte/s], flops_f32 [flop/s].
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np

from tensor_graphs.costs.roofline import DeviceRates
from tensor_graphs.kernels.registry import kernel_named, native_library, why_missing
from tensor_graphs.language import leaves
from tensor_graphs.language.composites import linear
from tensor_graphs.language.dtypes import f32
from tensor_graphs.language.graph import graph
from tensor_graphs.profiling.judge import environment_of
from tensor_graphs.profiling.single import single_kernel_plan
from tensor_graphs.records import queries
from tensor_graphs.records.database import Database
from tensor_graphs.records.rows import DeviceConstant
from tensor_graphs.runtime.compiled_graph import bind

log = logging.getLogger(__name__)

MAX_AGE = timedelta(days=30)
"""constants older than this are measured again"""

STREAM_BYTES = 256 << 20
"""what is streamed: four times the last-level cache of the machines we know"""

LINEAR_SIZE = 768
"""rows, inputs and outputs of the linear whose speed counts as the arithmetic of the device: 0.9 Gflop"""

REPEATS = 3
"""of each measurement; the fastest counts, as nothing makes a memory faster than it is"""

BANDWIDTH, FLOPS = "read_bandwidth", "flops_f32"


def measure_device(database: Database, backends: Sequence[str] = ("c", "numpy"), *, threads: int | None = None,
                   now: datetime | None = None) -> dict[str, Mapping[str, float]]:
    """Measure the constants of each backend's environment in which none younger than 30 days is on file; store and return them.

    Returns backend -> {"read_bandwidth": byte/s, "flops_f32": flop/s} of those measured now; {} when all were known.
    """
    now = now or datetime.now(UTC)
    found: dict[str, Mapping[str, float]] = {}
    bandwidth: float | None = None
    for backend in backends:
        if why_missing(backend) is not None:
            continue
        environment = environment_of(backend, threads)
        known = queries.constants(database, environment)
        if all(name in known and (at := known[name].timestamp) is not None and now - at < MAX_AGE for name in (BANDWIDTH, FLOPS)):
            continue
        with _threads(threads):
            bandwidth = bandwidth or read_bandwidth()
            found[backend] = {BANDWIDTH: bandwidth, FLOPS: flops_f32(backend)}
        database.add_constants(environment, [DeviceConstant(BANDWIDTH, found[backend][BANDWIDTH], "byte/s", timestamp=now),
                                             DeviceConstant(FLOPS, found[backend][FLOPS], "flop/s", timestamp=now)])
        log.info("%s: %.1f GB/s read, %.0f Gflop/s", backend, found[backend][BANDWIDTH] / 1e9, found[backend][FLOPS] / 1e9)
    return found


def known_rates(database: Database, backends: Sequence[str], threads: int | None = None) -> DeviceRates | None:
    """The device's rates as the best of these backends measured them here; None when none did."""
    rows = [queries.constants(database, environment_of(b, threads)) for b in backends if why_missing(b) is None]
    bandwidth = max((r[BANDWIDTH].value for r in rows if BANDWIDTH in r), default=None)
    flops = max((r[FLOPS].value for r in rows if FLOPS in r), default=None)
    if bandwidth is None or flops is None:
        return None
    return DeviceRates(bandwidth, flops)


def read_bandwidth(nbytes: int = STREAM_BYTES) -> float:
    """byte/s of reading memory that no cache holds: by the native stream kernel where it is, else by a numpy reduction."""
    data = np.zeros(nbytes // 8, dtype=np.uint64)
    data[::512] = 1                                                # touch every page: an unwritten one is not in memory at all
    if why_missing("c") is None:
        fold = np.zeros(16, dtype=np.uint32)
        library = native_library()

        def stream() -> None:
            library.call("tg_read_stream", [fold.ctypes.data, data.ctypes.data], [data.nbytes])
    else:
        def stream() -> None:
            np.bitwise_xor.reduce(data)
    return data.nbytes / _fastest(stream)


def flops_f32(backend: str, size: int = LINEAR_SIZE) -> float:
    """flop/s of this backend's linear on square f32 matrices."""
    x, w = leaves.input("x", (size, size), f32), leaves.input("w", (size, size), f32)
    compiled = bind(single_kernel_plan(graph({"y": linear(x, w)}), kernel_named(f"{backend}.linear")))
    rng = np.random.Generator(np.random.Philox(key=1))
    inputs = {name: rng.standard_normal((size, size), dtype=np.float32) for name in ("x", "w")}
    out = {"y": np.empty((size, size), dtype=np.float32)}
    return 2.0 * size ** 3 / _fastest(lambda: compiled.run(inputs, out=out))


def _fastest(run: Callable[[], object]) -> float:
    run()
    best = float("inf")
    for _ in range(REPEATS):
        started = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - started)
    return best


class _threads:
    """Inside: our own pool has so many threads; afterwards as many as before."""

    def __init__(self, count: int | None) -> None:
        self.count = count if count and why_missing("c") is None else None
        self.before = 0

    def __enter__(self) -> None:
        if self.count is not None:
            self.before = native_library().threads()
            native_library().set_threads(self.count)

    def __exit__(self, *_: object) -> None:
        if self.count is not None:
            native_library().set_threads(self.before)
