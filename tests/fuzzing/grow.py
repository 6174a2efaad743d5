"""grow: a random graph of a seed, over every op there is, and values for its leaves.

An op's operands, attributes and dtypes come from the package's own table of cases (measure/conformance/cases.py), so a new op is
met as soon as it has its row there. What is drawn here is how ops are put together: operands are mostly values that the graph has
already, maybe behind a view, a cast or a copy of another shape; else new inputs, parameters, states and constants.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tensor_graphs as tg
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import atomic
from tensor_graphs.language import dims as d
from tensor_graphs.language.dim_proofs import dim_ge
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DTYPES, DType, f32, i32
from tensor_graphs.language.errors import DTypeError
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.leaves import item
from tensor_graphs.language.node import Node
from tensor_graphs.measure.conformance.cases import CaseDraw, applied, case, op_named, ops
from tensor_graphs.measure.points.extremes import integer_values

N, M = tg.dim("n", 0, 9), tg.dim("m", 1, 6)
SIZES: tuple[Dim, ...] = (1, 1, 2, 3, 4, 4, 5, 8, 8, 0, 17, N, N, N, M, M, N + 1, 2 * M, N // 2, N + M, d.dim_min(N, 4),
                          d.dim_max(M, 3))
"""some dims are made of others"""

MOST = 4000
"""elements of a value, at the largest sizes"""

DTYPE_WEIGHTS = {"f32": 10, "f64": 2, "bf16": 2, "f16": 1, "i32": 3, "i64": 1, "bool": 1, "u8": 1, "u32": 1, "i8": 1}

GROWS = frozenset({"exp", "exp2", "expm1", "pow", "integer_power", "square", "mul", "prod", "tan", "reciprocal", "div", "sum",
                   "cumsum", "dot", "linear", "rsqrt"})
"""ops behind which a float may be large: some of their results are squashed"""


@tg.composite
def _cube(x: Node) -> Node:
    return x * tg.square(x)


@tg.composite
def _blend(x: Node, y: Node, *, share: float) -> Node:
    """Composites of one's own, one within the other, and of the library."""
    return tg.sigmoid(x) * share + _cube(tg.tanh(y)) * (1.0 - share)


@tg.composite
def _ends(x: Node) -> tuple[Node, Node]:
    """Two outputs, one of them a view of what the other reads."""
    return tg.flip(x, axis=-1), tg.sum(x, axis=-1)


@dataclass(frozen=True)
class Hint:
    """What the values of a leaf have to be, so that the graph has a meaning: integers within low … high − 1, or distinct; floats
    above 0."""

    low: int | None = None
    high: int | None = None
    distinct: bool = False
    positive: bool = False


@dataclass(frozen=True)
class Grown:
    """A graph, what its leaves have to hold, and whether floats hold NaN, infinities and ends of their range too."""

    graph: Graph
    hints: Mapping[str, Hint] = field(default_factory=dict)
    wild: bool = False


