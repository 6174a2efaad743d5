"""`tg db`: what is known, what failed, out to a file and in again; and mistakes told on one screen."""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
import typer.main
from safetensors.numpy import save_file

from benchmarks.kill_the_profiler import ask as ask_questions
from tensor_graphs.choice.path_listing import signatures_of
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.cli import options
from tensor_graphs.cli.main import app
from tensor_graphs.costs.database_keys import (
    VERIFIER,
    environment_of,
    graph_record,
    implementation_of,
    part_implementation,
    timed_workload,
    verify_workload,
)
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.registry import load_backend
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.text import parse_graph
from tensor_graphs.measure.failing_point import kept
from tensor_graphs.measure.points.input_descriptors import read_descriptor
from tensor_graphs.measure.points.inputs import Point
from tensor_graphs.measure.timing.in_graph_steps import described
from tensor_graphs.paths.path import Path as RunPath
from tensor_graphs.records import ImplementationRecord, SourceRecord, TraceRecord, open_database, queries, upkeep
from tensor_graphs.records.schema import REVISION
from tests.choice.part_kernels import FUSED, registered
from tests.cli.command import ROOT, TG, assert_complains, document, environment, tg

GRAPH = parse_graph("tg 1\ndim n 1..64\ninput x f32[n, 32]\noutput y = softmax(x)\n")
SIGNATURE = signature_of(GRAPH.outputs["y"])
KERNEL = next(k for k in load_backend("numpy") if k.name == "numpy.softmax")
BINDING = dict.fromkeys(SIGNATURE.dim_names, 16)


def trace(
    status: str = "PASSED", *, timed: bool = True, milliseconds: float = 0.5, log: str = "", **changes: object
) -> TraceRecord:
    """A row as the judge writes it."""
    passed = status == "PASSED"
    given = {
        "implementation": implementation_of(KERNEL),
        "workload": timed_workload(SIGNATURE, BINDING) if timed else verify_workload(SIGNATURE),
        "environment": environment_of("numpy"), "kind": "cold" if timed else "verify", "status": status,
        "samples_ms": (milliseconds,) if timed and passed else (), "max_relative_error": 1e-7 if passed else None,
        "tolerance": 1e-4, "verifier": VERIFIER, "log": log, **changes,
    }  # fmt: skip
    return TraceRecord(**given)  # type: ignore[arg-type]


