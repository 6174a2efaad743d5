"""Wrong CUDA kernels: each ends as a row with its own status, none is chosen, the machine can be used after each; right ones pass.

On a GPU: `pytest -m gpu -n 5 tests/measure/test_wrong_cuda.py`; a table at the end says what each came to, and how long it took.
Without one the same kernels run on an emulated GPU (tests/fake/cuda.py), as far as threads that take turns show what is wrong.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tensor_graphs as tg
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.choice.search import sizes_to_cost
from tensor_graphs.costs.database_keys import VERIFIER, environment_of, graph_record, implementation_of, timed_workload
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.kernel_origin import origin_of
from tensor_graphs.kernels.registry import unregister
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.text_writer import print_graph
from tensor_graphs.measure.isolation.worker_process import WorkerProcess
from tensor_graphs.measure.judge import Judge, Verdict
from tensor_graphs.measure.points.inputs import Point
from tensor_graphs.records.database import Database, open_database
from tensor_graphs.records.rows import TraceRecord
from tensor_graphs.views.explain import explain
from tests.fake import cuda as emulated
from tests.measure import wrong_cuda_kernels as kernels
from tests.measure.wrong_cuda_kernels import FORMS, WRONG, Row

SIZES = {"n": 20}
PATIENCE = 60.0
"""seconds of a right kernel's worker"""

Tell = Callable[[str, object], None]


@contextmanager
def declared(*made: Kernel) -> Iterator[None]:
    try:
        yield
    finally:
        for kernel in made:
            unregister(kernel.name)


class ReportedOutput:
    """A line of the table: what was found, and the seconds of each step."""

    def __init__(self, name: str, tell: Tell) -> None:
        self.name, self.tell, self.parts, self.since = name, tell, list[str](), time.perf_counter()

    def __call__(self, what: str, said: str = "") -> None:
        now = time.perf_counter()
        self.parts.append(f"{what} {now - self.since:.1f} s{said and ': '}{said}")
        self.since = now

    def __enter__(self) -> ReportedOutput:
        return self

    def __exit__(self, *failed: object) -> None:
        if failed[1] is not None:
            self.parts.append(f"FAILED {failed[1]!r}"[:300])
        self.tell("told", f"{self.name:48s} {' | '.join(self.parts)}")


def first_line(verdict: Verdict) -> str:
    return f"{verdict.status} {verdict.log.partition(chr(10))[0][:150]}".strip()


def statuses(database: Database) -> Counter[str]:
    from tensor_graphs.records import queries

    return Counter(row.status for row in queries.latest_traces(database, environment_of("cuda"), verifier=VERIFIER).values())


def boast(database: Database, kernel: Kernel, signature: Signature, graph: tg.Graph) -> None:
    """Store times of a nanosecond, as a broken tool would."""
    database.ensure_graph(graph_record(signature))
    for at in sizes_to_cost(graph, largest=SIZES):
        database.add_trace(TraceRecord(
            implementation_of(kernel), timed_workload(signature, at), environment_of("cuda"), "cold", "PASSED",
            samples_ms=(1e-6,) * 5, max_relative_error=0.0, tolerance=1e-4, verifier=VERIFIER))


def it_is_refused_and_nothing_else_is(row: Row, folder: Path, tell: Tell) -> None:
    """A wrong kernel is judged, then its right twin by the same judge; both look fastest, and the twin alone may be chosen."""
    with ReportedOutput(row.name, tell) as said, open_database(folder / "bench.db") as database, \
            Judge(database, timeout=row.timeout) as judge:
        wrong, twin = kernels.spoiled(row), kernels.right(row.form)
        with declared(wrong, twin):
            said("declare")
            signature = kernels.signature_of_form(row.form, wrong)
            verdict = judge.examine(wrong, signature, SIZES)
            said("wrong", first_line(verdict))
            judge.record(wrong, signature, verdict, None)
            judge.worker.timeout = PATIENCE
            after = judge.examine(twin, signature, SIZES)
            said("twin", first_line(after))
            judge.record(twin, signature, after, None)
            assert verdict.status in row.statuses and re.search(row.said, verdict.log), verdict.log
            assert after.status == "PASSED", after.log
            assert statuses(database) == Counter([verdict.status, "PASSED"])
            judge.close()
            graph = FORMS[row.form].graph
            for each in (wrong, twin):
                boast(database, each, signature, graph)
            plan = compile_graph(graph, backends=("cuda",), database=database, largest=SIZES)
            chosen = {ins.kernel for v in plan.variants for ins in v.program.instructions}
            said("compile", twin.name if twin.name in chosen else f"neither of {sorted(chosen)}")
            assert wrong.name not in chosen and twin.name in chosen
            assert f"refused: {wrong.name}: {verdict.status}" in explain(plan)


