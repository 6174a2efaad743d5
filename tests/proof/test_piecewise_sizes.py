"""The sizes at which min, max and // of dims show each of their sides are found, or missed aloud."""

from __future__ import annotations

import tensor_graphs as tg
from tensor_graphs.language.dims import dim_max, dim_min
from tensor_graphs.language.node import walk
from tensor_graphs.proof import piecewise_sizes
from tensor_graphs.proof.equality import equal

N, M = tg.dim("n", 1, 256), tg.dim("m", 1, 256)


def _found(count: tg.Dim, *tested: dict[str, int]) -> piecewise_sizes.Sides:
    symbols = {name: (s.lo, s.hi) for name, s in count.symbols.items()} if not isinstance(count, int) else {}
    return piecewise_sizes.find(walk([tg.constant(count, tg.f32)]), tested, symbols)


def test_min_is_seen_on_both_sides_next_to_its_border_and_on_it() -> None:
    sums = [b["n"] + b["m"] - 400 for b in _found(dim_min(N + M, 400), {"n": 4, "m": 3}).added]
    assert {-1, 0, 1} <= set(sums) and max(sums) > 1
    gaps = [b["n"] ** 2 for b in _found(dim_min(N * N, 5000), {"n": 4}).added]
    assert {70**2, 71**2} <= set(gaps)                      # 5000 is no square


def test_a_quotient_is_seen_at_both_ends_of_two_blocks() -> None:
    seen = {(b["n"] * b["m"]) % 97 for b in _found(N * M // 97, {"n": 4, "m": 3}).added}
    assert {0, 1, 96} <= seen
    blocks = {(b["n"] * b["m"]) // 97 for b in _found(N * M // 97, {"n": 4, "m": 3}).added if b["n"] * b["m"] % 97 == 96}
    assert len(blocks) >= 2


def test_what_was_compared_already_is_not_added() -> None:
    first = _found(dim_max(N, 100), {"n": 4})
    assert first.met == {"n": {100}} and not first.missing
    assert _found(dim_max(N, 100), {"n": 4}, *first.added).added == ()
    assert _found(N * N + 1, {"n": 4}).added == ()


def test_a_side_out_of_reach_is_said() -> None:
    n = tg.dim("n", 1, 10**9)
    assert "no sizes" in _found(dim_min(n, 5_000_000), {"n": 4}).missing
    x = tg.input("x", (n,))
    left, right = (tg.graph(x * tg.constant(c, tg.f32)) for c in (dim_min(n, 5_000_000), n))
    assert equal(left, right).status == "unknown"


def test_a_verdict_lists_the_sizes_that_were_looked_for_and_the_numbers_they_are_near() -> None:
    x, y = tg.input("x", (N,)), tg.input("y", (M,))
    product = N * M
    left = {"x": x * tg.constant(dim_min(product, 5000), tg.f32) + x * tg.constant(dim_max(product, 5000), tg.f32), "y": y}
    verdict = equal(tg.graph(left), tg.graph({"x": x * tg.constant(product + 5000, tg.f32), "y": y}))
    assert verdict.status == "tested" and verdict.tested_at == {"n": (5000,), "m": (5000,)}
    assert any(s["n"] * s["m"] == 5000 for s in verdict.sizes) and any(s["n"] * s["m"] > 5000 for s in verdict.sizes)