@dataclass
class Said:
    """What a verb answered, called in this process: most tests here ask many small questions."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    command = typer.main.get_command(app)

    def call(*arguments: object) -> Said:
        capsys.readouterr()
        try:
            code = command.main(["db", *map(str, arguments)], prog_name="tg", standalone_mode=False)
        except typer.Exit as e:
            code = e.exit_code
        return Said(code or 0, *capsys.readouterr())

    return call


@pytest.fixture
def answer(ask: Callable[..., Said]) -> Callable[..., Any]:
    """The one JSON document of a verb that succeeds."""

    def call(*arguments: object) -> Any:
        said = ask(*arguments, "--json")
        assert said.returncode == 0, said
        return json.loads(said.stdout)

    return call


@pytest.fixture
def complains(ask: Callable[..., Said]) -> Callable[..., None]:
    """The verb is refused with all of `said`."""

    def call(arguments: tuple[object, ...], *said: str) -> None:
        with pytest.raises(TensorGraphsError) as caught:
            ask(*arguments)
        for text in said:
            assert text in str(caught.value), (text, str(caught.value))
        assert "\n   " not in str(caught.value)                   # all fixes stand one under another

    return call


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """A database in which numpy.softmax passed, then crashed in a broken installation."""
    file = tmp_path / "own.db"
    with open_database(file) as store:
        store.ensure_graph(graph_record(SIGNATURE))
        store.add_traces([
            trace(timed=False), trace(milliseconds=0.25), trace("RUNTIME_ERROR", timed=False, log="library not found\nmore"),
        ])  # fmt: skip
    return file


def test_best_takes_a_file_an_op_or_the_beginning_of_a_key(ask, answer, db: Path, tmp_path: Path) -> None:
    with open_database(db) as store:
        store.add_trace(trace(timed=False))
    file = tmp_path / "two.tg"
    file.write_text("tg 1\ndim n 1..64\ninput x f32[n, 32]\n%0 = softmax(x)\noutput y = rms_norm(%0)\n")
    for what in (file, "softmax", SIGNATURE.key[:10], SIGNATURE.key):
        (row,) = answer("best", what, "--db", db)
        assert (row["implementation_name"], row["graph_key"], row["median_ms"]) == ("numpy.softmax", SIGNATURE.key, 0.25)
        shown = ask("best", what, "--db", db).stdout
        assert "250.0 µs" in shown and "numpy.softmax" in shown and "softmax f32[16, 32] " in shown and "d0=16" in shown
        assert row["shapes"] == ["f32[16, 32]"] and answer("leaderboard", what, "--db", db) == [row]
    assert answer("best", "--db", db) == answer("best", "--all", "--db", db)
    assert answer("best", "softmax", "--tolerance", 1e-9, "--db", db) == []
    assert "nothing measured is within" in ask("best", "softmax", "--tolerance", 1e-9, "--db", db).stdout


def test_the_leaderboard_goes_from_the_smallest_sizes_on_and_a_kernel_is_sent_to_its_history(answer, complains, db: Path) -> None:
    at = {n: timed_workload(SIGNATURE, dict.fromkeys(SIGNATURE.dim_names, n)) for n in (32, 4)}
    with open_database(db) as store:
        store.add_traces([trace(milliseconds=n / 100, workload=workload) for n, workload in at.items()])
    assert [row["axes"] for row in answer("leaderboard", "softmax", "--db", db)] == [{"d0": 4}, {"d0": 16}, {"d0": 32}]
    complains(("leaderboard", "numpy.softmax", "--db", db), "fix: tg db history numpy.softmax")


def test_the_leaderboard_of_a_file_has_its_parts_and_says_what_measures_the_rest(
    ask, answer, db: Path, tmp_path: Path
) -> None:
    file = tmp_path / "layer.tg"
    file.write_text("tg 1\ninput x f32[4, 16]\ninput g f32[16]\ninput w f32[8, 16]\n"
                    "%0 = rms_norm(x, g)\n%1 = linear(%0, w)\noutput y = softmax(%1)\n")  # fmt: skip
    with registered(FUSED):
        part = next(s for s in signatures_of(prepare(options.read_graph(str(file))).graph) if FUSED.computes(s.spec))
        at = {"workload": timed_workload(part, {}), "implementation": implementation_of(FUSED), "milliseconds": 0.125}
        with open_database(db) as store:
            store.ensure_graph(graph_record(part))
            store.add_traces([trace(timed=False, **at | {"workload": verify_workload(part)}), trace(**at)])
        (row,) = answer("leaderboard", file, "--db", db)
        assert (row["implementation_name"], row["graph_key"]) == (FUSED.name, part.key)
        said = ask("leaderboard", file, "--db", db)
        assert "nothing" not in said.stdout
        assert f"tg profile {file} --op softmax\n" in said.stderr                       # not --kernel: the part was timed
        assert f"--tolerance 1.0e-07; the most accurate that was timed is {FUSED.name}" in ask(
            "best", file, "--tolerance", 1e-9, "--db", db).stdout  # fmt: skip


def test_kernels_that_were_only_compared_are_no_question_of_tolerance(ask, db: Path, tmp_path: Path) -> None:
    file, fresh = tmp_path / "one.tg", tmp_path / "compared.db"
    file.write_text("tg 1\ndim n 1..64\ninput x f32[n, 32]\noutput y = softmax(x)\n")
    with open_database(fresh) as store:
        store.ensure_graph(graph_record(SIGNATURE))
        store.add_trace(trace(timed=False))
    shown = ask("leaderboard", file, "--db", fresh).stdout
    assert f"no kernel for {file} was timed" in shown and f"fix: tg profile {file} --op softmax" in shown
    assert "tolerance" not in shown and "tg profile FILE.tg" in ask("best", "softmax", "--db", fresh).stdout


def test_best_compares_the_backends_of_one_machine_and_no_two_machines(ask, answer, db: Path) -> None:
    numpy, elsewhere = environment_of("numpy"), dataclasses.replace(environment_of("numpy"), hardware=(("cores", "999"),))
    c = dataclasses.replace(numpy, backend="c", libs=(("compiler", "gcc 12"), ("threads", "3")))
    fast = dataclasses.replace(implementation_of(KERNEL), name="c.softmax", backend="c", source_hash="c" * 64)
    other = timed_workload(SIGNATURE, dict.fromkeys(SIGNATURE.dim_names, 32))
    with open_database(db) as store:
        store.add_traces([
            trace(implementation=fast, environment=c, milliseconds=0.125),
            trace(environment=elsewhere, milliseconds=0.0625),
            trace(implementation=fast, environment=c, milliseconds=2.0, workload=other),
            trace(milliseconds=1.0, workload=other),
        ])  # fmt: skip
    for what in ((), ("softmax",)):
        best = answer("best", *what, "--db", db)
        assert sorted((row["backend"], row["median_ms"]) for row in best) == [("c", 0.125), ("numpy", 0.0625), ("numpy", 1.0)]
        assert len({row["machine"] for row in best}) == 2 and len({row["environment_key"] for row in best}) == 3
        told = {row["trace_id"]: row["machine"] for row in answer("history", "c.softmax", "--db", db)}
        assert all(told[row["trace_id"]] == row["machine"] for row in best if row["backend"] == "c")
        every = answer("best", *what, "--all", "--db", db)
        assert sorted(row["median_ms"] for row in every) == [0.0625, 0.125, 0.25, 1.0, 2.0]
        shown = ask("best", *what, "--db", db).stdout
        assert len(shown.splitlines()) == 3 and "999 cores" in shown and "c, 3 threads]" in shown and ", numpy]" in shown
    with open_database(db) as store:                               # a failure of the faster one leaves the other
        store.add_trace(trace("RUNTIME_ERROR", implementation=fast, environment=c))
    assert sorted(row["median_ms"] for row in answer("best", "--db", db)) == [0.0625, 0.25, 1.0]


def test_best_at_given_sizes_sets_whole_runs_beside_kernels(ask, answer, complains, db: Path, tmp_path: Path) -> None:
    file = tmp_path / "one.tg"
    file.write_text("tg 1\ndim n 1..64\ninput x f32[n, 32]\noutput y = softmax(x)\n")
    run = ImplementationRecord("GRAPH_RECIPE", "path 12", "recipe", "12", SIGNATURE.key, SIGNATURE.key,
                               description="its definition by numpy.exp")
    with open_database(db) as store:
        store.add_trace(trace(implementation=run, kind="in_graph", milliseconds=0.5))
    assert [(row["kind"], row["description"]) for row in answer("leaderboard", file, "--at", "n=16", "--db", db)] == [
        ("in_graph", "its definition by numpy.exp"), ("cold", None)]
    assert len(answer("best", file, "--at", "n=16", "--db", db)) == 2
    assert "whole run: its definition by numpy.exp" in ask("best", file, "--at", "n=16", "--db", db).stdout
    shown = ask("leaderboard", file, "--at", "n=4", "--db", db).stdout
    assert "was not timed at n=4; at n=16 it was" in shown and f"fix: tg profile {file} --at n=4" in shown
    complains(("best", "softmax", "--at", "n=4", "--db", db), "--at names dims of a file")


def test_at_given_sizes_a_file_has_the_rows_of_its_ops_by_its_own_dims(ask, answer, db: Path, tmp_path: Path) -> None:
    file = tmp_path / "two.tg"
    file.write_text("tg 1\ndim m 1..64\ndim n 1..64\ninput a f32[m, 32]\ninput x f32[n, 32]\ninput w f32[8, 32]\n"
                    "output y = linear(a, w)\n%0 = softmax(x)\noutput z = rms_norm(%0)\n")
    for verb in ("best", "leaderboard"):
        assert [row["axes"] for row in answer(verb, file, "--at", "m=3,n=16", "--db", db)] == [{"d0": 16}]
    shown = ask("best", file, "--at", "m=16,n=3", "--db", db).stdout
    assert "was not timed at m=16,n=3; at n=16 it was" in shown


def test_a_kernel_that_takes_something_for_granted_says_so_on_the_leaderboard(ask, answer, db: Path) -> None:
    bold = dataclasses.replace(KERNEL, name="bold.softmax", assuming=("no overflow",))
    record = implementation_of(bold)
    with open_database(db) as store:
        store.ensure_implementation(dataclasses.replace(record, description=None))      # as older rows are
    with open_database(db) as store:
        store.add_trace(trace(implementation=record, milliseconds=0.125))
    assert [row["description"] for row in answer("leaderboard", "softmax", "--db", db)] == ["assumes no overflow", None]
    assert "bold.softmax (assumes no overflow)" in ask("best", "softmax", "--db", db).stdout
    path = RunPath("g", {"a": bold.name, "b": "numpy.exp"}, 0.0, False, None)
    assert described(path, {bold.name: bold, KERNEL.name: KERNEL}) == "bold.softmax, numpy.exp (assumes no overflow)"
    part = part_implementation(SIGNATURE, SIGNATURE, [(SIGNATURE.key, KERNEL), (SIGNATURE.key, bold)])
    assert part.description == "assumes no overflow" and implementation_of(KERNEL).description is None


def test_the_only_size_of_a_graph_is_not_said(ask, db: Path) -> None:
    only = signature_of(parse_graph("tg 1\ninput x f32[4, 32]\noutput y = softmax(x)\n").outputs["y"])
    with open_database(db) as store:
        store.ensure_graph(graph_record(only))
        store.add_trace(trace(workload=timed_workload(only, {})))
    shown = ask("best", only.key, "--db", db).stdout
    assert "softmax f32[4, 32] " in shown and "fixed" not in shown and " at " not in shown


def test_a_failure_that_is_filed_for_its_sizes_and_for_all_is_printed_once(ask, answer, db: Path) -> None:
    with open_database(db) as store:
        store.add_traces([trace("INCORRECT_NUMERICAL", timed=timed, log="output y: error 3") for timed in (False, True)])
    shown = ask("failures", "--db", db).stdout
    assert shown.count("output y: error 3") == 1 and "(trace 4 says so for all sizes)" in shown and "library not found" in shown
    assert len(answer("failures", "--db", db)) == 3


def test_history_has_the_failures_and_failures_have_their_first_line(ask, answer, db: Path) -> None:
    rows = answer("history", "numpy.softmax", "--db", db)
    assert [row["status"] for row in rows] == ["RUNTIME_ERROR", "PASSED", "PASSED"]
    assert answer("history", KERNEL.identity, "--limit", 1, "--db", db) == rows[:1]
    shown = ask("history", "numpy.softmax", "--limit", 2, "--db", db).stdout
    assert "at all sizes" in shown and "250.0 µs" in shown and "--limit shows more" in shown
    (failure,) = answer("failures", "--db", db)
    assert (failure["status"], failure["reason"], failure["newest"]) == ("RUNTIME_ERROR", "library not found", True)
    assert "library not found" in ask("failures", "numpy.softmax", "--db", db).stdout


def test_an_infinite_error_is_a_word_in_json(answer, db: Path) -> None:
    with open_database(db) as store:
        store.add_trace(dataclasses.replace(trace("INCORRECT_NUMERICAL"), max_relative_error=math.inf))
    assert answer("failures", "--db", db)[0]["max_relative_error"] == "Infinity"
    assert answer("history", "numpy.softmax", "--db", db)[0]["max_relative_error"] == "Infinity"


def test_history_shows_the_time_over_the_reference_stream(ask, answer, db: Path) -> None:
    def conditions(quiet: bool) -> dict[str, object]:
        return {"over_reference": {"median": 3.41234, "quiet": quiet}, "reference": {"kind": "read"}}

    with open_database(db) as store:
        store.add_traces([trace(conditions=conditions(True)), trace(conditions=conditions(False)),
                          trace(conditions={"over_reference": "3.4", "reference": {"kind": "read"}})])
    foreign, busy, quiet = ask("history", "numpy.softmax", "--limit", 3, "--db", db).stdout.splitlines()[:3]
    assert "× read, busy" in busy and "3.412 × read " in quiet and "× read" not in foreign
    assert "disturbed, 2 × the lowest" in busy, "and which time counts"
    rows = answer("history", "numpy.softmax", "--limit", 3, "--db", db)
    assert [row["conditions"] for row in rows[1:]] == [conditions(False), conditions(True)]
    assert "disturbed" in rows[0]["standing"]


def raised(depth: int) -> str:
    """What Python prints of an exception that was caused by another, from the midst of some calls."""
    def call(left: int) -> None:
        if left:
            call(left - 1)
        try:
            raise KeyError("inner")
        except KeyError as e:
            raise ValueError("no room for 3 rows\n  fix: fewer") from e

    try:
        call(depth)
    except ValueError as e:
        return "".join(traceback.format_exception(e))
    raise AssertionError


def test_of_a_python_traceback_what_was_raised_is_the_reason(ask, answer, db: Path) -> None:
    whole = raised(2)
    assert whole.count("Traceback") == 2
    logs = {
        whole: "ValueError: no room for 3 rows",
        whole[whole.index("direct cause"):][60:]: "ValueError: no room for 3 rows",   # only the end of a log is kept
        f"the worker died\n{whole}": "the worker died",
        "\n\n  first\nsecond\n": "first",
        "Traceback (most recent call last):\n  File \"k.py\", line 1, in f\n": "File \"k.py\", line 1, in f",
        "": "",
    }  # fmt: skip
    with open_database(db) as store:
        store.add_traces([trace("RUNTIME_ERROR", timed=False, log=log) for log in logs])
    found = answer("failures", "--limit", len(logs), "--db", db)
    assert [each["reason"] for each in reversed(found)] == list(logs.values())
    shown = ask("failures", "--db", db).stdout
    assert "          ValueError: no room for 3 rows\n" in shown and "Traceback" not in shown


def test_retry_runs_the_judge_again_and_the_newer_row_speaks(complains, answer, db: Path) -> None:
    key = KERNEL.identity, verify_workload(SIGNATURE).key
    with open_database(db) as store:
        assert queries.latest_traces(store, environment_of("numpy"), verifier=VERIFIER)[key].status == "RUNTIME_ERROR"
    (told,) = answer("retry", "numpy.softmax", "--db", db)
    assert (told["trace_id"], told["before"], told["status"]) == (3, "RUNTIME_ERROR", "PASSED")
    with open_database(db) as store:
        known = queries.latest_traces(store, environment_of("numpy"), verifier=VERIFIER)[key]
        assert (known.status, known.passed, known.refuted) == ("PASSED", True, False)
        assert upkeep.stats(store).rows["benchmark_traces"] == 4
    (failure,) = answer("failures", "--db", db)
    assert failure["newest"] is False  # the old row is there, and no longer the last word
    complains(("retry", 3, "--db", db), "trace 3 was measured again since")
    complains(("retry", 1, "--db", db), "trace 1 was measured again since")


def test_retry_of_a_failure_at_one_size_that_is_one_at_all_sizes_judges_all(answer, db: Path) -> None:
    with open_database(db) as store:
        store.add_traces([trace("RUNTIME_ERROR", timed=False), trace("RUNTIME_ERROR")])
    told = answer("retry", 5, "--db", db)
    assert [(each["trace_id"], bool(each["axes"]), each["status"]) for each in told] == [(4, False, "PASSED"), (5, True, "PASSED")]
    with open_database(db) as store:
        known = queries.latest_traces(store, environment_of("numpy"), verifier=VERIFIER)
        assert known[KERNEL.identity, verify_workload(SIGNATURE).key].passed


def test_retry_compares_again_what_passed_and_a_time_by_its_number(complains, answer, db: Path) -> None:
    other = dataclasses.replace(implementation_of(KERNEL), source_hash=KERNEL.identity[::-1])
    with open_database(db) as store:
        store.add_traces([trace(timed=False), trace(timed=False, implementation=other)])
    (told,) = answer("retry", "numpy.softmax", "--db", db)          # neither its time nor what its code was once
    assert (told["trace_id"], told["before"], told["status"], told["axes"]) == (4, "PASSED", "PASSED", {})
    (told,) = answer("retry", 2, "--db", db)
    assert (told["before"], told["status"], bool(told["axes"])) == ("PASSED", "PASSED", True)
    complains(("retry", 4, "--db", db), "trace 4 was measured again since")
    with open_database(db) as store:
        assert upkeep.stats(store).rows["benchmark_traces"] == 7


def test_retry_of_one_trace_times_it_again_and_refutations_and_other_code_stay(ask, answer, db: Path) -> None:
    other = KERNEL.identity[::-1]
    with open_database(db) as store:
        store.add_traces([
            trace("TIMEOUT"), trace("INCORRECT_SHAPE", timed=False),
            trace("TIMEOUT", implementation=type(implementation_of(KERNEL))("KERNEL", "numpy.rms_norm", "numpy", other)),
        ])  # fmt: skip
    (told,) = answer("retry", 4, "--db", db)
    assert (told["trace_id"], told["status"], bool(told["axes"])) == (4, "PASSED", True)
    (told,) = answer("retry", 5, "--db", db)
    assert told["status"] == "PASSED" and "INCORRECT_SHAPE stays" in told["reason"]
    shown = ask("retry", "numpy.rms_norm", "--db", db)
    assert shown.returncode == 1 and "NOT RETRIED" in shown.stdout and "its source is another one" in shown.stdout


OWN = """
import numpy as np
import tensor_graphs as tg

