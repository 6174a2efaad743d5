"""Indexing composites against numpy and torch, by their definitions and by `direct`; order, ties and NaN are pinned."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tensor_graphs as tg
from tensor_graphs.language.conditions import all_hold, conditions_of
from tensor_graphs.language.errors import AttributeValueError, DTypeError, ShapeError
from tests.language.agreement import both_ways, check, check_gradients
from tests.language.messages import said

INF, NAN = float("inf"), float("nan")
AWKWARD = st.sampled_from([0.0, -0.0, 1.0, 2.0, -1.0, INF, -INF, NAN])


# ---- embedding, one_hot ----------------------------------------------------------------------------------------------


def test_an_embedding_reads_rows_scales_them_and_is_zero_out_of_range():
    table = np.random.default_rng(1).normal(size=(6, 3))
    ids = np.array([[0, 5, 2], [-1, 6, 5]], dtype=np.int32)
    expected = np.where(((ids >= 0) & (ids < 6))[..., None], table[np.clip(ids, 0, 5)], 0.0)
    t, i = tg.input("t", table.shape, tg.bf16), tg.input("i", ids.shape, tg.i32)
    check(tg.embedding(t, i), expected, t=table, i=ids)
    check(tg.embedding(t, i, scale=2.5), expected * 2.5, t=table, i=ids)
    assert tg.embedding(t, i).dtype == tg.f32 and tg.embedding(t, i, dtype=tg.bf16).dtype == tg.bf16
    check(tg.embedding(tg.input("t", (0, 3)), i), np.zeros((2, 3, 3)), t=np.zeros((0, 3)), i=ids)


def test_the_gradient_of_an_embedding_adds_up_where_an_id_is_used_twice():
    table, ids = np.random.default_rng(2).normal(size=(5, 3)), np.array([1, 4, 1, 0])
    tt = torch.tensor(table, requires_grad=True)
    node = tg.embedding(tg.input("t", table.shape), tg.input("i", (4,), tg.i64), scale=3.0)
    check_gradients(node, torch.nn.functional.embedding(torch.tensor(ids), tt) * 3.0, {"t": tt}, t=table, i=ids)


def test_one_hot_is_one_at_the_id_and_nothing_out_of_range():
    ids = np.array([[0, 3], [7, -1]], dtype=np.int32)
    expected = (ids[..., None] == np.arange(4)).astype(float)
    check(tg.one_hot(tg.input("i", ids.shape, tg.i32), size=4), expected, i=ids)
    n = tg.dim("n", 1, 8)
    node = tg.one_hot(tg.input("i", ids.shape, tg.i32), size=n, dtype=tg.bool_)
    assert node.shape == (2, 2, n)
    check(node, expected.astype(bool), {"n": 4}, i=ids)


# ---- concat, stack, flip ---------------------------------------------------------------------------------------------


@settings(derandomize=True, max_examples=40, deadline=None)
@given(data=st.data(), shape=hnp.array_shapes(min_dims=1, max_dims=3, max_side=3), seed=st.integers(0, 2**32 - 1))
def test_concat_and_stack_are_those_of_numpy(data, shape, seed):
    rng = np.random.default_rng(seed)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    sizes = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    arrays = [rng.normal(size=[k if i == axis % len(shape) else s for i, s in enumerate(shape)]) for k in sizes]
    values = {f"x{i}": a for i, a in enumerate(arrays)}
    joined = tg.concat(*(tg.input(name, a.shape) for name, a in values.items()), axis=axis)
    check(joined, np.concatenate(arrays, axis), **values)
    same = {f"x{i}": rng.normal(size=shape) for i in range(len(sizes))}
    stacked = tg.stack(*(tg.input(name, a.shape) for name, a in same.items()), axis=axis)
    check(stacked, np.stack(list(same.values()), axis), **same)


def test_concat_keeps_infinities_and_nan_in_their_place():
    a, b = np.array([INF, NAN]), np.array([-INF, 0.0])
    check(tg.concat(tg.input("a", (2,)), tg.input("b", (2,))), np.concatenate([a, b]), a=a, b=b)


def test_concat_of_booleans_and_of_symbolic_sizes():
    n = tg.dim("n", 0, 8)
    a, b = np.array([True, False, True]), np.array([False, True])
    node = tg.concat(tg.input("a", (n,), tg.bool_), tg.input("b", (2,), tg.bool_), tg.input("a", (n,), tg.bool_))
    assert node.shape == (2 * n + 2,)
    check(node, np.concatenate([a, b, a]), {"n": 3}, a=a, b=b)


def test_the_gradient_of_concat_is_cut_into_its_pieces():
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, 3)), rng.normal(size=(2, 1))
    ta, tb = (torch.tensor(v, requires_grad=True) for v in (a, b))
    node = tg.concat(tg.input("a", a.shape), tg.input("b", b.shape), axis=-1)
    check_gradients(node, torch.cat([ta, tb], -1), {"a": ta, "b": tb}, a=a, b=b)


def test_flip_reverses_the_axes_it_is_given():
    x = np.random.default_rng(4).normal(size=(2, 3, 2))
    check(tg.flip(tg.input("x", x.shape), axis=1), x[:, ::-1], x=x)
    check(tg.flip(tg.input("x", x.shape), axis=(0, -1)), x[::-1, :, ::-1], x=x)
    n = tg.dim("n", 1, 8)
    check(tg.flip(tg.input("x", (n, 3, 2)), axis=0), x[::-1], {"n": 2}, x=x)


def test_joining_says_what_does_not_fit():
    a, b = tg.input("a", (2, 3)), tg.input("b", (3, 3))
    assert said(lambda: tg.concat(a, b, axis=1), ShapeError) == (
        "ShapeError at HERE: concat of f32[2, 3] and f32[3, 3] along axis 1: axis 0 has two sizes, 2 and 3\n"
        "  fix: only the joined axis may differ")
    assert said(lambda: tg.concat(a, tg.input("c", (3,))), ShapeError) == (
        "ShapeError at HERE: concat of f32[2, 3] and f32[3]: the ranks 2 and 1 differ\n"
        "  fix: concat joins along an axis they have; stack makes a new one")
    assert said(lambda: tg.concat(), ShapeError) == "ShapeError at HERE: concat of nothing\n  fix: at least one tensor"
    assert said(lambda: tg.concat(a, b.cast(tg.f16)), DTypeError) == (
        "DTypeError at HERE: concat of f32[2, 3] and f16[3, 3]: the dtypes differ and nothing is promoted\n"
        "  fix: cast one of them: x.cast(tg.f32)")
    assert said(lambda: tg.stack(a, b), ShapeError) == (
        "ShapeError at HERE: stack of f32[2, 3] and f32[3, 3]: axis 0 has two sizes, 2 and 3\n"
        "  fix: slice, expand or reshape one of them")


# ---- argmax, topk ----------------------------------------------------------------------------------------------------


@settings(derandomize=True, max_examples=40, deadline=None)
@given(x=hnp.arrays(np.float64, hnp.array_shapes(min_dims=1, max_dims=3, max_side=4), elements=AWKWARD), data=st.data())
def test_argmax_is_that_of_numpy_first_of_equals_and_nan_above_all(x, data):
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    check(tg.argmax(tg.input("x", x.shape), axis=axis), np.argmax(x, axis), x=x)


@pytest.mark.parametrize("dtype", [tg.i8, tg.u64], ids=str)
def test_argmax_of_integers_at_the_ends_of_their_range(dtype):
    x = np.array([[dtype.min, dtype.max, dtype.max], [dtype.min] * 3], dtype=dtype.numpy)
    check(tg.argmax(tg.input("x", x.shape, dtype)), [1, 0], x=x)


def test_argmax_of_no_elements_is_refused():
    assert said(lambda: tg.argmax(tg.input("x", (2, 0))), ShapeError) == (
        "ShapeError at HERE: argmax of f32[2, 0] along axis 1: nothing is the largest of no elements")


@settings(derandomize=True, max_examples=40, deadline=None)
@given(x=hnp.arrays(np.float64, (2, 3), elements=AWKWARD), weight=hnp.arrays(np.float64, (4, 3), elements=AWKWARD))
def test_linear_argmax_is_the_argmax_of_linear_and_its_value(x, weight):
    with np.errstate(all="ignore"):
        full = x @ weight.T
    index = np.argmax(full, 1)
    arrays = {"x": x, "weight": weight}
    for value, found in both_ways(list(tg.linear_argmax(tg.input("x", x.shape), tg.input("weight", weight.shape))), arrays):
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, index)
        np.testing.assert_array_equal(value, full[np.arange(2), index])


def test_linear_argmax_over_no_rows_is_refused():
    assert said(lambda: tg.linear_argmax(tg.input("x", (2, 3)), tg.input("w", (0, 3))), ShapeError) == (
        "ShapeError at HERE: linear_argmax of the weight f32[0, 3]: nothing is the largest of no rows")


@settings(derandomize=True, max_examples=40, deadline=None)
@given(x=hnp.arrays(np.float64, hnp.array_shapes(min_dims=1, max_dims=2, max_side=6), elements=AWKWARD), data=st.data())
def test_topk_gives_the_largest_first_equals_by_index_and_nan_above_all(x, data):
    k = data.draw(st.integers(0, x.shape[-1]))
    # numpy's order, largest first: NaN, then falling; a stable sort of what is negated keeps equal ones by index
    key = np.where(np.isnan(x), -INF, -x)
    order = np.lexsort((np.broadcast_to(np.arange(x.shape[-1]), x.shape), key, ~np.isnan(x)), axis=-1)[..., :k]
    for values, indices in both_ways(list(tg.topk(tg.input("x", x.shape), k=k)), {"x": x}):
        assert indices.dtype == np.int32
        np.testing.assert_array_equal(indices, order)
        np.testing.assert_array_equal(values, np.take_along_axis(x, order, -1))


def test_topk_of_integers_and_of_a_symbolic_size():
    x = np.random.default_rng(5).integers(0, 4, (2, 7)).astype(np.uint8)
    n = tg.dim("n", 3, 16)
    expected = np.argsort(-x.astype(int), axis=-1, kind="stable")[:, :3]
    for values, indices in both_ways(list(tg.topk(tg.input("x", (2, n), tg.u8), k=3)), {"x": x}, {"n": 7}):
        np.testing.assert_array_equal(indices, expected)
        np.testing.assert_array_equal(values, np.take_along_axis(x, expected, -1))


def test_the_gradient_of_topk_goes_back_to_where_the_values_came_from():
    x = np.random.default_rng(6).normal(size=(2, 5))
    tx = torch.tensor(x, requires_grad=True)
    values, _ = tg.topk(tg.input("x", x.shape), k=3)
    check_gradients(values, torch.topk(tx, 3).values, {"x": tx}, x=x)


def test_topk_of_more_than_there_is_is_refused():
    assert said(lambda: tg.topk(tg.input("x", (2, 3)), k=4), AttributeValueError) == (
        "AttributeValueError at HERE: topk: 4 of f32[2, 3]\n  fix: an int from 0 to 3")


# ---- cumsum, prod ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_cumsum_is_that_of_numpy_with_the_gradient_of_torch(axis):
    x = np.random.default_rng(7).normal(size=(3, 4, 2))
    tx = torch.tensor(x, requires_grad=True)
    node = tg.cumsum(tg.input("x", x.shape), axis=axis)
    check(node, np.cumsum(x, axis), x=x)
    check_gradients(node, torch.cumsum(tx, axis), {"x": tx}, x=x)


def test_an_infinity_in_a_cumsum_does_not_reach_what_lies_before_it():
    x = np.array([1.0, 2.0, INF, 3.0])
    check(tg.cumsum(tg.input("x", (4,))), np.cumsum(x), x=x)


def test_cumsum_of_integers_wraps_and_takes_symbolic_sizes():
    x = np.full(5, 100, np.uint8)
    check(tg.cumsum(tg.input("x", (tg.dim("n", 1, 8),), tg.u8)), np.cumsum(x, dtype=np.uint8), {"n": 5}, x=x)


@pytest.mark.parametrize("axes", [None, 0, (0, 2), (-1,), ()])
def test_prod_is_that_of_numpy(axes):
    x = np.random.default_rng(8).normal(size=(3, 4, 5))
    check(tg.prod(tg.input("x", x.shape), axis=axes), np.prod(x, axis=axes), x=x)


@pytest.mark.parametrize("size", range(1, 10))
def test_prod_over_a_symbolic_size_is_right_at_every_size(size):
    x = np.random.default_rng(size).normal(size=(size, 2))
    check(tg.prod(tg.input("x", (tg.dim("n", 1, 9), 2)), axis=0), np.prod(x, axis=0), {"n": size}, x=x)


def test_prod_of_nothing_is_one_and_integers_wrap():
    check(tg.prod(tg.input("x", (0, 2)), axis=0), np.ones(2), x=np.zeros((0, 2)))
    x = np.array([200, 3, 7], np.uint8)
    check(tg.prod(tg.input("x", (3,), tg.u8)), np.prod(x, dtype=np.uint8), x=x)


def test_the_gradient_of_a_product_is_right_where_a_factor_is_zero():
    x = np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 4.0]])
    tx = torch.tensor(x, requires_grad=True)
    check_gradients(tg.prod(tg.input("x", x.shape), axis=1), torch.prod(tx, 1), {"x": tx}, x=x)


def test_a_product_over_a_dim_without_a_real_bound_is_refused():
    n = tg.dim("n", 1, 2**40)
    assert said(lambda: tg.prod(tg.input("x", (n,))), ShapeError) == (
        "ShapeError at HERE: prod of f32[n]: axis 0 may be 1099511627776 long, the most is 16777216\n"
        "  fix: a smaller bound of the dim, or two products over a reshaped tensor")


@pytest.mark.parametrize(("dtype", "value", "size", "ones"), [
    (tg.i8, -126, 200, []), (tg.u8, 5, 300, [5]), (tg.u8, 200, 300, [200])])
def test_places_beyond_the_largest_id_are_nobodys(dtype: tg.DType, value: int, size: int, ones: list[int]) -> None:
    graph = tg.graph(tg.one_hot(tg.input("i", (), dtype), size=size))
    found = tg.interpret(graph, {"i": np.array(value, dtype.numpy)}).outputs["out"]
    assert np.flatnonzero(found).tolist() == ones


# ---- split -----------------------------------------------------------------------------------------------------------


def test_split_cuts_into_equal_parts_or_into_parts_of_given_sizes():
    x = np.arange(24.0).reshape(2, 12)
    node, n = tg.input("x", x.shape), tg.dim("n", 1, 9)
    for parts, at in ((3, [4, 8]), ([5, 7], [5]), ([2, 0, 10], [2, 2])):
        for piece, expected in zip(tg.split(node, parts, axis=1), np.split(x, at, axis=1), strict=True):
            check(piece, expected, x=x)
    first, rest = tg.split(tg.input("y", (n + 3, 2)), [n, 3])
    assert first.shape == (n, 2) and rest.shape == (3, 2)


def test_a_split_that_does_not_fit_is_refused():
    x = tg.input("x", (2, 12))
    for parts, error, why in ((5, AttributeValueError, "into 5 equal parts"), (0, AttributeValueError, "equal parts"),
                              ([5, 6], ShapeError, "add up to 11"), (2.5, AttributeValueError, "parts is")):
        with pytest.raises(error, match=why):
            tg.split(x, parts, axis=1)


@pytest.mark.parametrize("given", [[], [tg.input("x", (2,))], 3.0, "x"], ids=str)
def test_stack_of_what_is_no_tensor_is_refused(given):
    with pytest.raises(DTypeError, match=r"(?s)stack: operand 'xs' is .*fix: tg\.stack\(x, y, axis=0\)"):
        tg.stack(given)


@pytest.mark.parametrize("index_of", [lambda x: tg.argmax(x), lambda x: tg.topk(x, k=1)[1]], ids=["argmax", "topk"])
def test_indices_of_more_elements_than_i32_counts_are_refused_and_none_is_negative(index_of):
    with pytest.raises(ShapeError, match=r"indices are i32, and axis \d has more than 2\^31 elements\n(.*\n)?  fix: reshape"):
        index_of(tg.input("x", ((1 << 31) + 1,), tg.i8))
    index_of(tg.input("x", (1 << 31,), tg.i8))
    n = tg.dim("n", 1, 1 << 32)
    conditions = conditions_of([index_of(tg.input("x", (n,), tg.i8))])
    assert [c.wanted for c in conditions] == ["n ≤ 2147483648"]
    assert all_hold(conditions, {"n": 1 << 31}) and not all_hold(conditions, {"n": (1 << 31) + 1})
