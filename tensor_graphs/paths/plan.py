"""plan: the chosen path of a graph, lowered for each cell of sizes, with its memory plan.

A graph with a symbolic dim compiles to one plan for all sizes in range. Where the fastest kernels depend on the size, the plan has
several variants, each for a cell of sizes (size_cells.py). The variants share parameters, states and one arena.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tensor_graphs.devices.device_registry import HOST, device_named
from tensor_graphs.errors import counted, no_attribute
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.kernel_origin import Origin, load, origin_of
from tensor_graphs.language import dims as d
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.accuracy import Accuracy
from tensor_graphs.notebook import Pictured
from tensor_graphs.paths.lower import PlanError, Program
from tensor_graphs.paths.lowered import chosen_here, lowered
from tensor_graphs.paths.memory import ArenaLayout, aligned
from tensor_graphs.paths.path import Path, kernel_of_all_steps
from tensor_graphs.paths.size_cells import Cell, Cells

if TYPE_CHECKING:
    from tensor_graphs.paths.pin_file import Pin
    from tensor_graphs.paths.run_order import SmallerArena


def given_sizes(graph: Graph, sizes: Mapping[str, int] | None, what: str) -> dict[str, int]:
    """Return a caller's sizes of dims, checked. what: the argument's name, for errors. Raises PlanError for a dim that the graph
    does not have and for a size outside of its dim's range."""
    sizes = sizes or {}
    if not isinstance(sizes, Mapping):
        raise PlanError(f"{what} is {sizes!r}\n  fix: sizes by name, {{{', '.join(f'{n!r}: …' for n in graph.dims)}}}")
    if unknown := sorted(map(str, set(sizes) - set(graph.dims))):
        raise PlanError(d.unknown_dims(unknown, graph.dims))
    for name, size in sizes.items():
        if (why := d.why_no_size(name, size, graph.dims[name])) is not None:
            raise PlanError(f"{what} {why}")
    return {name: int(size) for name, size in sizes.items()}


@dataclass(frozen=True)
class MemoryUse:
    """Bytes on one device. parameters: the caller's arrays that runs read (mapped from files where the dtype allows). bind_only:
    the caller's other parameters, which only `bind` reads, as runs read what is made of them; a bound plan refers to them, so they
    stay in memory unless they are mapped from files. All else is allocated by this package. bound: computed from parameters at bind
    time and read by runs (packed and quantised copies, folded constants). scratch: memory that kernels keep for themselves, for the
    call that needs most. inputs: buffers for inputs that a run copies to this device from the host. bind_peak: most bytes computed
    from parameters at one moment of binding, including those freed again. elsewhere: memory use of the plan's other devices, not
    included in the numbers of this one."""

    device: str
    parameters: int
    states: int
    arena: int
    outputs: int
    constants: int
    bound: int = 0
    scratch: int = 0
    inputs: int = 0
    bind_peak: int = 0
    bind_only: int = 0
    elsewhere: tuple[MemoryUse, ...] = ()

    @property
    def devices(self) -> tuple[MemoryUse, ...]:
        """Memory of this device, then of the other devices."""
        return (self, *self.elsewhere)

    @property
    def allocated(self) -> int:
        """Bytes that a run adds to the process, without the parameters."""
        return self.states + self.arena + self.outputs + self.constants + self.bound + self.scratch + self.inputs

    @property
    def total(self) -> int:
        """Bytes that runs read and write."""
        return self.allocated + self.parameters

    @property
    def most(self) -> int:
        """Largest number of bytes held simultaneously, by a run or while the plan is bound, with all parameters."""
        return self.bind_only + max(self.total, self.parameters + self.constants + self.bind_peak)

    def to_json(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("parameters", "states", "arena", "outputs", "constants", "bound", "scratch",
                                                       "inputs", "total", "bind_peak", "bind_only")}


@dataclass(frozen=True)
class Evidence:
    """The choice for one signature, with its cost and the alternatives that were not chosen."""

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
    margin: float = 1.0                                 # factor by which the choice raised `seconds`, where they are an estimate
    steps: str = ""                                     # of a part: the ops in it, in their order, for people


@dataclass(frozen=True)
class WholeRun:
    """Measurement of an entire path, interleaved with other paths. seconds: of a run; trace: its row; among: paths compared."""

    seconds: float
    trace: int
    among: int


