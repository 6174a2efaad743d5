"""calibration: stores what the device's memory and arithmetic deliver, measured once per environment, for estimates of times.

table.py measures and lists the constants (database table device_constants) and their units, links.py those of the links to other
devices, gpu.py those of GPUs."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from tensor_graphs.costs.database_keys import environment_of
from tensor_graphs.costs.measured_rates import BEATEN, FLOPS, READ, RUN, known_rates
from tensor_graphs.kernels.registry import DEFAULT_BACKENDS, device_of, native_library, why_missing
from tensor_graphs.measure.rates.gpu import gpu_speeds, products_of
from tensor_graphs.measure.rates.links import NAMES as link_names
from tensor_graphs.measure.rates.links import link_speeds
from tensor_graphs.measure.rates.table import (
    Speed,
    backend_names,
    backend_speeds,
    flops_speed,
    memory_names,
    memory_speeds,
    reading_speed,
    run_speed,
    working_set,
)
from tensor_graphs.records import queries
from tensor_graphs.records.database import Database
from tensor_graphs.records.rows import DeviceConstant

log = logging.getLogger(__name__)

MAX_AGE = timedelta(days=30)
"""age from which constants are measured again"""

SECONDS = 1.0
"""approximate seconds to measure a host backend, another device's link, or the memory"""


def seconds_due(database: Database, backends: Sequence[str] = DEFAULT_BACKENDS, *, threads: int | None = None,
                now: datetime | None = None) -> float:
    """Return the estimated seconds that `measure_device` would take now; 0 where nothing is due."""
    now = now or datetime.now(UTC)
    due = [b for b in backends if why_missing(b) is None and not _is_fresh(database, b, threads, now)]
    return SECONDS * (len(due) + any(device_of(b).is_host for b in due))


def _is_fresh(database: Database, backend: str, threads: int | None, now: datetime) -> bool:
    """Return whether all constants of a backend's environment are stored and younger than MAX_AGE."""
    device = device_of(backend)
    constants = queries.constants(database, environment_of(backend, threads), device.name)
    names = (*memory_names(), *backend_names(backend)) if device.is_host else link_names
    times = [constants[name].timestamp if name in constants else None for name in names]
    return all(time is not None and now - time < MAX_AGE for time in times)


def measure_device(database: Database, backends: Sequence[str] = DEFAULT_BACKENDS, *, threads: int | None = None,
                   now: datetime | None = None, anew: bool = False) -> dict[str, Mapping[str, float]]:
    """Measure the constants of each backend's environment in which one is missing or older than 30 days; store them and return
    backend -> {constant: value}, {} when all were known.

    anew: measure at any age, and for a GPU more than its link. Memory is measured once for all backends of a device. Takes a second
    for each backend and one for the memory; some fifteen for a GPU with anew, as kernels for its matrix products are compiled."""
    now = now or datetime.now(UTC)
    measured: dict[str, Mapping[str, float]] = {}
    memory: Mapping[str, Speed] = {}
    own: dict[str, Mapping[str, Speed]] = {}
    for backend in backends:
        if why_missing(backend) is not None:
            continue
        environment, device = environment_of(backend, threads), device_of(backend)
        if not anew and _is_fresh(database, backend, threads, now):
            continue
        if not device.is_host:
            speeds = dict(link_speeds(device))
            if anew and device.kind == "cuda":                  # takes seconds; without anew, `Device.peaks` suffices
                if device.name not in own:
                    own[device.name] = gpu_speeds(device)
                speeds |= {**own[device.name], **products_of(backend)}
            database.add_constants(environment, [DeviceConstant(n, s.value, s.unit, device.name, now)
                                                 for n, s in speeds.items()])
            measured[backend] = {name: s.value for name, s in speeds.items()}
            continue
        started = time.perf_counter()
        with _threads(threads):
            memory = memory or memory_speeds()
            speeds = {**memory, **_of_backend(backend)}
        database.add_constants(environment, [DeviceConstant(n, s.value, s.unit, timestamp=now) for n, s in speeds.items()])
        measured[backend] = {name: s.value for name, s in speeds.items()}
        log.info("%s: %s in %.1f s", backend, ", ".join(f"{n} {s.value:.3g} {s.unit}" for n, s in speeds.items()
                                                       if working_set(n) is None), time.perf_counter() - started)
    return measured


def correct_flops(database: Database, reached: Mapping[str, float], threads: int | None = None) -> list[str]:
    """Measure constants of the host again where a kernel of a backend has reached more flop/s than FLOPS allows; store the rate
    that it reached where the constant is still lower. Return these backends."""
    wrong = []
    for backend, speed in reached.items():
        environment = environment_of(backend, threads)
        constant = queries.constants(database, environment).get(FLOPS)
        if constant is not None and speed > BEATEN * constant.value:
            measured = measure_device(database, (backend,), threads=threads, anew=True)[backend].get(FLOPS, 0.0)
            log.warning("%s: %s was measured as %.3g flop/s, and a kernel has reached %.3g: measured again, %.3g",
                        backend, FLOPS, constant.value, speed, measured)
            if speed > measured:
                database.add_constants(environment, [DeviceConstant(FLOPS, speed, constant.unit)])
            wrong.append(backend)
    return wrong


def calibrate(database: Database, backends: Sequence[str], threads: int | None = None) -> None:
    """Store the host's constants for first estimates (reading memory, f32 arithmetic, a run) where none are stored; takes half a
    second. `measure_device` measures all constants. Other devices have assumed rates."""
    backends = [b for b in backends if why_missing(b) is None and device_of(b).is_host]
    if not backends or known_rates(database, backends, threads) is not None:
        return
    for backend, speeds in _first(tuple(backends), threads).items():
        environment = environment_of(backend, threads)
        database.add_constants(environment, [DeviceConstant(n, s.value, s.unit) for n, s in speeds.items()])


@functools.cache
def _first(backends: tuple[str, ...], threads: int | None) -> Mapping[str, Mapping[str, Speed]]:
    """Return backend -> its first constants; measured once per process, for all databases."""
    started = time.perf_counter()
    with _threads(threads):
        read = reading_speed()
        measured = {}
        for backend in backends:
            speeds = {READ: read}
            for name, of in ((FLOPS, flops_speed), (RUN, run_speed)):
                try:
                    speeds[name] = of(backend)
                except Exception as e:                              # anyone's kernel, or none: the others' constants count
                    log.debug("%s has no %s: %s", backend, name, e)
            measured[backend] = speeds
    log.info("calibrated in %.1f s: %s", time.perf_counter() - started,
             "; ".join(f"{b}: {', '.join(f'{n} {s.value:.3g} {s.unit}' for n, s in of.items())}" for b, of in measured.items()))
    return measured


def _of_backend(backend: str) -> Mapping[str, Speed]:
    try:
        return backend_speeds(backend)
    except Exception as e:                                          # anyone's kernel: the constants of the others are needed anyway
        log.warning("%s: a kernel raised when its speed was measured: %s: %s", backend, type(e).__name__, e)
        return {}


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Context manager: the package's thread pool has this many threads; afterwards as many as before."""
    library = native_library() if count and why_missing("c") is None else None
    before = 0 if library is None else library.threads()
    if library is not None and count:
        library.set_threads(count)
    try:
        yield
    finally:
        if library is not None:
            library.set_threads(before)
