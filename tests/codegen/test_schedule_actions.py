"""Actions: the rules' schedule in the same words, every legal action keeps the meaning, and one that is not legal says why not."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen import schedule_actions
from tensor_graphs.codegen.interpret import run
from tensor_graphs.codegen.loop_ir import Reduce
from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.pipelines import arranged
from tensor_graphs.codegen.print.c_loops import rendered
from tensor_graphs.codegen.schedule_actions import (
    Accumulators,
    Again,
    Columns,
    Grain,
    IllegalAction,
    Parts,
    SumBlock,
    Tiled,
    Unroll,
)
from tensor_graphs.language.anonymous_composite import part_between
from tensor_graphs.language.composite import Definition
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import interpret
from tests.codegen.generated import Library

ROWS, LONG = tg.input("x", (70, 40), tg.f32), tg.input("x", (5000,), tg.f32)
GRAPHS = {
    "softmax": tg.softmax(ROWS), "softmax of columns": tg.softmax(ROWS, axis=0), "a sum of columns": ROWS.sum(axis=0),
    "a maximum of rows": tg.reduce_max(ROWS, axis=1), "layer_norm": tg.layer_norm(ROWS), "a turned sum": ROWS.permute((1, 0)) + 1.0,
    "gelu": tg.gelu(ROWS), "a long sum": LONG.sum(), "a long maximum": tg.reduce_max(LONG), "a long scan": tg.cumsum(LONG, 0),
    "a scan of columns": tg.cumsum(ROWS, 0), "a scan of rows": tg.cumsum(ROWS, 1),
    "whole numbers": tg.cast(ROWS, tg.i32).sum(axis=1),
}


def of(*outputs: Node) -> tuple[Graph, Definition]:
    graph = tg.graph({f"y{i}": y for i, y in enumerate(outputs)})
    return graph, part_between(list(graph.outputs.values()), list(graph.inputs.values())).written


def every_schedule(definition: Definition) -> list[schedule_actions.Schedule]:
    """The seed, and all that are one action away from it."""
    seed = schedule_actions.seed(definition)
    return [seed, *(schedule_actions.changed(definition, seed, a)
             for others in schedule_actions.choices(definition, seed) for a in others)]


@pytest.mark.parametrize("name", GRAPHS)
def test_the_seed_is_what_the_rules_make(name: str) -> None:
    _, definition = of(GRAPHS[name])
    expected = rendered(arranged(lower(definition)))
    seed = schedule_actions.seed(definition)
    assert rendered(schedule_actions.replay(definition, seed)) == rendered(schedule_actions.replay(definition)) == expected


@pytest.mark.parametrize("name", GRAPHS)
def test_every_action_keeps_the_meaning_in_the_interpreter_and_in_c(name: str) -> None:
    graph, definition = of(GRAPHS[name])
    rng = np.random.default_rng(4)
    values = {k: rng.normal(size=x.type.at({}).shape).astype(np.float32) for k, x in graph.inputs.items()}
    (expected,) = interpret(graph, values).outputs.values()
    programs = [schedule_actions.replay(definition, schedule) for schedule in every_schedule(definition)]
    assert len(programs) > 3 and len({rendered(p) for p in programs}) == len(programs)
    for program in programs:
        (meant,) = run(program, list(values.values()))
        np.testing.assert_allclose(meant.reshape(expected.shape), expected, rtol=1e-9, atol=1e-9)
    seed = schedule_actions.seed(definition)
    compiled = Library([schedule_actions.replay(definition, schedule_actions.changed(definition, seed, others[0]))
                        for others in schedule_actions.choices(definition, seed) if not isinstance(others[0], Grain)])
    for i in range(len(compiled.programs)):                         # one for each thing that can be chosen
        (out,) = compiled.run(i, definition, list(values.values()), {})
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


def test_several_actions_at_once_keep_the_meaning() -> None:
    rng = np.random.default_rng(5)
    graph, definition = of(tg.softmax(ROWS, axis=0))
    values = [rng.normal(size=(70, 40)).astype(np.float32)]
    (expected,) = interpret(graph, {"x": values[0]}).outputs.values()
    for _ in range(12):
        schedule = schedule_actions.seed(definition)
        for _ in range(4):
            sites = schedule_actions.choices(definition, schedule)
            others = sites[int(rng.integers(len(sites)))]
            schedule = schedule_actions.changed(definition, schedule, others[int(rng.integers(len(others)))])
        (meant,) = run(schedule_actions.replay(definition, schedule), values)
        np.testing.assert_allclose(meant.reshape(expected.shape), expected, rtol=1e-9)
        assert schedule_actions.completed(definition, schedule) == schedule


def test_a_schedule_is_text_and_the_same_again() -> None:
    for name in GRAPHS:
        for schedule in every_schedule(of(GRAPHS[name])[1]):
            assert schedule_actions.from_json(schedule_actions.to_json(schedule)) == schedule
    for wrong in ("", "[{}]", '[{"action": "Fly", "size": 1}]', '[{"action": "Grain", "size": "many"}]', "{}1"):
        with pytest.raises(IllegalAction, match="is no schedule"):
            schedule_actions.from_json(wrong)


@pytest.mark.parametrize(("name", "action", "why"), [
    ("gelu", Again(1, 0), "0 dear values are needed by several stages, and there is no number 0"),
    ("softmax", Again(2, 0), "it is 0 or 1"),
    ("a long sum", Parts(64, 0), "a part has 1024 elements at least, and fewer than 5000"),
    ("a long sum", Parts(8192, 0), "fewer than 5000"),
    ("a sum of columns", Parts(70, 0), "a part has 16 elements at least, and fewer than 70"),
    ("a sum of columns", Parts(32, 3), "it has 1 nests, and no number 3"),
    ("softmax", Parts(64, 0), "it has several stages"),
    ("gelu", Parts(64, 0), "it is no reduction across memory"),
    ("gelu", Tiled(32, 0), "it reads and writes along one axis"),
    ("a turned sum", Tiled(48, 0), "a block has one of"),
    ("a long sum", Grain(4096, 0), "it is one turn, which one thread takes"),
    ("softmax", Grain(0, 0), "a part has 1 to 2\\^30 steps"),
    ("softmax", SumBlock(512, 0, 0), "it is no sum of floats along memory"),
    ("softmax", SumBlock(4096, 0, 2), "it is 1 to 1024"),
    ("a sum of columns", Accumulators(2, 0, 0), "it is no reduction along memory"),
    ("softmax", Unroll(2, 0, 0), "it has no loop that stores"),
    ("softmax", Unroll(2, 0, 9), "it has 4 stages, and no number 9"),
    ("gelu", Columns(64, 0, 0), "it does not run across memory"),
])
def test_what_is_not_legal_says_why(name: str, action: schedule_actions.Action, why: str) -> None:
    with pytest.raises(IllegalAction, match=re.escape(str(action)) + ": .*" + why):
        schedule_actions.replay(of(GRAPHS[name])[1], (action,))


def test_a_schedule_chooses_each_thing_once() -> None:
    with pytest.raises(IllegalAction, match="two actions choose the same"):
        schedule_actions.replay(of(tg.gelu(ROWS))[1], (Grain(2048, 0), Grain(4096, 0)))


def test_an_action_that_changes_the_nests_keeps_the_advice_that_still_applies() -> None:
    _, definition = of(tg.softmax(ROWS))
    seed = schedule_actions.seed(definition)
    narrow = schedule_actions.changed(definition, seed, Grain(4096, 0))
    again = schedule_actions.changed(definition, narrow, Again(1, 0))
    assert Grain(4096, 0) in again and Again(1, 0) in again
    stages, before = (len(schedule_actions.replay(definition, schedule).nests[0].stages) for schedule in (again, seed))
    assert stages < before


def test_two_long_reductions_in_parts_do_not_share_their_scratch() -> None:
    long = tg.input("x", (1 << 17,), tg.f32)
    _, definition = of(long.sum(), tg.reduce_max(long))
    values = np.arange(1 << 17, dtype=np.float32) % 5
    total, most = Library([arranged(lower(definition))]).run(0, definition, [values], {})
    assert total == values.sum(dtype=np.float64) and most == 4


def test_an_interpreter_that_sees_another_program_would_say_so() -> None:
    _, definition = of(ROWS.sum(axis=0))
    program = schedule_actions.replay(definition, (Parts(32, 0),))
    (last,) = program.nests[1].stages
    short = replace(last, does=Reduce((replace(last.reduce[0], size=2),), "sum"))      # the last of three parts is forgotten
    (wrong,) = run(program.mapped(lambda s: [short if s is last else s]), [np.ones((70, 40), np.float32)])
    assert not np.allclose(wrong, 70)
