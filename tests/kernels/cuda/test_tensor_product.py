"""product_tiles.cu, skinny_product.cu: products by tensor cores. Texts are compiled without a GPU, and the form for operands that
lie anywhere runs as C++ on the host; the tiles themselves need a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.devices import nvrtc
from tensor_graphs.devices.device import Device
from tensor_graphs.devices.device_registry import device_named
from tensor_graphs.kernels.cuda import backend, matrix_products
from tensor_graphs.kernels.kernel import LaunchCall, Spec
from tensor_graphs.language import dims as d
from tensor_graphs.language.composite import CompositeOp
from tensor_graphs.language.composites.rounded import SIGNIFICANDS, rounded_linear
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.node import Node
from tests.codegen import emulated, launched
from tests.measure.fewer_bits_kernels import rounded

N = tg.dim("n", 0, 5000)
KINDS = [(tg.bf16, tg.bf16), (tg.f16, tg.f16), (tg.f32, tg.bf16), (tg.f32, tg.f32)]
NEAR = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2e-6}
"""of a result beside the largest: one rounding; of f32 those of sums on tensor cores"""


def linear(of_x: DType, of_w: DType, k: int, columns: int, biased: bool = False) -> Node:
    x, w = tg.input("x", (N, k), of_x), tg.input("w", (columns, k), of_w)
    return tg.linear(x, w, tg.input("b", (columns,))) if biased else tg.linear(x, w)


def dot(of_x: DType, lead: Sequence[int], k: int, columns: int, one_for_all: bool = False) -> Node:
    return tg.dot(tg.input("x", (*lead, N, k), of_x), tg.input("w", (k, columns) if one_for_all else (*lead, k, columns), of_x))


def scaled(of_x: DType, of_w: DType, k: int, columns: int, scales: str = "", biased: bool = False, dtype: DType = tg.bf16,
           rows: Dim = N) -> Node:
    """scales: "one" number of each operand, or of each of its "rows"."""
    shapes = {"one": ((), ()), "rows": ((rows, 1), (columns,))}.get(scales, ())
    given = [tg.input(name, shape) for name, shape in zip("ac", shapes, strict=False)] or [None, None]
    return tg.scaled_linear(tg.input("x", (rows, k), of_x), tg.input("w", (columns, k), of_w), *given,
                            tg.input("b", (columns,)) if biased else None, dtype=dtype)


def drawn(y: Node, rows: int, seed: int = 1) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    return [draw.standard_normal([int(d.evaluate(s, {"n": rows})) for s in i.shape]).astype(i.dtype.numpy) for i in y.inputs]


def exact(y: Node, arrays: Sequence[np.ndarray]) -> np.ndarray:
    assert isinstance(y.op, CompositeOp)
    roles = y.op.by_role([a.astype(np.float64) for a in arrays], y.attrs)
    if y.op.name == "dot":
        return np.asarray(roles["a"] @ roles["b"])
    actual = roles["x"] @ roles["weight"].T * roles.get("x_scale", 1.0) * roles.get("weight_scale", 1.0)
    return np.asarray(actual + roles.get("bias", 0.0))


def turned_takes(spec: Spec) -> str | None:
    return matrix_products.turned_takes(matrix_products.product_takes, spec)


def multiplied(device: Device, y: Node, arrays: Sequence[np.ndarray], dims: Mapping[str, int], shift: int = 0,
               skinny: bool = False,
               turned: bool = False) -> np.ndarray:
    """The product on a GPU, with what is prepared for it there."""
    spec = Spec.of(y)
    if skinny:
        actual, = launched.run_call(device, matrix_products.skinny(spec), [y], arrays, dims, shift)
        return actual
    given = list(arrays)
    for prepared in matrix_products.product_prepares(spec):
        outs = [tg.input(f"p{i}", t.shape, t.dtype) for i, t in enumerate(prepared.outputs)]
        assert isinstance(prepared.call, LaunchCall)
        given += launched.run_call(device, prepared.call, outs, [arrays[i] for i in prepared.operands], dims)
    build = matrix_products.turned if turned else matrix_products.product
    actual, = launched.run_call(device, build(spec), [y], given, dims, shift)
    return actual


EIGHT = [(tg.f8e4m3, tg.f8e4m3), (tg.f8e4m3, tg.f8e5m2), (tg.f8e5m2, tg.f8e4m3), (tg.f8e5m2, tg.f8e5m2)]


@pytest.mark.parametrize(("of_x", "of_w"), [EIGHT[1], *(pytest.param(*each, marks=pytest.mark.long) for each in EIGHT)])
@pytest.mark.parametrize("rows", [64, pytest.param(16, marks=pytest.mark.long), pytest.param(4096, marks=pytest.mark.long)])
def test_texts_for_eight_bits_compile(of_x: DType, of_w: DType, rows: int) -> None:
    for dtype, scales, biased in ((tg.bf16, "rows", True), (tg.f32, "one", False), (tg.f16, "", False)):
        spec = Spec.of(scaled(of_x, of_w, 512, 2048, scales, biased, dtype, rows))
        assert matrix_products.scaled_takes(spec) is None
        calls = [matrix_products.product(spec), matrix_products.product(spec, fast=True)]
        if matrix_products.turned_takes(matrix_products.scaled_takes, spec) is None:
            calls.append(matrix_products.turned(spec))
        for call, architecture in itertools.product(calls, ("sm_90a", "sm_80")):    # on the second without the tiles
            assert nvrtc.compiled(call.text, architecture, backend.HEADER.parent)[:4] == b"\x7fELF"


@pytest.mark.parametrize(("of_x", "of_w"), KINDS)
@pytest.mark.parametrize("rows", [64, *(pytest.param(n, marks=pytest.mark.long) for n in (1024, 4096))])
def test_texts_of_all_widths_compile(of_x: DType, of_w: DType, rows: int) -> None:
    x, w = tg.input("x", (rows, 128), of_x), tg.input("w", (2048, 128), of_w)
    nodes = [tg.linear(x, w, tg.input("b", (2048,))), *([tg.dot(x, tg.input("w", (128, 2048), of_w))] if of_x is of_w else [])]
    for y in nodes:
        spec = Spec.of(y)
        assert matrix_products.product_takes(spec) is None
        calls = [matrix_products.product(spec), *([matrix_products.turned(spec)] if turned_takes(spec) is None else [])]
        for call, architecture in itertools.product(calls, ("sm_90a", "sm_80")):    # on the second without the tiles
            assert nvrtc.compiled(call.text, architecture, backend.HEADER.parent)[:4] == b"\x7fELF"


@pytest.mark.parametrize("y", [linear(tg.bf16, tg.bf16, 24, 37, True), linear(tg.f32, tg.f32, 8, 5), dot(tg.f16, (), 16, 24),
                               dot(tg.f32, (3,), 16, 8), dot(tg.bf16, (2, 2), 8, 8, True), linear(tg.f32, tg.f32, 75, 65),
                               tg.dot(tg.input("x", (N, 16)), tg.input("w", (3, 16, 8))),
                               scaled(tg.f8e4m3, tg.f8e5m2, 32, 7, "rows", True),
                               scaled(tg.f8e5m2, tg.f8e4m3, 16, 24, "one", dtype=tg.f32)])
def test_operands_that_lie_anywhere_are_multiplied_one_by_one(tmp_path: Path, y: Node) -> None:
    call = matrix_products.product(Spec.of(y)).otherwise
    assert call is not None
    for rows in (1, 13):
        arrays = drawn(y, rows)
        wanted = exact(y, arrays)
        parts = [emulated.run(tmp_path, p.call, [(p.outputs[0].shape, p.outputs[0].dtype.numpy)], [arrays[1]], {}, 0)[0]
                 for p in matrix_products.product_prepares(Spec.of(y))]
        for part in parts:                                          # whose sum is the weight
            np.testing.assert_allclose(part.astype(np.float64).sum(axis=0)[:, :arrays[1].shape[1]], arrays[1], rtol=2.0**-23)
        actual, = emulated.run(tmp_path, call, [(wanted.shape, y.dtype.numpy)], [*arrays, *parts], {"n": rows}, 1)
        np.testing.assert_allclose(actual.astype(float), wanted, atol=NEAR[y.dtype.name] * np.abs(wanted).max())


@pytest.mark.parametrize(("y", "why"), [
    (linear(tg.bf16, tg.f32, 24, 37), "f32 by bf16 only"), (linear(tg.bf16, tg.bf16, 20, 37), "a multiple of 8"),
    (dot(tg.bf16, (), 16, 20), "a multiple of 8"), (linear(tg.f32, tg.bf16, 20, 37), "a multiple of 8"),
    (linear(tg.f32, tg.f32, 75, 5), "a multiple of 8"),
    (tg.dot(tg.input("x", (1, 2, 8, 16), tg.bf16), tg.input("w", (3, 2, 16, 8), tg.bf16)), "equal leading axes"),
    (tg.linear(tg.input("x", (8, 16)), tg.input("w", (N, 16))), "sizes that are known")])
def test_what_it_does_not_take_is_said(y: Node, why: str) -> None:
    said = matrix_products.product_takes(Spec.of(y))
    assert said is not None and why in said


GRAPHS = [
    *(linear(*kind, k, columns, biased) for kind in KINDS for k, columns, biased in (
        (8, 8, False), (64, 37, True), (640, 2048, False), (200, 130, True), (2048, 640, False))),
    *(dot(kind, lead, k, columns, one) for kind in (tg.bf16, tg.f16, tg.f32) for lead, k, columns, one in (
        ((), 64, 64, False), ((3,), 72, 136, False), ((2, 2), 320, 256, False), ((5,), 128, 8, True))),
    *(tg.dot(tg.input("x", (N, 72), kind), tg.input("w", (5, 72, 136), kind)) for kind in (tg.bf16, tg.f32)),
    linear(tg.f32, tg.f32, 1332, 130, True), linear(tg.f32, tg.f32, 67, 65), dot(tg.f32, (3,), 75, 131)]


def of_rounded(to: str, k: int, columns: int, biased: bool = False, rows: Dim = N) -> Node:
    x, w = tg.input("x", (rows, k)), tg.input("w", (columns, k))
    return rounded_linear(x, w, tg.input("b", (columns,), tg.bf16) if biased else None, to=to)


OF_ROUNDED = [of_rounded(to, k, columns, biased) for to in SIGNIFICANDS for k, columns, biased in (
    (4, 8, False), (64, 37, True), (640, 2048, False), (100, 130, True), (2048, 640, False), (4096, 96, True))]


@pytest.mark.parametrize("to", SIGNIFICANDS)
@pytest.mark.parametrize("rows", [64, pytest.param(16, marks=pytest.mark.long), pytest.param(4096, marks=pytest.mark.long)])
def test_texts_for_floats_that_are_rounded_compile(rows: int, to: str) -> None:
    spec = Spec.of(of_rounded(to, 516, 2048, True, rows))
    assert matrix_products.product_takes(spec) is None
    calls = [matrix_products.product(spec), *([matrix_products.turned(spec)] if rows < 1024 else [])]
    for call, architecture in itertools.product(calls, ("sm_90a", "sm_80")):        # on the second without the tiles
        assert f"#define PARTS_X {1 if to == 'tf32' else 2}\n" in call.text
        assert nvrtc.compiled(call.text, architecture, backend.HEADER.parent)[:4] == b"\x7fELF"


@pytest.mark.parametrize("to", SIGNIFICANDS)
def test_a_refused_product_of_rounded_floats_has_a_reason(to: str) -> None:
    for spec, why in ((Spec.of(of_rounded(to, 30, 16)), "a multiple of 4"),
                      (Spec.of(rounded_linear(tg.input("x", (8, 16)), tg.input("w", (N, 16)), to=to)), "sizes that are known")):
        assert why in (matrix_products.product_takes(spec) or "")


@pytest.mark.parametrize("to", SIGNIFICANDS)
def test_floats_at_any_address_are_not_rounded(tmp_path: Path, to: str) -> None:
    y = of_rounded(to, 36, 7, True)
    call, arrays = matrix_products.product(Spec.of(y)).otherwise, drawn(y, 5)
    assert call is not None
    wanted = exact(y, arrays)
    parts = [emulated.run(tmp_path, p.call, [(p.outputs[0].shape, p.outputs[0].dtype.numpy)], [arrays[1]], {}, 0)[0]
             for p in matrix_products.product_prepares(Spec.of(y))]
    assert len(parts) == (to != "tf32")
    for part in parts:
        np.testing.assert_allclose(part.astype(np.float64).sum(axis=0)[:, :36], arrays[1], rtol=2.0**-17)
    actual, = emulated.run(tmp_path, call, [(wanted.shape, y.dtype.numpy)], [*arrays, *parts], {"n": 5}, 1)
    np.testing.assert_allclose(actual, wanted, atol=NEAR["f32"] * np.abs(wanted).max())


def test_tiles_fill_the_multiprocessors_where_they_can_and_those_that_idle_count() -> None:
    def of(rows: int, k: int, columns: int) -> Spec:
        return Spec.of(tg.linear(tg.input("x", (rows, k), tg.bf16), tg.input("w", (columns, k), tg.bf16)))

    shape = matrix_products.turned_shape(of(197, 768, 3072))
    assert -(-197 // shape.columns) * 24 * shape.splits > 66, "one tile for all rows would leave most multiprocessors without any"
    few, many = (matrix_products.product_steps(of(128, 4096, columns)) for columns in (64, 64 * 128))
    assert few * 8 >= many, "tiles of a few multiprocessors take as long as those of all"


@pytest.mark.gpu
@pytest.mark.parametrize("y", OF_ROUNDED, ids=str)
def test_tiles_multiply_floats_that_are_rounded_to_the_nearest_of_a_format(y: Node) -> None:
    device, bits = device_named("cuda:0"), SIGNIFICANDS[y.attrs["to"]] - 1
    for rows in (1, 17, 128, 300, 1111):
        arrays = drawn(y, rows)
        for turned, shift in ((False, 0), (False, 1), (True, 0)):
            wanted = exact(y, arrays if shift else [rounded(a, bits) if a.ndim == 2 else a for a in arrays])
            actual = multiplied(device, y, arrays, {"n": rows}, shift, turned=turned)
            np.testing.assert_allclose(actual.astype(float), wanted, atol=3e-5 * np.abs(wanted).max(), rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("to", SIGNIFICANDS)
def test_floats_beyond_the_format_are_multiplied_too(to: str) -> None:
    device, y = device_named("cuda:0"), of_rounded(to, 64, 40)
    x, w = drawn(y, 130)
    x[3, 5], x[70, 9], x[129, 1], w[7] = 3.4028235e38, np.inf, np.nan, 0.0
    wanted = exact(y, [x, w]).astype(np.float32)
    for turned in (False, True):
        actual = multiplied(device, y, [x, w], {"n": 130}, turned=turned)
        assert (np.isfinite(actual) == np.isfinite(wanted)).all()
        np.testing.assert_allclose(actual[3], wanted[3], rtol=4e-3)


@pytest.mark.parametrize(("y", "why"), [
    (scaled(tg.bf16, tg.f8e4m3, 32, 16), "of eight bits, or two of bf16"),
    (scaled(tg.f8e4m3, tg.f8e4m3, 24, 16), "a multiple of 16"),
    (scaled(tg.f8e4m3, tg.f8e4m3, 32, 16, dtype=tg.f8e4m3), "a result and a bias of"),
    (tg.scaled_linear(tg.input("x", (8, 16), tg.f8e4m3), tg.input("w", (N, 16), tg.f8e4m3)), "sizes that are known")])
def test_what_it_does_not_take_of_eight_bits_is_said(y: Node, why: str) -> None:
    said = matrix_products.scaled_takes(Spec.of(y))
    assert said is not None and why in said


NEAR_EIGHT = {"bf16": 2.0**-7, "f16": 2e-3, "f32": 1e-3}
"""of a result of eight bits beside the largest: tensor cores keep some 14 bits of the sum of a piece"""


OF_EIGHT = [scaled(*kinds, k, columns, scales, biased, dtype) for kinds in EIGHT for k, columns, scales, biased, dtype in (
    (16, 8, "", False, tg.bf16), (128, 37, "rows", True, tg.f32), (640, 2048, "one", False, tg.bf16),
    (2048, 640, "rows", True, tg.f16), (4096, 130, "", True, tg.f32))]


@pytest.mark.gpu
@pytest.mark.parametrize("y", OF_EIGHT, ids=str)
def test_tiles_of_eight_bits_multiply_as_the_definition_does(y: Node) -> None:
    device, spec = device_named("cuda:0"), Spec.of(y)
    for rows in (1, 17, 128, 300, 1111):
        arrays = drawn(y, rows)
        wanted = exact(y, arrays)
        product = matrix_products.product(spec)
        for call, shift, near in ((product, 0, 1), (product, 1, 1), (matrix_products.turned(spec), 0, 1),
                                  (matrix_products.product(spec, fast=True), 0, 8)):
            actual, = launched.run_call(device, call, [y], arrays, {"n": rows}, shift)
            allowed = near * NEAR_EIGHT[y.dtype.name] * np.abs(wanted).max()
            np.testing.assert_allclose(actual.astype(float), wanted, atol=allowed, rtol=0)


OF_SIXTEEN = [scaled(kind, kind, k, columns, scales, biased, dtype) for kind in (tg.bf16, tg.f16)
              for k, columns, scales, biased, dtype in ((8, 8, "", False, tg.f32), (640, 2048, "rows", True, tg.f32),
                                                        (4096, 130, "", False, tg.f32), (128, 37, "one", True, kind))]


def test_products_of_sixteen_bits_are_not_offered_twice() -> None:
    assert matrix_products.scaled_takes(Spec.of(OF_SIXTEEN[0])) is None
    assert matrix_products.fast_takes(Spec.of(OF_SIXTEEN[0])) == "floats of eight bits only"
    assert matrix_products.fast_takes(Spec.of(OF_EIGHT[0])) is None


@pytest.mark.gpu
@pytest.mark.parametrize("y", OF_SIXTEEN, ids=str)
def test_tiles_of_sixteen_bits_give_wider_results(y: Node) -> None:
    device, spec = device_named("cuda:0"), Spec.of(y)
    for rows in (1, 17, 128, 300, 1111):
        arrays = drawn(y, rows)
        wanted = exact(y, arrays)
        product = matrix_products.product(spec)
        for call, shift in ((product, 0), (product, 1), (matrix_products.turned(spec), 0)):
            actual, = launched.run_call(device, call, [y], arrays, {"n": rows}, shift)
            np.testing.assert_allclose(actual.astype(float), wanted, atol=NEAR[y.dtype.name] * np.abs(wanted).max(), rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("y", GRAPHS, ids=str)
def test_tiles_multiply_as_the_definition_does(y: Node) -> None:
    device = device_named("cuda:0")
    for rows in (1, 17, 128, 300, 1111):
        arrays = drawn(y, rows)
        wanted = exact(y, arrays)
        for shift in (0, 1):
            actual = multiplied(device, y, arrays, {"n": rows}, shift)
            np.testing.assert_allclose(actual.astype(float), wanted, atol=NEAR[y.dtype.name] * np.abs(wanted).max(), rtol=0)


@pytest.mark.parametrize(("of_x", "of_w"), [KINDS[0], *(pytest.param(*each, marks=pytest.mark.long) for each in KINDS[1:3])])
@pytest.mark.parametrize("rows", [16, pytest.param(5000, marks=pytest.mark.long)])
def test_texts_for_few_rows_compile(of_x: DType, of_w: DType, rows: int) -> None:
    for k, columns in ((2048, 640), (8, 5)):
        y = tg.linear(tg.input("x", (rows, k), of_x), tg.input("w", (columns, k), of_w), tg.input("b", (columns,)))
        assert matrix_products.skinny_takes(Spec.of(y)) is None
        call = matrix_products.skinny(Spec.of(y))
        assert call.launches[0].shared <= 113 << 10                 # two blocks of a multiprocessor
        for architecture in ("sm_80", "sm_90a"):
            assert nvrtc.compiled(call.text, architecture, backend.HEADER.parent)[:4] == b"\x7fELF"


@pytest.mark.gpu
@pytest.mark.parametrize("most", [16, 50, 5000])
@pytest.mark.parametrize(("of_x", "of_w"), KINDS[:3])
def test_few_rows_multiply_as_the_definition_does(of_x: DType, of_w: DType, most: int) -> None:
    device, rows = device_named("cuda:0"), tg.dim("n", 0, most)
    for k, columns, biased in ((8, 8, False), (64, 37, True), (640, 2048, False), (200, 130, True), (4096, 640, True),
                               (72, 9000, False)):
        x, w = tg.input("x", (rows, k), of_x), tg.input("w", (columns, k), of_w)
        y = tg.linear(x, w, tg.input("b", (columns,))) if biased else tg.linear(x, w)
        for n in (1, 5, 16, 17, 50, 300):
            if n <= most:
                arrays = drawn(y, n)
                wanted = exact(y, arrays)
                for shift in (0, 1):
                    actual = multiplied(device, y, arrays, {"n": n}, shift, skinny=True)
                    np.testing.assert_allclose(actual.astype(float), wanted, atol=NEAR[y.dtype.name] * np.abs(wanted).max(), rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("most", [16, 50, 256, 1000])
@pytest.mark.parametrize(("of_x", "of_w"), KINDS)
def test_rows_as_columns_of_a_tile_multiply_as_the_definition_does(of_x: DType, of_w: DType, most: int) -> None:
    device, rows = device_named("cuda:0"), tg.dim("n", 0, most)
    for k, columns, biased in ((8, 8, False), (64, 37, True), (640, 2048, False), (200, 130, True), (4096, 640, True)):
        x, w = tg.input("x", (rows, k), of_x), tg.input("w", (columns, k), of_w)
        y = tg.linear(x, w, tg.input("b", (columns,))) if biased else tg.linear(x, w)
        for n in (1, 17, 50, 300, 1000):
            if n <= most:
                arrays = drawn(y, n)
                wanted = exact(y, arrays)
                for shift in (0, 1):
                    actual = multiplied(device, y, arrays, {"n": n}, shift, turned=True)
                    np.testing.assert_allclose(actual.astype(float), wanted, atol=NEAR[y.dtype.name] * np.abs(wanted).max(), rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize(("of_x", "of_w"), KINDS)
def test_many_tiles_of_each_width(of_x: DType, of_w: DType) -> None:
    device = device_named("cuda:0")
    for rows, k, columns in ((4096, 256, 4096), (2000, 136, 2056), (128, 512, 4096), (333, 200, 4096)):
        x, w = tg.input("x", (rows, k), of_x), tg.input("w", (columns, k), of_w)
        y = tg.linear(x, w)                                         # of 333 rows, a block's first tile is the last one of some
        arrays = drawn(y, rows)
        wanted = exact(y, arrays)
        actual = multiplied(device, y, arrays, {})
        np.testing.assert_allclose(actual.astype(float), wanted, atol=NEAR[y.dtype.name] * np.abs(wanted).max(), rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize(("of_x", "of_w"), KINDS)
@pytest.mark.parametrize("skinny", [False, True])
def test_what_is_not_finite_and_what_is_nearly_not_stays_where_it_belongs(of_x: DType, of_w: DType, skinny: bool) -> None:
    if skinny and of_w is tg.f32:
        assert matrix_products.skinny_takes(Spec.of(linear(of_x, of_w, 64, 96))) is not None
        return
    y = linear(of_x, of_w, 64, 96)
    arrays = drawn(y, 200)
    x, w = arrays
    w[10], x[150] = 0, 0
    w[7, 63], w[8, 0], w[9, 3], w[9, 4] = np.nan, np.inf, -np.inf, np.inf
    x[5], x[199, 63], x[6] = 0, np.inf, x[6] * of_x.numpy.type(2.0**-12)
    if of_x is tg.f32:
        x[6, 5], w[:, 5] = np.finfo(np.float32).max, w[:, 5] * of_w.numpy.type(0.01)
    with np.errstate(invalid="ignore"):
        wanted = exact(y, arrays)
    actual = multiplied(device_named("cuda:0"), y, arrays, {"n": 200}, skinny=skinny).astype(float)
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(actual[~finite], wanted[~finite])
    sizes = np.abs(wanted).max(axis=1, where=finite, initial=1e-30, keepdims=True)
    with np.errstate(invalid="ignore"):
        off = np.abs(actual - wanted)
    assert (off <= NEAR[y.dtype.name] * sizes + 1e-30)[finite].all()
