"""bench: runs one kernel on one graph in a worker, at points and for timing.

Every array given to a candidate is between two guard zones of known bytes. Its outputs are poisoned before each run that counts and
read as soon as it returns, and its operands are compared afterwards. Outputs are read again a while later, which exposes a kernel
that writes after returning."""

from __future__ import annotations

import gc
import os
import sys
from bisect import insort
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from os import urandom
from typing import Any, ClassVar

import numpy as np

from tensor_graphs.kernels.kernel import NativeCall
from tensor_graphs.kernels.one_op_signature import signature_of_graph
from tensor_graphs.language.graph import Graph
from tensor_graphs.measure.concurrent_runs import run_interleaved, run_under_load
from tensor_graphs.measure.isolation import reused_arrays
from tensor_graphs.measure.isolation.fault_origin import JudgeFault, judges_own
from tensor_graphs.measure.isolation.memory_guards import BIG_BYTES, Guarded, bytes_of, digest, guarded, overlapping
from tensor_graphs.measure.isolation.replies import MOST_RUNS, Name
from tensor_graphs.measure.points.changed_rows import bases, changed_rows
from tensor_graphs.measure.points.inputs import (
    STORED,
    Form,
    Perturb,
    Point,
    is_big,
    make_inputs,
    pair_of_operands,
    perturb,
    perturbed,
    point_inputs,
    restore,
    rows_read_by,
    seal,
)
from tensor_graphs.measure.points.single_op_plans import as_stored, prepared_names, single_kernel_plan, views_graph, with_parameters
from tensor_graphs.measure.timing.clock import Watched, busy_seconds, now, others_running, sleep, switches, waited
from tensor_graphs.measure.timing.noise_reference import (
    FEW_QUIET,
    QUIET,
    Kind,
    ReferenceStream,
    level_of,
    reference_stream,
    waits_for_quiet,
)
from tensor_graphs.measure.timing.settle_threads import QUIET_SECONDS
from tensor_graphs.measure.timing.timed_batch import WARM_UP
from tensor_graphs.runtime.compiled_graph import CompiledGraph, bind

LLC_BYTES = 64 << 20
MOST_COPIES = 64
"""LLC_BYTES: for cold times, inputs are rotated over twice this memory, more than the last-level cache of the machines known to us.
MOST_COPIES: most copies in that rotation: smaller operands are activations, which are partly in a cache in a plan too"""

LATE_SECONDS = 0.02
"""delay in seconds after which an output is read again if there are new threads"""

HEAP_BYTES = 31 << 20
"""size of a large array that glibc still takes from its heap: arrays from 32 MB on are always requested from the system"""

KEPT_BYTES = 16 << 20
"""bytes of outputs of timed runs that are stored until the judge has chosen some runs"""

PATIENCE = (10.0, 2.0)
"""multiples of its time that a block with too few quiet runs may take: at first; and at least, as each vain wait halves it"""

WAITED_FOR = 0.15
"""seconds: a block with more time than this waits for quiet only as long as one with this much"""

MANY_CALLS, MANY_SECONDS = 10_000, 0.3
"""most calls, and seconds, of a user-registered kernel between two compared points: a kernel that counts calls is wrong later"""

COMPARABLE = 3
"""every how many runs the outputs may be compared where the oracle is slow"""

SALT_BYTES = 7
"""size of the random salt of each run; exact as a JSON number"""

HOT_SHARE = 0.1
"""share of a kernel's time budget for its hot runs"""

BUSY_SECONDS = 0.02
BUSY_SHARE = 0.1
"""BUSY_SECONDS: time for which this process is watched while it should sleep; BUSY_SHARE: share of it for which its threads may
work, as a kernel that has returned has ended. On a busy machine a thread that never rests gets a small share too"""

tracing, profiling = sys.gettrace, sys.getprofile
"""functions of sys, taken before any candidate is imported"""

COLLECTING = gc.callbacks
"""callbacks of the garbage collector, which also runs between two runs"""


