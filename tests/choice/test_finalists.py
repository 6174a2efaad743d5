"""Finalists: which paths are run as a whole, and that what they took decides."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

import tensor_graphs as tg
from tensor_graphs.choice import finalists as module
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.choice.cost_table import NEAR, CostTable
from tensor_graphs.choice.deferred_measure import compare_all
from tensor_graphs.choice.finalists import CLOSE, both, finalists, try_finalists
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.choice.profile_graph import needed, rests_on
from tensor_graphs.choice.request import Request
from tensor_graphs.costs.database_keys import VERIFIER, path_environment, path_implementation, path_workload, whole_graph_record
from tensor_graphs.costs.roofline import DeviceRates
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import all_kernels, by_op, kernel_named, register, unregister
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.composite import expand_all
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, is_step, walk
from tensor_graphs.measure.isolation.replies import Reply
from tensor_graphs.measure.judge import Judge
from tensor_graphs.measure.timing.in_graph_steps import Deployed, measure_deployed
from tensor_graphs.paths.path import Cost, Path, Paths
from tensor_graphs.records.database import Database
from tensor_graphs.records.rows import TraceRecord
from tests.choice.conftest import add_row
from tests.choice.trial_kernels import EXACT

BACKENDS = ("c", "numpy")
TWO_STEPS = tg.graph({"y": tg.rms_norm(tg.softmax(tg.input("x", (64, 16), tg.f32)))})


def costed(graph: Graph, costs: dict[str, float]) -> Paths:
    """The paths of a graph whose kernels take this many seconds, by name; others take a second."""
    def cost(kernel: Kernel, signature: Signature) -> Cost:
        return Cost(costs.get(kernel.name, 1.0), True, 0.0)

    return Paths(graph, by_op(all_kernels(BACKENDS)), cost)


def took(database: Database, graph: Graph, path: Path, us: float, around: Any = None) -> None:
    """File that the path takes so long as a whole. around: µs of it that are the host's, where a device timed the rest."""
    backends = {kernel_named(name).backend for name in path.identities}
    told = {} if around is None else {"around_ms": around / 1e3 if isinstance(around, float) else around}
    database.ensure_graph(whole_graph_record(graph))
    database.add_trace(TraceRecord(
        path_implementation(path), path_workload(graph, {}), path_environment(backends), "in_graph", "PASSED",
        samples_ms=(us / 1e3,) * 5, timer="perf_counter", verifier=VERIFIER,
        conditions={"path": path.to_json(), **told}))


def defined_nodes(graph: Graph) -> list[Node]:
    """Of the graph with every composite written out."""
    return walk(expand_all(graph.roots))


def time_steps(database: Database, graph: Graph) -> None:
    for s in (signature_of(node) for node in graph.nodes if is_step(node)):
        here = {kernel.name: kernel for kernel in all_kernels()}
        for name, us in ((f"c.{s.spec.op.name}", 10.0), (f"numpy.{s.spec.op.name}", 12.0)):
            if name in here:
                add_row(database, here[name], s)
                add_row(database, here[name], s, {}, us=us)


@pytest.fixture
def known(database: Database) -> list[Path]:
    """The paths of TWO_STEPS, the cheapest first, when two kernels of each step were verified and timed: in 10 and in 12 µs."""
    time_steps(database, TWO_STEPS)
    found = list(tg.list_paths(TWO_STEPS, database=database, backends=BACKENDS))
    return [p for p in found if p.measured][:4]


def test_finalists_are_the_cheapest_and_each_dear_step_in_its_next_best_way() -> None:
    paths = costed(TWO_STEPS, {"c.softmax": 1.0, "numpy.softmax": 1.2, "c.rms_norm": 0.8, "numpy.rms_norm": 0.9})
    first, *others = found = finalists(paths)
    assert first.id == paths.cheapest().id and len({p.id for p in found}) == len(found) <= module.MOST
    assert all(p.cost <= CLOSE * first.cost for p in found)
    for other in ("numpy.softmax", "numpy.rms_norm"):
        assert any([n for key, n in p.choices.items() if first.choices.get(key) != n] == [other] for p in others)


def test_a_step_that_takes_nothing_is_not_exchanged() -> None:
    paths = costed(TWO_STEPS, {"c.softmax": 1.0, "numpy.softmax": 1.2, "c.rms_norm": 1e-4, "numpy.rms_norm": 2e-4})
    norm = {s.key for s, _ in paths.top if s.spec.op.name == "rms_norm"}
    first, *others = finalists(paths)
    assert others and all(first.choices[key] == p.choices.get(key) for p in others for key in norm)


def test_fewer_paths_are_run_where_there_is_less_time() -> None:
    paths = costed(TWO_STEPS, {})
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


