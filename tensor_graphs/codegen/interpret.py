"""interpret: a reference interpreter of stage programs in numpy, with floats as float64; lowering is tested against it.

    run(program, [x, w], {"n": 3})          # one array for each output

It is stricter than real memory. Errors are an index outside of its array, an element read before it is written or written twice by
one stage, and an output not fully written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensor_graphs.codegen.evaluate import MONOIDS, Evaluation, Numbers, StageError, at_sizes, combined
from tensor_graphs.codegen.loop_ir import Array, Axis, Nest, Stage, StageProgram, Top, Value, identity_of, index_symbol
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.meaning.algebra import carrier, wide


def run(program: StageProgram, operands: Sequence[Numbers], dims: Mapping[str, int] | None = None) -> list[Numbers]:
    """Return the outputs as flat arrays, floats as unrounded float64. operands: their memory from the first element on (arrays that
    are not flat are read in C order). dims: sizes by name. Raises StageError."""
    with np.errstate(all="ignore"):
        return _ProgramRun(program, operands, dims or {}).outputs()


class _WrittenArray:
    """An array's contents and which of its elements are written. Scratch inside a nest has a copy for each iteration."""

    def __init__(self, array: Array, sizes: tuple[int, ...], values: Numbers | None = None) -> None:
        self.array, self.shape = array, sizes
        self.values = np.zeros(sizes, carrier(array.dtype)) if values is None else values
        self.known = np.full(sizes, values is not None)


class _ProgramRun:
    def __init__(self, program: StageProgram, operands: Sequence[Numbers], dims: Mapping[str, int]) -> None:
        self.program = program
        self.sizes: dict[str, Any] = {str(s): int(dims[str(s)]) for s in program.dims}
        self.memory: dict[Array, _WrittenArray] = {}
        for array, memory in zip(program.operands, operands, strict=True):
            flat = wide(memory.reshape(-1), array.dtype)
            self.memory[array] = _WrittenArray(array, flat.shape, flat)
        for output, operand in program.updated:
            array, old = program.outputs[output], self.memory[program.operands[operand]]
            self.memory[array] = _WrittenArray(array, old.shape, old.values.copy())

    def outputs(self) -> list[Numbers]:
        for nest in self.program.nests:
            for axis, stages in nest.runs():
                self.turns(nest, axis, stages)
        out = []
        for array in self.program.outputs:
            result = self.written(array, ())
            if not result.known.all():
                raise StageError(f"{int((~result.known).sum())} of {result.known.size} elements of {array} are never written")
            out.append(result.values)
        return out

    def turns(self, nest: Nest, axis: Axis | None, stages: Sequence[Stage]) -> None:
        """Run neighbouring stages once, or at each iteration of the axis of their blocks. Values of one iteration are forgotten at
        the next, except those initialised before the first."""
        if axis is None:
            for stage in stages:
                _StageTurns(self, nest, stage).take()
            return
        fresh = [s.target for s in stages if s.target not in self.memory]
        for turn in range(self.most(nest, axis)):
            for array in fresh:
                if array in self.memory:
                    self.memory[array].known[...] = False
            for stage in stages:
                _StageTurns(self, nest, stage, axis, turn).take()

    def most(self, nest: Nest, axis: Axis) -> int:
        """Return the most iterations of an axis, whose size may depend on the nest's axes."""
        at = dict(self.sizes)
        for k, outer in enumerate(nest.axes):
            count = int(np.max(at_sizes(outer.size, at), initial=0))
            at[outer.name] = np.arange(count).reshape([-1 if i == k else 1 for i in range(len(nest.axes))])
        return int(np.max(at_sizes(axis.size, at), initial=0))

    def written(self, array: Array, outer: tuple[int, ...]) -> _WrittenArray:
        if array not in self.memory:
            self.memory[array] = _WrittenArray(array, (*outer, int(at_sizes(array.size, self.sizes))))
        return self.memory[array]