class Grower(CaseDraw):
    """A graph under construction: the values so far, and steps that add to them."""

    def __init__(self, r: random.Random, dtypes: Sequence[DType] = tuple(DTYPES.values()), symbolic: bool = True) -> None:
        super().__init__(0, f32)
        self.r, self.dtypes, self.symbolic = r, dtypes, symbolic
        self.nodes: list[Node] = []
        self.hints: dict[str, Hint] = {}
        self.states: list[tg.State] = []
        self.updates: dict[tg.State | str, Node] = {}

    # ---- what a case asks for ------------------------------------------------------------------------------------------

    def pick(self, *choices: Any) -> Any:
        return self.r.choice(choices)

    def size(self, least: int = 0) -> Dim:
        known = [s for n in self.nodes[-6:] for s in n.shape]
        among = known if known and self.r.random() < 0.5 else SIZES
        fitting = [s for s in among if d.bounds(s)[0] >= least and (self.symbolic or d.is_static(s))]
        return self.r.choice(fitting) if fitting else max(least, 3)

    def shape(self, low: int = 0, high: int = 3, least: int = 0) -> tuple[Dim, ...]:
        if self.r.random() < 0.8:
            fitting = [n.shape for n in self.nodes if low <= n.rank <= high and all(d.bounds(s)[0] >= least for s in n.shape)]
            if fitting:
                return self.r.choice(fitting[-8:])
        return tuple(self.size(least) for _ in range(self.r.randint(low, high)))

    def tensor(self, shape: tuple[Dim, ...], dtype: DType | None = None, *, positive: bool = False, low: int | None = None,
               high: int | None = None, distinct: bool = False, plain: bool = False) -> Node:
        dtype = dtype or self.dtype
        if distinct:
            return self.leaf(shape, dtype, Hint(low, high, True))
        if self.r.random() < 0.8:
            found = self.made(shape, dtype)
            if found is not None and low is not None and high is not None and dtype.is_integer:
                return tg.mod(found, min(max(1, high), int(dtype.max))) if self.r.random() < 0.7 or low >= 0 else found
            if found is not None:
                return tg.abs(found) + 0.25 if positive and self.r.random() < 0.8 else found
        return self.behind_view(shape, dtype, Hint(low, high, False, positive))

    # ---- operands ------------------------------------------------------------------------------------------------------

    def leaf(self, shape: tuple[Dim, ...], dtype: DType, hint: Hint = Hint()) -> Node:
        """A new input; where the shape is static, maybe a parameter, a state or a constant."""
        name = f"x{len(self.hints)}"
        static = all(map(d.is_static, shape))
        kind = self.r.choice(("input", "input", "input", "parameter", "parameter", "state", "constant")) if static else "input"
        self.hints[name] = hint
        made: Node
        if kind == "parameter":
            made = tg.parameter(name, shape, dtype)
        elif kind == "state":
            self.states.append(tg.state(name, shape, dtype))
            made = self.states[-1].read()
        elif kind == "constant":
            values = leaf_values(name, tuple(map(int, shape)), dtype, hint, self.r.randrange(1 << 30))
            made = tg.constant(values if shape else values.item(), dtype)
        else:
            made = tg.input(name, shape, dtype)
        self.nodes.append(made)
        return made

    def behind_view(self, shape: tuple[Dim, ...], dtype: DType, hint: Hint) -> Node:
        """A new leaf, or a window of one: turned, every other element, backwards, repeated."""
        kind = self.r.choice(("plain", "plain", "plain", "turned", "stepped", "reversed", "repeated")) if shape else "plain"
        axis = self.r.randrange(len(shape)) if shape else 0
        inner = list(shape)
        if kind == "turned":
            return atomic.permute(self.leaf(tuple(inner[::-1]), dtype, hint), tuple(reversed(range(len(shape)))))
        if kind == "stepped":
            inner[axis] = 2 * inner[axis]
            cut = tuple(slice(None, None, 2) if i == axis else slice(None) for i in range(len(shape)))
            return self.leaf(tuple(inner), dtype, hint)[cut]
        if kind == "reversed":
            return tg.flip(self.leaf(shape, dtype, hint), axis=axis)
        if kind == "repeated":
            inner[axis] = 1
            return atomic.expand(self.leaf(tuple(inner), dtype, hint), shape)
        return self.leaf(shape, dtype, hint)

    def made(self, shape: tuple[Dim, ...], dtype: DType) -> Node | None:
        """A value of the graph of this shape and dtype, or one that is made so by views and casts; None where there is none."""
        ways: list[Callable[[], Node]] = []
        for x in self.nodes[-14:]:
            convert = (lambda v: v) if x.dtype == dtype else (lambda v: atomic.cast(v, dtype))
            times = 4 if x.dtype == dtype else 1
            if x.shape == shape:
                ways += [lambda x=x, c=convert: c(x)] * times * 2
                if shape and x.dtype == dtype:
                    axis = self.r.randrange(len(shape))
                    ways.append(lambda x=x, a=axis: tg.flip(x, axis=a))
            elif x.rank == len(shape) and sorted(map(str, x.shape)) == sorted(map(str, shape)):
                ways += [lambda x=x, c=convert: c(atomic.permute(x, _turn(x.shape, shape)))] * times
            elif all(map(d.is_static, (*x.shape, *shape))) and math.prod(map(int, x.shape)) == math.prod(map(int, shape)):
                ways += [lambda x=x, c=convert: c(atomic.reshape(x, shape))] * times
            elif x.rank == len(shape):
                ways += [lambda x=x, c=convert: c(self.fitted(x, shape))] * times
            elif x.rank == 0:
                ways.append(lambda x=x, c=convert: c(atomic.expand(atomic.reshape(x, (1,) * len(shape)), shape)))
            elif x.rank < len(shape) and x.shape == shape[-x.rank:]:
                lead = len(shape) - x.rank
                ways += [lambda x=x, c=convert, k=lead: c(atomic.expand(atomic.reshape(x, (1,) * k + x.shape), shape))] * times
        if not ways:
            return None
        try:
            return self.r.choice(ways)()
        except TensorGraphsError:
            return None

    def fitted(self, x: Node, shape: tuple[Dim, ...]) -> Node:
        """x cut and padded along each axis; sizes whose difference is unknown are refused by pad or slice."""
        bounds: list[tuple[Dim, Dim, int]] = []
        padding: list[tuple[Dim, Dim]] = []
        for have, want in zip(x.shape, shape, strict=True):
            less = dim_ge(want, have)
            start = self.r.choice((0, have - want)) if less is False or have == want else 0
            bounds.append((start, start + want, 1) if less is False else (0, have, 1))
            extra = want - have if less is not False else 0
            padding.append((extra, 0) if self.r.random() < 0.5 else (0, extra))
        x = atomic.slice(x, bounds)
        value: Any = self.r.choice((0.0, 0.5)) if x.dtype.kind == "float" else 0
        return atomic.pad(x, padding, value) if any(p != (0, 0) for p in padding) else x

    def some(self, least: int = 0, kinds: Sequence[str] = ("float",)) -> Node:
        """A value of the graph of at least this rank, the later ones more often; a new input where there is none."""
        fitting = [n for n in self.nodes if n.rank >= least and n.dtype.kind in kinds]
        if fitting:
            return fitting[max(self.r.randrange(len(fitting)), self.r.randrange(len(fitting)))]
        return self.leaf(self.shape(least), f32 if "float" in kinds else i32)

    # ---- steps ---------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One more value, or a few; none where what was drawn does not fit together."""
        kind = self.r.choices(("op", "view", "remember", "own", "products", "part", "numbers"), (16, 3, 1.2, 0.8, 1, 0.4, 0.5))[0]
        try:
            for made in getattr(self, kind)():
                self.keep(made)
        except TensorGraphsError:
            pass                                                    # operands of other sizes, a dtype that the op does not take

    def keep(self, x: Node) -> None:
        if x.rank <= 5 and math.prod(max(1, d.bounds(s)[1]) for s in x.shape) <= MOST:
            if x.dtype.kind == "float" and x.op.name in GROWS and self.r.random() < 0.5:
                x = self.r.choice((tg.tanh, tg.sin, lambda v: v * 0.125, lambda v: v / (1.0 + tg.abs(v))))(x)
            self.nodes.append(x)

    def op(self) -> Sequence[Node]:
        name = self.r.choice(NAMES)
        for _ in range(6):
            recent = [n.dtype for n in self.nodes[-6:]]
            self.dtype = self.r.choice(recent) if recent and self.r.random() < 0.6 else self.r.choices(
                self.dtypes, [DTYPE_WEIGHTS.get(t.name, 1) for t in self.dtypes])[0]
            try:
                node = applied(case(name)(self))
            except DTypeError:                                      # an op of integers, or of floats
                continue
            return [item(node, i) for i in range(len(node.types))]
        return []

    def view(self) -> Sequence[Node]:
        x = self.some(1, ("float", "float", "int", "bool", "uint"))
        axis = self.r.randrange(x.rank)
        step = self.r.choice((1, 1, 2, 3, -1, -1, -2))
        cut = tuple(slice(None, None, step) if i == axis else slice(None) for i in range(x.rank))
        turn = list(range(x.rank))
        self.r.shuffle(turn)
        size = x.shape[axis]
        ways: list[Callable[[], Node]] = [
            lambda: x[cut], lambda: x[cut], lambda: atomic.permute(x, tuple(turn)), lambda: atomic.permute(x, tuple(turn)),
            lambda: atomic.reshape(x, (math.prod(x.shape[1:], start=x.shape[0]),)),
            lambda: atomic.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:])), lambda: tg.flip(x, axis=axis),
            lambda: x[(*[slice(None)] * axis, slice(1, None))], lambda: x[..., :1],
            lambda: x[(*[slice(None)] * axis, slice(0, size // 2))],
            lambda: x[(*[slice(None)] * axis, size - 1)], lambda: atomic.pad(x, [(self.r.randint(0, 2), self.r.choice((0, 1, M)))
                                                                                for _ in x.shape], 1),
            lambda: atomic.expand(atomic.reshape(x, (*x.shape, 1)), (*x.shape, self.r.choice((2, 3, M)))),
            lambda: atomic.reshape(x, (*x.shape[:axis], size // 2, 2, *x.shape[axis + 1:])),
            lambda: atomic.reshape(x, (*x.shape[:-2], x.shape[-2] * x.shape[-1])) if x.rank > 1 else x[::-1]]
        return [self.r.choice(ways)()]

    def remember(self) -> Sequence[Node]:
        """A state written: in place or not, before or after it is read, more than once."""
        if not self.states or self.r.random() < 0.3:
            dtype = self.r.choice((f32, f32, f32, *self.dtypes))
            shape = tuple(self.r.choice((1, 4, 8, 16)) for _ in range(self.r.randint(1, 3)))
            self.hints[name := f"x{len(self.hints)}"] = Hint()
            self.states.append(tg.state(name, shape, dtype))
        s = self.r.choice(self.states)
        old = s.read()
        axis = self.r.randrange(old.rank) if old.rank else 0
        count = self.r.choice([c for c in (1, 2, M, N) if old.rank and d.bounds(c)[1] <= d.bounds(old.shape[axis])[1]] or [1])
        if not old.rank or self.r.random() < 0.2:
            new = s.write(self.tensor(old.shape, old.dtype))
        else:
            rows = self.tensor((*old.shape[:axis], count, *old.shape[axis + 1:]), old.dtype)
            last = old.shape[axis] - count if dim_ge(old.shape[axis], count) else 0
            at: Any = self.r.choice((0, 0, last, 1 if count == 1 and dim_ge(old.shape[axis], 2) else 0))
            if d.is_static(count) and self.r.random() < 0.25:
                at = self.leaf((count,), i32, Hint(0, int(old.shape[axis]), True))
            new = s.write(rows, at=at, axis=axis)
        if self.r.random() < 0.7:
            self.updates[s] = new
        return self.r.choice(([new], [old, new], [old], [old + new] if old.dtype.is_float else [new]))

    def own(self) -> Sequence[Node]:
        x = self.some(1)
        if self.r.random() < 0.3:
            return list(_ends(x))
        return [_blend(x, self.tensor(x.shape, x.dtype), share=self.r.choice((0.25, 0.5)))]

    def products(self) -> Sequence[Node]:
        """What recipes are about: products of one value, chains of products."""
        x = self.some(1)
        if not d.is_static(x.shape[-1]) or not x.shape[-1] or x.dtype.kind != "float":
            x = self.leaf((*self.shape(1, 2)[:1], 8), self.r.choice((f32, f32, tg.bf16)))
        width = x.shape[-1]

        def weight(*shape: Dim) -> Node:
            self.hints[name := f"x{len(self.hints)}"] = Hint()
            return tg.parameter(name, shape, x.dtype) if self.r.random() < 0.8 else tg.input(name, shape, x.dtype)

        scaled = 1.0 / math.sqrt(int(width))
        if self.r.random() < 0.7:
            x = x * scaled
        kind = self.r.choice(("joined", "gated", "chain"))
        if kind == "joined":
            sizes = [self.r.choice((1, 4, 8)) for _ in range(self.r.choice((2, 3)))]
            biased = self.r.random() < 0.4
            return [tg.linear(x, weight(s, width), weight(s) if biased else None) for s in sizes]
        if kind == "gated":
            return [tg.silu(tg.linear(x, weight(6, width))) * tg.linear(x, weight(6, width))]
        if x.rank < 2:
            x = atomic.reshape(x, (1, width))
        return [tg.dot(tg.dot(x, weight(*[1] * (x.rank - 2), width, 8) if x.rank > 2 else weight(width, 8)),
                       weight(*[1] * (x.rank - 2), 8, 1) if x.rank > 2 else weight(8, 1))]

    def part(self) -> Sequence[Node]:
        """What somebody may have registered a kernel for (tests/choice/part_kernels.py), in the library's words."""
        x = self.some(2)
        if x.rank != 2 or not d.is_static(x.shape[1]) or not x.shape[1] or x.dtype != f32 or d.bounds(x.shape[0])[0] < 1:
            x = self.leaf((self.r.choice((M, 4)), 8), f32)
        inner = tg.rms_norm(x, self.leaf((x.shape[1],), f32))
        return [tg.linear(inner, self.leaf((self.r.choice((1, 5)), x.shape[1]), f32)), inner]

    def numbers(self) -> Sequence[Node]:
        """Numbers made of dims, and places."""
        shape = self.shape(1, 2)
        places = atomic.iota(shape, self.r.randrange(len(shape)), self.r.choice((i32, f32)))
        number = tg.constant(self.r.choice((N, M, N + M, N // 2)) if self.symbolic else 3, i32).cast(places.dtype)
        return [tg.less(places, number) if self.r.random() < 0.5 else places + number]

    def finished(self) -> Graph:
        """1–4 outputs, later values more often; views, leaves, and one value twice among them; and updates of states."""
        computed = [n for n in self.nodes if n.op.kind != "leaf"] or self.nodes or [self.leaf((3,), f32)]
        outputs = {}
        for i in range(self.r.randint(1, 4)):
            outputs[f"out{i}"] = computed[max(self.r.randrange(len(computed)) for _ in range(3))]
        if self.r.random() < 0.05:
            outputs["given"] = self.r.choice(self.nodes)
        for s in self.states:
            same = [n for n in computed if n.type == s.node.type]
            if s not in self.updates and same and self.r.random() < 0.3:
                self.updates[s] = self.r.choice(same)
        return tg.graph(outputs, self.updates)


NAMES = tuple(name for name in ops() if not op_named(name).facts.view)



def _turn(have: Sequence[Dim], want: Sequence[Dim]) -> tuple[int, ...]:
    """Axes by which a shape becomes another one of the same sizes."""
    left = list(range(len(have)))
    axes = []
    for size in want:
        axes.append(next(i for i in left if have[i] == size))
        left.remove(axes[-1])
    return tuple(axes)


def grown(seed: int, **how: Any) -> Grown:
    """The graph of a seed: small ones and some of thirty steps; every fourth with values at the ends of what floats hold."""
    r = random.Random(f"graph {seed}")
    g = Grower(r, symbolic=r.random() < 0.75)
    for _ in range(r.randint(2, 14) if r.random() < 0.85 else r.randint(14, 30)):
        g.step()
    return Grown(g.finished(), g.hints, r.random() < 0.25)


# ---- values ------------------------------------------------------------------------------------------------------------

def leaf_values(name: str, shape: tuple[int, ...], dtype: DType, hint: Hint, seed: int, wild: bool = False) -> np.ndarray:
    """Values of one leaf: normal numbers, small integers, booleans. wild: some are NaN or infinite, or zero and tiny, or huge;
    integers of any length."""
    rng = np.random.default_rng([seed, *name.encode()])
    if dtype.kind == "bool":
        return np.asarray(rng.integers(0, 2, shape)).astype(np.bool_)
    if dtype.is_integer:
        low, high = (-3 if dtype.is_signed else 0, 10) if hint.low is None or hint.high is None else (hint.low, hint.high)
        low, high = max(low, int(dtype.min)), min(high, int(dtype.max) + 1)
        if hint.distinct:
            count = math.prod(shape)
            return (low + rng.permutation(max(high - low, count))[:count]).reshape(shape).astype(dtype.numpy)
        if wild and hint.low is None and rng.random() < 0.5:
            return integer_values(rng, shape, dtype)
        return np.asarray(rng.integers(low, max(high, low + 1), shape)).astype(dtype.numpy)
    values = np.asarray(rng.standard_normal(shape)).astype(dtype.numpy)
    if wild:
        kind = rng.integers(4)
        special = ((math.nan, math.inf, -math.inf), (0.0, -0.0, dtype.smallest_normal / 4, -dtype.smallest_normal / 2),
                   (float(dtype.max), -float(dtype.max), float(dtype.max) ** 0.5, 1e4), ())[kind]
        if special:
            at = rng.random(shape) < 0.15
            values = np.where(at, rng.choice(np.array(special), shape), values.astype(np.float64)).astype(dtype.numpy)
    return np.asarray(np.abs(values) + dtype.numpy.type(0.05) if hint.positive else values).astype(dtype.numpy)
