"""path: a choice of how to compute each signature of a graph, and the enumeration of all such paths, the cheapest first, lazily.

A path has one choice per signature (an op with its attributes and types; 18 equal layers share one): the name of a kernel, "expand"
(run the definition, whose signatures are then chosen), or the name of a recipe. A recipe is a graph that means the same as a part
(several ops of the graph taken as one op) and runs in place of its definition. Views and leaves need no choice. A node that depends
on parameters alone needs one and costs nothing, as it is computed once, when the graph is bound. Enumeration starts at the cheapest
path and swaps one choice at a time: the cheapest paths first, those with a swap that moves less than SMALL of the time last. It is
complete and repeats none. The cost of a path includes the copies between devices that lowering inserts (placement.py). The cheapest
path is followed by those on one device alone; otherwise too many mixtures of devices would precede them.

Why the order is right: every path except the cheapest has a signature that is not computed by its cheapest alternative and whose
definition contains no other such signature. Computing it by its cheapest alternative costs no more, adds no small swap, and one
swap leads back. The argument is only approximate with parts, with several devices, or where more of a composite depends on
parameters alone at one position than at another: values that two parts share are computed once and a value is copied to a device
once, so costs do not add up. Each path is costed by the nodes that it runs.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tensor_graphs.devices.device_registry import HOST
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.kernel import ALL_STEPS, Kernel, KernelError, Spec
from tensor_graphs.kernels.registry import device_of, kernel_named, lacking, matching
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language import leaves
from tensor_graphs.language.anonymous_composite import RECIPE, PartOp, PartRecipe, known_when_bound
from tensor_graphs.language.composite import CompositeOp, Definition, defined, expand_all, is_loop
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, Op, TensorType, alike, apply, is_step, walk
from tensor_graphs.paths import copies
from tensor_graphs.paths.residency import under_views
from tensor_graphs.paths.signature_counts import tally_of

if TYPE_CHECKING:
    from tensor_graphs.paths.placement import Crossing, Placement

EXPAND = "expand"

SMALL = 0.01
"""Share of the cheapest path's time: paths with a swap that changes less than this share are listed last."""

MOST = 0.5
"""Share of a path's time: all alternatives of a signature that takes more are listed early, however little they change."""


class NoPathError(TensorGraphsError):
    """No kernels that may be used compute this graph (within the tolerance)."""


class StalePathError(NoPathError):
    """A path with a choice that this machine lacks or that may not be used. title, key: of the signature; name: of the choice."""

    def __init__(self, path: Path, title: str, key: str, name: str | None, why: str) -> None:
        self.path, self.title, self.key, self.name = path, title, key, name
        super().__init__(f"the path {path.id} {why}")


@dataclass(frozen=True)
class Cost:
    """Cost of one call [s]. measured: from a row of the database; else an estimate. error: measured max relative error, None if
    unknown. in_place: measured within its graph, including copies of its operands. margin: factor by which an estimate is raised.
    learned: estimated by the model fitted to this machine's rows. whole: expected seconds, without its steps, of a part that was
    measured as a unit; None: `seconds` without the margin."""

    seconds: float
    measured: bool = False
    error: float | None = None
    note: str = ""
    in_place: bool = False
    margin: float = 1.0
    learned: bool = False
    whole: float | None = None

    @property
    def expected(self) -> float:
        """Expected seconds of one call, without the margin."""
        return self.seconds / self.margin if self.whole is None else self.whole