@dataclass(frozen=True, repr=False)
class Variant:
    """One lowered path, for the sizes of a cell (all sizes where the plan has one variant). around: seconds of a run around its
    calls. whole: measurement of the entire path, if there is one. smaller: its order under a memory limit, if it needs one."""

    cell: Cell
    path: Path
    program: Program
    layout: ArenaLayout
    kernels: Mapping[str, Kernel]
    evidence: tuple[Evidence, ...]
    at: Mapping[str, int]
    around: float = 0.0
    whole: WholeRun | None = None
    smaller: SmallerArena | None = None

    def __repr__(self) -> str:
        return f"<variant {self.cell.where}path {self.path.id}, {self.calls}>"

    @property
    def calls(self) -> str:
        """The number of kernel calls in a run, and of calls that copy or prepare operands for them, for people."""
        again = 0 if self.smaller is None else self.smaller.calls
        copies = len(self.program.instructions) - self.path.kernel_calls - again
        return counted(self.path.kernel_calls, "kernel call") + (
            "" if copies < 1 else " and 1 copy" if copies == 1 else f" and {copies} copies") + (
            f", {again} computed again" if again else "")

    @property
    def predicted(self) -> float:
        """Expected seconds of a run at the sizes `at`: as measured for the entire path, else as the sum of its parts; with what is
        computed again."""
        return self.path.seconds + (0.0 if self.smaller is None else self.smaller.seconds)

    @property
    def measured_share(self) -> float:
        """Share of the kernels' predicted time that rests on measurements in the database."""
        return self.path.measured_share


RUN = frozenset({"run", "prepared", "session", "trace", "tap", "time", "first_nan"})
"""Methods of a plan with parameters (runtime/compiled_graph.py), for which errors on a plan without them have a hint."""


