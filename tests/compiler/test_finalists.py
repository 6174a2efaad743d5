"""Finalists: which paths are run as a whole, and that what they took decides."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

import tensor_graphs as tg
from tensor_graphs.compiler import finalists as module
from tensor_graphs.compiler.choose import PriceBook
from tensor_graphs.compiler.compile import NEAR, compile_graph
from tensor_graphs.compiler.finalists import CLOSE, finalists, try_finalists
from tensor_graphs.compiler.request import Request
from tensor_graphs.costs.filing import VERIFIER, path_environment, path_implementation, path_workload, whole_graph_record
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import all_kernels, by_op, kernel_named, register, unregister
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import is_step
from tensor_graphs.paths.path import Path, Paths, Price
from tensor_graphs.profiling.distrust.replies import Reply
from tensor_graphs.profiling.measure.deployed import measure_deployed
from tensor_graphs.profiling.measure.judge import Judge
from tensor_graphs.records.database import Database
from tensor_graphs.records.rows import TraceRecord
from tests.compiler.conftest import add_row
from tests.compiler.trial_kernels import EXACT

BACKENDS = ("c", "numpy")
TWO_STEPS = tg.graph({"y": tg.tanh(tg.softmax(tg.input("x", (64, 16), tg.f32)))})


def priced(graph: Graph, prices: dict[str, float]) -> Paths:
    """The paths of a graph whose kernels take this many seconds, by name; others take a second."""
    def price(kernel: Kernel, signature: Signature) -> Price:
        return Price(prices.get(kernel.name, 1.0), True, 0.0)

    return Paths(graph, by_op(all_kernels(BACKENDS)), price)


def took(database: Database, graph: Graph, path: Path, us: float) -> None:
    """File that the path takes so long as a whole."""
    backends = {kernel_named(name).backend for name in path.identities}
    database.ensure_graph(whole_graph_record(graph))
    database.add_trace(TraceRecord(
        path_implementation(path), path_workload(graph, {}), path_environment(backends), "in_graph", "PASSED",
        samples_ms=(us / 1e3,) * 5, timer="perf_counter", verifier=VERIFIER, conditions={"path": path.to_json()}))


def time_steps(database: Database, graph: Graph) -> None:
    for s in (signature_of(node) for node in graph.nodes if is_step(node)):
        for name, us in ((f"c.{s.spec.op.name}", 10.0), (f"numpy.{s.spec.op.name}", 12.0)):
            add_row(database, kernel_named(name), s)
            add_row(database, kernel_named(name), s, {}, us=us)


@pytest.fixture
def known(database: Database) -> list[Path]:
    """The paths of TWO_STEPS, the cheapest first, when two kernels of each step were verified and timed: in 10 and in 12 µs."""
    time_steps(database, TWO_STEPS)
    found = list(tg.list_paths(TWO_STEPS, database=database, backends=BACKENDS))
    return [p for p in found if p.measured][:4]


def test_finalists_are_the_cheapest_and_each_dear_step_in_its_next_best_way() -> None:
    paths = priced(TWO_STEPS, {"c.softmax": 1.0, "numpy.softmax": 1.2, "c.tanh": 0.8, "numpy.tanh": 0.9})
    first, *others = found = finalists(paths)
    assert first.id == paths.cheapest().id and len({p.id for p in found}) == len(found) <= module.MOST
    assert all(p.seconds <= CLOSE * first.seconds for p in found)
    for other in ("numpy.softmax", "numpy.tanh"):
        assert any([n for key, n in p.choices.items() if first.choices.get(key) != n] == [other] for p in others)


def test_a_step_that_takes_nothing_is_not_exchanged() -> None:
    paths = priced(TWO_STEPS, {"c.softmax": 1.0, "numpy.softmax": 1.2, "c.tanh": 1e-4, "numpy.tanh": 2e-4})
    tanh = {s.key for s, _ in paths.top if s.spec.op.name == "tanh"}
    first, *others = finalists(paths)
    assert others and all(first.choices[key] == p.choices.get(key) for p in others for key in tanh)


def test_fewer_paths_are_run_where_there_is_less_time() -> None:
    paths = priced(TWO_STEPS, {})
    assert len(finalists(paths, seconds=0.0)) <= 1


def test_the_path_that_took_the_least_as_a_whole_is_chosen_whatever_its_price(database: Database, known: list[Path]) -> None:
    first, second, *_ = known
    took(database, TWO_STEPS, first, 50.0)
    took(database, TWO_STEPS, second, 40.0)
    plan = compile_graph(TWO_STEPS, database=database, backends=BACKENDS)
    variant = plan.variants[0]
    assert variant.path.id == second.id and variant.predicted == pytest.approx(40e-6)
    assert variant.whole is not None and variant.whole.among == 2
    assert "measured as a whole" in tg.explain(plan) and "measured as a whole" in str(plan)


def test_a_path_that_was_not_run_is_chosen_where_it_is_much_cheaper_than_those_that_were(database: Database,
                                                                                         known: list[Path]) -> None:
    first, *others = known
    near, dear = others[0], others[-1]
    assert first.seconds < NEAR * dear.seconds
    took(database, TWO_STEPS, dear, 1.0)
    assert compile_graph(TWO_STEPS, database=database, backends=BACKENDS).variants[0].path.id == first.id
    took(database, TWO_STEPS, first, 50.0)
    took(database, TWO_STEPS, near, 60.0)
    assert compile_graph(TWO_STEPS, database=database, backends=BACKENDS).variants[0].path.id == dear.id


def test_what_a_profile_ran_as_a_whole_is_on_file_and_not_run_again(database: Database, known: list[Path]) -> None:
    request = Request(TWO_STEPS, None, BACKENDS, database)
    with Judge(database) as judge:
        ran = [try_finalists(judge, TWO_STEPS, {}, request, time.perf_counter() + 5.0, lambda what: None) for _ in range(2)]
    assert ran == [len(known), 0]
    tried = PriceBook.of(request).tried(TWO_STEPS, {})
    assert {each.path.id for each in tried} == {p.id for p in known}
    assert tried == sorted(tried, key=lambda each: each.seconds)
    whole = compile_graph(TWO_STEPS, database=database, backends=BACKENDS).variants[0].whole
    assert whole is not None and NEAR * whole.seconds <= tried[0].seconds


@pytest.fixture
def stepping(database: Database) -> Iterator[Graph]:
    """A graph with a state, whose softmax somebody's kernel computes too: so outputs are compared with the plain path's."""
    x, total = tg.input("x", (64, 16), tg.f32), tg.state("total", (64, 16), tg.f32)
    graph = tg.graph({"y": tg.softmax(x)}, {total: total.read() + x})
    time_steps(database, graph)
    softmax = signature_of(graph.outputs["y"])
    add_row(database, EXACT, softmax)
    add_row(database, EXACT, softmax, {}, us=9.0)
    register(EXACT)
    yield graph
    unregister(EXACT.name)


def test_a_graph_with_a_state_is_run_as_a_whole_along_somebodys_kernel_too(database: Database, stepping: Graph,
                                                                           caplog: pytest.LogCaptureFixture) -> None:
    request = Request(stepping, None, BACKENDS, database)
    paths = [p for p in tg.list_paths(stepping, database=database, backends=BACKENDS) if p.measured]
    kernels = {name: kernel_named(name) for p in paths for name in p.identities}
    assert EXACT.name in kernels
    with Judge(database) as judge:
        found = measure_deployed(judge, stepping, paths, kernels, {}, BACKENDS)
        ran = try_finalists(judge, stepping, {}, request, time.perf_counter() + 5.0, lambda what: None)
    assert [each.path.id for each in found] == [p.id for p in paths] and all(each.whole for each in found)
    assert ran == len(paths) and not caplog.records
    assert any(EXACT.name in each.path.identities for each in PriceBook.of(request).tried(stepping, {}))


def test_why_paths_could_not_be_run_is_one_line(database: Database, stepping: Graph, monkeypatch: pytest.MonkeyPatch,
                                                caplog: pytest.LogCaptureFixture) -> None:
    def fails(*args: object, **how: object) -> Reply:
        return Reply("RUNTIME_ERROR", "Traceback (most recent call last):\n  File \"k.py\", line 1\nValueError: no room\n")

    request = Request(stepping, None, BACKENDS, database)
    with Judge(database) as judge, caplog.at_level("DEBUG", logger="tensor_graphs"):
        monkeypatch.setattr(judge.worker, "run", fails)
        assert try_finalists(judge, stepping, {}, request, time.perf_counter() + 5.0, lambda what: None) == 0
    (said,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert re.fullmatch(r"\d paths could not be run as a whole, so the choice rests on prices of their steps: "
                        "ValueError: no room", said)
    (whole,) = [r.getMessage() for r in caplog.records if "Traceback" in r.getMessage()]
    assert "k.py" in whole


def test_between_paths_that_took_about_as_long_the_price_decides(database: Database, known: list[Path]) -> None:
    first, second, *_ = known
    took(database, TWO_STEPS, first, 50.0)
    took(database, TWO_STEPS, second, 49.5)
    assert compile_graph(TWO_STEPS, database=database, backends=BACKENDS).variants[0].path.id == first.id


def test_rows_of_a_backend_that_is_not_asked_for_do_not_count(database: Database, known: list[Path]) -> None:
    took(database, TWO_STEPS, known[-1], 50.0)                      # of numpy's kernels
    books = [PriceBook.of(Request(TWO_STEPS, None, backends, database)) for backends in (BACKENDS, ("numpy",), ("c",))]
    assert [len(book.tried(TWO_STEPS, {})) for book in books] == [1, 1, 0]
