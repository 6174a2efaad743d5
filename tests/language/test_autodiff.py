"""Gradients: each composite's rule against the derivative of its definition and against finite differences, whole
models against torch, and what `grad` says when asked for something that has no gradient.

Every library composite has a sample here; a new one fails `test_every_library_composite_has_a_sample` until it does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from tensor_graphs.language import atomic, leaves
from tensor_graphs.language import dims as d
from tensor_graphs.language.autodiff import grad, vjp
from tensor_graphs.language.composite import LIBRARY, CompositeOp, composite, expand_all
from tensor_graphs.language.composites.elementary import cos, erf, exp, gelu, log, sigmoid, softplus, tanh
from tensor_graphs.language.composites.normalisation import layer_norm, log_softmax, mean, rms_norm, softmax
from tensor_graphs.language.composites.products import linear
from tensor_graphs.language.dtypes import DType, bf16, bool_, f32, f64, i32, u8, u32
from tensor_graphs.language.errors import AttributeValueError, DTypeError, GraphError, LanguageError, ShapeError
from tensor_graphs.language.graph import graph
from tensor_graphs.language.node import Node, TensorType, walk
from tensor_graphs.language.subgraph import Body
from tensor_graphs.meaning.interpreter import evaluate

RNG = np.random.default_rng(11)


def value(nodes: list[Node], given: dict[Node, Any], use_direct: bool = True, dims: Any = None) -> list[np.ndarray]:
    return [np.asarray(v) for v in evaluate(nodes, given, dims or {}, use_direct=use_direct)]


# ---- samples of every library composite ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Sample:
    """One call of a composite: arrays (None is an absent operand) and attributes. dtypes: of the operands, where they are not those
    of the arrays; what is computed of floats is not rounded."""

    name: str
    operands: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    dtypes: tuple[DType, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} {self.note}".strip()

    @property
    def op(self) -> CompositeOp:
        return LIBRARY[self.name]

    def build(self) -> tuple[list[Node], dict[Node, np.ndarray]]:
        """The outputs, and the value of each operand (floats first in no particular order)."""
        given: dict[Node, np.ndarray] = {}
        nodes: list[Node | None] = []
        for i, a in enumerate(self.operands):
            if a is None:
                nodes.append(None)
                continue
            dtype = self.dtypes[i] if self.dtypes else _DTYPES[a.dtype.kind, a.dtype.itemsize]
            node = leaves.input(f"x{i}", a.shape, dtype)
            nodes.append(node)
            given[node] = a
        made = self.op(*nodes, **self.attrs)
        return (list(made) if isinstance(made, tuple) else [made]), given


_DTYPES: dict[tuple[str, int], DType] = {("f", 8): f64, ("f", 4): f32, ("i", 4): i32, ("u", 4): u32, ("u", 1): u8, ("b", 1): bool_}


def normal(*shape: int, shift: float = 0.0, scale: float = 1.0) -> np.ndarray:
    return np.asarray(RNG.normal(size=shape) * scale + shift)


def positive(*shape: int) -> np.ndarray:
    return np.asarray(RNG.uniform(0.3, 3.0, size=shape))


def apart(*shape: int) -> np.ndarray:
    """Numbers 0.1 apart and 0.05 from whole ones and from zero, in random order: no finite difference crosses a tie."""
    count = math.prod(shape)
    return np.asarray((RNG.permutation(count) - count // 2) * 0.1 + 0.05).reshape(shape)


def integers(low: int, high: int, *shape: int, dtype: Any = np.int32) -> np.ndarray:
    return np.asarray(RNG.integers(low, high, size=shape).astype(dtype))


def distinct(high: int, count: int) -> np.ndarray:
    return np.asarray(RNG.permutation(high)[:count].astype(np.int32))


def flags(*shape: int) -> np.ndarray:
    return np.asarray(RNG.random(size=shape) < 0.5)


KEY = np.array([1, 2], np.uint32)
def leaking() -> Body:
    """One carry, one slice, one number that is the same in each turn; gives what it carries, and something else."""
    h, x, w = (leaves.argument(i, TensorType((3,), f64)) for i in range(3))
    new = tanh(w * h + x)
    return Body((h, x, w), (new, new * x))


SAMPLES = (
    # elementary and gated
    *(Sample(name, (normal(3, 4),))
      for name in ("exp", "expm1", "cos", "tanh", "sigmoid", "silu", "softplus", "erf", "erfc")),
    Sample("tan", (normal(3, 4, scale=0.5),)), Sample("log", (positive(3, 4),)), Sample("log1p", (positive(3, 4) - 1,)),
    *(Sample(name, (normal(3, 4),)) for name in ("atan", "sinh", "cosh", "asinh")),
    *(Sample(name, (np.tanh(normal(3, 4)),)) for name in ("asin", "acos", "atanh", "erfinv")),
    Sample("acosh", (positive(3, 4) + 1,)), Sample("atan2", (normal(3, 4), normal(3, 4))),
    *(Sample(name, (apart(3, 4),)) for name in ("lgamma", "digamma")),
    Sample("relu", (apart(3, 4),)), Sample("relu", (integers(-3, 4, 5),), note="of integers"),
    *(Sample(name, (normal(3, 4, scale=1e-3),), note="near 0") for name in ("expm1", "tanh")),
    Sample("gelu", (normal(3, 4, scale=2),)), Sample("gelu", (normal(3, 4, scale=2),), {"approximate": "tanh"}, "tanh"),
    *(Sample("gated", (normal(3, 4), normal(3, 4)), {"activation": a}, a) for a in ("gelu_tanh", "gelu", "silu")),
    # normalisation
    *(Sample(name, (normal(3, 4, 5),), {"axis": axis}, f"axis {axis}")
      for name in ("softmax", "log_softmax", "logsumexp") for axis in (-1, 1)),
    Sample("logsumexp", (normal(3, 4),), {"axis": 0, "keepdims": True}, "keepdims"),
    *(Sample(name, (normal(3, 4, 5),), {"axes": axes}, f"axes {axes}")
      for name in ("mean", "var") for axes in (None, (0, 2), -1)),
    Sample("var", (normal(3, 4),), {"axes": 1, "keepdims": True}, "keepdims"),
    Sample("rms_norm", (normal(3, 8), normal(8)), {"offset": 1.0}),
    Sample("rms_norm", (normal(2, 3, 8), None), note="bare"),
    Sample("rms_norm", (normal(8), normal(8)), note="one row"),
    Sample("layer_norm", (normal(3, 8), normal(8), normal(8))),
    Sample("layer_norm", (normal(2, 3, 8), None, None), note="bare"),
    Sample("layer_norm", (normal(3, 8), None, normal(8)), note="bias only"),
    # random
    Sample("threefry2x32", (KEY, integers(0, 99, 4, dtype=np.uint32), integers(0, 99, 4, dtype=np.uint32))),
    Sample("random_bits", (KEY,), {"shape": (3, 4)}),
    *(Sample(name, (KEY,), {"shape": (3, 4), "dtype": f64}) for name in ("uniform", "normal")),
    # arithmetic
    *(Sample(name, (apart(3, 4),))
      for name in ("neg", "abs", "square", "sign", "ceil", "trunc", "round", "is_nan", "is_finite")),
    Sample("rsqrt", (positive(3, 4),)), Sample("integer_power", (normal(3, 4),), {"exponent": 5}),
    *(Sample(name, (normal(3, 4), normal(3, 4))) for name in ("sub", "equals", "less_equal")),
    Sample("min", (apart(3, 4), apart(3, 4) + 0.05)),
    *(Sample(name, (normal(3, 4, scale=3), positive(3, 4))) for name in ("div", "floor_div", "mod")),
    Sample("pow", (positive(3, 4), normal(3, 4))),
    Sample("pow", (integers(-5, 6, 7), integers(0, 5, 7)), note="of integers"),
    Sample("bit_or", (integers(0, 99, 5), integers(0, 99, 5))),
    Sample("reduce_min", (apart(3, 4),), {"axes": (1,)}),
    *(Sample(name, (flags(3, 4),), {"axes": (1,)}) for name in ("any", "all")),
    # products
    Sample("dot", (normal(3, 4), normal(4, 5))), Sample("dot", (normal(2, 1, 3, 4), normal(5, 4, 2)), note="broadcast"),
    Sample("dot", (normal(4), normal(4)), note="of vectors"),
    Sample("dot", (normal(2, 3, 4), normal(4)), note="by a vector"),
    Sample("linear", (normal(2, 3, 4), normal(5, 4), normal(5))),
    Sample("linear", (normal(3, 4), normal(5, 4), None), note="bare"),
    Sample("dequantize", (integers(0, 60, 3, 34).astype(np.uint8),), {"format": "Q8_0"}),
    Sample("quantize", (normal(2, 32),), {"format": "Q4_0"}),
    Sample("block_linear", (normal(2, 32).astype(np.float32), integers(0, 60, 3, 34).astype(np.uint8), normal(3)),
           {"format": "Q8_0"}),
    Sample("rounded_block_linear", (normal(2, 32).astype(np.float32), integers(0, 60, 3, 34).astype(np.uint8), normal(3)),
           {"format": "Q8_0", "to": "int8x2"}),
    Sample("rounded", (normal(2, 3).astype(np.float32),), {"to": "tf32"}),
    Sample("rounded_linear", (normal(2, 4).astype(np.float32), normal(5, 4).astype(np.float32), normal(5)),
           {"to": "bf16x2"}),
    Sample("rounded_dot", (normal(2, 4).astype(np.float32), normal(4, 5).astype(np.float32)), {"to": "tf32"}),
    Sample("scaled_linear", (normal(2, 3, 4), normal(5, 4), positive(2, 3, 1), positive(5), normal(5)), {"dtype": f32},
           dtypes=(bf16, bf16, f32, f32, f32)),
    Sample("scaled_linear", (normal(3, 4), normal(5, 4), None, positive(), None), {"dtype": f32}, "one scale",
           dtypes=(bf16, bf16, f32, f32, f32)),
    Sample("gather_linear", (normal(2, 1, 4), normal(3, 5, 4), integers(-1, 4, 2, 2), normal(3, 5))),
    Sample("gather_linear", (normal(2, 3, 4), normal(3, 5, 4), integers(0, 3, 2, 3), None), note="bare, a row for each"),
    Sample("attention", (normal(3, 4, 6), normal(5, 2, 6), normal(5, 2, 6), None), {"scale": 0.4}),
    Sample("attention", (normal(3, 2, 6), normal(5, 2, 6), normal(5, 2, 6), None),
           {"scale": 0.4, "causal": True, "start": 2, "window": 2, "softcap": 3.0}, "causal, window, softcap"),
    Sample("attention",
           (normal(2, 2, 4), normal(3, 2, 4), normal(3, 2, 4), np.array([[True, False, True], [False] * 3])),
           {"scale": 1.0}, "masked, one row sees nothing"),
    Sample("batched_attention", (normal(2, 3, 4, 6), normal(2, 5, 2, 6), normal(2, 5, 2, 3), None),
           {"scale": 0.4, "causal": True, "start": 2, "softcap": 3.0}, "causal, softcap"),
    Sample("batched_attention", (normal(2, 2, 2, 4), normal(2, 3, 2, 4), normal(2, 3, 2, 4),
                                 np.array([[[True, False, True], [False] * 3], [[True] * 3, [False, True, False]]])),
           {"scale": 1.0}, "a mask for each sequence"),
    Sample("paged_attention", (normal(3, 4, 6), normal(8, 2, 6), normal(8, 2, 6), np.array([[1, 3], [1, 3], [0, 2]], np.int32),
                               np.array([1, 2, -1], np.int32)), {"page": 2, "scale": 0.4}, "one token sees nothing"),
    Sample("paged_attention", (normal(2, 2, 4), normal(6, 2, 4), normal(6, 2, 3), np.array([[2, 0], [1, 9]], np.int32),
                               np.array([3, 2], np.int32)),
           {"page": 2, "scale": 0.4, "window": 2, "softcap": 3.0}, "window, softcap, a page outside of the pool"),
    Sample("paged_attention", (normal(2, 4, 4), normal(6, 2, 4), normal(6, 2, 3), np.array([[2, 0], [1, 9]], np.int32),
                               np.array([3, -1], np.int32), normal(4)), {"page": 2, "scale": 0.4}, "sinks"),
    # positions
    Sample("rope_table", (integers(0, 50, 4),), {"head_dim": 6, "theta": 10000.0}),
    Sample("rope", (normal(3, 2, 8), normal(3, 4), normal(3, 4))),
    # indexing
    Sample("embedding", (normal(7, 3), integers(0, 7, 4)), {"scale": 2.0, "dtype": f64}),
    Sample("one_hot", (integers(0, 5, 4),), {"size": 5}), Sample("argmax", (apart(3, 4),), {"axis": 1}),
    Sample("concat", (normal(2, 3), normal(1, 3), normal(4, 3)), {"axis": 0}), Sample("topk", (apart(3, 6),), {"k": 2}),
    Sample("linear_argmax", (apart(2, 3), apart(4, 3)), {}),
    Sample("cumsum", (normal(3, 4),), {"axis": 0}), Sample("prod", (normal(3, 5),), {"axes": (1,)}),
    # windows
    Sample("windows", (normal(1, 2, 5, 6),), {"size": (2, 3), "stride": (1, 2), "padding": ((1, 0), (0, 1)), "dilation": (1, 1)}),
    Sample("conv", (normal(1, 2, 5, 6), normal(4, 1, 2, 3), normal(4)),
           {"stride": (1, 2), "padding": ((1, 0), (0, 1)), "dilation": (1, 1), "groups": 2}, "in groups"),
    Sample("conv", (normal(2, 3, 7), normal(4, 3, 2), None),
           {"stride": (1,), "padding": ((0, 0),), "dilation": (2,), "groups": 1}, "bare, with gaps"),
    Sample("max_pool", (apart(1, 2, 4, 6),), {"size": (2, 3), "stride": (2, 3), "padding": ((0, 0), (0, 0)), "dilation": (1, 1)}),
    *(Sample("avg_pool", (normal(1, 2, 4, 6),),
             {"size": (2, 3), "stride": (2, 2), "padding": ((1, 0), (0, 1)), "count_padding": counted}, f"counts: {counted}")
      for counted in (False, True)),
    Sample("batch_norm", (normal(2, 3, 4), normal(3), positive(3), normal(3), normal(3))),
    Sample("group_norm", (normal(2, 6, 4), normal(6), normal(6)), {"groups": 3}),
    *(Sample("upsample", (normal(1, 2, 3, 4),), {"scale": (2, 2), "mode": mode}, mode) for mode in ("nearest", "linear")),
    *(Sample("resize", (normal(1, 2, 3, 4),), {
        "size": (4, 3), "scale": (), "mode": mode, "coordinates": at, "rounding": "floor", "antialias": smooth, "cubic": -0.75,
        "exclude_outside": smooth}, f"{mode}, {at}")
      for mode, at, smooth in (("nearest", "asymmetric", False), ("linear", "align_corners", False),
                               ("cubic", "half_pixel", True))),
    # memory
    Sample("write_rows", (normal(6, 3), normal(2, 3)), {"start": 3}),
    Sample("scan", (normal(3), normal(4, 3), normal(3)), {"step": leaking(), "carries": 1, "slices": 1}),
    Sample("scan", (normal(3), normal(4, 3), normal(3)), {"step": leaking(), "carries": 1, "slices": 1, "reverse": True}, "back"),
    Sample("write_rows", (normal(6, 3), normal(2, 3)), {"start": 5}, "beyond the end"),
    Sample("write_at_index", (normal(6, 3), normal(2, 3), distinct(6, 2))),
)
each_sample = pytest.mark.parametrize("sample", SAMPLES, ids=str)


def test_every_library_composite_has_a_sample():
    missing = sorted(set(LIBRARY) - {s.name for s in SAMPLES})
    assert not missing, f"add a Sample for {missing}"


def rounds_on_purpose(sample: Sample) -> bool:
    """Return whether the definition rounds what the direct evaluation does not; test_rounded.py compares these."""
    return LIBRARY[sample.name].facts.licence


@pytest.mark.parametrize("sample", [s for s in SAMPLES if not rounds_on_purpose(s)], ids=str)
def test_the_direct_evaluation_is_what_the_definition_means(sample: Sample):
    outputs, given = sample.build()
    defined, direct = value(outputs, given, use_direct=False), value(outputs, given, use_direct=True)
    for output, a, b in zip(outputs, defined, direct, strict=True):
        assert a.shape == b.shape == output.shape
        if output.dtype.kind == "float":
            np.testing.assert_allclose(b, a, rtol=1e-13, atol=1e-14)
        else:
            assert a.dtype == b.dtype == output.dtype.numpy
            np.testing.assert_array_equal(a, b)


def differentiable(sample: Sample) -> bool:
    outputs, given = sample.build()
    return any(o.dtype.kind == "float" for o in outputs) and any(n.dtype.kind == "float" for n in given)


with_gradient = pytest.mark.parametrize("sample", [s for s in SAMPLES if differentiable(s)], ids=str)


def pulled_back(sample: Sample) -> tuple[list[Node], list[Node], list[Node], dict[Node, np.ndarray]]:
    """The float outputs, a cotangent for each, the float operands, and all values (cotangents random)."""
    outputs, given = sample.build()
    outputs = [o for o in outputs if o.dtype.kind == "float"]
    rng = np.random.default_rng(12)
    seeds = [leaves.input(f"g{k}", o.shape, o.dtype) for k, o in enumerate(outputs)]
    wrt = [n for n in given if n.dtype.kind == "float"]
    return outputs, seeds, wrt, given | {s: rng.normal(size=s.shape) for s in seeds}


@pytest.mark.parametrize("sample", [s for s in SAMPLES if differentiable(s) and not rounds_on_purpose(s)], ids=str)
def test_a_gradient_rule_agrees_with_the_derivative_of_the_definition(sample: Sample):
    outputs, seeds, wrt, given = pulled_back(sample)
    by_rule = vjp(outputs, seeds, wrt)
    by_definition = vjp(expand_all(outputs), seeds, wrt)
    assert [g.type for g in by_rule] == [w.type for w in wrt]
    for a, b in zip(value(by_rule, given), value(by_definition, given), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-11)


@with_gradient
def test_a_gradient_agrees_with_finite_differences(sample: Sample):
    outputs, seeds, wrt, given = pulled_back(sample)
    gradients = value(vjp(outputs, seeds, wrt), given)
    rng, step = np.random.default_rng(13), 1e-5

    def weighted(at: dict[Node, np.ndarray]) -> float:
        return float(sum((o * at[s]).sum() for o, s in zip(value(outputs, at), seeds, strict=True)))

    for w, g in zip(wrt, gradients, strict=True):
        direction = rng.normal(size=w.shape)
        moved = [weighted(given | {w: given[w] + sign * step * direction}) for sign in (1, -1)]
        expected, found = (moved[0] - moved[1]) / (2 * step), float((g * direction).sum())
        assert abs(found - expected) <= 1e-6 * max(abs(expected), float(np.abs(g).max(initial=0.0)), 1e-2), w


def test_the_finite_differences_would_see_a_gradient_that_is_off_by_one_percent():
    op = composite(lambda x: exp(x), name="off", gradient=lambda node, grads: {"x": grads[0] * node * 1.01}, gradient_checked=False)
    x = leaves.input("x", (4,))
    a = normal(4)
    g = value([grad(op(x).sum(), x)], {x: a})[0]
    assert np.abs(g - (np.exp(a + 1e-5) - np.exp(a - 1e-5)) / 2e-5).max() > 1e-6 * np.abs(g).max()


# ---- accuracy where the derivative of the definition would fail ------------------------------------------------------


def test_gradients_stay_accurate_in_the_tails():
    x = leaves.input("x", (6,), f64)
    a = np.array([-600.0, -40.0, -1e-9, 1e-9, 40.0, 600.0])
    for op, slope in ((exp, np.exp(a)), (sigmoid, np.exp(-np.abs(a)) / (1 + np.exp(-np.abs(a))) ** 2),
                      (softplus, 1 / (1 + np.exp(-a))), (erf, 2 / np.sqrt(np.pi) * np.exp(-a * a))):
        found = value([grad(op(x).sum(), x)], {x: a}, use_direct=False)[0]
        np.testing.assert_allclose(found, slope, rtol=1e-14, atol=1e-300, err_msg=op.name)
    for op in (tanh, gelu, lambda x: gelu(x, approximate="tanh")):
        found = value([grad(op(x).sum(), x)], {x: a}, use_direct=False)[0]
        assert np.isfinite(found).all()


def test_gradients_at_infinities_are_the_limits():
    x = leaves.input("x", (2,))
    ends = np.array([-np.inf, np.inf])
    for op, limits in ((exp, [0, np.inf]), (tanh, [0, 0]), (sigmoid, [0, 0]), (softplus, [0, 1]), (erf, [0, 0])):
        found = value([grad(op(x).sum(), x)], {x: ends}, use_direct=False)[0]
        np.testing.assert_array_equal(found, limits, err_msg=op.name)


def test_a_masked_softmax_sends_no_gradient_and_no_nan_to_what_is_masked():
    x = leaves.input("x", (2, 3))
    seed = leaves.input("g", (2, 3))
    a = np.array([[0.3, -np.inf, 1.0], [-np.inf, 2.0, 0.5]])
    for op in (softmax, lambda x: exp(log_softmax(x))):
        (g,) = value(vjp([op(x)], [seed], [x]), {x: a, seed: normal(2, 3)})
        assert np.isfinite(g).all() and g[0, 1] == 0 and g[1, 0] == 0


# ---- second derivatives ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op, second", [
    (exp, np.exp), (log, lambda x: -1 / x**2), (tanh, lambda x: -2 * np.tanh(x) / np.cosh(x) ** 2),
    (cos, lambda x: -np.cos(x)), (erf, lambda x: -4 / np.sqrt(np.pi) * x * np.exp(-x * x)),
], ids=lambda f: getattr(f, "name", ""))
def test_gradients_of_gradients_are_second_derivatives(op: Any, second: Callable[[np.ndarray], np.ndarray]):
    x = leaves.input("x", (5,), f64)
    a = positive(5)
    first = grad(op(x).sum(), x)
    np.testing.assert_allclose(value([grad(first.sum(), x)], {x: a})[0], second(a), rtol=1e-12)


# ---- whole models against torch --------------------------------------------------------------------------------------


def test_the_gradients_of_a_two_layer_classifier_are_those_of_torch():
    x, labels = leaves.input("x", (6, 8), f64), leaves.input("labels", (6,), i32)
    shapes = {"norm": (8,), "shift": (8,), "up": (16, 8), "bias": (16,), "scale": (16,), "down": (5, 16)}
    states = {name: leaves.state(name, shape, f64).read() for name, shape in shapes.items()}    # what learns is a state
    arrays = {name: normal(*shape) for name, shape in shapes.items()}
    a, y = normal(6, 8), integers(0, 5, 6)

    h = linear(layer_norm(x, states["norm"], states["shift"]), states["up"], states["bias"])
    h = rms_norm(gelu(h), states["scale"], offset=1.0)
    logits = linear(h, states["down"])
    picked = LIBRARY["one_hot"](labels, size=5, dtype=f64) * log_softmax(logits)
    loss = -mean(picked.sum(1))
    gradients = grad(loss, list(states.values()))

    t = {name: torch.tensor(v, requires_grad=True) for name, v in arrays.items()}
    th = torch.nn.functional.layer_norm(torch.tensor(a), (8,), t["norm"], t["shift"], eps=1e-5) @ t["up"].T + t["bias"]
    th = torch.nn.functional.rms_norm(torch.nn.functional.gelu(th), (16,), t["scale"] + 1, eps=1e-6)
    reference = torch.nn.functional.cross_entropy(th @ t["down"].T, torch.tensor(y, dtype=torch.int64))
    reference.backward()

    found = value([loss, *gradients], {x: a, labels: y, **{states[n]: v for n, v in arrays.items()}})
    np.testing.assert_allclose(found[0], reference.item(), rtol=1e-12)
    for name, g in zip(shapes, found[1:], strict=True):
        np.testing.assert_allclose(g, t[name].grad.numpy(), rtol=1e-9, atol=1e-13, err_msg=name)


def test_gradients_of_a_graph_with_a_symbolic_dim_hold_for_each_size():
    n = d.dim("n", 1, 64)
    x, w = leaves.input("x", (n, 4), f64), leaves.parameter("w", (3, 4), f64)
    gradient = grad(mean(tanh(linear(x, w))), w)
    assert gradient.shape == (3, 4)
    b = normal(3, 4)
    for size in (1, 5):
        a = normal(size, 4)
        t = torch.tensor(b, requires_grad=True)
        torch.tanh(torch.tensor(a) @ t.T).mean().backward()
        np.testing.assert_allclose(value([gradient], {x: a, w: b}, dims={"n": size})[0], t.grad.numpy(), rtol=1e-12)


# ---- how gradients travel --------------------------------------------------------------------------------------------


def test_a_tensor_used_twice_gets_the_sum():
    x = leaves.input("x", (3,))
    a = normal(3)
    np.testing.assert_allclose(value([grad((x * x + x).sum(), x)], {x: a})[0], 2 * a + 1, rtol=1e-14)


def test_a_composite_given_one_tensor_twice_or_an_operand_made_of_another_one_is_told_apart():
    product = composite(lambda x, y: x * exp(y), name="product")
    x = leaves.input("x", (3,))
    a = normal(3)
    for other, k in ((x, 1), (x * 2.0, 2)):
        found = value([grad(product(x, other).sum(), x)], {x: a})[0]
        np.testing.assert_allclose(found, np.exp(k * a) * (1 + k * a), rtol=1e-13)


def test_only_the_outputs_in_use_of_a_composite_with_several_send_gradients():
    both = composite(lambda x, y: (x * y, x + y), name="both")
    x, y = leaves.input("x", (3,)), leaves.input("y", (3,))
    a, b = normal(3), normal(3)
    product, total = both(x, y)
    for output, expected in ((product, b), (total, np.ones(3)), (product + total, b + 1)):
        np.testing.assert_allclose(value([grad(output.sum(), x)], {x: a, y: b})[0], expected, rtol=1e-14)
    assert not any(n.is_op("mul") for n in walk([grad(total.sum(), x)]))       # nothing of the product is left in it


def test_a_tensor_in_between_has_a_gradient_too():
    x = leaves.input("x", (3,))
    h = exp(x)
    a = normal(3)
    to_h, to_x = value(grad((h * h).sum(), [h, x]), {x: a})
    np.testing.assert_allclose(to_h, 2 * np.exp(a), rtol=1e-14)
    np.testing.assert_allclose(to_x, 2 * np.exp(2 * a), rtol=1e-14)


def test_what_the_output_does_not_depend_on_gets_zeros_of_its_own_type():
    x, other = leaves.input("x", (3,)), leaves.input("other", (2, 2), bf16)
    found = grad(x.sum(), [other, x])
    assert found[0].type == other.type
    np.testing.assert_array_equal(value(found, {x: normal(3)})[0], np.zeros((2, 2)))


def test_integers_stop_the_gradient():
    x = leaves.input("x", (3,))
    rounded = x.cast(i32).cast(f32)
    a = np.array([0.5, 1.5, 2.5])
    np.testing.assert_array_equal(value([grad((rounded * x).sum(), x)], {x: a})[0], [0, 1, 2])


def test_a_gradient_has_the_dtype_of_what_it_is_taken_by():
    x, w = leaves.input("x", (2, 4)), leaves.parameter("w", (3, 4), bf16)
    assert grad(linear(x, w).sum(), w).dtype == bf16
    assert grad(linear(x.cast(f64), w).sum().cast(f32), x).dtype == f32


def test_the_gradient_of_the_output_itself_is_one():
    x = leaves.input("x", ())
    assert value([grad(x, x)], {x: np.array(3.0)})[0] == 1


def test_cotangents_weigh_the_outputs_and_none_is_zero():
    x, seed = leaves.input("x", (3,)), leaves.input("g", (3,))
    a, g = normal(3), normal(3)
    (found,) = value(vjp([exp(x), x * x, tanh(x)], [seed, seed, None], [x]), {x: a, seed: g})
    np.testing.assert_allclose(found, g * (np.exp(a) + 2 * a), rtol=1e-13)


def test_a_graph_deeper_than_the_stack_of_python_is_differentiated():
    x = leaves.input("x", ())
    y = x
    for _ in range(3000):
        y = atomic.add(y, x)
    assert value([grad(y, x)], {x: np.array(1.0)})[0] == 3001


def test_only_what_leads_to_wrt_is_differentiated():
    opaque = composite(lambda x: exp(x), name="sorted_of", opaque=True)
    x, y = leaves.input("x", (3,)), leaves.input("y", (3,))
    gradient = grad((opaque(y) * x).sum(), x)                                  # y's side is opaque, and does not matter
    np.testing.assert_allclose(value([gradient], {x: normal(3), y: np.zeros(3)}, use_direct=False)[0], np.ones(3))


# ---- errors ----------------------------------------------------------------------------------------------------------


def said(build: Callable[[], Any], error: type[LanguageError]) -> str:
    """The message without its place and without the quoted line, which move with this file."""
    with pytest.raises(error) as caught:
        build()
    source = caught.value.location.source() if caught.value.location else ""
    text = str(caught.value).replace(str(caught.value.location), "HERE")
    return "\n".join(line for line in text.split("\n") if line.strip() != source)


def test_an_output_that_is_no_scalar_is_refused():
    x = leaves.input("x", (3,))
    assert said(lambda: grad(exp(x), x), ShapeError) == (
        "ShapeError at HERE: grad: the output is f32[3], a scalar is needed\n"
        "  fix: reduce it, output.sum(), or give the gradient of each element: tg.vjp(outputs, cotangents, wrt)")


def test_integers_are_refused_as_output_and_as_wrt():
    x, i = leaves.input("x", (3,)), leaves.input("i", (3,), i32)
    assert said(lambda: grad(i.sum(), x), DTypeError) == (
        "DTypeError at HERE: grad: the output is i32[], only floats have gradients\n"
        "  fix: cast it to a float dtype before it is used")
    assert "wrt[1] is i32[3], only floats have gradients" in said(lambda: grad(x.sum(), [x, i]), DTypeError)


def test_a_state_is_differentiated_by_its_value():
    state = leaves.state("s", (3,))
    assert "wrt[0] is State, a tensor is needed" in said(lambda: grad(state.read().sum(), [state]), DTypeError)


def test_what_is_no_tensor_is_told_what_to_give_instead():
    x = leaves.input("x", (3,))
    for act, fix in ((lambda: grad(exp, x), "call it"), (lambda: grad(graph(x.sum()), x), "graph.outputs[name]"),
                     (lambda: grad(x.sum(), "x"), "not its name"), (lambda: grad(x.sum(), graph(x)), "graph.outputs[name]")):
        assert said(act, DTypeError).endswith(fix)
    assert said(lambda: vjp(x, [x], [x]), AttributeValueError).endswith("fix: tg.vjp([output], [cotangent], [tensor])")


def test_an_opaque_composite_on_the_way_is_named():
    opaque = composite(lambda x: exp(x), name="sorted_of", opaque=True)
    x = leaves.input("x", (3,))
    assert said(lambda: grad(opaque(x).sum(), x), GraphError) == (
        "GraphError at HERE: sorted_of has no gradient, and one has to pass through it\n"
        "  fix: differentiate with respect to something after it, or give the composite gradient=…")


def test_cotangents_that_do_not_fit_are_refused():
    x = leaves.input("x", (3,))
    assert "1 outputs and 2 cotangents" in said(lambda: vjp([x], [x, x], [x]), AttributeValueError)
    longer, wider = leaves.input("g", (4,)), leaves.input("g", (3,), f64)
    assert "output 0 is f32[3], its cotangent f32[4]" in said(lambda: vjp([x], [longer], [x]), ShapeError)
    assert "output 0 is f32[3], its cotangent f64[3]" in said(lambda: vjp([x], [wider], [x]), DTypeError)


def test_a_rule_that_returns_the_wrong_type_or_name_is_caught():
    x = leaves.input("x", (3,))
    wrong = composite(lambda x: exp(x), name="wrong", gradient=lambda node, grads: {"x": grads[0].sum()})
    message = said(lambda: grad(wrong(x).sum(), x), LanguageError)
    assert "the gradient rule of wrong gave f32[] for an operand of type f32[3]" in message
    misnamed = composite(lambda x: exp(x), name="misnamed", gradient=lambda node, grads: {"y": grads[0]})
    assert "names ['y'], its operands here are ['x']" in said(lambda: grad(misnamed(x).sum(), x), LanguageError)
