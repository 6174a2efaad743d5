"""No wrong kernel passes the judge or is ever chosen, however fast it is; no honest one is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tensor_graphs as tg
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.choice.search import sizes_to_cost
from tensor_graphs.costs.database_keys import VERIFIER, environment_of, graph_record, implementation_of, timed_workload
from tensor_graphs.kernels.registry import register, unregister
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.leaves import item
from tensor_graphs.meaning.same_math import same_math_limit
from tensor_graphs.measure.judge import Judge
from tensor_graphs.measure.queue.next_measurements import Question, answer, unanswered
from tensor_graphs.records.database import Database, open_database
from tensor_graphs.records.rows import TraceRecord
from tensor_graphs.views.explain import explain, explain_data
from tests.measure import honest_kernels, hostile_kernels  # noqa: F401  (they add to the tables)
from tests.measure.sampled_kernels import ALIKE, sampled
from tests.measure.wrong_kernels import HONEST, HOSTILE, NODES, WRONG, Candidate


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    database = open_database(tmp_path_factory.mktemp("judge") / "bench.db")
    with Judge(database, timeout=60.0) as made:
        yield made


def question(candidate: Candidate) -> tuple[Signature, dict[str, int]]:
    signature = signature_of(NODES[candidate.node])
    return signature, dict.fromkeys(signature.dim_names, 20)


@pytest.mark.parametrize("candidate", sampled(WRONG))
def test_a_wrong_kernel_is_stored_as_wrong(judge: Judge, candidate: Candidate) -> None:
    signature, sizes = question(candidate)
    judge.worker.timeout = candidate.timeout
    verdict = judge.examine(candidate.kernel, signature, sizes, time_at=sizes if candidate.timed else None, budget=0.02)
    row = judge.record(candidate.kernel, signature, verdict, None)
    assert row.status == candidate.status, verdict.log
    assert verdict.log
    assert row.tolerance == same_math_limit(signature.spec.outputs)
    if row.status == "INCORRECT_NUMERICAL":
        assert row.max_relative_error is not None and row.max_relative_error > row.tolerance
        assert "instead of" in verdict.log or "not written" in verdict.log      # an element, and what the oracle has there


@pytest.mark.parametrize("candidate", sampled(HONEST))
def test_an_honest_kernel_passes_however_slow_noisy_or_chatty(judge: Judge, candidate: Candidate) -> None:
    signature, sizes = question(candidate)
    judge.worker.timeout = candidate.timeout
    verdict = judge.examine(candidate.kernel, signature, sizes, time_at=sizes, budget=0.02)
    assert verdict.status == "PASSED", verdict.log
    assert len(verdict.samples) >= 5


def test_what_is_long_names_kernels_of_the_tables() -> None:
    assert set(ALIKE) | set(ALIKE.values()) <= {c.name for c in (*WRONG, *HONEST, *HOSTILE)}


def test_there_are_enough_wrong_and_honest_kernels() -> None:
    assert len(WRONG) >= 40 and len({c.name for c in HONEST}) == len(HONEST) >= 40
    assert {c.status for c in WRONG} >= {"INCORRECT_NUMERICAL", "INCORRECT_SHAPE", "MUTATED_INPUT", "RUNTIME_ERROR", "TIMEOUT"}


FAST = [c for c in WRONG if c.timeout > 10 and c.node != "big linear" and not c.timed]
"""those that a plan could be made of within a test's time"""
FIRST = list({(c.node, c.status): c for c in reversed(FAST)}.values())
"""of each op one for each way in which a verdict ends"""


@pytest.mark.parametrize("name", sorted({c.node for c in FAST}))
@pytest.mark.parametrize("among", [pytest.param(FIRST, id="one of a kind"), pytest.param(FAST, id="all", marks=pytest.mark.long)])
def test_wrong_kernels_are_never_chosen_though_they_look_fastest(shared: Database, name: str, among: list[Candidate]) -> None:
    """The database says of each that it passed at these sizes in no time at all; its comparison with the oracle refuses it."""
    node, candidates = NODES[name], [c for c in among if c.node == name]
    signature = signature_of(node)
    graph = tg.graph({f"y{i}": item(node, i) for i in range(len(node.types))})
    largest = dict.fromkeys(signature.dim_names, 20)
    points = sizes_to_cost(graph, largest=largest)
    for candidate in candidates:
        register(candidate.kernel)
        for at in points:
            boast(shared, candidate, signature, at)
    try:
        plan = compile_graph(graph, backends=("numpy",), database=shared, largest=largest)
        used = {ins.kernel for v in plan.variants for ins in v.program.instructions}
        assert not used & {c.kernel.name for c in candidates}
        for variant, data in zip(plan.variants, explain_data(plan)["variants"], strict=True):
            refused = {n: why for e in variant.evidence if e.signature == signature.key for n, why in e.refused}
            listed = {r["kernel"]: r["why"] for c in data["choices"] for r in c["refused"]}
            for candidate in candidates:
                assert candidate.status in refused[candidate.kernel.name]
                assert listed[candidate.kernel.name] == refused[candidate.kernel.name]
                assert f"refused: {candidate.kernel.name}: {candidate.status}" in explain(plan)
    finally:
        for candidate in candidates:
            unregister(candidate.kernel.name)


def test_an_honest_kernel_that_looks_fastest_is_chosen(shared: Database) -> None:
    candidate = next(c for c in HONEST if c.name == "works_in_double")
    signature, _sizes = question(candidate)
    graph = tg.graph({"y": NODES[candidate.node]})
    register(candidate.kernel)
    try:
        for variant in compile_graph(graph, backends=("numpy",), database=shared).variants:
            boast(shared, candidate, signature, variant.at)
        plan = compile_graph(graph, backends=("numpy",), database=shared)
        assert candidate.kernel.name in {ins.kernel for v in plan.variants for ins in v.program.instructions}
    finally:
        unregister(candidate.kernel.name)


def boast(database: Database, candidate: Candidate, signature: Signature, at: object) -> None:
    """Store a time of a nanosecond without an error to speak of, as a broken or hostile tool would."""
    assert isinstance(at, dict)
    database.ensure_graph(graph_record(signature))
    database.add_trace(TraceRecord(
        implementation_of(candidate.kernel), timed_workload(signature, at), environment_of("numpy"), "cold", "PASSED",
        samples_ms=(1e-6,) * 5, max_relative_error=0.0, tolerance=1e-4, verifier=VERIFIER))


def test_a_kernel_that_failed_is_not_asked_for_again(judge: Judge) -> None:
    candidate = next(c for c in WRONG if c.name == "does_nothing")
    signature, sizes = question(candidate)
    asked = [Question(candidate.kernel, signature, sizes, 1.0)]
    judge.record(candidate.kernel, signature, judge.examine(candidate.kernel, signature, sizes), None)
    assert unanswered(judge.database, asked, VERIFIER) == []
    assert unanswered(judge.database, asked, "another verifier") == asked


def test_a_refuted_kernel_is_measured_nowhere_else(judge: Judge) -> None:
    candidate = next(c for c in WRONG if c.name == "all_zeros")
    signature, _ = question(candidate)
    fresh = open_database(Path(judge.worker.folder.name) / "fresh.db")
    before, judge.database = judge.database, fresh
    try:
        questions = [Question(candidate.kernel, signature, {"n": n}, 1.0) for n in (3, 20, 64)]
        statuses = [status for _, status in answer(judge, questions, budget=60.0, per_kernel=0.02)]
        assert statuses == ["INCORRECT_NUMERICAL", "REFUTED", "REFUTED"]
    finally:
        judge.database = before
        fresh.close()