@dataclass(frozen=True, repr=False)
class Plan(Pictured):
    """All decisions made before the first kernel runs. `print(plan)` shows the most expensive steps on one screen.

    A pickle holds the graph, the choices and their evidence. Unpickling looks the kernels up by name, compares their identities and
    lowers the program again; PlanError names a kernel that is missing in the process.

    precision: the dtypes that were chosen, and the reason, for people. words: the same as a form (meaning/precision.py), {} as
    written. written: the graph as given, where `graph` is that graph in another form. prepared: patterns recognised or simplified
    before kernels were chosen, for people. images: nodes before parts were formed -> nodes of `graph`. given: the graph to
    compile, before patterns in it were recognised. inputs: the argument `inputs` of compile. images, given and inputs are not
    pickled. rests_on: generation of the database's rows (records/rows_digest.py) that the choice is based on.
    """

    graph: Graph
    accuracy: Accuracy
    variants: tuple[Variant, ...]
    largest: Mapping[str, int]
    backends: tuple[str, ...]
    notes: tuple[str, ...] = ()
    reuse_outputs: bool = False
    capacity: int | None = None
    unmeasured: tuple[str, ...] = field(default=())
    precision: str = ""
    words: Mapping[str, str] = field(default_factory=dict)
    written: Graph | None = None
    prepared: str = ""
    images: Mapping[Node, Node] = field(default_factory=dict, repr=False, compare=False)
    given: Graph | None = field(default=None, repr=False, compare=False)
    rests_on: str = field(default="", repr=False, compare=False)
    measured: str = ""
    measured_at: Mapping[str, int] = field(default_factory=dict, repr=False, compare=False)
    weights: str = ""
    database: str = field(default="", repr=False, compare=False)
    inputs: Any = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        calls = [v.path.kernel_calls for v in self.variants]
        return (f"<plan of graph {self.graph.structural_key[:12]}: {counted(len(self.variants), 'variant')} of "
                f"{min(calls)}{f' to {max(calls)}' if max(calls) != min(calls) else ''} calls, {self.asked}, "
                f"backends {', '.join(self.backends)}>")

    @property
    def tolerance(self) -> float | str | None:
        """The requested accuracy: None as written, a number for the largest error of every output, else its text."""
        terms = self.accuracy.terms
        if len(terms) == 1 and (terms[0].statistic, terms[0].output) == ("max", ""):
            return terms[0].limit
        return self.accuracy.text if terms else None

    @property
    def asked(self) -> str:
        """The requested accuracy or precision as a phrase."""
        if not self.accuracy.terms:
            return f"precision {self.precision.rpartition(',')[0]}" if self.words else str(self.accuracy)
        return f"tolerance {self.tolerance:.1e}" if isinstance(self.tolerance, float) else str(self.accuracy)

    def __str__(self) -> str:
        from tensor_graphs.paths.plan_text import on_one_screen

        return on_one_screen(self)

    def __copy__(self) -> Plan:
        return self

    def __deepcopy__(self, memo: object) -> Plan:
        return self                                                  # nothing in a plan changes

    def __reduce__(self) -> tuple[Any, ...]:
        stored = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("variants", "images", "given", "inputs")}
        origins = {origin_of(k) for v in self.variants for k in v.kernels.values() if k.remade}
        variants = [(v.cell, v.path, v.evidence, dict(v.at), v.around, v.whole, v.smaller) for v in self.variants]
        return restored, (stored, variants, origins)

    if not TYPE_CHECKING:                                            # type checkers know the attributes
        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError with a hint: most often the name is an attribute of the object that `bind` returns."""
            bind = "tg.bind(plan, parameters)"
            hints = {"bind": bind, "path": "plan.pin (at all sizes), or plan.variants[0].path (of one range)"}
            hints |= dict.fromkeys(RUN, f"{bind}.{name}(…): a plan is run once its parameters are given")
            raise no_attribute("a plan", name, dir(type(self)), hints.get(name, ""), "plan.")

    @property
    def pin(self) -> Pin:
        """The choices at all sizes as data: save them by `plan.pin.save(file)`, repeat them by `compile(graph, path=file)`."""
        from tensor_graphs.paths.pin_file import Pin, Pinned  # a door: most plans are run, and not kept

        source = self.given or self.written or self.graph
        titles = {key: title for v in self.variants for key, title in v.path.titles.items()}
        return Pin(source.structural_key, self.graph.dim_order, self.tolerance, self.backends,
                   tuple(Pinned(v.cell, dict(v.at), v.path) for v in self.variants), prepared=self.prepared,
                   devices=(HOST.name, *self.elsewhere), titles=titles)

    def variant(self, sizes: Mapping[str, int]) -> Variant:
        """Return the variant for these sizes of dims, by name; a dim that is not given has its largest size. Raises PlanError."""
        return self._serving({**self.largest, **given_sizes(self.graph, sizes, "sizes")})

    def _serving(self, binding: Mapping[str, int]) -> Variant:
        return self.variants[self.cells.index(binding)]

    @cached_property
    def cells(self) -> Cells:
        """The cells of sizes, numbered like the variants that serve them."""
        return Cells([v.cell for v in self.variants])

    @property
    def table_dims(self) -> tuple[str, ...]:
        """The dims whose sizes decide the variant."""
        return self.variants[0].cell.dims

    def memory(self, *positional: object, **dims: int) -> MemoryUse:
        """Return the bytes on the host at these dims, with those on other devices in `elsewhere`. A dim that is not given has its
        largest size. Raises PlanError."""
        if positional:
            sizes = ", ".join(f"{n}=…" for n in self.graph.dims)
            raise PlanError(f"memory takes sizes by name, and was given {positional[0]!r}\n"
                            f"  fix: memory({sizes}), or memory(**sizes)")
        binding = self.binding(dims)
        host, *others = (self._on_device(name, binding) for name in (HOST.name, *self.elsewhere))
        return replace(host, elsewhere=tuple(others))

    def _on_device(self, device: str, binding: Mapping[str, int]) -> MemoryUse:
        v = self._serving(binding)
        kinds = dict.fromkeys(("parameter", "state", "output", "constant", "dims", "input", "bind_only"), 0)
        for b in v.program.buffers:
            if b.kind in kinds and b.alias is None and b.device == device:
                kind = "bind_only" if b.kind == "parameter" and b.name not in self._read_by_runs else b.kind
                kinds[kind] += aligned(int(d.evaluate(b.nbytes, binding)), device)
        unseen = {n: s for n, s in self.graph.states.items() if device == HOST.name
                  and not any(b.kind == "state" and b.name == n for b in v.program.buffers)}     # a session holds these too
        states = kinds["state"] + sum(aligned(int(d.evaluate(s.type.nbytes(), binding))) for s in unseen.values())
        scratch = max((int(d.evaluate(i.call.scratch, binding)) for i in v.program.instructions if i.device == device), default=0)
        return MemoryUse(device, kinds["parameter"], states, v.layout.offsets(binding)[1].get(device, 0), kinds["output"],
                         kinds["constant"] + kinds["dims"], self._bound[0].get(device, 0), scratch,
                         kinds["input"] * (device != HOST.name), self._bound[1].get(device, 0), kinds["bind_only"])

    @cached_property
    def _read_by_runs(self) -> frozenset[str | None]:
        """Names of the parameters that instructions of a run read, or that are outputs, at any sizes."""
        programs = [v.program for v in self.variants]
        return frozenset(p.buffers[home].name for p in programs for o in (*p.outputs.values(), *itertools.chain.from_iterable(
            ins.reads for ins in p.instructions)) if p.buffers[home := p.home(o.buffer)].kind == "parameter")

    @cached_property
    def _bound(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Two tables of bytes computed from parameters, by device: those that stay, and the most at one moment of binding."""
        from tensor_graphs.paths.bind_time import bytes_of  # a door: who only chooses does not ask

        stay, peak = bytes_of([v.program for v in self.variants])
        for v in self.variants:
            devices = {i.device for i in v.program.instructions if i.call.engine == "launch"} if v.path.all_steps else set()
            for device in devices:
                whole = kernel_of_all_steps(v.path).whole
                assert whole is not None
                stay[device] += whole(self.graph).held_bytes
        return stay, peak | stay

    def binding(self, dims: Mapping[str, int]) -> dict[str, int]:
        """Return a size for every dim of the graph: the given sizes, after a check of their ranges, else the largest."""
        return {**self.largest, **given_sizes(self.graph, dims, "dim")}

    def check_capacity(self, binding: Mapping[str, int], capacity: int | None = None) -> None:
        """Raise PlanError, naming the largest live set, when a run at these dims needs more memory than a device may use."""
        text = self.over_capacity(binding, capacity)
        if text is not None:
            raise PlanError(f"{text}\n  fix: smaller dims, a shorter cache, or a higher memory limit")

    def over_capacity(self, binding: Mapping[str, int], capacity: int | None = None) -> str | None:
        """Return an error text, with the largest live set, if a device is too small; else None. capacity: of the host."""
        return next((self._too_much(use, use.most - excess, binding) for use, excess in self.excess(binding, capacity)), None)

    def excess(self, binding: Mapping[str, int], capacity: int | None = None) -> Iterator[tuple[MemoryUse, int]]:
        """Yield the memory use of each device that is too small, and the bytes by which a run at these dims exceeds it."""
        limits = {HOST.name: capacity if capacity is not None else self.capacity}
        if limits[HOST.name] is None and not self.elsewhere:
            return
        limits |= {name: device_named(name).capacity() for name in self.elsewhere}
        for use in self.memory(**{n: int(v) for n, v in binding.items() if n in self.graph.dims}).devices:
            limit = limits.get(use.device)
            if limit is not None and use.most > limit:
                yield use, use.most - int(limit)

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """Names of the devices other than the host that hold buffers of the plan."""
        return tuple(dict.fromkeys(name for v in self.variants for name in v.program.devices[1:]))

    def _too_much(self, use: MemoryUse, limit: int, binding: Mapping[str, int]) -> str:
        from tensor_graphs.paths.fit_terminal import human

        if use.total <= limit:
            return (f"device {use.device} may use {human(limit)}, binding the plan needs {human(use.most)} at once: "
                    f"parameters {human(use.parameters + use.bind_only)}, constants {human(use.constants)}, made of parameters "
                    f"{human(use.bind_peak)}, of which {human(use.bound)} stay")
        size, members = self._serving(binding).layout.largest_live_set(binding, use.device)
        largest = ", ".join(f"{m.label} {human(int(d.evaluate(m.nbytes, binding)))}" for m in members[:4]) or "nothing transient"
        sizes = ", ".join(f"{n}={v}" for n, v in sorted(binding.items()))
        more = "".join(f", {name} {human(n)}" for name in ("bound", "scratch", "inputs") if (n := getattr(use, name)))
        return (f"device {use.device} may use {human(limit)}, the plan needs {human(use.total)}"
                f"{' at ' + sizes if sizes else ''}: parameters {human(use.parameters)}, states {human(use.states)}, "
                f"outputs {human(use.outputs)}, arena {human(use.arena)}{more}\n"
                f"  largest live set, {human(size)}: {largest}")


