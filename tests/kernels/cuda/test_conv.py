"""conv_tiles.cu: convolutions by tensor cores. Texts are compiled without a GPU, and the form for operands that lie anywhere runs
as C++ on the host; the tiles themselves need a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.devices import nvrtc
from tensor_graphs.devices.device import Device
from tensor_graphs.devices.device_registry import device_named
from tensor_graphs.kernels.cuda import backend, conv
from tensor_graphs.kernels.kernel import LaunchCall, Preparation, Spec
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.node import Node
from tests.codegen import emulated, launched

N = tg.dim("n", 0, 64)
KINDS = [(tg.bf16, tg.bf16), (tg.f16, tg.f16), (tg.f32, tg.bf16), (tg.f32, tg.f32)]
NEAR = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2e-6}
"""of a result beside the largest: one rounding; of f32 those of sums on tensor cores"""


def conv_of(kinds: tuple[DType, DType], size: Sequence[int], channels: int, outputs: int, window: Sequence[int], *,
            biased: bool = False, count: Dim = N, **how: Any) -> Node:
    x = tg.input("x", (count, channels, *size), kinds[0])
    w = tg.input("w", (outputs, channels, *window), kinds[1])
    return tg.conv(x, w, tg.input("b", (outputs,)) if biased else None, **how)


def drawn(y: Node, images: int, seed: int = 1) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    return [draw.standard_normal([int(d.evaluate(s, {"n": images})) for s in i.shape]).astype(i.dtype.numpy) for i in y.inputs]


def exact(y: Node, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The definition's, of operands in float64."""
    wide = {f"a{i}": a.astype(np.float64) for i, a in enumerate(arrays)}
    attrs = {name: value for name, value in y.attrs.items() if name not in ("groups", "absent")}
    out = tg.conv(*(tg.input(name, a.shape, tg.f64) for name, a in wide.items()), **attrs)
    return np.asarray(tg.interpret(tg.graph({"y": out}), wide).outputs["y"], np.float64)


