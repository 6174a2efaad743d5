"""random_graphs: random pairs of graphs that are equal by construction, or differ by one change that is no identity.

An expression is drawn over three inputs [n, m], integers [n], a table of which they look up rows, and a few ops; `IDENTITIES`
rewrite a node to another that is the same function of real numbers wherever both are defined, `MISTAKES` to one that looks
like it. Everything depends on one seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import tensor_graphs as tg
from tensor_graphs.language.node import Node, rebuild, walk
from tensor_graphs.meaning.interpreter import evaluate

N, M = tg.dim("n", 1, 64), tg.dim("m", 1, 64)
LEAVES = (tg.input("x", (N, M)), tg.input("y", (N, M)), tg.input("z", (N, M)))

WORDS, ROWS = tg.input("words", (N,), tg.i32), 9
TABLE = tg.input("table", (ROWS, M))


@dataclass(frozen=True)
class RandomPair:
    left: tg.Graph
    right: tg.Graph
    equal: bool
    changes: tuple[str, ...]


def both(x: Node, y: Node) -> Node:
    return tg.bit_and(x, y)


def as_ones(x: Node) -> Node:
    return x * 0.0 + 1.0


def positive(x: Node) -> Node:
    """A number > 0 made of any."""
    return x * x + 1.0


def gate(test: Node, x: Node, y: Node) -> Node:
    """x in the rows in which the test [n] holds, y in the others."""
    return tg.where(tg.expand(tg.reshape(test, (N, 1)), (N, M)), x, y)


def _flat(n: Node) -> bool:
    """Return whether this is a node of integers [n]."""
    return n.dtype == tg.i32 and n.shape == (N,)


OPS: dict[str, Callable[[random.Random, Node, Node], Node]] = {
    "add": lambda r, x, y: x + y, "sub": lambda r, x, y: x - y, "mul": lambda r, x, y: x * y,
    "div": lambda r, x, y: x / positive(y), "scale": lambda r, x, y: x * r.choice([2.0, -0.5, 3.0, 0.1]),
    "shift": lambda r, x, y: x + r.choice([1.0, -2.0, 0.25]), "max": lambda r, x, y: tg.maximum(x, y),
    "min": lambda r, x, y: tg.minimum(x, y), "exp": lambda r, x, y: tg.exp(tg.sin(x)), "tanh": lambda r, x, y: tg.tanh(x),
    "sigmoid": lambda r, x, y: tg.sigmoid(x), "root": lambda r, x, y: tg.sqrt(positive(x)),
    "log": lambda r, x, y: tg.log(positive(x)), "softmax": lambda r, x, y: tg.softmax(x), "norm": lambda r, x, y: tg.rms_norm(x),
    "centre": lambda r, x, y: x - tg.mean(x, axis=1, keepdims=True), "where": lambda r, x, y: tg.where(x < y, x * 2.0, y),
    "flip": lambda r, x, y: tg.flip(x, axis=r.randrange(2)), "rowsum": lambda r, x, y: x + y.sum(1, keepdims=True),
    "colmax": lambda r, x, y: x - y.max(0, keepdims=True), "sin": lambda r, x, y: tg.sin(x), "relu": lambda r, x, y: tg.relu(x),
    "pick": lambda r, x, y: x + tg.gather(TABLE, WORDS, axis=0),
    "gate": lambda r, x, y: gate(tg.less(WORDS, r.randrange(ROWS)), x, y),
    "one word": lambda r, x, y: gate(tg.equals(WORDS, r.randrange(ROWS)), x, y),
    "block": lambda r, x, y: gate(tg.equals(WORDS // 4, r.randrange(3)), x, y),
    "weigh": lambda r, x, y: x * tg.reshape(tg.cast(WORDS % r.choice([3, 4]), tg.f32), (N, 1)),
    "abs": lambda r, x, y: tg.abs(x), "cumsum": lambda r, x, y: tg.cumsum(x, axis=1), "silu": lambda r, x, y: tg.silu(x),
}


ON_WORDS = frozenset({"pick", "gate", "one word", "block", "weigh"})
"""Ops that depend on WORDS."""


def _is(node: Node, *names: str) -> bool:
    return node.op.name in names


def _distribute(r: random.Random, n: Node) -> Node | None:
    if not _is(n, "mul"):
        return None
    x, y = n.inputs
    if _is(y, "add", "sub"):
        a, b = y.inputs
        return x * a + x * b if _is(y, "add") else x * a - x * b
    return None


def _associate(r: random.Random, n: Node) -> Node | None:
    if _is(n, "add", "mul", "max") and n.inputs[0].op is n.op:
        (a, b), c = n.inputs[0].inputs, n.inputs[1]
        return {"add": lambda: a + (b + c), "mul": lambda: a * (b * c), "max": lambda: tg.maximum(a, tg.maximum(b, c))}[n.op.name]()
    return None


def _commute(r: random.Random, n: Node) -> Node | None:
    if _is(n, "add", "mul", "max"):
        a, b = n.inputs
        return {"add": lambda: b + a, "mul": lambda: b * a, "max": lambda: tg.maximum(b, a)}[n.op.name]()
    return None


def _plain(n: Node) -> bool:
    return n.dtype.kind == "float" and n.rank == 2


IDENTITIES: dict[str, Callable[[random.Random, Node], Node | None]] = {
    "distribute": _distribute, "associate": _associate, "commute": _commute,
    "subtract as add": lambda r, n: n.inputs[0] + (-n.inputs[1]) if _is(n, "sub") else None,
    "divide by inverse": lambda r, n: n.inputs[0] * tg.reciprocal(n.inputs[1]) if _is(n, "div") else None,
    "add and take away": lambda r, n: (n + LEAVES[0]) - LEAVES[0] if _plain(n) and n.shape == (N, M) else None,
    "multiply and divide": lambda r, n: n * positive(LEAVES[1]) / positive(LEAVES[1]) if n.shape == (N, M) and _plain(n) else None,
    "transpose twice": lambda r, n: (n.T * 1.0).T if _plain(n) else None,
    "flip twice": lambda r, n: tg.flip(tg.flip(n, axis=1), axis=1) if _plain(n) else None,
    "reshape there and back": lambda r, n: (
        tg.reshape(tg.reshape(n, (n.shape[0] * n.shape[1],)) * 1.0, n.shape) if _plain(n) else None),
    "minus minus": lambda r, n: tg.neg(tg.neg(n)) if _plain(n) else None,
    "split in halves": lambda r, n: n * 0.5 + n * 0.5 if _plain(n) else None,
    "sigmoid by tanh": lambda r, n: (tg.tanh(n.inputs[0] * 0.5) + 1.0) * 0.5 if _is(n, "sigmoid") else None,
    "tanh by sigmoid": lambda r, n: tg.sigmoid(n.inputs[0] * 2.0) * 2.0 - 1.0 if _is(n, "tanh") else None,
    "softmax shifted": lambda r, n: tg.softmax(n.inputs[0] - LEAVES[2][:, :1]) if _is(n, "softmax") else None,
    "softmax by exp": lambda r, n: tg.exp(n.inputs[0]) / tg.exp(n.inputs[0]).sum(1, keepdims=True) if _is(n, "softmax") else None,
    "max by min": lambda r, n: -tg.minimum(-n.inputs[0], -n.inputs[1]) if _is(n, "max") else None,
    "max by where": lambda r, n: tg.where(n.inputs[0] < n.inputs[1], n.inputs[1], n.inputs[0]) if _is(n, "max") else None,
    "norm written out": lambda r, n: n.inputs[0] / tg.sqrt(tg.mean(n.inputs[0] ** 2, axis=1, keepdims=True) + 1e-6)
    if _is(n, "rms_norm") else None,
    "sum of flipped": lambda r, n: tg.flip(n.inputs[0], axis=tuple(n.attrs["axes"])).sum(n.attrs["axes"])
    if _is(n, "sum") and n.inputs[0].rank == 2 else None,
    "table moved": lambda r, n: tg.gather(n.inputs[0] + 1.0, n.inputs[1], axis=0) - gate(
        both(tg.less(-1, WORDS), tg.less(WORDS, ROWS)), as_ones(n), n * 0.0) if _is(n, "gather") and n.inputs[0] is TABLE else None,
    "not the other way round": lambda r, n: tg.logical_not(tg.less_equal(n.inputs[1], n.inputs[0])) if _is(n, "less") and _flat(
        n.inputs[0]) else None,
    "neither less nor more": lambda r, n: tg.logical_not(both(
        tg.logical_not(tg.less(*n.inputs)), tg.logical_not(tg.less(n.inputs[1], n.inputs[0])))) if (
        _is(n, "not_equal") and n.inputs[0] is WORDS) else both(
        tg.less_equal(*n.inputs), tg.less_equal(n.inputs[1], n.inputs[0])) if _is(n, "equals") and n.inputs[0] is WORDS else None,
    "words there and back": lambda r, n: (n + 5) - 5 if n is WORDS else None,
    "magnitude by relu": lambda r, n: tg.relu(n.inputs[0]) + tg.relu(-n.inputs[0]) if _is(n, "abs") else None,
    "exp of a sum": lambda r, n: tg.exp(n.inputs[0] - LEAVES[1]) * tg.exp(LEAVES[1])
    if _is(n, "exp") and n.shape == (N, M) else None,
    "silu written out": lambda r, n: n.inputs[0] / (tg.exp(-n.inputs[0]) + 1.0) if _is(n, "silu") else None,
    "log halved": lambda r, n: tg.log(tg.sqrt(n.inputs[0])) * 2.0 if _is(n, "log") else None,
}

MISTAKES: dict[str, Callable[[random.Random, Node], Node | None]] = {
    "operands swapped": lambda r, n: n.inputs[1] - n.inputs[0] if _is(n, "sub") else None,
    "add for sub": lambda r, n: n.inputs[0] + n.inputs[1] if _is(n, "sub") else None,
    "sub for add": lambda r, n: n.inputs[0] - n.inputs[1] if _is(n, "add") else None,
    "one more": lambda r, n: n + 1.0 if _plain(n) else None,
    "a little more": lambda r, n: n * 1.0001 if _plain(n) else None,
    "negated": lambda r, n: -n if _plain(n) else None,
    "relu put in": lambda r, n: tg.relu(n) if _plain(n) else None,
    "magnitude put in": lambda r, n: tg.abs(n) if _plain(n) else None,
    "min for max": lambda r, n: tg.minimum(*n.inputs) if _is(n, "max") else None,
    "first operand of max": lambda r, n: n.inputs[0] if _is(n, "max") else None,
    "flipped": lambda r, n: tg.flip(n, axis=r.randrange(2)) if _plain(n) else None,
    "softmax over the other axis": lambda r, n: tg.softmax(n.inputs[0], axis=0) if _is(n, "softmax") else None,
    "another eps": lambda r, n: tg.rms_norm(n.inputs[0], eps=1e-5) if _is(n, "rms_norm") else None,
    "exp in base two": lambda r, n: tg.exp2(n.inputs[0]) if _is(n, "exp") else None,
    "branches swapped": lambda r, n: tg.where(n.inputs[0], n.inputs[2], n.inputs[1]) if _is(n, "where") else None,
    "another leaf": lambda r, n: LEAVES[2] + n * 0.0 if n is LEAVES[0] else None,
    "last row dropped": lambda r, n: tg.gather(n.inputs[0][:ROWS - 1], n.inputs[1], axis=0) if _is(n, "gather") and (
        n.inputs[0].shape[0] == ROWS) else None,
    "one word off": lambda r, n: tg.less(n.inputs[0], n.inputs[1] + 1) if _is(n, "less") and _flat(n.inputs[0]) else None,
    "clipped words": lambda r, n: tg.minimum(n, ROWS - 2) if n is WORDS else None,
    "another block": lambda r, n: n.inputs[0] // 5 if _is(n, "idiv", "floor_div") and _flat(n) else None,
    "clipped": lambda r, n: tg.clip(n, -2.0, 2.0) if _plain(n) else None,
    "root of the square": lambda r, n: tg.sqrt(n * n) if _plain(n) else None,
}


OF_WORDS = frozenset({"table moved", "not the other way round", "neither less nor more", "words there and back", "last row dropped",
                      "one word off", "clipped words", "another block"})
"""Rows about integers: half of all tries in a graph that has some."""


def expression(r: random.Random, steps: int, integers: bool = False) -> Node:
    """integers: it may depend on WORDS and TABLE too."""
    nodes: list[Node] = list(LEAVES)
    names = sorted(OPS if integers else OPS.keys() - ON_WORDS)
    for _ in range(steps):
        name = r.choice(names)
        nodes.append(OPS[name](r, r.choice(nodes[-4:]), r.choice(nodes)))
    return nodes[-1]


def change(r: random.Random, root: Node, table: dict[str, Callable[[random.Random, Node], Node | None]]) -> tuple[Node, str] | None:
    """The expression with one node rewritten by a row of the table that fits, and the row's name."""
    places = walk([root])
    of_words = [(place, name) for name in sorted(OF_WORDS & set(table)) for place in places if table[name](r, place) is not None]
    for _ in range(30):
        target, name = r.choice(of_words) if of_words and r.random() < 0.5 else (r.choice(places), r.choice(sorted(table)))
        of_leaf = name in OF_WORDS or name == "another leaf" or r.random() < 0.2
        replacement = table[name](r, target) if target.op.kind != "leaf" or of_leaf else None
        if replacement is None or replacement.type != target.type or replacement is target:
            continue

        def replace(node: Node, inputs: tuple[Node, ...], target: Node = target, replacement: Node = replacement) -> Node | None:
            return replacement if node is target else None

        new = rebuild([root], replace)[0]
        if new is not root:
            return new, name
    return None