class LateError(Exception):
    """Something of the kernel went on working after the kernel had returned."""


class ReplacedError(Exception):
    """The kernel has replaced code that measures it."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"the kernel replaced {', '.join(names[:8])}")


@dataclass(frozen=True)
class Timing:
    """Plan of a measurement. point: point whose values are perturbed before each run; ways: number of perturbations for runs that
    may be compared (0: a new one each time); level: level of the reference stream so far [s]; least: least seconds of a block;
    anew: operands that get entirely new values in the last block.

    The judge sends the seed of a block when the block begins; a number (salt) is drawn just before each run. So nobody can know a
    later run's operands, and compute the answer in advance."""

    point: Point
    ways: int
    budget: float
    baseline: bool
    reference: Kind
    level: float
    least: float
    anew: tuple[str, ...] = ()

    def comparable(self, run: int, secret: int) -> bool:
        """Return whether the judge may read the outputs of a run: of any run, or of every third where its oracle is slow."""
        return not self.ways or (run + secret) % COMPARABLE == 0

    def way(self, run: int, secret: int, salt: int) -> tuple[int, int]:
        """Return (seed, number) of the perturbation of a run: a new one, or, if it may be compared, one of the few in `ways`."""
        if self.ways and self.comparable(run, secret):
            return self.point.seed, (run + secret) // COMPARABLE % self.ways
        return secret ^ salt, run


@dataclass
class _Shown:
    """Output of a run, the offset in the file at which its bytes were stored, and the state of its guard zones then."""

    what: str
    guard: Guarded
    begin: int
    overrun: str