def prepared(run: Callable[[Preparation, Sequence[np.ndarray]], list[np.ndarray]], y: Node,
             arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    for each in conv.conv_prepares(Spec.of(y)):
        found += run(each, [arrays[i] for i in each.operands])
    return found


def convolved(device: Device, y: Node, arrays: Sequence[np.ndarray], dims: Mapping[str, int], shift: int = 0) -> np.ndarray:
    def run(each: Preparation, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
        assert isinstance(each.call, LaunchCall)
        outs = [tg.input(f"p{i}", t.shape, t.dtype) for i, t in enumerate(each.outputs)]
        return launched.run_call(device, each.call, outs, operands, dims)

    found, = launched.run_call(device, conv.conv(Spec.of(y)), [y], [*arrays, *prepared(run, y, arrays)], dims, shift)
    return found


SHAPES: list[dict[str, Any]] = [
    {"size": (28, 28), "channels": 64, "outputs": 64, "window": (3, 3), "padding": 1, "biased": True},
    {"size": (9, 7), "channels": 3, "outputs": 5, "window": (3, 2), "stride": (2, 3), "padding": (2, 1), "dilation": (2, 1)},
    {"size": (5, 5), "channels": 72, "outputs": 130, "window": (1, 1), "biased": True},
    {"size": (17, 33), "channels": 136, "outputs": 40, "window": (5, 3), "padding": ((0, 4), (3, 1)), "stride": 2},
    {"size": (14, 14), "channels": 512, "outputs": 512, "window": (3, 3), "padding": 1},
    {"size": (40,), "channels": 20, "outputs": 33, "window": (4,), "padding": 2, "dilation": 3, "biased": True},
    {"size": (130, 129), "channels": 8, "outputs": 8, "window": (7, 7), "padding": 3},
    {"size": (56, 50), "channels": 3, "outputs": 64, "window": (7, 7), "padding": 3, "stride": 2},
    {"size": (12, 300), "channels": 24, "outputs": 16, "window": (2, 5), "padding": (0, 2), "dilation": (3, 2), "stride": (1, 4)},
]


TEXTS = [*((each, SHAPES[0]) for each in KINDS), *((KINDS[i % 4], each) for i, each in enumerate(SHAPES[1:]))]
FEW_TEXTS = (0, len(KINDS) - 1, len(KINDS), len(KINDS) + 6)
"""of narrow numbers and of floats, with holes, and of few channels"""


@pytest.mark.parametrize(("kinds", "shape"), [pytest.param(*each, marks=[] if i in FEW_TEXTS else pytest.mark.long)
                                              for i, each in enumerate(TEXTS)], ids=str)
def test_texts_compile(kinds: tuple[DType, DType], shape: Mapping[str, Any]) -> None:
    y = conv_of(kinds, **shape)
    spec = Spec.of(y)
    assert conv.conv_takes(spec) is None
    call = conv.conv(spec)
    assert all(launch.shared <= 227 << 10 for launch in call.launches)
    for architecture in ("sm_90a", "sm_80")[:1 + (shape is SHAPES[0])]:         # elsewhere without the tiles
        assert nvrtc.compiled(call.text, architecture, backend.HEADER.parent)[:4] == b"\x7fELF"


@pytest.mark.parametrize("count", [1, 2, 5, 64])
def test_a_tile_has_no_more_places_than_rows_and_covers_most_of_them(count: int) -> None:
    for shape in SHAPES:
        y = conv_of((tg.f32, tg.f32), count=count, **shape)
        tiling = conv._tiling(Spec.of(y))
        assert tiling.images * tiling.rows * tiling.places <= 128
        places = count * int(np.prod(y.shape[2:]))
        assert int(d.evaluate(tiling.count, {})) * 128 >= places * -(-int(y.shape[1]) // tiling.wide)
        if places >= 1000:
            assert int(d.evaluate(tiling.count, {})) * 128 <= 2 * places * -(-int(y.shape[1]) // tiling.wide)


@pytest.mark.parametrize("kinds", KINDS)
def test_operands_that_lie_anywhere_are_convolved_one_by_one(tmp_path: Path, kinds: tuple[DType, DType]) -> None:
    y = conv_of(kinds, (9, 7), 3, 5, (3, 2), stride=(2, 3), padding=((2, 0), (1, 2)), dilation=(2, 1), biased=True)
    call = conv.conv(Spec.of(y)).otherwise
    assert call is not None
    arrays = drawn(y, 3)
    wanted = exact(y, arrays)

    def run(each: Preparation, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
        assert isinstance(each.call, LaunchCall)
        return emulated.run(tmp_path, each.call, [(t.shape, t.dtype.numpy) for t in each.outputs], operands, {}, 0)

    (weight,) = prepared(run, y, arrays)                            # [part][row][output][place of the row, channel]
    whole = weight.astype(np.float64).sum(axis=0).reshape(3, 5, 2, 8)
    np.testing.assert_allclose(whole[..., :3], arrays[1].astype(np.float64).transpose(2, 0, 3, 1), rtol=2.0**-23)
    assert not whole[..., 3:].any()
    found, = emulated.run(tmp_path, call, [(wanted.shape, y.dtype.numpy)], [*arrays, weight], {"n": 3}, 1)
    np.testing.assert_allclose(found.astype(float), wanted, atol=NEAR[y.dtype.name] * np.abs(wanted).max())


@pytest.mark.parametrize(("y", "why"), [
    (conv_of((tg.bf16, tg.f32), (8, 8), 8, 8, (3, 3)), "f32 by bf16 only"),
    (conv_of((tg.f32, tg.f32), (4, 8, 8), 8, 8, (3, 3, 3)), "one or two axes"),
    (tg.conv2d(tg.input("x", (N, 8, 8, 8)), tg.input("w", (8, 1, 3, 3)), groups=8), "one group"),
    (tg.conv2d(tg.input("x", (N, 8, 20, 20)), tg.input("w", (8, 8, 3, 3)), stride=9), "strides up to 8"),
    (tg.conv2d(tg.input("x", (2, 8, N + 3, 8)), tg.input("w", (8, 8, 3, 3))), "sizes that are known")])
def test_what_it_does_not_take_is_said(y: Node, why: str) -> None:
    said = conv.conv_takes(Spec.of(y))
    assert said is not None and why in said


@pytest.mark.gpu
@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tiles_convolve_as_the_definition_does(kinds: tuple[DType, DType], shape: Mapping[str, Any]) -> None:
    device = device_named("cuda:0")
    for count, images in ((N, 1), (N, 3), (5, 5), (2, 2)):
        y = conv_of(kinds, count=count, **shape)
        arrays = drawn(y, images)
        wanted = exact(y, arrays)
        for shift in (0, 1):
            found = convolved(device, y, arrays, {"n": images}, shift)
            np.testing.assert_allclose(found.astype(float), wanted, atol=NEAR[y.dtype.name] * np.abs(wanted).max(), rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("kinds", KINDS)
def test_what_is_not_finite_stays_where_it_belongs(kinds: tuple[DType, DType]) -> None:
    y = conv_of(kinds, (20, 20), 16, 24, (3, 3), padding=1)
    arrays = drawn(y, 2)
    x, w = arrays
    x[0, 3, 5, 5], x[1, 0, 0, 0], w[7, 2, 0, 1] = np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        wanted = exact(y, arrays)
    found = convolved(device_named("cuda:0"), y, arrays, {"n": 2}).astype(float)
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(found[~finite], wanted[~finite])
    np.testing.assert_allclose(found[finite], wanted[finite], atol=NEAR[y.dtype.name] * np.abs(wanted[finite]).max(), rtol=0)
