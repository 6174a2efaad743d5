"""`axis`: one name for every op that has one, and one set of errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.language import atomic
from tensor_graphs.language.errors import AttributeValueError
from tensor_graphs.language.node import Node
from tests.language.messages import said

X, Y = tg.input("x", (2, 3)), tg.input("y", (2, 3))
B = tg.input("b", (2, 3), tg.bool_)
INDEX, PLACES = tg.input("i", (2,), tg.i32), tg.input("p", (2, 3), tg.i32)


def along(axis: Any) -> Node:
    """An index of each place along an axis of X; of some places, where it has no such axis."""
    return tg.iota(X.shape[axis]) if isinstance(axis, (int, np.integer)) and -2 <= axis < 2 else INDEX


ONE: dict[str, Callable[[Any], Any]] = {
    "softmax": lambda a: tg.softmax(X, a), "log_softmax": lambda a: tg.log_softmax(X, a), "logsumexp": lambda a: tg.logsumexp(X, a),
    "argmax": lambda a: tg.argmax(X, a), "cumsum": lambda a: tg.cumsum(X, a), "concat": lambda a: tg.concat(X, Y, axis=a),
    "stack": lambda a: tg.stack(X[0], Y[0], axis=a), "gather": lambda a: tg.gather(X, INDEX, a),
    "iota": lambda a: tg.iota((2, 3), a), "scan": lambda a: tg.scan(lambda h, x: (h, x), tg.constant(0.0), X, a)[1],
    "scatter": lambda a: tg.scatter(X, along(a), X, a),
    "write_rows": lambda a: tg.write_rows(X, Y, start=0, axis=a), "write_at": lambda a: tg.write_at(X, Y, 0, a),
    "write_at_index": lambda a: tg.write_at_index(X, X, along(a), axis=a), "split": lambda a: tg.split(X, 1, a)[0],
    "argsort": lambda a: tg.argsort(X, a), "sort": lambda a: tg.sort(X, a)[0], "cummax": lambda a: tg.cummax(X, a)[0],
    "cummin": lambda a: tg.cummin(X, a)[0], "cumprod": lambda a: tg.cumprod(X, a), "logcumsumexp": lambda a: tg.logcumsumexp(X, a),
    "topk": lambda a: tg.topk(X, a, k=1)[0], "take_along_axis": lambda a: tg.take_along_axis(X, PLACES, a),
    "put_along_axis": lambda a: tg.put_along_axis(X, PLACES, Y, a), "repeat_interleave": lambda a: tg.repeat_interleave(X, 2, a),
    "glu": lambda a: tg.glu(tg.input("g", (2, 4)), a),
    "cross_entropy": lambda a: tg.cross_entropy(X, along(1 - a % 2 if isinstance(a, (int, np.integer)) and -2 <= a < 2 else a), a),
}
SEVERAL: dict[str, Callable[[Any], Node]] = {
    "sum": lambda a: tg.sum(X, a), "mean": lambda a: tg.mean(X, a), "var": lambda a: tg.var(X, a), "prod": lambda a: tg.prod(X, a),
    "max": lambda a: tg.max(X, a), "min": lambda a: tg.min(X, a), "reduce_max": lambda a: tg.reduce_max(X, a),
    "reduce_min": lambda a: tg.reduce_min(X, a), "any": lambda a: tg.any(B, a), "all": lambda a: tg.all(B, a),
    "flip": lambda a: tg.flip(X, a), "roll": lambda a: tg.roll(X, 1, a),
}
METHODS: dict[str, Callable[[Any], Node]] = {"x.sum": lambda a: X.sum(a), "x.max": lambda a: X.max(a),
                                                   "x.min": lambda a: X.min(a), "x.mean": lambda a: X.mean(a)}
BY_ITSELF = {"permute"}           # an order of all axes: tested below


def parameters(name: str) -> set[str]:
    found = getattr(tg, name)
    return set(inspect.signature(found).parameters) if callable(found) and not isinstance(found, type) else set()


def test_every_op_with_an_axis_calls_it_axis():
    assert {n for n in tg.__all__ if "axis" in parameters(n)} == {*ONE, *SEVERAL, *BY_ITSELF}
    assert {n for n in tg.__all__ if parameters(n) & {"axes", "dimension", "axis_", "ax"}} == set()
    assert {n for n, row in atomic.ATOMIC.items() if {"axis", "axes"} & set(row.attributes)} <= {*ONE, *SEVERAL, *BY_ITSELF}


@pytest.mark.parametrize("name", [*ONE, *SEVERAL, *METHODS])
def test_a_negative_axis_counts_from_the_back(name):
    build = {**ONE, **SEVERAL, **METHODS}[name]
    for axis in (0, 1):
        assert build(axis).type == build(axis - 2).type == build(np.int64(axis)).type


@pytest.mark.parametrize("axis", [2, -3, 2**40])
def test_an_axis_out_of_range_is_refused_with_those_that_there_are(axis):
    for name, build in {**ONE, **SEVERAL, **METHODS}.items():
        message = said(lambda: build(axis), AttributeValueError)   # noqa: B023
        assert f"axis {axis} of a tensor of rank 2\n  fix: -2 to 1" in message and name.removeprefix("x.") in message.replace(
            "reduce_max", "max reduce_max").replace("reduce_min", "min reduce_min"), name


@pytest.mark.parametrize("axis", ["0", 1.0, True, object(), {0}, ("0",), (1.0,), ((0, 1),), X, tg.dim("n", 0, 1)],
                         ids=["text", "float", "bool", "object", "set", "texts", "floats", "nested", "tensor", "dim"])
def test_an_axis_of_a_wrong_type_is_refused(axis):
    for build in {**ONE, **SEVERAL, **METHODS}.values():
        with pytest.raises(AttributeValueError, match=r"axis is .*(, an int is needed|, an int or a tuple of ints is needed)"):
            build(axis)


@pytest.mark.parametrize("axis", [None, (0,), (0, 1), [1]], ids=["none", "one", "two", "list"])
def test_an_op_along_one_axis_takes_one(axis):
    for build in ONE.values():
        with pytest.raises(AttributeValueError, match="an int is needed\n(.*\n)?  fix: .* works along one axis: -2 to 1"):
            build(axis)


@pytest.mark.parametrize("name", [*SEVERAL, *METHODS])
def test_an_op_over_several_axes_takes_them_in_any_order_or_none_for_all(name):
    build = {**SEVERAL, **METHODS}[name]
    assert build(None).type == build((0, 1)).type == build([-1, 0]).type == build(np.array([1, 0])).type == build(range(2)).type
    for twice in ((0, 0), (1, -1), [0, 1, 1]):
        with pytest.raises(AttributeValueError, match=r"names an axis twice\n(.*\n)?  fix: each axis once; counted from the front"):
            build(twice)


@pytest.mark.parametrize("reduce", [tg.sum, tg.mean, tg.var, tg.prod, tg.max, tg.min])
def test_a_reduction_keeps_its_axes_with_size_1_when_asked(reduce):
    assert reduce(X, -1, True).shape == reduce(X, axis=(1,), keepdims=True).shape == (2, 1)
    assert reduce(X, keepdims=True).shape == (1, 1) and reduce(X).shape == ()


def test_an_order_of_axes_names_each_once():
    assert tg.permute(X, (1, 0)) is tg.permute(X, axis=[-1, 0]) is X.permute(1, 0) is X.permute((1, 0))
    assert X.T is X.permute(range(1, -1, -1))
    assert X.transpose(0, 1) is X.transpose(axis1=-1, axis2=0) is X.T
    for wrong, words in [((0,), "names 1 of 2 axes"), ((0, -2), "names an axis twice"), ((0, 2), "axis 2 of a tensor of rank 2"),
                         (1, "an int or a tuple of ints is needed"), ("10", "an int or a tuple of ints is needed")]:
        with pytest.raises(AttributeValueError, match=words):
            tg.permute(X, wrong)


def test_a_scalar_has_no_axes():
    assert said(lambda: tg.softmax(tg.input("c", ()), 0), AttributeValueError) == (
        "AttributeValueError at HERE: softmax: axis 0 of a tensor of rank 0\n  fix: a scalar has no axes")
    assert tg.sum(tg.input("c", ())).shape == ()


def test_a_composite_of_a_user_takes_its_axis_by_position_too():
    @tg.composite
    def centred(x: Node, weight: Node | None = None, axis: int = -1, *, scale: float = 1.0) -> Node:
        """x minus its mean."""
        out = (x - tg.mean(x, axis, keepdims=True)) * scale
        return out if weight is None else out * weight

    assert centred.operands == ("x", "weight") and centred.attributes == ("axis", "scale")
    assert centred(X, None, 0) is centred(X, axis=0) and centred(X, Y, -1, scale=2.0).attrs["axis"] == -1
    with pytest.raises(AttributeValueError, match="operands, then axis, then attributes"):
        tg.composite(lambda axis, x: x)
