from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.choice import plan_file, search, storing
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.choice.request import Request
from tensor_graphs.devices import checksummed_files
from tensor_graphs.kernels.kernel_decorator import host_kernel
from tensor_graphs.kernels.registry import all_kernels, kernel_named, unregister
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.graph import Graph
from tensor_graphs.measure.judge import environment_of
from tensor_graphs.paths.plan import Plan
from tensor_graphs.records import open_database
from tensor_graphs.records.database import Database
from tensor_graphs.records.rows import DeviceConstant
from tensor_graphs.views.explain import explain
from tests.choice.conftest import add_row


def made() -> Graph:
    """Two products of one operand, which may be joined, and a softmax."""
    n = tg.dim("n", 1, 64)
    x = tg.input("x", (n, 32), tg.f32)
    left, right = (tg.linear(x, tg.parameter(name, (16, 32), tg.f32)) for name in ("left", "right"))
    return tg.graph(tg.softmax(tg.add(left, right)))


GRAPH = made()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Plans are kept, in a folder of the test's own."""
    monkeypatch.delenv(storing.VARIABLE, raising=False)
    monkeypatch.setattr(plan_file, "user_place", lambda kind, name: checksummed_files.place(tmp_path / "cache" / kind, name))
    return tmp_path / "cache" / "plans"


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows with every search."""
    seen: list[object] = []
    searched = search.searched
    monkeypatch.setattr(search, "searched", lambda *given: (seen.append(given), searched(*given))[1])
    return seen


def numpy_plan(database: Database, graph: Graph = GRAPH, **asked: object) -> Plan:
    return compile_graph(graph, database=database, backends=("numpy",), **asked)   # type: ignore[arg-type]


def test_the_same_request_is_answered_without_a_search_and_with_the_same_plan(store: Database, searches: list[object]) -> None:
    first = numpy_plan(store)
    again = numpy_plan(store, made())
    assert len(searches) == 1
    assert again == first and [v.path.id for v in again.variants] == [v.path.id for v in first.variants]
    assert explain(again) == explain(first) and again.given is not None and again.rests_on == first.rests_on != ""
    assert dict(again.images) == dict(first.images)
    values = {"x": np.random.default_rng(0).normal(size=(3, 32)).astype(np.float32)}
    weights = {name: np.random.default_rng(1).normal(size=(16, 32)).astype(np.float32) for name in ("left", "right")}
    one, other = (tg.bind(plan, weights).run(values)["out"] for plan in (first, again))
    np.testing.assert_array_equal(one, other)


def test_a_plan_is_found_by_the_name_of_its_database_too(store: Database, searches: list[object]) -> None:
    numpy_plan(store)
    file = plan_file.of(Request(GRAPH, backends=("numpy",), database=store.location))
    assert file is not None and file.read() is not None


@pytest.mark.parametrize("asked", [
    {"tolerance": 1e-2}, {"at": {"n": 2}}, {"largest": {"n": 8}}, {"memory_limit": 1 << 30}, {"reuse_outputs": True},
    {"threads": 1}, {"precision": "f64"}, {"simplify": False}, {"backends": ("numpy", "c")}], ids=lambda a: next(iter(a)))
def test_another_request_has_another_file(store: Database, asked: dict[str, Any]) -> None:
    usual = plan_file.of(Request(GRAPH, database=store))
    other = plan_file.of(Request(GRAPH, database=store, **asked))
    assert usual is not None and other is not None and usual.path != other.path


def test_a_tolerance_on_other_inputs_has_another_file(store: Database) -> None:
    def path(tolerance: float | None, value: float | None) -> Path:
        inputs = None if value is None else [{"x": np.full((3, 32), value, np.float32)}]
        file = plan_file.of(Request(GRAPH, tolerance, database=store, inputs=inputs))
        assert file is not None
        return file.path

    assert len({path(0.1, None), path(0.1, 1.0), path(0.1, 2.0)}) == 3 and path(0.1, 1.0) == path(0.1, 1.0)
    assert path(None, None) == path(None, 1.0)                       # nothing is measured


def test_names_and_ranges_of_dims_are_part_of_the_request(store: Database) -> None:
    def path(dim: str, high: int, name: str) -> Path:
        graph = tg.graph({name: tg.exp(tg.input("x", (tg.dim(dim, 1, high),), tg.f32))})
        file = plan_file.of(Request(graph, database=store))
        assert file is not None
        return file.path

    assert len({path("n", 8, "y"), path("k", 8, "y"), path("n", 9, "y"), path("n", 8, "z")}) == 4


def test_a_new_row_makes_a_plan_stale(database: Database, searches: list[object], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, plan_file.__name__)
    graph = tg.graph(tg.exp(tg.input("x", (64,), tg.f32)))
    kernel, signature = kernel_named("numpy.exp"), signature_of(graph.outputs["out"])
    add_row(database, kernel, signature)
    numpy_plan(database, graph)
    numpy_plan(database, graph)
    assert len(searches) == 1
    add_row(database, kernel, signature, {}, us=3.0)
    timed = numpy_plan(database, graph)
    assert len(searches) == 2 and timed.variants[0].path.cost == pytest.approx(3e-6)
    assert "other rows by now" in caplog.text
    database.add_constants(environment_of("numpy"), [DeviceConstant("read_bandwidth", 1e9, "byte/s")])
    numpy_plan(database, graph)
    assert len(searches) == 3
    numpy_plan(database, graph)
    assert len(searches) == 3


def test_a_new_kernel_makes_another_request(store: Database) -> None:
    before = plan_file.of(Request(GRAPH, backends=("numpy",), database=store))

    @host_kernel("softmax", name="numpy.newly_written")
    def newly_written(outs, ins, attrs):                             # type: ignore[no-untyped-def]
        outs[0][...] = ins[0]

    try:
        assert any(k.name == "numpy.newly_written" for k in all_kernels(("numpy",)))
        after = plan_file.of(Request(GRAPH, backends=("numpy",), database=store))
    finally:
        unregister("numpy.newly_written")
    assert before is not None and after is not None and before.path != after.path


def test_a_new_rule_makes_another_request_and_so_does_another_text_of_it(store: Database) -> None:
    def file() -> Path:
        made = plan_file.of(Request(GRAPH, backends=("numpy",), database=store))
        assert made is not None
        return made.path

    def declared(rule: str) -> Path:
        exec(f"import tensor_graphs as tg\ntg.rule('sub(x, neg(y))', 'bitwise', dtypes='int', name='mine')({rule})",
             {"__name__": "a_cell"})
        return file()

    paths = [file(), declared("lambda x, y: x + y"), declared("lambda x, y: y + x")]
    assert len(set(paths)) == 3 and declared("lambda x, y: x + y") == paths[1]


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "of another format", "writable by others"])
def test_a_damaged_file_is_left_out_and_made_anew(store: Database, folder: Path, searches: list[object], damage: str) -> None:
    first = numpy_plan(store)
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    flipped = whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:]
    file.write_bytes({"cut": whole[:-10], "flipped": flipped, "empty": b"", "of another format": b"x" + whole}.get(damage, whole))
    if damage == "writable by others":
        file.chmod(0o666)
    assert numpy_plan(store) == first and len(searches) == 2
    assert numpy_plan(store) == first and len(searches) == 2
    assert file.stat().st_mode & 0o077 == 0


def test_nothing_is_kept_where_it_is_turned_off_or_the_database_is_in_memory(
        store: Database, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_database(":memory:") as memory:
        assert all(plan_file.of(Request(GRAPH, database=each)) is None for each in (memory, ":memory:"))
    monkeypatch.setenv(storing.VARIABLE, "off")
    numpy_plan(store)
    assert not folder.exists()


def test_a_word_that_says_neither_on_nor_off_is_refused(store: Database, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(storing.VARIABLE, "bogus")
    with pytest.raises(ArgumentError, match="^TENSOR_GRAPHS_PLANS is 'bogus'\n  fix: on or off; without it, it is on"):
        numpy_plan(store)
    monkeypatch.setenv(storing.VARIABLE, "on")
    numpy_plan(store)
    assert folder.exists()


def test_plans_that_were_not_used_for_long_go(store: Database, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numpy_plan(store)
    (first,) = folder.iterdir()
    monkeypatch.setattr(plan_file, "MOST_BYTES", first.stat().st_size + 100)
    numpy_plan(store, largest={"n": 8})
    (second,) = folder.iterdir()
    assert second != first


def test_who_finds_a_plan_imports_neither_the_search_nor_sqlalchemy() -> None:
    script = ("import sys, tensor_graphs.choice.compile, tensor_graphs.choice.choice_evidence\n"
              "print([m for m in sys.modules if m == 'sqlalchemy' or m.startswith(('tensor_graphs.rewrites.egraph', "
              "'tensor_graphs.measure', 'tensor_graphs.choice.search', 'tensor_graphs.proof'))])")
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"
