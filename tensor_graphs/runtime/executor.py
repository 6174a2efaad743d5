"""executor: one variant of a plan, made concrete. Addresses are base + offset; both come from tables that are filled per run.

Consecutive native calls become one call of the native runner. Everything that depends on dims is evaluated by one compiled
function per run; when only some dims change, only what depends on them is evaluated again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensor_graphs.devices.free_memory import require_memory
from tensor_graphs.kernels.kernel import HostCall, NativeCall
from tensor_graphs.language import dims as d
from tensor_graphs.language.composite import resolve_attributes
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.node import ArrayValue
from tensor_graphs.paths.lower import Instruction, Operand, Program, arena_buffers
from tensor_graphs.paths.memory import ALIGNMENT, ArenaLayout
from tensor_graphs.paths.plan import Variant
from tensor_graphs.runtime.address import address
from tensor_graphs.runtime.native import NativeRunner

NULL, ARENA, FIRST = 0, 1, 2
"""base 0 is the null pointer, base 1 the arena; buffer b of the program is base b + 2"""

STEP = np.dtype([("fn", "<u8"), ("n_ptr", "<i4"), ("n_int", "<i4"), ("n_float", "<i4"), ("_pad", "<i4"),
                 ("ptr_base", "<i4", 16), ("ptr_offset", "<i4", 16), ("ints", "<i4", 32), ("floats", "<f8", 8)])
"""mirrors struct tg_step in kernels/c/tg.h"""


def aligned_empty(nbytes: int) -> np.ndarray:
    """Uninitialised bytes, aligned to a cache line."""
    raw = np.empty(nbytes + ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start:start + nbytes]


@dataclass
class _Window:
    """An operand of a host call: where to build its array. All numbers are indices into the frame's tables."""

    base: int
    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    itemsize: int


@dataclass
class _HostStep:
    index: int
    call: HostCall
    outs: list[_Window]
    ins: list[_Window]
    attrs: Mapping[str, Any]
    dynamic_attrs: bool


class Frame:
    """Tables and arena for one run at a time; a plan keeps a few and hands each to one thread."""

    def __init__(self, executor: Executor) -> None:
        self.values = np.zeros(max(1, executor.n_exprs + len(executor.pointer_expr)), dtype=np.int64)
        self.bases = np.zeros(FIRST + len(executor.program.buffers), dtype=np.uint64)
        self.memory: list[np.ndarray | None] = [None] * len(self.bases)
        self.arena = np.empty(0, dtype=np.uint8)
        self.arena_offsets = np.zeros(executor.n_slots + 1, dtype=np.int64)
        self.binding: tuple[int, ...] | None = None
        self.layout_key: tuple[int, ...] | None = None
        self.arrays: dict[int, tuple[list[np.ndarray], list[np.ndarray]]] = {}
        self.epoch = -1
        self.bound = -1                                     # the executor's `bound` whose values are in the tables
        self.call = executor.native_call(self)

    def set_base(self, base: int, memory: np.ndarray) -> None:
        self.memory[base] = memory
        self.bases[base] = address(memory) if memory.size else 0


def bytes_of(array: np.ndarray) -> np.ndarray:
    """A flat byte view of a contiguous array (read-only stays read-only)."""
    return array.reshape(-1).view(np.uint8) if array.size else np.empty(0, dtype=np.uint8)


