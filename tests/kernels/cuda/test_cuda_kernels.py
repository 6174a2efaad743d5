"""The kernels written by hand for GPUs, as C++ on the host beside the oracle; texts of both forms are compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen import backend_cuda
from tensor_graphs.devices import cuda, nvrtc
from tensor_graphs.kernels.cuda import attention, backend, matrix_products
from tensor_graphs.kernels.kernel import LaunchCall, Spec
from tensor_graphs.language import dims as d
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import interpret
from tests.codegen import emulated

N, P = tg.dim("n", 1, 128), tg.dim("p", 0, 1000)
ROUNDED = {"f64": 1e-14, "f32": 2e-6, "bf16": 8e-3, "f16": 1e-3, "f8e4m3": 2.0**-4, "f8e5m2": 2.0**-3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("emulated")


def drawn(inputs: Sequence[Node], dims: Mapping[str, int]) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(3)
    shapes = {i: tuple(int(d.evaluate(s, dims)) for s in i.shape) for i in inputs}
    return {i.attrs["name"]: draw.standard_normal(shape).astype(i.dtype.numpy) for i, shape in shapes.items()}


def compare(folder: Path, nodes: Sequence[Node], dims: Mapping[str, int], takes: Callable[[Spec], str | None],
            build: Callable[[Spec], LaunchCall], values: Mapping[str, np.ndarray]) -> None:
    """All outputs of one op, of operands that are aligned and of such that are not."""
    op = nodes[0] if nodes[0].op.name != "item" else nodes[0].inputs[0]
    spec = Spec.of(op)
    assert takes(spec) is None
    call = build(spec)
    for form in (call, *([] if call.otherwise is None else [call.otherwise])):
        nvrtc.compiled(form.text, "sm_90", cuda.HEADERS)
    g = make_graph({f"y{i}": y for i, y in enumerate(nodes)})
    right = list(interpret(g, values, dims=dims).outputs.values())
    arrays = [values[i.attrs["name"]] for i in op.inputs]
    outputs = [(r.shape, y.dtype.numpy) for r, y in zip(right, nodes, strict=True)]
    for shift in (0, 1):
        found = emulated.run(folder, call, outputs, arrays, dims, shift)
        for y, got, expected in zip(nodes, found, right, strict=True):
            wide = expected.astype(np.float64)
            largest = np.abs(wide[np.isfinite(wide)]).max(initial=1e-30)
            np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol=ROUNDED.get(y.dtype.name, 0),
                                       atol=ROUNDED.get(y.dtype.name, 0) * largest)


def test_the_likeliest_of_many_is_the_first_that_reaches_the_largest_and_nan_wins(folder: Path) -> None:
    x, w = tg.input("x", (N, 64)), tg.input("w", (300, 64), tg.bf16)
    values = drawn([x, w], {"n": 2})
    values["w"][200] = values["w"][100]
    values["w"][[100, 200]] *= 9
    values["x"][-1, 5] = np.nan
    for value in (values, {**values, "x": np.nan_to_num(values["x"])}):
        compare(folder, list(tg.linear_argmax(x, w)), {"n": 2}, backend.linear_argmax_takes, backend.linear_argmax,
                value)


@pytest.mark.parametrize(("width", "heads", "of_keys", "dtype", "window", "cap", "n", "p"), [
    (256, 4, 1, tg.f32, 512, 0.0, 1, 130), (64, 4, 2, tg.bf16, 0, 30.0, 3, 70), (128, 2, 2, tg.f16, 7, 0.0, 5, 20),
    (32, 8, 1, tg.f32, 0, 0.0, 1, 0)])
def test_attention_over_keys_in_parts(folder: Path, width: int, heads: int, of_keys: int, dtype: DType, window: int, cap: float,
                                      n: int, p: int) -> None:
    q = tg.input("q", (N, heads, width))
    k, v = (tg.input(name, (N + P, of_keys, width), dtype) for name in "kv")
    y = tg.attention(q, k, v, scale=0.0625, causal=True, window=window, softcap=cap, start=P)
    dims = {"n": n, "p": p}
    compare(folder, [y], dims, attention.attention_takes, attention.attention, drawn([q, k, v], dims))


def test_heads_of_another_length_are_refused() -> None:
    q, k = tg.input("q", (N, 2, 96)), tg.input("k", (N, 1, 96))
    assert "power of two" in str(attention.attention_takes(Spec.of(tg.attention(q, k, k, scale=1.0))))


def test_a_query_that_sees_no_key_is_0_and_one_whose_scores_are_all_below_everything_is_nan(folder: Path) -> None:
    q, k, v = tg.input("q", (3, 1, 32)), tg.input("k", (4, 1, 32)), tg.input("v", (4, 1, 32))
    values = drawn([q, k, v], {})
    blind = tg.attention(q, k, v, scale=1.0, causal=True, start=-2)
    compare(folder, [blind], {}, attention.attention_takes, attention.attention, values)
    values["q"][1], values["k"][...] = 1, -np.inf
    compare(folder, [tg.attention(q, k, v, scale=1.0)], {}, attention.attention_takes, attention.attention, values)


@pytest.mark.parametrize("y", [
    tg.linear(tg.input("x", (N, 35)), tg.input("w", (70, 35)), tg.input("b", (70,))),
    tg.linear(tg.input("x", (2, N, 300), tg.bf16), tg.input("w", (5, 300), tg.f32)),
    tg.dot(tg.input("x", (N, 7), tg.f64), tg.input("w", (7, 9), tg.f64)),
    tg.dot(tg.input("x", (3, N, 7)), tg.input("w", (3, 7, P))),
    tg.dot(tg.input("x", (3, N, 68)), tg.input("w", (3, 68, 40))),
    tg.dot(tg.input("x", (N, 600)), tg.input("w", (600, 72))),
    tg.dot(tg.input("x", (N, 36), tg.f64), tg.input("w", (2, 36, 70), tg.f64)),
    tg.linear(tg.input("x", (N, 640)), tg.input("w", (72, 640))),
    tg.linear(tg.input("x", (N, 96), tg.bf16), tg.input("w", (6, 96), tg.bf16)),
    tg.dot(tg.input("x", (N, 64), tg.i16), tg.input("w", (64, 48), tg.i16)),
    tg.dot(tg.input("x", (N, 7), tg.i32), tg.input("w", (2, 7, 9), tg.i32)),
    tg.dot(tg.input("x", (2, N, 20), tg.i8), tg.input("w", (20, 9), tg.i8)),
    tg.dot(tg.input("x", (N, 20), tg.f8e4m3), tg.input("w", (20, 9), tg.f8e4m3)),
    tg.linear(tg.input("x", (N, 35)), tg.input("w", (7, 35), tg.f8e5m2))], ids=str)
def test_products_of_whatever_there_is(folder: Path, y: Node) -> None:
    graph = make_graph({"y": y})
    inputs = list(graph.inputs.values())
    for sizes in ({"n": 1, "p": 66}, {"n": 65, "p": 1}):
        dims = {name: size for name, size in sizes.items() if name in graph.dims}
        compare(folder, [y], dims, matrix_products.any_product_takes, matrix_products.any_product, drawn(inputs, dims))


def test_what_is_not_finite_stays_in_its_row_and_column_of_any_product(folder: Path) -> None:
    x, w = tg.input("x", (5, 35)), tg.input("w", (35, 6))
    values = drawn([x, w], {})
    values["x"][1, 3], values["w"][34, 2] = np.inf, np.nan
    compare(folder, [tg.dot(x, w)], {}, matrix_products.any_product_takes, matrix_products.any_product, values)


@pytest.mark.parametrize("width", [64, 5])
@pytest.mark.parametrize("start", [0, 5, 62])
def test_rows_are_written_where_they_belong_and_nowhere_else(folder: Path, width: int, start: int) -> None:
    base, value = tg.input("base", (64, width)), tg.input("value", (N, width))
    values = drawn([base, value], {"n": 2, "p": start})
    call = backend_cuda.build(Spec.of(tg.write_rows(base, value, start=P)))
    for shift in (0, 1):
        outputs = [((64, width), np.dtype(np.float32))]
        (found,) = emulated.run(folder, call, outputs, list(values.values()), {"n": 2, "p": start}, shift)
        assert (found[start:start + 2] == values["value"]).all()
        untouched = np.delete(found, [start, start + 1], axis=0).view(np.uint8)
        assert (untouched == 0xA5).all()


@pytest.mark.parametrize(("shape", "out_strides", "in_strides", "size"), [
    ((4, 3, 5), (15, 5, 1), (40, 8, 1), 160),                       # rows of a window
    ((4, 6, 8), (48, 1, 6), (48, 8, 1), 192),                       # turned
    ((3, 5, 2, 7, 2), (140, 28, 14, 2, 1), (35, 7, 0, 1, 0), 105),  # each element four times
    ((2, 3), (3, 1), (3, 1), 6), ((7,), (1,), (1,), 7), ((), (), (), 1), ((1, 9), (9, 1), (0, 2), 18),
    ((6, 16), (16, 1), (32, 1), 192), ((5, 32), (48, 1), (32, 1), 240)])                       # packs with gaps between them
@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
@pytest.mark.parametrize("known", [False, True], ids=["", "sizes in its text"])
def test_a_window_is_copied_with_its_strides(folder: Path, shape: tuple[int, ...], out_strides: tuple[int, ...],
                                             in_strides: tuple[int, ...], size: int, itemsize: int, known: bool,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "WORTH_A_TEXT", 1 if known else 1 << 40)
    dtype = np.dtype(f"u{itemsize}")
    source = np.random.default_rng(1).integers(0, 250, size).astype(dtype)
    wanted = np.lib.stride_tricks.as_strided(source, shape, [s * itemsize for s in in_strides])
    call = backend.build_copy(shape, out_strides, in_strides, itemsize)
    assert ("#define SIZES" in call.text) == known
    room = 1 + sum((n - 1) * s for n, s in zip(shape, out_strides, strict=True))
    for shift in (0, 1):
        (found,) = emulated.run(folder, call, [((room,), dtype)], [source], {}, shift)
        seen = np.lib.stride_tricks.as_strided(found, shape, [s * itemsize for s in out_strides])
        assert (seen == wanted).all()
        seen[...] = 0xA5 * (256 ** itemsize // 255)                 # what was there before
        assert (found.view(np.uint8) == 0xA5).all(), "between rows nothing is written"


def test_axes_that_lie_behind_each_other_in_both_are_one() -> None:
    assert backend._fewest_axes([(4, 15, 30), (3, 5, 10), (5, 1, 2)]) == [(60, 1, 2)]
    assert backend._fewest_axes([(4, 15, 40), (3, 5, 8), (5, 1, 1)]) == [(4, 15, 40), (3, 5, 8), (5, 1, 1)]
    assert backend._fewest_axes([(N, 15, 15), (3, 5, 5), (5, 1, 2)]) == [(N * 3, 5, 5), (5, 1, 2)]


