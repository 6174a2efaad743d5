"""strategies: random well-typed graphs over the whole op table, sizes for their dims, and arrays for their leaves.

`graphs()` draws one; `ATOMIC_MAKERS` has one maker per row of the op table (a test holds it to that), so a new row needs
one maker here. Every graph can be interpreted: slices and pads stay in range at all sizes, scatter(set) has distinct
indices. Values may be NaN or infinite (log2 of a negative number, 1/0): who wants tame numbers compares accordingly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

import tensor_graphs as tg
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language import dims as d
from tensor_graphs.language.composite import LIBRARY
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DTYPES, DType, bool_, f16, f32, f64, i8, i32, i64, u8, u32
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node

FLOATS = tuple(t for t in DTYPES.values() if t.kind == "float")
INTEGERS = tuple(t for t in DTYPES.values() if t.is_integer)
NUMBERS = FLOATS + INTEGERS
ALL = (*NUMBERS, bool_)

N, M = tg.dim("n", 1, 6), tg.dim("m", 0, 5)
"""The dims that symbolic graphs use; m may be 0."""

SPECIAL_FLOATS = (0.0, -0.0, 1.0, -1.5, 0.1, 1e-6, 3.4e38, 1e300, 5e-324, float("inf"), float("-inf"), float("nan"))


class Pool:
    """The nodes drawn so far, and fresh leaves."""

    def __init__(self, draw: st.DrawFn, dims: Sequence[Dim], dtypes: Sequence[DType]) -> None:
        self.draw, self.dims, self.dtypes = draw, dims, dtypes
        self.nodes: list[Node] = []
        self.states: list[leaves.State] = []

    def shape(self, least: int = 0, most: int = 3) -> tuple[Dim, ...]:
        size = st.sampled_from([1, 2, 3, 4, 0, *self.dims])
        return tuple(self.draw(st.lists(size, min_size=least, max_size=most)))

    def dtype(self, among: Sequence[DType] = ALL) -> DType:
        return self.draw(st.sampled_from([t for t in self.dtypes if t in among] or list(among)))

    def fresh(self, shape: Sequence[Dim], dtype: DType) -> Node:
        """A new input; sometimes, where the shape is static, a parameter, a state or a constant."""
        name = f"x{len(self.nodes)}"
        static = all(d.is_static(s) for s in shape)
        kind = self.draw(st.sampled_from(["input", "input", "parameter", "state", "constant"])) if static else "input"
        made: Node
        if kind == "parameter":
            made = tg.parameter(name, tuple(shape), dtype)
        elif kind == "state":
            self.states.append(tg.state(name, tuple(shape), dtype))
            made = self.states[-1].read()
        elif kind == "constant" and not shape:
            made = self.scalar(dtype)
        elif kind == "constant":
            made = tg.constant(array_of([int(s) for s in shape], dtype, self.draw(st.integers(0, 99))), dtype)
        else:
            made = tg.input(name, tuple(shape), dtype)
        self.nodes.append(made)
        return made

    def scalar(self, dtype: DType) -> Node:
        if dtype.kind == "float":
            return tg.constant(self.draw(st.sampled_from(SPECIAL_FLOATS)), dtype)
        if dtype.kind == "bool":
            return tg.constant(self.draw(st.booleans()), dtype)
        value = st.one_of(st.integers(0, 100), st.sampled_from([int(dtype.min), int(dtype.max), *self.dims]))
        return tg.constant(self.draw(value), dtype)

    def pick(self, among: Sequence[DType] = ALL, least: int = 0) -> Node:
        """A node of one of these dtypes and of at least this rank: an old one, or a new leaf."""
        allowed = [t for t in among if t in self.dtypes] or list(among)
        found = [n for n in self.nodes if n.dtype in allowed and n.rank >= least]
        if found and self.draw(st.integers(0, 3)):
            return self.draw(st.sampled_from(found))
        return self.fresh(self.shape(least), self.draw(st.sampled_from(allowed)))

    def partner(self, x: Node, dtype: DType | None = None) -> Node:
        """A node of x's shape, and of its dtype or this one."""
        dtype = dtype or x.dtype
        found = [n for n in self.nodes if n.dtype == dtype and n.shape == x.shape]
        return self.draw(st.sampled_from(found)) if found and self.draw(st.booleans()) else self.fresh(x.shape, dtype)

    def axis(self, x: Node) -> int:
        return self.draw(st.integers(0, x.rank - 1))

    def axes(self, x: Node) -> tuple[int, ...]:
        return tuple(sorted(self.draw(st.sets(st.integers(0, x.rank - 1), min_size=1))))


Maker = Callable[[Pool], Node | tuple[Node, ...]]


def _unary(name: str) -> Maker:
    return lambda p: getattr(atomic, name)(p.pick(FLOATS))


def _binary(name: str, among: Sequence[DType]) -> Maker:
    def make(p: Pool) -> Node:
        x = p.pick(among)
        made: Node = getattr(atomic, name)(x, p.partner(x))
        return made

    return make


