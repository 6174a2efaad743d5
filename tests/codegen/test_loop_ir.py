"""Programs of stages are values: nothing in them changes, passes leave what they are given alone, names are unique."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import FrozenInstanceError, fields, replace

import pytest

import tensor_graphs as tg
from tensor_graphs.codegen import pipelines
from tensor_graphs.codegen.loop_ir import Array, Blocks, StageProgram, Values, values_in
from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.pipelines import CUDA, CUDA_ROWS, LOOPS, fused
from tensor_graphs.codegen.print import c_loops
from tensor_graphs.kernels.kernel import NotLowered
from tensor_graphs.language.composite import Definition
from tests.codegen.passes.test_online_reductions import CASES, definition_of
from tests.codegen.passes.test_pair_moments import CUT, image

DEFINITIONS: dict[str, Definition] = {
    **{name: definition_of(node)[1] for name, node in CASES.items()},
    **{name: definition_of(make(tg.f32))[1] for name, make in CUT.items()},
    "a norm of groups": definition_of(tg.group_norm(image(2, 16, 5, 7), tg.input("g", (16,)), tg.input("b", (16,)), groups=4))[1],
    "a loss": definition_of(tg.cross_entropy(tg.input("z", (9, 40)), tg.input("t", (9,), tg.i64)))[1],
}


def arrays_of(program: StageProgram) -> set[Array]:
    loads = (v.attr[0] for s in program.stages for v in values_in(*s.roots(), *program.gathered.values()) if v.op == "load")
    return {*program.operands, *program.outputs, *program.scratch, *loads}


def steps(definition: Definition) -> list[StageProgram]:
    """The program after each pass of each pipeline."""
    programs = []
    for passes in (LOOPS, (*LOOPS, *CUDA), (*LOOPS, *CUDA_ROWS)):
        programs.append(lower(definition))
        for each in passes:
            programs.append(each(programs[-1]))
    with suppress(NotLowered):                                      # only programs around a softmax have a form in one pass
        programs.append(fused(lower(definition), 16, 64))
    return programs


@pytest.mark.parametrize("name", DEFINITIONS)
def test_an_array_of_a_program_is_the_only_one_of_its_name_after_every_pass(name: str) -> None:
    for program in steps(DEFINITIONS[name]):
        arrays = arrays_of(program)
        assert len({a.name for a in arrays}) == len(arrays), program
        numbers = {v.number: v for s in program.stages for v in values_in(*s.roots(), *program.gathered.values())}
        assert all(numbers[v.number] is v for s in program.stages for v in values_in(*s.roots())), "two values of one name"


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_pass_leaves_its_program_as_it_was_and_gives_the_same_again(name: str) -> None:
    program = lower(DEFINITIONS[name])
    for each in (*LOOPS, *CUDA):
        before, given = str(program), program
        first, second = each(program), each(program)
        assert str(given) == before and str(first) == str(second)
        program = first


def test_what_is_rendered_twice_is_one_text() -> None:
    for definition in DEFINITIONS.values():
        program = pipelines.arranged(lower(definition))
        assert c_loops.rendered(program) == c_loops.rendered(program) == c_loops.rendered(pipelines.arranged(lower(definition)))


def test_nothing_of_a_program_can_be_set() -> None:
    program = fused(lower(DEFINITIONS["one head"]), 16, 64)
    nest = next(n for n in program.nests if n.blocks is not None)
    assert isinstance(nest.blocks, Blocks)
    stage = next(s for s in nest.stages if s.does is not None)
    for part in (program, nest, nest.blocks, stage, stage.does, stage.target, nest.axes[0]):
        for field in fields(part):  # type: ignore[arg-type]
            with pytest.raises(FrozenInstanceError):
                setattr(part, field.name, None)


def test_arrays_are_equal_by_their_fields_and_a_load_of_a_longer_one_keeps_its_name() -> None:
    values, short = Values(), Array("t0", "scratch", 0, tg.f32, 4, 1)
    long = replace(short, size=64)
    assert replace(short) == short != long and hash(short) == hash(long)
    load = values.load(short, 0)
    root = values.make("add", tg.f32, load, values.constant(1.0, tg.f32))
    made = values.of_arrays(root, {short: long})
    assert made is not root and made.number == root.number and made.args[0].number == load.number
    assert made.args[0].attr[0] is long and values.load(long, 0) is made.args[0]


def test_equal_expressions_of_one_program_are_one_object_and_those_of_two_are_named_alike() -> None:
    one, other = Values(), Values()
    pairs = [[v.make("exp", tg.f32, v.constant(2.0, tg.f32)) for _ in range(2)] for v in (one, other)]
    assert all(a is b for a, b in pairs) and pairs[0][0] is not pairs[1][0]
    assert [a.number for a, _ in pairs] == [1, 1]
