"""run_order: an order of instructions that needs less memory: values die early, and some are dropped and computed again.

A training step keeps what the forward part computes for the gradients. Two changes of the order reduce the bytes alive at once, and
change no bit of a result. `end_early` moves an instruction forward where its operands die with it (the product that is a weight's
gradient, and the update that reads it). `repeat` drops a value between two readers and computes it again before the later one:
gradient checkpointing (Chen, Xu, Zhang and Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016), value by value. It
drops the value with the most bytes for each predicted second among those that are alive at the fullest moment.

An order is a list of indices of instructions. An index that occurs again repeats the instruction, into new memory; a reader takes
the latest result before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from tensor_graphs.language import dims as d
from tensor_graphs.paths.lower import NOTHING_SHARED, Finals, Instruction, Lowering, Operand
from tensor_graphs.paths.memory import aligned

CHAIN = 64
"""most instructions that are moved together, and most that run again for one value"""


def in_order(lowering: Lowering, finals: Finals, order: Sequence[int]) -> Finals:
    """Put the instructions of a draft in an order; one that occurs again writes new buffers, which later instructions read. Return
    the operands of the final values."""
    p, latest, before = lowering.program, dict[int, int](), set[int]()
    steps = list(p.instructions)

    def now(operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
        return tuple(replace(o, buffer=latest.get(o.buffer, o.buffer)) for o in operands)

    p.instructions.clear()
    for i in order:
        ins = replace(steps[i], ins=now(steps[i].ins))
        if i in before:
            label = lowering.label(ins.op)
            lowering.sharing[label] = lowering.sharing.get(ins.label, NOTHING_SHARED)
            for o in ins.outs:
                b = p.buffers[o.buffer]
                latest[o.buffer] = lowering.buffer("arena", b.name, b.nbytes, b.device, dtype=b.dtype)
            ins = replace(ins, label=label, outs=now(ins.outs))
        before.add(i)
        p.instructions.append(ins)
    return {key: now((value,))[0] for key, value in finals.items()}


@dataclass(frozen=True)
class SmallerArena:
    """The order of a variant's run under a memory limit. calls: instructions that run again; seconds: their predicted time; arena,
    before: bytes of the arena with this order, and in the order of the graph."""

    order: tuple[int, ...]
    calls: int
    seconds: float
    arena: int
    before: int

    def __call__(self, lowering: Lowering, finals: Finals) -> Finals:
        return in_order(lowering, finals, self.order)


@dataclass
class _Version:
    """A value from position `begin` of an order to its last reader. readers: positions; the order's length stands for the end."""

    value: int
    begin: int
    readers: list[int] = field(default_factory=list)

    @property
    def last(self) -> int:
        return self.readers[-1] if self.readers else self.begin


