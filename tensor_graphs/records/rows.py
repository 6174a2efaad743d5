"""rows: the plain frozen records that other rooms write to and read from the database; no SQL, no ORM.

Keys are computed from a record's content alone, so that a caller can look up a dict of traces without the database.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import Any, Literal

from tensor_graphs.devices.environment import Environment
from tensor_graphs.records.errors import InvalidRecord

ImplementationType = Literal["KERNEL", "GRAPH_RECIPE"]
NumericClass = Literal["bitwise", "reassociating", "approximate"]
TraceKind = Literal["cold", "hot", "in_graph", "verify", "search"]
Status = Literal["PASSED", "INCORRECT_NUMERICAL", "INCORRECT_SHAPE", "INCORRECT_DTYPE", "RUNTIME_ERROR", "COMPILE_ERROR", "TIMEOUT",
                 "MUTATED_INPUT", "IMPLAUSIBLE"]

IMPLEMENTATION_TYPES: tuple[ImplementationType, ...] = ("KERNEL", "GRAPH_RECIPE")
NUMERIC_CLASSES: tuple[NumericClass, ...] = ("bitwise", "reassociating", "approximate")
TRACE_KINDS: tuple[TraceKind, ...] = ("cold", "hot", "in_graph", "verify", "search")
STATUSES: tuple[Status, ...] = (
    "PASSED", "INCORRECT_NUMERICAL", "INCORRECT_SHAPE", "INCORRECT_DTYPE", "RUNTIME_ERROR", "COMPILE_ERROR", "TIMEOUT",
    "MUTATED_INPUT", "IMPLAUSIBLE",
)  # fmt: skip
# One such trace refutes an implementation on a workload for good: its code must change, and with it the source hash.
REFUTING: tuple[Status, ...] = ("INCORRECT_SHAPE", "INCORRECT_DTYPE", "MUTATED_INPUT")


def digest(value: Any) -> str:
    """Return the sha256 (64 hexadecimal digits) of a JSON-able value; the order of dict keys does not matter."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def workload_key(graph_key: str, axes: Mapping[str, int], inputs: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return the key of a workload: a hash of the computed graph (its structural key), the sizes and the inputs."""
    if not inputs:
        return _key_of_sizes(graph_key, tuple(sorted(axes.items())), tuple(map(type, axes.values())))
    return digest([graph_key, dict(axes), [dict(descriptor) for descriptor in inputs]])


@lru_cache(maxsize=65536)
def _key_of_sizes(graph_key: str, axes: tuple[tuple[str, int], ...], types: tuple[type, ...]) -> str:
    """Return `workload_key` for random inputs; cached, as a compile needs each some ten times. types: part of the cache key, as 1
    and 1.0 are equal but have different JSON."""
    return digest([graph_key, dict(axes), []])


