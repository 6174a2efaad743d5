"""dim_tables: tables of the numbers of a program that depend on dims: sizes, strides and offsets of operands.

One integer table per run has the values of all distinct expressions, then the offsets of operands from their bases. Steps refer to
it by indices. One compiled function evaluates all expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tensor_graphs.language.dim_functions import compile_dims
from tensor_graphs.language.dims import Dim, Expr
from tensor_graphs.language.dtypes import DType
from tensor_graphs.paths.lower import Operand, Program, arena_buffers


@dataclass(frozen=True, slots=True)
class Window:
    """An operand as indices into the tables. pointer: of its offset (`DimTables.pointer`). shape, strides: of expressions."""

    base: int
    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType


class DimTables:
    """A collector of a program's expressions and operands; `close` builds the tables. Base 0 is the null pointer, then comes an
    arena per device; buffer b of the program is base `first` + b."""

    def __init__(self, program: Program, dims: Sequence[str]) -> None:
        self.program, self.dims = program, tuple(dims)
        self.first = 1 + len(program.devices)
        self.arenas = {device: 1 + i for i, device in enumerate(program.devices)}
        self._slots = {b: i for i, b in enumerate(arena_buffers(program))}
        self.n_slots = len(self._slots)
        self._exprs: dict[Dim, int] = {}
        self._pointers: dict[tuple[int, int], int] = {}
        self.n_exprs = 0

    def expr(self, value: Dim) -> int:
        return self._exprs.setdefault(value, len(self._exprs))

    def base(self, operand: Operand) -> int:
        home = self.program.home(operand.buffer)
        return self.arenas[self.program.buffers[home].device] if home in self._slots else self.first + home

    def pointer(self, operand: Operand | None) -> int:
        """Return the number of an operand's offset from its base (None: of a null pointer); its table index is `n_exprs` + that."""
        slot = self.n_slots if operand is None else self._slots.get(self.program.home(operand.buffer), self.n_slots)
        key = (slot, self.expr(0 if operand is None else operand.offset))      # the last slot is always 0: not in an arena
        return self._pointers.setdefault(key, len(self._pointers))

    def window(self, o: Operand) -> Window:
        return Window(self.base(o), self.pointer(o), tuple(map(self.expr, o.shape)), tuple(map(self.expr, o.strides)), o.dtype)

    def close(self) -> None:
        names = list(self._exprs)
        self.n_exprs = len(names)
        moves = [isinstance(x, Expr) for x in names]
        self._evaluate = compile_dims([x for x, moving in zip(names, moves, strict=True) if moving], self.dims)
        self._moving = np.flatnonzero(moves)
        self._fixed = np.array([0 if moving else int(x) for x, moving in zip(names, moves, strict=True)], dtype=np.int64)
        self._slot_index = np.array([slot for slot, _ in self._pointers], dtype=np.int64)
        self._expr_index = np.array([expr for _, expr in self._pointers], dtype=np.int64)

    def table(self) -> np.ndarray:
        """Return a new table for the values of a run; constant expressions are set."""
        table = np.zeros(max(1, self.n_exprs + len(self._pointers)), dtype=np.int64)
        table[:self.n_exprs] = self._fixed
        return table

    def bases(self) -> np.ndarray:
        """Return a new, zero table for the addresses of a run, by base."""
        return np.zeros(self.first + len(self.program.buffers), dtype=np.uint64)

    def slots(self, arena_offsets: Sequence[int]) -> np.ndarray:
        """Return the `slots` array for `fill`. arena_offsets: offset of each buffer that has arena memory."""
        return np.array([*arena_offsets, 0], dtype=np.int64)

    def fill(self, table: np.ndarray, slots: np.ndarray, sizes: Sequence[int]) -> None:
        """Write the values of all expressions and offsets at these sizes into a table."""
        table[self._moving] = self._evaluate(*sizes)
        table[self.n_exprs:self.n_exprs + len(self._slot_index)] = slots[self._slot_index] + table[self._expr_index]

    def binding(self, sizes: Sequence[int]) -> Mapping[str, int]:
        return dict(zip(self.dims, sizes, strict=True))
