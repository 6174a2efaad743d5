"""twin_graphs: small random graphs with many edges (thresholds, ties, integers, places, tables), and small models.

What boundary_mutants changes, and equal_twins rewrites. Each graph depends on its seed alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache

import tensor_graphs as tg
from tensor_graphs.language import atomic
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.node import Node
from tensor_graphs.models.bert import BertSpec, bert_graph
from tensor_graphs.models.gemma3 import Gemma3Spec, Rope, gemma3_graph

SHAPES: tuple[Callable[[], tuple[Dim, ...]], ...] = (
    lambda: (tg.dim("n", 1, 4096),),
    lambda: (tg.dim("n", 1, 64), 4),
    lambda: (5,),
    lambda: (3, 4),
    lambda: (tg.dim("n", 1, 64), tg.dim("m", 1, 32)),
    lambda: (tg.dim("n", 2, 600),),
    lambda: (4, 4),
)
INTEGERS = (tg.i32, tg.i32, tg.u8, tg.i8, tg.u32, tg.i16)
ROWS = 9


class Grower:
    """Grows an expression: nodes of each type, and what can be made of them."""

    def __init__(self, r: random.Random, shape: tuple[Dim, ...]) -> None:
        self.r, self.shape = r, shape
        self.floats = [tg.input(name, shape) for name in "xyz"]
        self.integers: list[Node] = []
        self.booleans: list[Node] = []

    # ---- operands: recent ones rather, so that the expression is deep

    def f(self) -> Node:
        return self.r.choice(self.floats[-3:] if self.r.random() < 0.6 else self.floats)

    def leaf(self) -> Node:
        return self.r.choice(self.floats[:3])

    def i(self) -> Node:
        if not self.integers or self.r.random() < 0.15:
            dtype = self.r.choice(INTEGERS)
            self.integers.append(tg.input(f"i_{dtype.name}", self.shape, dtype))
        return self.r.choice(self.integers[-3:])

    def j(self, like: Node) -> Node:
        """Another integer of one's dtype."""
        others = [n for n in self.integers if n.dtype == like.dtype and n is not like]
        return (
            self.r.choice(others)
            if others and self.r.random() < 0.5
            else tg.input(f"j_{like.dtype.name}", self.shape, like.dtype)
        )

    def b(self) -> Node:
        if not self.booleans or self.r.random() < 0.1:
            self.booleans.append(tg.input("t", self.shape, tg.bool_))
        return self.r.choice(self.booleans[-3:])

    def number(self) -> float:
        return self.r.choice([0.0, 1.0, -1.0, 0.5, 2.0, -2.5, 0.1, 3.0, 0.7])

    def whole(self, like: Node) -> int:
        low, high = int(like.dtype.min), int(like.dtype.max)
        return self.r.choice([v for v in (1, 2, 3, 7, 10, 15, 16, 63, 100, 127, 200, 1000, -1, -7) if low <= v <= high])

    def axis(self) -> int:
        return self.r.randrange(len(self.shape))

    def place(self) -> Node:
        return atomic.iota(self.shape, self.axis(), tg.i32)


def _row(x: Node, axis: int, reduced: Node) -> Node:
    """A reduction over one axis, stretched over it again."""
    return tg.expand(tg.reshape(reduced, tuple(1 if k == axis else s for k, s in enumerate(x.shape))), x.shape)


def _row_sum(g: Grower) -> Node:
    x, axis = g.f(), g.axis()
    return x + _row(x, axis, atomic.sum(x, axis))


def _row_max(g: Grower) -> Node:
    x, axis = g.f(), g.axis()
    return x - _row(x, axis, atomic.reduce_max(x, axis))


def _shifted(g: Grower) -> Node:
    """Each place sees the one before it."""
    x, axis = g.f(), g.axis()
    padded = atomic.pad(x, [(1, 0) if k == axis else (0, 0) for k in range(x.rank)], g.r.choice([0.0, 0.0, 1.0, -0.5]))
    before = atomic.slice(padded, [(0, s, 1) for s in x.shape])
    return x + before * 0.5 if g.r.random() < 0.5 else before