def test_a_list_of_paths_has_the_times_of_whole_runs_and_what_a_run_takes_around_its_calls(database: Database,
                                                                                           known: list[Path]) -> None:
    first, second, third, *_ = known
    took(database, TWO_STEPS, first, 5.0)
    took(database, TWO_STEPS, second, 4.0)
    listed = list(tg.list_paths(TWO_STEPS, database=database, backends=BACKENDS, limit=3))
    assert [p.id for p in listed] == [second.id, first.id, third.id]
    assert [p.seconds for p in listed] == pytest.approx([4e-6, 5e-6, third.cost + DeviceRates.run_seconds])
    assert compile_graph(TWO_STEPS, database=database, backends=BACKENDS).variants[0].path == listed[0]


def test_paths_that_a_device_timed_in_different_profiles_are_compared_without_what_the_host_did_around_them(
        database: Database, known: list[Path]) -> None:
    """A slower host does not make the faster path lose."""
    slow, fast, *_ = known
    took(database, TWO_STEPS, slow, 27.0, around=5.0)
    took(database, TWO_STEPS, fast, 30.0, around=26.0)
    tried = CostTable.of(Request(TWO_STEPS, None, BACKENDS, database)).tried(TWO_STEPS, {})
    assert [each.path.id for each in tried] == [fast.id, slow.id]
    assert [each.seconds for each in tried] == pytest.approx([30e-6, 48e-6])
    assert [each.took for each in tried] == pytest.approx([30e-6, 27e-6])
    variant = compile_graph(TWO_STEPS, database=database, backends=BACKENDS).variants[0]
    assert variant.path.id == fast.id and variant.predicted == pytest.approx(30e-6)


def test_a_path_that_the_host_timed_is_compared_with_the_fastest_of_a_device_as_they_ran_together(database: Database,
                                                                                                   known: list[Path]) -> None:
    there, mixed, before = known[:3]
    took(database, TWO_STEPS, there, 36.0, around=26.0)
    took(database, TWO_STEPS, mixed, 30.0)                          # in turns with it
    took(database, TWO_STEPS, before, 45.0, around=5.0)
    tried = CostTable.of(Request(TWO_STEPS, None, BACKENDS, database)).tried(TWO_STEPS, {})
    assert [each.path.id for each in tried] == [mixed.id, there.id, before.id]


@pytest.mark.parametrize("around", [5000.0, -5.0, None, True, "x", [1.0], math.nan], ids=str)
def test_what_can_be_no_part_of_a_row_is_not_taken_for_the_hosts(database: Database, known: list[Path], around: Any) -> None:
    """Rows may come from a file."""
    took(database, TWO_STEPS, known[0], 30.0, around=around)
    took(database, TWO_STEPS, known[1], 28.0, around=20.0)
    tried = CostTable.of(Request(TWO_STEPS, None, BACKENDS, database)).tried(TWO_STEPS, {})
    assert [each.seconds for each in tried] == pytest.approx([28e-6, 30e-6])


def test_a_profile_asks_for_the_kernels_of_the_path_that_took_the_least_as_a_whole(database: Database) -> None:
    """Also where they were never timed alone, as other kernels seem cheaper by price."""
    softmax, norm = (signature_of(node) for node in TWO_STEPS.nodes if is_step(node))
    for name, s in (("c.softmax", softmax), ("c.rms_norm", norm)):
        add_row(database, kernel_named(name), s)
        add_row(database, kernel_named(name), s, {}, us=0.5)
    add_row(database, kernel_named("numpy.rms_norm"), norm)
    request = Request(TWO_STEPS, None, BACKENDS, database)
    listed = list(tg.list_paths(TWO_STEPS, database=database, backends=BACKENDS))
    path = next(p for p in listed if p.choices[norm.key] == "numpy.rms_norm")
    assert needed(TWO_STEPS, [{}], request) == [] and rests_on(TWO_STEPS, [{}], [], request)[0].share == 1.0
    took(database, TWO_STEPS, listed[0], 50.0)
    took(database, TWO_STEPS, path, 40.0)
    assert [(q.kernel.name, q.signature.key) for q in needed(TWO_STEPS, [{}], request)] == [("numpy.rms_norm", norm.key)]
    plan = compile_graph(TWO_STEPS, database=database, backends=BACKENDS)
    assert 0.0 < rests_on(TWO_STEPS, [{}], [], request)[0].share == plan.variants[0].measured_share < 1.0


def test_a_path_that_was_not_run_is_chosen_where_it_is_much_cheaper_than_those_that_were(database: Database,
                                                                                         known: list[Path]) -> None:
    first, *others = known
    near, dear = others[0], others[-1]
    assert first.cost < NEAR * dear.cost
    took(database, TWO_STEPS, dear, 1.0)
    assert compile_graph(TWO_STEPS, database=database, backends=BACKENDS).variants[0].path.id == first.id
    took(database, TWO_STEPS, first, 50.0)
    took(database, TWO_STEPS, near, 60.0)
    assert compile_graph(TWO_STEPS, database=database, backends=BACKENDS).variants[0].path.id == dear.id


