"""Products by register tiles: they mean what their loops meant, in the interpreter of stages and in C."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen.interpret import run
from tensor_graphs.codegen.passes.tile_rows import product_of
from tensor_graphs.codegen.spec_to_loops import products_of
from tensor_graphs.kernels.kernel import NotLowered
from tensor_graphs.language.node import Node
from tests.codegen.generated import Library
from tests.codegen.passes.test_online_reductions import agree, definition_of

N = tg.dim("n", 1, 70)


def x(*shape: tg.Dim, dtype: tg.DType = tg.f32, name: str = "x") -> Node:
    return tg.input(name, shape, dtype)


def w(*shape: tg.Dim, dtype: tg.DType = tg.f32) -> Node:
    return x(*shape, dtype=dtype, name="w")


CASES: dict[str, tuple[Node, int]] = {                              # and how many products
    "tiles that are filled": (x(28, 64) @ w(64, 64), 1),
    "lanes and rows that are left over": (x(33, 100) @ w(100, 37), 1),
    "few columns": (x(200, 40) @ w(40, 3), 1),
    "any number of rows": (tg.linear(x(N, 24), w(50, 24)), 1),
    "weights by rows": (tg.linear(x(40, 70), w(90, 70), tg.input("b", (90,))), 1),
    "an activation": (tg.gelu(tg.linear(x(40, 32), w(90, 32))), 1),
    "two products": (tg.silu(tg.linear(x(20, 32), w(40, 32))) * tg.linear(x(20, 32), tg.input("u", (40, 32))), 2),
    "batches": (x(3, 20, 24) @ w(3, 24, 20), 1),
    "batches of one matrix": (x(3, 20, 24) @ w(24, 20), 1),
    "turned rows": (tg.permute(x(64, 40), (1, 0)) @ w(64, 40), 1),
    "f64": (x(40, 32, dtype=tg.f64) @ w(32, 40, dtype=tg.f64), 1),
    "f64 of narrow numbers": (tg.linear(x(40, 32).cast(tg.f64), w(50, 32).cast(tg.f64)), 1),
    "bf16": (tg.linear(x(40, 32, dtype=tg.bf16), w(50, 32, dtype=tg.bf16)), 1),
    "f16": (tg.linear(x(40, 32, dtype=tg.f16), w(50, 32, dtype=tg.f16)), 1),
    "numbers with a scale": (tg.linear(x(40, 32), w(50, 32, dtype=tg.i8).cast(tg.f32) * tg.input("s", (50, 1))), 1),
    "a convolution": (tg.conv2d(x(2, 8, 9, 10), w(16, 8, 3, 3), padding=1), 1),
    "one with strides": (tg.conv2d(x(2, 8, 9, 10), w(20, 8, 3, 3), tg.input("b", (20,)), stride=2), 1),
}


def drawn(graph: tg.Graph, n: int) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    rng = np.random.default_rng(n)
    at = {"n": n} if "n" in graph.dims else {}
    values = {}
    for name, operand in graph.inputs.items():
        shape = operand.type.at(at).shape
        integers = operand.dtype.kind != "float"
        values[name] = (rng.integers(-2, 3, shape) if integers else rng.normal(size=shape)).astype(operand.dtype.numpy)
    return values, at


def tolerance_of(name: str, exact: float) -> float:
    return {"bf16": 2e-2, "f16": 2e-3}.get(name, exact)


@pytest.mark.parametrize("name", CASES)
def test_a_product_by_tiles_means_what_its_loops_meant(name: str) -> None:
    output, products = CASES[name]
    graph, definition = definition_of(output)
    program = products_of(definition)
    assert sum(product_of(s) is not None for s in program.stages) == products, str(program)
    for n in (1, 37, 64):
        values, at = drawn(graph, n)
        agree(run(program, list(values.values()), at), graph, values, n, tolerance_of(name, 1e-9), at)


def test_tiles_mean_the_same_in_c() -> None:
    pairs = [definition_of(output) for output, _ in CASES.values()]
    compiled = Library([products_of(definition) for _, definition in pairs])
    for i, (name, (graph, definition)) in enumerate(zip(CASES, pairs, strict=True)):
        for n in (1, 37, 64):
            values, at = drawn(graph, n)
            tolerance = tolerance_of(name, 1e-12 if name == "f64" else 1e-5)
            agree(compiled.run(i, definition, list(values.values()), at), graph, values, n, tolerance, at)


@pytest.mark.parametrize("output", [
    tg.exp(x(40, 40)),
    tg.gather_linear(x(8, 1, 32), w(4, 16, 32), tg.input("i", (8, 2), tg.i32)),
    (x(40, 32, dtype=tg.i32)[:, None, :] * w(50, 32, dtype=tg.i32)[None]).sum(axis=-1),
], ids=["no product", "matrices that are chosen", "integers"])
def test_what_has_no_tile_is_refused(output: Node) -> None:
    with pytest.raises(NotLowered, match="no product for register tiles"):
        products_of(definition_of(output)[1])
