"""proof/sizes_as_dims.py: what is too large to compute with is proved at any size, and only where it is the same graph there."""

from __future__ import annotations

import pytest

import tensor_graphs as tg
from tensor_graphs.language.node import Node
from tensor_graphs.proof.equality import equal
from tensor_graphs.proof.normal_form import in_atoms
from tensor_graphs.proof.sizes_as_dims import with_dims

SIZES = [(7, 256, 512), (33, 311, 1023), (512, 512, 512), (2048, 2048, 5632)]


def operands(rows: int, width: int, outputs: int) -> tuple[Node, Node, Node]:
    return tg.input("x", (rows, width)), tg.input("g", (width,)), tg.input("w", (outputs, width))


def norm_linear(*sizes: int) -> tg.Graph:
    x, g, w = operands(*sizes)
    return tg.graph(tg.linear(tg.rms_norm(x, g, eps=1e-6), w))


def in_other_words(*sizes: int, eps: float = 1e-6, count: int = 0) -> tg.Graph:
    """count: the number by which the sum is divided, the width by default."""
    x, g, w = operands(*sizes)
    squares = tg.sum(x * x, axis=-1, keepdims=True) * (1.0 / (count or sizes[1]))
    return tg.graph(tg.dot(x * g, tg.permute(w, (1, 0))) / tg.sqrt(squares + eps))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_two_wordings_are_proved_the_same_at_sizes_too_large_to_compute_with(sizes: tuple[int, ...]) -> None:
    verdict = equal(norm_linear(*sizes), in_other_words(*sizes))
    assert verdict.proved, verdict.show()
    assert all(at.keys() == {f"size{s}" for s in sizes if s > 16} for at in verdict.sizes)


@pytest.mark.parametrize("wrong", [in_other_words(*SIZES[0], eps=1e-5), in_other_words(*SIZES[0], count=255),
                                   in_other_words(*SIZES[0], count=512)], ids=["eps", "count", "another size"])
def test_a_number_that_differs_is_refuted_at_these_sizes_too(wrong: tg.Graph) -> None:
    assert equal(norm_linear(*SIZES[0]), wrong).status == "refuted"


def test_a_number_that_is_a_size_by_chance_stays_a_number_in_one_of_the_ways() -> None:
    """512.0 is the width in one reading, and a factor that both have in the other."""
    x = tg.input("x", (4096, 512))
    a, b = tg.graph(tg.sum(x * 512.0, axis=0)), tg.graph(512.0 * tg.sum(x, axis=0))
    assert equal(a, b).proved
    assert len(list(with_dims(in_atoms([*a.roots, *b.roots])))) >= 2


def test_a_sum_that_leaves_the_last_of_many_columns_out_is_not_proved() -> None:
    """A sum of 5,000 columns, and of all but the last of them."""
    x = tg.input("x", (5000, 5000))
    a = tg.graph(tg.sum(x, axis=-1))
    b = tg.graph(tg.sum(x[:, :4999], axis=-1))
    assert not equal(a, b).proved


def test_products_of_sizes_and_numbers_inside_of_dims_become_dims() -> None:
    n = tg.dim("n", 1, 4096)
    x = tg.input("x", (n, 640, 128))
    (over_dims, *_) = with_dims(in_atoms(tg.graph(tg.reshape(x, (n * 640, 128)) * 2.0).roots))
    assert [str(s) for s in over_dims[0].shape] == ["n*size640", "size128"]
    (whole, *_) = with_dims(in_atoms(tg.graph(tg.reshape(tg.input("y", (640, 128)), (640 * 128,)) * 2.0).roots))
    assert str(whole[0].shape[0]) == "size128*size640"


def test_small_sizes_and_sizes_that_a_number_cuts_stay_as_they_are() -> None:
    assert not list(with_dims(in_atoms(tg.graph(tg.input("x", (4, 16)) * 2.0).roots)))
    rotated = tg.input("x", (2000, 64))[:, 32:] * 2.0              # half of 64 is no half of every dim
    assert [tuple(map(str, over_dims[0].shape)) for over_dims in with_dims(in_atoms([rotated]))] == [("size2000", "32")]


def test_roundings_count_in_mode_bits_so_that_numbers_stay_numbers() -> None:
    x = tg.input("x", (4096, 512))
    flat = in_atoms([tg.sum(x, axis=0) * (1.0 / 512)])

    def has_reciprocals(bits: bool) -> list[bool]:
        return [any(n.is_op("reciprocal") for n in tg.graph(over_dims[0]).nodes) for over_dims in with_dims(flat, bits)]

    assert any(has_reciprocals(False)) and not any(has_reciprocals(True))