class Bench:
    """One kernel on one graph: runs it at points, stores its outputs in a file, times it."""

    def __init__(self, graph: Graph, kernel: Any, file: int) -> None:
        """file: descriptor of the file to which outputs are appended."""
        self.graph, self.kernel, self.file = graph, kernel, file
        self._made: tuple[Point, Mapping[str, np.ndarray]] | None = None
        """the last point and its inputs: it may be run again, and drawing inputs takes a third of the time"""
        self.parameters = prepared_names(graph, kernel)
        self.plan = single_kernel_plan(with_parameters(graph, self.parameters), kernel)
        self._bound: dict[tuple[Form, int, frozenset[str]], Watched] = {}
        self._large: dict[str, Callable[[], bool]] = {}
        """operands that are too large to be read at each point -> functions that check whether they are unchanged"""
        self.replies: list[dict[str, Any]] = []
        self.last: tuple[Point, dict[str, np.ndarray], dict[str, Guarded]] | None = None
        self._shown: list[_Shown] = []
        self._returned = 0.0
        self._threads = threads_alive()

    def bound(self, inputs: Mapping[str, np.ndarray], form: Form = "apart", axis: int = 0, left: Collection[str] = ()) -> Watched:
        """Return the plan, bound with the inputs from which the kernel prepares something as parameters. It is bound once per
        layout if the kernel prepares nothing, or only from large operands, which are equal at all points."""
        key = (form, axis, frozenset(left)) if form in STORED else ("apart", 0, frozenset[str]())
        watched = self._bound.get(key)
        if watched is None:
            graph = views_graph(self.graph, form, axis, left) if form in STORED else self.graph
            plan = single_kernel_plan(with_parameters(graph, self.parameters), self.kernel) if form in STORED else self.plan
            watched = Watched(bind(plan, {n: inputs[n] for n in self.parameters}))
            if all(is_big(self.graph.inputs[n].type.at({})) and rows_read_by(self.graph, n) is None for n in self.parameters):
                self._bound[key] = watched
        return watched

    def outputs(self, binding: Mapping[str, int], aligned: bool = True) -> dict[str, Guarded]:
        guards = {name: Guarded(tuple(int(s) for s in node.type.at(binding).shape), node.dtype.numpy, aligned)
                  for name, node in self.graph.outputs.items()}
        for guard in guards.values():
            guard.poison()
        return guards

    # ---- right or wrong ----

    def show(self, point: Point) -> None:
        """Run the kernel at a point, check memory, and store its outputs."""
        drawn, binding = self._inputs(point), point.binding
        values, updates = drawn, bases(self.graph, binding)
        left = {n for n, node in self.graph.inputs.items() if is_big(node.type.at(binding))}
        if not point.special and point.extreme is None:             # large operands have these values at each such point
            for name in left - self._large.keys():
                self._large[name] = seal(self.graph, binding, name)
        as_they_are = left | {n for n in drawn if point.only not in (None, n)}
        if point.form in STORED:
            drawn = as_stored(self.graph, drawn, point.form, point.axis, as_they_are)
        if point.like is not None and self.last is not None and self.last[0].sizes == point.sizes:
            _, inputs, guards = self.last                          # the same addresses, other values
            for name in guards:
                inputs[name][...] = drawn[name]
            inputs |= {name: drawn[name] for name in inputs.keys() - guards.keys()}
        else:
            inputs, guards = guarded(drawn, point.form != "unaligned")
            self._in_one_memory(point, inputs, guards)
        self.last = (point, inputs, guards) if point.form == "apart" else None
        out = self.outputs(binding, point.form != "unaligned")
        shared = self.share(inputs, guards, out, point.axis) if point.form == "in_place" else set()
        readable = {n: a for n, a in inputs.items() if n not in shared | left}
        large = {n: a for n, a in readable.items() if a is drawn[n]}     # not copied: compared by a digest only
        before = digest(large)
        plan = self.bound(inputs, point.form, point.axis, as_they_are)
        itemsize = max(node.dtype.itemsize for node in (*self.graph.inputs.values(), *self.graph.outputs.values()))
        shift = itemsize if point.form == "unaligned" else 0
        plan.run(inputs, {n: g.array for n, g in out.items()}, binding, shift=shift, shown=True)
        if point.beside:
            others, _ = guarded(make_inputs(self.graph, binding, point.seed + 1), True)
            parameters = {n: inputs[n] for n in self.parameters}
            own, theirs = ({n: a for n, a in arrays.items() if n not in parameters} for arrays in (inputs, others))
            apart = run_under_load(self.plan, parameters, own, theirs, out, binding)
            spec = signature_of_graph(self.graph).spec
            call = self.kernel.build(spec)
            if isinstance(call, NativeCall) and call.image and not parameters and not self.kernel.sharing(spec).updated:
                run_interleaved(call, own, theirs, out, binding, apart)
        rows = {n: changed_rows(out[n].array, values[operand]) for n, operand in updates.items()}
        begins = self._keep(out, {n: g.bytes for n, g in out.items()}, rows)
        outside = [f"output {n}, {where}" for n, g in out.items() if (where := g.overrun())]
        outside += [f"operand {n}, {where}" for n, g in guards.items() if (where := g.overrun())]
        outside += plan.lab.outside(plan.frame)
        mutated = digest(large) != before or not _equal(readable, {n: drawn[n] for n in readable.keys() - large.keys()})
        self.replies[-1] |= {"outside": outside, "mutated": mutated or plan.lab.mutated(plan.frame)}
        plan.let_go()
        if point.form == "apart" and sum(g.nbytes for g in out.values()) <= BIG_BYTES:
            self._shown += [_Shown(f"output {n} at {point}", g, begins[n], g.overrun()) for n, g in out.items()]
        self._returned = now()

    @staticmethod
    def asked_often(points: Sequence[Point]) -> Point:
        """Return a point with the sizes that are most frequent in `points`."""
        times = Counter(p.sizes for p in points)
        return max((p for p in points if p.form == "apart"), key=lambda p: times[p.sizes], default=points[0])

    def call_often(self, point: Point) -> None:
        """Run the kernel many times in a row; later points show whether it still computes correctly."""
        inputs, binding = point_inputs(self.graph, point), point.binding
        out = {n: g.array for n, g in self.outputs(binding).items()}
        plan, end = self.bound(inputs), now() + MANY_SECONDS
        for _ in range(MANY_CALLS):
            plan.run(inputs, out, binding, shown=True)
            if now() > end:
                break
        plan.let_go()

    def _inputs(self, point: Point) -> Mapping[str, np.ndarray]:
        """Return the input arrays of a point."""
        if self._made is None or self._made[0] != point:
            self._made = None                                       # free before drawing
            self._made = point, point_inputs(self.graph, point)
        return self._made[1]

    def look_at_large(self) -> None:
        """Check operands that were too large to be read at each point; changes are reported with the last point."""
        if self.replies and self._large:
            self.replies[-1]["mutated"] |= not all(is_whole() for is_whole in self._large.values())

    def _in_one_memory(self, point: Point, inputs: dict[str, np.ndarray], guards: dict[str, Guarded]) -> None:
        """Put two operands into the same memory, or into memory that overlaps."""
        pair = pair_of_operands(self.graph, inputs, point.seed) if point.form in ("same", "overlapping") else None
        if pair is None or not inputs[pair[0]].ndim:
            return
        x, y = pair
        guards.pop(y, None)
        if point.form == "same":
            inputs[y] = inputs[x]
        else:
            guards[x], inputs[x], inputs[y] = overlapping(inputs[x], inputs[y])

    def share(self, inputs: dict[str, np.ndarray], guards: Mapping[str, Guarded], out: dict[str, Guarded],
              pair: int = 0) -> set[str]:
        """Put an output into the memory of an operand with which the kernel declares that it may share. Return these operands.
        pair: index of the declared pair; if beyond the last: as many outputs as possible, each in the memory of another operand."""
        names, outputs, shared = list(inputs), list(out), dict[str, str]()
        pairs = self.kernel.sharing(signature_of_graph(self.graph).spec).pairs
        for o, i in pairs[pair:] or pairs:
            if i < len(names) and names[i] in guards and names[i] not in shared and outputs[o] not in shared.values():
                x, y = inputs[names[i]], out[outputs[o]].array
                if x.shape == y.shape and x.dtype == y.dtype:
                    out[outputs[o]] = guards[names[i]]
                    shared[names[i]] = outputs[o]
                    if pair < len(pairs):
                        break
        return set(shared)

    def _keep(self, out: Mapping[str, Guarded], values: Mapping[str, np.ndarray],
              rows: Mapping[str, np.ndarray] | None = None) -> dict[str, int]:
        """Append outputs to the file that the judge reads, unbuffered; return the offset of each. rows: outputs of which only these
        rows are stored, after their indices."""
        begins, rows = {}, rows or {}
        for name in out:
            begins[name] = os.lseek(self.file, 0, os.SEEK_END)
            if name in rows:
                array = out[name].array
                self._write(rows[name].astype(np.int64))
                self._write(array.reshape(-1, array.shape[-1])[rows[name]])
            else:
                self._write(values[name])
        self.replies.append({"shapes": {n: g.array.shape for n, g in out.items()}, "outside": [], "mutated": False,
                             "rows": {n: len(numbers) for n, numbers in rows.items()}})
        return begins

    def _write(self, array: np.ndarray) -> None:
        left = bytes_of(array).data
        while left:
            left = left[os.write(self.file, left):]

    def late(self) -> None:
        """Raise LateError if an output has changed since the kernel returned it."""
        if threads_alive() > self._threads:
            sleep(max(0.0, self._returned + LATE_SECONDS - now()))
        for shown in self._shown:
            returned = np.frombuffer(os.pread(self.file, shown.guard.nbytes, shown.begin), np.uint8)
            if not np.array_equal(shown.guard.bytes, returned) or shown.guard.overrun() != shown.overrun:
                raise LateError(f"{shown.what} was changed after the kernel had returned")
        self._shown.clear()

    # ---- fast or slow ----

    def settle(self) -> None:
        """Wait until the threads of libraries have gone to sleep. Raises LateError if some never do."""
        for _ in range(4):
            sleep(QUIET_SECONDS - BUSY_SECONDS / 2)
            before, start = busy_seconds(), now()
            sleep(BUSY_SECONDS)
            if busy_seconds() - before < BUSY_SHARE * (now() - start):
                return
        raise LateError("threads of this process work on after the kernel has returned")

    def time(self, what: Timing, plain: CompiledGraph | None, say: Callable[[dict[str, Any]], None],
             ask: Callable[[], dict[str, Any]], replaced: Callable[[], Sequence[str]]) -> None:
        """Time blocks of runs: of nothing, of the kernel, of the plain path, of the kernel again; then of the kernel on hot
        operands, on hot operands that stay unchanged, and on entirely new operands. Each block is announced by `say`.

        The runs of nothing give the time around a call. Cold operands rotate (LLC_BYTES, MOST_COPIES). Before each run some values
        change, so that a remembered answer is useless, and the outputs are poisoned; after it they are copied. In the end, `ask`
        returns the runs whose outputs the judge reads. Raises ReplacedError when `replaced` returns names at the end of a block."""
        self._made = None
        reused_arrays.clear()                                              # a program that runs the kernel has no such memory
        binding, exact = what.point.binding, point_inputs(self.graph, what.point)
        nbytes = sum(a.nbytes for a in exact.values()) or 1
        copies = max(1, min(MOST_COPIES, -(-2 * LLC_BYTES // nbytes)))
        sets = [{n: a if k == 0 and a.nbytes > BIG_BYTES else a.copy() for n, a in exact.items()} for k in range(copies)]
        before = digest(large := {n: a for n, a in exact.items() if a.nbytes > BIG_BYTES})     # no other copy to compare with

        def way(run: int, secret: int, salt: int) -> Perturb:
            return perturbed(self.graph, what.point.sizes, *what.way(run, secret, salt), self.parameters)

        out = self.outputs(binding)
        arrays = {n: g.array for n, g in out.items()}
        bound = [self.bound(inputs) for inputs in sets]
        with judges_own():
            reference = reference_stream(what.reference, self.kernel.backend == "c")
        reference.level = min(reference.level, what.level)
        sampled = _KeptOutputs(out, what)
        runs = _Runs(exact, sets, way, out, arrays, binding, reference, what.least, replaced)
        self.settle()
        walk = bound[0].walk(sets[0], arrays, binding)
        undo = bound[0].executor.silence()
        runs.block("nothing", walk, 0.0, lambda k: bound[0], say, ask, _KeptOutputs(out, what))
        undo()
        for watched, inputs in dict(zip(reversed(bound), reversed(sets), strict=True)).items():
            watched.run(inputs, arrays, binding)                # a first call takes longer, and may bring weights to a device

        def cold(budget: float) -> None:
            self.settle()
            self.late()
            runs.block("cold", walk, budget, lambda k: bound[k % copies], say, ask, sampled)

        cold(what.budget / 2)
        if plain is not None:
            yardstick = _Yardstick(plain)
            cost = yardstick.walk(sets[0], arrays, binding)
            runs.block("plain", cost, what.budget / 2, lambda k: yardstick, say, ask)
        cold(what.budget / 2)
        runs.block("hot", walk, what.budget * HOT_SHARE, lambda k: bound[0], say, ask, rotate=False)
        runs.block("same", walk, what.budget * HOT_SHARE, lambda k: bound[0], say, ask, rotate=False, fresh=False)
        renewed = _KeptOutputs(out, what, every=True)
        if what.anew:
            def renew(seed: int) -> None:
                for name, array in make_inputs(self.graph, binding, seed, what.anew).items():
                    np.copyto(sets[0][name], array)

            runs.block("new", walk, 0.0, lambda k: bound[0], say, ask, renewed, rotate=False, fresh=False, renew=renew)
            for name in what.anew:
                np.copyto(sets[0][name], exact[name])
        numbers = [*sampled.numbers(), *renewed.numbers()]
        say({"mark": "kept", "runs": numbers, "salts": [runs.salts[run] for run in numbers]})
        wanted = ask()["runs"]
        for run in wanted:
            self._keep(out, (renewed if run in renewed.numbers() else sampled).of(run))
        used = list(dict.fromkeys(bound))
        self.replies[-1]["outside"] = [f"output {n}, {where}" for n, g in out.items() if (where := g.overrun())]
        self.replies[-1]["outside"] += [where for watched in used for where in watched.lab.outside(watched.frame)]
        looked_at = range(copies) if copies * nbytes <= KEPT_BYTES else {0, *(run % copies for run in wanted)}
        sizes_changed = (segment.sizes_changed(watched.frame) for watched in used for segment in watched.executor.segments)
        unchanged = digest(large) == before and all(_equal(sets[k], exact) for k in looked_at) and not any(sizes_changed)
        self.replies[-1]["mutated"] = not unchanged


class _Yardstick(Watched):
    """Plain path, the baseline of a kernel's time; its exceptions are the judge's, not the kernel's."""

    def run(self, *args: Any, **kwargs: Any) -> float:
        """Run like `Watched.run`. Raises JudgeFault."""
        try:
            return super().run(*args, **kwargs)
        except Exception as error:                                  # no `with`: it would be timed
            raise JudgeFault(f"the plain path raised {type(error).__name__}: {error}") from error


class _KeptOutputs:
    """Copies of the outputs of timed runs: of all, or of a random sample that fits into memory, and always of the last run. secret:
    the block's seed. every: keep any run, not only comparable ones."""

    def __init__(self, out: Mapping[str, Guarded], timing: Timing, every: bool = False) -> None:
        self.timing, self.every = timing, every
        self.most = most_kept(sum(g.nbytes for g in out.values()))
        self.secret = 0
        self.rng = np.random.default_rng()
        self.outputs: dict[int, dict[str, np.ndarray]] = {}
        self.latest = {n: g.bytes.copy() for n, g in out.items()}
        self.seen, self.last = 0, -1
        self._told: set[int] = set()

    def offer(self, run: int, out: Mapping[str, Guarded]) -> None:
        if not self.every and not self.timing.comparable(run, self.secret):
            return
        self.seen += 1
        self.last = run
        for name, g in out.items():
            np.copyto(self.latest[name], g.bytes)
        if len(self.outputs) >= self.most:
            if self.rng.random() * self.seen >= self.most:
                return
            del self.outputs[list(self.outputs)[int(self.rng.integers(len(self.outputs)))]]
        self.outputs[run] = {n: g.bytes.copy() for n, g in out.items()}

    def of(self, run: int) -> Mapping[str, np.ndarray]:
        return self.latest if run == self.last else self.outputs[run]

    def numbers(self) -> list[int]:
        return sorted({*self.outputs, *([self.last] if self.seen else [])})

    def digests(self) -> list[tuple[int, str]]:
        """Return (run, digest of its outputs) for runs stored since the last call. The judge gets these at the end of a block, so
        that no later run can correct outputs of an earlier one."""
        digests = [(run, digest(dict(self.of(run)))) for run in self.numbers() if run not in self._told]
        self._told.update(run for run, _ in digests)
        return digests


@dataclass
class _Runs:
    """Timed runs in a row on operands of which a few values change each time."""

    exact: Mapping[str, np.ndarray]
    sets: Sequence[Mapping[str, np.ndarray]]
    way: Callable[[int, int, int], Perturb]
    out: Mapping[str, Guarded]
    arrays: Mapping[str, np.ndarray]
    binding: Mapping[str, int]
    reference: ReferenceStream
    least: float
    replaced: Callable[[], Sequence[str]]
    number: int = 0
    waits: bool = field(default_factory=waits_for_quiet)
    salts: dict[int, int] = field(default_factory=dict)
    """salt of each run that may be compared"""

    patience: ClassVar[float] = PATIENCE[0]
    """current waiting factor of this process (PATIENCE): on a machine that is never quiet it falls"""

    def block(self, name: Name, walk: float, budget: float, plan: Callable[[int], Watched], say: Callable[[dict[str, Any]], None],
              ask: Callable[[], dict[str, Any]], sampled: _KeptOutputs | None = None, rotate: bool = True, fresh: bool = True,
              renew: Callable[[int], None] | None = None) -> None:
        """Run at least five times (the first two runs do not count) until the budget [s] is spent: other load comes and goes within
        tenths of a second. Go on for up to `patience` budgets if hardly any run was quiet. Raises ReplacedError, and LateError when
        the kernel has left a hook in the interpreter, by which it could work after returning."""
        whole, calls, busy, waits = list[float](), list[float](), list[float](), list[float]()
        passed, ordered, switched_by, quiet = list[float](), list[float](), list[int](), 0
        first = self.number
        say({"mark": "begin"})
        secret = ask()["secret"]
        if sampled is not None:
            sampled.secret = secret
        begin = now()
        for count in range(MOST_RUNS):
            k = self.number
            self.number += 1
            inputs = self.sets[k % len(self.sets) if rotate else 0]
            salt = int.from_bytes(urandom(SALT_BYTES), "little")
            way = self.way(k, secret, salt) if fresh else ()
            watched = plan(k)
            if renew is not None:
                renew(secret ^ salt)
            start = now()
            self.reference.run()
            passed.append(now() - start)
            insort(ordered, passed[-1])
            perturb(inputs, way, self.exact)
            for g in self.out.values():
                g.poison()
            others = others_running()
            worked, switched, stood = busy_seconds(), switches(), waited()
            start = now()
            taken = watched.run(inputs, self.arrays, self.binding)
            whole.append(now() - start)
            waits.append(waited() - stood)
            busy.append(busy_seconds() - worked)
            switched_by.append(switches() - switched + others + others_running())
            calls.append(taken)
            if tracing() is not None or profiling() is not None or COLLECTING:
                raise LateError("the kernel has set a trace or profile function, or one of the garbage collector, which works on "
                                "after it has returned")
            if sampled is not None and count >= WARM_UP:
                self.salts[k] = salt
                sampled.offer(k, self.out)
            restore(inputs, way, self.exact)
            spent = now() - begin
            if count >= WARM_UP:
                calm = passed[-1] <= QUIET * min(self.reference.level, level_of(ordered))
                quiet += calm and not switched_by[-1]
            if count >= WARM_UP + 2 and spent > self.least and spent > budget and (
                    quiet >= FEW_QUIET or not self.waits or spent > _Runs.patience * min(budget, WAITED_FOR)):
                break
        if quiet >= FEW_QUIET:
            _Runs.patience = PATIENCE[0]
        elif spent > budget:
            _Runs.patience = max(_Runs.patience / 2, PATIENCE[1])
        if name == "cold":                                          # in other blocks more of what it reads is still in a cache
            self.reference.level = min(self.reference.level, level_of(ordered))
        counted = now() - begin
        say({"mark": "end", "name": name, "first": first, "counted": counted, "walk": walk, "whole": whole, "calls": calls,
             "busy": busy, "switches": switched_by, "waits": waits, "reference": passed})
        ask()                                                       # the judge looks at how long this process had to wait
        if names := self.replaced():                                # takes 1 to 2 ms, which do not count for the block
            raise ReplacedError(names)
        if sampled is not None and name != "nothing":
            say({"mark": "returned", "digests": sampled.digests()})


def grow_heap() -> None:
    """Make this process keep the memory of freed temporaries, as after freeing a large array. Otherwise glibc requests every array
    of more than 128 KB from the system, page by page, call after call (mallopt(3), M_MMAP_THRESHOLD)."""
    np.empty(HEAP_BYTES, dtype=np.uint8)


def most_kept(nbytes: int) -> int:
    """Return the number of runs whose outputs of this many bytes are stored; the last run's are stored in addition."""
    return max(2, KEPT_BYTES // max(1, nbytes))


def threads_alive() -> int:
    """Return the number of threads of this process; 0 where unknown."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 0


def _equal(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> bool:
    return all(np.array_equal(bytes_of(a[n]), bytes_of(b[n])) for n in b)
