"""Products of few rows as streams over their weights: the values of each kind of part, and which programs they are."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen import interpret as stages
from tensor_graphs.codegen.loop_ir import StageProgram
from tensor_graphs.codegen.refusals import TooManyTurns
from tensor_graphs.codegen.spec_to_loops import loops_of
from tensor_graphs.kernels.kernel import NotLowered
from tensor_graphs.language.anonymous_composite import PartOp, part_between
from tensor_graphs.language.composite import Definition
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import interpret
from tests.codegen.generated import Library

N = tg.dim("n", 1, 300)

SIZES = [(5, 7), (24, 127), (40, 128), (33, 130), (96, 640), (16, 2051)]
"""columns, inner: below, at and above whole vectors, blocks of them, and blocks of sums"""

Kind = Callable[[int, int, DType], tuple[list[Node], list[Node]]]
"""outputs and operands of a part of so many columns and inner elements, with weights of a dtype"""


def norms(m: int, k: int, dtype: DType) -> tuple[list[Node], list[Node]]:
    x, r, g, w = tg.input("x", (N, k)), tg.input("r", (N, k)), tg.parameter("g", (k,), dtype), tg.parameter("w", (m, k), dtype)
    stream = r + tg.rms_norm(x, g)
    return [stream, tg.linear(tg.rms_norm(stream, g), w)], [x, r, g, w]


def gated(m: int, k: int, dtype: DType) -> tuple[list[Node], list[Node]]:
    x, w, v = tg.input("x", (N, k)), tg.parameter("w", (m, k), dtype), tg.parameter("v", (m, k), dtype)
    return [tg.gelu(tg.linear(x, w)) * tg.linear(x, v)], [x, w, v]


def several(m: int, k: int, dtype: DType) -> tuple[list[Node], list[Node]]:
    x, b = tg.input("x", (N, k)), tg.parameter("b", (m,), dtype)
    w = [tg.parameter(f"w{i}", (size, k), dtype) for i, size in enumerate((m, 3, 2 * m))]
    h = tg.tanh(x)
    return [tg.linear(h, w[0], b), tg.linear(h, w[1]), tg.linear(h, w[2])], [x, b, *w]


def residual(m: int, k: int, dtype: DType) -> tuple[list[Node], list[Node]]:
    x, y, w = tg.input("x", (N, k), tg.bf16), tg.input("y", (N, m), tg.bf16), tg.parameter("w", (m, k), dtype)
    return [y + tg.silu(tg.linear(x, w))], [x, y, w]


CASES: list[tuple[Kind, tuple[int, int], DType]] = list(
    itertools.product((norms, gated, several, residual), SIZES, (tg.f32, tg.bf16)))


def written(case: tuple[Kind, tuple[int, int], DType]) -> tuple[PartOp, list[Node], list[Node]]:
    kind, (m, k), dtype = case
    outputs, operands = kind(m, k, dtype)
    return part_between(outputs, operands), outputs, operands


def program_of(definition: Definition) -> StageProgram:
    return loops_of(definition, False, True)


@pytest.fixture(scope="module")
def library() -> Library:
    return Library([program_of(written(case)[0].written) for case in CASES])


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{c[0].__name__} {c[1][0]}x{c[1][1]} {c[2]}" for c in CASES])
def test_streams_agree_with_the_oracle(library: Library, number: int) -> None:
    part, outputs, operands = written(CASES[number])
    rng = np.random.default_rng(number)
    for rows in (1, 2, 3, 4, 9):
        values = {}
        for o in operands:
            shape = [rows if s is N else int(s) for s in o.shape]
            weight = len(shape) == 2 and o.op.name == "parameter"
            given = rng.standard_normal(shape).astype(np.float32) / (shape[-1] ** 0.5 if weight else 1)
            values[str(o.attrs["name"])] = given.astype(ml_dtypes.bfloat16) if o.dtype is tg.bf16 else given
        inputs, parameters = ({n: v for n, v in values.items() if n in group} for group in _names(operands))
        said = interpret(tg.graph({f"o{i}": o for i, o in enumerate(outputs)}), inputs, parameters, dims={"n": rows}).outputs
        made = library.run(number, part.written, list(values.values()), {"n": rows})
        for i, (found, output) in enumerate(zip(made, outputs, strict=True)):
            limit = 8e-3 if output.dtype is tg.bf16 else 2e-6
            np.testing.assert_allclose(found.astype(np.float64), said[f"o{i}"], rtol=limit, atol=limit)


def _names(operands: list[Node]) -> list[set[str]]:
    return [{str(o.attrs["name"]) for o in operands if o.op.name == kind} for kind in ("input", "parameter")]


@pytest.mark.parametrize("case", [CASES[0], CASES[12]], ids=["norms", "gated"])
def test_the_stages_in_numpy_say_the_same(case: tuple[Kind, tuple[int, int], DType]) -> None:
    part, outputs, operands = written(case)
    rng = np.random.default_rng(0)
    values = {str(o.attrs["name"]): rng.standard_normal([3 if s is N else int(s) for s in o.shape]).astype(np.float32)
              for o in operands}
    made = stages.run(program_of(part.written), [v.reshape(-1) for v in values.values()], {"n": 3})
    inputs, parameters = ({n: v for n, v in values.items() if n in group} for group in _names(operands))
    said = interpret(tg.graph({f"o{i}": o for i, o in enumerate(outputs)}), inputs, parameters, dims={"n": 3}).outputs
    for i, found in enumerate(made):
        np.testing.assert_allclose(np.asarray(found).reshape(-1), said[f"o{i}"].reshape(-1), rtol=1e-5, atol=1e-5)


def test_what_comes_before_is_made_once_and_products_wait_for_it_once() -> None:
    first, *products = program_of(written((several, (40, 640), tg.f32))[0].written).nests
    assert not first.advice.beside and [n.advice.beside for n in products] == [False, True, True]
    assert all(n.axes[0].size in (40, 3, 80) and n.axes[1].size is N and n.advice.shared == 1 for n in products)


def test_a_product_without_rows_leaves_the_one_beside_it_its_turns() -> None:
    p, q = tg.dim("p", 0, 4), tg.dim("q", 0, 4)
    a, b, w = tg.input("a", (p, 130)), tg.input("b", (q, 130)), tg.parameter("w", (512, 130))
    both = [tg.linear(a, b), tg.linear(b, w)]
    parts = [part_between(outputs, [a, b, w]).written for outputs in (both, both[::-1])]
    rng = np.random.default_rng(0)
    values = [rng.standard_normal((rows, 130)).astype(np.float32) for rows in (0, 2, 512)]
    programs = [program_of(part) for part in parts]
    assert any(not n.advice.beside and n.axes[0].size is p for each in programs for n in each.nests), "its own turns come first"
    made = Library(programs)
    for number, part in enumerate(parts):
        empty, found = made.run(number, part, values, {"p": 0, "q": 2})[::-1 if number else 1]
        assert empty.shape == (0, 2)
        np.testing.assert_allclose(found, values[1] @ values[2].T, rtol=1e-4, atol=1e-4)


def test_a_gate_and_what_it_opens_are_one_nest() -> None:
    (nest,) = program_of(written((gated, (40, 640), tg.f32))[0].written).nests
    assert [s.product for s in nest.stages] == ["streamed", "streamed", None]


X, W, SQUARE = tg.input("x", (N, 640)), tg.parameter("w", (40, 640)), tg.parameter("s", (640, 640))
REFUSED: dict[str, tuple[Node, list[Node], str]] = {
    "a softmax of what a product gives": (tg.softmax(tg.linear(X, W)), [X, W], "more is made of its products"),
    "a product of a product": (tg.linear(tg.linear(X, SQUARE), W), [X, W, SQUARE], "a product of what another product gives"),
    "a weight that lies across": (tg.tanh(X) @ SQUARE, [X, SQUARE], "do not lie along memory"),
    "many rows": (tg.silu(tg.linear(tg.input("m", (64, 640)), SQUARE)), [], "a product of many rows")}


@pytest.mark.parametrize("name", REFUSED)
def test_no_streams_are_written_for(name: str) -> None:
    output, operands, why = REFUSED[name]
    with pytest.raises(NotLowered, match=re.escape(why)):
        loops_of(part_between([output], operands or _leaves(output)).written, False, True)


def _leaves(output: Node) -> list[Node]:
    graph = tg.graph(output)
    return [*graph.inputs.values(), *graph.parameters.values()]


def test_a_product_by_itself_is_for_kernels_by_hand() -> None:
    part = written((gated, (40, 640), tg.f32))[0]
    with pytest.raises(TooManyTurns, match="a product"):
        loops_of(part.written)
