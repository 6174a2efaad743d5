"""Rows beside each other: the pass means what it meant, and its sums are products where they can be."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen.interpret import run
from tensor_graphs.codegen.loop_ir import StageProgram
from tensor_graphs.codegen.passes.tile_rows import FEWEST, laned, product_of
from tensor_graphs.codegen.print.c_loops import rendered
from tensor_graphs.kernels.c import library
from tensor_graphs.language.composite import Definition
from tensor_graphs.language.node import Node
from tests.codegen.generated import Library
from tests.codegen.passes.test_online_reductions import S, W, agree, definition_of, passed

N = tg.dim("n", 1, 70)


def qkv(n: tg.Dim, heads: int, groups: int, width: int, dtype: tg.DType = tg.f32) -> tuple[Node, Node, Node]:
    k, v = (tg.input(name, (S, groups, width), dtype) for name in "kv")
    return tg.input("q", (n, heads, width), dtype), k, v


CASES: dict[str, tuple[Node, int]] = {                              # and how many of the sums are products
    "rows that fill no lanes": (tg.attention(*qkv(40, 2, 2, 24), scale=0.3), 2),
    "rows that fill all": (tg.attention(*qkv(64, 2, 1, 16), scale=0.3), 2),
    "few rows": (tg.attention(*qkv(FEWEST, 2, 1, 16), scale=0.3), 2),
    "causal": (tg.attention(*qkv(40, 4, 2, 24), scale=0.3, causal=True, start=S - 40), 2),
    "a window, of any rows": (tg.attention(*qkv(N, 4, 2, 24), scale=0.1, causal=True, window=40, start=S - N), 2),
    "a mask": (tg.attention(*qkv(40, 2, 2, 24), tg.input("m", (40, S), tg.bool_), scale=0.3), 2),
    "f64": (tg.attention(*qkv(40, 2, 2, 24, tg.f64), scale=0.3), 2),
    "bf16": (tg.attention(*qkv(40, 2, 2, 24, tg.bf16), scale=0.3), 2),
    "f16": (tg.attention(*qkv(40, 2, 2, 24, tg.f16), scale=0.3), 2),
    "a soft cap": (tg.attention(*qkv(40, 2, 2, 24), scale=0.3, softcap=4.0), 2),
    "rows that crowd the cache": (tg.attention(*qkv(40, 4, 4, 128), scale=0.1), 2),
    "keys of one block": (tg.attention(tg.input("q", (32, 2, 24)), *(tg.input(n, (32, 2, 24)) for n in "kv"), scale=0.3), 2),
    "a softmax times a matrix": (tg.softmax(tg.input("x", (40, S))) @ W, 1),
}


def of_lanes(definition: Definition) -> StageProgram:
    program = passed(definition)
    made = laned(program, library.load().tile(8 if definition.outputs[0].dtype is tg.f64 else 4).lanes)
    assert made is not program
    return made


def drawn(graph: tg.Graph, s: int, n: int) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    rng = np.random.default_rng(s)
    at = {name: size for name, size in (("s", s), ("n", n)) if name in graph.dims}
    values = {}
    for name, x in graph.inputs.items():
        shape = x.type.at(at).shape
        values[name] = (rng.random(shape) < 0.3 if x.dtype is tg.bool_ else rng.normal(size=shape)).astype(x.dtype.numpy)
    return values, at


@pytest.mark.parametrize("name", CASES)
def test_rows_beside_each_other_mean_what_they_meant_alone(name: str) -> None:
    output, products = CASES[name]
    graph, definition = definition_of(output)
    program = of_lanes(definition)
    assert sum(product_of(s) is not None for nest in program.nests for s in nest.stages) == products, str(program)
    for s, n in ((45, 37), (64, 64), (130, 1)):
        values, at = drawn(graph, s, n)
        agree(run(program, list(values.values()), at), graph, values, s, 1e-9, at)


def test_lanes_mean_the_same_in_c() -> None:
    pairs = [definition_of(output) for output, _ in CASES.values()]
    compiled = Library([of_lanes(definition) for _, definition in pairs])
    for i, (name, (graph, definition)) in enumerate(zip(CASES, pairs, strict=True)):
        for s, n in ((1, 1), (45, 37), (200, 64)):
            values, at = drawn(graph, s, n)
            tolerance = {"f64": 1e-12, "bf16": 2e-2, "f16": 2e-3}.get(name, 1e-5)
            agree(compiled.run(i, definition, list(values.values()), at), graph, values, s, tolerance, at)


def test_a_product_is_a_call_of_the_register_tile() -> None:
    text = rendered(of_lanes(definition_of(CASES["rows that fill no lanes"][0])[1]))
    assert text.count("tg_rows_product(") == 2 and "K_CONTIGUOUS" in text and "ROWS_CONTIGUOUS" in text
    assert rendered(of_lanes(definition_of(CASES["f64"][0])[1])).count("tg_wide_rows_product(") == 2


@pytest.mark.parametrize("output", [
    tg.attention(*qkv(FEWEST - 1, 4, 2, 24), scale=0.3),
    tg.softmax(tg.input("x", (3, S))) @ W,
], ids=["few queries", "few rows"])
def test_few_rows_stay_alone(output: Node) -> None:
    program = passed(definition_of(output)[1])
    assert laned(program, 32) is program