def _iota(p: Pool) -> Node:
    shape = p.shape(1)
    return atomic.iota(shape, p.draw(st.integers(0, len(shape) - 1)), p.dtype(NUMBERS))


def _bitcast(p: Pool) -> Node:
    x = p.pick(least=1)
    last = x.shape[-1]
    fits = [t for t in ALL if t != x.dtype and (t.itemsize <= x.dtype.itemsize or (
        isinstance(last, int) and last % (t.itemsize // x.dtype.itemsize) == 0))]
    return atomic.bitcast(x, p.draw(st.sampled_from(fits)))


def _where(p: Pool) -> Node:
    x = p.pick()
    return atomic.where(p.partner(x, bool_), x, p.partner(x))


def _reshape(p: Pool) -> Node:
    x = p.pick()
    at = p.draw(st.integers(0, x.rank))
    if x.rank >= 2 and p.draw(st.booleans()):
        at = p.draw(st.integers(0, x.rank - 2))
        return atomic.reshape(x, (*x.shape[:at], x.shape[at] * x.shape[at + 1], *x.shape[at + 2:]))
    return atomic.reshape(x, (*x.shape[:at], 1, *x.shape[at:]))


def _permute(p: Pool) -> Node:
    x = p.pick(least=1)
    return atomic.permute(x, p.draw(st.permutations(range(x.rank))))


def _expand(p: Pool) -> Node:
    x = p.pick()
    size = p.draw(st.sampled_from([2, 3, 0, *p.dims]))
    return atomic.expand(atomic.reshape(x, (*x.shape, 1)), (*x.shape, size))


def _pad(p: Pool) -> Node:
    x = p.pick(least=1)
    amount = st.sampled_from([0, 0, 1, 2, *p.dims])
    value: Any = p.draw(st.sampled_from(SPECIAL_FLOATS)) if x.dtype.kind == "float" else p.draw(st.integers(0, 1))
    return atomic.pad(x, [(p.draw(amount), p.draw(amount)) for _ in range(x.rank)], value)


def _slice(p: Pool) -> Node:
    x = p.pick(least=1)
    bounds: list[tuple[Dim, Dim, int]] = []
    for size in x.shape:
        step = p.draw(st.sampled_from([1, 2, -1, -2]))
        if isinstance(size, int) and p.draw(st.booleans()):
            low = p.draw(st.integers(0, size))
            high = p.draw(st.integers(low, size))
            bounds.append((low, high, step) if step > 0 else (high - 1, low - 1, step))
        else:
            bounds.append((0, size, step) if step > 0 else (size - 1, -1, step))
    return atomic.slice(x, bounds)


def _gather(p: Pool) -> Node:
    x = p.pick(least=1)
    return atomic.gather(x, p.fresh(p.shape(0, 2), p.dtype(INTEGERS)), axis=p.axis(x))


def _scatter(p: Pool) -> Node:
    base = p.pick(least=1)
    axis = p.axis(base)
    modes = ["set"] if base.dtype.kind == "bool" else ["set", "add", "max"]
    mode = p.draw(st.sampled_from(modes))
    if mode == "set":                                       # distinct, and some out of range
        count = p.draw(st.integers(0, 5))
        index = atomic.iota((count,), 0, i32) * p.draw(st.sampled_from([1, 2])) - p.draw(st.integers(0, 2))
    else:
        index = p.fresh(p.shape(0, 2), p.dtype(INTEGERS))
    updates = p.fresh((*base.shape[:axis], *index.shape, *base.shape[axis + 1:]), base.dtype)
    return atomic.scatter(base, index, updates, axis=axis, mode=mode)


def _over_axes(name: str) -> Maker:
    def make(p: Pool) -> Node:
        x = p.pick(NUMBERS, least=1)
        made: Node = getattr(atomic, name)(x, p.axes(x))
        return made

    return make


ATOMIC_MAKERS: dict[str, Maker] = {
    "iota": _iota, **{name: _unary(name) for name in ("reciprocal", "sqrt", "exp2", "log2", "sin", "floor")},
    "cast": lambda p: atomic.cast(p.pick(), p.dtype()), "bitcast": _bitcast,
    **{name: _binary(name, NUMBERS) for name in ("add", "mul", "max", "less")}, "idiv": _binary("idiv", INTEGERS),
    "and": _binary("bit_and", (*INTEGERS, bool_)), "xor": _binary("bit_xor", (*INTEGERS, bool_)),
    "not_equal": _binary("not_equal", ALL), "where": _where, "sum": _over_axes("sum"),
    "reduce_max": _over_axes("reduce_max"), "reshape": _reshape, "permute": _permute, "expand": _expand, "pad": _pad,
    "slice": _slice, "gather": _gather, "scatter": _scatter,
}


def _linear(p: Pool) -> Node:
    x = p.pick(FLOATS, least=1)
    width = x.shape[-1] if isinstance(x.shape[-1], int) else 3
    x = x if isinstance(x.shape[-1], int) else p.fresh((2, width), x.dtype)
    made: Node = tg.linear(x, tg.parameter(f"w{len(p.nodes)}", (2, width), x.dtype))
    return made


def _concat(p: Pool) -> Node:
    x = p.pick(least=1)
    made: Node = tg.concat(x, p.partner(x), axis=p.axis(x))
    return made


def _topk(p: Pool) -> tuple[Node, ...]:
    x = p.pick(NUMBERS, least=1)
    last = x.shape[-1]
    most = last if isinstance(last, int) else d.bounds(last)[0]
    made: tuple[Node, ...] = tg.topk(x, k=p.draw(st.integers(min(1, most), most)))
    return made


def _write_rows(p: Pool) -> Node:
    base = p.pick(least=1)
    start = p.draw(st.sampled_from([0, 1, -1, *p.dims]))
    made: Node = LIBRARY["write_rows"](base, p.fresh((2, *base.shape[1:]), base.dtype), start=start, axis=0)
    return made


COMPOSITE_MAKERS: dict[str, Maker] = {
    "softmax": lambda p: tg.softmax(p.pick((f32, f64), least=1)),
    "rms_norm": lambda p: tg.rms_norm(p.pick(FLOATS, least=1), eps=p.draw(st.sampled_from([1e-6, 1e-5]))),
    "sub": lambda p: _binary_composite(p, "sub"), "min": lambda p: _binary_composite(p, "min"),
    "neg": lambda p: -p.pick(NUMBERS),
    "silu": lambda p: tg.silu(p.pick(FLOATS)), "argmax": lambda p: tg.argmax(p.fresh((2, 3), p.dtype(NUMBERS))),
    "cumsum": lambda p: tg.cumsum(p.pick(NUMBERS, least=1)), "linear": _linear, "concat": _concat, "topk": _topk,
    "write_rows": _write_rows,
}


def _binary_composite(p: Pool, name: str) -> Node:
    x = p.pick(NUMBERS)
    made: Node = LIBRARY[name](x, p.partner(x))
    return made


@st.composite
def graphs(draw: st.DrawFn, *, steps: int = 6, symbolic: bool = True, composites: bool = True,
           dtypes: Sequence[DType] = ALL) -> Graph:
    """A graph of up to `steps` ops, every dtype of `dtypes` likely; with dims n and m if symbolic."""
    p = Pool(draw, (N, M) if symbolic else (), dtypes)
    makers = {**ATOMIC_MAKERS, **(COMPOSITE_MAKERS if composites else {})}
    for _ in range(draw(st.integers(1, steps))):
        name = draw(st.sampled_from(sorted(makers)))
        made = makers[name](p)
        p.nodes += made if isinstance(made, tuple) else [made]
    chosen = draw(st.lists(st.sampled_from(p.nodes), max_size=2))
    outputs = {f"out{i}": node for i, node in enumerate([p.nodes[-1], *chosen])}
    updates: dict[leaves.State | str, Node] = {}
    for state in p.states:
        same = [n for n in p.nodes if n.type == state.node.type]
        if draw(st.booleans()):
            updates[state] = draw(st.sampled_from(same))
    return tg.graph(outputs, updates)


def bindings(graph: Graph) -> st.SearchStrategy[dict[str, int]]:
    """A size for every dim of a graph, within its range."""
    return st.fixed_dictionaries({name: st.integers(*d.bounds(dim)) for name, dim in graph.dims.items()})


def array_of(shape: Sequence[int], dtype: DType, seed: int) -> np.ndarray:
    """Values of a dtype: normal floats, integers from −3 (or 0) to 9, booleans. Different seeds differ."""
    rng = np.random.default_rng(seed)
    if dtype.kind == "float":
        return rng.standard_normal(tuple(shape)).astype(dtype.numpy)
    if dtype.kind == "bool":
        return rng.integers(0, 2, tuple(shape)).astype(np.bool_)
    return rng.integers(-3 if dtype.kind == "int" else 0, 10, tuple(shape)).astype(dtype.numpy)


def leaf_arrays(graph: Graph, binding: Mapping[str, int], seed: int = 0) -> dict[str, dict[str, np.ndarray]]:
    """Arrays for the leaves: the keyword arguments inputs, parameters and states of `interpret`."""
    out: dict[str, dict[str, np.ndarray]] = {}
    for kind in ("inputs", "parameters", "states"):
        found: dict[str, Node] = getattr(graph, kind)
        out[kind] = {name: array_of([int(s) for s in node.type.at(binding).shape], node.dtype, seed + i)
                     for i, (name, node) in enumerate(found.items())}
    return out


__all__ = ["ALL", "ATOMIC_MAKERS", "COMPOSITE_MAKERS", "FLOATS", "INTEGERS", "NUMBERS", "Pool", "array_of", "bindings",
           "f16", "f32", "f64", "graphs", "i8", "i32", "i64", "leaf_arrays", "u8", "u32"]
