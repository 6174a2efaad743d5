"""Schedules of GPU kernels: whatever they choose, the loops compute what the stages do, without races, and so do the texts."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen import cuda_schedule, interpret, interpret_loops
from tensor_graphs.codegen.backend_cuda import call_of
from tensor_graphs.codegen.cuda_schedule import KernelTask, NestNumber, PartsOf
from tensor_graphs.codegen.evaluate import StageError
from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.map_loops import map_loops
from tensor_graphs.codegen.print.cuda_program import program_of
from tensor_graphs.codegen.schedule_actions import Again, IllegalAction, Schedule, to_json
from tensor_graphs.codegen.tuned_kernel import CUDA_LOOPS, READ, launch_call
from tensor_graphs.devices.target import HOPPER, TINY, Target
from tensor_graphs.kernels.kernel import LaunchCall, NotLowered
from tensor_graphs.language.anonymous_composite import part_between
from tensor_graphs.language.node import Node
from tensor_graphs.tuning.timing import why_off
from tests.codegen import emulated
from tests.codegen.tiny import grown

SEEDS, TRIES, CHANGES = 40, 4, 5
"""random definitions of the fast run; schedules of each; most actions by which one differs from the rules'"""


def task(*outputs: Node, target: Target = HOPPER) -> KernelTask:
    g = tg.graph({f"y{k}": y for k, y in enumerate(outputs)})
    return KernelTask(part_between(list(g.outputs.values()), list(g.inputs.values())).written, target)


def walked(of: KernelTask, rng: random.Random) -> Schedule:
    """A legal schedule that differs from the rules' by some actions."""
    schedule = cuda_schedule.seed(of)
    for _ in range(rng.randint(1, CHANGES)):
        sites = cuda_schedule.choices(of, schedule)
        if sites:
            schedule = cuda_schedule.changed(of, schedule, rng.choice(rng.choice(sites)))
    return schedule


KINDS = {
    "softmax": lambda: task(tg.softmax(tg.input("x", (5, 24))), target=TINY),
    "columns": lambda: task(tg.input("x", (40, 12)).sum(axis=0), target=TINY),
    "one number": lambda: task(tg.reduce_max(tg.input("x", (70,)), axis=0), target=TINY),
    "long rows": lambda: task(tg.input("x", (2, 64)).sum(axis=1), target=TINY),
    "transposed": lambda: task(tg.permute(tg.input("x", (24, 20)), (1, 0)) * 2.0, target=TINY),
    "scan of rows": lambda: task(tg.cumsum(tg.input("x", (3, 50)), axis=1), target=TINY),
    "scan of lines": lambda: task(tg.cumsum(tg.input("x", (30, 5)), axis=0), target=TINY),
    "lists": lambda: task(*tg.topk(tg.input("x", (5, 24)), k=3), target=TINY),
    "norm": lambda: task(tg.layer_norm(tg.input("x", (6, 32)), tg.input("g", (32,)), tg.input("b", (32,))), target=TINY),
    "few rows": lambda: task(tg.gelu(tg.linear(tg.input("x", (1, 64)), tg.input("w", (12, 64)))), target=TINY),
    "products of other widths": lambda: task(*(tg.linear(tg.input("x", (1, 64)), tg.input(f"w{n}", (n, 64))) for n in (12, 6, 5)),
                                             target=TINY),
    "elements": lambda: task(tg.tanh(tg.input("x", (7, 40))) + tg.input("y", (40,)), target=TINY)}


def compared(of: KernelTask, schedule: Schedule) -> bool:
    """Return whether a schedule has loops on its target; they are then those of the stages. Races raise StageError."""
    try:
        loops = cuda_schedule.program(of, schedule)
    except (IllegalAction, NotLowered):
        return False
    rng = np.random.default_rng(0)
    operands = [rng.permutation(np.linspace(-2, 2, int(np.prod([int(s) for s in a.shape])), dtype=np.float32)).astype(a.dtype.numpy)
                for a in of.definition.arguments]
    own = interpret_loops.run(loops, operands, {}, of.target.warp)
    plain = interpret.run(lower(of.definition), operands, {})
    for array, out, ref in zip(loops.source.outputs, own, plain, strict=True):
        np.testing.assert_allclose(out, ref, rtol=1e-9, atol=1e-9, err_msg=f"{array} {[str(a) for a in schedule]}\n{loops}")
    return True