@tg.kernel("softmax", backend="numpy", name="numpy.stale")
def stale(outs, ins, attrs):
    e = np.exp(ins[0] - ins[0].max(-1, keepdims=True))
    outs[0][...] = e / e.sum(-1, keepdims=True)
"""


def test_retry_of_a_kernel_that_is_not_imported_says_a_command_that_imports_it(ask, db: Path, tmp_path: Path) -> None:
    (tmp_path / "own_kernel.py").write_text(OWN)
    env = environment({"PYTHONPATH": f"{ROOT}:{tmp_path}"})
    known = "import own_kernel; print(own_kernel.stale.identity)"
    identity = subprocess.run([TG[0], "-c", known], env=env, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    own = type(implementation_of(KERNEL))("KERNEL", "numpy.stale", "numpy", identity)
    with open_database(db) as store:
        store.add_trace(trace("TIMEOUT", timed=False, implementation=own))
    shown = ask("retry", "numpy.stale", "--db", db)
    assert shown.returncode == 1
    assert "NOT RETRIED  no kernel is named 'numpy.stale' here; fix: import the module that defines it first: " in shown.stdout
    command = shlex.split(shown.stdout.rpartition("first: ")[2].replace("FILE", str(tmp_path / "own_kernel.py")))
    assert command[0] == "tg"
    again = tg(*command[1:], "--db", db)
    assert again.returncode == 0 and "numpy.stale softmax: TIMEOUT → PASSED" in again.stdout


def test_retry_takes_the_values_that_the_trace_was_measured_with(answer, db: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    save_file({"x": np.linspace(-1, 1, 16 * 32, dtype=np.float32).reshape(16, 32)}, file)
    (leaf,) = SIGNATURE.graph.inputs
    given = ((leaf, read_descriptor(leaf, f"{file}:x")),)
    with open_database(db) as store:
        store.add_trace(trace("TIMEOUT", workload=timed_workload(SIGNATURE, BINDING, given)))
        before = upkeep.stats(store).rows["workloads"]
    (told,) = answer("retry", 4, "--db", db)
    assert told["status"] == "PASSED"
    with open_database(db) as store:
        assert upkeep.stats(store).rows["workloads"] == before           # no other question was answered
        again = queries.latest_traces(store, environment_of("numpy"), "cold", verifier=VERIFIER)
        assert again[KERNEL.identity, timed_workload(SIGNATURE, BINDING, given).key].status == "PASSED"
    file.unlink()
    with open_database(db) as store:
        store.add_trace(trace("TIMEOUT", workload=timed_workload(SIGNATURE, BINDING, given)))
    said = json.loads(tg("db", "retry", 6, "--db", db, "--json").stdout)
    assert said[0]["status"] == "NOT RETRIED" and "x.safetensors" in said[0]["reason"]


@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.sqlite"])
def test_an_export_is_imported_once_and_its_code_waits_for_trust(ask, answer, db: Path, tmp_path: Path, name: str) -> None:
    with open_database(db) as store:
        own = implementation_of(KERNEL)
        foreign = type(own)("KERNEL", "theirs", "numpy", "f" * 64, sources=(SourceRecord("a.py", "1 / 0"),))
        store.add_trace(trace(implementation=foreign))
    file, other = tmp_path / name, tmp_path / "other.db"
    written = answer("export", file, "--db", db)
    assert written["rows"]["benchmark_traces"] == 4 and written["bytes"] == file.stat().st_size
    told = answer("import", file, "--db", other)
    assert told["new"]["benchmark_traces"] == 4
    assert [[each["name"] for each in told[key]] for key in ("untrusted", "installed")] == [["theirs"], ["numpy.softmax"]]
    again = ask("import", file, "--db", other)
    assert again.returncode == 0 and "4 known already" in again.stdout and " 0 new" in again.stdout
    assert [row["implementation_name"] for row in answer("best", "--all", "--db", other)] == ["numpy.softmax"]
    signature = next(each["signature"] for each in told["untrusted"] if each["name"] == "theirs")
    assert answer("trust", signature, "--db", other) == {"trusted": 1}
    assert [row["implementation_name"] for row in answer("best", "--all", "--db", other)] == ["numpy.softmax", "theirs"]
    assert answer("check", "--db", other)["ok"]


def test_what_is_installed_here_is_used_at_once_and_an_import_says_so(ask, answer, db: Path, tmp_path: Path) -> None:
    with open_database(db) as store:
        store.add_trace(trace(timed=False))
    file, other = tmp_path / "rows.jsonl", tmp_path / "other.db"
    assert ask("export", file, "--db", db).returncode == 0
    said = ask("import", file, "--db", other).stdout
    assert "1 implementations are installed here, and are used" in said and "trust" not in said
    (row,) = answer("best", "--db", other)
    assert row["implementation_name"] == "numpy.softmax"
    again = tmp_path / "again.jsonl"
    assert ask("export", again, "--db", other).returncode == 0
    assert again.read_text().splitlines()[1:] == file.read_text().splitlines()[1:]
    assert ask("import", again, "--db", other).stdout.count(" 0 new") == 6  # all tables that have rows


def test_an_export_replaces_nothing_unless_forced_and_never_the_database(ask, answer, complains, db: Path, tmp_path: Path) -> None:
    other, empty = tmp_path / "other.sqlite", tmp_path / "empty.db"
    assert ask("export", other, "--db", db).returncode == 0
    with open_database(empty):
        pass
    complains(("export", other, "--db", empty), "other.sqlite is there already", "--force")
    assert answer("stats", "--db", other)["rows"]["benchmark_traces"] == 3
    for force in ((), ("--force",)):
        complains(("export", other, "--db", other, *force), "is the database itself")
        (tmp_path / "link.sqlite").unlink(missing_ok=True)
        (tmp_path / "link.sqlite").symlink_to(other)
        complains(("export", tmp_path / "link.sqlite", "--db", other, *force), "is the database itself")
    assert ask("export", other, "--force", "--db", empty).returncode == 0
    assert answer("stats", "--db", other)["rows"]["benchmark_traces"] == 0


def test_stats_and_check_name_the_schema_and_what_is_wrong(ask, answer, db: Path) -> None:
    found = answer("stats", "--db", db)
    assert found["location"] == str(db) and found["revision"] and found["rows"]["benchmark_traces"] == 3
    assert ask("stats", "--db", db).stdout.endswith("is sound: tg db check\n")
    with sqlite3.connect(db) as raw:
        raw.execute("UPDATE benchmark_traces SET workload_id = 99 WHERE id = 1")
        raw.execute("UPDATE benchmark_traces SET samples_ms = 'no list' WHERE id = 2")
        raw.execute("DROP INDEX ix_benchmark_traces_history")
    raw.close()
    result = ask("check", "--db", db, "--json")
    assert result.returncode == 1
    problems = ["schema: the index ix_benchmark_traces_history is missing"]
    assert json.loads(result.stdout) == {"ok": False, "problems": problems, "removed": {}}
    with sqlite3.connect(db) as raw:
        raw.execute("CREATE INDEX ix_benchmark_traces_history ON benchmark_traces (id)")
    raw.close()
    result = ask("check", "--db", db)
    assert result.returncode == 1
    assert "row 1 of benchmark_traces points to a row of workloads that is not there" in result.stdout
    assert "benchmark_traces.samples_ms of row 2 holds 'no list', stored as text, and no JSON array" in result.stdout
    assert "fix: tg db check --remove" in result.stdout
    result = ask("check", "--remove", "--db", db)
    assert result.returncode == 0 and "removed: 2 rows of benchmark_traces" in result.stdout
    assert ask("check", "--db", db).stdout == "ok\n"
    assert answer("stats", "--db", db)["rows"]["benchmark_traces"] == 1


def test_mistakes_say_what_and_where_and_the_fix(complains, ask, answer, db: Path, tmp_path: Path) -> None:
    good = tmp_path / "rows.jsonl.gz"
    assert ask("export", good, "--db", db).returncode == 0
    cut, garbage, newer = tmp_path / "cut.jsonl.gz", tmp_path / "garbage", tmp_path / "newer.jsonl"
    cut.write_bytes(good.read_bytes()[:-30])
    garbage.write_bytes(b"\x00\x01garbage")
    newer.write_bytes(gzip.decompress(good.read_bytes()).replace(b'"schema":"00', b'"schema":"99', 1))
    new = tmp_path / "new.db"

    complains(("import", tmp_path / "nothing", "--db", new), "nothing is not there", "fix: a file that tg db export FILE wrote")
    complains(("import", tmp_path, "--db", new), "is a folder", "--format flashinfer-trace")
    assert not new.exists()
    complains(("import", cut, "--db", new), str(cut), "cut", "nothing of it was stored", "fix:")
    complains(("import", garbage, "--db", new), str(garbage), "fix:")
    complains(("import", newer, "--db", new), "newer tensor_graphs", f"99{REVISION[2:]}", "fix:")
    assert not new.exists()                                         # nothing was imported, so none was made
    complains(("stats", "--db", garbage), str(garbage), "fix:")
    complains(("check", "--db", garbage), str(garbage), "fix:")
    complains(("export", tmp_path / "rows.csv", "--db", db), "rows.csv", "*.jsonl.gz")
    complains(("export", tmp_path / "no" / "rows.jsonl.gz", "--db", db), "cannot be written")
    complains(("export", tmp_path / "x", "--format", "csv", "--db", db), "'csv' is no format", "flashinfer-trace")
    complains(("best", "nobody", "--db", db), "'nobody'", "fix:")
    complains(("best", tmp_path / "no.tg", "--db", db), "no.tg cannot be read")
    complains(("history", "nobody", "--db", db), "'nobody'", "fix:")
    complains(("failures", "nobody", "--db", db), "'nobody'", "fix:")
    complains(("retry", "nobody", "--db", db), "'nobody'", "fix:")
    complains(("retry", 99, "--db", db), "no trace 99", "fix: tg db failures")
    complains(("trust", "nobody", "--db", db), "'nobody'", "fix: nothing here waits")
    with open_database(db) as store:
        foreign = type(implementation_of(KERNEL))("KERNEL", "theirs", "numpy", "f" * 64, sources=(SourceRecord("a.py", "1 / 0"),))
        store.ensure_implementation(foreign)
    complains(("trust", "nobody", "--db", db), "'nobody'", "fix: tg db trust NAME", "wait: theirs")


def test_the_first_or_last_word_of_a_name_is_enough_to_trust_it(complains, answer, db: Path) -> None:
    names = ("linear_def637 as 4493c9a21ba7", "softmax_aa as 1111", "softmax_aa as 2222")
    with open_database(db) as store:
        for name in names:
            sources = (SourceRecord("recipe", name, origin="elsewhere"),)
            store.ensure_implementation(ImplementationRecord("KERNEL", name, "recipe", name, sources=sources))
    complains(("trust", "nobody", "--db", db), "'linear_def637 as 4493c9a21ba7', 'softmax_aa as 1111'")
    complains(("trust", "softmax_aa", "--db", db), "may be each of 'softmax_aa as 1111', 'softmax_aa as 2222'", "fix:")
    for asked in ("linear_def637", "1111", names[2]):
        assert answer("trust", asked, "--db", db) == {"trusted": 1}
    complains(("trust", "as", "--db", db), "fix: nothing here waits")


def test_a_refused_import_makes_no_database_and_leaves_one_that_was_there(complains, answer, db: Path, tmp_path: Path) -> None:
    bad, folder = tmp_path / "bad.jsonl", tmp_path / "set"
    assert answer("export", bad, "--db", db)["rows"]["benchmark_traces"] == 3
    bad.write_text(bad.read_text().replace('["benchmark_traces",{', '["benchmark_traces",{"colour":1,', 1))
    (folder / "definitions").mkdir(parents=True)
    (folder / "definitions" / "a.json").write_text("{")
    before = set(tmp_path.iterdir())
    new, empty = tmp_path / "below" / "new.db", tmp_path / "empty.db"
    empty.touch()
    for arguments, said in (((bad,), "'colour'"), ((folder, "--format", "flashinfer-trace"), "a.json")):
        for target in (new, empty):
            complains(("import", *arguments, "--db", target), said)
        complains(("import", *arguments, "--db", db), said)
    assert set(tmp_path.iterdir()) - {empty} == before and empty.stat().st_size == 0
    assert answer("stats", "--db", db)["rows"]["benchmark_traces"] == 3


READING = (
    ("stats",), ("best",), ("best", "softmax"), ("history", "numpy.softmax"), ("failures",), ("check",), ("vacuum",),
    ("trust", "numpy.softmax"), ("retry", "numpy.softmax"), ("drain",), ("export", "rows.jsonl"),
    ("export", "folder", "--format", "flashinfer-trace"),
)  # fmt: skip


@pytest.mark.parametrize("verb", READING, ids=" ".join)
def test_a_verb_that_asks_makes_no_database(complains, tmp_path: Path, monkeypatch, verb: tuple[str, ...]) -> None:
    monkeypatch.chdir(tmp_path)
    mistyped = tmp_path / "folder" / "no.db"
    complains((*verb, "--db", mistyped), f"there is no database {mistyped}", "\n  fix: ")
    complains((*verb, "--db", f"sqlite:///{mistyped}"), f"there is no database {mistyped}")
    complains((*verb, "--db", "sqlite:///"), "sqlite:/// names no file", "\n  fix: ")
    assert not list(tmp_path.iterdir())
    empty = tmp_path / "empty.db"
    empty.touch()
    complains((*verb, "--db", empty), f"the file {empty} is empty, and no database", "\n  fix: ")
    assert empty.stat().st_size == 0


def test_devices_are_shown_without_a_database_and_none_is_made(tmp_path: Path) -> None:
    shown = tg("devices", "--db", tmp_path / "no.db")
    assert shown.returncode == 0 and "nothing is measured yet" in shown.stdout
    assert f"note: there is no database {tmp_path / 'no.db'}" in shown.stderr and not list(tmp_path.iterdir())


def test_every_error_indents_its_fix_by_two() -> None:
    begun = re.compile(r"""(\\n|["'])( *)fix: """)                  # in a text, or where a literal goes on with it
    found = [
        (file.name, each.group(), each[1] == "\\n" or each[2] != "", len(each[2]))
        for file in (ROOT / "tensor_graphs").rglob("*.py")
        for each in begun.finditer(file.read_text(encoding="utf-8"))
    ]
    assert len(found) > 100
    assert not [(name, text) for name, text, on_a_line_of_its_own, spaces in found if on_a_line_of_its_own and spaces != 2]


def test_a_mistake_takes_one_screen_and_no_traceback(db: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"format":'))
    assert_complains(tg("db", "import", tmp_path / "cut.jsonl.gz", "--db", db), "line 1 is where it is cut", "fix:")
    for text in ("", '{"model": 1}', '{\n  "model": 1\n}\n'):
        (tmp_path / "config.json").write_text(text)
        assert_complains(tg("db", "import", tmp_path / "config.json", "--db", db), "no export of a database\n  fix: name a file")
    assert_complains(tg("db", "history", "nobody", "--db", db), "'nobody'", "fix:")
    assert_complains(tg("db", "best", "--limit", 3), "No such option", code=2)


def being_written(file: Path) -> bool:
    """Its tables are there, and another process holds the lock of the next transaction."""
    if not file.exists():
        return False
    raw = sqlite3.connect(file, timeout=0, isolation_level=None)
    try:
        raw.execute("SELECT id FROM benchmark_traces")
    except sqlite3.OperationalError:
        return False
    else:
        try:
            raw.execute("BEGIN IMMEDIATE")
            return False
        except sqlite3.OperationalError as error:
            return "locked" in str(error)
    finally:
        raw.close()


def test_ctrl_c_leaves_no_half_of_an_import(db: Path, tmp_path: Path) -> None:
    with open_database(db) as store:
        store.add_traces(trace(milliseconds=1.0 + n) for n in range(6000))
    file, other = tmp_path / "rows.jsonl", tmp_path / "other.db"
    assert tg("db", "export", file, "--db", db).returncode == 0
    process = subprocess.Popen(
        [*TG, "db", "import", str(file), "--db", str(other)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not being_written(other):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "") and "Traceback" not in err
    assert sum(document(tg("db", "stats", "--db", other, "--json"))["rows"].values()) == 0
    assert document(tg("db", "import", file, "--db", other, "--json"))["new"]["benchmark_traces"] == 6003
    assert document(tg("db", "import", file, "--db", other, "--json"))["new"]["benchmark_traces"] == 0


def test_a_data_set_of_another_project_comes_in_and_goes_out_byte_by_byte(complains, ask, answer, db: Path, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    shutil.copytree(ROOT / "tests/frontends/flashinfer/data_set", folder)
    flag = ("--format", "flashinfer-trace", "--db", db)
    told = answer("import", folder, *flag)
    assert told["files_new"] and told["records"]["trace"] > 0
    again = ask("import", folder, *flag)
    assert again.returncode == 0 and "already there" in again.stdout
    written = answer("export", tmp_path / "out", *flag)
    for name in written["files"]:
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes(), name
    assert len(written["files"]) == len(told["files_new"]) and not written["changed"]
    complains(("export", tmp_path / "out", *flag), f"has {len(written['files'])} of these files already", "--force")
    assert answer("export", tmp_path / "out", "--force", "--dataset", "set", *flag)["files"] == written["files"]
    complains(("export", tmp_path / "new", "--dataset", "nosuch", *flag), "no data set 'nosuch'", "set")
    complains(("export", tmp_path / "rows.jsonl", "--dataset", "set", "--db", db), "--format flashinfer-trace")
    file, other = tmp_path / "rows.jsonl.gz", tmp_path / "other.db"  # and our own form carries the data set along
    assert ask("export", file, "--db", db).returncode == ask("import", file, "--db", other).returncode == 0
    assert ask("export", tmp_path / "there", "--format", "flashinfer-trace", "--db", other).returncode == 0
    for name in written["files"]:
        assert (tmp_path / "there" / name).read_bytes() == (folder / name).read_bytes(), name
    complains(("import", tmp_path / "none", *flag), "is no folder")
    (tmp_path / "empty").mkdir()
    complains(("import", tmp_path / "empty", *flag), "fix:")


def test_drain_measures_what_a_plan_asked_for_and_a_second_drain_finds_nothing(ask, tmp_path: Path) -> None:
    at = tmp_path / "asked.db"
    with open_database(at) as database:
        ask_questions(database, 2)
    said = json.loads(ask("drain", "--db", at, "--json", "--backends", "numpy").stdout)
    assert (said["measured"], said["left"], said["interrupted"]) == (2, 0, False)
    assert "0 measured, 0 failed, 0 known already" in ask("drain", "--db", at, "--backends", "numpy").stdout


WRONG_SOFTMAX = """
import numpy as np
import tensor_graphs as tg

@tg.kernel("softmax", name="numpy.wrong_softmax")
def wrong_softmax(outs, ins, attrs):
    e = np.exp(ins[0] - ins[0].max(attrs["axis"], keepdims=True))
    outs[0][...] = e / e.sum(attrs["axis"], keepdims=True)
    outs[0][:, 4:] = 0
"""


@pytest.mark.processes
def test_the_point_at_which_a_kernel_is_wrong_is_run_again_and_an_edited_kernel_is_right_there(db: Path, tmp_path: Path) -> None:
    module, graph = tmp_path / "wrong_softmax.py", tmp_path / "softmax.tg"
    module.write_text(WRONG_SOFTMAX)
    graph.write_text("tg 1\ninput x f32[3, 8]\noutput y = softmax(x)\n")
    tg("profile", graph, "--kernel", "numpy.wrong_softmax", "--import", module, "--db", db, "--budget", 2)
    failed = json.loads(tg("db", "failures", "numpy.wrong_softmax", "--db", db, "--json").stdout)
    assert "columns from 4 on of 8" in failed[0]["reason"]
    again = tg("db", "replay", failed[0]["trace_id"], "--import", module, "--db", db)
    assert again.returncode == 1 and "from the seed" in again.stdout and "columns from 4 on of 8" in again.stdout
    module.write_text(WRONG_SOFTMAX.replace("outs[0][:, 4:] = 0", ""))
    edited = json.loads(tg("db", "replay", failed[0]["trace_id"], "--import", module, "--db", db, "--json").stdout)
    assert edited["edited"] and edited["outputs"][0]["right"]


def test_a_trace_without_a_failing_point_is_not_run_again(db: Path) -> None:
    assert_complains(tg("db", "replay", 1, "--db", db), "trace 1 passed, so there is no point at which", "fix: a trace that")
    assert_complains(tg("db", "replay", 999, "--db", db), "has no trace 999", "fix: tg db failures")


def test_what_failed_without_a_number_is_not_run_again_and_says_what_is_done_instead(complains, db: Path) -> None:
    with open_database(db) as store:
        store.add_traces([trace("INCORRECT_SHAPE", timed=False, log="at n=64 it wrote outside"), trace("INCORRECT_NUMERICAL")])
    complains(("replay", 4, "--db", db), "it is INCORRECT_SHAPE: at n=64 it wrote outside", "fix: in a program of yours")
    complains(("replay", 5, "--db", db), "the trace says no point", "fix: retry it (tg db retry TRACE)")


def test_a_kernel_that_is_right_in_one_call_is_told_what_one_call_cannot_show(
    ask, db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    point = Point((("n", 4),), 3)
    points = {
        "new values": dataclasses.replace(point, like=2), "beside": dataclasses.replace(point, beside=True), "before it": point,
        "(unaligned)": dataclasses.replace(point, form="unaligned"),
    }  # fmt: skip
    with open_database(db) as store:
        store.add_traces([trace("INCORRECT_NUMERICAL", timed=False, conditions=kept(SIGNATURE.graph, p)) for p in points.values()])
    for number, words in enumerate(points, 4):
        shown = ask("replay", number, "--db", db)
        assert shown.returncode == 0 and words in shown.stdout.partition("output y0")[2] and "fix: " in shown.stdout