class _StageTurns(Evaluation):
    """All iterations of one stage, vectorised: each axis (the nest's axes first) is an axis of the value arrays."""

    def __init__(self, run: _ProgramRun, nest: Nest, stage: Stage, within: Axis | None = None, turn: int = 0) -> None:
        self.run, self.nest, self.stage = run, nest, stage
        axes = (*nest.axes[:stage.level], *stage.axes, *stage.reduce)
        self.at: dict[str, Any] = dict(run.sizes)
        self.inside = around = np.ones((), bool)
        if within is not None:
            self.at[within.name] = turn
        sizes, own = [], len(axes) - len(stage.reduce)
        for k, axis in enumerate(axes):                             # the size of one may depend on those before
            size = np.asarray(at_sizes(axis.size, self.at))
            sizes.append(int(size.max(initial=0)))
            self.at[axis.name] = np.arange(sizes[-1]).reshape([-1 if i == k else 1 for i in range(len(axes))])
            self.inside = self.inside & (self.at[axis.name] < size)
            if k == own - 1:
                around = self.inside                                # of results, also of those that combine nothing
        if within is not None:
            whole = turn < np.asarray(at_sizes(within.size, self.at))
            self.inside, around = self.inside & whole, around & whole
        self.shape = tuple(sizes)
        self.around = np.broadcast_to(around, (*sizes[:own], *[1] * len(stage.reduce))).reshape(sizes[:own])
        self.inside = np.broadcast_to(self.inside, self.shape)
        self.values: dict[Value, Numbers] = {}

    def take(self) -> None:
        s, whole = self.stage, self.inside
        outer = self.shape[:s.level]
        rank = len(self.shape) - len(s.reduce)
        value = np.broadcast_to(self.value(s.value), self.shape)
        factor = self.before_reduced(s.held) if isinstance(s.held, Value) and value.size else None
        index = s.index
        if s.monoid is not None:
            identity = identity_of(s.monoid, s.value.dtype)
            value = np.where(whole, value, np.asarray(identity, value.dtype))
            if s.scan is not None:
                value = self.scanned(value, MONOIDS[s.monoid], identity)
            else:
                value = combined(s.monoid, value, rank)
                whole = self.around
                # the reduced axes are done with: what the target's index knows of has none of them
                self.at = {k: v.reshape(v.shape[:rank]) if isinstance(v, np.ndarray) and v.shape[rank:].count(1) == len(s.reduce)
                           else v for k, v in self.at.items()}
        if isinstance(s.monoid, Top):                               # a result is a list
            self.at = {k: v[..., None] if isinstance(v, np.ndarray) and v.ndim == rank else v for k, v in self.at.items()}
            self.at["_top"], whole = np.arange(s.monoid.count), np.broadcast_to(whole[..., None], value.shape)
            index = index + index_symbol("_top", s.monoid.count)
        target = self.run.written(s.target, outer if s.target.level else ())
        place = self.place(s.target, index, whole)
        flat = np.ravel_multi_index([p[whole] for p in place], target.shape) if whole.any() else np.zeros(0, np.intp)
        if len(np.unique(flat)) != len(flat):
            raise StageError(f"an element of {s.target} is written twice")
        if s.held:
            if not target.known.reshape(-1)[flat].all():
                raise StageError(f"{s.target} is gone on with before it is written")
            held = target.values.reshape(-1)[flat]
            if factor is not None:
                held = held * factor[whole]
            target.values.reshape(-1)[flat] = MONOIDS[s.monoid or "sum"](held, value[whole])
        else:
            target.values.reshape(-1)[flat] = value[whole]
        target.known.reshape(-1)[flat] = True

    def before_reduced(self, value: Value) -> Numbers:
        """Return a value that depends on no reduced axis, without these axes."""
        rank = len(self.shape) - len(self.stage.reduce)
        return np.broadcast_to(self.value(value), self.shape).reshape(*self.shape[:rank], -1)[..., 0]

    def scanned(self, value: Numbers, along: np.ufunc, identity: Any) -> Numbers:
        scan, s = self.stage.scan, self.stage
        assert scan is not None
        k = s.level + s.axes.index(scan.along)
        out = along.accumulate(value, axis=k, dtype=value.dtype)
        if scan.before:
            first = np.full((*value.shape[:k], 1, *value.shape[k + 1:]), identity, value.dtype)
            out = np.concatenate([first, out], axis=k).take(range(value.shape[k]), axis=k)
        return out if scan.start is None else np.asarray(along(out, self.value(scan.start)))

    def place(self, array: Array, index: Dim, whole: Numbers) -> list[Numbers]:
        """Return the array position of an index for each iteration in `whole`, and 0 for the others. Raises StageError."""
        names = [a.name for a in self.nest.axes[:array.level]] if array.role == "scratch" else []
        place = [np.broadcast_to(x, whole.shape) for x in (*(self.at[n] for n in names), self.offset(index))]
        size = self.run.written(array, tuple(self.shape[:array.level])).shape[-1]
        wrong = whole & ((place[-1] < 0) | (place[-1] >= size))
        if wrong.any():
            raise StageError(f"{array}[{d.format_dim(index)}] is element {place[-1][wrong][0]} of {size}")
        return [np.where(whole, x, 0) for x in place]

    def unbound(self, name: str) -> Any:
        return self.value(self.run.program.gathered[name]).astype(np.int64)

    def loaded(self, v: Value, args: list[Numbers]) -> Numbers:
        array, index, _ = v.attr
        # of a reduction's axes, memory that does not depend on them is looked at for each of their turns: it is a small program
        whole = self.inside & args[0] if args else self.inside
        memory = self.run.written(array, self.shape[:array.level])
        place = self.place(array, index, whole)
        if not whole.any():
            return np.zeros(whole.shape, memory.values.dtype)
        if not memory.known[tuple(p[whole] for p in place)].all():
            raise StageError(f"{array}[{d.format_dim(index)}] is read before it is written")
        return np.where(whole, memory.values[tuple(place)], memory.values.dtype.type(0))
