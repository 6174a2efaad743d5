"""einsum against numpy.einsum, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensor_graphs as tg
from tensor_graphs.language.errors import AttributeValueError, ShapeError

SIZES = dict(zip("abcde", (2, 3, 1, 4, 5), strict=True))


def compared(equation: str, *shapes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    values = {f"x{i}": rng.normal(size=shape) for i, shape in enumerate(shapes)}
    node = tg.einsum(equation, *(tg.input(name, value.shape, tg.f64) for name, value in values.items()))
    expected = np.einsum(equation.replace("…", "..."), *values.values())
    assert node.shape == expected.shape
    np.testing.assert_allclose(tg.interpret(tg.graph(node), values).outputs["out"], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("equation", "shapes"), [
    ("ij,jk->ik", ((2, 3), (3, 4))), ("bij,bjk->bik", ((2, 3, 4), (2, 4, 5))), ("ij,ij->", ((2, 3), (2, 3))),
    ("ij->ji", ((2, 3),)), ("ij->i", ((2, 3),)), ("i,j->ij", ((2,), (3,))), ("ij,jk,kl->il", ((2, 3), (3, 4), (4, 5))),
    ("ba,cb", ((2, 3), (4, 2))), ("ba", ((2, 3),)), ("ab,cd->", ((2, 3), (4, 5))),
    ("bhqd,bhkd->bhqk", ((2, 2, 3, 4), (2, 2, 5, 4))), ("...ij,...jk->...ik", ((7, 2, 3, 4), (7, 2, 4, 5))),
    ("…ij,jk", ((7, 3, 4), (4, 5))), ("b...->...", ((2, 3, 4),)), (" ij , jk -> ik ", ((2, 3), (3, 4)))])
def test_an_equation_means_what_it_means_in_numpy(equation: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    compared(equation, *shapes)


@st.composite
def equations(draw: st.DrawFn) -> tuple[str, list[tuple[int, ...]]]:
    terms = draw(st.lists(st.permutations("abcde").flatmap(lambda p: st.integers(0, 4).map(lambda n: "".join(p[:n]))),
                          min_size=1, max_size=3))
    known = sorted(set("".join(terms)))
    result = "".join(draw(st.permutations(known))[:draw(st.integers(0, len(known)))])
    return f"{','.join(terms)}->{result}", [tuple(SIZES[letter] for letter in term) for term in terms]


@settings(max_examples=60)
@given(equations())
def test_any_equation_means_what_it_means_in_numpy(drawn: tuple[str, list[tuple[int, ...]]]) -> None:
    compared(drawn[0], *drawn[1])


def test_sizes_may_be_dims_and_a_product_is_one_dot() -> None:
    n = tg.dim("n", 1, 64)
    q, k = tg.input("q", (2, n, 4)), tg.input("k", (2, n, 4))
    scores = tg.einsum("hqd,hkd->hqk", q, tg.permute(k, (0, 1, 2)))
    assert scores.shape == (2, n, n) and [x.op.name for x in tg.graph(scores).nodes if x.op.kind == "composite"] == ["dot"]
    one = np.ones((2, 3, 4), np.float32)
    np.testing.assert_array_equal(tg.interpret(tg.graph(scores), {"q": one, "k": one}).outputs["out"], np.full((2, 3, 3), 4.0))


@pytest.mark.parametrize(("equation", "error", "why"), [
    ("ij,jk->iz", AttributeValueError, "the result names z, which no tensor has"),
    ("ij->i", AttributeValueError, "1 terms for 2 tensors"), ("ii,jk->i", AttributeValueError, "a diagonal is not supported"),
    ("ij,j1->i", AttributeValueError, "no letters"), ("ij,kj->ik", ShapeError, "the axis j has two sizes, 3 and 4"),
    ("ijk,jk->i", ShapeError, "names 3 axes of"), (7, AttributeValueError, "the equation is no text")])
def test_what_is_no_equation_is_refused(equation: str, error: type[Exception], why: str) -> None:
    a, b = tg.input("a", (2, 3)), tg.input("b", (3, 4))
    with pytest.raises(error) as caught:
        tg.einsum(equation, a, b)
    assert why in str(caught.value) and "fix:" in str(caught.value)