def _bias(g: Grower) -> Node:
    """By distance from the last place, or from another axis' place: ALiBi, or a window."""
    axis = g.axis()
    end = atomic.dim_fill(g.shape[axis], g.shape)
    other = atomic.iota(g.shape, (axis + 1) % len(g.shape), tg.i32) if len(g.shape) > 1 else end - 1
    distance = other - atomic.iota(g.shape, axis, tg.i32)
    if g.r.random() < 0.5:
        return g.f() + tg.cast(distance, tg.f32) * g.r.choice([-0.5, 0.25, -0.1])
    window = g.r.choice([3, 8, 31])
    return tg.where(
        tg.bit_and(tg.less(distance, window), tg.less_equal(0, distance)), g.f(), g.leaf() * 0.0 + g.r.choice([-30.0, 0.0])
    )


def _look_up(g: Grower) -> Node:
    table = tg.input("table", (ROWS,))
    index = g.i()
    return g.f() + tg.gather(table, index, axis=0)


def _histogram(g: Grower) -> Node:
    index = tg.cast(g.i(), tg.i32)
    flat = tg.reshape(index, (-1,)) if len(g.shape) > 1 else index
    updates = tg.reshape(g.f(), flat.shape) if len(g.shape) > 1 else g.f()
    bins = atomic.scatter(atomic.fill(0.0, (ROWS,), tg.f32), flat, updates, axis=0, mode=g.r.choice(["add", "add", "max"]))
    return tg.gather(bins, index, axis=0)


def _one_hot(g: Grower) -> Node:
    """A choice of one of nine numbers, as a product."""
    hot = tg.one_hot(tg.cast(g.i(), tg.i32), size=ROWS)
    return atomic.sum(hot * tg.input("table", (ROWS,)), len(g.shape))


def _quantised(g: Grower) -> Node:
    scale = g.r.choice([0.5, 0.25, 1.0])
    levels = tg.cast(tg.clip(tg.round(g.leaf() / scale), -128.0, 127.0), tg.i8)
    return tg.cast(levels, tg.f32) * scale


