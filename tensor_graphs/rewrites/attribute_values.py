"""attribute_values: values that admission draws for an attribute that a rule leaves free.

Candidates have both signs and reach both ends of the legal range and beyond. The op's type rule raises for an illegal value, so
this module has no list of ranges. Named values come from the op's table row, or from the choices that recognition tries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from tensor_graphs.language import leaves
from tensor_graphs.language.atomic import ATOMIC
from tensor_graphs.language.composite import CompositeOp
from tensor_graphs.language.dtypes import DTYPES, DType
from tensor_graphs.language.errors import LanguageError
from tensor_graphs.language.node import Node, Op
from tensor_graphs.rewrites.composites import CHOICES

FLOATS = (0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 0.125, 1e-6, -1e-6, 1e-5, 3.7, -3.7, 100.0)
WHOLE = (0, 1, 2, 3, 4, 5, 8, 17, -1, -2, -3)
FILLS = (0, 1, -1, 2, -3, 0.5, -0.0, -7.25, float("inf"), float("-inf"), float("nan"))
"""Candidates for the value of padding; the smallest and largest integers of the dtype are added."""

MOST_NUMBERS = 24


def in_turn(among: Sequence[DType], turn: int) -> DType:
    """Return the dtype of draw number `turn`. Dtypes follow each other in a cycle, in which all eight-bit floats share one
    position, so that the other dtypes stay frequent."""
    eight = [t for t in among if t.is_float and t.itemsize == 1]
    others = [t for t in among if t not in eight]
    round, place = divmod(turn, len(others) + bool(eight))
    return others[place] if place < len(others) else eight[round % len(eight)]


def numbers_of(function: Any, depth: int = 2) -> tuple[int | float, ...]:
    """Return the numbers in a function's code, defaults and closure, and in the functions that it calls by name. The rule's
    conditions compare with these numbers, so sizes, ranks, attributes and values near them are drawn."""
    numbers: dict[int | float, None] = {}

    def take(value: Any) -> None:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            numbers[value] = None
        elif isinstance(value, (tuple, list, set, frozenset)):
            for v in value:
                take(v)
        elif isinstance(value, CodeType):
            for v in value.co_consts:
                take(v)

    if not isinstance(function, FunctionType):
        function = getattr(function, "func", None) or vars(type(function)).get("__call__")      # partial objects, instances
        if not isinstance(function, FunctionType):
            return ()
    take(function.__code__)
    take(tuple(function.__defaults__ or ()))
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(cell.cell_contents)
        except ValueError:                                  # not filled yet
            continue
    objects = [*cells, *(function.__globals__[n] for n in function.__code__.co_names if n in function.__globals__)]
    for value in objects:
        if isinstance(value, FunctionType) and depth and value.__module__ == function.__module__:
            take(numbers_of(value, depth - 1))
        elif not isinstance(value, FunctionType):
            take(value)
    return tuple(numbers)[:MOST_NUMBERS]


class AttributeDraw:
    """A source of random attribute values. numbers: numbers in the rule; they and their neighbours are candidates."""

    def __init__(self, rng: np.random.Generator, numbers: Sequence[int | float]) -> None:
        self.rng = rng
        near = [m for n in numbers for m in ((n - 1, n, n + 1, -n) if isinstance(n, int) else (n, -n))]
        self.whole = [n for n in near if isinstance(n, int) and abs(n) < 1000]
        self.real = [float(n) for n in near if np.isfinite(float(n))]

    def pick(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def value(self, op: Op, name: str, nodes: Sequence[Node], bound: Sequence[Any], like: Sequence[Any]) -> Any:
        """Return a candidate. nodes: the operands. bound: tensors drawn so far. like: earlier values of attributes of this name."""
        x = nodes[0] if nodes else None
        if like and self.rng.random() < 0.25:               # what undoes, repeats or follows an earlier one is rarely met by chance
            before = self.pick(like)
            if name == "bounds" and x is not None and self.rng.random() < 0.7 and len(before) == x.rank > 0:
                at = self.pick(range(x.rank))
                start, size = before[at][1], int(x.shape[at])
                return (*before[:at], (start, self.pick((size, size, (start + size) // 2)), 1), *before[at + 1:])
            undone = name == "axes" and op.name == "permute" and len(before) > 0 and self.rng.random() < 0.6
            return tuple(int(i) for i in np.argsort(before)) if undone else before
        if isinstance(op, CompositeOp):
            return self._of_composite(op, name, nodes)
        if x is None:
            raise LookupError(name)
        shape = [int(s) for s in x.shape]
        choices = getattr(ATOMIC[op.name], "choices", {})
        if name in choices:
            return self.pick(choices[name])
        match (op.name, name):
            case ("permute", "axes"):
                return tuple(int(i) for i in self.rng.permutation(x.rank))
            case (_, "axes"):
                return self.some_axes(x.rank)
            case (_, "axis"):
                return self.pick(range(x.rank)) if x.rank else 0
            case (_, "dtype"):
                return in_turn(tuple(DTYPES.values()), int(self.rng.integers(0, 1 << 16)))
            case ("reshape", "shape"):
                return self.reshaped(shape)
            case ("expand", "shape"):
                return self.expanded(x, shape, bound)
            case (_, "bounds"):
                return self.bounds(shape)
            case (_, "padding"):
                return self.padding(shape)
            case (_, "value"):
                return self.fill(x.dtype)
        raise LookupError(name)

    def _of_composite(self, op: CompositeOp, name: str, nodes: Sequence[Node]) -> Any:
        parameter = op.signature.parameters[name]
        annotation, rank = str(parameter.annotation), max((n.rank for n in nodes), default=0)
        sizes = [int(s) for n in nodes for s in n.shape]
        if name in ("axis", "axes"):
            axes = tuple(range(-rank, rank)) or (0,)
            kinds: list[Any] = [self.pick(axes)] if "int |" in annotation or annotation == "int" else []
            if "tuple" in annotation or "Sequence" in annotation:
                some = self.some_axes(rank)
                kinds += [some, some, tuple(a - rank if self.rng.random() < 0.5 else a for a in some)]
            return self.pick([*kinds, None] if "None" in annotation else kinds)
        if "bool" in annotation:
            return self.pick((False, True))
        if annotation.startswith("DType"):
            return in_turn(tuple(DTYPES.values()), int(self.rng.integers(0, 1 << 16)))
        if "str" in annotation:
            return self.pick(CHOICES[name])
        if "Sequence" in annotation or "tuple" in annotation:
            return tuple(int(s) for s in self.rng.integers(1, 5, int(self.rng.integers(0, 3))))
        if "float" in annotation:
            return self.pick((*FLOATS, *self.real))
        if "int" in annotation or "Dim" in annotation:
            return self.pick((*WHOLE, *self.whole, *sizes))
        raise LookupError(name)

    def some_axes(self, rank: int) -> tuple[int, ...]:
        if self.rng.random() < 0.15:
            return tuple(range(rank))
        return tuple(i for i in range(rank) if self.rng.random() < 0.5)

    def reshaped(self, shape: list[int]) -> tuple[int, ...]:
        rank, size = len(shape), math.prod(shape)
        options: list[tuple[int, ...]] = [tuple(shape), (size,), (*shape, 1), (1, *shape), tuple(reversed(shape))]
        at = int(self.rng.integers(0, rank + 1))
        options.append((*shape[:at], 1, *shape[at:]))
        if rank:
            options.append(tuple(1 if i == rank - 1 else s for i, s in enumerate(shape)))
            options.append(tuple(s for s in shape if s != 1))
        if rank > 1:
            at = int(self.rng.integers(0, rank - 1))
            options.append((*shape[:at], shape[at] * shape[at + 1], *shape[at + 2:]))
            options.append(tuple(int(shape[i]) for i in self.rng.permutation(rank)))
        even = [i for i, s in enumerate(shape) if s > 2 and s % 2 == 0]
        if even:
            i = self.pick(even)
            options.append((*shape[:i], 2, shape[i] // 2, *shape[i + 1:]))
        return self.pick([s for s in options if math.prod(s) == size])

    def expanded(self, x: Node, shape: list[int], bound: Sequence[Any]) -> tuple[int, ...]:
        others = [n for n in bound if isinstance(n, Node) and n.rank == x.rank and n is not x]
        if others and self.rng.random() < 0.8:
            other = others[0]
            return tuple(int(a) if b == 1 else b for a, b in zip(other.shape, shape, strict=True))
        return tuple(self.pick([1, 2, 3, 5]) if s == 1 else s for s in shape)

    def bounds(self, shape: list[int]) -> tuple[tuple[int, int, int], ...]:
        """Return random slice bounds: entire axes, starts, ends and middles of axes, steps of both signs, or no elements."""
        forwards = self.rng.random() < 0.5
        return tuple(self.bound(s, forwards) for s in shape)

    def bound(self, s: int, forwards: bool) -> tuple[int, int, int]:
        lo = int(self.rng.integers(0, s + 1))
        hi = int(self.rng.integers(lo, s + 1))
        ahead = [(lo, hi, 1), (0, s, 1), (0, s // 2, 1), (s // 2, s, 1), (lo, hi, 2), (min(1, s), s, 2), (0, s, 3)]
        if forwards or self.rng.random() < 0.3:
            return self.pick(ahead)
        back = [(s - 1, -1, -1), (s - 1, -1, -1), (hi - 1, lo - 1, -1), (s - 1, -1, -2), (hi - 1, lo - 1, -2), (s // 2 - 1, -1, -1)]
        return self.pick(back)

    def padding(self, shape: list[int]) -> tuple[tuple[int, int], ...]:
        kind = self.pick(("any", "any", "before", "after", "one axis", "none"))
        one = self.pick(range(len(shape))) if shape else 0

        def amount(axis: int, side: str) -> int:
            if kind == "none" or (kind in ("before", "after") and kind != side) or (kind == "one axis" and axis != one):
                return 0
            return int(self.rng.integers(0, 4))

        return tuple((amount(i, "before"), amount(i, "after")) for i in range(len(shape)))

    def fill(self, dtype: DType) -> Any:
        """Return a number that the dtype can hold, in the form in which an attribute stores it."""
        ends = [dtype.min, dtype.max] if dtype.is_integer else []
        while True:
            try:
                return leaves.constant(self.pick([*FILLS, *ends, *self.whole, *self.real, False, True]), dtype).attrs["value"]
            except LanguageError:
                continue
