"""Tuned kernels and plans: what is searched, stored and judged is chosen, in this process and in the next, and nowhere else."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

import tensor_graphs as tg
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.choice.profile_graph import profile_graph
from tensor_graphs.choice.request import Request
from tensor_graphs.choice.tune_graph import require_strategy, worth_tuning
from tensor_graphs.codegen import schedule_actions, spec_to_loops, tuned_kernel
from tensor_graphs.codegen.schedule_actions import Again
from tensor_graphs.costs.database_keys import environment_of
from tensor_graphs.kernels import registry
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.paths.lower import PlanError
from tensor_graphs.paths.plan import Plan
from tensor_graphs.records import queries
from tensor_graphs.records.database import Database, open_database
from tensor_graphs.tuning import strategies
from tensor_graphs.tuning.space import Measured, Space
from tensor_graphs.tuning.timing import Paired
from tensor_graphs.views.kernel_text import texts_in
from tests.choice.conftest import add_row

GRAPH = tg.graph({"y": tg.softmax(tg.input("x", (64, 96), tg.f32))})
BACKENDS = ("gen", "numpy")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    registry.made.clear()
    yield
    registry.made.clear()


def softmax() -> Signature:
    return signature_of(GRAPH.outputs["y"])


def again(signature: Signature) -> schedule_actions.Schedule:
    definition = spec_to_loops.definition_of(signature.spec)
    return schedule_actions.changed(definition, schedule_actions.seed(definition), Again(1, 0))


def filled(database: Database) -> Kernel:
    """A database in which a tuned kernel is the fastest."""
    made = tuned_kernel.tuned(softmax(), again(softmax()))
    for kernel, us in ((made, 1.0), (registry.kernel_named("gen.loops"), 9.0), (registry.kernel_named("numpy.softmax"), 90.0)):
        add_row(database, kernel, softmax())
        add_row(database, kernel, softmax(), {}, us=us)
    return made


def chosen(plan: Plan) -> set[str]:
    return set(plan.variants[0].path.choices.values())


def test_a_tuned_kernel_is_found_in_the_database_and_chosen(database: Database) -> None:
    made = filled(database)
    plan = compile_graph(GRAPH, database=database, backends=BACKENDS)
    assert chosen(plan) == {made.name} and made.name in str(tg.explain(plan))
    assert "arranged by a search: Again 1 (value 0)" in str(tg.explain(plan))
    x = np.random.default_rng(0).normal(size=(64, 96)).astype(np.float32)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(tg.bind(plan).run({"x": x})["y"], e / e.sum(axis=1, keepdims=True), rtol=1e-5)
    (text,) = texts_in(plan, plan.variants[0], made.name)
    assert "Again 1 (value 0)" in text.text


def test_a_plan_that_travels_brings_its_tuned_kernels_along(database: Database) -> None:
    made = filled(database)
    carried = pickle.dumps(compile_graph(GRAPH, database=database, backends=BACKENDS))
    registry.made.clear()
    assert chosen(pickle.loads(carried)) == {made.name}


def test_a_pin_of_it_is_followed_where_the_database_has_it(database: Database, tmp_path: Path) -> None:
    made = filled(database)
    compile_graph(GRAPH, database=database, backends=BACKENDS).pin.save(tmp_path / "pin")
    registry.made.clear()
    assert chosen(compile_graph(GRAPH, database=database, path=tmp_path / "pin")) == {made.name}


def test_it_is_no_candidate_for_a_database_that_knows_nothing_of_it(database: Database, tmp_path: Path) -> None:
    made = registry.know(filled(database))
    with open_database(tmp_path / "other.db") as other:
        for name in ("gen.loops", "numpy.softmax"):
            add_row(other, registry.kernel_named(name), softmax())
            add_row(other, registry.kernel_named(name), softmax(), {}, us=9.0)
        assert made.name not in chosen(compile_graph(GRAPH, database=other, backends=BACKENDS))


def test_what_another_generator_made_is_left_out(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    made = filled(database)
    monkeypatch.setattr(tuned_kernel.compiled_libraries, "made_with", lambda: "another compiler")
    plan = compile_graph(GRAPH, database=database, backends=BACKENDS)
    assert chosen(plan) == {"gen.loops"} and made.name not in {k.name for k in registry.all_kernels(BACKENDS)}


def test_a_search_stores_what_it_looked_at_and_has_its_winner_judged(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def winner(space: Measured) -> tuple[schedule_actions.Schedule, Paired]:
        return again(softmax()), Paired((0.5,) * 9, (1.0,) * 9)

    def looks(space: Measured, *_: object) -> None:
        space.deadline = float("inf")
        space.scores([again(softmax())])

    monkeypatch.setattr(Measured, "winner", winner)
    monkeypatch.setattr("tensor_graphs.tuning.tune.walk", looks)
    monkeypatch.setattr("tensor_graphs.tuning.tune.JUDGED", 0.02)
    for name in ("gen.loops", "numpy.softmax"):
        add_row(database, registry.kernel_named(name), softmax())
        add_row(database, registry.kernel_named(name), softmax(), {}, us=12.0 if name == "gen.loops" else 9000.0)
    report = profile_graph(GRAPH, budget=0.0, tune=2.0, database=database, backends=BACKENDS)
    (part,) = report.tuned
    assert part.status == "PASSED", report
    assert part.ratio == 0.5 and any("Again" in a for a in part.actions)
    assert part.kernel.startswith("gen.tuned_") and "0.50 × the rules' time" in str(report)
    with database.reading() as connection:
        rows = connection.execute(sa.text("SELECT i.name, t.kind, t.status, t.baseline, s.content FROM benchmark_traces t JOIN "
                                          "implementations i ON i.id = t.implementation_id JOIN implementation_sources s ON "
                                          "s.implementation_id = i.id WHERE i.name = :name"), {"name": part.kernel}).all()
    assert {(kind, status) for _, kind, status, _, _ in rows} >= {("search", "PASSED"), ("cold", "PASSED")}
    assert ("search", "gen.loops") in {(kind, baseline) for _, kind, _, baseline, _ in rows}
    assert schedule_actions.from_json(json.dumps(json.loads(rows[0].content)["actions"])) == again(softmax())
    registry.made.clear()
    known = queries.latest_traces(database, environment_of("gen"))
    assert tuned_kernel.tuned(softmax(), again(softmax())).identity in {source for source, _ in known}


def test_what_takes_long_beyond_its_roofline_is_searched_first(database: Database) -> None:
    x = tg.input("x", (64, 96), tg.f32)
    graph = tg.graph({"a": tg.softmax(x), "b": tg.logsumexp(tg.input("z", (64, 96), tg.f32), axis=1)})
    a, b = (signature_of(graph.outputs[name]) for name in "ab")
    loops = registry.kernel_named("gen.loops")
    for signature, us in ((a, 12.0), (b, 16.0)):
        add_row(database, loops, signature)
        add_row(database, loops, signature, {}, us=us)
    found = worth_tuning(graph, [{}], Request(graph, database=database, backends=("gen",)))
    assert [each.signature.key for each in found][:2] == [b.key, a.key] and found[0].seconds < 16e-6


def test_a_strategy_that_there_is_not_is_refused_before_anything_is_measured(database: Database) -> None:
    with pytest.raises(PlanError, match="no strategy is named 'desent'.*\n  fix: did you mean descent"):
        profile_graph(GRAPH, tune=1.0, strategy="desent", database=database)
    assert require_strategy(None) == "descent"


def test_a_function_is_a_strategy_under_its_own_name_and_its_failure_is_told(database: Database,
                                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "_registered", {})

    def mine(space: Space, rng: random.Random) -> None:
        space.scores([space.seed])
        raise ValueError("no idea")

    assert require_strategy(mine) == require_strategy("mine") == "mine" and require_strategy(strategies.beam) == "beam"
    with pytest.raises(strategies.StrategyError, match="the strategy 'mine' raised ValueError: no idea"):
        profile_graph(GRAPH, budget=0.0, tune=1.0, strategy=mine, database=database, backends=("gen",))
    with pytest.raises(strategies.StrategyError, match="cannot be called with"):
        require_strategy(lambda space: None)                        # type: ignore[arg-type, misc]