class Executor:
    """The concrete form of one program: steps, tables, and what is bound once (constants, parameters, bind-time values)."""

    def __init__(self, variant: Variant, dims: Sequence[str]) -> None:
        self.variant = variant
        self.program: Program = variant.program
        self.layout: ArenaLayout = variant.layout
        self.dims = tuple(dims)
        self._exprs: dict[Dim, int] = {}
        self._pointers: dict[tuple[int, int], int] = {}
        self.pointer_slot: list[int] = []
        self.pointer_expr: list[int] = []
        # arena slots: buffers that own arena memory, in the layout's order
        self.slots = {b: i for i, b in enumerate(arena_buffers(self.program))}
        self.n_slots = len(self.slots)
        self._native = NativeRunner() if self._has_native() else None
        bind, run = self.program.bind_instructions, self.program.instructions
        self.bind_segments = self._segments(bind)
        self.segments = self._segments(run)
        self._out_windows = [[self._window(o) for o in ins.outs] for ins in run]
        names = list(self._exprs)
        self.n_exprs = len(names)
        self._evaluate = d.compile_dims(names, self.dims)
        self._slot_index = np.array(self.pointer_slot, dtype=np.int64)
        self._expr_index = np.array(self.pointer_expr, dtype=np.int64)
        for _, steps in (*self.segments, *self.bind_segments):          # pointer numbers start behind the expressions
            if isinstance(steps, np.ndarray):
                steps["ptr_offset"] += self.n_exprs
        self.dim_buffers = [(i, b) for i, b in enumerate(self.program.buffers) if b.kind == "dims"]
        self._dim_values = d.compile_dims([b.value for _, b in self.dim_buffers], self.dims) if self.dim_buffers else None
        layout_dims: set[str] = set()
        for interval in self.layout.intervals:
            layout_dims.update(str(s) for s in d.symbols(interval.nbytes))
        self._layout_dims = tuple(i for i, n in enumerate(self.dims) if n in layout_dims)
        self.input_bases, self.output_bases, self.state_bases, self.parameter_bases = (
            {b.name: FIRST + i for i, b in enumerate(self.program.buffers) if b.kind == kind and b.alias is None}
            for kind in ("input", "output", "state", "parameter"))
        self.fixed: dict[int, np.ndarray] = {}
        self.bound = 0
        """how often `fixed` has changed"""
        self._bind_constants()

    # ---- tables ----

    def _has_native(self) -> bool:
        return any(isinstance(i.call, NativeCall) for i in (*self.program.instructions, *self.program.bind_instructions))

    def _expr(self, value: Dim) -> int:
        return self._exprs.setdefault(value, len(self._exprs))

    def _base(self, operand: Operand) -> int:
        home = self.program.home(operand.buffer)
        return ARENA if home in self.slots else FIRST + home

    def _pointer(self, operand: Operand) -> int:
        home = self.program.home(operand.buffer)
        slot = self.slots.get(home, self.n_slots)                     # the last slot is always 0: not in the arena
        key = (slot, self._expr(operand.offset))
        if key not in self._pointers:
            self._pointers[key] = len(self.pointer_slot)
            self.pointer_slot.append(slot)
            self.pointer_expr.append(key[1])
        return self._pointers[key]

    def _segments(self, instructions: Sequence[Instruction]) -> list[tuple[list[int], np.ndarray | _HostStep]]:
        out: list[tuple[list[int], np.ndarray | _HostStep]] = []
        run: list[int] = []

        def flush() -> None:
            if run:
                out.append((list(run), self._native_steps([instructions[i] for i in run])))
                run.clear()

        for index, ins in enumerate(instructions):
            if isinstance(ins.call, NativeCall):
                run.append(index)
                continue
            flush()
            out.append(([index], _HostStep(index, ins.call, [self._window(o) for o in ins.outs],
                                           [self._window(o) for o in ins.ins], ins.attrs, d.has_dims(ins.attrs))))
        flush()
        return out

    def _window(self, o: Operand) -> _Window:
        return _Window(self._base(o), self._pointer(o), tuple(self._expr(s) for s in o.shape),
                       tuple(self._expr(s) for s in o.strides), o.dtype.numpy, o.dtype.itemsize)

    def _native_steps(self, instructions: Sequence[Instruction]) -> np.ndarray:
        steps = np.zeros(len(instructions), dtype=STEP)
        assert self._native is not None
        for step, ins in zip(steps, instructions, strict=True):
            call = ins.call
            assert isinstance(call, NativeCall)
            operands: list[Operand | None] = [*ins.outs, *(None if p is None else ins.ins[p] for p in call.pointers)]
            if len(operands) > 16 or len(call.ints) > 32 or len(call.floats) > 8:
                raise ValueError(f"{ins.kernel} has more arguments than a step holds")
            step["fn"] = self._native.address(call.symbol, call.image)
            step["n_ptr"], step["n_int"], step["n_float"] = len(operands), len(call.ints), len(call.floats)
            for i, o in enumerate(operands):
                step["ptr_base"][i] = NULL if o is None else self._base(o)
                step["ptr_offset"][i] = self._zero_pointer() if o is None else self._pointer(o)
            for i, value in enumerate(call.ints):
                step["ints"][i] = self._expr(value)
            for i, number in enumerate(call.floats):
                step["floats"][i] = number
        return steps

    def _zero_pointer(self) -> int:
        key = (self.n_slots, self._expr(0))
        if key not in self._pointers:
            self._pointers[key] = len(self.pointer_slot)
            self.pointer_slot.append(self.n_slots)
            self.pointer_expr.append(key[1])
        return self._pointers[key]

    # ---- binding ----

    def _bind_constants(self) -> None:
        for i, b in enumerate(self.program.buffers):
            if b.kind == "constant":
                assert b.dtype is not None
                value = b.value
                array = value.array() if isinstance(value, ArrayValue) else np.asarray(value).astype(b.dtype.numpy)
                memory = aligned_empty(array.nbytes)
                memory[...] = bytes_of(np.ascontiguousarray(array))
                self.fixed[FIRST + i] = memory
            elif b.kind == "bound" and b.alias is None:
                self.fixed[FIRST + i] = aligned_empty(int(d.evaluate(b.nbytes, {})))

    def bind(self, parameters: Mapping[str, np.ndarray], changed: set[str] | None = None,
             shared: dict[Hashable, np.ndarray] | None = None) -> None:
        """Give the parameters (C-contiguous arrays of the right type) and evaluate what depends on them alone.

        changed: only these were replaced; what does not depend on them is not evaluated again. shared: what executors of the same
        parameters have evaluated in this round; taken from there, or put there.
        """
        self.bound += 1
        for name, base in self.parameter_bases.items():
            self.fixed[base] = bytes_of(parameters[name])
        if not self.program.bind_instructions:
            return
        frame = Frame(self)
        self._prepare(frame, (0,) * len(self.dims) if not self.dims else tuple(self.variant.at[n] for n in self.dims))
        dirty = None if changed is None else {self.parameter_bases[n] for n in changed if n in self.parameter_bases}
        for indices, step in self.bind_segments:
            for k, index in enumerate(indices):
                ins = self.program.bind_instructions[index]
                if dirty is not None:
                    if not any(self._base(o) in dirty for o in ins.ins):
                        continue
                    dirty.update(self._base(o) for o in ins.outs)
                keys = [self.program.made_of(o.buffer) for o in ins.outs]
                if shared is None or None in keys:
                    self._one(frame, step, k)
                    continue
                if all(key in shared for key in keys):
                    for o, key in zip(ins.outs, keys, strict=True):
                        self.fixed[self._base(o)] = shared[key]
                        frame.set_base(self._base(o), shared[key])
                    frame.arrays.clear()
                    continue
                self._one(frame, step, k)
                shared.update((key, self.fixed[self._base(o)]) for o, key in zip(ins.outs, keys, strict=True))

    # ---- running ----

    def _prepare(self, frame: Frame, sizes: tuple[int, ...]) -> None:
        """Fill the frame's tables for these dims; nothing to do when they did not change."""
        if frame.binding == sizes:
            return
        frame.binding = None                                          # until all is there: what raises below is tried again
        frame.epoch += 1
        key = tuple(sizes[i] for i in self._layout_dims)
        if frame.layout_key != key:
            offsets, total = self.layout.offsets(dict(zip(self.dims, sizes, strict=True)))
            frame.arena_offsets[:self.n_slots] = offsets
            frame.layout_key = None
            if total > frame.arena.nbytes or total < frame.arena.nbytes // 4:
                frame.arena = np.empty(0, dtype=np.uint8)             # free before growing: never two arenas at once
                frame.set_base(ARENA, frame.arena)
                require_memory(total, "the memory for what this run computes in between", "smaller sizes (plan.memory says more)")
                frame.arena = aligned_empty(total)
            frame.set_base(ARENA, frame.arena)
            frame.layout_key = key
        values = frame.values
        values[:self.n_exprs] = self._evaluate(*sizes)
        values[self.n_exprs:self.n_exprs + len(self._slot_index)] = (
            frame.arena_offsets[self._slot_index] + values[self._expr_index])
        frame.arrays.clear()
        for base, memory in self.fixed.items():
            if frame.memory[base] is not memory:
                frame.set_base(base, memory)
        if self._dim_values is not None:
            for (i, b), value in zip(self.dim_buffers, self._dim_values(*sizes), strict=True):
                assert b.dtype is not None
                frame.set_base(FIRST + i, bytes_of(np.full(1, value).astype(b.dtype.numpy)))
        frame.binding = sizes

    def run(self, frame: Frame, sizes: tuple[int, ...], bases: Mapping[int, np.ndarray], *,
            seconds: np.ndarray | None = None, after: Callable[[Instruction, list[np.ndarray]], None] | None = None) -> None:
        """Run every instruction. bases: memory of inputs, outputs and states (base number -> bytes).

        seconds: array of one float per instruction that receives the time of each. after: called behind every instruction with
        views of its outputs (slow: for tracing).
        """
        self.ready(frame, sizes, bases)
        if after is not None:
            for indices, step in self.segments:
                for k, index in enumerate(indices):
                    self._one(frame, step, k)
                    ins = self.program.instructions[index]
                    after(ins, [self._array(frame, w) for w in self._out_windows[index]])
            return
        for indices, step in self.segments:
            if isinstance(step, np.ndarray):
                assert self._native is not None
                if seconds is None:
                    self._native.run(step, frame.bases, frame.values)
                else:
                    part = np.zeros(len(indices))
                    self._native.run(step, frame.bases, frame.values, part)
                    seconds[indices] += part
            elif seconds is None:
                self._host(frame, step)
            else:
                start = time.perf_counter()
                self._host(frame, step)
                seconds[step.index] += time.perf_counter() - start

    def ready(self, frame: Frame, sizes: tuple[int, ...], bases: Mapping[int, np.ndarray]) -> None:
        """Fill a frame's tables for a run at these sizes, on this memory."""
        self._prepare(frame, sizes)
        for base, memory in (*self.fixed.items(), *bases.items()):
            if frame.memory[base] is not memory:
                frame.set_base(base, memory)
                frame.arrays.clear()
        frame.bound = self.bound

    def native_call(self, frame: Frame) -> Callable[[], int] | None:
        """What runs a frame that is ready in one native call (0: all went well); None where a step is a host call."""
        if not self.is_native:
            return None
        assert self._native is not None
        return self._native.call(self.segments[0][1], frame.bases, frame.values)  # type: ignore[arg-type]  # as is_native says

    @property
    def is_native(self) -> bool:
        """Whether a run is one list of native calls."""
        return len(self.segments) == 1 and isinstance(self.segments[0][1], np.ndarray)

    def _one(self, frame: Frame, step: np.ndarray | _HostStep, k: int) -> None:
        if isinstance(step, np.ndarray):
            assert self._native is not None
            self._native.run(step[k:k + 1], frame.bases, frame.values)
        else:
            self._host(frame, step)

    def _host(self, frame: Frame, step: _HostStep) -> None:
        found = frame.arrays.get(id(step))
        if found is None:
            found = ([self._array(frame, w) for w in step.outs], [self._array(frame, w) for w in step.ins])
            frame.arrays[id(step)] = found
        attrs = step.attrs
        if step.dynamic_attrs:
            assert frame.binding is not None
            attrs = resolve_attributes(attrs, dict(zip(self.dims, frame.binding, strict=True)))
        step.call.run(found[0], found[1], attrs)

    def _array(self, frame: Frame, w: _Window) -> np.ndarray:
        values = frame.values
        shape = tuple(int(values[s]) for s in w.shape)
        if 0 in shape:
            return np.empty(shape, dtype=w.dtype)
        memory = frame.memory[w.base]
        offset = int(values[self.n_exprs + w.pointer])
        return np.ndarray(shape, dtype=w.dtype, buffer=memory, offset=offset,
                          strides=tuple(int(values[s]) * w.itemsize for s in w.strides))

    def silence(self) -> Callable[[], None]:
        """Make every call do nothing (to price the walk itself); returns what undoes it."""
        saved_native = [(s, s["fn"].copy()) for _, s in self.segments if isinstance(s, np.ndarray)]
        saved_host = [(s, s.call) for _, s in self.segments if isinstance(s, _HostStep)]
        for steps, _ in saved_native:
            assert self._native is not None
            steps["fn"] = self._native.address("tg_noop")
        for step, _ in saved_host:
            step.call = HostCall(_nothing)

        def undo() -> None:
            for steps, fn in saved_native:
                steps["fn"] = fn
            for step, call in saved_host:
                step.call = call

        return undo


def _nothing(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
    return None