def _one_of(what: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise InvalidRecord(f"{what} is {value!r}\n  fix: use one of {', '.join(allowed)}")


@dataclass(frozen=True)
class GraphRecord:
    """One canonical graph: its structural key, its `.tg` text and its JSON (both verbatim), and a readable name."""

    structural_key: str
    text: str
    json: str
    human_name: str = ""

    def __post_init__(self) -> None:
        if not self.structural_key:
            raise InvalidRecord("a canonical graph has an empty structural key\n  fix: pass the graph's structural key")


@dataclass(frozen=True)
class DefinitionRecord:
    """A name, with names for the axes, bound to a canonical graph. verbatim: the text of an imported definition."""

    name: str
    graph_key: str
    axes: Mapping[str, Any] = field(default_factory=dict)
    description: str = ""
    tags: tuple[str, ...] = ()
    verbatim: str | None = None


@dataclass(frozen=True)
class SourceRecord:
    """One source file of an implementation, verbatim. Imported code is `trusted=False`: stored, but not run until trusted."""

    path: str
    content: str
    trusted: bool = False
    language: str = ""
    origin: str = ""


@dataclass(frozen=True)
class ImplementationRecord:
    """A kernel, or a recipe (another graph that means the same).

    source_hash: identity of the code: a hash of its name, of the text of everything it is built from, build flags, toolchain
    and code generator version. It must tell two kernels of one backend apart; storing another name under a stored hash is
    refused, as otherwise one kernel would be eligible through the other's traces. For a recipe it is the structural key of
    its target.
    graph_key: structural key of the graph that it computes; None for a kernel that serves many graphs (the workload names
    the graph).
    recipe_key: structural key of the recipe's target; required for GRAPH_RECIPE, forbidden for KERNEL.
    requirements: what the hardware and software must offer, e.g. {"cuda_min": "12.4", "arch": ["sm_90"]}.
    description: a text for people; no part of the identity.
    """

    type: ImplementationType
    name: str
    backend: str
    source_hash: str
    graph_key: str | None = None
    recipe_key: str | None = None
    numeric_class: NumericClass | None = None
    requirements: Mapping[str, Any] = field(default_factory=dict)
    sources: tuple[SourceRecord, ...] = ()
    verbatim: str | None = None
    description: str | None = None

    def __post_init__(self) -> None:
        _one_of("implementation type", self.type, IMPLEMENTATION_TYPES)
        if self.numeric_class is not None:
            _one_of(f"numeric class of {self.name}", self.numeric_class, NUMERIC_CLASSES)
        if not self.source_hash:
            raise InvalidRecord(f"implementation {self.name!r} has no source hash\n  fix: hash its source, flags and toolchain")
        if (self.type == "GRAPH_RECIPE") != (self.recipe_key is not None):
            raise InvalidRecord(f"implementation {self.name!r} is a {self.type} with recipe_key={self.recipe_key!r}\n"
                                "  fix: give a GRAPH_RECIPE the structural key of its target, and a KERNEL none")

    @cached_property
    def signature(self) -> str:
        """Unique key of an implementation row; the name is not part of it."""
        return digest([self.type, self.backend, self.source_hash, self.graph_key])


FIXED = "fixed"
"""Name of the single axis of a workload whose signature has no axis."""


def at_sizes(axes: Mapping[str, int]) -> str:
    """Return a workload's sizes as text: ` at d0=16`, "" where it has only the axis FIXED, ` at all sizes` without axes."""
    if tuple(axes) == (FIXED,):
        return ""
    return f" at {', '.join(f'{n}={size}' for n, size in axes.items()) or 'all sizes'}"


@dataclass(frozen=True)
class WorkloadRecord:
    """Concrete axes and inputs for one canonical graph.

    inputs: one dict per graph input, e.g. {"name": "x", "dtype": "float32", "shape": [4, 16], "generator": "normal"} or
    {"name": "x1", "type": "safetensors", "path": "/models/model.safetensors", "tensor_key": "lm_head.weight"}.
    """

    graph_key: str
    axes: Mapping[str, int] = field(default_factory=dict)
    inputs: tuple[Mapping[str, Any], ...] = ()

    @cached_property
    def axes_hash(self) -> str:
        return digest(dict(self.axes))

    @cached_property
    def key(self) -> str:
        return workload_key(self.graph_key, self.axes, self.inputs)


@dataclass(frozen=True)
class TraceRecord:
    """One measurement, good or bad.

    kind: cold (weights beyond the last-level cache), hot (cached), in_graph (inside the deployed list), verify (judged,
    not timed), search (a schedule, compared with the seed only: it makes nothing eligible).
    samples_ms: every time sample [ms]; median_ms and spread = (p75 - p25) / median follow from them unless given (an
    import may have only the median). baseline, baseline_ms: name and median [ms] of the plain path of the same run;
    speedup_factor = baseline_ms / median_ms.
    Errors: as meaning/error_measure.py measures them, against the float64 oracle. tolerance: that of the verdict. A NaN
    error is stored as +inf (SQLite would turn NaN into NULL, "not measured"); a mismatch of non-finite positions must come with
    an error above its tolerance.
    timestamp: aware; None means now, UTC. conditions: clocks, cache state, thread count, load, ... as JSON.
    """

    implementation: ImplementationRecord
    workload: WorkloadRecord
    environment: Environment
    kind: TraceKind
    status: Status
    samples_ms: tuple[float, ...] = ()
    median_ms: float | None = None
    spread: float | None = None
    max_relative_error: float | None = None
    p999_relative_error: float | None = None
    norm_error: float | None = None
    max_absolute_error: float | None = None
    tolerance: float | None = None
    baseline: str = ""
    baseline_ms: float | None = None
    speedup_factor: float | None = None
    seed: int | None = None
    timer: str = ""
    verifier: str = ""
    timestamp: datetime | None = None
    log: str = ""
    conditions: Mapping[str, Any] = field(default_factory=dict)
    verbatim: str | None = None

    def __post_init__(self) -> None:
        _one_of("trace status", self.status, STATUSES)
        _one_of("trace kind", self.kind, TRACE_KINDS)
        name = self.implementation.name
        samples = tuple(float(sample) for sample in self.samples_ms)
        self._set("samples_ms", samples)
        if samples and self.median_ms is None:
            self._set("median_ms", statistics.median(samples))
        if samples and self.spread is None:
            self._set("spread", relative_spread(samples))
        if self.speedup_factor is None and self.baseline_ms is not None and self.median_ms:
            self._set("speedup_factor", self.baseline_ms / self.median_ms)
        from tensor_graphs.records.trace_limits import ERRORS, require_possible  # a door: most compiles read traces, and make none

        for error in ERRORS:
            value = getattr(self, error)
            if value is not None:
                self._set(error, math.inf if math.isnan(value) else float(value))
        require_possible(self)
        if self.seed is not None and not -(2**63) <= self.seed < 2**63:
            raise InvalidRecord(f"seed {self.seed} of {name!r} does not fit 64 bits\n  fix: draw seeds below 2**63")
        if self.timestamp is None:
            self._set("timestamp", datetime.now(UTC))
        elif self.timestamp.tzinfo is None:
            raise InvalidRecord(f"the timestamp of {name!r} has no time zone\n  fix: pass datetime.now(UTC)")

    def _set(self, attribute: str, value: object) -> None:
        object.__setattr__(self, attribute, value)


def relative_spread(samples: Sequence[float]) -> float:
    """Return (p75 - p25) / median of at least one sample, by linear interpolation; 0 for one sample or a median of 0."""
    if len(samples) < 2:
        return 0.0
    lower, middle, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return (upper - lower) / middle if middle else 0.0


@dataclass(frozen=True)
class ProfileRequest:
    """Request to measure an implementation on a workload in an environment; requests of larger priority go first."""

    implementation: ImplementationRecord
    workload: WorkloadRecord
    environment: Environment
    priority: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class QueueItem:
    """A request that one worker holds until `lease_until` (UTC). attempts: number of claims so far, with this one and without those
    that were released undone."""

    id: int
    implementation: ImplementationRecord
    workload: WorkloadRecord
    environment: Environment
    priority: float
    reason: str
    attempts: int
    claimed_by: str
    claimed_at: datetime
    lease_until: datetime


@dataclass(frozen=True)
class DeviceConstant:
    """One measured property of a device, e.g. ("read_bandwidth", 5.4e10, "byte/s") for the roofline model."""

    name: str
    value: float
    unit: str
    device: str = "cpu"
    timestamp: datetime | None = None
