"""paths/bind_time.py: what a run reads of what is made of parameters is kept, the rest is freed behind its last reader."""

from __future__ import annotations

import tensor_graphs as tg
from tensor_graphs.paths.bind_time import BindTime, bytes_of
from tensor_graphs.paths.lower import Program
from tests.plans import program_of

X, W, V = tg.input("x", (2, 64)), tg.parameter("w", (64, 64)), tg.parameter("v", (64, 64))
SIZE = 64 * 64 * 4


def steps_of(values: BindTime, wanted: set[int]) -> list[tuple[str, list[str]]]:
    """(op, what is freed after it, by the op that made it) of each step that makes these."""
    names = {home: ins.op for ins, homes in zip(values.program.bind_instructions, values.outs, strict=True) for home in homes}
    return [(values.program.bind_instructions[s.index].op, [names[home] for home in s.frees]) for s in values.steps(wanted)]


def test_a_value_is_freed_behind_its_last_reader_and_what_a_run_reads_is_kept() -> None:
    values = BindTime(program_of(tg.graph(tg.linear(X, tg.sqrt(tg.exp2(W) + tg.floor(V)))), atomics=False))
    assert steps_of(values, set(values.kept)) == [("exp2", []), ("floor", []), ("add", ["exp2", "floor"]), ("sqrt", ["add"])]
    assert bytes_of([values.program]) == ({"cpu": SIZE}, {"cpu": 3 * SIZE})


def test_what_is_read_in_between_too_is_kept() -> None:
    half = tg.exp2(W)
    values = BindTime(program_of(tg.graph([tg.linear(X, half), tg.linear(X, tg.sin(half)), tg.sqrt(V)])))
    assert [ins.op for ins in values.program.bind_instructions] == ["exp2", "sin", "sqrt"] and len(values.kept) == 3
    assert bytes_of([values.program]) == ({"cpu": 3 * SIZE}, {"cpu": 3 * SIZE})


def test_a_kept_value_that_does_not_change_is_not_made_again() -> None:
    half = tg.exp2(W)
    values = BindTime(program_of(tg.graph([tg.linear(X, half), tg.linear(X, half + tg.floor(V))])))
    stale = values.stale({"v"})
    assert [values.program.bind_instructions[i].op for i in stale] == ["floor", "add"]
    assert steps_of(values, values.missing(stale, ())) == [("floor", []), ("add", ["floor"])]


def test_programs_that_make_the_same_hold_it_once_and_make_what_leads_to_it_once() -> None:
    def made(y: tg.Node) -> Program:
        return program_of(tg.graph(y))

    weight = tg.exp2(W) - 8.0
    same = [made(tg.linear(X, weight)), made(tg.tanh(tg.linear(X, weight)))]
    assert bytes_of(same) == bytes_of(same[:1]) == ({"cpu": SIZE}, {"cpu": 2 * SIZE})
    other = [same[0], made(tg.linear(X, tg.exp2(W) - 7.0))]         # another constant is another value
    assert bytes_of(other) == ({"cpu": 2 * SIZE}, {"cpu": 3 * SIZE})
    assert bytes_of([]) == ({}, {})
