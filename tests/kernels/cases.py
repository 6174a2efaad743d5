"""cases: the package's cases (measure/conformance/cases.py) with random sizes and values, operands behind views of all sorts.

A new op, or a new attribute of one, goes there: the tables that `tg conformance` writes and these tests draw from one list.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensor_graphs.language import atomic, leaves
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.node import Node
from tensor_graphs.measure.conformance import cases as conformance_cases
from tensor_graphs.measure.conformance.cases import applied, case, ops

__all__ = ["CASES", "Draw", "applied"]

SIZES = (0, 1, 1, 2, 3, 4, 5, 17)

CASES = {name: case(name) for name in ops()}
"""every op of today, those whose case is derived included"""


class Draw(conformance_cases.CaseDraw):
    """One random instance under construction; `values` are the arrays of its inputs by name.

    `tensor` puts views (turned, stepped, reversed, repeated) between an input and the op, so that a kernel meets strides as a
    model makes them.
    """

    def __init__(self, seed: int, dtype: DType) -> None:
        super().__init__(seed, dtype)
        self.rng = np.random.default_rng(seed)
        self.values: dict[str, np.ndarray] = {}

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def size(self, least: int = 0) -> int:
        return max(least, int(self.pick(*SIZES)))

    def tensor(self, shape: tuple[Any, ...], dtype: DType | None = None, *, positive: bool = False, low: int | None = None,
               high: int | None = None, distinct: bool = False, plain: bool = False) -> Node:
        """A tensor of this type behind some view; floats are normal, integers within low … high − 1 or their whole range."""
        dtype = dtype or self.dtype
        kind = self.pick("plain", "plain", "turned", "stepped", "reversed", "repeated")
        if plain or distinct:
            kind = "plain"
        name = f"x{len(self.values)}"
        inner = list(shape)
        if kind == "turned":
            inner = inner[::-1]
        elif kind == "stepped" and inner:
            inner[-1] = 2 * inner[-1]
        elif kind == "repeated":
            axis = int(self.rng.integers(len(inner))) if inner else -1
            if inner:
                inner[axis] = 1
        self.values[name] = self.array(tuple(inner), dtype, positive, low, high, distinct)
        x = leaves.input(name, tuple(inner), dtype)
        if kind == "turned":
            return atomic.permute(x, tuple(reversed(range(len(shape)))))
        if kind == "stepped" and inner:
            return x[..., ::2]
        if kind == "reversed" and inner:
            return x[::-1]
        return atomic.expand(x, shape) if kind == "repeated" else x

    def array(self, shape: tuple[int, ...], dtype: DType, positive: bool, low: int | None, high: int | None,
              distinct: bool) -> np.ndarray:
        if dtype.kind == "float":
            x = np.asarray(self.rng.standard_normal(shape))
            return np.asarray(np.abs(x) + 0.05 if positive else x).astype(dtype.numpy)
        if dtype.kind == "bool":
            return self.rng.integers(0, 2, shape).astype(np.bool_)
        info = np.iinfo(dtype.numpy)
        low = int(info.min) if low is None else max(low, int(info.min))
        high = int(info.max) + 1 if high is None else min(high, int(info.max) + 1)
        if distinct:
            count = int(np.prod(shape))
            return (low + self.rng.permutation(max(high - low, count)))[:count].reshape(shape).astype(dtype.numpy)
        wide = self.rng.integers(low, high, shape, dtype=np.int64 if high <= 2**63 else np.uint64)
        return np.asarray(wide).astype(dtype.numpy)
