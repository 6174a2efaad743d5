"""Given integers: what differs at a few of their values only is never called equal, and what holds for all of them is proved."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.language.dtypes import parse_dtype
from tensor_graphs.language.node import Node
from tensor_graphs.proof.equality import EqualityVerdict, equal
from tensor_graphs.proof.errors import OutsideFragmentError
from tensor_graphs.proof.fingerprint import Points, compare
from tensor_graphs.proof.integer_inputs import Domain, draw

IDS, I6 = tg.input("ids", (4,), tg.i32), tg.input("i", (6,), tg.i32)
N, M, K = (tg.input(name, (), tg.i32) for name in "nmk")
F, G = (tg.input(name, (), tg.f32) for name in "fg")
A8, B8, C8 = (tg.input(name, (), tg.u8) for name in ("a8", "b8", "c8"))
U8, S8 = tg.input("u8", (3,), tg.u8), tg.input("s8", (3,), tg.i8)
P = [tg.input(f"p{k}", (), tg.bool_) for k in range(4)]
T = tg.parameter("t", (40, 2), tg.f32)
eq, both, either, odd = tg.equals, tg.bit_and, tg.bit_or, tg.bit_xor


def number(value: int, dtype: str = "i32") -> Node:
    return tg.constant(value, parse_dtype(dtype))


def as_float(x: Node) -> Node:
    return tg.cast(x, tg.f32)


def as_int(x: Node) -> Node:
    return tg.cast(x, tg.i32)


PAGED = IDS // 16 * 16 + IDS % 16 * 3
CLIPPED = tg.maximum(IDS, 0)

DIFFERENT: dict[str, tuple[Node, Node]] = {
    **{f"last row of {rows} dropped": (tg.gather(t, IDS, axis=0), tg.gather(t[:rows - 1], IDS, axis=0))
       for rows in (12, 40, 300, 3000) for t in [tg.parameter("t", (rows, 2), tg.f32)]},
    "last class dropped": (tg.dot(tg.one_hot(IDS, size=40), T), tg.dot(tg.one_hot(IDS, size=39), T[:39])),
    "last word dropped": (tg.embedding(T, IDS), tg.embedding(T[:39], IDS)),
    "rows beyond 30 hidden": (tg.gather(T, IDS, axis=0), tg.gather(T, tg.where(tg.less(IDS, 30), IDS, -1), axis=0)),
    "rows of a computed index": (tg.gather(T, PAGED, axis=0) * 2.0, tg.gather(T[:39], PAGED, axis=0) * 2.0),
    "two numbers at once": (tg.where(both(eq(N, 333), eq(M, 555)), F, G), G),
    "one number within another": (tg.where(eq(N, 333), tg.where(eq(M, 555), F, G), G), G),
    "two numbers by a product": (F * as_float(eq(N, 333)) * as_float(eq(M, 555)), F * 0.0),
    "three numbers at once": (tg.where(both(eq(N, 333), both(eq(M, 555), eq(K, 777))), F, G), G),
    "or and xor": (tg.where(either(eq(N, 333), eq(M, 555)), F, G), tg.where(odd(eq(N, 333), eq(M, 555)), F, G)),
    "two bytes at once": (tg.where(both(eq(A8, number(101, "u8")), eq(B8, number(202, "u8"))), F, G), G),
    "two remainders at once": (tg.where(both(eq(N % 64, 33), eq(M % 64, 55)), F, G), G),
    "a number and booleans": (tg.where(both(both(eq(N, 333), P[2]), both(P[3], P[0])), F, G),
                              tg.where(both(both(eq(N, 333), P[2]), both(P[3], P[1])), F, G)),
    "small here and large there": (tg.where(both(tg.less(I6[0], 3), tg.greater(I6[1], 2**20)), F, G), G),
    "the largest product": (as_int(A8) * as_int(B8) * as_int(C8) // 16581375, as_int(A8) * 0),
    "the largest remainder": (N * 7919 % 1000003 // 1000002 * K, N * 0 + K * 0),
    "the largest remainder of a square": (N * N % 1000003 // 1000002 * K, N * 0 + K * 0),
    "the largest remainder of bits": (odd(N, 0x12345678) % 1000003 // 1000002 * K, N * 0 + K * 0),
    "all bits set": (both(N * 40503, 4095) // 4095 * K, N * 0 + K * 0),
    "a rare carry": (as_float(odd(N, N + 1) // 2**20), F * 0.0),
    "a rare carry of a sum": (as_float(both(N + M, 2**20 - 1) + 1) * as_float((both(N + M, 2**20 - 1) + 1) // 2**20), F * 0.0),
    "a byte that wraps": (as_float(U8 + number(1, "u8")), as_float(U8) + 1.0),
    "a byte that has no opposite": (as_float(-S8), -as_float(S8)),
    "a byte whose complement wraps": (as_float(odd(S8, number(-1, "i8")) + number(1, "i8")), -as_float(S8)),
    "a byte that wraps before it is compared": (tg.where(tg.less(U8 + number(1, "u8"), number(4, "u8")), F, G),
                                                tg.where(tg.less(U8, number(3, "u8")), F, G)),
    "narrowed and widened": (as_int(tg.cast(N, tg.u8)), N),
}

EQUAL: dict[str, tuple[Node, Node]] = {
    "not less and at most": (tg.where(tg.less(N, 5), F, G), tg.where(tg.logical_not(tg.less_equal(number(5), N)), F, G)),
    "a table scaled before and behind": (tg.gather(T, IDS, axis=0) * 2.0, tg.gather(T * 2.0, IDS, axis=0)),
    "the same with a computed index": (tg.gather(T, PAGED, axis=0) * 2.0, tg.gather(T * 2.0, PAGED, axis=0)),
    "the same with a clipped index": (tg.gather(T, CLIPPED, axis=0) * 2.0, tg.gather(T * 2.0, CLIPPED, axis=0)),
    "one hot and gathered": (tg.dot(tg.one_hot(IDS, size=12), T[:12]), tg.gather(T[:12], IDS, axis=0)),
    "rotated by or and by xor": (either((N + M) * 8, (N + M) // 8), odd(either((N + M) * 8, (N + M) // 8), 0)),
    "doubled bytes": (U8 + U8, U8 * number(2, "u8")),
    "dequantised": (as_float(S8) * 2.0, as_float(S8) + as_float(S8)),
    "widened and doubled": (as_int(U8) * 2, as_int(U8) + as_int(U8)),
    "quotient and remainder": (N // 7 * 7 + N % 7, N),
    "a quotient and nothing": (N // 8 + 0, N // 8),
}


def verdict(pair: tuple[Node, Node]) -> EqualityVerdict:
    return equal(*(tg.graph({"o": side}) for side in pair))


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_at_a_few_integers_is_never_proved(name: str) -> None:
    for seed in range(3):
        result = equal(*(tg.graph({"o": side}) for side in DIFFERENT[name]), seed=seed)
        assert not result.proved, result.show()


@pytest.mark.parametrize("name", EQUAL)
def test_what_holds_for_all_integers_is_proved(name: str) -> None:
    result = verdict(EQUAL[name])
    assert result.proved, result.show()


def test_that_an_integer_wraps_at_one_value_is_seen() -> None:
    wraps = verdict((as_float(N + 1), as_float(N) + 1.0))
    assert not wraps.proved and not verdict((tg.where(tg.less(N + 1, 5), F, G), tg.where(tg.less(N, 4), F, G))).proved
    assert verdict((as_float(N) + as_float(N), as_float(N) * 2.0)).proved and verdict((as_float(N + 1), as_float(1 + N))).proved


def test_an_index_that_only_one_graph_computes_is_not_trusted() -> None:
    one, other = (tg.gather(T, i, axis=0) for i in (IDS * 3 // 3, IDS))
    with pytest.raises(OutsideFragmentError, match="an index that is computed"):
        compare(Points([[one], [other]]), {})
    assert verdict((one, other)).status == "unknown"


def test_every_threshold_and_every_gap_is_drawn() -> None:
    domain = Domain(np.asarray([-5, 3, 4, 100], dtype=object), np.empty(0), 4.0, (0.8, 0.0))
    drawn = draw(tg.i32, (3,), 400, domain, [1, 2])
    assert drawn.shape == (3, 400) and drawn.dtype == np.int32
    for row in drawn:
        assert {-5, 3, 4, 100} <= set(row.tolist())
        for low, high in ((-2**31, -6), (-4, 2), (5, 99), (101, 2**31 - 1)):
            assert ((row >= low) & (row <= high)).any()
    whole = draw(tg.u8, (), 5000, Domain(np.empty(0), np.empty(0), 8.0, (0.0, 0.0)), [3])
    assert set(whole.tolist()) == set(range(256))