class RunOrder:
    """The order of a draft's instructions, and the bytes alive on one device at concrete sizes of dims.

    seconds: function from an instruction to its predicted seconds."""

    def __init__(self, lowering: Lowering, finals: Finals, device: str, binding: Mapping[str, int],
                 seconds: Callable[[Instruction], float]) -> None:
        steps, buffers = lowering.program.instructions, lowering.program.buffers
        new = {name: value.buffer for (kind, name), value in finals.items() if kind == "state"}
        becomes = {i: new[b.name] for i, b in enumerate(buffers) if b.kind == "state" and b.name in new}
        transient = {o.buffer for ins in steps for o in ins.outs if buffers[o.buffer].kind == "arena"}
        self.order = list(range(len(steps)))
        self.seconds = [seconds(ins) for ins in steps]
        self.final = transient & {value.buffer for value in finals.values()}
        self.reads = [tuple(dict.fromkeys(o.buffer for o in ins.ins if o.buffer in transient)) for ins in steps]
        self.writes = [tuple(dict.fromkeys(o.buffer for o in ins.outs if o.buffer in transient)) for ins in steps]
        self.states = [frozenset(o.buffer for o in ins.ins if buffers[o.buffer].kind == "state") for ins in steps]
        self.maker = {b: i for i, written in enumerate(self.writes) for b in written}
        self.nbytes = {b: aligned(int(d.evaluate(buffers[b].nbytes, binding)), device) if buffers[b].device == device else 0
                       for b in transient}
        pairs = [lowering.sharing.get(ins.label, NOTHING_SHARED).pairs for ins in steps]
        self.shared = [[(ins.outs[o].buffer, ins.ins[i].buffer) for o, i in of if i < len(ins.ins)]
                       for ins, of in zip(steps, pairs, strict=True)]
        self.overwrites = {i: x for i, of in enumerate(self.shared) for out, x in of if becomes.get(x) == out}
        for state in self.overwrites.values():                       # written over the state: takes no memory of its own
            self.nbytes[becomes[state]] = 0
        self.refused = set[tuple[int, int]]()

    def versions(self, order: Sequence[int]) -> list[_Version]:
        """Return the values of a run in this order, each with its lifetime."""
        latest: dict[int, _Version] = {}
        versions = []
        for at, i in enumerate(order):
            for b in self.reads[i]:
                latest[b].readers.append(at)
            for b in self.writes[i]:
                latest[b] = _Version(b, at)
                versions.append(latest[b])
        for b in self.final:
            latest[b].readers.append(len(order))
        return versions

    def alive(self, order: Sequence[int], versions: Sequence[_Version]) -> list[int]:
        """Return the bytes alive at each instruction. An output that may lie in an operand that dies there is counted after it."""
        change = [0] * (len(order) + 2)
        ends = {(v.value, v.last) for v in versions}
        for v in versions:
            reuses = any(out == v.value and (x, v.begin) in ends and self.nbytes[x] == self.nbytes[out]
                         for out, x in self.shared[order[v.begin]])
            change[v.begin + reuses] += self.nbytes[v.value]
            change[v.last + 1] -= self.nbytes[v.value]
        return list(accumulate(change))[:len(order)]

    @property
    def peak(self) -> int:
        """The most bytes alive at one instruction."""
        return max(self.alive(self.order, self.versions(self.order)), default=0)

    @property
    def repeated(self) -> list[int]:
        """The instructions that run again, once for each time."""
        first = set[int]()
        return [i for i in self.order if i in first or first.add(i)]  # type: ignore[func-returns-value]

    def end_early(self) -> None:
        """Move instructions forward where the bytes alive fall with them, and updates of states with the gradients that they read:
        what computes values again afterwards does not read these states."""
        moved = _Moves(self).order
        if max(self.alive(moved, self.versions(moved)), default=0) <= self.peak:
            self.order = moved

    def repeat(self, target: int) -> bool:
        """Drop values and compute them again until at most `target` bytes are alive at once; return whether that is reached."""
        while True:
            versions = self.versions(self.order)
            alive = self.alive(self.order, versions)
            peak = max(alive, default=0)
            if peak <= target:
                return True
            for key, order in self._candidates(versions, alive.index(peak)):
                after = self.alive(order, self.versions(order))
                if (max(after), after.count(max(after))) < (peak, alive.count(peak)):
                    self.order = order
                    break
                self.refused.add(key)
            else:
                return False

    def _candidates(self, versions: Sequence[_Version], at: int) -> Iterator[tuple[tuple[int, int], list[int]]]:
        """Yield orders in which a value that is alive at a position is dropped there and computed again, the most bytes for each
        second first. The key names the value and the reader before which it is computed again."""
        latest: dict[int, list[_Version]] = {}
        for v in versions:
            latest.setdefault(v.value, []).append(v)
        overwritten = {self.overwrites[i]: where for where, i in enumerate(self.order) if i in self.overwrites}
        ranked = []
        for v in versions:
            if not v.begin < at < v.last or at in v.readers or not self.nbytes[v.value]:
                continue
            use = next(r for r in v.readers if r > at)
            if use == len(self.order) or (key := (v.value, self.order[use])) in self.refused:
                continue
            steps = self._again(v.value, at, use, latest, overwritten)
            if steps:
                ranked.append((self.nbytes[v.value] / max(sum(self.seconds[i] for i in steps), 1e-9), key, use, steps))
        for _, key, use, steps in sorted(ranked, key=lambda r: (-r[0], r[1])):
            yield key, [*self.order[:use], *steps, *self.order[use:]]

    def _again(self, value: int, at: int, use: int, latest: Mapping[int, Sequence[_Version]],
               overwritten: Mapping[int, int]) -> list[int]:
        """Return the instructions that compute a value before position `use`, from what is alive there or at `at`; [] where they
        are too many or read a state that has changed by then."""
        steps, todo = set[int](), [self.maker[value]]
        while todo:
            i = todo.pop()
            if i in self.overwrites or any(overwritten.get(state, use) < use for state in self.states[i]):
                return []
            steps.add(i)
            for x in self.reads[i]:
                version = [v for v in latest[x] if v.begin < use][-1]
                if version.last < at and version.last < use and self.maker[x] not in steps:
                    todo.append(self.maker[x])
            if len(steps) > CHAIN:
                return []
        return sorted(steps)