@pytest.mark.parametrize("name", KINDS)
def test_each_choice_of_each_form_computes_what_the_stages_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_schedule, "LEAST_PART", 2)
    of = KINDS[name]()
    schedule = cuda_schedule.seed(of)
    sites = cuda_schedule.choices(of, schedule)
    assert sites and compared(of, schedule)
    mapped = [compared(of, cuda_schedule.changed(of, schedule, action)) for site in sites for action in site]
    assert sum(mapped) > len(mapped) / 3


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_schedules_of_random_programs_have_no_races(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_schedule, "LEAST_PART", 2)
    of, rng = KernelTask(grown(seed)[1], TINY), random.Random(seed)
    for _ in range(TRIES):
        try:
            compared(of, walked(of, rng))
        except NotLowered:
            return


LARGER = {
    "softmax": lambda: task(tg.softmax(tg.input("x", (5, 1000), tg.bf16))),
    "columns": lambda: task(tg.input("x", (300, 72)).sum(axis=0)),
    "long rows": lambda: task(tg.input("x", (2, 9000)).sum(axis=1)),
    "transposed": lambda: task(tg.permute(tg.input("x", (192, 128), tg.bf16), (1, 0)) + tg.input("y", (128, 192), tg.bf16)),
    "scan of rows": lambda: task(tg.cumsum(tg.input("x", (3, 5000)), axis=1)),
    "scan of lines": lambda: task(tg.cumsum(tg.input("x", (70, 20)), axis=0)),
    "lists": lambda: task(*tg.topk(tg.input("x", (6, 300)), k=3)),
    "norm": lambda: task(tg.layer_norm(tg.input("x", (6, 256)), tg.input("g", (256,)), tg.input("b", (256,)))),
    "few rows": lambda: task(tg.gelu(tg.linear(tg.input("x", (1, 512), tg.bf16), tg.input("w", (40, 512), tg.bf16)))),
    "products of other widths": lambda: task(*(tg.linear(tg.input("x", (1, 64)), tg.input(f"w{n}", (n, 64))) for n in (12, 6, 5)),
                                             target=TINY),
    "elements": lambda: task(tg.tanh(tg.input("x", (7, 400))) + tg.input("y", (400,)))}
"""for texts, whose warps have 32 threads"""


def texts_compared(of: KernelTask, schedules: Sequence[Schedule], folder: Path) -> int:
    """Compare the texts of schedules, where a GPU has room for them, with the rules' text; return how many there are."""
    outputs = [(tuple(int(s) for s in o.shape), o.dtype.numpy) for o in of.definition.outputs]
    values, calls = np.random.default_rng(1), dict[str, LaunchCall]()
    operands = [values.standard_normal(tuple(int(s) for s in a.shape)).astype(a.dtype.numpy) for a in of.definition.arguments]
    for schedule in schedules:
        with contextlib.suppress(IllegalAction):
            call = launch_call(of, schedule)
            calls.setdefault(call.text, call)
    right = emulated.run(folder, call_of(of.definition), outputs, operands, {})
    for call in calls.values():
        for own, ref in zip(emulated.run(folder, call, outputs, operands, {}), right, strict=True):
            assert (off := why_off(own, ref)) is None, f"{off}\n{call.text}"
    return len(calls)


