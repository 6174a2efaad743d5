"""Arithmetic composites: definition and `direct` against numpy at the awkward values, and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tensor_graphs as tg
from tensor_graphs.language.composite import LIBRARY, expand_all
from tensor_graphs.language.composites import arithmetic
from tensor_graphs.language.errors import AttributeValueError, DTypeError, NoValueError
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import evaluate
from tests.language.agreement import both_ways, check
from tests.language.messages import said

INF, NAN = float("inf"), float("nan")
EDGES = np.array([0.0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 1.5, -1.5, 2.5, 3, -3, 7.25, -7.25, 100, INF, -INF, NAN])
LEFT, RIGHT = (grid.ravel() for grid in np.meshgrid(EDGES, EDGES))
FINITE = np.isfinite(LEFT) & np.isfinite(RIGHT)


UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": np.negative, "abs": np.abs, "square": np.square, "sign": np.sign, "ceil": np.ceil, "trunc": np.trunc,
    "round": np.round, "is_nan": np.isnan, "is_finite": np.isfinite,
    "rsqrt": lambda x: 1 / np.sqrt(x),
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "mod": np.mod, "pow": np.power,
    "floor_div": lambda x, y: np.floor(x / y), "minimum": np.minimum, "maximum": np.maximum, "less": np.less,
    "greater": np.greater, "less_equal": np.less_equal, "greater_equal": np.greater_equal, "equals": np.equal,
    "not_equal": np.not_equal,
}


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_composite_of_one_operand_is_that_of_numpy_at_every_edge(name):
    check(getattr(tg, name)(tg.input("x", EDGES.shape)), UNARY[name](EDGES), x=EDGES)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_function_of_two_operands_is_that_of_numpy_at_every_pair_of_edges(name):
    x, y = tg.input("x", LEFT.shape), tg.input("y", LEFT.shape)
    check(getattr(tg, name)(x, y), BINARY[name](LEFT, RIGHT), x=LEFT, y=RIGHT)


def test_every_elementwise_composite_of_this_file_is_among_those_compared_with_numpy():
    reductions_and_others = {"any", "all", "reduce_min", "integer_power", "bit_or"}
    names = {name for name, op in LIBRARY.items() if op.build.__module__ == arithmetic.__name__}
    assert names - reductions_and_others <= {*UNARY, *BINARY, "min"}


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_sign_of_a_zero_is_kept_by_min_and_max(sign):
    x, y = tg.input("x", (1,)), tg.input("y", (1,))
    a, b = np.array([sign * 0.0]), np.array([-sign * 0.0])
    for low, high in both_ways([tg.minimum(x, y), tg.maximum(x, y)], {"x": a, "y": b}):
        assert np.signbit(low[0]) and not np.signbit(high[0])


INTEGERS: dict[str, Callable[[Any, Any], Any]] = {
    "sub": np.subtract, "minimum": np.minimum, "maximum": np.maximum, "less_equal": np.less_equal, "equals": np.equal,
    "bit_or": np.bitwise_or, "bit_and": np.bitwise_and, "bit_xor": np.bitwise_xor,
    "floor_div": lambda x, y: np.where(y == 0, 0, np.floor_divide(x, np.where(y == 0, 1, y))).astype(x.dtype),
    "mod": lambda x, y: np.where(y == 0, x, np.mod(x, np.where(y == 0, 1, y))).astype(x.dtype),
}


@pytest.mark.parametrize("dtype", [tg.i8, tg.u8, tg.i32, tg.u64], ids=str)
@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_integers_wrap_and_divide_by_zero_to_zero(name, dtype):
    rng = np.random.default_rng(5)
    edges = np.array([dtype.min, dtype.max, 0, 1, 2, 3, dtype.max - 1, dtype.max // 2], dtype=dtype.numpy)
    pool = np.concatenate([edges, rng.integers(dtype.min, dtype.max, 24, dtype=dtype.numpy, endpoint=True)])
    a, b = (grid.ravel() for grid in np.meshgrid(pool, pool))
    node = getattr(tg, name)(tg.input("x", a.shape, dtype), tg.input("y", a.shape, dtype))
    expected = INTEGERS[name](a, b)
    for (found,) in both_ways([node], {"x": a, "y": b}):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def any_floats(dtype: tg.DType, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of floats of any bits, every other x near a multiple of its y; infinities, NaN, zeros and subnormals among them."""
    rng, bits = np.random.default_rng(seed), np.dtype(f"u{dtype.itemsize}")
    x, y = (rng.integers(0, np.iinfo(bits).max, 1 << 16, bits, endpoint=True).view(dtype.numpy) for _ in range(2))
    with np.errstate(all="ignore"):
        x[::2] = (y[::2].astype(np.float64) * np.floor(np.exp2(rng.uniform(0, 60, len(x) // 2)))).astype(dtype.numpy)
    corners = np.array([0.0, -0.0, 1, -1, 7, -1.75, dtype.max, dtype.min, dtype.smallest_normal * dtype.epsilon, INF, NAN])
    near, far = (grid.ravel().astype(dtype.numpy) for grid in np.meshgrid(corners, corners))
    return np.concatenate([x, near]), np.concatenate([y, far])


def same_bits(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Equal numbers, signs of zeros included, and NaN in the same places."""
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(np.signbit(ours[theirs == 0]), np.signbit(theirs[theirs == 0]))


@pytest.mark.parametrize("dtype", [tg.f32, tg.f16, tg.bf16, tg.f8e4m3, tg.f8e5m2], ids=str)
@pytest.mark.parametrize("mode, use_direct", [("as_written", False), ("as_written", True), ("real", True)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_remainder_is_that_of_numpy_however_large_the_quotient(dtype, mode, use_direct):
    x, y = any_floats(dtype, seed=3)
    node = tg.mod(tg.input("x", x.shape, dtype), tg.input("y", x.shape, dtype))
    leaves = {leaf: {"x": x, "y": y}[name] for name, leaf in tg.graph(node).inputs.items()}
    (ours,) = evaluate([node], leaves, {}, mode, use_direct)
    theirs = np.mod(x.astype(np.float64), y.astype(np.float64))
    if mode == "as_written":
        theirs = (np.mod(x, y) if dtype is tg.f32 else theirs.astype(dtype.numpy)).astype(np.float64)
    same_bits(ours.astype(np.float64), theirs)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_remainder_in_float64_is_exact_by_the_oracle_and_within_its_bound_by_the_definition():
    x, y = any_floats(tg.f64, seed=4)
    node = tg.mod(tg.input("x", x.shape, tg.f64), tg.input("y", x.shape, tg.f64))
    by_definition, direct = (found for (found,) in both_ways([node], {"x": x, "y": y}))
    same_bits(direct, np.mod(x, y))
    finite = np.isfinite(x / y) & np.isfinite(x) & np.isfinite(y) & (np.abs(y) >= tg.f64.smallest_normal)
    off = np.abs(by_definition - direct)[finite]
    whole = np.abs(y[finite])                           # next to a multiple the remainder may be that of its other side
    assert (np.minimum(off, np.abs(off - whole)) <= 2.0**-51 * np.abs(x[finite]) + 5e-324).all()
    assert evaluate([tg.mod(tg.constant(1e20, tg.f64), 7.0)], {}, {})[0] == 10**20 % 7


def test_a_divisor_gets_the_whole_quotient_as_gradient_also_where_the_rounded_one_lies_beyond_it():
    x, y = np.array([1.0, 3e7, -3e7, 0.25]), np.array([0.1, -1.7, 1.7, INF])
    node = tg.mod(tg.input("x", x.shape, tg.f64), tg.input("y", x.shape, tg.f64))
    inputs = tg.graph(node).inputs
    (to_y,) = evaluate(tg.vjp([node], [tg.constant(np.ones(4), tg.f64)], [inputs["y"]]), {inputs["x"]: x, inputs["y"]: y}, {})
    np.testing.assert_allclose(to_y, -np.floor_divide(x, y), rtol=1e-12)


def exact_power(x: int, y: int, dtype: tg.DType) -> int:
    value = x**y if y >= 0 else (1 if x == 1 else (-1) ** (-y) if x == -1 else 0)
    value %= 1 << dtype.bits
    return value - (1 << dtype.bits) if dtype.is_signed and value > dtype.max else value


@pytest.mark.parametrize("dtype", [tg.i8, tg.u8, tg.i64, tg.u32], ids=str)
def test_powers_of_integers_wrap_and_negative_exponents_round_towards_zero(dtype):
    bases = [v for v in (0, 1, 2, 3, 7, -1, -2, -3, dtype.min, dtype.max) if dtype.min <= v]
    exponents = [v for v in (0, 1, 2, 3, 5, 31, 63, 100, -1, -2, -3, -100) if dtype.min <= v]
    a, b = (grid.ravel().astype(dtype.numpy) for grid in np.meshgrid(bases, exponents))
    expected = [exact_power(int(x), int(y), dtype) for x, y in zip(a, b, strict=True)]
    node = tg.pow(tg.input("x", a.shape, dtype), tg.input("y", a.shape, dtype))
    for (found,) in both_ways([node], {"x": a, "y": b}):
        assert found.tolist() == expected


@pytest.mark.parametrize("exponent, op", [
    (0, "integer_power"), (1, "input"), (2, "square"), (3, "integer_power"), (64, "integer_power"), (65, "pow"),
    (0.5, "sqrt"), (-0.5, "rsqrt"), (-1, "reciprocal"), (2.5, "pow")])
def test_a_number_as_exponent_becomes_the_cheapest_op(exponent, op):
    values = np.array([0.25, 1.0, 1.5, 3.0])
    node = tg.input("x", (4,)) ** exponent
    assert node.op.name == op
    check(node, values**exponent, x=values)


@pytest.mark.parametrize("base", [-np.inf, -0.0, np.inf, 0.0, 4.0])
@pytest.mark.parametrize("exponent", [0.5, -0.5, 2.0, -1.0])
def test_a_tensor_as_exponent_is_no_root_whatever_its_shape(base, exponent):
    """pow of C (F.10.4.4): (−∞)^½ is +∞ and (−0)^½ is +0, of which the square roots are NaN and −0."""
    with np.errstate(all="ignore"):
        (right,) = np.power([base], [exponent])
    for shape in ((), (1,), (3,)):
        x, y = tg.input("x", shape), tg.input("y", ())
        expanded = tg.expand(tg.reshape(y, (1,) * len(shape)), shape)
        given = {"x": np.full(shape, base, np.float32), "y": np.array(exponent, np.float32)}
        for (found,) in both_ways([tg.pow(x, expanded)], given):
            np.testing.assert_array_equal(found, np.full(shape, right))
            np.testing.assert_array_equal(np.signbit(found), np.signbit(np.full(shape, right)))


def test_a_power_of_two_with_a_tensor_as_exponent_is_exp2():
    y = tg.input("y", (3,))
    assert (2 ** y).op.name == "exp2"
    check(3 ** y, 3 ** np.array([0.5, -1.0, 2.0]), y=np.array([0.5, -1.0, 2.0]))


def test_an_integer_power_needs_a_whole_exponent():
    assert said(lambda: arithmetic.integer_power(tg.input("x", (2,)), exponent=-1), AttributeValueError) == (
        "AttributeValueError at HERE: integer_power: the exponent is -1\n  fix: an int ≥ 0; x ** y takes any number")


@settings(derandomize=True, max_examples=30, deadline=None)
@given(shapes=hnp.mutually_broadcastable_shapes(num_shapes=3, max_dims=3, max_side=3), seed=st.integers(0, 2**32 - 1))
def test_where_broadcasts_as_numpy_does(shapes, seed):
    rng = np.random.default_rng(seed)
    condition = rng.integers(0, 2, shapes.input_shapes[0]).astype(bool)
    a, b = rng.normal(size=shapes.input_shapes[1]), rng.normal(size=shapes.input_shapes[2])
    node = tg.where(tg.input("c", condition.shape, tg.bool_), tg.input("a", a.shape), tg.input("b", b.shape))
    check(node, np.where(condition, a, b), c=condition, a=a, b=b)


def test_numbers_in_where_take_the_dtype_of_the_other_side():
    c, x = tg.input("c", (2,), tg.bool_), tg.input("x", (2,), tg.bf16)
    assert tg.where(c, x, 0).dtype == tg.where(c, 1.5, x).dtype == tg.bf16
    assert tg.where(c, 1, 0).dtype == tg.i32 and tg.where(c, 1, 0.0).dtype == tg.f32
    assert tg.where(c, True, False).dtype == tg.bool_


def test_where_needs_a_tensor_as_condition():
    assert said(lambda: tg.where(True, tg.input("x", (2,)), 0.0), DTypeError) == (
        "DTypeError at HERE: where: the condition is bool, a bool tensor is needed\n"
        "  fix: x < y, tg.equals(x, y) or tg.not_equal(x, y) compare element by element (x == y asks whether they are one tensor); "
        "tg.constant(array) makes a tensor of an array")
    x = tg.input("x", (2,))
    assert "tg.equals" in said(lambda: tg.where(x == x, x, 0.0), DTypeError)       # two tensors may be compared: are they one?
    assert "tg.equals" in said(lambda: tg.where(x == 0, x, 0.0), NoValueError)


@pytest.mark.parametrize("axes, keepdims", [(None, False), (0, True), ((0, -1), False), ((), False)])
def test_reductions_are_those_of_numpy(axes, keepdims):
    rng = np.random.default_rng(3)
    x, b = rng.normal(size=(2, 3, 4)), rng.integers(0, 2, (2, 3, 4)).astype(bool)
    xs, bs = tg.input("x", x.shape), tg.input("b", b.shape, tg.bool_)
    check(tg.sum(xs, axes, keepdims), x.sum(axis=axes, keepdims=keepdims), x=x)
    check(tg.max(xs, axes, keepdims), x.max(axis=axes, keepdims=keepdims), x=x)
    check(tg.min(xs, axes, keepdims), x.min(axis=axes, keepdims=keepdims), x=x)
    check(tg.any(bs, axes, keepdims), b.any(axis=axes, keepdims=keepdims), b=b)
    check(tg.all(bs, axes, keepdims), b.all(axis=axes, keepdims=keepdims), b=b)


def test_reductions_of_nothing_have_the_neutral_value():
    check(tg.min(tg.input("x", (0, 2)), 0), np.full(2, INF), x=np.zeros((0, 2)))
    check(tg.min(tg.input("x", (0,), tg.u8)), np.uint8(255), x=np.zeros(0, np.uint8))
    check(tg.any(tg.input("x", (0,), tg.bool_)), np.False_, x=np.zeros(0, bool))
    check(tg.all(tg.input("x", (0,), tg.bool_)), np.True_, x=np.zeros(0, bool))


def test_clip_bounds_from_both_sides():
    values = np.array([-2.0, 0.25, 9.0, NAN])
    check(tg.clip(tg.input("x", (4,)), -1, 1), np.clip(values, -1, 1), x=values)


@pytest.mark.parametrize("name, kinds", [("neg", "float or int or uint"), ("round", "float"), ("rsqrt", "float"),
                                         ("is_nan", "float")])
def test_a_composite_speaks_in_its_own_name_about_dtypes(name, kinds):
    assert said(lambda: getattr(tg, name)(tg.input("b", (2,), tg.bool_)), DTypeError) == (
        f"DTypeError at HERE: {name} takes {kinds}, the operand is bool[2]\n  fix: cast it first")


# ---- gradients -------------------------------------------------------------------------------------------------------

SMOOTH = np.array([0.3, -0.8, 1.7, -2.2, 2.6])
OTHER = np.array([1.4, 0.9, -1.1, 2.3, 0.7])
DIFFERENTIABLE: dict[str, tuple[Callable[..., Node], Callable[..., torch.Tensor]]] = {
    "sub": (tg.sub, torch.sub), "div": (tg.div, torch.div), "minimum": (tg.minimum, torch.minimum),
    "maximum": (tg.maximum, torch.maximum), "mod": (tg.mod, torch.remainder),
    "pow": (lambda x, y: tg.pow(tg.abs(x), y), lambda x, y: torch.pow(torch.abs(x), y)),
    "square": (lambda x, y: tg.square(x) * y, lambda x, y: x**2 * y),
    "cube": (lambda x, y: x**3 - y, lambda x, y: x**3 - y),
    "rsqrt": (lambda x, y: tg.rsqrt(tg.abs(x)) + y, lambda x, y: torch.rsqrt(torch.abs(x)) + y),
    "sign": (lambda x, y: tg.sign(x) * y, lambda x, y: torch.sign(x) * y),
    "round": (lambda x, y: tg.round(x) + y, lambda x, y: torch.round(x) + y),
    "clip": (lambda x, y: tg.clip(x, -1.0, 1.0) * y, lambda x, y: torch.clip(x, -1.0, 1.0) * y),
    "where": (lambda x, y: tg.where(x < y, x * y, x), lambda x, y: torch.where(x < y, x * y, x)),
    "reduce_min": (lambda x, y: tg.min(x * y, 0, keepdims=True) * y, lambda x, y: torch.min(x * y) * y),
}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_a_gradient_is_that_of_torch_and_of_the_definition(name):
    ours, theirs = DIFFERENTIABLE[name]
    x, y = tg.input("x", SMOOTH.shape), tg.input("y", OTHER.shape)
    out = ours(x, y)
    leaves = {x: SMOOTH, y: OTHER}
    a, b = (torch.tensor(v, requires_grad=True) for v in (SMOOTH, OTHER))
    theirs(a, b).sum().backward()
    for graph in (out, expand_all([out])[0]):
        found = evaluate(tg.grad(tg.sum(graph), [x, y]), leaves, {})
        np.testing.assert_allclose(found[0], a.grad.numpy(), rtol=1e-11, atol=1e-14)
        np.testing.assert_allclose(found[1], b.grad.numpy(), rtol=1e-11, atol=1e-14)


def test_the_gradient_of_a_power_is_finite_where_the_base_or_the_exponent_is_zero():
    x, y = tg.input("x", (4,)), tg.input("y", (4,))
    a, b = np.array([0.0, 0.0, 2.0, -3.0]), np.array([2.0, 0.0, 0.0, 3.0])
    to_x, to_y = evaluate(tg.grad(tg.sum(tg.pow(x, y)), [x, y]), {x: a, y: b}, {})
    np.testing.assert_allclose(to_x, [0.0, 0.0, 0.0, 27.0])
    np.testing.assert_allclose(to_y[:3], [0.0, 0.0, np.log(2.0)])


def test_the_sign_has_no_slope_at_zero():
    x = tg.input("x", (3,))
    (found,) = evaluate(tg.grad(tg.sum(tg.sign(x)), [x]), {x: np.array([0.0, 1.0, -2.0])}, {})
    np.testing.assert_array_equal(found, np.zeros(3))


# ---- shifts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"])
def test_shifts_are_those_of_numpy_at_every_place_of_a_bit(dtype: str) -> None:
    of = np.dtype(tg.parse_dtype(dtype).numpy)
    info, bits = np.iinfo(of), of.itemsize * 8
    values = np.array([info.min, info.max, info.max // 3, 1, 0, 5, 100], dtype=of)
    a, b = tg.input("a", values.shape, dtype), tg.input("b", values.shape, dtype)
    both = tg.graph({"left": a << b, "right": a >> b, "number": a >> 3, "reflected": 1 << b})
    for count in range(bits):
        by = np.full_like(values, count)
        out = tg.interpret(both, {"a": values, "b": by}).outputs
        np.testing.assert_array_equal(out["left"], values << by)
        np.testing.assert_array_equal(out["right"], values >> by)
        np.testing.assert_array_equal(out["number"], values >> 3)
        np.testing.assert_array_equal(out["reflected"], np.ones_like(values) << by)
    beyond = tg.interpret(both, {"a": values, "b": np.full_like(values, bits)}).outputs
    np.testing.assert_array_equal(beyond["left"], np.zeros_like(values))
    np.testing.assert_array_equal(beyond["right"], np.where(values < 0, -1, 0).astype(of))


def test_a_shift_of_floats_is_refused_by_name() -> None:
    with pytest.raises(DTypeError, match="left_shift"):
        tg.input("x", (2,)) << 1