def random_pair(seed: int) -> RandomPair:
    """Seeds that are odd make different pairs, those that are even equal ones."""
    r = random.Random(seed)
    root = expression(r, r.randint(1, 6), integers=True)
    other, names = root, []
    for _ in range(r.randint(1, 4)):
        changed = change(r, other, IDENTITIES)
        if changed is not None:
            other, name = changed
            names.append(name)
    same = seed % 2 == 0
    if not same:
        for _ in range(20):
            changed = change(r, other, MISTAKES)
            if changed is not None:
                other, name = changed
                names.append(name)
                break
    finish = r.choice([lambda x: x, lambda x: x.sum(1), lambda x: x.max(1), lambda x: x])
    return RandomPair(tg.graph(finish(root)), tg.graph(finish(other)), same or other is root, tuple(names))


NEARBY = 24
"""points at which a difference has to be seen before it is believed"""


def differ(a: tg.Graph, b: tg.Graph, seed: int) -> bool | None:
    """Return whether float64 results differ by more than 1e-6 of themselves at some sizes; None where all is NaN.

    Where a result jumps, rounding alone can make a difference: m·c/c may be less than m, and `less(m·c/c, m)` is not so in real
    numbers. So it has to be there at other points nearby too, at which rounding goes another way.
    """
    seen = False
    for trial, size in enumerate((5, 3, 8, 4)):
        rng = np.random.default_rng([seed, trial])
        leaves = {**a.inputs, **a.parameters, **b.inputs, **b.parameters}
        binding = {name: min(size + i, 9) for i, name in enumerate(sorted({**a.dims, **b.dims}))}
        shapes = {node: [int(s) for s in node.type.at(binding).shape] for node in leaves.values()}
        values = {node: rng.integers(-2, ROWS + 2, shape).astype(np.int32) if node is WORDS else rng.standard_normal(shape)
                  for node, shape in shapes.items()}
        different: np.ndarray | None = None
        for nearby in range(NEARBY):
            at = {node: v * (1 + 1e-9 * rng.standard_normal(v.shape)) if nearby and node is not WORDS else v
                  for node, v in values.items()}
            with np.errstate(all="ignore"):
                x, y = evaluate([*a.roots, *b.roots], at, binding)
            if x.shape != y.shape:
                return True
            x, y = x.astype(np.float64), y.astype(np.float64)
            both = np.isfinite(x) & np.isfinite(y)
            seen = seen or bool(both.any())
            now = both & (np.abs(x - y) > 1e-6 * np.maximum(np.abs(x), np.abs(y)) + 1e-12)
            different = now if different is None else different & now
            if not different.any():
                break
        else:
            return True
    return False if seen else None

