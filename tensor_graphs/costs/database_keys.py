"""database_keys: the keys under which requests and measurements of a kernel are filed. Every writer or reader of rows uses them.

A row's key combines the code (`implementation_of`), the signature with its sizes (`timed_workload`; `verify_workload` covers all
sizes), the software and number of threads (`environment_of`), and the version of the comparison (`VERIFIER`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from tensor_graphs.devices.device_registry import HOST, of_kind
from tensor_graphs.devices.environment import Environment, combine, fingerprint
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import BACKENDS, backend_module, kind_of
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.json_writer import graph_to_json
from tensor_graphs.language.text_writer import print_graph
from tensor_graphs.records.rows import FIXED as FIXED
from tensor_graphs.records.rows import GraphRecord, ImplementationRecord, SourceRecord, WorkloadRecord, digest

VERIFIER = "7"
"""Version of the comparison (measure/judge.py). Rows of another version do not count: everything is compared and timed again."""


class Described(Protocol):
    """Description of an operand's values: how they are generated (measure/points/input_descriptors.py)."""

    def to_json(self) -> dict[str, Any]: ...


def environment_of(backend: str, threads: int | None = None) -> Environment:
    """Return the environment of a backend on this machine. threads: their number instead of the default one."""
    return _environment(backend, threads)


@lru_cache(maxsize=64)
def _environment(backend: str, threads: int | None) -> Environment:
    versions = dict(backend_module(backend).versions()) if backend in BACKENDS else {}
    if threads:
        versions["threads"] = str(threads)
    return fingerprint(backend, of_kind(kind_of(backend)) or HOST, libs=versions)


ASSUMES = "assumes "
"""Start of a measurement's description, or of brackets at its end, that names the conditions on values that its kernels assume."""


def assumed_by(kernels: Iterable[Kernel]) -> str:
    """Return the conditions that these kernels assume, as rows store them: `assumes no overflow`; "" if there are none."""
    conditions = sorted({condition for kernel in kernels for condition in kernel.assuming})
    return f"{ASSUMES}{' and '.join(conditions)}" if conditions else ""


def implementation_of(kernel: Kernel) -> ImplementationRecord:
    return ImplementationRecord("KERNEL", kernel.name, kernel.backend, kernel.identity, requirements=dict(kernel.requirements),
                                sources=(SourceRecord(f"{kernel.name}.txt", kernel.source, trusted=True),),
                                description=assumed_by([kernel]) or None)


def part_implementation(part: Signature, target: Signature, steps: Sequence[tuple[str, Kernel]]) -> ImplementationRecord:
    """Return the implementation under which the time of a part, computed by several kernels, is filed. target: the signature that
    they compute (the part's, or that of a recipe: a graph that means the same). steps: each kernel with the key of its
    signature."""
    computed = digest([target.key, sorted((key, kernel.identity) for key, kernel in steps)])
    way = "its own words" if target.key == part.key else target.key[:12]
    return ImplementationRecord("GRAPH_RECIPE", f"{part.spec.op.name} as {way} by {computed[:12]}", "recipe", computed, part.key,
                                target.key, description=assumed_by(kernel for _, kernel in steps) or None)


def part_environment(steps: Sequence[tuple[str, Kernel]], threads: int | None = None) -> Environment:
    """Return the environment that combines all backends that compute a part."""
    return path_environment({kernel.backend for _, kernel in steps}, threads)


class Way(Protocol):
    """A path of an entire graph (paths/path.py). `id` covers the graph, the choices and the identities of the kernels."""

    @property
    def id(self) -> str: ...

    @property
    def graph_key(self) -> str: ...


def path_implementation(path: Way, description: str = "") -> ImplementationRecord:
    """Return the implementation under which the time of an entire graph along one path is filed. description: a text for people."""
    return ImplementationRecord("GRAPH_RECIPE", f"path {path.id}", "recipe", path.id, path.graph_key, path.graph_key,
                                description=description or None)


def path_workload(graph: Graph, binding: Mapping[str, int]) -> WorkloadRecord:
    """Return the workload under which times of an entire graph are filed. Its dims have canonical names, as those of a signature
    do, so a path of a single op is filed together with the kernels of that op."""
    axes = {f"d{i}": int(binding[n]) for i, n in enumerate(graph.dim_order) if n in binding}
    return WorkloadRecord(graph.structural_key, axes or {FIXED: 1})


def path_environment(backends: Iterable[str], threads: int | None = None) -> Environment:
    """Return the environment that combines all backends that compute a path."""
    return combine(environment_of(backend, threads) for backend in backends)


def whole_graph_record(graph: Graph) -> GraphRecord:
    return GraphRecord(graph.structural_key, print_graph(graph), graph_to_json(graph), "whole graph")


def graph_record(signature: Signature) -> GraphRecord:
    return GraphRecord(signature.key, print_graph(signature.graph), graph_to_json(signature.graph), signature.spec.op.name)


def verify_workload(signature: Signature) -> WorkloadRecord:
    """Return the workload, without axes, under which a verdict over all sizes is filed."""
    return WorkloadRecord(signature.key)


def verdict_key(kernel: Kernel, signature: Signature) -> tuple[str, str]:
    """Return the key of a verdict over all sizes, as `latest_traces` uses it: (identity of the code, key of the workload)."""
    return kernel.identity, verify_workload(signature).key


def timing_key(kernel: Kernel, signature: Signature, binding: Mapping[str, int], descriptors: Sequence[tuple[str, Described]] = (),
               ) -> tuple[str, str]:
    """Return the key of a timing: (identity of the code, key of the timed workload)."""
    return kernel.identity, timed_workload(signature, binding, descriptors).key


def timed_workload(signature: Signature, binding: Mapping[str, int],
                   descriptors: Sequence[tuple[str, Described]] = ()) -> WorkloadRecord:
    """Return the workload under which a time is filed: the axes of the signature (a single axis "fixed" if it has none), and the
    descriptors of those operands whose values are not the default ones."""
    inputs = tuple({"name": name, **descriptor.to_json()} for name, descriptor in descriptors)
    return WorkloadRecord(signature.key, signature.axes(binding) or {FIXED: 1}, inputs)