def _nibbles(g: Grower) -> Node:
    """Four bits of a byte, with their sign, as a number."""
    byte = tg.input("i_u8", g.shape, tg.u8)
    half = g.r.choice([tg.bit_and(byte, 15), byte // 16])
    return tg.cast(tg.cast(half, tg.i32) - 8, tg.f32) * g.r.choice([0.5, 1.0, 0.1])


def _by_size(g: Grower) -> Node:
    n = g.shape[g.axis()]
    return g.f() * tg.cast(atomic.dim_fill(n, g.shape), tg.f32) / 16.0


FLOATS: dict[str, Callable[[Grower], Node]] = {
    "add": lambda g: g.f() + g.f(),
    "sub": lambda g: g.f() - g.f(),
    "mul": lambda g: g.f() * g.leaf(),
    "div": lambda g: g.f() / (g.leaf() * g.leaf() + 1.0),
    "scale": lambda g: g.f() * (g.number() or 3.0),
    "shift": lambda g: g.f() + g.number(),
    "max": lambda g: tg.maximum(g.leaf(), g.f()),
    "min": lambda g: tg.minimum(g.f(), g.leaf()),
    "relu": lambda g: tg.relu(g.f()),
    "abs": lambda g: tg.abs(g.f()),
    "sign": lambda g: tg.sign(g.leaf()) * g.f(),
    "clip": lambda g: tg.clip(g.f(), -1.0, g.r.choice([1.0, 2.5])),
    "where": lambda g: tg.where(g.b(), g.f(), g.leaf()),
    "choose": lambda g: tg.where(tg.less(g.leaf(), g.f()), g.f(), g.number()),
    "number": lambda g: tg.cast(g.i(), tg.f32) * 0.5,
    "floor": lambda g: tg.floor(g.leaf() * g.r.choice([1.0, 2.0, 0.5])),
    "round": lambda g: tg.round(g.leaf() * 2.0) * 0.5,
    "tanh": lambda g: tg.tanh(g.f()),
    "root": lambda g: tg.sqrt(g.leaf() * g.leaf() + 0.5),
    "exp": lambda g: tg.exp(tg.sin(g.f())),
    "softmax": lambda g: tg.softmax(g.f()),
    "norm": lambda g: tg.rms_norm(g.f(), eps=g.r.choice([1e-6, 1e-5])),
    "silu": lambda g: tg.silu(g.f()),
    "flip": lambda g: tg.flip(g.f(), axis=g.axis()),
    "row sum": _row_sum,
    "row max": _row_max,
    "shifted": _shifted,
    "bias": _bias,
    "look up": _look_up,
    "histogram": _histogram,
    "one hot": _one_hot,
    "quantised": _quantised,
    "nibbles": _nibbles,
    "size": _by_size,
    "cumsum": lambda g: tg.cumsum(g.f()),
    "indicator": lambda g: tg.cast(g.b(), tg.f32) * g.leaf(),
    "places": lambda g: g.f() + tg.cast(g.place(), tg.f32) * g.r.choice([0.5, -0.25, 0.125]),
}

WHOLES: dict[str, Callable[[Grower], Node]] = {
    "add": lambda g: (lambda x: x + g.j(x))(g.i()),
    "mul": lambda g: (lambda x: x * g.j(x))(g.i()),
    "plus": lambda g: (lambda x: x + g.whole(x))(g.i()),
    "times": lambda g: (lambda x: x * g.whole(x))(g.i()),
    "divide": lambda g: g.i() // g.r.choice([2, 3, 5, 7, 16, 100]),
    "rest": lambda g: g.i() % g.r.choice([2, 3, 8, 10]),
    "mask": lambda g: (lambda x: tg.bit_and(x, g.whole(x)))(g.i()),
    "flip bits": lambda g: (lambda x: tg.bit_xor(x, g.whole(x)))(g.i()),
    "both": lambda g: (lambda x: tg.bit_and(x, g.j(x)))(g.i()),
    "max": lambda g: (lambda x: tg.maximum(x, g.j(x)))(g.i()),
    "clip": lambda g: tg.clip(g.i(), 1, g.r.choice([5, 8, 100])),
    "cast": lambda g: tg.cast(g.i(), g.r.choice(INTEGERS)),
    "floor": lambda g: tg.cast(tg.floor(g.leaf() * 4.0), g.r.choice([tg.i32, tg.i8, tg.u8])),
    "truth": lambda g: tg.cast(g.b(), tg.i32),
    "choose": lambda g: (lambda x: tg.where(g.b(), x, g.j(x)))(g.i()),
    "place": lambda g: g.place(),
    "back": lambda g: tg.cast(g.shape and atomic.dim_fill(g.shape[0], g.shape) - 1 - g.place(), tg.i32),
}

TRUTHS: dict[str, Callable[[Grower], Node]] = {
    "less": lambda g: tg.less(g.leaf(), g.f()),
    "at most": lambda g: tg.less_equal(g.f(), g.leaf()),
    "above": lambda g: tg.less(g.number(), g.f()),
    "whole": lambda g: (lambda x: tg.less(x, g.whole(x)))(g.i()),
    "order": lambda g: (lambda x: tg.less(x, g.j(x)))(g.i()),
    "same": lambda g: (lambda x: tg.equals(x, g.whole(x)))(g.i()),
    "and": lambda g: tg.bit_and(g.b(), g.b()),
    "or": lambda g: tg.bit_or(g.b(), g.b()),
    "not": lambda g: tg.logical_not(g.b()),
    "early": lambda g: tg.less(g.place(), g.r.choice([2, 3, 40])),
    "odd": lambda g: tg.equals(tg.bit_and(g.place(), 1), 1),
    "xor": lambda g: tg.bit_xor(g.b(), g.b()),
}


def random_graph(seed: int) -> tg.Graph:
    r = random.Random(f"graph {seed}")
    g = Grower(r, r.choice(SHAPES)())
    for _ in range(r.randint(2, 6)):
        table, pool = r.choice([(FLOATS, g.floats), (FLOATS, g.floats), (WHOLES, g.integers), (TRUTHS, g.booleans)])
        pool.append(table[r.choice(sorted(table))](g))
    results = [x for x in (*g.floats[3:][-1:], *g.integers[-1:], *g.booleans[-1:]) if x.op.kind != "leaf"]
    roots: list[Node] = results or [g.f() * 2.0 + 1.0]
    if r.random() < 0.3:
        roots = [x.sum(len(g.shape) - 1) if x.dtype.kind == "float" else x for x in roots]
    return tg.graph({f"o{k}": x for k, x in enumerate(roots)})


@cache
def models() -> dict[str, tg.Graph]:
    """Small ones of every family, with every feature that they have."""
    spec = Gemma3Spec(
        vocabulary=11,
        hidden=8,
        ffn=6,
        heads=2,
        kv_heads=1,
        head_dim=4,
        layers=("sliding",),
        window=3,
        eps=1e-6,
        scale=0.5,
        sliding_rope=Rope(10_000.0),
        full_rope=Rope(1_000_000.0, 8.0),
    )
    from dataclasses import replace

    bert = BertSpec(vocabulary=13, hidden=8, ffn=12, layers=1, heads=2, positions=24, token_types=2, eps=1e-12)
    return {
        "gemma, sliding": gemma3_graph(spec, max_positions=12),
        "gemma, full": gemma3_graph(replace(spec, layers=("full",)), max_positions=12),
        "gemma, capped": gemma3_graph(
            replace(spec, final_softcap=0.5, attention_softcap=0.7, activation="silu"), max_positions=9
        ),
        "gemma, token": gemma3_graph(replace(spec, layers=("full",)), max_positions=8, output="token"),
        "bert, mean": bert_graph(bert),
        "bert, normalised": bert_graph(replace(bert, normalise=True, activation="gelu_tanh")),
        "bert, largest": bert_graph(replace(bert, pooling="max", activation="relu")),
        **_parts(),
    }


def _parts() -> dict[str, tg.Graph]:
    """Pieces of models by themselves: they meet their sizes at full range, and cost little."""
    n = tg.dim("n", 1, 1024)
    positions = atomic.iota((n,), 0, tg.i32)
    cos, sin = tg.rope_table(positions, head_dim=4, theta=10000.0)
    x, q = tg.input("x", (n, 2, 4)), tg.input("q", (n, 2, 4))
    small = tg.dim("n", 1, 40)
    scores = tg.input("scores", (small, small))
    r, c = (atomic.iota((small, small), axis, tg.i32) for axis in (0, 1))
    seen = tg.bit_and(tg.less_equal(c, r), tg.less(r - c, 9))
    return {
        "rope": tg.graph(tg.rope(x, cos, sin)),
        "rope table": tg.graph({"cos": cos, "sin": sin}),
        "window": tg.graph(tg.softmax(tg.where(seen, scores, -1e30))),
        "alibi": tg.graph(tg.softmax(scores - tg.cast(r - c, tg.f32) * 0.25)),
        "attention": tg.graph(
            tg.attention(
                tg.input("q", (small, 2, 4)),
                tg.input("k", (small, 1, 4)),
                tg.input("v", (small, 1, 4)),
                scale=0.5,
                causal=True,
                window=5,
            )
        ),
        "embedding": tg.graph(
            tg.embedding(tg.parameter("table", (11, 4)), tg.input("ids", (n,), tg.i32), scale=2.0) * 1.0
            + tg.cast(positions, tg.f32)[:, None]
        ),
        "decode mask": tg.graph(tg.where(tg.less_equal(tg.iota((n,)), tg.input("p", (n,), tg.i32)), q[:, 0, 0], -1e30)),
    }


def leaves_of(graphs: Sequence[tg.Graph]) -> dict[str, Node]:
    named: dict[str, Node] = {}
    for g in graphs:
        named |= {**g.inputs, **g.parameters, **g.states}
    return named