@dataclass(frozen=True)
class Alternative:
    """One way to compute a signature: a kernel with its cost, or (kernel None) its definition, or a recipe that replaces the
    definition. copies: seconds per call to copy operands whose strides the kernel cannot read. charge: seconds per call that the
    alternative has to save to be worth its memory; the cost includes them."""

    name: str
    kernel: Kernel | None
    cost: Cost
    recipe: PartRecipe | None = None
    copies: float = 0.0
    charge: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of one call, without the steps of a definition."""
        return self.cost.seconds + self.copies + self.charge

    @property
    def expected(self) -> float:
        """Seconds of one call, without the steps of a definition, the margin and the charge for memory."""
        return self.cost.expected + self.copies

    def written(self, spec: Spec) -> Definition:
        """Return the definition that runs in place of a composite."""
        assert isinstance(spec.op, CompositeOp)
        return (spec.op if self.recipe is None else self.recipe.op).define(spec.inputs, spec.attrs)

    def target(self, s: Signature) -> Signature:
        """Return the signature of the op that runs for a part: the recipe, or the part itself where its definition runs."""
        if self.recipe is None:
            return s
        return signature_of(apply(self.recipe.op, [leaves.argument(i, t) for i, t in enumerate(s.spec.inputs)], s.spec.attrs))


WORTH, MUCH = 0.01, 0.1
"""Shares. An alternative that computes more than MUCH of the bytes of a composite's parameters has to save time for that memory: a
recipe WORTH of the part's time without recipes, a definition MUCH of the cheapest kernel's time."""

LITTLE = 64 << 10
"""Bytes that a definition may compute from parameters without a charge."""

DEFINITION = Alternative(EXPAND, None, Cost(0.0))

Steps = tuple[tuple[str, Kernel], ...]
"""(signature key, kernel) of each kernel that runs for one alternative of a part."""

WholeOf = Callable[[Signature, Alternative, Steps], Cost | None]
"""Function that returns the measured cost of a part as a unit, for an alternative and its steps; None where it was not measured."""

Choices = tuple[dict[Signature, Alternative], dict[Signature, int]]
"""(the choices that a path reaches, the number of calls of each)."""

CostOf = Callable[[Kernel, Signature], Cost | None]
"""Cost of a kernel for a signature; None when the kernel may not be used (never verified, failed, or beyond the tolerance)."""


@dataclass(frozen=True, repr=False)
class Path:
    """A choice for each signature that is reached; `print(path)` shows it.

    choices: signature key -> name of a kernel, or of a recipe, or "expand"; ALL_STEPS -> name of a kernel that runs the entire
    graph in one launch (`at_once`). seconds: expected time of a run, time around its calls included. cost: seconds of its calls by
    which paths are compared, estimates raised by their margins. recipes: the chosen recipes, by name. identities: kernel name ->
    identity of its code; a kernel not listed (in a path written by hand) is the current kernel of that name. copies: "cpu ->
    cuda:0" -> (number of values that a run copies, seconds of all these copies). measured_share: share of the kernels' expected
    time that rests on measurements, 0 to 1. small: number of choices that differ from the first listed path's and change less than
    SMALL of the time, not counting signatures that take over MOST of it. form: the words by which the graph was made of the written
    one (meaning/precision.py).
    """

    graph_key: str
    choices: Mapping[str, str]
    cost: float
    measured: bool
    error: float | None
    titles: Mapping[str, str] = field(default_factory=dict, compare=False)
    calls: Mapping[str, int] = field(default_factory=dict, compare=False)
    identities: Mapping[str, str] = field(default_factory=dict)
    recipes: Mapping[str, PartOp] = field(default_factory=dict, compare=False)
    copies: Mapping[str, tuple[int, float]] = field(default_factory=dict, compare=False)
    seconds: float = field(default=0.0, compare=False)
    measured_share: float = field(default=0.0, compare=False)
    small: int = field(default=0, compare=False)
    form: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __repr__(self) -> str:
        cost = f"{self.seconds * 1e6:.1f} µs, {'measured' if self.measured else 'estimate'}" if self.calls else "no cost"
        return f"<path {self.id}: {len(self.choices)} choices, {cost}>"

    def __str__(self) -> str:
        from tensor_graphs.paths.fit_terminal import fitted

        return fitted(self.lines(), "steps")

    def lines(self, other: Path | None = None) -> list[str]:
        """Return lines for people: cost and error, then each kernel with its op and calls. For a saved path, which has no cost: its
        kernels. other: a path; then only the choices that differ from that path's are listed."""
        if self.choices and not self.calls:
            kernels = sorted(set(self.choices.values()) - {EXPAND})
            return [f"{self.id}  saved, without a cost", *(f"      {name}" for name in kernels)]
        error = "error unknown" if self.error is None else f"error {self.error:.1e}"
        steps = [f"      {'its definition' if s['kernel'] == EXPAND else s['kernel']:20s} × {s['calls']:<3d} {s['op']}"
                 for s, key in zip(self.steps(), self.choices, strict=True)
                 if (s["kernel"] != EXPAND if other is None else s["kernel"] != other.choices.get(key))]
        steps += [] if other is not None and self.copies == other.copies else [
            f"      {way:20s} × {n:<3d} copies, {seconds * 1e6:.1f} µs" for way, (n, seconds) in self.copies.items()]
        return [f"{self.id}  {self.seconds * 1e6:10.1f} µs  {'measured' if self.measured else 'estimate':8s} {error}", *steps]

    @property
    def id(self) -> str:
        """Short digest of graph, choices and identities: equal paths with equal code have equal ids in all processes."""
        text = self.graph_key + json.dumps([sorted(self.choices.items()), sorted(self.identities.items())])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """Return the data that identify the path (read by path_reader.py), without costs, which belong to a machine (`costed`)."""
        return {"id": self.id, "graph": self.graph_key, "choices": dict(sorted(self.choices.items())),
                "identities": dict(sorted(self.identities.items())), **({"precision": dict(self.form)} if self.form else {})}

    @property
    def kernel_calls(self) -> int:
        """Number of kernel calls in a run."""
        return sum(n for key, n in self.calls.items() if not is_way_on(self.choices[key]))

    @property
    def all_steps(self) -> str:
        """Name of the kernel that runs the entire graph in one launch, at sizes it supports (`at_once`); "" if there is none."""
        return self.choices.get(ALL_STEPS, "")

    def at_once(self, kernel: Kernel) -> Path:
        """Return the path with a kernel added that runs the entire graph in one launch, at sizes it supports (`Kernel.whole`)."""
        return replace(self, choices={**self.choices, ALL_STEPS: kernel.name}, titles={**self.titles, ALL_STEPS: ALL_STEPS},
                       identities={**self.identities, kernel.name: kernel.identity})

    def steps(self) -> list[dict[str, Any]]:
        """Return the op, the kernel and the number of calls of each choice, for people and machines."""
        return [{"op": self.titles.get(k, k), "kernel": v, "calls": self.calls.get(k, 0)} for k, v in self.choices.items()]


