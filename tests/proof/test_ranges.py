"""Integers that the sizes determine are compared where their dtype no longer holds them, at the smallest such sizes."""

from __future__ import annotations

import tensor_graphs as tg
from tensor_graphs.language.node import walk
from tensor_graphs.proof import ranges
from tensor_graphs.proof.equality import equal

N = tg.dim("n", 1, 400)


def _found(node: tg.Node, *tested: dict[str, int], bits: bool = False) -> ranges.Ranges:
    return ranges.find(walk([node]), tested or ({"n": 4},), {"n": (1, 400)}, set(), bits)


def test_the_smallest_size_that_wraps_is_found_and_sizes_beyond_it() -> None:
    assert [b["n"] for b in _found(tg.iota((N,), 0, tg.u8)).added] == [257, 258, 261]
    assert [b["n"] for b in _found(tg.cast(tg.iota((N,)), tg.i8)).added] == [129, 130, 133]
    assert _found(tg.iota((N,), 0, tg.u8).sum(0)).added[0]["n"] == 24      # 0 + … + 23 is 276
    assert _found(tg.cast(tg.iota((N,)), tg.bf16), bits=True).added[0]["n"] == 258     # 257 is no bf16


def test_what_no_size_wraps_or_what_was_seen_to_wrap_needs_no_more() -> None:
    assert _found(tg.iota((N,), 0, tg.i16) * 81) == ranges.Ranges(())
    assert _found(tg.iota((N,), 0, tg.u8), {"n": 4}, {"n": 300}) == ranges.Ranges(())
    both = tg.cast(tg.iota((N,)) - 5, tg.u8)                # below 0 at once, above 255 from 262 on
    assert [b["n"] for b in _found(both, {"n": 9}).added] == [262, 263, 266]
    assert _found(tg.cast(tg.iota((N,)), tg.bf16)) == ranges.Ranges(())                 # floats are real numbers


def test_sizes_that_cannot_be_looked_at_make_a_verdict_unknown() -> None:
    n = tg.dim("n", 1, 10**7)
    x = tg.input("x", (n,))
    one, other = (x * tg.cast(tg.iota((n,), 0, dtype) * 512, tg.f32) for dtype in (tg.i32, tg.i64))
    verdict = equal(tg.graph(one), tg.graph(other))
    assert verdict.status == "unknown" and "may leave its range" in verdict.reason


def test_a_verdict_lists_the_sizes_at_which_integers_wrap() -> None:
    x, count = tg.input("x", (N,)), tg.iota((N,), 0, tg.u8)
    other = tg.cast(tg.iota((N,)), tg.u8)
    verdict = equal(tg.graph(x * tg.cast(count, tg.f32)), tg.graph(x * tg.cast(other, tg.f32)))
    assert verdict.status == "tested" and {"n": 257} in verdict.sizes


def test_casts_that_round_nothing_are_whole_numbers_within_what_the_float_holds() -> None:
    def held(node: tg.Node, **sizes: int) -> bool:
        return node in ranges.held(walk([node]), sizes)

    byte, short, flag = tg.input("u", (N,), tg.u8), tg.input("i", (N,), tg.i16), tg.input("b", (N,), tg.bool_)
    assert held(tg.cast(byte, tg.bf16), n=9) and not held(tg.cast(short, tg.f16), n=9) and held(tg.cast(short, tg.f32), n=9)
    count = tg.cast(tg.sum(tg.where(flag, tg.constant(1.0), tg.constant(0.0))), tg.bf16)
    assert held(count, n=256) and not held(count, n=257)
    assert not held(tg.cast(tg.cast(byte, tg.f32) * 0.5, tg.bf16), n=9)         # 0.5 is no whole number
    assert not held(tg.cast(tg.input("x", (N,)), tg.bf16), n=9)
    assert held(tg.cast(tg.sum(tg.cast(flag, tg.u8)), tg.bf16), n=300)          # wraps at 256