def restored(stored: Mapping[str, Any],
             variants: Sequence[tuple[Cell, Path, tuple[Evidence, ...], Mapping[str, int], float, WholeRun | None,
                                      SmallerArena | None]], remade: Collection[Origin] = ()) -> Plan:
    """Return a pickled plan with this process's kernels; kernels generated for one signature are generated again. Raises PlanError
    when a kernel is missing or has other code in this process, and when the definition of an op of the graph has changed."""
    graph: Graph = stored["graph"]
    for origin in remade:
        load(origin)
    lowered_variants = []
    for cell, path, evidence, at, around, whole, smaller in variants:
        if path.graph_key != graph.structural_key:
            raise PlanError(f"the plan is of the graph {path.graph_key[:12]}, which is {graph.structural_key[:12]} here: an op of "
                            "it is defined otherwise\n  fix: compile the graph again here")
        new = lowered(graph, path, chosen_here(path), stored["backends"], cell.largest(stored["largest"]), smaller)
        lowered_variants.append(Variant(cell, path, new.program, new.layout, new.kernels, evidence, at, around, whole, smaller))
    return Plan(variants=tuple(lowered_variants), **stored)


def midpoint(symbol: Any) -> int:
    """Return a typical size of a dim, for costs: the geometric middle of its range, at most 256."""
    lo, hi = d.bounds(symbol)
    return d.clamp(min(256, round(float(max(lo, 1) * hi) ** 0.5)), symbol)
