"""Fingerprints: equal for equal functions whatever their wiring, different otherwise; sizes are chosen around what dims meet."""

from __future__ import annotations

import pytest

import tensor_graphs as tg
from tensor_graphs.language.dims import bounds
from tensor_graphs.proof.errors import OutsideFragmentError
from tensor_graphs.proof.fingerprint import Points, compare, fingerprint
from tensor_graphs.proof.normal_form import in_atoms
from tensor_graphs.proof.sizes import choose

N = tg.dim("n", 1, 4096)
X, Y = tg.input("x", (N, 6)), tg.input("y", (N, 6))


def points(a: tg.Node, b: tg.Node) -> Points:
    return Points([[a], [b]])


def test_a_fingerprint_is_of_the_function_not_of_its_wiring() -> None:
    a, b = tg.graph((X + Y) * (X - Y)), tg.graph(X * X - Y * Y)
    assert a.structural_key != b.structural_key and fingerprint(a) == fingerprint(b)
    assert fingerprint(a) != fingerprint(tg.graph(X * X + Y * Y))
    assert fingerprint(a) != fingerprint(a, seed=1) and fingerprint(a, {"n": 9}) == fingerprint(b, {"n": 9})


def test_a_softmax_has_one_fingerprint_however_it_is_written() -> None:
    e, s = tg.exp(X), tg.exp(X - Y[:, :1])
    assert fingerprint(tg.graph(tg.softmax(X))) == fingerprint(tg.graph(e / e.sum(1, keepdims=True))) == fingerprint(
        tg.graph(s / s.sum(1, keepdims=True)))


def test_rounding_counts_in_bits_mode_only() -> None:
    a, b = tg.graph(X), tg.graph(X.cast(tg.bf16).cast(tg.f32))
    assert fingerprint(a) == fingerprint(b) and fingerprint(a, bits=True) != fingerprint(b, bits=True)


def test_more_choices_need_more_points() -> None:
    few = compare(points(X + Y, Y + X), {"n": 4})
    one = compare(points(tg.maximum(X, Y) * 2.0, tg.maximum(Y, X) + tg.maximum(X, Y)), {"n": 4})
    row = compare(points(X.max(1) * 2.0, X.max(1) + X.max(1)), {"n": 4})
    assert few.equal and one.equal and row.equal
    assert few.points < 24 <= one.points < row.points
    assert max(few.probability, one.probability, row.probability) <= 2.0**-24


def test_the_sign_of_a_root_that_another_determines_is_a_choice() -> None:
    agreement = compare(points(tg.sqrt(X * X) * 2.0, tg.sqrt(X * X) + tg.sqrt(X * X)), {"n": 4})
    assert agreement.equal and agreement.points >= 24
    free = compare(points(tg.sqrt(X) * 2.0, tg.sqrt(X) + tg.sqrt(X)), {"n": 4})
    assert free.equal and free.points < 24


def test_too_many_choices_are_outside_of_the_fragment() -> None:
    x = tg.relu(tg.input("v", (40,)))
    with pytest.raises(OutsideFragmentError, match="40 choices"):
        compare(points(tg.prod(x), tg.prod(x) * 1.0), {})


@pytest.mark.parametrize("build", [
    lambda: tg.cast(X, tg.i32), lambda: tg.bitcast(X, tg.u32), lambda: X - tg.constant(float("inf")) * Y,
    lambda: tg.log(tg.sin(X) * 0.0) + 1.0,
])
def test_what_exact_arithmetic_knows_nothing_of_is_said(build) -> None:
    root = build()
    with pytest.raises(OutsideFragmentError):
        compare(points(root, root + root - root), {"n": 4})


def test_masks_are_exact_and_minus_infinity_is_a_symbol() -> None:
    mask = tg.iota((N, 6), 1) < 3
    a = tg.softmax(tg.where(mask, X, -float("inf")))
    b = tg.concat(tg.softmax(X[:, :3]), Y[:, 3:] * 0.0, axis=1)
    assert compare(points(a, b), {"n": 3}).equal


def test_sizes_are_generic_small_and_around_what_meets_a_dim() -> None:
    windowed = in_atoms([tg.where(tg.iota((N, 6), 0) < 40, X, 0.0)])
    chosen = choose(windowed, {"n": bounds(N)})
    sizes = {b["n"] for b in chosen.bindings}
    assert {1, 2, 39, 40, 41, 81} <= sizes and chosen.met == {"n": (40,)} and 6 not in sizes - {1, 2}
    plain = choose(in_atoms([X + 1.0]), {"n": bounds(N)})
    assert len(plain.bindings) == 4 and not plain.met
    blocked = choose(in_atoms([tg.input("v", (N,))[:N // 16 * 16]]), {"n": bounds(N)})
    assert {32, 33, 47} <= {b["n"] for b in blocked.bindings}


def test_the_two_lists_of_outputs_may_have_several_dtypes() -> None:
    i = tg.input("i", (N,), tg.i32)
    both = Points([[X + Y, i // 2, i < 3], [Y + X, i + i // 2 - i, tg.greater(3, i)]])
    assert compare(both, {"n": 4}).equal
    assert not compare(points(i // 2, i // 4), {"n": 4}).equal
