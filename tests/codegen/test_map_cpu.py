"""The loops of a program on a CPU compute what its stages do, in any number of parts, and parts do not depend on each other."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen import interpret, interpret_loops, schedule_actions
from tensor_graphs.codegen.evaluate import StageError
from tensor_graphs.codegen.loop_ir import StageProgram, Values
from tensor_graphs.codegen.loop_program import FROM, FunctionCall, Local, Loop, LoopProgram, Parallel, Store, Take, statements
from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.map_cpu import map_cpu
from tensor_graphs.codegen.pipelines import arranged, fused
from tensor_graphs.codegen.print import c_loops
from tensor_graphs.codegen.spec_to_loops import products_of
from tensor_graphs.language.dtypes import f64
from tensor_graphs.language.node import Node
from tests.codegen.test_interpret_loops import Edit, all_of, but, edited, inner, nth
from tests.codegen.test_schedule_actions import every_schedule, of
from tests.fuzzing.stage_runs import FORMS, Case, calls, drawn, form_of, patched

SEEDS = 12
"""seeds of the fast run; the long one and benchmarks/fuzz_stages.py go on"""

MANY = 1 << 16
"""parts: one for each unit of a nest"""


def why_wrong(case: Case, *parts: int) -> str | None:
    """Return how the loops of a random program differ from its stages; None where they agree."""
    sample = drawn(case)
    with patched(case.form):
        sample.program = FORMS[case.form][0](sample.program)
    loops = map_cpu(sample.program)
    for call in calls(case, sample):
        for count in parts:
            why = call.why_wrong(interpret_loops.run(loops, call.operands, call.binding, parts=count))
            if why is not None:
                return f"{case}, {count} parts: {why}\n{loops}"
    return None


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_programs_are_what_their_stages_are_and_parts_do_not_race(seed: int) -> None:
    assert (why := why_wrong(Case(seed, form_of(seed)), MANY)) is None, why


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEEDS, 250))
def test_many_random_programs_are_what_their_stages_are_in_any_number_of_parts(seed: int) -> None:
    assert (why := why_wrong(Case(seed, form_of(seed)), MANY, 3, 1)) is None, why


def compared(stages: StageProgram, loops: LoopProgram, parts: int = MANY) -> None:
    """Run loops and stages on numbers at random. Raises AssertionError where they differ."""
    rng = np.random.default_rng(1)
    operands = [rng.integers(0, 7, a.size).astype(a.dtype.numpy) if a.dtype.is_integer else rng.standard_normal(a.size)
                for a in stages.operands]
    for out, expected in zip(interpret_loops.run(loops, operands, parts=parts), interpret.run(stages, operands), strict=True):
        np.testing.assert_allclose(out, expected, rtol=1e-9, atol=1e-9)


ROWS = tg.input("x", (7, 20))
GRAPHS = {
    "softmax": tg.softmax(ROWS), "softmax of columns": tg.softmax(ROWS, axis=0), "a sum of columns": ROWS.sum(axis=0),
    "a maximum of rows": tg.reduce_max(ROWS, axis=1), "a turned sum": tg.input("t", (17, 6)).permute((1, 0)) + 1.0,
    "a scan of columns": tg.cumsum(ROWS, 0), "a scan of rows": tg.cumsum(ROWS, 1), "layer_norm": tg.layer_norm(ROWS),
    "whole numbers": tg.cast(ROWS, tg.i32).sum(axis=1),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_every_schedule_is_what_its_stages_are(name: str) -> None:
    _, definition = of(GRAPHS[name])
    texts = set()
    for schedule in every_schedule(definition):
        program = schedule_actions.replay(definition, schedule)
        loops = map_cpu(program)
        if str(loops) not in texts:                                 # others differ in the grain of parts
            texts.add(str(loops))
            compared(program, loops)
    assert texts


@pytest.mark.parametrize("parts", [MANY, 2])
def test_a_product_by_register_tiles_is_a_product(parts: int) -> None:
    program = products_of(of(tg.relu(tg.input("a", (9, 12)) @ tg.input("b", (12, 21))))[1])
    loops = map_cpu(program)
    assert any(isinstance(s, FunctionCall) and s.function == "tg_rows_product" for k in loops.kernels for s in statements(k.body))
    compared(program, loops, parts)


def test_a_pass_over_blocks_is_what_its_stages_are() -> None:
    _, definition = of(tg.softmax(tg.input("x", (20, 40))) @ tg.input("w", (40, 5)))
    program = fused(lower(definition), 16, 8)
    compared(program, map_cpu(program))


# ---- programs that are wrong -----------------------------------------------------------------------------------------------------


def stages(node: Node) -> StageProgram:
    return arranged(lower(of(node)[1]))


def rows() -> StageProgram:
    return stages(tg.softmax(tg.input("x", (5, 9))))


def flat() -> StageProgram:
    program = stages(tg.input("x", (200,)) * 2.0)
    assert not program.nests[0].axes
    return program


def long_rows() -> StageProgram:
    return stages(tg.input("x", (3, 19)).sum(axis=1))


def running() -> StageProgram:
    return stages(tg.cumsum(tg.input("x", (2, 7), tg.i32), axis=1))


def in_two() -> StageProgram:
    return stages(tg.reduce_max(tg.input("x", (5, 4)).sum(axis=1)))


def without_from(loops: LoopProgram) -> LoopProgram:
    """Each part begins at 0."""
    for loop in [s for k in loops.kernels for s in statements(k.body) if isinstance(s, Loop) and str(s.first) == FROM]:
        loops = edited(loops, loop, replace(loop, first=0))
    return loops


def one_kernel(loops: LoopProgram) -> LoopProgram:
    first, *others = loops.kernels
    body = (*first.body, *(s for kernel in others for s in kernel.body))
    return replace(loops, kernels=(replace(first, body=body, buffers=tuple(b for k in loops.kernels for b in k.buffers)),))


def as_vector(loops: LoopProgram) -> LoopProgram:
    """Iterations that go on with each other, as if they did not."""
    loop = next(s for k in loops.kernels for s in statements(k.body) if isinstance(s, Loop) and s.kind == "serial"
                and any(isinstance(x, Store) for x in s.body) and any(isinstance(x, Take) for x in s.body))
    return edited(loops, loop, replace(loop, kind="vector"))


def without_rest(loops: LoopProgram) -> LoopProgram:
    """Only whole strips are summed."""
    tail = next(s for k in loops.kernels for s in statements(k.body) if isinstance(s, Loop) and str(s.first) == "_at")
    return edited(loops, tail)


def in_scratch(loops: LoopProgram) -> LoopProgram:
    """One total for all parts."""
    total = nth(loops, Local, 0)
    everyone = replace(total.array, level=0)
    return replace(edited(loops, total, Store(everyone, 0, Values().constant(0.0, f64))), scratch=(everyone,))


FAULTS: list[tuple[str, Callable[[], StageProgram], Edit, str]] = [
    ("parts that begin at 0", rows, without_from, "of block"),
    ("parts of one loop that begin at 0", flat, without_from, "and written by lane 0 of thread 0 of block"),
    ("a part too few", rows, but(Parallel, size=4), "9 of 45 elements of y0 are never written"),
    ("a row too many", rows, but(Parallel, size=6), "x0[45] is outside of its 45 elements"),
    ("nests that read each other at the same time", in_two, one_kernel,
     "t1[1] is read by lane 1 of thread 0 of block 0 and written by lane 0 of thread 0 of block 1"),
    ("a carried loop as a vector", running, as_vector, "lane"),
    ("no identity", long_rows, but(Local, monoid=None), "total0[0] is read before it is written"),
    ("a number that all parts share", long_rows, in_scratch,
     "total0[0] is written by lane 0 of thread 0 of block 0 and written by"),
]


@pytest.mark.parametrize(("name", "make", "edit", "why"), FAULTS, ids=[f[0] for f in FAULTS])
def test_a_planted_fault_is_reported(name: str, make: Callable[[], StageProgram], edit: Edit, why: str) -> None:
    program = make()
    compared(program, map_cpu(program))
    with pytest.raises(StageError, match=re.escape(why)):
        compared(program, edit(map_cpu(program)))


@pytest.mark.parametrize("edit", [without_rest, but(Loop, 1, first=1), all_of(inner(Loop, 1))], ids=["rest", "strips", "loop"])
def test_a_fault_in_what_is_summed_is_seen(edit: Edit) -> None:
    program = long_rows()
    with pytest.raises((StageError, AssertionError)):
        compared(program, edit(map_cpu(program)))


# ---- the printer -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("printer", ["c_loops.py", "cuda_loops.py"])
def test_a_printer_of_loops_reads_no_stage_and_no_nest(printer: str) -> None:
    tree = ast.parse((Path(c_loops.__file__).parent / printer).read_text(encoding="utf-8"))
    names = {name.name for s in ast.walk(tree) if isinstance(s, ast.ImportFrom) for name in s.names}
    assert names.isdisjoint({"Stage", "Nest", "StageAdvice", "NestAdvice", "Reduce", "Running"})
    assert not {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)} & {"nests", "stages", "advice", "reduce"}


def test_what_does_not_change_in_a_loop_is_computed_before_it() -> None:
    loops = map_cpu(stages(tg.exp(tg.input("x", (3, 8)) * tg.reshape(tg.input("s", (3,)), (3, 1)))))
    text = c_loops.printed(loops, "one")
    before, _, loop = text.partition("#pragma GCC ivdep")
    assert "x1[_i0]" in before and "x1[" not in loop.partition("TG_KERNEL")[0]
