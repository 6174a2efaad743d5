"""kernels/c/scratch.py: a plan's memory covers what its kernels ask the pool for, without being far beyond it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.c import library
from tensor_graphs.kernels.registry import kernel_named, lacking
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.node import Node
from tensor_graphs.measure.points.inputs import make_inputs
from tensor_graphs.measure.points.single_op_plans import single_kernel_plan
from tensor_graphs.runtime.compiled_graph import bind

N = tg.dim("n", 1, 700)


def linear(n: Dim, m: int, k: int, dtype: DType, weight: DType) -> Node:
    return tg.linear(tg.input("x", (n, k), dtype), tg.input("w", (m, k), weight))


def scaled_linear(n: Dim, m: int, k: int, dtype: DType, weight: DType) -> Node:
    return tg.scaled_linear(tg.input("x", (n, k), dtype), tg.input("w", (m, k), weight), dtype=tg.f32)


def attention(n: Dim, s: int, heads: int, groups: int, width: int, dtype: DType) -> Node:
    q, (k, v) = tg.input("q", (n, heads, width), dtype), (tg.input(name, (s, groups, width), dtype) for name in "kv")
    return tg.attention(q, k, v, scale=0.1, causal=True, start=s // 2, window=s // 3)


def dot(n: Dim, m: int, k: int, dtype: DType) -> Node:
    return tg.dot(tg.input("a", (n, k), dtype), tg.input("b", (k, m), dtype))


CASES: dict[str, Callable[[Dim, DType], Node]] = {
    "linear": lambda n, t: linear(n, 300, 64, t, tg.f32),
    "linear of long rows": lambda n, t: linear(n, 90, 3001, t, tg.f32),
    "linear by bf16": lambda n, t: linear(n, 70, 640, t, tg.bf16),
    "linear by a vector": lambda n, t: linear(n, 1, 1, t, tg.bf16),
    "rounded_block_linear": lambda n, t: tg.rounded_block_linear(tg.input("x", (n, 640), tg.f32), tg.input("w", (300, 680), tg.u8),
                                                                 format="Q8_0", to="int8x2"),
    "block_linear": lambda n, t: tg.block_linear(tg.input("x", (n, 640), tg.f32), tg.input("w", (300, 680), tg.u8), format="Q8_0"),
    "attention": lambda n, t: attention(n, 600, 4, 1, 64, t),
    "attention of many heads": lambda n, t: attention(n, 301, 12, 12, 20, t),
    "dot": lambda n, t: dot(n, 100, 333, t),
}

def conv(shape: tuple[Dim, ...], weight: tuple[int, ...], dtypes: str = "f32 f32", **how: int) -> Node:
    of_x, of_w = (getattr(tg, name) for name in dtypes.split())
    return tg.conv(tg.input("x", shape, of_x), tg.input("w", weight, of_w), **how)


IMAGES: dict[str, Callable[[Dim], Node]] = {
    "conv": lambda n: conv((2, 12, n, 9), (10, 12, 5, 3), padding=2, stride=2),
    "conv_f64": lambda n: conv((2, 12, n, 9), (10, 12, 5, 3), "f64 f64", padding=2, stride=2),
    "conv of f16": lambda n: conv((2, 12, n, 9), (10, 12, 5, 3), "f16 bf16", padding=2),
    "conv of bf16": lambda n: conv((2, 12, n, 9), (52, 3, 5, 3), "bf16 bf16", padding=2, groups=4),
    "conv_depthwise": lambda n: conv((2, 12, n, 9), (24, 1, 3, 5), padding=4, stride=3, dilation=2, groups=12),
    "conv_direct": lambda n: conv((2, 12, n, 9), (10, 12, 5, 3), padding=2, stride=2),
    "conv_direct of bf16": lambda n: conv((2, 81, n, 9), (70, 81, 5, 3), "bf16 bf16", padding=2),
    "conv_direct of f16": lambda n: conv((2, 48, n, 9), (10, 48, 5, 3), "f16 f32", padding=2, stride=2),
    "conv_direct of long lines": lambda n: conv((1, 40, 3, n), (40, 40, 2, 3), padding=2, dilation=2),
    "conv_direct of lines alone": lambda n: conv((3, 5, n), (7, 5, 4), padding=3, stride=3),
}


@pytest.mark.parametrize("dtype", [tg.f32, tg.f64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_the_plan_covers_what_the_kernel_asks_for(name: str, dtype: DType) -> None:
    if name.endswith("block_linear") and dtype is not tg.f32:
        return                                                      # there is none
    lib = library.load()
    g = tg.graph(CASES[name](N, dtype))
    op = g.outputs["out"].op.name
    plan = single_kernel_plan(g, kernel_named(f"c.{op}_f64" if dtype == tg.f64 else f"c.{op}"))
    compiled = bind(plan)
    for n in (1, 2, 6, 7, 8, 9, 33, 300):
        values = make_inputs(g, {"n": n}, 1)
        lib.scratch_watch()
        compiled.run(values)
        asked = lib.scratch_watch()
        planned = plan.memory(n=n).scratch
        assert asked <= planned <= 3 * lib.threads() * asked + (1 << 16), (n, asked, planned)
        if n == 300 or op == "dot":
            assert asked > 0
        if op.endswith("linear") and not op.startswith("rounded") and n <= 6 and "bf16" not in name and "vector" not in name:
            assert planned == asked == 0


@pytest.mark.parametrize("k", [1, 75, 640, 2048])
@pytest.mark.parametrize("name", ["linear", "scaled_linear"])
def test_the_plan_of_a_product_of_bf16_covers_what_the_kernel_asks_for(name: str, k: int) -> None:
    lib, g = library.load(), tg.graph((linear if name == "linear" else scaled_linear)(N, 300, k, tg.bf16, tg.bf16))
    plan = single_kernel_plan(g, kernel_named(f"c.{name}_bf16"))
    compiled = bind(plan)
    for n in (1, 8, 9, 33, 300):
        lib.scratch_watch()
        compiled.run(make_inputs(g, {"n": n}, 1))
        asked, planned = lib.scratch_watch(), plan.memory(n=n).scratch
        assert asked <= planned <= 3 * lib.threads() * asked + (1 << 16), (n, asked, planned)


@pytest.mark.parametrize("k", [1, 75, 640, 2048])
@pytest.mark.parametrize("graph", ["linear f32", "linear f32 bf16", "linear bf16", "scaled_linear bf16", "dot f32", "dot bf16",
                                   "dots f32", "dots bf16"])
def test_the_plan_of_a_product_by_tiles_covers_what_the_kernel_asks_for(graph: str, k: int) -> None:
    op, *names = graph.split()
    of_x, of_w = getattr(tg, names[0]), getattr(tg, names[-1])
    kernel = kernel_named(f"c.{op.removesuffix('s')}_amx")
    if lacking(kernel):
        return                                                      # nowhere is it planned
    batch = (20,) if op == "dots" else ()
    products = {"linear": linear, "scaled_linear": scaled_linear}
    g = tg.graph(products[op](N, 300, k, of_x, of_w) if op in products else
                 {"out": tg.input("a", (*batch, N, k), of_x) @ tg.input("b", (*batch, k, 300), of_x)})
    lib, plan = library.load(), single_kernel_plan(g, kernel)
    compiled = bind(plan)
    for n in (1, 8, 9, 33, 300):
        lib.scratch_watch()
        compiled.run(make_inputs(g, {"n": n}, 1))
        asked, planned = lib.scratch_watch(), plan.memory(n=n).scratch
        assert asked <= planned, (n, asked, planned)
        if n >= 33:                                                     # few rows go elsewhere, which takes less
            assert planned <= 4 * lib.threads() * asked + (2 << 20) * lib.threads(), (n, asked, planned)


@pytest.mark.parametrize("name", IMAGES)
def test_the_plan_of_a_convolution_covers_what_the_kernel_asks_for(name: str) -> None:
    lib, g = library.load(), tg.graph(IMAGES[name](N))
    plan = single_kernel_plan(g, kernel_named(f"c.{name.split()[0]}"))
    compiled = bind(plan)
    for n in (1, 2, 7, 33, 300, 700):
        values = make_inputs(g, {"n": n}, 1)
        lib.scratch_watch()
        compiled.run(values)
        asked = lib.scratch_watch()
        planned = plan.memory(n=n).scratch
        assert 0 < asked <= planned <= 3 * lib.threads() * asked + (1 << 17), (n, asked, planned)


def test_the_watch_counts_each_block_once_and_a_larger_one_by_the_difference() -> None:
    lib = library.load()
    x, w, out = np.zeros((40, 100), np.float32), np.zeros((30, 100), np.float32), np.zeros((40, 30), np.float32)

    def run(n: int) -> None:
        lib.call("tg_linear_f32", [out.ctypes.data, x.ctypes.data, w.ctypes.data, None], [n, 30, 100])

    lib.scratch_watch()
    run(9)
    once = lib.scratch_watch()
    run(9)
    run(9)
    assert lib.scratch_watch() == once > 0
    run(9)
    run(40)
    assert once < lib.scratch_watch() < 2 * once + 40 * 800
    assert lib.scratch_watch() == 0
