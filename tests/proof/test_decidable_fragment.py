"""The fragment: what is outside of it is never called proved, whatever agrees; the table is the one that the document prints."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.language.atomic import ATOMIC
from tensor_graphs.language.node import Node
from tensor_graphs.proof import decidable_fragment
from tensor_graphs.proof.equality import EqualityVerdict, equal
from tests.proof.attacked_pairs import ATTACKED, UNSHOWN

N = tg.dim("n", 1, 4096)
X, Y = tg.input("x", (5,)), tg.input("y", (5,))
ROW = tg.input("r", (N,))
I32, J32 = tg.input("i", (4,), tg.i32), tg.input("j", (4,), tg.i32)
A, B = tg.input("a", (4,), tg.u8), tg.input("b", (4,), tg.u8)
TABLE = tg.constant(np.where(np.arange(900) == 777, 2.0, np.arange(900) % 2).astype(np.float32))
BF = tg.input("w", (4,), tg.bf16)
POSITION = tg.cast(tg.iota((N,)), tg.f32)


def sign(x: Node) -> Node:
    return tg.where(tg.less(0.0, x), 1.0, tg.where(tg.less(x, 0.0), -1.0, 0.0))


DIFFERENT: dict[str, tuple[Node, Node]] = {
    "a tie of less": (tg.where(X < Y, 1.0, 0.0), tg.where(tg.logical_not(Y < X), 1.0, 0.0)),
    "a tie of sign": (sign(X), tg.where(tg.less(0.0, X), 1.0, -1.0)),
    "a tie in a circle": (tg.where(tg.bit_and(tg.logical_not(X < Y), tg.logical_not(Y < X)), X, 0.0), X * 0.0),
    "a position beyond a threshold": (ROW, tg.where(tg.less(POSITION * 0.25, 70.3), ROW, 0.0)),
    "a position that is cast": (ROW, ROW + tg.cast(tg.cast(POSITION * 0.01, tg.i32) // 7, tg.f32)),
    "a distance that is capped": (ROW * POSITION, ROW * tg.minimum(POSITION, 777.0)),
    "a place that is looked up": (ROW, tg.gather(ROW, tg.cast(tg.minimum(POSITION, 900.5), tg.i32))),
    "a divisor larger than half a range": (tg.input("q", (tg.dim("n", 1, 100),)) * tg.constant(tg.dim("n", 1, 100) // 70, tg.f32),
                                           tg.input("q", (tg.dim("n", 1, 100),)) * 0.0),
    "a size that no sum of ones shows": (
        ROW, tg.where(tg.iota((N,)) + sum([tg.iota((N,)) * 0 + 1] * 5, tg.iota((N,)) * 4) < 300, ROW, 0.0)),
    "an integer through a float": (tg.cast(tg.equals(tg.cast(I32, tg.f32), 333.0), tg.f32), tg.cast(I32, tg.f32) * 0.0),
    "all of a chain of comparisons": (
        tg.where(tg.bit_and(tg.bit_and(X[0:1] < X[1:2], X[1:2] < X[2:3]), tg.bit_and(X[2:3] < X[3:4], X[3:4] < X[4:5])), 1.0, 0.0),
        X[0:1] * 0.0),
    "all negative": (tg.where(tg.less(X.max(0), 0.0), 1.0, 0.0), tg.sum(X) * 0.0),
    "ten bits of one integer": (
        tg.cast(tg.not_equal(tg.bit_and(I32, 1023), 1023), tg.f32), tg.cast(I32, tg.f32) * 0.0 + 1.0),
    "a bit made of many": (functools.reduce(tg.bit_and, [I32 // 2**k for k in range(1, 12)], I32), I32 * 0),
    "an integer through floor": (tg.cast(tg.equals(tg.floor(tg.cast(I32, tg.f32) * 0.5), 4.0), tg.f32), tg.cast(I32, tg.f32) * 0.0),
    "one row of a known table": (
        tg.square(tg.gather(TABLE, I32)), tg.gather(TABLE, I32)),
    "a polynomial modulo 2^32": (I32 * I32 * I32 * I32 * (1 << 28), I32 * I32 * (1 << 28) + I32 * 0),
    "a carry of a sum": (tg.cast(I32 + J32, tg.f32), tg.cast(I32, tg.f32) + tg.cast(J32, tg.f32)),
    "literals that are no tie": (tg.where(tg.less(tg.constant(0.3), tg.constant(0.1) + tg.constant(0.2 + 2.0**-40)), X, Y), Y),
    "a negative constant squared": (X * tg.sqrt(tg.constant(121.0)), X * -11.0),
    "the magnitude of a constant": (X * tg.abs(tg.constant(-13.0)), X * -13.0),
    "a prime of the field": (X * 824429759.0 * 825446159.0, X * 0.0),
    "a byte that wraps": (tg.cast(A * B, tg.f32), tg.cast(A, tg.f32) * tg.cast(B, tg.f32)),
    "a tie above a threshold": (tg.where(tg.bit_and(tg.equals(I32, J32), tg.less(100, I32)), 1, 0), I32 * 0),
}

EQUAL: dict[str, tuple[Node, Node]] = {
    "what bf16 does not hold": (
        tg.where(tg.equals(tg.cast(tg.cast(BF, tg.f32), tg.bf16), BF), 1.0, 0.0), tg.cast(BF, tg.f32) * 0.0 + 1.0),
    "cancellation inside of a composite": (
        tg.var(X + 1e8, axis=0), tg.mean(tg.square(X + 1e8), axis=0) - tg.square(tg.mean(X + 1e8, axis=0))),
    "an edge of floor": (tg.floor(X * (1.0 / 3.0) * 3.0), tg.floor(X)),
}

PROVED: dict[str, tuple[Node, Node]] = {
    "less moved": (X < Y, X * 1.0 + 3.0 < Y + 3.0),
    "less by a difference": (X < Y, tg.less(0.0, Y - X)),
    "a magnitude by a root": (tg.abs(X), tg.sqrt(X * X)),
    "a sum of three parts of signs": (sign(X), tg.where(tg.less(X, 0.0), -1.0, tg.where(tg.less(0.0, X), 1.0, 0.0))),
    "a tie that both have": (tg.where(X < Y, 1.0, tg.where(Y < X, 2.0, 3.0)), tg.where(Y < X, 2.0, tg.where(X < Y, 1.0, 3.0))),
    "bytes by carry": (A + B, (A ^ B) + tg.bit_and(A, B) * 2),
    "half of a byte": (tg.bit_and(A, 15) + A // 16 * 16, A),
    "literals that are a tie": (tg.where(tg.less(tg.constant(0.3), tg.constant(0.1) + tg.constant(0.2)), X, Y), Y),
    "a byte as a fraction": (tg.floor(tg.cast(A, tg.f32) * 0.25), tg.cast(A // 4, tg.f32)),
    "a threshold that both have": (tg.where(tg.iota((N,)) < 700, ROW, 0.0) * 2.0, tg.where(tg.iota((N,)) < 700, ROW + ROW, 0.0)),
    "added to one place, or by one hot": (
        tg.scatter(tg.input("t", (6,)), I32, tg.input("u", (4,)), mode="add"),
        tg.input("t", (6,)) + tg.one_hot(I32, size=6).T @ tg.input("u", (4,))),
    "a root of two roots": (X * tg.sqrt(tg.constant(143.0)), X * tg.sqrt(tg.constant(11.0)) * tg.sqrt(tg.constant(13.0))),
}


TESTED: dict[str, tuple[Node, Node]] = {
    "less scaled": (X < Y, X * 2.0 < Y * 2.0),                      # by signs that multiply, of which no tie is drawn
}


def verdict(pair: tuple[Node, Node]) -> EqualityVerdict:
    return equal(*(tg.graph({"o": side}) for side in pair))


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_on_an_edge_is_never_proved(name: str) -> None:
    result = verdict(DIFFERENT[name])
    assert not result.proved, result.show()


@pytest.mark.parametrize("name", ATTACKED)
def test_what_differs_at_few_inputs_or_sizes_is_never_proved(name: str) -> None:
    result = verdict(ATTACKED[name])
    assert not result.proved, result.show()


@pytest.mark.parametrize("name", UNSHOWN)
def test_what_float64_shows_wrongly_is_never_refuted(name: str) -> None:
    result = verdict(UNSHOWN[name])
    assert result.status == "unknown" and result.reason, result.show()


@pytest.mark.parametrize("name", TESTED)
def test_where_no_tie_was_drawn_agreement_is_tested(name: str) -> None:
    result = verdict(TESTED[name])
    assert result.status == "tested" and "ties" in result.reason, result.show()


@pytest.mark.parametrize("name", EQUAL)
def test_what_rounding_alone_tells_apart_is_never_refuted(name: str) -> None:
    result = verdict(EQUAL[name])
    assert result.status != "refuted", result.show()


@pytest.mark.parametrize("name", PROVED)
def test_what_follows_inside_of_the_fragment_is_proved(name: str) -> None:
    result = verdict(PROVED[name])
    assert result.proved, result.show()


def test_what_agrees_though_a_number_meets_a_size_is_tested_and_says_so() -> None:
    i = tg.iota((N,))
    result = verdict((tg.where(i < 40, ROW, 0.0), tg.where(tg.logical_not(tg.less(39, i)), ROW, 0.0)))
    assert result.status == "tested" and not result.proved and "meets a size" in result.reason
    assert result.show().startswith("not proved: the same wherever it was looked at") and "n = 41" in result.show()
    assert result.as_json()["verdict"] == "tested" and result.as_json()["reason"] == result.reason
    short = tg.dim("n", 1, 9)
    x, i = tg.input("r", (short,)), tg.iota((short,))
    assert verdict((tg.where(i < 4, x, 0.0), tg.where(tg.logical_not(tg.less(3, i)), x, 0.0))).proved       # all sizes are compared


def test_outputs_are_not_paired_by_place_where_a_name_is_common() -> None:
    result = equal(tg.graph({"u": X, "v": Y}), tg.graph({"w": X, "u": Y}))
    assert result.status == "unknown" and "'u'" in result.reason
    assert equal(tg.graph({"u": X + Y}), tg.graph({"v": Y + X})).proved


def test_every_atomic_op_has_a_row_and_no_cell_has_two() -> None:
    seen = [(op, kind) for row in decidable_fragment.TABLE for op in row.ops for kind in row.operands]
    assert len(seen) == len(set(seen))
    casts = {"cast to float", "cast to int", "cast a float to int", "cast to bool"}
    assert {op for op, _ in seen} == set(ATOMIC) - {"cast"} | casts | {"erf", "dot"}
    assert {row.answer for row in decidable_fragment.TABLE} == {"proved", "tested", "unknown"}


def as_markdown() -> str:
    """Return the table as Markdown for docs/equality.md: ops as rows, kinds of operand as columns, reasons as numbered notes."""
    reasons = list(dict.fromkeys(row.reason for row in decidable_fragment.TABLE))
    ops = list(dict.fromkeys(op for row in decidable_fragment.TABLE for op in row.ops))
    by_op = {(op, kind): row for row in decidable_fragment.TABLE for op in row.ops for kind in row.operands}
    lines = ["| op | " + " | ".join(decidable_fragment.OPERANDS) + " |", "|---" * (len(decidable_fragment.OPERANDS) + 1) + "|"]
    for op in ops:
        rows = (by_op.get((op, kind)) for kind in decidable_fragment.OPERANDS)
        cells = ("" if row is None else f"{row.answer} {reasons.index(row.reason) + 1}" for row in rows)
        lines.append(f"| {op} | " + " | ".join(cells) + " |")
    lines += ["", *(f"{k + 1}. {reason}" for k, reason in enumerate(reasons))]
    return "\n".join(lines)


def test_the_document_prints_the_table() -> None:
    document = Path(__file__).resolve().parents[2] / "docs" / "equality.md"
    assert as_markdown() in document.read_text(), "print as_markdown() into docs/equality.md"


def test_a_constant_has_the_sign_of_a_real_number_and_no_residue() -> None:
    for c in (11.0, 13.0, 17.0, 0.11, math.pi):
        assert not verdict((X * tg.sqrt(tg.constant(c) * tg.constant(c)), X * -c)).proved
