"""loop_points: the threads that run a statement of a loop program, all at once, and the values that they compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tensor_graphs.codegen.evaluate import Evaluation, Numbers, StageError
from tensor_graphs.codegen.loop_ir import Array, Value, values_in
from tensor_graphs.codegen.races import TrackedMemory, Units
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim


@dataclass
class UnitPoints(Evaluation):
    """Units that run a statement. inside: which of them work. group: threads of the innermost thread loop; 0 outside of them.
    aliases: name -> another array, and where it begins in that. unknown: value -> units that have computed it of registers that are
    not written, which they must not use, and what they read. computes: the value that the statement computes for later ones."""

    memory: Mapping[str, TrackedMemory]
    all: Units
    at: dict[str, Any]
    values: dict[Value, Numbers]
    inside: Numbers
    block: Any = 0
    thread: Any = 0
    lane: Any = 0
    group: int = 0
    aliases: dict[str, tuple[Array, Any]] = field(default_factory=dict)
    unknown: dict[Value, tuple[Numbers, str]] = field(default_factory=dict)
    computes: Value | None = None

    def inner(self, **others: Any) -> UnitPoints:
        """Return these units in a scope of its own, or others inside of it."""
        own = {name: dict(getattr(self, name)) for name in ("at", "values", "aliases", "unknown")}
        return replace(self, **{**own, "computes": None, **others})

    def value(self, root: Value) -> Numbers:
        for v in values_in(root) if self.unknown else ():
            if v in self.unknown:
                self.use(self.inside & self.unknown[v][0], self.unknown[v][1])
        return super().value(root)

    def use(self, unknown: Numbers, why: str) -> None:
        """Note that some units use registers that are not written. Raises StageError unless only a value is computed of them."""
        if unknown.any() and self.computes is None:
            raise StageError(why)
        if unknown.any() and self.computes is not None:
            self.unknown[self.computes] = unknown | self.unknown.get(self.computes, (unknown, why))[0], why

    def unbound(self, name: str) -> Any:
        raise StageError(f"the index {name} is not bound")

    def chosen(self, x: Any, whole: Numbers | None = None) -> Numbers:
        """Return a number of each unit that works, or of those in `whole`."""
        whole = self.inside if whole is None else whole
        return np.broadcast_to(np.asarray(x), whole.shape)[whole]

    def units(self, whole: Numbers | None = None) -> Numbers:
        """Return the numbers of the units."""
        u = self.all
        return self.chosen((self.block * u.threads + self.thread) * u.lanes + self.lane, whole)

    def place(self, array: Array, index: Dim) -> tuple[TrackedMemory, Any]:
        """Return the memory of an element, and its index there."""
        at = self.offset(index)
        while array.name in self.aliases:
            array, begin = self.aliases[array.name]
            at = at + begin
        if array.name not in self.memory:
            raise StageError(f"{array} is no buffer of this kernel")
        return self.memory[array.name], at

    def loaded(self, v: Value, args: list[Numbers]) -> Numbers:
        array, index, _ = v.attr
        (m, at), whole = self.place(array, index), self.inside & args[0] if args else self.inside
        if m.place == "register" and self.computes is not None:
            empty = np.zeros(whole.shape, bool)
            empty[whole] = m.empty(self.chosen(at, whole), self.units(whole))
            self.use(empty, f"{array}[{d.format_dim(index)}] is read before it is written")
            whole = whole & ~empty
        values = m.read(self.chosen(at, whole), self.units(whole))
        out = np.zeros(whole.shape, values.dtype)
        out[whole] = values
        return out