def test_what_a_profile_ran_as_a_whole_is_on_file_and_not_run_again(database: Database, known: list[Path]) -> None:
    request = Request(TWO_STEPS, None, BACKENDS, database)
    with Judge(database) as judge:
        ran = [try_finalists(judge, TWO_STEPS, {}, request, time.perf_counter() + 30.0, lambda what: None) for _ in range(2)]
    assert ran[0] >= len(known) and ran[1] == 0
    tried = CostTable.of(request).tried(TWO_STEPS, {})
    assert len(tried) == ran[0] and {each.path.id for each in tried} >= {p.id for p in known}
    assert tried == sorted(tried, key=lambda each: each.seconds)
    whole = compile_graph(TWO_STEPS, database=database, backends=BACKENDS).variants[0].whole
    assert whole is not None and NEAR * whole.seconds <= tried[0].seconds


def test_a_path_that_only_copies_is_run_as_a_whole_and_found_again(database: Database) -> None:
    """No kernel of its own says on which backend it ran."""
    graph, backends = tg.graph({"y": tg.upsample(tg.input("x", (4, 4, 8, 8), tg.f32), (2, 2))}), ("c", "gen")
    request = Request(graph, None, backends, database)
    with Judge(database) as judge:
        ran = try_finalists(judge, graph, {}, request, time.perf_counter() + 30.0, lambda what: None)
    tried = CostTable.of(request).tried(graph, {})
    assert ran == len(tried) >= 2 and not all(each.path.identities for each in tried)


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
    assert ran >= len(paths) and not caplog.records
    assert any(EXACT.name in each.path.identities for each in CostTable.of(request).tried(stepping, {}))


