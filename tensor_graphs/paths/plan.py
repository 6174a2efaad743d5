"""plan: the chosen path of a graph, lowered for ranges of a dim, with its memory plan. Frozen; printed by `explain`.

A graph with a symbolic dim compiles to one plan for every size in range; where other kernels win at other sizes, the plan holds
several variants, each for a range of that dim. All share parameters, states and one arena.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tensor_graphs.kernels.kernel import Kernel, NativeCall
from tensor_graphs.language import dims as d
from tensor_graphs.language.graph import Graph
from tensor_graphs.paths.lower import PlanError, Program
from tensor_graphs.paths.memory import ArenaLayout, aligned
from tensor_graphs.paths.path import Path


@dataclass(frozen=True)
class MemoryUse:
    """Bytes on one device. parameters are the caller's (mapped from files where the dtype allows); the rest is allocated here."""

    device: str
    parameters: int
    states: int
    arena: int
    outputs: int
    constants: int
    bound: int = 0
    """made of parameters at bind time: packed and quantised copies, folded constants"""
    scratch: int = 0
    """what the kernels keep for themselves: the largest call's"""

    @property
    def allocated(self) -> int:
        """What a run adds to the process beside the parameters."""
        return self.states + self.arena + self.outputs + self.constants + self.bound + self.scratch

    @property
    def total(self) -> int:
        return self.allocated + self.parameters

    def to_json(self) -> dict[str, int]:
        return {"parameters": self.parameters, "states": self.states, "arena": self.arena, "outputs": self.outputs,
                "constants": self.constants, "bound": self.bound, "scratch": self.scratch, "total": self.total}


@dataclass(frozen=True)
class Evidence:
    """Why one signature is computed the way it is."""

    title: str
    signature: str
    chosen: str
    calls: int
    seconds: float
    measured: bool
    error: float | None
    note: str
    others: tuple[tuple[str, float, bool], ...]         # (name, seconds, measured) of what else may be used, cheapest first
    refused: tuple[tuple[str, str], ...] = ()           # (name, why not)


@dataclass(frozen=True)
class Variant:
    """One lowered path, for low ≤ dim ≤ high (the whole range when the plan has no table)."""

    low: int
    high: int
    path: Path
    program: Program
    layout: ArenaLayout
    kernels: Mapping[str, Kernel]
    evidence: tuple[Evidence, ...]
    at: Mapping[str, int]


@dataclass(frozen=True)
class Plan:
    """Everything that was decided before the first kernel runs."""

    graph: Graph
    tolerance: float
    variants: tuple[Variant, ...]
    table_dim: str | None
    largest: Mapping[str, int]
    backends: tuple[str, ...]
    notes: tuple[str, ...] = ()
    reuse_outputs: bool = False
    capacity: int | None = None
    unmeasured: tuple[str, ...] = field(default=())
    intermediates: str = ""
    """in which dtype values are kept between ops, and why"""
    written: Graph | None = None
    """the graph as it was given, when `graph` is the same with float64 intermediates"""
    prepared: str = ""
    """what was recognised or simplified before anything was chosen, for people"""

    def variant(self, binding: Mapping[str, int]) -> Variant:
        if self.table_dim is not None:
            value = binding[self.table_dim]
            for v in self.variants:
                if v.low <= value <= v.high:
                    return v
        return self.variants[0]

    def memory(self, **dims: int) -> MemoryUse:
        """Bytes on the device at these dims; a dim that is not given is taken at its largest."""
        binding = self.binding(dims)
        v = self.variant(binding)
        kinds = {"parameter": 0, "state": 0, "output": 0, "constant": 0, "bound": 0, "dims": 0, "input": 0}
        for b in v.program.buffers:
            if b.kind in kinds and b.alias is None:
                kinds[b.kind] += aligned(int(d.evaluate(b.nbytes, binding)))
        states = sum(aligned(int(d.evaluate(s.type.nbytes(), binding))) for s in self.graph.states.values())
        scratch = max((int(d.evaluate(i.call.scratch, binding)) for i in v.program.instructions if isinstance(i.call, NativeCall)),
                      default=0)
        return MemoryUse("cpu", kinds["parameter"], max(states, kinds["state"]), v.layout.offsets(binding)[1], kinds["output"],
                         kinds["constant"] + kinds["dims"], kinds["bound"], scratch)

    def binding(self, dims: Mapping[str, int]) -> dict[str, int]:
        """A value for every dim of the graph: given ones checked against their range, others at their largest."""
        unknown = sorted(set(dims) - set(self.graph.dims))
        if unknown:
            raise PlanError(f"the graph has no dim named {', '.join(unknown)}; it has {', '.join(self.graph.dims) or 'none'}")
        out = dict(self.largest)
        for name, value in dims.items():
            lo, hi = d.bounds(self.graph.dims[name])
            if not lo <= value <= hi:
                raise PlanError(f"dim {name} = {value} is outside of {lo}..{hi}")
            out[name] = int(value)
        return out

    def check_capacity(self, binding: Mapping[str, int], capacity: int | None = None) -> None:
        """Raise PlanError, naming the largest live set, when these dims need more than the device may use."""
        text = self.over_capacity(binding, capacity)
        if text is not None:
            raise PlanError(f"{text}\n  fix: smaller dims, a shorter cache, or a higher memory limit")

    def over_capacity(self, binding: Mapping[str, int], capacity: int | None = None) -> str | None:
        """What is too much at these dims, and the largest live set; None when it fits."""
        limit = capacity if capacity is not None else self.capacity
        if limit is None:
            return None
        use = self.memory(**{n: int(v) for n, v in binding.items() if n in self.graph.dims})
        if use.total <= limit:
            return None
        size, members = self.variant(binding).layout.largest_live_set(binding)
        largest = ", ".join(f"{m.label} {human(int(d.evaluate(m.nbytes, binding)))}" for m in members[:4]) or "nothing transient"
        sizes = ", ".join(f"{n}={v}" for n, v in sorted(binding.items()))
        more = "".join(f", {name} {human(n)}" for name, n in (("bound", use.bound), ("scratch", use.scratch)) if n)
        return (f"device cpu may use {human(limit)}, the plan needs {human(use.total)}"
                f"{' at ' + sizes if sizes else ''}: parameters {human(use.parameters)}, states {human(use.states)}, "
                f"outputs {human(use.outputs)}, arena {human(use.arena)}{more}\n"
                f"  largest live set, {human(size)}: {largest}")


def human(nbytes: float) -> str:
    """Bytes for people: 1.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000 or unit == "GB":
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    raise AssertionError


def midpoint(symbol: Any) -> int:
    """A typical size of a dim for pricing: the geometric middle, at most 256."""
    lo, hi = d.bounds(symbol)
    middle = round(float(max(lo, 1) * hi) ** 0.5)
    found: int = max(lo, min(hi, 256, middle))
    return found
