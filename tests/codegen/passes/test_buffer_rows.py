"""Sums of one element each are kept as a row where something dear is made of them; what comes out is the same."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen.interpret import run
from tensor_graphs.codegen.loop_ir import StageProgram
from tensor_graphs.codegen.passes.buffer_rows import LEAST, with_rows
from tensor_graphs.codegen.spec_to_loops import loops_of
from tensor_graphs.language.composite import Definition, definition_digest
from tensor_graphs.language.leaves import argument
from tensor_graphs.language.node import Node, TensorType


def program_of(make: object, *types: TensorType) -> StageProgram:
    arguments = tuple(argument(i, t) for i, t in enumerate(types))
    outputs: tuple[Node, ...] = (make(*arguments),)  # type: ignore[operator]
    return loops_of(Definition(arguments, outputs, definition_digest(outputs)), updates=False)


def cell(h: Node, y: Node, u: Node) -> Node:
    return tg.tanh(y + tg.linear(h, u))


def types_of(batch: object, width: int, into: int) -> tuple[TensorType, ...]:
    return tuple(TensorType(shape, tg.f32) for shape in ((batch, width), (batch, into), (into, width)))  # type: ignore[arg-type]


@pytest.mark.parametrize(("batch", "width", "into"), [(8, 16, 16), (1, 3, LEAST), (3, 5, 20)])
def test_a_row_of_sums_gives_what_single_sums_give(batch: int, width: int, into: int) -> None:
    types = types_of(batch, width, into)
    plain = program_of(cell, *types)
    before = str(plain)
    kept = with_rows(plain)
    assert str(plain) == before, "the program that came was changed"
    (nest,) = kept.nests
    assert [len(s.axes) for s in nest.stages] == [1, 1] and nest.stages[0].target.level == len(nest.axes)
    rng = np.random.default_rng(batch)
    operands = [rng.standard_normal(t.shape).astype(np.float32) for t in types]
    (found,), (expected,) = run(kept, operands), run(plain, operands)
    h, y, u = (a.astype(np.float64) for a in operands)
    np.testing.assert_allclose(found.reshape(batch, into), np.tanh(y + h @ u.T), rtol=1e-6)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("make", [lambda h, y, u: y + tg.linear(h, u), lambda h, y, u: tg.tanh(y)], ids=["nothing dear", "no sum"])
def test_other_nests_stay_as_they_are(make: object) -> None:
    plain = program_of(make, *types_of(4, 16, 16))
    assert with_rows(plain).nests == plain.nests


def test_a_row_too_short_for_a_vector_stays() -> None:
    plain = program_of(cell, *types_of(4, 16, LEAST - 1))
    assert with_rows(plain).nests == plain.nests
