"""Operators and indexing: they broadcast and slice as numpy does, and say in words why they cannot."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tensor_graphs as tg
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language.errors import AttributeValueError, DTypeError, NoValueError, ShapeError
from tensor_graphs.language.leaves import CONSTANT
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import interpret
from tests.language.messages import said

X = tg.input("x", (4, 5, 6))
K = tg.input("i", (4, 5), tg.i32)
N = tg.dim("n", 1, 64)
S = tg.input("s", (N, 8))


def value_of(node: Node, dims: dict[str, int] | None = None, **inputs: Any) -> np.ndarray:
    return np.asarray(interpret(tg.graph(node), inputs, dims=dims).outputs["out"])


# ---- operators -------------------------------------------------------------------------------------------------------

ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
    "//": lambda a, b: a // b, "%": lambda a, b: a % b, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
}
BITS: dict[str, Callable[[Any, Any], Any]] = {
    "&": lambda a, b: a & b, "|": lambda a, b: a | b, "^": lambda a, b: a ^ b, "+": lambda a, b: a + b,
    "-": lambda a, b: a - b, "*": lambda a, b: a * b,
}
SHAPES = hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=3)


@settings(derandomize=True, max_examples=25, deadline=None)
@given(shapes=SHAPES, seed=st.integers(0, 2**32 - 1))
@pytest.mark.parametrize("symbol", ARITHMETIC)
def test_an_operator_broadcasts_and_computes_as_numpy_does(symbol, shapes, seed):
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(1, 9, size=s) / 2 for s in shapes.input_shapes)
    op = ARITHMETIC[symbol]
    node = op(tg.input("a", a.shape), tg.input("b", b.shape))
    assert node.shape == shapes.result_shape
    np.testing.assert_allclose(value_of(node, a=a, b=b), op(a, b), rtol=1e-14)


@settings(derandomize=True, max_examples=15, deadline=None)
@given(shapes=SHAPES, seed=st.integers(0, 2**32 - 1))
@pytest.mark.parametrize("symbol", BITS)
@pytest.mark.parametrize("dtype", ["i8", "u32", "i64"])
def test_an_operator_on_integers_wraps_as_numpy_does(symbol, dtype, shapes, seed):
    kind = tg.parse_dtype(dtype)
    info = np.iinfo(kind.numpy)
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(info.min, info.max, size=s, dtype=kind.numpy, endpoint=True) for s in shapes.input_shapes)
    with np.errstate(over="ignore"):
        expected = np.asarray(BITS[symbol](a, b))
    found = value_of(BITS[symbol](tg.input("a", a.shape, kind), tg.input("b", b.shape, kind)), a=a, b=b)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("symbol", ["+", "-", "*", "/", "//", "%"])
def test_a_python_number_stands_on_either_side_and_takes_the_dtype_of_the_tensor(symbol):
    op, values = ARITHMETIC[symbol], np.array([1.5, -2.0, 4.0, 0.5])
    x = tg.input("x", (4,), tg.bf16)
    for node, expected in ((op(x, 3), op(values, 3)), (op(3, x), op(3, values)), (op(2.5, x), op(2.5, values))):
        assert node.dtype == tg.bf16
        np.testing.assert_allclose(value_of(node, x=values), expected, rtol=1e-14)


def test_a_numpy_scalar_on_the_left_leaves_the_operator_to_the_tensor():
    node = np.float32(2.0) * X
    assert isinstance(node, Node) and node.op.name == "mul" and node.shape == X.shape


def test_a_dim_beside_a_tensor_has_its_value_at_run_time():
    values = np.arange(24.0).reshape(3, 8)
    np.testing.assert_allclose(value_of(S * N, dims={"n": 3}, s=values), values * 3)


def test_negation_of_unsigned_integers_wraps():
    values = np.array([0, 1, 2**32 - 1], dtype=np.uint32)
    np.testing.assert_array_equal(value_of(-tg.input("u", (3,), tg.u32), u=values), np.negative(values))


def test_inversion_is_not_for_booleans_and_all_bits_for_integers():
    flags, numbers = np.array([True, False]), np.array([0, -7], dtype=np.int32)
    np.testing.assert_array_equal(value_of(~tg.input("b", (2,), tg.bool_), b=flags), ~flags)
    np.testing.assert_array_equal(value_of(~tg.input("i", (2,), tg.i32), i=numbers), ~numbers)


def test_equality_of_tensors_asks_for_the_same_node_and_equals_for_the_same_values():
    assert (X == X) is True and (X == K) is False
    assert tg.equals(X, X).dtype == tg.bool_


def test_the_at_operator_is_dot():
    a, b = tg.input("a", (2, 3)), tg.input("b", (3, 4))
    assert (a @ b) is tg.dot(a, b) and (a @ b).shape == (2, 4)


def test_methods_say_the_same_as_functions():
    assert X.cast(tg.f16) is tg.cast(X, tg.f16)
    assert X.reshape(20, 6) is X.reshape((20, 6)) is tg.reshape(X, (20, 6))
    assert X.permute(2, 0, 1) is tg.permute(X, (2, 0, 1))
    assert X.T is X.transpose(1, 2) is tg.permute(X, (0, 2, 1))
    assert X.sum(1).shape == (4, 6) and X.sum(1, keepdims=True).shape == (4, 1, 6)
    assert X.max().shape == () and X.max((0, 2), keepdims=True).shape == (1, 5, 1)


def test_operators_refuse_sizes_that_do_not_stretch():
    assert said(lambda: X + tg.input("y", (4, 1)), ShapeError) == (
        "ShapeError at HERE: add of f32[4, 5, 6] and f32[4, 1]: axis 1 (counted from the front of the result) has two "
        "sizes, 5 and 4\n  fix: sizes must be equal, or one of them 1; reshape or slice one operand")


def test_operators_refuse_two_dtypes():
    assert said(lambda: X - X.cast(tg.f16), DTypeError) == (
        "DTypeError at HERE: sub of f32[4, 5, 6] and f16[4, 5, 6]: the dtypes differ and nothing is promoted\n"
        "  fix: cast one of them: x.cast(tg.f32)")


def test_a_float_beside_integers_is_refused():
    assert said(lambda: K + 0.5, DTypeError) == (
        "DTypeError at HERE: the number 0.5 beside a tensor of i32\n  fix: cast the tensor to a float dtype first")


def test_integers_have_no_true_division():
    assert said(lambda: K / 2, DTypeError) == (
        "DTypeError at HERE: div of i32[4, 5] and i32[4, 5]: integers have no /\n"
        "  fix: x // y floors; or cast to a float dtype")


def test_what_is_no_number_is_refused():
    assert said(lambda: X + "1", DTypeError) == (
        "DTypeError at HERE: str '1' is neither a tensor nor a number\n  fix: wrap arrays with tg.constant(array)")
    assert said(lambda: tg.add(1, 2), DTypeError) == (
        "DTypeError at HERE: add of numbers only\n  fix: make one of them a tensor with tg.constant")


def test_an_error_shows_the_line_it_was_written_on():
    with pytest.raises(ShapeError) as caught:
        X + tg.input("y", (4, 1))
    assert '\n    X + tg.input("y", (4, 1))\n' in str(caught.value)


@pytest.mark.parametrize("use, words, fix", [
    (lambda: bool(X < 1), "bool[4, 5, 6] has no truth value", "tg.equals"),
    (lambda: 1 if X else 2, "f32[4, 5, 6] has no truth value", "tg.where"),
    (lambda: X == 0, "f32[4, 5, 6] == 0: == asks", "tg.equals(x, 0)"),
    (lambda: 0.5 == X, "f32[4, 5, 6] == 0.5: == asks", "tg.equals(x, 0.5)"),
    (lambda: np.float32(2) == X, "f32[4, 5, 6] == ", "tg.equals(x, 2.0)"),
    (lambda: X != 0, "f32[4, 5, 6] != 0: != asks", "tg.not_equal(x, 0)"),
    (lambda: X == np.zeros(6), "f32[4, 5, 6] == ", "tg.equals(x, array)"),
    (lambda: np.zeros(6) != X, "f32[4, 5, 6] != ", "tg.not_equal(x, array)"),
    (lambda: X == tg.dim("n", 1, 4), "f32[4, 5, 6] == n", "tg.equals(x, n)"),
    (lambda: len(X), "len of a tensor", "x.shape[0]"),
    (lambda: list(X), "f32[4, 5, 6] is not iterable", "x[i]"),
    (lambda: np.asarray(X), "f32[4, 5, 6] holds no values yet", "tg.compile"),
], ids=["bool", "if", "eq", "number eq", "numpy number eq", "ne", "eq array", "array ne", "eq dim", "len", "iter", "array"])
def test_a_tensor_is_not_mistaken_for_its_values(use, words, fix):
    with pytest.raises(TypeError) as caught:
        use()
    assert isinstance(caught.value, NoValueError) and words in str(caught.value)
    assert fix in str(caught.value).partition("fix: ")[2]


def test_equal_signs_between_tensors_ask_whether_they_are_one():
    assert (X == X) is True and (X != X) is False and (X == X + 0) is False and (X != X + 0) is True
    assert X in [X + 1, X] and {X: 1}[X] == 1 and X != None and X != "x"  # noqa: E711


# ---- indexing --------------------------------------------------------------------------------------------------------


@settings(derandomize=True, max_examples=150, deadline=None)
@given(data=st.data(), shape=hnp.array_shapes(min_dims=1, max_dims=3, max_side=5))
def test_basic_indexing_is_that_of_numpy(data, shape):
    index = data.draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))
    assume(not (isinstance(index, tuple) and len(index) == 0))
    values = np.arange(float(np.prod(shape))).reshape(shape)
    node = tg.input("x", shape)[index]
    assert node.shape == values[index].shape
    np.testing.assert_array_equal(value_of(node, x=values), values[index])


@settings(derandomize=True, max_examples=60, deadline=None)
@given(size=st.integers(1, 7), start=st.none() | st.integers(-9, 9), stop=st.none() | st.integers(-9, 9),
       step=st.integers(-3, 3).filter(bool))
def test_a_slice_clamps_as_python_does(size, start, stop, step):
    values = np.arange(float(size))
    node = tg.input("x", (size,))[start:stop:step]
    assert node.shape == values[start:stop:step].shape
    np.testing.assert_array_equal(value_of(node, x=values), values[start:stop:step])


@settings(derandomize=True, max_examples=60, deadline=None)
@given(size=st.integers(1, 6), start=st.none() | st.integers(-7, 7), stop=st.none() | st.integers(-7, 7),
       step=st.sampled_from([1, 2, -1, -2]))
def test_a_slice_of_an_axis_of_symbolic_size_is_that_of_numpy_at_every_size(size, start, stop, step):
    n = tg.dim("n", 1, 6)
    values = np.arange(float(size))
    node = tg.input("x", (n,))[start:stop:step]
    np.testing.assert_array_equal(value_of(node, dims={"n": size}, x=values), values[start:stop:step])


def test_indices_may_be_dims():
    values = np.arange(24.0).reshape(3, 8)
    np.testing.assert_array_equal(value_of(S[N - 1], dims={"n": 3}, s=values), values[2])
    np.testing.assert_array_equal(value_of(S[:N - 1, 2:], dims={"n": 3}, s=values), values[:2, 2:])
    assert S[:N].shape == S.shape


def test_an_integer_tensor_gathers_along_its_axis():
    values, at = np.arange(120.0).reshape(4, 5, 6), np.array([[3, 0], [1, 1]], dtype=np.int32)
    index = tg.input("at", (2, 2), tg.i32)
    np.testing.assert_array_equal(value_of(X[index], x=values, at=at), values[at])
    np.testing.assert_array_equal(value_of(X[:, index, 1:3], x=values, at=at), values[:, at, 1:3])
    np.testing.assert_array_equal(value_of(X[1, None, index], x=values, at=at), values[1, None][:, at])


def test_a_list_or_array_of_integers_is_a_constant_index_and_negative_ones_count_from_the_back():
    values = np.arange(120.0).reshape(4, 5, 6)
    np.testing.assert_array_equal(value_of(X[:, [0, -1, 2]], x=values), values[:, [0, -1, 2]])
    np.testing.assert_array_equal(value_of(X[np.array([3, 3])], x=values), values[[3, 3]])
    assert any(node.op is CONSTANT for node in tg.graph(X[[0, -1]]).nodes)


def test_a_full_slice_is_the_tensor_itself():
    assert X[:] is X and X[...] is X and X[:, :, :] is X


def test_an_index_out_of_range_is_refused():
    assert said(lambda: X[0, 5], AttributeValueError) == (
        "AttributeValueError at HERE: index 5 of axis 1, which has size 5, in f32[4, 5, 6]\n  fix: an index from -5 to 4")
    assert said(lambda: X[-5], AttributeValueError) == (
        "AttributeValueError at HERE: index -5 of axis 0, which has size 4, in f32[4, 5, 6]\n  fix: an index from -4 to 3")
    assert said(lambda: X[[1, 4]], AttributeValueError) == (
        "AttributeValueError at HERE: index [1, 4] of axis 0, which has size 4\n  fix: indices from -4 to 3")


def test_too_many_indices_are_refused():
    assert said(lambda: X[0, 0, 0, 0], AttributeValueError) == (
        "AttributeValueError at HERE: f32[4, 5, 6] indexed with 4 indices, it has 3 axes\n"
        "  fix: at most 3; None adds an axis of size 1")
    assert said(lambda: X[..., 0, ...], AttributeValueError) == (
        "AttributeValueError at HERE: an index may hold only one Ellipsis (…)")


@pytest.mark.parametrize("mask", [tg.input("m", (4,), tg.bool_), np.array([True] * 4), [True, False, True, True], True],
                         ids=["tensor", "array", "list", "bool"])
def test_a_boolean_mask_is_refused_with_what_to_do_instead(mask):
    assert said(lambda: X[mask], AttributeValueError) == (
        "AttributeValueError at HERE: f32[4, 5, 6] indexed by a boolean mask: the size of the result would depend "
        "on values\n  fix: tg.where(mask, x, other) keeps the shape; gather with integer indices selects")


def test_steps_and_bounds_that_are_no_integers_are_refused():
    assert said(lambda: X[::0], AttributeValueError) == (
        "AttributeValueError at HERE: the step of a slice is 0\n  fix: an int other than 0")
    assert said(lambda: X[0.5:], AttributeValueError) == (
        "AttributeValueError at HERE: the start of a slice is 0.5\n  fix: an int, a dim, or None")
    assert said(lambda: X["a"], AttributeValueError) == (
        "AttributeValueError at HERE: a tensor cannot be indexed by 'a'\n"
        "  fix: ints, slices, None, Ellipsis, dims, integer tensors")


def test_two_integer_tensors_at_once_are_refused():
    assert said(lambda: X[[0], [1]], AttributeValueError) == (
        "AttributeValueError at HERE: only one integer tensor per index\n"
        "  fix: index twice, or reshape to one axis and gather")


@pytest.mark.parametrize(("used", "sign"), [
    (lambda x: divmod(x, 2), "divmod"), (lambda x: divmod(2, x), "divmod"), (lambda x: 3 @ x, "@"),
    (round, "round"), (lambda x: +x, "unary +"), (lambda x: 1 in x, "in"),
])  # fmt: skip
def test_an_operator_that_tensors_do_not_have_says_what_to_write(used, sign):
    with pytest.raises(TensorGraphsError, match=rf"(?s)there is no operator {re.escape(sign)} here.*fix: ") as caught:
        used(tg.input("x", (2, 3), tg.i32))
    assert isinstance(caught.value, TypeError)


def test_not_of_floats_is_refused():
    with pytest.raises(DTypeError, match="logical_not takes bool or int or uint"):
        ~tg.input("x", (2,))
