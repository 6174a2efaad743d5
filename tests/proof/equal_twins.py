"""equal_twins: twins of a graph that are the same function, so that none may be refuted.

A node is written otherwise: by an identity of numbers, integers, bits or order; a composite by its definition; or a rule of the
rule tables is applied, with its variables made of other expressions and its result used by another.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import tensor_graphs as tg
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language.composite import CompositeOp, expand_all
from tensor_graphs.language.node import Node, rebuild
from tensor_graphs.rewrites.admission import draw_instance
from tensor_graphs.rewrites.random_graph import Unfit
from tensor_graphs.rewrites.rules import RULES
from tests.proof.boundary_mutants import Edge, Mutation, _fill, _int_bounds, _not, _replaced, _value, written_out
from tests.proof.random_graphs import random_pair


@dataclass(frozen=True)
class EqualTwin:
    kind: str
    left: tg.Graph
    right: tg.Graph


def of_numbers(r: random.Random, n: Node) -> Iterator[Edge]:
    if len(n.types) != 1 or n.dtype.kind != "float":
        return
    other = tg.input("x", n.shape) if r.random() < 0.5 and all(True for _ in n.shape) else n * 0.5 + 1.0
    yield Edge("numbers: halves", n, n * 0.5 + n * 0.5)
    yield Edge("numbers: a third, three times", n, n / 3.0 + n / 3.0 + n / 3.0)
    yield Edge("numbers: added and taken away", n, (n + 7.25) - 7.25)
    yield Edge("numbers: product of sum and difference", (n + 2.0) * (n - 2.0), n * n - 4.0)
    yield Edge("numbers: square of a sum", tg.square(n + 1.0), n * n + n * 2.0 + 1.0)
    yield Edge("numbers: a positive factor cancels", n, n * (other * other + 1.0) / (other * other + 1.0))
    yield Edge("functions: log of exp", n, tg.log(tg.exp(n)))
    yield Edge("functions: exp of a sum", tg.exp(n + 1.0), tg.exp(n) * float(np.e))
    yield Edge("functions: sigmoid and its mirror", tg.sigmoid(n) + tg.sigmoid(-n), n * 0.0 + 1.0)
    yield Edge("functions: tanh by sigmoid", tg.tanh(n), tg.sigmoid(n * 2.0) * 2.0 - 1.0)
    yield Edge("functions: sine is odd", tg.sin(-n), -tg.sin(n))
    yield Edge("functions: root of a square", tg.sqrt(n * n), tg.abs(n))
    yield Edge("order: max by selection", tg.maximum(n, other), tg.where(tg.less(n, other), other, n))
    yield Edge("order: max and min", tg.maximum(n, other) + tg.minimum(n, other), n + other)
    yield Edge("order: max by magnitude", tg.maximum(n, other), (n + other + tg.abs(n - other)) * 0.5)
    yield Edge("order: magnitude by relu", tg.abs(n), tg.relu(n) + tg.relu(-n))
    yield Edge("order: magnitude by selection", tg.abs(n), tg.where(tg.less(n, _fill(0, n)), -n, n))
    yield Edge("order: sign times magnitude", n, tg.sign(n) * tg.abs(n))
    yield Edge("order: clip by min and max", tg.clip(n, -1.0, 2.0), tg.minimum(tg.maximum(n, -1.0), 2.0))
    yield Edge("order: relu twice", tg.relu(n), tg.relu(tg.relu(n)))
    yield Edge("order: the tie belongs to both", tg.where(tg.less(n, other), n, other), tg.where(tg.less(other, n), other, n))
    yield Edge("comparison: not the other way round", tg.less(n, other), _not(tg.less_equal(other, n)))
    yield Edge("comparison: moved", tg.less(n, other), tg.less(n + 3.0, other + 3.0))
    yield Edge("comparison: scaled", tg.less(n, other), tg.less(n * 2.5, other * 2.5))
    yield Edge("comparison: mirrored", tg.less(n, other), tg.less(-other, -n))
    yield Edge("comparison: by exp", tg.less(n, other), tg.less(tg.exp(n), tg.exp(other)))
    yield Edge("comparison: by the difference", tg.less(n, other), tg.less(n - other, _fill(0, n)))
    yield Edge("floor: by whole steps", tg.floor(n + 3.0), tg.floor(n) + 3.0)
    yield Edge("floor: of a floor", tg.floor(tg.floor(n) * 0.5), tg.floor(n * 0.5))
    yield Edge("floor: ceil mirrored", tg.ceil(n), -tg.floor(-n))
    yield Edge("floor: fraction", n, tg.floor(n) + (n - tg.floor(n)))
    yield Edge("floor: at most", tg.less_equal(tg.floor(n), n), tg.less(n * 0.0, n * 0.0 + 1.0))
    yield Edge("floor: trunc by selection", tg.trunc(n), tg.where(tg.less(n, _fill(0, n)), tg.ceil(n), tg.floor(n)))
    yield Edge("moves: flipped twice", n, tg.flip(tg.flip(n, axis=n.rank - 1), axis=n.rank - 1) if n.rank else n * 1.0)
    if not n.rank:
        return
    axis = r.randrange(n.rank)
    size = n.shape[axis]
    whole = [(0, s, 1) for s in n.shape]
    yield Edge(
        "moves: padded and sliced",
        n,
        atomic.slice(
            atomic.pad(n, [(2, 1) if k == axis else (0, 0) for k in range(n.rank)], 5.0),
            [(2, s + 2, 1) if k == axis else (0, s, 1) for k, s in enumerate(n.shape)],
        ),
    )
    yield Edge("moves: gathered in order", n, tg.gather(n, atomic.iota((size,), 0, tg.i32), axis=axis))
    yield Edge("sums: flipped", n.sum(axis), tg.flip(n, axis=axis).sum(axis))
    yield Edge("sums: scaled", (n * 3.0).sum(axis), n.sum(axis) * 3.0)
    yield Edge(
        "sums: padded with zeros",
        n.sum(axis),
        atomic.pad(n, [(1, 2) if k == axis else (0, 0) for k in range(n.rank)], 0.0).sum(axis),
    )
    yield Edge(
        "sums: even and odd places",
        n.sum(axis),
        tg.where(tg.equals(tg.bit_and(atomic.iota(n.shape, axis), 1), 0), n, 0.0).sum(axis)
        + tg.where(tg.equals(tg.bit_and(atomic.iota(n.shape, axis), 1), 0), 0.0, n).sum(axis),
    )
    yield Edge("max: moved", n.max(axis), (n + 2.0).max(axis) - 2.0)
    yield Edge("max: mirrored", n.max(axis), -tg.reduce_min(-n, axis))
    yield Edge("softmax: moved", tg.softmax(n), tg.softmax(n - 3.0))
    yield Edge("softmax: without its maximum", tg.softmax(n), tg.exp(n) / tg.exp(n).sum(n.rank - 1, keepdims=True))
    yield Edge("softmax: of its logarithm", tg.log_softmax(n), n - tg.logsumexp(n)[..., None])
    first = [(0, 1, 1) if k == axis else w for k, w in enumerate(whole)]
    rest = [(1, size, 1) if k == axis else w for k, w in enumerate(whole)]
    yield Edge("sums: split", n.sum(axis), atomic.slice(n, first).sum(axis) + atomic.slice(n, rest).sum(axis))
    if isinstance(size, int) and size > 1:
        a, b = atomic.slice(n, first), atomic.slice(n, rest)
        yield Edge("max: split", n.max(axis), tg.maximum(a.max(axis), b.max(axis)))
        m = n.max(axis)
        total = tg.exp(n - tg.reshape(m, a.shape)).sum(axis)
        am, bm = a.max(axis), b.max(axis)
        merged = tg.exp(a - tg.reshape(am, a.shape)).sum(axis) * tg.exp(am - m) + tg.exp(b - tg.reshape(bm, a.shape)).sum(
            axis
        ) * tg.exp(bm - m)
        yield Edge("softmax: merged sums of exponentials", total, merged)
    yield Edge("norm: written out", tg.rms_norm(n), n / tg.sqrt(tg.mean(n * n, axis=n.rank - 1, keepdims=True) + 1e-6))


def of_integers(r: random.Random, n: Node) -> Iterator[Edge]:
    if len(n.types) != 1 or not n.dtype.is_integer:
        return
    low, high = _int_bounds(n)
    bits = 8 * n.dtype.itemsize
    k = r.choice([1, 3, 7, 15, 31, 100, 85])
    other = n * _fill(3, n) + _fill(1, n)
    yield Edge("integer: there and back", n, (n + k) - k)
    yield Edge("integer: doubled by itself", n + n, n * 2)
    yield Edge("integer: square of a sum", (n + other) * (n + other), n * n + n * other * 2 + other * other)
    yield Edge("bits: parts of a mask", tg.bit_and(n, 15), tg.bit_and(n, 3) + tg.bit_and(n, 12))
    yield Edge("bits: nibbles", tg.bit_and(n, 127), tg.bit_and(n, 15) + tg.bit_and(n, 112))
    yield Edge("bits: xor twice", n, tg.bit_xor(tg.bit_xor(n, k), k))
    yield Edge("bits: sum by and and xor", n + other, tg.bit_xor(n, other) + tg.bit_and(n, other) * 2)
    yield Edge("bits: or by sum", tg.bit_or(n, other), n + other - tg.bit_and(n, other))
    yield Edge("bits: De Morgan", _not(tg.bit_and(n, other)), tg.bit_or(_not(n), _not(other)))
    yield Edge("bits: minus is not, and one more", tg.neg(n), _not(n) + 1)
    yield Edge("bits: a remainder by a mask", tg.mod(n, 8), tg.bit_and(n, 7))
    yield Edge("bits: a quotient by a mask", (n // 16) * 16, tg.bit_and(n, _fill(high ^ 15 if low == 0 else -16, n)))
    yield Edge("division: quotient and remainder", n, (n // k) * k + tg.mod(n, k))
    yield Edge("division: in two steps", n // 12, (n // 3) // 4)
    yield Edge("comparison: the next threshold", tg.less(n, k), tg.less_equal(n, k - 1))
    yield Edge(
        "comparison: neither less nor more", tg.equals(n, _fill(k, n)), tg.bit_and(tg.less_equal(n, k), tg.less_equal(k, n))
    )
    yield Edge("order: max by selection", tg.maximum(n, other), tg.where(tg.less(n, other), other, n))
    yield Edge("order: max and min", tg.maximum(n, other) + tg.minimum(n, other), n + other)
    yield Edge("polynomial modulo 2^k", n * n, n * n + n * (n + 1) * _fill(1 << (bits - 1) if low == 0 else low, n))
    if bits <= 32:
        x = tg.cast(n, tg.f32)
        yield Edge("cast: there and back", n, tg.cast(x, n.dtype))
        yield Edge("cast: a threshold behind a float", tg.less(n, k), tg.less(x, k - 0.5))
        yield Edge(
            "cast: a half, floored",
            tg.cast(n // 2, tg.i32) if bits < 32 else n // 2,
            tg.cast(tg.floor(x * 0.5), tg.i32 if bits < 32 else n.dtype),
        )
    if bits < 32:
        wide = tg.cast(n, tg.i32)
        yield Edge("cast: wider and back", n, tg.cast(wide, n.dtype))
        yield Edge("cast: wraps as arithmetic does", n + other, tg.cast(wide + tg.cast(other, tg.i32), n.dtype))
        yield Edge("cast: wraps as arithmetic does", n * other, tg.cast(wide * tg.cast(other, tg.i32), n.dtype))
    if n.dtype == tg.u8:
        yield Edge("division: a magic number", tg.cast(n, tg.i32) // 10, (tg.cast(n, tg.i32) * 205) // 2048)
        yield Edge("cast: the sign of a byte", tg.cast(tg.cast(n, tg.i8), tg.i32), tg.bit_xor(tg.cast(n, tg.i32), 128) - 128)
    other_sign = {tg.i8: tg.u8, tg.u8: tg.i8, tg.i32: tg.u32, tg.u32: tg.i32, tg.i16: tg.u16}.get(n.dtype)
    if other_sign is not None:
        yield Edge("bits: cast is bitcast", tg.cast(n, other_sign), tg.bitcast(n, other_sign))
        yield Edge("bits: bitcast and back", n, tg.bitcast(tg.bitcast(n, other_sign), n.dtype))
    if n.rank and bits == 32:
        yield (
            Edge("bits: through floats", n, tg.bitcast(tg.bitcast(n, tg.f32), n.dtype))
            if False
            else Edge("bits: through bytes", n, tg.bitcast(tg.bitcast(n, tg.u8), n.dtype))
        )


def of_truths(r: random.Random, n: Node) -> Iterator[Edge]:
    if len(n.types) != 1 or n.dtype.kind != "bool":
        return
    other = tg.input("t", n.shape, tg.bool_)
    yield Edge("truth: De Morgan", tg.bit_and(n, other), _not(tg.bit_or(_not(n), _not(other))))
    yield Edge("truth: xor by or", tg.bit_xor(n, other), tg.bit_and(tg.bit_or(n, other), _not(tg.bit_and(n, other))))
    yield Edge("truth: by selection", tg.bit_or(n, other), tg.where(n, n, other))
    yield Edge("truth: twice not", n, _not(_not(n)))
    yield Edge("truth: as a number", n, tg.less(_fill(0.5, tg.cast(n, tg.f32)), tg.cast(n, tg.f32)))
    yield Edge("truth: xor is not equal", tg.bit_xor(n, other), tg.not_equal(n, other))


def of_structure(r: random.Random, n: Node) -> Iterator[Edge]:
    """Operands the other way round; a lookup as a product with one-hot rows; a scatter as a sum."""
    if len(n.types) != 1:
        return
    if n.op.name in ("add", "mul", "max", "and", "xor", "not_equal", "equals"):
        yield Edge("commuted", n, atomic.apply(n.op, n.inputs[::-1], n.attrs))
    if n.op.name in ("add", "mul", "max", "and", "xor") and n.inputs[0].op is n.op:
        (a, b), c = n.inputs[0].inputs, n.inputs[1]
        yield Edge("associated", n, atomic.apply(n.op, (a, atomic.apply(n.op, (b, c), n.attrs)), n.attrs))
    if n.op.name == "mul" and n.inputs[1].op.name == "add" and n.dtype.kind != "bool":
        a, b = n.inputs[1].inputs
        yield Edge("distributed", n, n.inputs[0] * a + n.inputs[0] * b)
    if n.op.name == "gather" and n.inputs[0].rank == 1 and n.dtype.kind == "float":
        table, index = n.inputs
        hot = tg.one_hot(tg.cast(index, tg.i32), size=table.shape[0])
        yield (
            Edge("lookup: by one-hot rows", n, atomic.sum(hot * table, index.rank))
            if index.dtype.itemsize < 4 or index.dtype == tg.i32
            else Edge("lookup: doubled", n, tg.gather(table * 2.0, index, axis=0) * 0.5)
        )
    if (
        n.op.name == "scatter"
        and n.attrs["mode"] == "add"
        and n.inputs[0].rank == 1
        and n.inputs[1].rank == 1
        and n.inputs[1].dtype == tg.i32
    ):
        base, index, updates = n.inputs
        size = base.shape[0]
        places = tg.expand(tg.reshape(atomic.iota((size,), 0, tg.i32), (size, 1)), (size, index.shape[0]))
        yield Edge("scatter: by one-hot rows", n, base + tg.where(tg.equals(places, index), updates, 0.0).sum(1))
    if isinstance(n.op, CompositeOp):
        yield Edge("composite: its definition", n, expand_all([n])[0])
    if n.op is leaves.CONSTANT and isinstance(_value(n), float):
        yield Edge("literal: a sum", n, tg.constant(_value(n) - 0.25, n.dtype) + tg.constant(0.25, n.dtype))


IDENTITIES: tuple[Mutation, ...] = (of_numbers, of_integers, of_truths, of_structure)


def identities(r: random.Random, node: Node) -> list[Edge]:
    edges: list[Edge] = []
    for family in IDENTITIES:
        twin = family(r, node)
        while True:
            try:
                edge = next(twin, None)
            except (TensorGraphsError, OverflowError, ValueError):
                break
            if edge is None:
                break
            if edge.left.type == edge.right.type and edge.left is not edge.right:
                edges.append(edge)
    return edges


def equal_twins(graph: tg.Graph, seed: int, count: int) -> Iterator[EqualTwin]:
    """Up to `count` twins of a graph; each is the last one changed once more, or the graph itself, changed once."""
    r = random.Random(f"equal {seed}")
    places = [n for n in graph.nodes if len(n.types) == 1]
    yielded = tried = 0
    while yielded < count and tried < 5 * count:
        tried += 1
        target = r.choice(places)
        edges = identities(r, target)
        if not edges:
            continue
        edge = r.choice(edges)
        try:
            left, right = _replaced(graph, target, edge.left), _replaced(graph, target, edge.right)
            if left is None or right is None or left == right:
                continue
            if r.random() < 0.2:
                right = written_out(right)
        except TensorGraphsError:
            continue
        yielded += 1
        yield EqualTwin(edge.kind, left, right)


def rule_twin(number: int, seed: int) -> EqualTwin | None:
    """One rule of the tables, its variables made of other expressions, its result used by another; None where no draw fits."""
    plain = [rule for rule in RULES if not rule.assuming]
    rule = plain[number % len(plain)]
    rng = np.random.default_rng([number, seed])
    r = random.Random(f"rule {number} {seed}")
    for _ in range(60):
        try:
            drawn = draw_instance(rule, rng)
        except (TensorGraphsError, Unfit):
            continue
        below: dict[Node, Node] = {}

        def put(node: Node, inputs: tuple[Node, ...], below: dict[Node, Node] = below) -> Node | None:
            if node.op is not leaves.INPUT or len(node.types) != 1:
                return None
            if node not in below:
                below[node] = _made_of(r, node)
            return below[node]

        count = len(drawn.left)
        new = rebuild([*drawn.left, *drawn.right], put)
        above = r.randrange(4)
        used = [_used(above, x) for x in new]
        return EqualTwin(f"rule: {rule.name}", tg.graph(used[:count]), tg.graph(used[count:]))
    return None


def _made_of(r: random.Random, leaf: Node) -> Node:
    if leaf.dtype.kind == "float":
        return r.choice(
            [lambda: leaf, lambda: leaf + 1.0, lambda: leaf * leaf, lambda: tg.tanh(leaf), lambda: -leaf, lambda: tg.relu(leaf)]
        )()
    if leaf.dtype.is_integer:
        return r.choice([lambda: leaf, lambda: leaf + 1, lambda: tg.bit_xor(leaf, 3)])()
    return r.choice([lambda: leaf, lambda: tg.logical_not(leaf)])()


def _used(how: int, x: Node) -> Any:
    if x.dtype.kind != "float" or not x.rank or any(s == 0 for s in x.shape):
        return x
    return [lambda: x, lambda: tg.relu(x), lambda: x.sum(0), lambda: x * 2.0 + 1.0][how]()


def pair_twin(seed: int) -> EqualTwin:
    """A random expression, and the same after one to four identities."""
    pair = random_pair(2 * seed)
    return EqualTwin("random pair", pair.left, pair.right)
