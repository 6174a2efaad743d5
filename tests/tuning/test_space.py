"""A measured space: legal schedules get scores, wrong and illegal ones none, and the seed stays where nothing holds against it."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen import schedule_actions
from tensor_graphs.codegen.schedule_actions import Again, Grain, Parts
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.tuning import generators
from tensor_graphs.tuning import space as module
from tensor_graphs.tuning.space import BAD, Measured, TimeIsOver
from tensor_graphs.tuning.strategies import walk
from tensor_graphs.tuning.timing import Paired, ScheduleBench


def columns() -> Signature:
    return signature_of(tg.input("x", (512, 32), tg.f32).sum(axis=0))


def test_what_is_looked_at_is_compared_and_timed_beside_the_seed() -> None:
    space = Measured(signature_of(tg.softmax(tg.input("x", (64, 96), tg.f32))), {}, 60.0)
    again = space.changed(space.seed, Again(1, 0))
    assert space.changed(space.seed, Grain(2048, 9)) == space.seed  # not legal: nothing is changed
    scores = space.scores([space.seed, again, again])
    assert scores[0] == 1.0 and 0.0 < scores[1] == scores[2] < 50.0
    looked = space.looked[again]
    assert looked.samples is not None and len(looked.samples.own) >= module.FIRST and not looked.why


def test_a_number_alone_is_an_output_like_any_other() -> None:
    space = Measured(signature_of(tg.reduce_max(tg.input("x", (5000,), tg.f32), axis=0)), {}, 60.0)
    (score,) = space.scores([space.changed(space.seed, Parts(1024, 0))])
    assert 0.0 < score < 50.0 and space.bench.sets[0][0][0].shape == ()


def test_symbolic_sizes_are_searched_at_the_ones_that_are_asked() -> None:
    n = tg.dim("n", 1, 128)
    space = Measured(signature_of(tg.softmax(tg.input("x", (n, 96), tg.f32))), {"n": 17}, 60.0)
    (score,) = space.scores([space.changed(space.seed, Again(1, 0))])
    assert 0.0 < score < 50.0 and space.bench.sets[0][0][0].shape == (17, 96)


def test_a_schedule_that_computes_something_else_gets_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    space = Measured(columns(), {}, 60.0)
    cut = space.changed(space.seed, Parts(64, 0))
    real = schedule_actions.replay

    def wrong(definition: object, schedule: schedule_actions.Schedule = ()) -> object:
        program = real(definition, schedule)                        # type: ignore[arg-type]
        last = program.nests[-1].stages[-1]
        other = replace(last, value=program.values.constant(1.0, last.value.dtype))
        return program.mapped(lambda s: [other if s is last else s])

    monkeypatch.setattr(schedule_actions, "replay", wrong)
    assert space.scores([cut]) == [BAD] and "the interpreter" in space.looked[cut].why
    monkeypatch.setattr(generators, "SMALL", 0)                         # the compiled code is compared as well
    other = space.changed(space.seed, Parts(256, 0))
    assert space.scores([other]) == [BAD] and "off the rules' schedule" in space.looked[other].why


def test_the_seed_stays_where_nothing_holds_against_it_in_samples_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    space = Measured(columns(), {}, 60.0)
    lucky = space.changed(space.seed, Parts(64, 0))
    space.scores([lucky])
    slow, fast = Paired((1.0,) * 25, (1.0,) * 25), Paired((0.5,) * 25, (1.0,) * 25)
    space.looked[lucky] = module.Looked(lucky, Paired((0.1,), (1.0,)))
    monkeypatch.setattr(ScheduleBench, "pairs", lambda *_: slow)
    assert space.winner() == (space.seed, None) and not space.better(lucky, space.seed)
    monkeypatch.setattr(ScheduleBench, "pairs", lambda *_: fast)
    winner, pairs = space.winner()
    assert winner == lucky and pairs is not None and pairs.ratio == 0.5 and space.better(lucky, space.seed)


def test_a_winner_is_slower_than_the_seed_at_no_place_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    space = Measured(columns(), {}, 60.0)
    lucky = space.changed(space.seed, Parts(64, 0))
    space.scores([lucky])
    space.looked[lucky] = module.Looked(lucky, Paired((0.1,), (1.0,)))
    at_places = [Paired((0.5,) * 15, (1.0,) * 15)] * (module.PLACES - 1)
    for last, expected in ((1.2, space.seed), (0.9, lucky)):
        found = iter([*at_places, Paired((last,) * 15, (1.0,) * 15)])
        monkeypatch.setattr(ScheduleBench, "pairs", lambda *_, found=found: next(found))
        assert space.winner()[0] == expected


def test_the_time_is_kept() -> None:
    space = Measured(columns(), {}, 0.0)
    with pytest.raises(TimeIsOver):
        space.scores([space.seed])
    walk(space, "descent", random.Random(0))
    assert space.winner() == (space.seed, None)


def test_pairs_are_compared_one_by_one() -> None:
    drifting = np.linspace(1.0, 9.0, 21)
    pairs = Paired(tuple(0.9 * drifting), tuple(drifting))
    assert pairs.ratio == pytest.approx(0.9) and pairs.wins == 1.0