def its_times_are_taken(name: str, folder: Path, tell: Tell) -> None:
    with ReportedOutput(f"right {name}", tell) as said, open_database(folder / "bench.db") as database, \
            Judge(database, timeout=PATIENCE) as judge:
        kernel = kernels.right(name)
        with declared(kernel):
            verdict = judge.examine(kernel, kernels.signature_of_form(name, kernel), SIZES, time_at=SIZES, budget=0.05)
            said("judge", first_line(verdict))
            assert verdict.status == "PASSED" and len(verdict.samples) >= 5, verdict.log


# ---- on a GPU ----


@pytest.fixture(scope="module")
def texts() -> None:
    """All are compiled: a worker declares each of them, and no kernel shall count as hanging for that."""
    for kernel in (*map(kernels.right, FORMS), *map(kernels.spoiled, WRONG)):
        unregister(kernel.name)


@pytest.mark.gpu
@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize("row", WRONG, ids=lambda row: row.name)
def test_a_wrong_kernel_is_refused_and_its_right_twin_passes_after_it(row: Row, tmp_path: Path, record_property: Tell) -> None:
    it_is_refused_and_nothing_else_is(row, tmp_path, record_property)


@pytest.mark.gpu
@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize("name", FORMS)
def test_a_right_kernel_passes_and_is_timed(name: str, tmp_path: Path, record_property: Tell) -> None:
    its_times_are_taken(name, tmp_path, record_property)


X, W = tg.input("x", (kernels.N, 96)), tg.input("w", (40, 96))
OURS = [("gencuda.loops", tg.softmax(X)), ("gencuda.loops", tg.rms_norm(X)), ("gencuda.loops", tg.sum(X, axis=0)),
        ("gencuda.loops", tg.permute(X, (1, 0)) + tg.input("y", (96, kernels.N))), ("cuda.linear_any", tg.linear(X, W)),
        ("torchcuda.softmax", tg.softmax(X)), ("torchcuda.linear", tg.linear(X, W))]


@pytest.mark.gpu
@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize(("name", "node"), OURS, ids=lambda each: each if isinstance(each, str) else each.op.name)
def test_our_own_kernels_pass_beside_them(name: str, node: tg.Tensor, tmp_path: Path, record_property: Tell) -> None:
    from tensor_graphs.kernels.registry import kernel_named, why_missing

    with ReportedOutput(f"ours {name} {node.op.name}", record_property) as said, open_database(tmp_path / "bench.db") as database, \
            Judge(database, timeout=PATIENCE) as judge:
        missing = why_missing(name.partition(".")[0])
        assert missing is None, missing
        verdict = judge.examine(kernel_named(name), signature_of(node), SIZES)
        said("judge", first_line(verdict))
        assert verdict.status == "PASSED", verdict.log


MIXED = ("writes_at_address_8", "never_ends", "leaves_the_last_element", "writes_over_its_operand", "writes_behind_its_output")


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.usefixtures("texts")
def test_one_profile_of_all_kinds_files_a_row_for_each_and_chooses_the_right_one(tmp_path: Path, record_property: Tell) -> None:
    with ReportedOutput("a profile of all kinds", record_property) as said:
        a_profile_of_all_kinds(tmp_path, said)