def is_way_on(name: str) -> bool:
    """Return True if a choice is no kernel, but a definition or recipe whose own steps are chosen in turn."""
    return name == EXPAND or name.startswith(RECIPE)


class Paths:
    """The alternatives of a graph's signatures, and the paths composed of them.

    Signatures with equal keys (equal but for the graph's dims) share one choice, costed in the dims of the first of them.
    """

    def __init__(self, graph: Graph, table: Mapping[str, list[Kernel]], cost_of: CostOf, *, expand: bool = True,
                 copied: Callable[[TensorType], float] = lambda t: 0.0, whole: WholeOf = lambda s, way, steps: None,
                 link: Callable[[str, str, TensorType], float] = lambda source, target, t: 0.0, around: float = 0.0) -> None:
        """around: seconds that a run takes around its calls. link: seconds to copy a value from one device to another. copied:
        seconds to copy a value within a device. A kernel pays for the copies of its operands; a recipe pays for the copies that
        readers need of its results with gaps. whole: measured cost of a part as a unit, for one alternative; the alternative is
        then charged the difference to the sum of its steps, so that costs still add up."""
        self.graph, self.cost_of, self.may_expand, self.copied, self.whole = graph, cost_of, expand, copied, whole
        self.table, self.link, self.around = table, link, around
        self._device: dict[str, str] = {name: device_of(name).name for name in {k.backend for ks in table.values() for k in ks}}
        self.devices = tuple(sorted({HOST.name, *self._device.values()}))
        self._asks = any(node.op is leaves.COPY_TO for node in graph.nodes)
        self._placements: dict[frozenset[tuple[str, str]], Placement] = {}
        self._alternatives: dict[Signature, list[Alternative]] = {}
        self._inner: dict[tuple[Signature, str], list[tuple[Signature, int]]] = {}
        self._best: dict[Signature, tuple[float, Alternative | None]] = {}
        self._expected: dict[Signature, float] = {}
        self._counted = tally_of(graph)
        self._tally, self.top = self._counted.tally.copy(), self._counted.top
        self.parts: list[Signature] = []
        todo = [s for s, _ in reversed(self.top)]
        while todo:
            s = todo.pop()
            if isinstance(s.spec.op, PartOp) and s not in self.parts:
                self.parts.append(s)
                todo += [i for i, _ in reversed(self.inner(s))]
        # what a somebody's part computes inside may be needed outside of it too; other parts are taken out of the graph whole
        self.somebodys = [s for s in self.parts if isinstance(s.spec.op, PartOp) and (s.spec.op.somebodys or s.spec.op.of_kernels)]
        self.overlap = bool(self._counted.varies or self.somebodys)

    def inner(self, s: Signature, way: Alternative | None = None) -> list[tuple[Signature, int]]:
        """Return the signatures inside a composite's definition or a recipe (one level), each with its number of calls."""
        way = way or DEFINITION
        key = s, way.name
        if key not in self._inner:
            written = way.written(s.spec)
            bound = [written.arguments[i] for i in self._counted.bound(s)]
            self._inner[key] = list(self._tally.add(alike(walk(written.outputs)), bound).items())
        return self._inner[key]

    def within(self, s: Signature) -> list[tuple[Signature, int]]:
        """Return (signature, number of calls) for each step inside a composite: of its definition, or of one iteration for a loop.
        A search for steps without a kernel continues in these."""
        loop = any(is_loop(i.spec.op) for i, _ in self.inner(s))
        return self.inner(s, next((a for a in self.alternatives(s) if loop and a.recipe is not None), None))

    def seconds(self, s: Signature, way: Alternative) -> float:
        """Return the seconds of one call, including its steps by their cheapest alternatives; inf where a step has none."""
        total = way.seconds
        for i, n in self.inner(s, way) if way.kernel is None else ():
            if (best := self.best(i)[0]) == math.inf:               # also for a step that runs at bind time: a kernel must exist
                return best
            total += n * best
        return total

    def expected(self, s: Signature, way: Alternative) -> float:
        """Return the expected seconds of one call, steps included: like `seconds`, without margins and charges."""
        total = way.expected
        for i, n in self.inner(s, way) if way.kernel is None else ():
            if i not in self._expected:
                its = self.best(i)[1]
                self._expected[i] = math.inf if its is None else self.expected(i, its)
            total += n * self._expected[i] if n or self._expected[i] == math.inf else 0.0
        return total

    def alternatives(self, s: Signature) -> list[Alternative]:
        """Return all alternatives for a signature, kernels first, in a deterministic order."""
        if s not in self._alternatives:
            ways = [Alternative(kernel.name, kernel, cost, copies=0.0 if cost.in_place else self._copies(kernel, s))
                    for kernel in matching(s.spec, self.table) if (cost := self.cost_of(kernel, s)) is not None]
            if self.may_expand and isinstance(s.spec.op, CompositeOp) and not s.spec.op.opaque:
                written = [replace(DEFINITION, cost=Cost(sum(map(self.copied, self._counted.copied_inside(s)))))]
                for r in s.spec.op.recipes if isinstance(s.spec.op, PartOp) else ():
                    written.append(Alternative(r.name, None, Cost(self._handed_on(s, r)), r))
                ways += [self._measured(s, way) for way in written] if len(written) > 1 else written
                own = min((self.seconds(s, way) for way in ways if way.recipe is None), default=math.inf)
                kernels = min((way.seconds for way in ways if way.kernel is not None), default=math.inf)
                ways = [replace(way, charge=charge) if (charge := self._charge(s, way, own, kernels)) else way for way in ways]
            self._alternatives[s] = ways
        return self._alternatives[s]

    def _charge(self, s: Signature, way: Alternative, own: float, kernels: float) -> float:
        """Return the seconds that an alternative has to save for the memory it fills from parameters. own: seconds of the part
        without recipes; kernels: seconds of its cheapest kernel."""
        if way.recipe is not None:
            return WORTH * own if own < math.inf and takes_memory(s.spec.op, way.recipe) else 0.0
        bound = self._counted.bound(s)
        if way.kernel is not None or kernels == math.inf or not bound:
            return 0.0
        written = way.written(s.spec)
        return MUCH * kernels if _bytes_made(written, bound) > max(MUCH * _bytes_read(written, bound), LITTLE) else 0.0

    def _copies(self, kernel: Kernel, s: Signature) -> float:
        """Return the seconds per call of the copies that a kernel needs, on average over the nodes counted so far."""
        layouts = self._tally.layouts.get(s, Counter())
        seconds = sum(n * copies.copied(kernel, s.spec, dict(strided), self.copied) for strided, n in layouts.items() if strided)
        return seconds / max(1, sum(layouts.values()))

    def _handed_on(self, s: Signature, recipe: PartRecipe) -> float:
        """Return the seconds of the copies that readers (computed by their cheapest alternatives) need of a recipe's results, on
        average over the positions of the part in the graph."""
        if (reading := self._counted.handed_on(s, recipe)) is None:
            return 0.0
        total = sum(n * self.copied(t) for t, n in reading.copied.items())
        for (reader, at, x), n in reading.by_kernels.items():
            way = self.best(self._tally.first[reader.key])[1]
            if way is None or way.kernel is None:
                total += n * len(at) * self.copied(TensorType(x.shape, x.dtype))
            else:
                total += n * copies.copied(way.kernel, reader.spec, dict.fromkeys(at, x), self.copied)
        return total / reading.places

    def _measured(self, s: Signature, way: Alternative) -> Alternative:
        """Return the alternative with the cost that exceeds its steps, if it was measured as a unit with its cheapest steps."""
        steps = self.steps(s, way, lambda i: self.best(i)[1])
        cost = None if steps is None else self.whole(s, way, steps)
        if cost is None:
            return way
        return replace(way, cost=replace(cost, seconds=cost.seconds - self.seconds(s, way) + way.cost.seconds,
                                         whole=cost.seconds - self.expected(s, way) + way.cost.expected))

    def steps(self, s: Signature, way: Alternative, chosen: Callable[[Signature], Alternative | None]) -> Steps | None:
        """Return the (signature key, kernel) pairs that run for an alternative of a part; None where a step has none. chosen:
        returns the alternative of each signature inside."""
        kernels: dict[str, Kernel] = {}
        todo = [(s, way)]
        for composite in todo:                                      # grows during the loop
            for i, n in self.inner(*composite):
                if (its := chosen(i)) is None:
                    return None
                if its.kernel is None:
                    if (i, its) not in todo:
                        todo.append((i, its))
                elif n:
                    kernels[i.key] = its.kernel
        return tuple(sorted(kernels.items(), key=lambda step: step[0]))

    def reworded(self, path: Path, other: Mapping[Signature, Alternative]) -> Path | None:
        """Return the path with some choices replaced, new steps by their cheapest alternatives; None where that is impossible."""
        chosen = self.kernels(path)
        choices = self._assemble({s: chosen[s.key] for s in self.known() if s.key in chosen} | dict(other))
        return None if choices is None else self._path(*choices)

    def known(self) -> list[Signature]:
        """Return all signatures met so far: those of the graph itself, and those inside definitions that were costed."""
        return list(dict.fromkeys([*(s for s, _ in self.top), *(i for inner in self._inner.values() for i, _ in inner)]))

    def best(self, s: Signature) -> tuple[float, Alternative | None]:
        """Return (seconds, alternative) of the cheapest alternative; (inf, None) where no alternative can be computed."""
        if s not in self._best:
            self._best[s] = (math.inf, None)            # definitions are finite, so this is never read while it is computed
            costed = [(cost, a) for a in self.alternatives(s) if (cost := self.seconds(s, a)) < math.inf]
            self._best[s] = min(costed, key=lambda way: way[0], default=(math.inf, None))
        return self._best[s]

    def _assemble(self, picks: Mapping[Signature, Alternative]) -> Choices | None:
        """Return the choices reached with `picks` (elsewhere the cheapest), and their calls; None if a signature has no choice."""
        chosen: dict[Signature, Alternative] = {}
        opened: list[Signature] = []                                # each once, or nested definitions take 2^depth steps
        stack = [(s, False) for s, _ in reversed(self.top)]
        while stack:
            s, is_done = stack.pop()
            if is_done:
                opened.append(s)                                    # after all steps of its definition
            elif s not in chosen:
                if (a := picks.get(s) or self.best(s)[1]) is None:
                    return None
                chosen[s] = a
                if a.kernel is None:
                    stack += [(s, True), *((i, False) for i, _ in reversed(self.inner(s, a)))]
        if self.overlap:
            return chosen, self._calls(chosen)
        calls = dict.fromkeys(chosen, 0) | dict(self.top)
        for s in reversed(opened):
            for i, k in self.inner(s, chosen[s]):
                calls[i] += calls[s] * k
        return chosen, calls

    def _calls(self, chosen: Mapping[Signature, Alternative]) -> dict[Signature, int]:
        """Return the number of nodes of each signature after expanding definitions; nodes that parts share count once."""
        calls = dict.fromkeys(chosen, 0)
        expanding: dict[Signature, set[Node]] = {}
        order = walk(self._expanded(chosen, expanding))
        bound = known_when_bound(order)
        for node in order:
            if is_step(node) and node not in bound:
                calls[self._tally.first[signature_of(node).key]] += 1
        return calls | {s: len(nodes) for s, nodes in expanding.items()}

    def _expanded(self, chosen: Mapping[Signature, Alternative], expanding: dict[Signature, set[Node]]) -> list[Node]:
        """Return the graph's roots expanded by these choices. expanding: receives the nodes that were replaced, by signature."""
        def keep(node: Node) -> bool:
            s = self._tally.first[signature_of(node).key]
            if chosen[s].kernel is None:
                expanding.setdefault(s, set()).add(node)
                return False
            return True

        def written(node: Node) -> Definition:
            s = signature_of(node)
            return chosen[self._tally.first[s.key]].written(s.spec)

        return expand_all(self.graph.roots, keep, written)

    # ---- devices ----

    def device_of(self, way: Alternative) -> str:
        """Return the device on which a kernel computes; the host for a definition or recipe."""
        return HOST.name if way.kernel is None else self._device[way.kernel.backend]

    def placement(self, chosen: Mapping[Signature, Alternative]) -> Placement:
        """Return the nodes that these choices run, as one object for all choices that expand the same definitions and recipes."""
        key = frozenset((s.key, a.name) for s, a in chosen.items() if a.kernel is None)
        if key not in self._placements:
            from tensor_graphs.paths.placement import Placement  # a door: most graphs run on one device

            self._placements[key] = Placement(self.graph, self._expanded(chosen, {}))
        return self._placements[key]

    def crossings(self, chosen: Mapping[Signature, Alternative]) -> list[Crossing]:
        """Return the copies between devices in a run of these choices."""
        on = {s.key: self.device_of(a) for s, a in chosen.items()}
        return self.placement(chosen).crossings(on) if self._asks or set(on.values()) - {HOST.name} else []

    def _within(self, device: str) -> dict[Signature, Alternative]:
        """Return for each signature the cheapest alternative on one device alone; signatures without one are left out."""
        cheapest: dict[Signature, tuple[float, Alternative | None]] = {}

        def best(s: Signature) -> tuple[float, Alternative | None]:
            if s not in cheapest:
                cheapest[s] = (math.inf, None)
                costed = []
                for a in self.alternatives(s):
                    if a.kernel is None:
                        inner = [n * best(i)[0] for i, n in self.inner(s, a) if n or best(i)[1] is None]
                        costed.append((a.seconds + sum(inner), a))
                    elif self.device_of(a) == device:
                        costed.append((a.seconds, a))
                cheapest[s] = min(costed, key=lambda way: way[0], default=(math.inf, None))
            return cheapest[s]

        for s, _ in self.top:
            best(s)
        return {s: a for s, (seconds, a) in cheapest.items() if a is not None and seconds < math.inf}

    def _placed(self, choices: Choices) -> Choices:
        """Return the cheapest local optimum of device placement found from these choices and from each device's all-on-one choices.
        Signatures change device one by one, with their producers and consumers, and with all signatures of their op."""
        seeds = [choices, *(seed for device in self.devices if (seed := self._assemble(self._within(device))) is not None)]
        return min(map(self._moved, seeds), key=lambda moved: self._cost(*moved))

    def _alone(self) -> Iterator[Choices]:
        """Yield choices that run on one device alone, if there are several devices: for each device the cheapest, then the cheapest
        with the graph's own composites expanded."""
        for device in self.devices if len(self.devices) > 1 else ():
            within = self._within(device)
            opened = {s: way for s, _ in self.top for way in reversed(self.alternatives(s))
                      if way.kernel is None and all(i in within for i, _ in self.inner(s, way))}
            for picks in (within, within | opened):
                choices = self._assemble(picks)
                if choices is not None and all(a.kernel is None or self.device_of(a) == device for a in choices[0].values()):
                    yield choices

    def _moved(self, choices: Choices) -> Choices:
        cost, better = self._cost(*choices), True
        while better:
            better = False
            for picks in self._moves(choices[0]):
                other = self._assemble(choices[0] | picks)
                if other is None or self._kernel_seconds(*other) >= cost:
                    continue                                        # without looking at its copies
                if (new := self._cost(*other)) < cost * (1 - 1e-9):
                    choices, cost, better = other, new, True
        return choices

    def _moves(self, chosen: Mapping[Signature, Alternative]) -> Iterator[dict[Signature, Alternative]]:
        for s in chosen:
            for a in self.alternatives(s):
                if a.name != chosen[s].name:
                    yield {s: a}
        groups: dict[str, list[Signature]] = {}
        for s in chosen:
            groups.setdefault(s.spec.op.name, []).append(s)
        neighbours: dict[Signature, dict[Signature, None]] = {}
        for node in self.placement(chosen).order:
            if is_step(node):
                reader = self._tally.first[signature_of(node).key]
                for operand in map(under_views, node.inputs):
                    if is_step(operand):
                        writer = self._tally.first[signature_of(operand).key]
                        neighbours.setdefault(reader, {reader: None})[writer] = None
                        neighbours.setdefault(writer, {writer: None})[reader] = None
        pairs = [[s, other] for s, others in neighbours.items() for other in others if other is not s]
        for group in (*(g for g in groups.values() if len(g) > 1), *pairs, *neighbours.values()):
            for device in self.devices:
                there = {s: way for s in group
                         if (way := self._cheapest_on(s, device)) is not None and way.name != chosen[s].name}
                if there:
                    yield there

    def _cheapest_on(self, s: Signature, device: str) -> Alternative | None:
        there = [a for a in self.alternatives(s) if a.kernel is not None and self.device_of(a) == device]
        return min(there, key=lambda way: way.seconds, default=None)

    def _path(self, chosen: Mapping[Signature, Alternative], calls: Mapping[Signature, int], small: int = 0) -> Path:
        paid = [a.cost for a in chosen.values() if a.kernel is not None]
        takes = [(a.expected * calls[s], a.cost.measured) for s, a in chosen.items() if a.kernel is not None]
        kernels = sum(seconds for seconds, _ in takes)
        errors = [p.error for p in paid]
        copied: dict[str, tuple[int, float]] = {}
        for node, source, target in self.crossings(chosen):
            n, seconds = copied.get(f"{source} -> {target}", (0, 0.0))
            copied[f"{source} -> {target}"] = n + 1, seconds + self.link(source, target, node.type)
        return Path(self.graph.structural_key, {s.key: a.name for s, a in chosen.items()},
                    self._cost(chosen, calls), all(p.measured for p in paid),
                    None if any(e is None for e in errors) else max((e for e in errors if e is not None), default=0.0),
                    {s.key: s.title() for s in chosen}, {s.key: calls[s] for s in chosen},
                    {a.name: a.kernel.identity for a in chosen.values() if a.kernel is not None},
                    {a.name: a.recipe.op for a in chosen.values() if a.recipe is not None}, copied,
                    sum(a.expected * calls[s] for s, a in chosen.items()) + sum(seconds for _, seconds in copied.values())
                    + self.around, sum(seconds for seconds, measured in takes if measured) / kernels if kernels else 1.0, small)

    def cheapest(self) -> Path:
        """Return the best path. Raises NoPathError naming the ops that nothing computes."""
        choices = self._assemble({})
        if choices is None:
            raise NoPathError(self._why_none())
        return self._path(*self._descended(choices))

    def _descended(self, choices: Choices) -> Choices:
        """Return the local optimum reached by changing the choice of one part, or of all parts of one name, at a time. Values
        inside a part may be needed outside of it too, so its definition may cost less than the sum of its steps."""
        if len(self.devices) > 1:
            choices = self._placed(choices)
        if not self.overlap:
            return choices                                          # costs add up, but for the copies
        without = self._assemble({s: a for s in self.somebodys for a in self.alternatives(s) if a.name == EXPAND})
        choices = choices if without is None else min(choices, without, key=lambda one: self._cost(*one))
        groups = [[s] for s in [*self.parts, *(self._tally.first[key] for key in sorted(self._counted.varies))]]
        for name in dict.fromkeys(s.spec.op.name for s in self.parts):
            groups.append([s for s in self.parts if s.spec.op.name == name])
        groups += [self.parts] if len(groups) > 1 else []
        better = bool(groups)
        while better:
            better = False
            for group in groups:
                for way in dict.fromkeys(a.name for s in group for a in self.alternatives(s)):
                    other = self._assemble(choices[0] | {s: a for s in group for a in self.alternatives(s) if a.name == way})
                    if other is not None and self._cost(*other) < self._cost(*choices):
                        choices, better = other, True
        return choices

    def _cost(self, chosen: Mapping[Signature, Alternative], calls: Mapping[Signature, int]) -> float:
        """Return the seconds of the kernels with their operand copies, and of the copies between devices."""
        return self._kernel_seconds(chosen, calls) + sum(
            self.link(source, target, node.type) for node, source, target in self.crossings(chosen))

    @staticmethod
    def _kernel_seconds(chosen: Mapping[Signature, Alternative], calls: Mapping[Signature, int]) -> float:
        return sum(a.seconds * calls[s] for s, a in chosen.items())

    def _why_none(self) -> str:
        culprits: list[str] = []

        def visit(s: Signature, trail: str) -> None:
            if self.best(s)[1] is not None or len(culprits) >= 5:
                return
            if isinstance(s.spec.op, CompositeOp) and self.may_expand and not s.spec.op.opaque:
                for i, _ in self.within(s):
                    visit(i, f"{trail}{s.spec.op.name} → ")
            else:
                culprits.append(trail + s.title())

        for s, _ in self.top:
            visit(s, "")
        return "no kernel that may be used computes " + "; ".join(dict.fromkeys(culprits))

    def __iter__(self) -> Iterator[Path]:
        """Yield all paths, each once: the cheapest first (exactly by cost when costs add up), then those on one device, small swaps
        last."""
        first = self._assemble({})
        if first is None:
            return
        first = self._descended(first)
        tie = itertools.count()
        seen: set[frozenset[tuple[str, str]]] = set()
        heap: list[tuple[bool, int, float, int, dict[Signature, Alternative], dict[Signature, int]]] = []
        moves, most = (share * self._cost(*first) for share in (SMALL, MOST))

        def is_small(s: Signature, way: Alternative, calls: int) -> bool:
            usual = first[0].get(s) or self.best(s)[1]
            if usual is None or way.name == usual.name or (takes := self.seconds(s, usual) * calls) > most:
                return False
            return abs(self.seconds(s, way) * calls - takes) < moves

        def push(choices: Choices | None, early: bool = False) -> None:
            if choices is None:
                return
            key = frozenset((s.key, a.name) for s, a in choices[0].items())
            if key not in seen:
                seen.add(key)
                small = sum(is_small(s, a, choices[1][s]) for s, a in choices[0].items())
                heapq.heappush(heap, (not early, small, self._cost(*choices), next(tie), *choices))

        push(first)
        while heap:
            _, small, _, _, chosen, calls = heapq.heappop(heap)
            yield self._path(chosen, calls, small)
            for alone in self._alone() if len(seen) == 1 else ():
                push(alone, True)
            for s, current in chosen.items():
                for other in self.alternatives(s):
                    if other.name != current.name:
                        push(self._assemble({**chosen, s: other}))

    def kernels(self, path: Path) -> dict[str, Alternative]:
        """Return signature key -> chosen alternative, for each signature that is reached. Raises NoPathError for a stale path."""
        if path.graph_key != self.graph.structural_key:
            raise NoPathError(f"the path {path.id} is of another graph: {path.graph_key[:12]}, "
                              f"this is {self.graph.structural_key[:12]}")
        out: dict[str, Alternative] = {}
        stack = [s for s, _ in self.top]
        while stack:
            if (s := stack.pop()).key in out:
                continue
            name = path.choices.get(s.key)
            way = next((a for a in self.alternatives(s) if a.name == name), None)
            if way is None:
                raise StalePathError(path, s.title(), s.key, name, f"chooses {name!r} for {s.title()}, which is not available here")
            pinned = path.identities.get(way.name)
            if way.kernel is not None and pinned is not None and pinned != way.kernel.identity:
                raise StalePathError(path, s.title(), s.key, name,
                                     f"means another {way.name} for {s.title()}: {pinned[:12]}, here it is "
                                     f"{way.kernel.identity[:12]}: its code, a library or the processor is another one today\n"
                                     "  fix: choose again (tg plan --pin, tg list-paths), or bring back the code that was saved")
            out[s.key] = way
            if way.kernel is None:
                stack.extend(i for i, _ in self.inner(s, way))
        return out

    def charge(self, path: Path) -> float:
        """Return the seconds that the path must save to pay for the memory that its choices take. Raises NoPathError."""
        return sum(way.charge * path.calls.get(key, 1) for key, way in self.kernels(path).items())

    def costed(self, path: Path) -> Path:
        """Return a (saved) path with current costs and titles, without choices that it does not reach. Raises NoPathError."""
        costed = self.reworded(path, {})
        assert costed is not None                       # every signature that the path reaches was picked
        return costed.at_once(kernel_of_all_steps(path)) if path.all_steps else costed

    def still(self, path: Path) -> Path | None:
        """Return the path as `costed` does; None where a choice no longer exists, or may not be used any more."""
        try:
            return self.costed(path)
        except NoPathError:
            return None


