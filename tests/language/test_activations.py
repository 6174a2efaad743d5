"""Activations and other functions that are no op of their own, against torch: values at the edges, gradients, narrow floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tensor_graphs as tg
from tensor_graphs.language.errors import AttributeValueError, DTypeError, ShapeError
from tests.language.agreement import check, check_gradients

F = torch.nn.functional
RNG = np.random.default_rng(17)
INF, NAN = float("inf"), float("nan")
POINTS = np.concatenate([RNG.normal(size=80) * 3, RNG.normal(size=20) * 1e-6, [30.0, -30.0, 800.0, -700.0]])
EDGES = np.array([0.0, INF, -INF, NAN])

ONE: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "elu": (tg.elu, F.elu), "elu, alpha": (lambda x: tg.elu(x, alpha=0.3), lambda x: F.elu(x, 0.3)), "selu": (tg.selu, F.selu),
    "celu": (tg.celu, F.celu), "celu, alpha": (lambda x: tg.celu(x, alpha=2.5), lambda x: F.celu(x, 2.5)),
    "leaky_relu": (lambda x: tg.leaky_relu(x, slope=0.2), lambda x: F.leaky_relu(x, 0.2)),
    "hardsigmoid": (tg.hardsigmoid, F.hardsigmoid), "hardswish": (tg.hardswish, F.hardswish), "mish": (tg.mish, F.mish),
    "log_sigmoid": (tg.log_sigmoid, F.logsigmoid), "softsign": (tg.softsign, F.softsign), "log10": (tg.log10, torch.log10),
    "nan_to_num": (tg.nan_to_num, torch.nan_to_num),
    "nan_to_num of all": (lambda x: tg.nan_to_num(x, nan=1.0, posinf=2.0, neginf=3.0),
                          lambda x: torch.nan_to_num(x, 1.0, 2.0, 3.0)),
}
NOT_AT_INFINITY = {"softsign"}        # ∞ / ∞


@pytest.mark.parametrize("name", ONE)
def test_a_function_of_one_tensor_is_that_of_torch_and_so_is_its_gradient(name: str) -> None:
    ours, theirs = ONE[name]
    points = np.abs(POINTS) if name == "log10" else POINTS
    edges = EDGES[[0, 3]] if name in NOT_AT_INFINITY else EDGES
    x, t = tg.input("x", points.shape, tg.f64), torch.tensor(points, requires_grad=True)
    node, expected = ours(x), theirs(t)
    check(node, expected.detach().numpy(), x=points, rtol=1e-14)
    check_gradients(node, expected, {"x": t}, x=points, rtol=1e-6 if name == "hardsigmoid" else 1e-9)   # torch: 1/6 as float32
    if name not in ("hardsigmoid", "hardswish", "mish"):            # torch's first two have no NaN, and its 0 · ∞ is 0 or NaN
        check(ours(tg.input("x", edges.shape, tg.f64)), theirs(torch.tensor(edges)).numpy(), x=edges)


LEFT, RIGHT = (grid.ravel() for grid in np.meshgrid(*[np.array([0.0, 1.5, -1.5, 2.0, -7.25, 1e300, INF, -INF, NAN])] * 2))
TWO: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "logaddexp": (tg.logaddexp, torch.logaddexp), "hypot": (tg.hypot, torch.hypot), "fmod": (tg.fmod, torch.fmod),
}


@pytest.mark.parametrize("name", TWO)
def test_a_function_of_two_tensors_is_that_of_torch_at_every_pair_of_edges_and_so_are_its_gradients(name: str) -> None:
    ours, theirs = TWO[name]
    # the definition of `mod` in f64 is not exact where the quotient is huge
    usual = (np.abs(LEFT) != 1e300) if name == "fmod" else np.full(LEFT.shape, True)
    left, right = LEFT[usual], RIGHT[usual]
    x, y = tg.input("x", left.shape, tg.f64), tg.input("y", right.shape, tg.f64)
    check(ours(x, y), theirs(torch.tensor(left), torch.tensor(right)).numpy(), x=left, y=right, rtol=1e-14)
    a, b = RNG.normal(size=40) * 3, RNG.normal(size=40)
    x, y = tg.input("x", a.shape, tg.f64), tg.input("y", b.shape, tg.f64)
    t = {"x": torch.tensor(a, requires_grad=True), "y": torch.tensor(b, requires_grad=True)}
    check_gradients(ours(x, y), theirs(t["x"], t["y"]), t, x=a, y=b)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint8], ids=lambda t: t.__name__)
def test_fmod_of_integers_truncates_and_of_0_is_the_number_itself(dtype: Any) -> None:
    ends = np.iinfo(dtype)
    values = np.array([ends.min, ends.min + 1, 7, 6, 1, 0, ends.max], dtype)
    x, y = (grid.ravel() for grid in np.meshgrid(values, values))
    expected = np.where(y == 0, x, np.fmod(x.astype(np.int64), np.where(y == 0, 1, y).astype(np.int64)))
    kind = tg.parse_dtype(np.dtype(dtype).name)
    check(tg.fmod(tg.input("x", x.shape, kind), tg.input("y", y.shape, kind)), expected, x=x, y=y)


def test_fmod_keeps_a_remainder_that_mod_would_round_to_the_divisor() -> None:
    values = np.array([-1e-20, 1e-20])
    check(tg.fmod(tg.input("x", (2,), tg.f64), 1.0), values, x=values, rtol=0)


def test_prelu_has_one_weight_or_one_for_each_channel() -> None:
    values = {"x": RNG.normal(size=(2, 3, 4)), "w": RNG.normal(size=3), "one": RNG.normal(size=1)}
    for name in ("w", "one"):
        x, w = tg.input("x", (2, 3, 4), tg.f64), tg.input(name, values[name].shape, tg.f64)
        t = {n: torch.tensor(values[n], requires_grad=True) for n in ("x", name)}
        feeds = {"x": values["x"], name: values[name]}
        node, expected = tg.prelu(x, w), F.prelu(t["x"], t[name])
        check(node, expected.detach().numpy(), **feeds)
        check_gradients(node, expected, t, **feeds)


def test_glu_is_that_of_torch() -> None:
    values = RNG.normal(size=(2, 6, 3))
    for axis in (1, -2):
        t = torch.tensor(values, requires_grad=True)
        node, expected = tg.glu(tg.input("x", values.shape, tg.f64), axis), F.glu(t, axis)
        check(node, expected.detach().numpy(), x=values)
        check_gradients(node, expected, {"x": t}, x=values)


@pytest.mark.parametrize("build", [tg.elu, tg.selu, tg.celu, tg.mish, tg.hardswish, tg.log_sigmoid, tg.softsign, tg.leaky_relu])
def test_narrow_floats_are_computed_wide_and_rounded_once(build: Callable[[Any], Any]) -> None:
    values = np.linspace(-6, 6, 101).astype(np.float16)
    graph = tg.graph(build(tg.input("x", values.shape, tg.f16)))
    actual = tg.interpret(graph, {"x": values}, mode="as_written").outputs["out"]
    true = np.asarray(tg.interpret(graph, {"x": values}).outputs["out"], np.float64)
    assert (np.abs(np.asarray(actual, np.float64) - true) <= 2.0**-11 * 1.01 * np.abs(true) + 2.0**-24).all()


def test_what_makes_no_sense_is_refused() -> None:
    x = tg.input("x", (2, 3))
    with pytest.raises(ShapeError, match="prelu of"):
        tg.prelu(x, tg.input("w", (2,)))
    with pytest.raises(AttributeValueError, match="split of .* into 2 equal parts"):
        tg.glu(x)
    with pytest.raises(AttributeValueError, match="celu: alpha is 0"):
        tg.celu(x, alpha=0)
    for build in (tg.elu, tg.selu, tg.celu, tg.mish, tg.hardswish, tg.hardsigmoid, tg.softsign, tg.is_inf, tg.nan_to_num, tg.log10):
        with pytest.raises(DTypeError, match=f"{build.__name__} takes float"):
            build(tg.input("i", (3,), tg.i32))
