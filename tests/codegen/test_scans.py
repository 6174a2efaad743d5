"""Scans: what a definition writes as sums over a triangle runs in one pass, and gives what the oracle says."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen.default_schedule import CHUNK
from tensor_graphs.codegen.loop_ir import StageProgram
from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.pipelines import arranged
from tensor_graphs.language import atomic
from tensor_graphs.language.anonymous_composite import part_between
from tensor_graphs.language.dtypes import DTYPES
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.error_measure import measure
from tensor_graphs.meaning.interpreter import interpret
from tests.codegen.generated import Library

N = tg.dim("n", 0, 1024)


def triangle(x: Node, holds: str, fill: float) -> Node:
    """[r, i, j]: x[r, j] where j stands to i as said, `fill` elsewhere."""
    (r, n), i32 = x.shape, tg.i32
    at = [tg.expand(atomic.iota((n,), 0, i32).reshape(*shape), (r, n, n)) for shape in ((1, n, 1), (1, 1, n))]
    i, j = at
    keeps = {"j <= i": ~(i < j), "j < i": j < i, "j >= i": j >= i, "j > i": i < j}[holds]
    return tg.where(keeps, tg.expand(x.reshape(r, 1, n), (r, n, n)), fill)


def operand(dtype: str, *shape: tg.Dim) -> Node:
    return tg.input("x", shape, DTYPES[dtype])


X = operand("f32", 3, N)
SCANS: dict[str, Node] = {
    **{f"rows of {t}": tg.cumsum(operand(t, 3, N)) for t in DTYPES if t != "bool"},
    **{f"columns of {t}": tg.cumsum(operand(t, N, 5), axis=0) for t in ("f32", "f16", "f64", "i32", "u8")},
    "axis in the middle": tg.cumsum(operand("f32", 2, N, 3), axis=1),
    "more columns than accumulators": tg.cumsum(operand("f32", N, 700), axis=0),
    "one long row": tg.cumsum(operand("f32", 4 * CHUNK + 77)),
    "one long row of integers": tg.cumsum(operand("i16", 4 * CHUNK + 77)),
    "backwards": tg.flip(tg.cumsum(tg.flip(X, 1)), 1),
    "normalised": tg.softmax(tg.cumsum(X * 0.1)),
    "of a reduction": tg.cumsum(tg.softmax(X)),
    **{f"sum of {h}": triangle(X, h, 0.0).sum(axis=2) for h in ("j <= i", "j < i", "j >= i", "j > i")},
    **{f"maximum of {h}": tg.reduce_max(triangle(X, h, -np.inf), axis=2) for h in ("j <= i", "j < i", "j > i")},
    "maximum of integers": tg.reduce_max(triangle(operand("i32", 3, N), "j <= i", -2**31), axis=2),
    "product": tg.prod(triangle(tg.tanh(X) + 1.5, "j >= i", 1.0), axis=2),
}
IN_PLACE_OF_A_SCAN = {
    "beginning with another number": triangle(X, "j <= i", 1.0).sum(axis=2),
    "of what depends on both": (triangle(X, "j <= i", 0.0) * tg.expand(X.reshape(3, N, 1), (3, N, N))).sum(axis=2),
}
SIZES = (0, 1, 3, 17, 127, 129, 600)


def program(node: Node) -> StageProgram:
    graph = tg.graph(node)
    return arranged(lower(part_between(list(graph.outputs.values()), list(graph.inputs.values())).written))


@pytest.fixture(scope="module")
def library() -> Library:
    return Library([program(node) for node in SCANS.values()])


@pytest.mark.parametrize("name", SCANS)
def test_a_scan_is_what_the_oracle_says(name: str, library: Library) -> None:
    graph: Graph = tg.graph(SCANS[name])
    (x,) = graph.inputs.values()
    written = part_between(list(graph.outputs.values()), [x]).written
    number = list(SCANS).index(name)
    assert any(s.scan for n in library.programs[number].nests for s in n.stages)
    rng = np.random.default_rng(3)
    for n in SIZES if graph.dims else SIZES[:1]:
        shape = x.type.at({"n": n}).shape
        many = rng.standard_normal(shape) if x.dtype.is_float else rng.integers(0, 100, shape)
        values = {"x": many.astype(x.dtype.numpy)}
        dims = {"n": n} if graph.dims else {}
        (out,) = library.run(number, written, list(values.values()), dims)
        (expected,) = interpret(graph, values, dims=dims).outputs.values()
        report = measure(out, expected, x.dtype)
        close = {"f64": 1e-12, "f32": 4e-6, "bf16": 8e-3, "f16": 2e-3, "f8e4m3": 0.07, "f8e5m2": 0.13}.get(x.dtype.name, 0.0)
        assert report.within(close), f"n = {n}\n{library.programs[number]}\n{report}"


@pytest.mark.parametrize("name", IN_PLACE_OF_A_SCAN)
def test_what_only_looks_like_a_scan_is_none(name: str) -> None:
    assert not any(s.scan for n in program(IN_PLACE_OF_A_SCAN[name]).nests for s in n.stages)