def kernel_of_all_steps(path: Path) -> Kernel:
    """Return the kernel of this process that runs the entire graph of a path in one launch. Raises StalePathError where no kernel
    has its name, or where its code has changed."""
    try:
        kernel = kernel_named(path.all_steps)
    except KernelError:
        raise StalePathError(path, ALL_STEPS, ALL_STEPS, path.all_steps,
                             f"runs all steps at once by {path.all_steps}, which is not available here\n"
                             "  fix: choose again (tg plan --pin, tg list-paths)") from None
    meant, missing = path.identities.get(kernel.name, kernel.identity), lacking(kernel)
    if meant != kernel.identity or missing is not None:
        why = missing or f"it means {meant[:12]}, here it is {kernel.identity[:12]}"
        raise StalePathError(path, ALL_STEPS, ALL_STEPS, kernel.name, f"runs all steps at once by {kernel.name}, and {why}\n"
                             "  fix: choose again (tg plan --pin, tg list-paths)")
    return kernel


def expanded(nodes: Sequence[Node], path: Path, whole: Callable[[Node], bool] = lambda node: False) -> list[Node]:
    """Return nodes of a graph in which composites without a chosen kernel are replaced by the chosen definition or recipe. whole:
    True for a composite to keep."""

    def keep(node: Node) -> bool:
        return not is_way_on(path.choices.get(signature_of(node).key, "")) or whole(node)

    def written(node: Node) -> Definition:
        recipe = path.recipes.get(path.choices[signature_of(node).key])
        return defined(node) if recipe is None else recipe.define([i.type for i in node.inputs], node.attrs)

    return expand_all(nodes, keep, written)


def takes_memory(part: Op, recipe: PartRecipe) -> bool:
    """Return True if a recipe computes more bytes from a part's parameters than its definition, by over MUCH of their size."""
    assert isinstance(part, PartOp)
    more = _bytes_made(recipe.op.written, part.bound) - _bytes_made(part.written, part.bound)
    return more > MUCH * _bytes_read(part.written, part.bound)


def _bytes_read(written: Definition, bound: Collection[int]) -> int:
    return sum(int(written.arguments[i].type.nbytes()) for i in bound)


def _bytes_made(written: Definition, bound: Collection[int]) -> int:
    """Return the bytes computed from bound operands and kept: read by a step that runs after binding, or returned."""
    order = walk(written.outputs)
    early = known_when_bound(order, [written.arguments[i] for i in bound])
    read = {under_views(x) for x in (*written.outputs, *(x for n in order if n not in early for x in n.inputs))}
    return sum(int(t.nbytes()) for node in read if node in early and node.op.kind != "leaf" for t in node.types)
