"""Resizing against torch's interpolate and against ONNX's reference, its gradients, dims, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tensor_graphs as tg
from tensor_graphs.language.errors import AttributeValueError, DTypeError, ShapeError
from tests.language.agreement import check, check_gradients

A = np.random.default_rng(8).normal(size=(1, 2, 4, 5))
X = tg.input("x", A.shape)
SMOOTH: dict[str, Any] = {"antialias": True, "exclude_outside": True}
AS_TORCH: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("nearest", {}, {}), ("nearest-exact", {}, {"coordinates": "half_pixel", "rounding": "round_prefer_ceil"}),
    ("bilinear", {}, {"mode": "linear"}), ("bilinear", {"align_corners": True}, {"mode": "linear", "coordinates": "align_corners"}),
    ("bicubic", {}, {"mode": "cubic"}), ("bicubic", {"align_corners": True}, {"mode": "cubic", "coordinates": "align_corners"}),
    ("bilinear", {"antialias": True}, {"mode": "linear", **SMOOTH}),
    ("bicubic", {"antialias": True}, {"mode": "cubic", "cubic": -0.5, **SMOOTH}),
]


@pytest.mark.parametrize("size", [(3, 5), (8, 10), (7, 2), (1, 1)], ids=str)
@pytest.mark.parametrize("mode, theirs, ours", AS_TORCH, ids=str)
def test_resizing_to_a_size_is_torchs_interpolate_and_so_is_its_gradient(mode, theirs, ours, size):
    t = torch.tensor(A, requires_grad=True)
    expected, node = torch.nn.functional.interpolate(t, size, mode=mode, **theirs), tg.resize(X, size, **ours)
    check(node, expected.detach().numpy(), x=A)
    check_gradients(node, expected, {"x": t}, x=A)


@pytest.mark.parametrize("scale", [(1.7, 0.6), (2.0, 1.3), (0.25, 0.5)], ids=str)
@pytest.mark.parametrize("mode, ours", [("nearest", "nearest"), ("bilinear", "linear"), ("bicubic", "cubic")])
def test_resizing_by_factors_is_torchs_interpolate(mode, ours, scale):
    expected = torch.nn.functional.interpolate(torch.tensor(A), scale_factor=scale, mode=mode)
    check(tg.resize(X, scale=scale, mode=ours), expected.numpy(), x=A)


AS_ONNX: list[dict[str, Any]] = [
    *({"mode": "nearest", "coordinates": at, "rounding": how} for at, how in (
        ("half_pixel", "round_prefer_floor"), ("asymmetric", "ceil"), ("align_corners", "round_prefer_ceil"),
        ("pytorch_half_pixel", "floor"), ("half_pixel_symmetric", "round_prefer_floor"))),
    *({"mode": mode, "coordinates": at} for mode, at in (
        ("linear", "asymmetric"), ("linear", "half_pixel_symmetric"), ("cubic", "align_corners"), ("cubic", "pytorch_half_pixel"))),
    {"mode": "cubic", "coordinates": "half_pixel", "exclude_outside": True, "cubic": -0.5},
    {"mode": "linear", "coordinates": "half_pixel", "antialias": True},
]


# with align_corners and a scale, ONNX takes the unrounded size, torch the rounded one
TARGETS = [(ours, target) for ours in AS_ONNX for target in ({"size": (3, 7)}, {"scale": (2.0, 0.75)})
           if ours["coordinates"] != "align_corners" or "size" in target]


@pytest.mark.parametrize("ours, target", TARGETS, ids=str)
def test_resizing_is_onnxs_resize(ours, target):
    values = A[0, 0].astype(np.float32)
    names = ["x", "", "scales", ""] if "scale" in target else ["x", "", "", "sizes"]
    feeds = [helper.make_tensor("scales", TensorProto.FLOAT, [2], target["scale"]) if "scale" in target else
             helper.make_tensor("sizes", TensorProto.INT64, [2], target["size"])]
    node = helper.make_node("Resize", names, ["y"], mode=ours["mode"], coordinate_transformation_mode=ours["coordinates"],
                            nearest_mode=ours.get("rounding", "floor"), cubic_coeff_a=ours.get("cubic", -0.75),
                            antialias=int(ours.get("antialias", False)), exclude_outside=int(ours.get("exclude_outside", False)))
    graph = helper.make_graph([node], "one", [helper.make_tensor_value_info("x", TensorProto.FLOAT, values.shape)],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], feeds)
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
    (expected,) = ReferenceEvaluator(model).run(None, {"x": values})
    actual = tg.interpret(tg.graph(tg.resize(tg.input("x", values.shape), **ours, **target)), {"x": values}).outputs["out"]
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-6)


def test_an_index_does_not_depend_on_how_a_ratio_is_rounded():
    x = tg.input("x", (1,), tg.i32)
    assert 49 * (1 / 49) < 1                                       # as floats
    values = np.arange(2, dtype=np.int32)
    check(tg.resize(tg.input("x", (2,), tg.i32), 98), np.repeat(values, 49), x=values)
    check(tg.resize(tg.input("x", (2,), tg.i32), 97), np.arange(97) * 2 // 97, x=values)
    assert tg.resize(x, 1) is x


def test_by_whole_factors_it_is_an_upsample_whose_sizes_may_be_dims():
    x = tg.input("x", (3, tg.dim("n", 1, 9)))
    assert tg.resize(x, scale=2) is tg.upsample(x, 2)
    assert tg.resize(x, scale=3, mode="linear") is tg.upsample(x, 3, mode="linear")
    assert tg.resize(x, scale=3, coordinates="half_pixel", rounding="round_prefer_floor") is tg.upsample(x, 3)


@pytest.mark.parametrize("mode, theirs, coordinates", [
    ("nearest", {"mode": "nearest"}, "asymmetric"), ("linear", {"mode": "bilinear"}, "half_pixel"),
    ("cubic", {"mode": "bicubic", "align_corners": True}, "align_corners")])
def test_sizes_may_be_dims(mode, theirs, coordinates):
    h, k = tg.dim("h", 2, 99), tg.dim("k", 1, 99)
    node = tg.resize(tg.input("x", (1, 2, h, 5)), (k, 7), mode=mode, coordinates=coordinates)
    for size in (1, 3, 9):
        expected = torch.nn.functional.interpolate(torch.tensor(A), (size, 7), **theirs)
        check(node, expected.numpy(), {"h": 4, "k": size}, x=A)
    smooth = tg.resize(tg.input("x", (1, 2, h, 5)), scale=(0.5, 0.6), mode="linear", **SMOOTH)
    expected = torch.nn.functional.interpolate(torch.tensor(A), (2, 3), mode="bilinear", antialias=True)
    check(smooth, expected.numpy(), {"h": 4}, x=A)


def test_what_makes_no_sense_is_refused():
    x = tg.input("x", (2, 3))
    for call, text in ((lambda: tg.resize(x), r"size is \(\) and scale is \(\)"), (lambda: tg.resize(x, 0), "size is 0"),
                       (lambda: tg.resize(x, scale=(1.0, -1.0)), "scale is"), (lambda: tg.resize(x, (1, 1, 1)), "size is"),
                       (lambda: tg.resize(x, 4, mode="area"), "mode is 'area'"),
                       (lambda: tg.resize(x, 4, mode="linear", coordinates="corners"), "coordinates is 'corners'"),
                       (lambda: tg.resize(x, 4, rounding="up"), "rounding is 'up'"),
                       (lambda: tg.resize(x, 4, antialias=True), "antialias with mode 'nearest'")):
        with pytest.raises(AttributeValueError, match=text):
            call()
    with pytest.raises(ShapeError, match="with antialias: axis 1 from n to 4 elements"):
        tg.resize(tg.input("x", (2, tg.dim("n", 1, 9))), 4, mode="linear", antialias=True)
    with pytest.raises(ShapeError, match="axis 1 from 0 to 4 elements"):
        tg.resize(tg.input("x", (2, 0)), 4)
    with pytest.raises(DTypeError, match=r"resize \(linear\) takes float"):
        tg.resize(tg.input("i", (4,), tg.i32), 7, mode="linear")
