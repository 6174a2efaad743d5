"""The op table: 27 rows, what each accepts, what type it gives, and what it says to anything else."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.language import atomic
from tensor_graphs.language.atomic import ATOMIC, ROWS
from tensor_graphs.language.errors import AttributeValueError, DTypeError, LanguageError, ShapeError
from tensor_graphs.language.node import Node, apply
from tests.language.messages import said

X = tg.input("x", (2, 3))
Y = tg.input("y", (2, 3))
K = tg.input("i", (2, 3), tg.i32)
U = tg.input("u", (2, 3), tg.u32)
B = tg.input("b", (2, 3), tg.bool_)
N = tg.dim("n", 1, 64)
S = tg.input("s", (N, 4))


def test_there_are_exactly_27_rows_with_different_names():
    assert len(ROWS) == 27 == len({row.name for row in ROWS}) == len(ATOMIC)


def test_the_rows_are_those_of_the_design():
    named = ("iota reciprocal sqrt exp2 log2 sin floor cast bitcast add mul max idiv and xor less not_equal where "
             "sum reduce_max reshape permute expand pad slice gather scatter")
    assert [row.name for row in ROWS] == named.split()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_refuses_a_wrong_number_of_operands(row):
    with pytest.raises(LanguageError, match=rf"{row.name} takes {row.arity} operands, got {row.arity + 1}"):
        apply(row, [X] * (row.arity + 1), dict.fromkeys(row.attributes, 0))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_refuses_attributes_that_are_not_its_own(row):
    words = f"{row.name} has the attributes {', '.join(row.attributes) or 'none'}, got colour"
    with pytest.raises(AttributeValueError, match=re.escape(words)):
        apply(row, [X] * row.arity, {"colour": 1})


# name -> (a call that is well typed, the type it has)
WELL_TYPED: dict[str, tuple[Callable[[], Node], str]] = {
    "iota": (lambda: atomic.iota((2, N), 1, tg.i64), "i64[2, n]"),
    "reciprocal": (lambda: atomic.reciprocal(X), "f32[2, 3]"),
    "sqrt": (lambda: atomic.sqrt(X), "f32[2, 3]"),
    "exp2": (lambda: atomic.exp2(S), "f32[n, 4]"),
    "log2": (lambda: atomic.log2(X), "f32[2, 3]"),
    "sin": (lambda: atomic.sin(X), "f32[2, 3]"),
    "floor": (lambda: atomic.floor(X), "f32[2, 3]"),
    "cast": (lambda: atomic.cast(X, tg.bf16), "bf16[2, 3]"),
    "bitcast": (lambda: atomic.bitcast(X, tg.u8), "u8[2, 12]"),
    "add": (lambda: atomic.add(X, Y), "f32[2, 3]"),
    "mul": (lambda: atomic.mul(K, K), "i32[2, 3]"),
    "max": (lambda: atomic.max(S, S), "f32[n, 4]"),
    "idiv": (lambda: atomic.idiv(K, K), "i32[2, 3]"),
    "and": (lambda: atomic.bit_and(B, B), "bool[2, 3]"),
    "xor": (lambda: atomic.bit_xor(U, U), "u32[2, 3]"),
    "less": (lambda: atomic.less(X, Y), "bool[2, 3]"),
    "not_equal": (lambda: atomic.not_equal(B, B), "bool[2, 3]"),
    "where": (lambda: atomic.where(B, X, Y), "f32[2, 3]"),
    "sum": (lambda: atomic.sum(S, -1), "f32[n]"),
    "reduce_max": (lambda: atomic.reduce_max(K), "i32[]"),
    "reshape": (lambda: atomic.reshape(S, (2, -1, 2)), "f32[2, n, 2]"),
    "permute": (lambda: atomic.permute(S, (1, 0)), "f32[4, n]"),
    "expand": (lambda: atomic.expand(tg.input("one", (1, 3)), (N, 3)), "f32[n, 3]"),
    "pad": (lambda: atomic.pad(X, [(1, N), (0, 0)], 7.0), "f32[n + 3, 3]"),
    "slice": (lambda: atomic.slice(X, [(1, -1, -1), (0, 3, 2)]), "f32[2, 2]"),
    "gather": (lambda: atomic.gather(X, tg.input("at", (4, 5), tg.i32), axis=1), "f32[2, 4, 5]"),
    "scatter": (lambda: atomic.scatter(X, tg.input("at", (4,), tg.i64), tg.input("v", (2, 4)), axis=1, mode="add"),
                "f32[2, 3]"),
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_gives_the_type_its_rule_says(row):
    build, expected = WELL_TYPED[row.name]
    node = build()
    assert node.op is row
    assert str(node.type) == expected


FLOAT_ONLY = ("reciprocal", "sqrt", "exp2", "log2", "sin", "floor")


@pytest.mark.parametrize("name", FLOAT_ONLY)
@pytest.mark.parametrize("operand", [K, U, B], ids=lambda node: node.dtype.name)
def test_ops_of_real_numbers_refuse_integers_and_booleans(name, operand):
    message = said(lambda: getattr(atomic, name)(operand), DTypeError)
    assert message == f"DTypeError at HERE: {name} takes float, the operand is {operand.type}\n  fix: cast it first"


@pytest.mark.parametrize("name, refused", [("add", B), ("mul", B), ("max", B), ("less", B), ("idiv", X), ("idiv", B),
                                           ("bit_and", X), ("bit_xor", X)])
def test_binary_ops_refuse_the_dtypes_outside_of_their_row(name, refused):
    kinds = {"idiv": "int or uint", "bit_and": "int or uint or bool", "bit_xor": "int or uint or bool"}.get(
        name, "float or int or uint")
    shown = name.removeprefix("bit_")
    message = said(lambda: getattr(atomic, name)(refused, refused), DTypeError)
    assert message == f"DTypeError at HERE: {shown} takes {kinds}, the operand is {refused.type}\n  fix: cast it first"


def test_nothing_is_promoted():
    assert said(lambda: atomic.add(X, K), DTypeError) == (
        "DTypeError at HERE: add of f32[2, 3] and i32[2, 3]: the dtypes differ and nothing is promoted\n"
        "  fix: cast one of them: x.cast(tg.f32)")


def test_nothing_broadcasts_between_ranks():
    assert said(lambda: atomic.add(X, tg.input("row", (3,))), ShapeError) == (
        "ShapeError at HERE: add of f32[2, 3] and f32[3]: the ranks 2 and 1 differ\n"
        "  fix: reshape one of them; operators (+, *, …) broadcast, atomic ops do not")


def test_nothing_broadcasts_along_an_axis():
    assert said(lambda: atomic.mul(X, tg.input("thin", (2, 1))), ShapeError) == (
        "ShapeError at HERE: mul of f32[2, 3] and f32[2, 1]: axis 1 has two sizes, 3 and 1\n"
        "  fix: slice, expand or reshape one of them")


def test_two_dims_are_different_sizes_until_they_are_proved_equal():
    other = tg.input("other", (tg.dim("m", 1, 64), 4))
    assert said(lambda: atomic.add(S, other), ShapeError) == (
        "ShapeError at HERE: add of f32[n, 4] and f32[m, 4]: axis 0 has two sizes, n and m\n"
        "  fix: slice, expand or reshape one of them")
    doubled = tg.input("doubled", (N + N, 4))
    assert atomic.add(doubled, tg.input("twice", (2 * N, 4))).shape == doubled.shape


def test_where_needs_a_bool_condition():
    assert said(lambda: atomic.where(X, X, Y), DTypeError) == (
        "DTypeError at HERE: where (condition) takes bool, the operand is f32[2, 3]\n  fix: cast it first")


def test_a_reduction_over_an_axis_that_is_not_there_is_refused():
    assert said(lambda: atomic.sum(X, 2), AttributeValueError) == (
        "AttributeValueError at HERE: sum: axis 2 of a tensor of rank 2\n  fix: -2 to 1")


def test_a_reduction_refuses_a_repeated_axis():
    assert said(lambda: atomic.reduce_max(X, (1, -1)), AttributeValueError) == (
        "AttributeValueError at HERE: reduce_max: axis (1, -1) names an axis twice\n"
        "  fix: each axis once; counted from the front these are 1, 1")


def test_a_reduction_refuses_booleans():
    assert said(lambda: atomic.sum(B), DTypeError) == (
        "DTypeError at HERE: sum takes float or int or uint, the operand is bool[2, 3]\n  fix: cast it first")


def test_a_reshape_keeps_the_number_of_elements():
    assert said(lambda: atomic.reshape(X, (2, 4)), ShapeError) == (
        "ShapeError at HERE: reshape of f32[2, 3] to [2, 4]: 6 elements are not 8\n"
        "  fix: one size may be −1: x.reshape(-1, …)")


def test_a_reshape_with_minus_one_needs_a_multiple():
    assert said(lambda: atomic.reshape(X, (4, -1)), ShapeError) == (
        "ShapeError at HERE: reshape of f32[2, 3] to ('4', '-1'): 6 elements are not a multiple of 4")


def test_a_reshape_infers_only_one_size():
    assert said(lambda: atomic.reshape(X, (-1, -1)), ShapeError) == (
        "ShapeError at HERE: reshape of f32[2, 3] to (-1, -1): only one size may be −1")


def test_a_permutation_names_each_axis_once():
    assert said(lambda: atomic.permute(X, (0,)), AttributeValueError) == (
        "AttributeValueError at HERE: permute: axis (0,) names 1 of 2 axes\n  fix: an order of all 2 axes")
    assert said(lambda: atomic.permute(X, (1, 1)), AttributeValueError) == (
        "AttributeValueError at HERE: permute: axis (1, 1) names an axis twice\n  fix: an order of all 2 axes, each once")


def test_only_axes_of_size_one_are_expanded():
    assert said(lambda: atomic.expand(X, (2, 6)), ShapeError) == (
        "ShapeError at HERE: expand of f32[2, 3] to [2, 6]: axis 1 has size 3, only size 1 can be expanded")
    assert said(lambda: atomic.expand(X, (1, 2, 3)), ShapeError) == (
        "ShapeError at HERE: expand of f32[2, 3] to rank 3: the rank may not change\n  fix: reshape first")


def test_a_pad_names_every_axis_and_never_removes():
    assert said(lambda: atomic.pad(X, [(1, 1)]), AttributeValueError) == (
        "AttributeValueError at HERE: pad of f32[2, 3]: 1 pairs for 2 axes")
    assert said(lambda: atomic.pad(X, [(0, 0), (-1, 0)]), AttributeValueError) == (
        "AttributeValueError at HERE: pad of f32[2, 3]: axis 1 is padded by -1\n"
        "  fix: slice removes, pad adds; amounts are ≥ 0")


def test_a_slice_stays_inside_the_axis():
    assert said(lambda: atomic.slice(X, [(0, 2, 1), (1, 4, 1)]), AttributeValueError) == (
        "AttributeValueError at HERE: slice of f32[2, 3]: axis 1 from 1 to 4 step 1 leaves the axis of size 3\n"
        "  fix: indexing x[a:b] clamps like Python; this op does not")
    assert said(lambda: atomic.slice(X, [(0, 2, 0), (0, 3, 1)]), AttributeValueError) == (
        "AttributeValueError at HERE: slice of f32[2, 3]: the step of axis 0 is 0\n  fix: an int other than 0")


@pytest.mark.parametrize("start, stop, step", [(0, 7, 2), (1, 7, 3), (6, -1, -1), (5, -1, -2), (6, 2, -3), (3, 3, 1),
                                               (2, 2, -1)])
def test_the_size_of_a_slice_is_that_of_a_range(start, stop, step):
    assert atomic.slice_size(start, stop, step) == len(range(start, stop, step))


def test_a_gather_needs_integer_indices():
    assert said(lambda: atomic.gather(X, Y), DTypeError) == (
        "DTypeError at HERE: gather (index) takes int or uint, the operand is f32[2, 3]\n  fix: cast it first")


def test_a_scatter_says_which_updates_it_needs():
    at = tg.input("at", (4,), tg.i32)
    assert said(lambda: atomic.scatter(X, at, X), ShapeError) == (
        "ShapeError at HERE: scatter into f32[2, 3] with index i32[4] along axis 0: the updates are f32[2, 3], "
        "[4, 3] is needed")
    assert said(lambda: atomic.scatter(X, at, tg.input("v", (4, 3)), mode="mean"), AttributeValueError) == (
        "AttributeValueError at HERE: scatter: mode 'mean'\n  fix: set, add or max")


def test_a_scatter_of_booleans_can_only_set():
    at, v = tg.input("at", (4,), tg.i32), tg.input("v", (4, 3), tg.bool_)
    assert str(atomic.scatter(B, at, v).type) == "bool[2, 3]"
    assert said(lambda: atomic.scatter(B, at, v, mode="add"), DTypeError) == (
        "DTypeError at HERE: scatter (add) takes float or int or uint, the operand is bool[2, 3]\n"
        "  fix: cast it first")


@pytest.mark.parametrize("source, target, shape", [
    (tg.f32, tg.u32, "u32[2, 4]"), (tg.f32, tg.f16, "f16[2, 8]"), (tg.u8, tg.u32, "u32[2, 1]"),
    (tg.f64, tg.u8, "u8[2, 32]")])
def test_a_bitcast_scales_the_last_axis(source, target, shape):
    assert str(atomic.bitcast(tg.input("x", (2, 4), source), target).type) == shape


def test_a_bitcast_to_wider_elements_needs_a_multiple_of_them():
    assert said(lambda: atomic.bitcast(tg.input("x", (2, 6), tg.u8), tg.f32), ShapeError) == (
        "ShapeError at HERE: bitcast of u8[2, 6] to f32: the last axis, 6, is not a multiple of 4")
    assert said(lambda: atomic.bitcast(tg.input("x", (), tg.f32), tg.u8), ShapeError) == (
        "ShapeError at HERE: bitcast of f32[] to u8: a scalar has no last axis to scale")


def test_iota_counts_along_an_axis_it_has_and_never_in_booleans():
    assert said(lambda: atomic.iota((3,), 1), AttributeValueError) == (
        "AttributeValueError at HERE: iota: axis 1 of a tensor of rank 1\n  fix: -1 to 0")
    assert said(lambda: atomic.iota((3,), 0, tg.bool_), DTypeError) == (
        "DTypeError at HERE: iota counts, so its dtype cannot be bool")


def test_builders_return_the_operand_when_there_is_nothing_to_do():
    assert atomic.cast(X, tg.f32) is X
    assert atomic.bitcast(X, tg.f32) is X
    assert atomic.reshape(X, (2, 3)) is X
    assert atomic.permute(X, (0, 1)) is X
    assert atomic.expand(X, (2, 3)) is X
    assert atomic.pad(X, [(0, 0), (0, 0)]) is X
    assert atomic.slice(X, [(0, 2, 1), (0, 3, 1)]) is X
    assert atomic.sum(X, ()) is X


def test_logical_not_turns_every_bit_of_each_kind():
    for node, ones in ((B, True), (K, -1), (U, 2**32 - 1)):
        turned = atomic.logical_not(node)
        assert turned.op.name == "xor" and turned.type == node.type
        assert turned.inputs[1].inputs[0].inputs[0].attrs["value"] == ones


@pytest.mark.parametrize("row", [row for row in ROWS if row.commutative], ids=lambda row: row.name)
def test_a_commutative_row_has_two_operands_of_one_type(row):
    assert row.arity == 2 and row.group == "binary"


def test_a_gradient_has_one_entry_per_operand_and_its_type():
    for name, (build, _) in WELL_TYPED.items():
        node = build()
        if node.dtype.kind != "float":
            continue
        g = tg.input("g", node.shape, node.dtype)
        found = ATOMIC[name].gradient(node, g)
        assert len(found) == len(node.inputs), name
        for operand, gradient in zip(node.inputs, found, strict=True):
            assert gradient is None or gradient.type == operand.type, name
            assert (gradient is None) == (operand.dtype.kind != "float" or name == "bitcast"), name


def test_a_constant_that_a_dtype_cannot_hold_is_refused():
    assert said(lambda: tg.constant(300, tg.u8), DTypeError) == (
        "DTypeError at HERE: the constant 300 does not fit u8\n  fix: 0 to 255")
    assert said(lambda: tg.constant(np.pi, tg.i32), DTypeError) == (
        f"DTypeError at HERE: the constant {np.pi!r} is not a whole number, the dtype is i32\n"
        "  fix: cast the tensor to a float dtype, or round the number")
