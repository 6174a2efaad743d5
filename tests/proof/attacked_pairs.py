"""Pairs that differ at few inputs or sizes, each beside the inputs or sizes at which they do: none of them is ever proved.

By what hides the difference: ties of products and of what was chosen, sizes whose order or multiples matter, combinations of
many choices, numbers that lie among given integers or lead them out of their dtype, and known numbers that float64 shows wrongly.
UNSHOWN are equal functions of which float64 shows something else, by what hides it: none of them is ever refuted.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

import tensor_graphs as tg
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.node import Node

Pair = tuple[Node, Node]

X, Y, S = (tg.input(name, ()) for name in "xys")
TRUE, FALSE = tg.constant(True), tg.constant(False)
A, B, C = (tg.dim(name, 1, 512) for name in "abc")
N, M = tg.dim("n", 1, 512), tg.dim("m", 1, 512)
ROW_A, ROW_N = tg.input("x", (A,)), tg.input("x", (N,))


def shifted(x: Node, by: Dim) -> Node:
    return tg.slice(tg.pad(x, [(by, 0)]), [(0, x.shape[0], 1)])


def again(step: Callable[[Node], Node], x: Node, times: int) -> Node:
    for _ in range(times):
        x = step(x)
    return x


def summed_bools(count: int) -> Node:
    return tg.sum(tg.cast(tg.input("b", (count,), tg.bool_), tg.f32))


def nothing(x: Node, *sizes: Dim) -> Node:
    """0 for each element, made of sizes too, so that both graphs have them."""
    result = x * 0.0
    for size in sizes:
        result = result + tg.constant(size, tg.f32) * 0.0
    return result


def falling_powers(x: Node, count: int) -> Node:
    result = x * S
    for k in range(1, count):
        result = result * (x - float(k))
    return result


def counts(bins: int, indices: int) -> Node:
    ones, none = (tg.expand(tg.reshape(tg.constant(x), (1,)), (size,)) for x, size in ((1.0, indices), (0.0, bins)))
    return tg.scatter(none, tg.input("i", (indices,), tg.i32), ones, mode="add")


BITS = [tg.cast(tg.input(f"b{k}", (), tg.bool_), tg.f32) for k in range(6)]
SIX = sum(BITS[1:], BITS[0])
FOUR = tg.input("x", (4,))
APART = tg.reshape(FOUR, (4, 1)) - tg.reshape(FOUR, (1, 4))
I32 = tg.input("i", (), tg.i32)
BYTES = tg.input("u", (258,), tg.u8)
MANY = tg.input("b", (130,), tg.bool_)

TIES: dict[str, Pair] = {
    "a square, at 0": (tg.less(0.0, X * X), TRUE),
    "signs of a product, at 0 and 1": (tg.bit_xor(tg.less(0.0, X), tg.less(0.0, Y)), tg.less(X * Y, 0.0)),
    "an even power as a factor, at −1 and 0": (tg.less(X * Y * Y, 0.0), tg.less(X, 0.0)),
    "a minimum below a maximum, where both are one": (tg.less(tg.minimum(X, Y), tg.maximum(X, Y)), TRUE),
    "a cube, at 0": (tg.less(X, 0.0), tg.logical_not(tg.less(0.0, X * X * X))),
    "the magnitude of an integer less 777": (tg.less(0.0, tg.abs(tg.cast(I32, tg.f32) - 777.0)), TRUE),
    "squares of differences, of equal numbers": (
        tg.less(0.0, APART * APART), tg.not_equal(tg.iota((4, 4), axis=0), tg.iota((4, 4), axis=1))),
    "a mean below another, where both are one": (tg.less(2.0 * X * Y, X * X + Y * Y), TRUE),
    "a root of a square, at a tie": (tg.less(0.0, tg.sqrt(tg.square(X - Y))), TRUE),
}

SIZES: dict[str, Pair] = {
    "c < a < b": (tg.bit_and(tg.less(tg.constant(C), tg.constant(A)), tg.less(tg.constant(A), tg.constant(B))), FALSE),
    "moved by b + c of a": (shifted(ROW_A, B + C), nothing(ROW_A, B + C)),
    "moved by b, then by c": (shifted(shifted(ROW_A, B), C), nothing(ROW_A, B + C)),
    "a place beyond another size": (
        tg.gather(ROW_A, tg.constant(tg.dim("b", 100, 512)), 0), nothing(tg.sum(ROW_A), tg.dim("b", 100, 512))),
    "two ranges that meet at their ends": (tg.less(tg.constant(tg.dim("b", 100, 512)), tg.constant(tg.dim("a", 1, 101))), FALSE),
    "moved by m three times": (again(lambda x: shifted(x, M), ROW_N, 3), nothing(ROW_N, M)),
    "moved by one sixty times": (again(lambda x: shifted(x, 1), ROW_A, 60), nothing(ROW_A)),
    "a number of places above 40": (
        tg.relu(tg.sum(tg.cast(tg.input("b", (tg.dim("n", 1, 64),), tg.bool_), tg.f32)) - 40.5), nothing(S, tg.dim("n", 1, 64))),
}

CHOICES: dict[str, Pair] = {
    "all of 24": (tg.relu(summed_bools(24) - 23.5) * S, S * 0.0),
    "a mean above 0.99": (tg.where(tg.less(0.99, summed_bools(30) / 30.0), S, S * 0.0), S * 0.0),
    "all of six, by a product": (falling_powers(SIX, 6), SIX * S * 0.0),
    "130 in a byte": (tg.cast(tg.sum(tg.cast(MANY, tg.i8)), tg.f32), tg.sum(tg.cast(MANY, tg.f32))),
    "258 bytes in 16 bits": (tg.cast(tg.sum(tg.cast(BYTES, tg.u16)), tg.f32), tg.sum(tg.cast(BYTES, tg.f32))),
    "two in each of six places": (tg.prod(counts(6, 12)) * tg.prod(counts(6, 12) - 1.0) * S, S * 0.0),
}

IS, JS, LS = (tg.input(name, (size,), tg.i32) for name, size in (("a", 4), ("b", 3), ("c", 4)))
TWO_ROWS = tg.input("a", (2, 3), tg.i32)
EARLY = tg.less(tg.iota((4,), 0, tg.i32), 2)


def filled(value: int) -> Node:
    return tg.pad(JS, ((0, 1),), value)


def masked(value: int) -> Node:
    """Segments, one of them that of what is filled in."""
    same = tg.equals(tg.reshape(IS, (4, 1)), tg.reshape(filled(value), (1, 4)))
    return tg.where(same, tg.input("m", (4, 4)), 0.0)


def chosen(value: int) -> Node:
    return tg.where(EARLY, value, LS)


def written(value: int) -> Node:
    return tg.scatter(LS, tg.constant([1], tg.i32), tg.expand(tg.reshape(tg.constant(value, tg.i32), (1,)), (1,)))


NUMBERS: dict[str, Pair] = {
    "one more than the largest, at the end of the dtype": (tg.max(IS + 1), tg.max(IS) + 1),
    "one less than the largest, at the other end": (tg.max(IS - 1), tg.max(IS) - 1),
    "five more, of rows": (tg.max(TWO_ROWS + 5, axis=1), tg.max(TWO_ROWS, axis=1) + 5),
    "places added before the largest is looked for": (
        tg.max(IS + tg.iota((4,), 0, tg.i32)), tg.max(tg.iota((4,), 0, tg.i32) + IS - 1) + 1),
    "what is filled in, beside given ones": (masked(-12345), masked(-54321)),
    "less than what is filled in": (IS < filled(50), IS < filled(51)),
    "one of two numbers that is chosen": (tg.equals(IS, chosen(700000)), tg.equals(IS, chosen(800000))),
    "one that is written": (tg.equals(IS, written(700000)), tg.equals(IS, written(800000))),
    "one that is put behind": (IS < tg.concat(JS, tg.constant([50], tg.i32)), IS < tg.concat(JS, tg.constant([51], tg.i32))),
    "one that is least of all but for the end of the dtype": (tg.max(tg.pad(IS, ((0, 1),), -10**9)), tg.max(IS)),
    "the larger one near the end of the dtype": (tg.maximum(IS, filled(2**31 - 2))[3], IS[3] * 0 + (2**31 - 2)),
    "one of fewer bits": (tg.cast(IS, tg.i64) < tg.cast(filled(50), tg.i64), tg.cast(IS, tg.i64) < tg.cast(filled(51), tg.i64)),
    "what a place out of range reads": (tg.equals(IS, tg.gather(LS, tg.constant([0, 1, 9, 2], tg.i32))),
                                        tg.equals(IS, tg.gather(LS + 7, tg.constant([0, 1, 9, 2], tg.i32)) - 7)),
    "added to what is there, at the end of the dtype": (
        tg.max(tg.scatter(LS, tg.constant([1], tg.i32), IS[:1], mode="add")),
        tg.max(tg.scatter(LS - 1, tg.constant([1], tg.i32), IS[:1], mode="add")) + 1),
    "the larger of what is there and 50": (
        tg.scatter(LS, tg.constant([1], tg.i32), tg.constant([50], tg.i32), mode="max"),
        tg.scatter(LS, tg.constant([1], tg.i32), tg.constant([51], tg.i32), mode="max")),
}


def known(*values: float) -> Node:
    return tg.constant(np.array(values), tg.f64)


def one(value: float) -> Node:
    return tg.constant(value, tg.f64)


def if_less(x: Node, y: Node | float) -> Node:
    return tg.where(tg.less(x, y), S, S + 1.0)


def squared(x: Node, times: int) -> Node:
    return again(lambda y: y * y, x, times)


LOST = tg.log1p(one(1e-20)) * 1e20                          # 1, and 0 in float64
SMALL = one(1e-300) * one(1e-300) * one(1e300) * one(1e300)                 # 1, and 0 in float64
LARGE = one(1e300) * one(1e300) * one(1e-300) * one(1e-300)                 # 1, and ∞ in float64
FIRST = tg.sum(tg.cast(tg.less(squared(tg.iota((3,), 0, tg.f64) * 1e-17 + 1.0, 57), 2.0), tg.f32))

ROUNDED: dict[str, Pair] = {
    "a logarithm next to 1": (if_less(LOST, 0.5), S),
    "the larger of one and 0.5": (tg.cast(tg.maximum(LOST, 0.5), tg.f32) * S, S * 0.5),
    "softplus of −40, times 1e17": (if_less(tg.softplus(one(-40.0)) * 1e17, 0.1), S),
    "1 + 1e-9, squared thirty times: 2.92630877": (if_less(squared(one(1.0) + 1e-9, 30), 2.92630888808), S + 1.0),
    "a sine of 1e16 turns": (if_less(tg.abs(tg.sin(one(math.pi) * 2e16)), 0.1), S + 1.0),
    "known numbers squared, by place": (FIRST * S, S * 3.0),
}

OUT_OF_RANGE: dict[str, Pair] = {
    "the smaller of 1 and 0.5, after an underflow": (tg.cast(tg.minimum(SMALL, 0.5), tg.f32) * S, S),
    "the larger of 1 and 2, after an overflow": (tg.cast(tg.maximum(LARGE, 2.0), tg.f32) * S, S),
    "floor after an underflow": (tg.cast(tg.floor(SMALL * 3.0 + 0.5), tg.f32) * S, S * 0.0),
    "an index after an underflow": (FOUR[tg.cast(SMALL * 3.0 + 0.5, tg.i32)], FOUR[0]),
    "the root of an overflow": (tg.cast(tg.sqrt(one(1e200) * 1e200) * 1e-200, tg.f32) * S, S * 0.0),
    "e^800 < e^801": (if_less(tg.exp(one(800.0)), tg.exp(one(801.0))), S + 1.0),
    "the logarithm of 2^-2000": (tg.cast(tg.maximum(tg.log2(tg.exp2(one(-2000.0))), -3000.0), tg.f32) * S, S * -3000.0),
    "the largest of e^800 and e^900": (tg.cast(tg.argmax(tg.exp(known(800.0, 900.0, 850.0))), tg.f32) * S, S * 0.0),
}

ATTACKED: dict[str, Pair] = {**TIES, **SIZES, **CHOICES, **NUMBERS, **ROUNDED, **OUT_OF_RANGE}


def between(x: Node, value: float) -> Node:
    return tg.concat(known(value), x, known(-value))


def spread(value: float, *shape: int) -> Node:
    return tg.expand(tg.reshape(one(value), (1,) * len(shape)), shape)


V = tg.input("v", (3,), tg.f64)
TOTAL = tg.sum(V * V + 1.0)
TO_ONE_PLACE = tg.scatter(known(0.0), tg.constant([0, 0, 0, 0, 0]), between(V * V + 1.0, 1e7), 0, "add")
LEFT, RIGHT = tg.input("l", (600, 600), tg.f64), tg.input("r", (600, 600), tg.f64)
WIDER, LONGER = tg.concat(spread(1e15, 600, 1), LEFT, spread(-1e15, 600, 1), axis=1), tg.pad(RIGHT, ((1, 1), (0, 0)), 1.0)

SUMS: dict[str, Pair] = {
    "a sum": (tg.maximum(tg.sum(between(V * V + 1.0, 1e7)), 0.0), TOTAL),
    "a running sum": (tg.maximum(tg.cumsum(between(V * V + 1.0, 1e7))[4], 0.0), TOTAL),
    "a mean": (tg.abs(tg.mean(between(V * V + 1.0, 1e7))), TOTAL / 5.0),
    "a scatter that adds": (tg.maximum(TO_ONE_PLACE[0], 0.0), TOTAL),
    "a sum of known numbers": (if_less(tg.sum(known(1e16, 1.0, -1e16)), 0.5), S + 1.0),
    "a product of matrices too large to be written out": (
        tg.maximum(tg.dot(WIDER, LONGER), 0.0), tg.maximum(tg.dot(LEFT, RIGHT), 0.0)),
}

EVEN = tg.equals(FOUR, FOUR)

UNDERFLOWS: dict[str, Pair] = {
    "0 < e^-1500": (if_less(one(0.0), tg.exp(one(-1500.0))), S),
    "0 < 2^-2000": (if_less(one(0.0), tg.exp2(one(-2000.0))), S),
    "the place of the largest of e^(x - 1500)": (tg.argmax(tg.exp(FOUR - 1500.0)), tg.argmax(FOUR)),
    "0 < softmax": (tg.less(0.0, tg.softmax(tg.concat(FOUR, FOUR - 1500.0))), tg.concat(EVEN, EVEN)),
    "the larger of two, times e^1500": (
        tg.maximum(tg.exp(X - 1500.0), tg.exp(Y - 1500.0)) * tg.exp(one(700.0)).cast(tg.f32) * tg.exp(one(800.0)).cast(tg.f32),
        tg.exp(tg.maximum(X, Y))),
}


def if_so(condition: Node) -> Pair:
    """The sum of V² + 1, of which float64 shows something else where the condition does not hold; nothing proves that."""
    return tg.where(condition, tg.maximum(one(1e6) + TOTAL - 1e6, 0.0), TOTAL * 7.0), TOTAL


NOTHING = one(0.1) + one(0.1) + one(0.1) - 0.3

EDGES: dict[str, Pair] = {
    "a sum of tenths": if_so(tg.equals(one(0.1) + one(0.1) + one(0.1), 0.3)),
    "added and taken away": if_so(tg.equals(one(1e6) + 0.3 - 1e6, 0.3)),
    "of given numbers": (tg.where(tg.equals((V + 1e6) - 1e6, V), tg.relu(V * V), V * V * 7.0), V * V),
    "0 < a square of nothing": if_so(tg.logical_not(tg.less(0.0, NOTHING * NOTHING))),
    "floor of the magnitude of nothing": if_so(tg.less(-0.5, tg.floor(-tg.abs(NOTHING)))),
}

UNSHOWN: dict[str, Pair] = {**SUMS, **UNDERFLOWS, **EDGES}