class _Moves:
    """Builds an order: as before, but chains of instructions that lower the bytes alive, or end with the update of a state, run as
    soon as they can."""

    def __init__(self, run: RunOrder) -> None:
        self.run = run
        self.readers: dict[int, list[int]] = {}
        for i, reads in enumerate(run.reads):
            for b in reads:
                self.readers.setdefault(b, []).append(i)
        self.needs = [{run.maker[b] for b in reads} for reads in run.reads]
        for i, state in run.overwrites.items():                      # other readers of the state come first
            self.needs[i] |= {j for j, states in enumerate(run.states) if state in states and j != i}
        self.after: dict[int, list[int]] = {}
        for i, of in enumerate(self.needs):
            for j in of:
                self.after.setdefault(j, []).append(i)
        self.left = {b: len(of) + (b in run.final) for b, of in self.readers.items()}
        self.waiting: dict[int, None] = {}
        self.done: dict[int, None] = {}
        for i in run.order:
            if i not in self.done:
                self._do(i)
            while chain := next((c for j in self.waiting if (c := self._chain(j))), None):
                for j in chain:
                    self._do(j)

    @property
    def order(self) -> list[int]:
        return list(self.done)

    def _ready(self, i: int, more: Sequence[int] = ()) -> bool:
        return all(j in self.done or j in more for j in self.needs[i])

    def _do(self, i: int) -> None:
        self.done[i] = None
        self.waiting.pop(i, None)
        for b in self.run.reads[i]:
            self.left[b] -= 1
        self.waiting.update((j, None) for j in self.after.get(i, ()) if j not in self.done and self._ready(j))

    def _chain(self, i: int) -> list[int]:
        """Return i and readers of its results, one after the other, up to the update of a state or the fewest bytes alive; [] where
        the bytes alive do not fall and no state is updated."""
        nbytes, steps, lowest, best, now = self.run.nbytes, [i], 0, 0, 0
        read: dict[int, int] = {}
        while True:
            now += sum(nbytes[b] for b in self.run.writes[i])
            for b in self.run.reads[i]:
                read[b] = read.get(b, 0) + 1
                now -= nbytes[b] * (self.left[b] == read[b])
            if now < lowest or i in self.run.overwrites:
                lowest, best = now, len(steps)
            following = (j for b in self.run.writes[i] for j in self.readers.get(b, ())
                         if j not in steps and j not in self.done and self._ready(j, steps))
            if len(steps) == CHAIN or (nearest := next(following, None)) is None:
                return steps[:best]
            steps.append(i := nearest)
