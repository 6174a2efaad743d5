"""Signatures: what makes two of them one question, and what their names are for."""

from __future__ import annotations

import tensor_graphs as tg
from tensor_graphs.costs.roofline import work
from tensor_graphs.kernels.signature import signature_of

N, M = tg.dim("n", 1, 64), tg.dim("m", 1, 64)


def test_names_are_no_part_of_the_key_and_part_of_the_signature() -> None:
    one, other = (signature_of(tg.iota((size, 8), 0, tg.i32)) for size in (N, M))
    assert one.key == other.key and one != other
    assert one == signature_of(tg.iota((N, 8), 0, tg.i32))


def test_dims_that_change_places_make_another_signature_of_the_same_key() -> None:
    x, y = tg.input("x", (N, 8), tg.f32), tg.input("y", (M, 8), tg.f32)
    one, other = signature_of(tg.linear(x, y)), signature_of(tg.linear(y, x))
    assert one.key == other.key and one != other
    assert one.axes({"n": 3, "m": 5}) == {"d0": 3, "d1": 5} and other.axes({"n": 3, "m": 5}) == {"d0": 5, "d1": 3}


def test_the_attributes_that_are_not_at_their_defaults_are_in_words() -> None:
    x, w = tg.input("x", (N, 8), tg.f32), tg.input("w", (8,), tg.f32)
    assert signature_of(tg.rms_norm(x)).attributes() == "" == signature_of(tg.relu(x)).attributes()
    assert signature_of(tg.rms_norm(x, w, eps=1e-2, offset=1.0)).attributes() == "eps=0.01, offset=1.0"
    assert signature_of(tg.reduce_max(x, 1)).attributes() == "axes=(1,)"


def test_what_is_remembered_of_a_signature_is_asked_with_its_own_dims() -> None:
    for name in ("batch", "rows"):
        signature = signature_of(tg.iota((tg.dim(name, 1, 32), 4), 0, tg.f32))
        assert work(signature, ((name, 7),))[0] == 7 * 4 * 4
