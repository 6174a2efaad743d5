"""choose: what may be used, and at which price. Rows of the database first; where there is no row, a guess that says so.

A kernel may be used for a signature when a verdict is on file here: it was compared with the oracle at several sizes, passed, and
its error is within the tolerance. Without a verdict it is a candidate: the compiler has it verified before it uses it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tensor_graphs.costs.roofline import DeviceRates, guess_seconds
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import DEFAULT_BACKENDS, all_kernels, by_op, why_missing
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language.graph import Graph
from tensor_graphs.paths.path import Path as GraphPath
from tensor_graphs.paths.path import Paths, Price
from tensor_graphs.paths.plan import midpoint
from tensor_graphs.profiling.judge import VERIFIER, environment_of, same_math_limit, timed_workload, verify_workload
from tensor_graphs.records import queries
from tensor_graphs.records.database import Database, open_database
from tensor_graphs.records.queries import KnownTime

log = logging.getLogger(__name__)

DEFAULT_TOLERANCE = 1e-3


@dataclass
class PriceBook:
    """What the database knows about kernels in this machine's environments, and guesses for the rest."""

    database: Database
    backends: tuple[str, ...]
    tolerance: float
    known: dict[str, dict[tuple[str, str], KnownTime]] = field(default_factory=dict)
    device: DeviceRates = field(default_factory=DeviceRates)
    refused: dict[tuple[str, str], str] = field(default_factory=dict)
    best_error: dict[str, float] = field(default_factory=dict)

    def load(self) -> PriceBook:
        """Read everything measured in these environments: one query per backend."""
        for backend in self.backends:
            if why_missing(backend) is None:
                self.known[backend] = queries.latest_traces(self.database, environment_of(backend), "cold", verifier=VERIFIER)
        constants = queries.constants(self.database, environment_of(self.backends[0])) if self.backends else {}
        if "read_bandwidth" in constants:
            self.device = DeviceRates(constants["read_bandwidth"].value,
                                      constants["flops_f32"].value if "flops_f32" in constants else DeviceRates().flops)
        return self

    def verdict(self, kernel: Kernel, signature: Signature) -> KnownTime | None:
        return self.known.get(kernel.backend, {}).get((kernel.identity, verify_workload(signature).key))

    def time(self, kernel: Kernel, signature: Signature, binding: Mapping[str, int]) -> KnownTime | None:
        return self.known.get(kernel.backend, {}).get((kernel.identity, timed_workload(signature, binding).key))

    def why_not(self, kernel: Kernel, signature: Signature) -> str | None:
        """None when the verdict on file lets this kernel be used within the tolerance; "unverified" when there is none."""
        v = self.verdict(kernel, signature)
        if v is None:
            return "unverified"
        if not v.passed or v.refuted or v.status not in ("PASSED", "INCORRECT_NUMERICAL"):
            return f"{v.status} when compared with the oracle"
        error = v.worst_relative_error
        if error is None or not error <= same_math_limit(signature):
            return f"{v.status}: error {error}"
        self.best_error[signature.key] = min(error, self.best_error.get(signature.key, math.inf))
        if not error <= self.tolerance:
            return f"its error {error:.2g} is beyond the tolerance {self.tolerance:.2g}"
        return None

    def price(self, kernel: Kernel, signature: Signature, binding: Mapping[str, int], optimistic: bool = False) -> Price | None:
        """A price, or None when the kernel may not be used. optimistic: unverified kernels count as usable."""
        reason = self.why_not(kernel, signature)
        if reason is not None and not (optimistic and reason == "unverified"):
            self.refused[kernel.name, signature.key] = reason
            return None
        verdict = self.verdict(kernel, signature)
        error = verdict.worst_relative_error if verdict is not None else None
        row = self.time(kernel, signature, binding)
        if row is not None and row.median_ms is not None and row.passed and not row.refuted:
            return Price(row.median_ms * 1e-3, True, error, f"trace {row.trace_id}")
        at = {n: int(binding[n]) for n in signature.dim_names}
        return Price(guess_seconds(signature, at, kernel.backend, self.device), False, error, "guess (roofline)")


def resolve_backends(backends: Sequence[str] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(backends that are here, notes on those that are not)."""
    wanted = tuple(backends) if backends is not None else DEFAULT_BACKENDS
    here, notes = [], []
    for name in wanted:
        reason = why_missing(name)
        if reason is None:
            here.append(name)
        else:
            notes.append(f"backend {name} is not available: {reason}")
    return tuple(here), tuple(notes)


def typical_sizes(graph: Graph, at: Mapping[str, int] | None = None) -> dict[str, int]:
    """The sizes at which a graph is priced: given ones, else the middle of each dim's range."""
    return {n: int((at or {}).get(n, midpoint(s))) for n, s in graph.dims.items()}


def as_database(database: Database | str | Path | None) -> Database:
    return database if isinstance(database, Database) else open_database(database)


def list_paths(graph: Graph, *, backends: Sequence[str] | None = None, tolerance: float = DEFAULT_TOLERANCE,
               database: Database | str | Path | None = None, at: Mapping[str, int] | None = None,
               all_kernels_count: bool = True) -> Iterator[GraphPath]:
    """Every path of a graph, cheapest first, lazily. Kernels without a verdict are listed too (error None) unless told not to."""
    here, _ = resolve_backends(backends)
    book = PriceBook(as_database(database), here, tolerance).load()
    binding = typical_sizes(graph, at)
    paths = Paths(graph, by_op(all_kernels(here)), lambda k, s: book.price(k, s, binding, all_kernels_count))
    return iter(paths)
