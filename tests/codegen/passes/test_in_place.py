"""Which outputs of generated loops may lie in the memory of an operand, and that they are right when they do."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen import interpret as stages
from tensor_graphs.codegen.loop_ir import Pairs
from tensor_graphs.codegen.spec_to_loops import loops_of
from tensor_graphs.language import atomic
from tensor_graphs.language.anonymous_composite import part_between
from tensor_graphs.language.composites import write_rows
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import interpret
from tests.codegen.generated import Library

N, M, P = tg.dim("n", 0, 40), tg.dim("m", 1, 9), tg.dim("p", 0, 12)
X, Y, Z = (tg.input(name, (N, 6)) for name in "xyz")
SQUARE = tg.input("s", (6, 6))
MEAN = X * 0.9 + Y * 0.1


def shared(outputs: list[Node], operands: list[Node]) -> set[tuple[int, int]]:
    return set(loops_of(part_between(outputs, operands).written).shared)


@pytest.mark.parametrize(("outputs", "operands", "pairs"), [
    ([X + Y], [X, Y], {(0, 0), (0, 1)}),
    ([Y - X], [X, Y], {(0, 0), (0, 1)}),
    ([tg.tanh(X) * tg.input("g", (6,))], [X, tg.input("g", (6,))], {(0, 0)}),
    ([X + Y * tg.input("c", (N, 1))], [X, Y, tg.input("c", (N, 1))], {(0, 0), (0, 1)}),
    ([MEAN, Z - MEAN], [X, Y, Z], {(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)}),
    ([MEAN, Z - MEAN * X], [X, Y, Z], {(0, 1), (1, 0), (1, 1), (1, 2)}),
    ([SQUARE + SQUARE.T], [SQUARE], set()),
    ([X[:, ::-1] * 2.0], [X], set()),
    ([tg.softmax(X)], [X], set()),                                  # whole rows are read before the first element is written
    ([tg.cast(X, tg.i32)], [X], set()),
    ([X[:, :3] * 2.0], [X], set()),
    ([tg.input("v", (8,)) * tg.embedding(tg.input("t", (8, 1)), tg.input("i", (8,), tg.i32))[:, 0]],
     [tg.input("v", (8,)), tg.input("t", (8, 1)), tg.input("i", (8,), tg.i32)], {(0, 0)}),
], ids=["sum", "difference", "a row for all", "a column for all", "two, one of the other", "an operand read by the second too",
        "turned", "reversed", "rows", "another dtype", "some of it", "a table"])
def test_what_is_read_at_the_turn_that_writes_it_may_be_written_over(
        outputs: list[Node], operands: list[Node], pairs: set[tuple[int, int]]) -> None:
    assert shared(outputs, operands) == pairs


def test_outputs_made_of_each_other_element_by_element_are_one_loop() -> None:
    made = loops_of(part_between([MEAN, Z - MEAN, MEAN * MEAN], [X, Y, Z]).written)
    (nest,) = made.nests
    assert len({s.axes for s in nest.stages}) == 1


# ---- rows ----------------------------------------------------------------------------------------------------------------------

CACHE, OTHER, ROWS = tg.input("k", (20, 2, 4)), tg.input("v", (20, 2, 4)), tg.input("r", (N, 2, 4))
TURNED = tg.input("u", (2, N, 4))
TABLE = tg.input("w", (2, 20, 4))
STARTS = {"first": 0, "last": 19, "behind": 25, "a dim": P, "a sum of dims": P + M, "a multiple": 2 * P}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_rows_that_are_written_are_all_that_is_stored(start: tg.Dim) -> None:
    made = loops_of(part_between([write_rows(CACHE, tg.tanh(ROWS), start=start)], [CACHE, ROWS]).written)
    assert made.updated == made.shared == ((0, 0),)
    assert not any("x0[" in line for line in str(made).splitlines())


@pytest.mark.parametrize("output", [
    write_rows(CACHE, ROWS, start=P - 1), write_rows(CACHE, CACHE[:3] * 2.0, start=P), write_rows(CACHE, ROWS, start=P) * 2.0,
    write_rows(tg.tanh(CACHE), ROWS, start=P)], ids=["a start below 0", "rows of itself", "read again", "of what is computed"])
def test_elsewhere_the_whole_is_made(output: Node) -> None:
    operands = [x for x in (CACHE, ROWS) if x in tg.graph(output).nodes]
    assert not loops_of(part_between([output], operands).written).updated


def norm_and_rows() -> tuple[list[Node], list[Node]]:
    h = tg.rms_norm(ROWS, tg.input("g", (4,)))
    along = write_rows(TABLE, TURNED, start=P + 1, axis=1)
    return ([write_rows(OTHER, ROWS, start=P), h * 2.0, write_rows(CACHE, h, start=P), along],
            [ROWS, tg.input("g", (4,)), CACHE, OTHER, TURNED, TABLE])


def test_a_norm_of_rows_that_are_written_is_made_in_the_nest_that_writes_them() -> None:
    made = loops_of(part_between([write_rows(CACHE, tg.rms_norm(ROWS, tg.input("g", (4,))), start=P)],
                                   [CACHE, ROWS, tg.input("g", (4,))]).written)
    assert len(made.nests) == 1 and len(made.nests[0].stages) == 2


# ---- values --------------------------------------------------------------------------------------------------------------------

def drawn(seed: int) -> tuple[list[Node], list[Node]]:
    """Outputs of one shape, element by element of operands and of each other."""
    r = random.Random(seed)
    operands: list[Node] = [tg.input(f"a{i}", (N, 6), r.choice((tg.f32, tg.f32, tg.f32, tg.bf16))) for i in range(r.randint(2, 4))]
    row = tg.input("row", (6,))
    values = [atomic.cast(x, tg.f32) for x in operands]
    outputs: list[Node] = []
    for _ in range(r.randint(1, 4)):
        x, y = r.choice(values), r.choice(values)
        made = r.choice((lambda a, b: a + b, lambda a, b: a - b * 0.5, lambda a, b: b - a, lambda a, b: tg.tanh(a) * b,
                         lambda a, b: a[:, ::-1] + b, lambda a, b: a + row, lambda a, b: a * tg.sigmoid(b)))(x, y)
        values.append(made)
        outputs.append(atomic.cast(made, tg.bf16) if r.random() < 0.2 else made)
    return list(dict.fromkeys(outputs)), [*operands, row]


CASES = [drawn(seed) for seed in range(60)] + [norm_and_rows()]
CASES = [(outputs, [o for o in operands if any(o in tg.graph(y).nodes for y in outputs)]) for outputs, operands in CASES]
PARTS = [part_between(*case) for case in CASES]


@pytest.fixture(scope="module")
def library() -> Library:
    return Library([loops_of(part.written) for part in PARTS])


def choices(pairs: Pairs, must: Pairs) -> list[Pairs]:
    """Ways to share: none, each alone, and two sets of as many as can be at once. must: those that are part of each."""
    def most(some: Pairs) -> Pairs:
        taken: dict[int, int] = {}
        for o, i in some:
            if o not in taken and i not in taken.values():
                taken[o] = i
        return tuple(taken.items())

    found = [(), *((pair,) for pair in pairs), most(pairs), most(pairs[::-1])]
    return list(dict.fromkeys((*must, *(pair for pair in each if pair not in must)) for each in found))


@pytest.mark.parametrize("number", range(len(CASES)))
def test_values_are_right_in_whatever_memory_they_lie(library: Library, number: int) -> None:
    (outputs, operands), program = CASES[number], library.programs[number]
    rng = np.random.default_rng(number)
    for n, p in itertools.product((0, 1, 7, 40), (0, 11) if PARTS[number].dims else (0,)):
        sizes = {"n": n, "p": p} if PARTS[number].dims else {"n": n}
        arrays = [rng.standard_normal([n if s is N else int(s) for s in o.shape]).astype(np.float32).astype(o.dtype.numpy)
                  for o in operands]
        values = {str(o.attrs["name"]): a for o, a in zip(operands, arrays, strict=True)}
        said = interpret(tg.graph({f"o{i}": o for i, o in enumerate(outputs)}), values, dims=sizes).outputs
        by_stages = stages.run(program, [a.reshape(-1) for a in arrays], sizes)
        ways = choices(program.shared, ()) + choices(program.shared, program.updated)
        for way in ways:
            made = library.run(number, PARTS[number].written, arrays, sizes, dict(way))
            for i, (found, o) in enumerate(zip(made, outputs, strict=True)):
                limit = 1e-2 if tg.bf16 in (o.dtype, *(x.dtype for x in operands)) else 2e-6
                np.testing.assert_allclose(found.astype(np.float64), said[f"o{i}"], rtol=limit, atol=limit, err_msg=f"{way}")
                np.testing.assert_allclose(np.asarray(by_stages[i]).reshape(-1), said[f"o{i}"].reshape(-1), rtol=limit, atol=limit)


def test_a_pair_that_is_none_is_seen(library: Library) -> None:
    """That the comparison notices an operand that is written over too early."""
    part = part_between([SQUARE + SQUARE.T], [SQUARE])
    own = Library([loops_of(part.written)])
    x = np.arange(36, dtype=np.float32).reshape(6, 6)
    assert not np.array_equal(own.run(0, part.written, [x], {}, {0: 0})[0], x + x.T)
