"""What is read along one axis and written along another goes in blocks: all widths of numbers, sizes around a block."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen.loop_ir import StageProgram
from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.pipelines import arranged
from tensor_graphs.language.anonymous_composite import part_between
from tensor_graphs.language.dtypes import DTYPES
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import interpret
from tests.codegen.generated import Library

M, N = tg.dim("m", 0, 1024), tg.dim("n", 0, 1024)


def operand(dtype: str, *shape: tg.Dim, name: str = "x") -> Node:
    return tg.input(name, shape, DTYPES[dtype])


TILED: dict[str, Node] = {
    **{f"turned {t}": tg.where(operand("bool", N, M, name="y"), operand(t, M, N).permute((1, 0)),
                                tg.expand(operand(t, M, 1, name="z").permute((1, 0)), (N, M))) for t in DTYPES},
    "three axes, each other way round": tg.tanh(operand("f32", M, 5, N)).permute((2, 1, 0)),
    "the middle stays": operand("f32", 3, M, N).permute((0, 2, 1)) * 2.0,
    "a piece of it": operand("f32", M, N)[2:, 1:].permute((1, 0)) * 2.0,
    "two that lie across": operand("f32", M, N).permute((1, 0)) + operand("i16", M, N, name="y").permute((1, 0)).cast(tg.f32),
}
SIZES = ((0, 9), (1, 1), (3, 17), (127, 129), (129, 64), (16, 1000))


def program(node: Node) -> StageProgram:
    graph = tg.graph(node)
    return arranged(lower(part_between(list(graph.outputs.values()), list(graph.inputs.values())).written))


@pytest.fixture(scope="module")
def library() -> Library:
    return Library([program(node) for node in TILED.values()])


@pytest.mark.parametrize("name", TILED)
def test_what_lies_across_is_read_in_tiles_and_right(name: str, library: Library) -> None:
    graph = tg.graph(TILED[name])
    number = list(TILED).index(name)
    written = part_between(list(graph.outputs.values()), list(graph.inputs.values())).written
    assert library.programs[number].nests[0].tile is not None
    rng = np.random.default_rng(1)
    for m, n in SIZES:
        sizes = {"m": m, "n": max(n, 1)}
        values = {k: rng.integers(0, 2 if x.dtype.kind == "bool" else 100, x.type.at(sizes).shape).astype(x.dtype.numpy)
                  for k, x in graph.inputs.items()}
        (out,) = library.run(number, written, list(values.values()), sizes)
        (expected,) = interpret(graph, values, dims=sizes).outputs.values()
        np.testing.assert_allclose(out.astype(np.float64), expected.astype(np.float64), rtol=1e-6 if "f64" not in name else 0)


@pytest.mark.parametrize("begin", [0, 1, 5, 15])
def test_tiles_are_right_wherever_in_a_line_of_the_cache_an_operand_begins(begin: int, library: Library) -> None:
    name = "the middle stays"
    written = part_between([TILED[name]], list(tg.graph(TILED[name]).inputs.values())).written
    for m, n in ((129, 64), (16, 15), (31, 200)):
        memory = np.arange(3 * m * n + 64, dtype=np.float32)
        aligned = -memory.ctypes.data // 4 % 16
        x = memory[aligned + begin:aligned + begin + 3 * m * n].reshape(3, m, n)
        (out,) = library.run(list(TILED).index(name), written, [x], {"m": m, "n": n})
        np.testing.assert_array_equal(out, x.transpose(0, 2, 1) * 2)


@pytest.mark.parametrize("node", [operand("f32", M, 3).permute((1, 0)) * 2.0, operand("f32", M, N, 4).permute((1, 0, 2)) * 2.0,
                                   tg.softmax(operand("f32", M, N))])
def test_what_lies_along_or_in_short_pieces_is_not_cut_into_tiles(node: Node) -> None:
    assert all(nest.tile is None for nest in program(node).nests)
