"""bind_time: the values computed from parameters when a program is bound: those that are kept, those freed, and the peak of bytes.

A value is kept when the call of a run's instruction reads it, or a view of it. Every other value is freed after its last reader at
bind time: of a 4-bit weight the unpacked codes are freed, and the operand of the matrix product stays; of a weight that its product
reads packed only the packed one stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakValueDictionary

from tensor_graphs.language import dims as d
from tensor_graphs.language.node import encode_attribute
from tensor_graphs.paths.lower import Program
from tensor_graphs.paths.memory import aligned


@dataclass(frozen=True)
class BindStep:
    """One instruction of bind time to evaluate, by its index, and the buffers that are freed after it."""

    index: int
    frees: tuple[int, ...]


class BindTime:
    """The values that one program computes at bind time. A buffer is identified by its home (`Program.home`)."""

    def __init__(self, program: Program) -> None:
        self.program = program
        read = [o for ins in program.instructions for o in (*ins.reads, *ins.outs)] + list(program.outputs.values())
        self.kept = frozenset(home for o in read if self._is_bound(home := program.home(o.buffer)))
        self.outs = [tuple(program.home(o.buffer) for o in ins.outs) for ins in program.bind_instructions]
        self.ins = [tuple(program.home(o.buffer) for o in ins.reads) for ins in program.bind_instructions]

    def _is_bound(self, home: int) -> bool:
        return self.program.buffers[home].kind == "bound"

    def kept_outs(self, index: int) -> tuple[int, ...]:
        """Return the outputs of an instruction that are kept after binding."""
        return tuple(home for home in self.outs[index] if home in self.kept)

    def stale(self, changed: Collection[str] | None = None) -> list[int]:
        """Return the indices of the instructions whose outputs change with these parameters; of all instructions by default."""
        if changed is None:
            return list(range(len(self.outs)))
        moved = {i for i, b in enumerate(self.program.buffers) if b.kind == "parameter" and b.name in changed}
        stale = []
        for index, (outs, ins) in enumerate(zip(self.outs, self.ins, strict=True)):
            if not moved.isdisjoint(ins):
                moved.update(outs)
                stale.append(index)
        return stale

    def missing(self, stale: Collection[int], there: Container[Hashable]) -> set[int]:
        """Return the kept outputs of the stale instructions, without those whose keys (`key_of`) are in `there` already."""
        return {home for index in stale if (homes := self.kept_outs(index)) and not self.all_in(homes, there) for home in homes}

    def all_in(self, homes: Collection[int], there: Container[Hashable]) -> bool:
        return all((key := self.key_of(home)) is not None and key in there for home in homes)

    def steps(self, homes: Collection[int]) -> list[BindStep]:
        """Return the instructions that compute these kept values and their operands that are not kept, in order."""
        needed, todo = list[int](), set(homes)
        for index in reversed(range(len(self.outs))):
            if not todo.isdisjoint(self.outs[index]):
                needed.append(index)
                todo.update(home for home in self.ins[index] if self._is_bound(home) and home not in self.kept)
        last = {home: index for index in reversed(needed) for home in (*self.outs[index], *self.ins[index])}
        freed: dict[int, list[int]] = {}
        for home, index in last.items():
            if self._is_bound(home) and home not in self.kept:
                freed.setdefault(index, []).append(home)
        return [BindStep(index, tuple(freed.get(index, ()))) for index in reversed(needed)]

    def key_of(self, home: int) -> Hashable | None:
        """Return the key of a value: values with equal keys are equal, in all programs. None: no other program has the value."""
        return self._keys[home]

    @cached_property
    def _keys(self) -> list[Hashable | None]:
        p = self.program
        keys: list[Hashable | None] = [
            ("parameter", b.name) if b.kind == "parameter" else
            ("constant", b.dtype, encode_attribute(b.value)) if b.kind == "constant" else None for b in p.buffers]
        makers = Counter(home for homes in self.outs for home in homes)
        for step, outs in zip(p.bind_instructions, self.outs, strict=True):     # in an order in which operands come first
            inner = [keys[p.home(o.buffer)] for o in step.ins]
            ins = tuple((i, o.offset, o.shape, o.strides, o.dtype) for i, o in zip(inner, step.ins, strict=True))
            attrs = tuple((name, encode_attribute(value)) for name, value in sorted(step.attrs.items()))
            for number, home in enumerate(outs):
                if None not in inner and makers[home] == 1:
                    keys[home] = _derivations.setdefault((step.kernel, step.op, step.call, attrs, ins, number), _Derivation())
        return keys

    def nbytes(self, home: int) -> int:
        b = self.program.buffers[home]
        return aligned(int(d.evaluate(b.nbytes, {})), b.device)


class _Derivation:
    """Derivation of a value from parameters and constants. Equal derivations are one object while it is referenced. Keys that were
    written out in full would grow without limit: a value read twice in each of sixty steps would occur in its key 2^60 times."""


_derivations: WeakValueDictionary[Hashable, _Derivation] = WeakValueDictionary()


def bytes_of(programs: Sequence[Program]) -> tuple[Counter[str], Counter[str]]:
    """Return (bytes that stay, most bytes at one moment of binding) of the values computed from parameters, by device. The programs
    are bound one after the other, and a value that several of them need is computed once."""
    live, peak, there = Counter[str](), Counter[str](), set[Hashable]()
    times = [BindTime(program) for program in programs]             # all alive: so are their keys
    for b in times:
        allocated = set[int]()
        for step in b.steps(b.missing(b.stale(), there)):
            for home in b.outs[step.index]:
                if home not in allocated:
                    allocated.add(home)
                    live[b.program.buffers[home].device] += b.nbytes(home)
            peak |= live
            for home in step.frees:
                live[b.program.buffers[home].device] -= b.nbytes(home)
        there.update(key for home in b.kept if (key := b.key_of(home)) is not None)
    return live, peak