def a_profile_of_all_kinds(folder: Path, said: ReportedOutput) -> None:
    rows = [next(row for row in WRONG if row.name == name) for name in MIXED]
    made = [*map(kernels.spoiled, rows), kernels.right("gate")]
    with declared(*made), open_database(folder / "bench.db") as database:
        report = tg.profile(FORMS["gate"].graph, kernels=tuple(k.name for k in made), backends=("cuda", "numpy"), database=database,
                            per_kernel=0.02, timeout=kernels.HANGS, largest=SIZES)
        found = {v.kernel: v.status for v in report.verdicts}
        said("profile", ", ".join(f"{name} {status}" for name, status in found.items()))
        assert found.pop("cuda.right_gate") == "PASSED"
        assert found.keys() == {f"cuda.{row.name}" for row in rows}
        assert all(found[f"cuda.{row.name}"] in row.statuses for row in rows)


# ---- without one ----


@pytest.fixture
def gpu_that_is_none(texts: None, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path_factory.getbasetemp() / "emulated"
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv(emulated.VARIABLE, str(folder))
    emulated.install(folder)
    yield
    emulated.remove()


def test_each_text_compiles_and_there_are_enough() -> None:
    made = [*map(kernels.right, FORMS), *map(kernels.spoiled, WRONG)]
    with declared(*made):
        assert len({kernel.source for kernel in made}) >= len(FORMS) + len(WRONG) - sum(not row.changes for row in WRONG)
    assert len(WRONG) >= 40 and "TENSOR_GRAPHS_WORKER" not in os.environ
    assert {status for row in WRONG for status in row.statuses} == {
        "INCORRECT_NUMERICAL", "INCORRECT_SHAPE", "MUTATED_INPUT", "RUNTIME_ERROR", "TIMEOUT"}


QUICK = ("writes_behind_its_scratch", "writes_over_its_sizes", "writes_at_address_8", "tires_after_100_launches")
"""of those that an emulated GPU shows, what every suite runs: each takes seconds"""

EMULATED = [pytest.param(row, id=row.name, marks=[] if row.name in QUICK else pytest.mark.long)
            for row in WRONG if row.emulated and FORMS[row.form].emulated]


@pytest.mark.usefixtures("gpu_that_is_none")
@pytest.mark.parametrize("row", EMULATED)
def test_on_an_emulated_gpu_a_wrong_kernel_is_refused_and_its_twin_passes(row: Row, tmp_path: Path, record_property: Tell) -> None:
    it_is_refused_and_nothing_else_is(row, tmp_path, record_property)


@pytest.mark.usefixtures("gpu_that_is_none")
@pytest.mark.parametrize("name", ["gate", *(pytest.param(name, marks=pytest.mark.long) for name, form in FORMS.items()
                                            if form.emulated and name != "gate")])
def test_on_an_emulated_gpu_a_right_kernel_passes_and_is_timed(name: str, tmp_path: Path, record_property: Tell) -> None:
    its_times_are_taken(name, tmp_path, record_property)


@pytest.mark.long
@pytest.mark.usefixtures("gpu_that_is_none")
def test_on_an_emulated_gpu_one_profile_files_a_row_for_each(tmp_path: Path, record_property: Tell) -> None:
    with ReportedOutput("a profile of all kinds", record_property) as said:
        a_profile_of_all_kinds(tmp_path, said)


@pytest.mark.usefixtures("gpu_that_is_none")
@pytest.mark.parametrize(("name", "lost"), [("writes_at_address_8", True), ("asks_for_more_shared_memory_than_there_is", False)])
def test_a_worker_whose_gpu_is_lost_runs_nothing_else(name: str, lost: bool) -> None:
    kernel = kernels.spoiled(next(row for row in WRONG if row.name == name))
    with declared(kernel), WorkerProcess(PATIENCE) as worker:
        signature = kernels.signature_of_form("gate", kernel)
        reply = worker.run({"graph": print_graph(signature.graph), "kernel": kernel.name, "identity": kernel.identity,
                            "origins": [origin_of(kernel)], "points": [Point((("n", 20),), 1)], "time": None, "threads": None,
                            "argv": []})
        assert reply.status == "RUNTIME_ERROR" and (worker.pid is None) == lost, reply