@pytest.mark.parametrize("name", LARGER)
def test_texts_of_random_schedules_compute_what_the_rules_texts_do(name: str, tmp_path: Path) -> None:
    of, rng = LARGER[name](), random.Random(name)
    assert texts_compared(of, [walked(of, rng) for _ in range(2)], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", LARGER)
def test_texts_of_all_choices_compute_what_the_rules_texts_do(name: str, tmp_path: Path) -> None:
    of = LARGER[name]()
    seed = cuda_schedule.seed(of)
    actions = [action for site in cuda_schedule.choices(of, seed) for action in site]
    assert texts_compared(of, [cuda_schedule.changed(of, seed, action) for action in actions], tmp_path) > 2


def test_the_rules_schedule_gives_the_rules_text() -> None:
    of = KernelTask(KINDS["norm"]().definition)
    seed = cuda_schedule.seed(of)
    assert launch_call(of, seed) == call_of(of.definition)
    assert READ[CUDA_LOOPS](to_json(seed)) == seed
    assert cuda_schedule.completed(of, seed) == seed == cuda_schedule.completed(of, seed[:1])


def test_what_follows_from_a_number_changes_with_it() -> None:
    of = task(tg.softmax(tg.input("x", (4096, 64))))
    seed = cuda_schedule.seed(of)
    wide = cuda_schedule.changed(of, seed, NestNumber(64, 0, "threads"))
    assert NestNumber(1, 0, "rows") in wide and NestNumber(32, 0, "rows") in seed
    assert cuda_schedule.changed(of, wide, next(a for a in seed if a.site == NestNumber(0, 0, "threads").site)) != wide


def test_numbers_of_nests_that_are_no_longer_there_are_dropped() -> None:
    of = task(tg.input("x", (4096, 64)).sum(axis=0))
    cut = cuda_schedule.changed(of, cuda_schedule.seed(of), NestNumber(8, 1, "warps"))
    assert NestNumber(8, 1, "warps") in cut
    whole = cuda_schedule.changed(of, cut, PartsOf(0, "y0"))
    assert PartsOf(0, "y0") in whole and not [a for a in whole if isinstance(a, NestNumber) and a.nest == 1]


@pytest.mark.parametrize(("action", "why"), [
    (NestNumber(2048, 0, "threads"), "this many threads share no iteration"), (NestNumber(3, 0, "pack"), "no such packs"),
    (NestNumber(1, 7, "pack"), "there is nothing"), (NestNumber(4, 0, "warps"), "it chooses no warps"),
    (Again(1, 5), "dear values"), (PartsOf(64, "nothing"), "can be cut"), (NestNumber(16, 0, "threads"), "whole warps")])
def test_what_is_illegal_is_refused_with_the_reason(action: NestNumber, why: str) -> None:
    of = task(tg.softmax(tg.input("x", (64, 1000))))
    with pytest.raises(IllegalAction, match=why):
        cuda_schedule.completed(of, (action, NestNumber(1, 0, "rows")) if action == NestNumber(16, 0, "threads") else (action,))


def test_blocks_that_a_target_has_no_room_for_are_refused() -> None:
    of = task(tg.permute(tg.input("x", (500, 301), tg.f64), (1, 0)) * 2.0)
    with pytest.raises(IllegalAction, match="bytes of shared memory"):
        cuda_schedule.program(of, cuda_schedule.completed(of, (NestNumber(128, 0, "side"),)))


def test_an_access_that_is_wider_than_what_is_together_is_reported() -> None:
    """One thread for all rows of a transposed square would store 32 bytes at once."""
    of = task(tg.permute(tg.input("x", (192, 128), tg.bf16), (1, 0)) * 2.0)
    narrow = cuda_schedule.completed(of, (NestNumber(2, 0, "warps"),))
    with pytest.raises(IllegalAction, match="more rows than an access has elements"):
        cuda_schedule.changed(of, narrow, NestNumber(1, 0, "warps"))
    (form,) = cuda_schedule.chosen(of, narrow).values()
    loops = map_loops(program_of(of.definition), chosen={0: replace(form, warps=1)})
    with pytest.raises(StageError, match="16 bytes of a row are together"):
        interpret_loops.run(loops, [np.zeros((192, 128), np.float32)])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEEDS, 400))
def test_many_random_schedules_have_no_races(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    test_random_schedules_of_random_programs_have_no_races(seed, monkeypatch)
