"""What the cost model sees of a schedule: what an action changes, beside the rules. What searches have timed is what it learns."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import tensor_graphs as tg
from benchmarks.cost_model import schedules_elsewhere
from tensor_graphs.codegen import schedule_actions, spec_to_loops
from tensor_graphs.codegen.schedule_actions import Accumulators, Action, Grain, Parts, Schedule, Tiled
from tensor_graphs.codegen.tuned_kernel import tuned
from tensor_graphs.costs.database_keys import VERIFIER, environment_of, graph_record, implementation_of, timed_workload
from tensor_graphs.costs.learned.fit import LEAST, checked, fitted
from tensor_graphs.costs.learned.search_samples import schedules_of
from tensor_graphs.costs.schedule_features import features_of_schedule
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.anonymous_composite import part_between
from tensor_graphs.language.node import Node
from tensor_graphs.records.database import Database, open_database
from tensor_graphs.records.rows import TraceRecord

pytestmark = pytest.mark.processes


def turned(rows: int = 512, columns: int = 256) -> Node:
    x = tg.input("x", (rows, columns))
    return part_between([x.permute((1, 0)) + 1.0], [x])(x)          # type: ignore[no-any-return]


def seen(node: Node, *chosen: Action, **binding: int) -> dict[str, float]:
    """The features of a schedule that differs from the rules' by these actions."""
    signature = signature_of(node)
    definition = spec_to_loops.definition_of(signature.spec)
    seed = schedule_actions.seed(definition)
    schedule = seed
    for action in chosen:
        schedule = schedule_actions.changed(definition, schedule, action)
    return features_of_schedule(signature, binding, schedule_actions.replay(definition, schedule),
                                schedule_actions.replay(definition, seed))


def changes(features: dict[str, float]) -> dict[str, float]:
    end = ", beside the rules"
    return {name.removesuffix(end): value for name, value in features.items() if name.endswith(end) and value}


def test_the_rules_schedule_differs_from_itself_in_nothing() -> None:
    assert not changes(seen(tg.softmax(tg.input("x", (64, 96)))))


def test_each_action_is_seen_where_it_acts() -> None:
    summed = tg.sum(tg.input("x", (64, 256)), axis=1)
    assert changes(seen(summed, Accumulators(4, 0, 0))) == {
        "Accumulators": 2.0, "Accumulators: of the heaviest": 2.0, "Accumulators: turns ÷ it": -2.0}
    grain = changes(seen(summed, Grain(1 << 11, 0)))
    assert grain["grain"] == -3.0 and grain["parts"] > 0.0
    cut = changes(seen(tg.sum(tg.input("x", (512, 32)), axis=0), Parts(64, 0)))
    assert cut["nests"] == 1.0 and cut["scratch"] > 0.0 and cut["traffic"] > 0.0
    assert changes(seen(turned(), Tiled(0, 0)))["tile"] == -4.0


def test_how_far_apart_neighbours_lie_is_seen() -> None:
    even, odd = seen(turned(512, 256)), seen(turned(512, 255))
    assert even["gap: twos"] == 10.0 and odd["gap: twos"] == 2.0 and even["gap"] == pytest.approx(odd["gap"], abs=0.01)


def test_sizes_are_those_of_the_call() -> None:
    node = tg.softmax(tg.input("x", (tg.dim("n", 1, 512), 96)))
    small, large = seen(node, n=3), seen(node, n=300)
    assert small["parts"] < large["parts"] and small["steps"] < large["steps"] and small["SumBlock"] == large["SumBlock"]


SIZES = [(rows, columns) for rows in (1, 5, 30, 200, 700) for columns in (16, 64, 300, 1024, 3000, 5000)]


def filed(database: Database, signature: Signature, schedule: Schedule, score: float | None, kind: str = "search") -> None:
    kernel = tuned(signature, schedule)
    where = implementation_of(kernel), timed_workload(signature, {}), environment_of(kernel.backend)
    database.ensure_graph(graph_record(signature))
    said = {"search": {"strategy": "random", "score": score}}
    if score is None:
        database.add_traces([TraceRecord(*where, "search", "COMPILE_ERROR", verifier=VERIFIER, log="no", conditions=said)])
    else:
        database.add_traces([TraceRecord(*where, "search", "PASSED", samples_ms=(0.5 * score,), baseline="gen.loops",
                                         baseline_ms=0.5, timer="perf_counter", verifier=VERIFIER, conditions=said)])


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Sums of rows: each doubling of the accumulators takes 0.8 of the time, from 128 elements on."""
    rng = random.Random(0)
    with open_database(tmp_path_factory.mktemp("rows") / "bench.db") as made:
        for rows, columns in SIZES:
            signature = signature_of(tg.reduce_max(tg.input("x", (rows, columns)), axis=1))
            definition = spec_to_loops.definition_of(signature.spec)
            for size in (2, 4, 8):
                schedule = schedule_actions.changed(definition, schedule_actions.seed(definition), Accumulators(size, 0, 0))
                good = 0.8 if columns >= 128 else 1.2
                filed(made, signature, schedule, good ** math.log2(size) * math.exp(rng.gauss(0.0, 0.02)))
            schedule = schedule_actions.changed(definition, schedule_actions.seed(definition), Accumulators(3, 0, 0))
            filed(made, signature, schedule, None)
        yield made


def test_losers_are_learned_from_and_the_rules_schedule_is_among_them(database: Database) -> None:
    samples = schedules_of(database)
    assert len(samples) == 4 * len(SIZES) >= LEAST and len({s.workload for s in samples}) == len(SIZES)
    assert sum(s.off == 0.0 for s in samples) == len(SIZES) and max(s.off for s in samples) > 0.1
    assert {s.base for s in samples} == {5e-4} and all(s.roofline != s.base for s in samples)
    assert [(s.workload, s.kernel, s.seconds) for s in schedules_elsewhere(database)] == [
        (s.workload, s.kernel, s.seconds) for s in samples]


def test_schedules_of_sizes_that_were_not_seen_are_in_order(database: Database) -> None:
    found = {q.name: q for q in checked(schedules_of(database))}
    ours, roofline = found["learned"], found["roofline"]
    assert ours.pairs >= 0.9 and ours.top1 <= 1.1 and ours.top1 < roofline.top1


def test_a_model_knows_how_much_faster_a_schedule_is(database: Database) -> None:
    samples = schedules_of(database)
    model = fitted(samples)
    assert all(model.estimate(s.features).off == pytest.approx(s.off, abs=0.15) for s in samples)


def test_what_is_no_schedule_any_more_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signature = signature_of(tg.reduce_max(tg.input("x", (4, 512)), axis=1))
    definition = spec_to_loops.definition_of(signature.spec)
    with open_database(tmp_path / "bench.db") as made:
        for size in (2, 4):
            schedule = schedule_actions.changed(definition, schedule_actions.seed(definition), Accumulators(size, 0, 0))
            filed(made, signature, schedule, 0.9)
        assert len(schedules_of(made)) == 3
        monkeypatch.setattr(Accumulators, "most", 2)
        assert len(schedules_of(made)) == 2
