"""evaluate: values and dims in numpy, with floats as float64, for the interpreters of stage programs and of loop programs.

Each loop that is evaluated at once is an axis of the arrays. An interpreter says what a load is, and what an index is that is read.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tensor_graphs.codegen.loop_ir import Monoid, Top, Value
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DTYPES
from tensor_graphs.language.node import TensorType
from tensor_graphs.meaning.algebra import At, Real, carrier

Numbers = np.ndarray[Any, np.dtype[Any]]


class StageError(TensorGraphsError):
    """A program that reads or writes memory wrongly."""


class Evaluation(ABC):
    """Values at some iterations. at: the numbers of axes, dims and other indices by name. values: those that are computed."""

    at: dict[str, Any]
    values: dict[Value, Numbers]

    @abstractmethod
    def loaded(self, v: Value, args: list[Numbers]) -> Numbers:
        """Return what a load reads."""

    @abstractmethod
    def unbound(self, name: str) -> Any:
        """Return an index that is not in `at`."""

    def offset(self, index: Dim) -> Any:
        for name in index.symbols if isinstance(index, d.Expr) else ():
            if name not in self.at:
                self.at[name] = self.unbound(name)
        return at_sizes(index, self.at)

    def value(self, root: Value) -> Numbers:
        todo = [root]
        while todo:
            v = todo[-1]
            missing = [] if v in self.values else [a for a in v.args if a not in self.values]
            if not missing:
                todo.pop()
                if v not in self.values:
                    self.values[v] = np.asarray(self.one(v, [self.values[a] for a in v.args]))
            todo += missing
        return self.values[root]

    def one(self, v: Value, args: list[Numbers]) -> Any:
        if v.op == "constant":
            return np.asarray(v.attr, carrier(v.dtype))
        if v.op == "index":
            return np.asarray(self.offset(v.attr)).astype(carrier(v.dtype))
        if v.op == "load":
            return self.loaded(v, args)
        if v.op in _FUNCTIONS:
            return _FUNCTIONS[v.op](*args)
        old, new = (DTYPES[name] for name in v.attr.split()) if v.op == "bitcast" else (v.dtype, v.dtype)
        shape = np.broadcast_shapes(*(a.shape for a in args))
        types = (TensorType(shape, old if v.op == "bitcast" else a.dtype) for a in v.args)
        at = At(None, {}, (TensorType(shape, new),), tuple(types))  # type: ignore[arg-type]
        return getattr(Real(), {"and": "bit_and", "xor": "bit_xor"}.get(v.op, v.op))(at, *(np.broadcast_to(a, shape) for a in args))


def at_sizes(x: Dim, at: Mapping[str, Any]) -> Any:
    """Return the value of a dim whose symbols may be arrays."""
    if not isinstance(x, d.Expr):
        return x
    total: Any = 0
    for monomial, k in x.terms:
        product: Any = k
        for atom in monomial:
            if isinstance(atom, d.Symbol):
                product = product * at[atom.name]
            else:
                args = [at_sizes(a, at) for a in atom.args]
                step: Callable[[Any, Any], Any] = {"floordiv": np.floor_divide, "min": np.minimum, "max": np.maximum}[atom.fn]
                called = args[0]
                for other in args[1:]:
                    called = step(called, other)
                product = product * called
        total = total + product
    return total


MONOIDS: Mapping[Monoid, np.ufunc] = {"sum": np.add, "product": np.multiply, "max": np.maximum}
"""monoid of single numbers -> the operation on two arrays"""


def combined(monoid: Monoid, x: Numbers, rank: int) -> Numbers:
    """Return x with all axes from `rank` on combined: to one number, or to an axis of the list that is the result."""
    least = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    if not isinstance(monoid, Top):
        first = least if monoid == "max" else MONOIDS[monoid].identity
        return np.asarray(MONOIDS[monoid].reduce(x, axis=tuple(range(rank, x.ndim)), dtype=x.dtype, initial=first))
    none = np.full((*x.shape[:rank], monoid.count), least, x.dtype)
    every = np.concatenate([x.reshape(*x.shape[:rank], math.prod(x.shape[rank:])), none], axis=rank)
    return np.sort(every, axis=rank)[..., ::-1][..., :monoid.count]


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "at_least": np.greater_equal, "div": np.divide, "exp": np.exp, "tanh": np.tanh, "cos": np.cos, "tan": np.tan, "mod": np.mod,
    "erf": np.vectorize(math.erf, otypes=[np.float64]), "erfc": np.vectorize(math.erfc, otypes=[np.float64]),
    # what only loop programs have: how a printer writes them differs, not what they are
    "divisor": np.asarray, "divided": np.divide, "exp_in_sum": np.exp, "mul_alone": np.multiply,
    "minus": np.subtract, "fma": lambda x, y, z: x * y + z, "finite": np.isfinite, "overflowed": lambda x: ~np.isfinite(x),
    "out_of_range": lambda x: ~np.isfinite(x) | (np.abs(x) <= 2.0**-90), "high": np.asarray, "low": np.zeros_like,
    "rest": np.zeros_like, "inverted": lambda x: np.ones(np.shape(x), bool), "over": lambda x, by, *_: np.divide(x, by)}