def test_why_paths_could_not_be_run_is_one_line(database: Database, stepping: Graph, monkeypatch: pytest.MonkeyPatch,
                                                caplog: pytest.LogCaptureFixture) -> None:
    def fails(*args: object, **how: object) -> Reply:
        return Reply("RUNTIME_ERROR", "Traceback (most recent call last):\n  File \"k.py\", line 1\nValueError: no room\n")

    request = Request(stepping, None, BACKENDS, database)
    with Judge(database) as judge, caplog.at_level("DEBUG", logger="tensor_graphs"):
        monkeypatch.setattr(judge.worker, "run", fails)
        assert try_finalists(judge, stepping, {}, request, time.perf_counter() + 5.0, lambda what: None) == 0
    (said,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert re.fullmatch(r"\d paths could not be run as a whole, so the choice rests on the costs of their steps: "
                        "ValueError: no room", said)
    (whole,) = [r.getMessage() for r in caplog.records if "Traceback" in r.getMessage()]
    assert "k.py" in whole


def test_between_paths_that_took_about_as_long_the_price_decides(database: Database, known: list[Path]) -> None:
    first, second, *_ = known
    took(database, TWO_STEPS, first, 50.0)
    took(database, TWO_STEPS, second, 49.5)
    assert compile_graph(TWO_STEPS, database=database, backends=BACKENDS).variants[0].path.id == first.id


def test_of_paths_that_took_about_as_long_one_of_fewer_calls_is_chosen_whatever_its_price(database: Database) -> None:
    graph = tg.graph({"y": tg.softmax(tg.input("x", (64, 16), tg.f32))})
    whole = signature_of(graph.outputs["y"])
    for s, us in ((whole, 50.0), *((signature_of(n), 1.0) for n in defined_nodes(graph) if is_step(n))):
        add_row(database, kernel_named(f"numpy.{s.spec.op.name}"), s)
        add_row(database, kernel_named(f"numpy.{s.spec.op.name}"), s, {}, us=us)
    found = list(tg.list_paths(graph, database=database, backends=["numpy"]))
    assert not found[0].measured                                    # what is guessed to be cheaper than all that ran is not chosen
    found = [p for p in found if p.measured]
    written_out, one_call = found[0], next(p for p in found if p.choices[whole.key] == "numpy.softmax")
    assert one_call.kernel_calls == 1 < written_out.kernel_calls and written_out.cost < one_call.cost
    took(database, graph, written_out, 49.5)
    took(database, graph, one_call, 50.0)
    assert compile_graph(graph, database=database, backends=["numpy"]).variants[0].path.id == one_call.id
    took(database, graph, written_out, 40.0)
    assert compile_graph(graph, database=database, backends=["numpy"]).variants[0].path.id == written_out.id


def test_of_paths_of_microseconds_those_are_run_too_that_are_a_few_microseconds_dearer() -> None:
    def others(scale: float) -> set[str]:
        costs = {"c.softmax": scale, "numpy.softmax": 2.5 * scale, "c.rms_norm": scale, "numpy.rms_norm": 2.6 * scale}
        first, *rest = finalists(costed(TWO_STEPS, costs))
        return {name for p in rest for key, name in p.choices.items() if first.choices.get(key) != name}

    assert not {"numpy.softmax", "numpy.rms_norm"} & others(1e-3)
    assert {"numpy.softmax", "numpy.rms_norm"} <= others(5e-6)


def test_other_words_of_a_part_whose_kernels_were_never_timed_are_run_too() -> None:
    x = tg.input("x", (4, 64), tg.f32)
    graph = prepare(tg.graph({"y": tg.linear(x, tg.parameter("a", (64, 64))) + tg.linear(x, tg.parameter("b", (64, 64)))}),
                    backends=BACKENDS).graph

    def cost(kernel: Kernel, signature: Signature) -> Cost:
        if kernel.name != "c.linear":
            return Cost(1e-6 if kernel.name in {"numpy.add", "numpy.concat"} else 1.0, True, 0.0)
        joined = signature.spec.inputs[1].shape[0] == 128
        return Cost(100e-6, True, 0.0) if joined else Cost(140e-6, False, 0.0)

    first, *others = finalists(Paths(graph, by_op(all_kernels(BACKENDS)), cost))
    assert first.recipes and first.measured
    assert any(not p.recipes and p.cost > CLOSE * first.cost + module.SHORT for p in others)


def test_kernels_that_nothing_was_asked_about_are_compared_before_their_paths_are_run(database: Database) -> None:
    request = Request(TWO_STEPS, None, BACKENDS, database)
    with Judge(database) as judge:
        ran = try_finalists(judge, TWO_STEPS, {}, request, time.perf_counter() + 30.0, lambda what: None)
    book = CostTable.of(request)
    best = book.tried(TWO_STEPS, {})[0].path
    assert ran >= 2
    for s in (signature_of(node) for node in TWO_STEPS.nodes if is_step(node)):
        assert best.choices[s.key] == "expand" or book.why_not(kernel_named(best.choices[s.key]), s, {}) is None


def test_what_was_run_twice_keeps_the_fastest_of_all_its_runs(known: list[Path]) -> None:
    def ran(path: Path, *whole: float) -> Deployed:
        return Deployed(path, whole, whole, {}, {}, True)

    once, twice = both([ran(known[0], 5.0, 5.1), ran(known[1], 4.0, 4.2)], [ran(known[1], 6.0, 6.1, 6.2)])
    assert once.whole == (5.0, 5.1) and twice.whole == (4.0, 4.2, 6.0)


def test_runs_of_two_turns_are_put_together_with_the_least_that_the_host_took_around_them(known: list[Path]) -> None:
    def ran(path: Path, around: float, *own: float) -> Deployed:
        whole = tuple(around + each for each in own)
        return Deployed(path, whole, whole, {}, {}, True, around=around)

    here = Deployed(known[2], (7.0, 8.0), (7.0, 8.0), {}, {}, True)
    once, twice, host = both([ran(known[0], 30.0, 4.0, 5.0), ran(known[1], 30.0, 1.0, 2.0), here],
                             [ran(known[1], 20.0, 3.0, 4.0, 5.0)])
    assert once.whole == (24.0, 25.0) and twice.whole == (21.0, 22.0, 23.0) and {once.around, twice.around} == {20.0}
    assert host.whole == (7.0, 8.0) and host.around is None


def test_rows_of_a_backend_that_is_not_asked_for_do_not_count(database: Database, known: list[Path]) -> None:
    took(database, TWO_STEPS, known[-1], 50.0)                      # of numpy's kernels
    books = [CostTable.of(Request(TWO_STEPS, None, backends, database)) for backends in (BACKENDS, ("numpy",), ("c",))]
    assert [len(book.tried(TWO_STEPS, {})) for book in books] == [1, 1, 0]


def test_comparing_ends_when_its_time_is_up_and_keeps_what_was_found(database: Database) -> None:
    signatures = [signature_of(make(tg.input("x", (7, 9), tg.f32))) for make in (tg.exp, tg.sin, tg.sqrt, tg.tanh)]
    pending = [(kernel_named(f"numpy.{s.spec.op.name}"), s, {}) for s in signatures]
    said: list[str] = []
    with Judge(database) as judge:
        compare_all(judge, pending, said.append, until=0.0)
        assert len(said) == 1 and said[0].startswith("compared numpy.")
        book = CostTable.of(Request(TWO_STEPS, None, BACKENDS, database))
        assert sum(book.verdict(k, s) is not None for k, s, _ in pending) == 1
        compare_all(judge, pending, said.append)                    # the judge is there as before
        assert len(said) == 1 + len(pending)
