"""Ctrl-C and a closed pipe end a command quietly, and what was measured before stays."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.cli.command import TG, document, environment, tg


def traces(file: Path) -> int:
    if not file.exists():
        return 0
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as connection:
        try:
            return int(connection.execute("SELECT count(*) FROM benchmark_traces").fetchone()[0])
        except sqlite3.OperationalError:  # the table is not there yet
            return 0


def test_ctrl_c_while_profiling_keeps_every_row_and_the_next_call_goes_on(tmp_path: Path) -> None:
    db, graph = tmp_path / "own.db", tmp_path / "softmax.tg"
    graph.write_text("tg 1\ndim n 1..16\ninput x f32[n, 64]\noutput y = softmax(x)\n")
    arguments = ("profile", graph, "--db", db, "--backends", "numpy")
    process = subprocess.Popen(
        [*TG, *map(str, arguments), "--budget", "100"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while traces(db) < 2:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, (out, err)
    assert "Traceback" not in err and " left in " in out
    assert out.splitlines()[-1].startswith("stopped; ") and out.endswith("the same command goes on from there\n")
    kept = traces(db)
    assert kept >= 2
    assert document(tg("db", "check", "--db", db, "--json"))["ok"]
    rest = document(tg(*arguments, "--budget", 100, "--json"))
    assert rest["already_known"] + rest["again"] >= 1 and rest["left"] == 0 and not rest["interrupted"]    # known, or in doubt
    assert traces(db) >= kept + rest["measured"]


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
def test_a_second_and_third_ctrl_c_do_not_cut_the_end_short(tmp_path: Path, options: tuple[str, ...]) -> None:
    db, graph = tmp_path / "own.db", tmp_path / "softmax.tg"
    graph.write_text("tg 1\ndim n 1..16\ninput x f32[n, 64]\noutput y = softmax(x)\n")
    process = subprocess.Popen(
        [*TG, "profile", str(graph), "--db", str(db), "--backends", "numpy", "--budget", "100", *options],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while traces(db) < 1:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.02)
    for _ in range(3):
        if process.poll() is None:
            os.kill(process.pid, signal.SIGINT)
        time.sleep(0.03)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130 and [line[:16] for line in err.splitlines()] == ["note: takes up t"]
    assert json.loads(out)["interrupted"] if options else " left in " in out and "\nstopped; " in out


@pytest.mark.parametrize(("raised", "told"), [("KeyboardInterrupt", False), ("ValueError", True)])
def test_a_ctrl_c_that_meets_a_connection_on_its_way_back_leaves_no_traceback(raised: str, told: bool) -> None:
    program = textwrap.dedent(f"""
        from sqlalchemy import create_engine, event
        from tensor_graphs.cli.main import common

        common()
        engine = create_engine("sqlite://")

        @event.listens_for(engine, "reset")
        def interrupted(*given):
            raise {raised}

        try:
            engine.connect().close()
        except KeyboardInterrupt:
            print("heard")
    """)
    ended = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True,
                           timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, "" if told else "heard\n"), ended.stderr
    assert ("Traceback" in ended.stderr) == told


@pytest.mark.parametrize(("ends", "rows", "code"), [(signal.SIGINT, 0, 130), (signal.SIGTERM, 1, 143)], ids=["ctrl-c", "ended"])
def test_a_profile_that_is_ended_early_or_from_outside_says_so(tmp_path: Path, ends: signal.Signals, rows: int, code: int) -> None:
    db, graph = tmp_path / "own.db", tmp_path / "softmax.tg"
    graph.write_text("tg 1\ndim n 1..16\ninput x f32[n, 64]\noutput y = softmax(x)\n")
    process = subprocess.Popen([*TG, "profile", str(graph), "--db", str(db), "--backends", "numpy", "--budget", "100"],
                               env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not db.exists() or traces(db) < rows:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.005)
    os.kill(process.pid, ends)
    out, err = process.communicate(timeout=30)
    assert process.returncode == code, (out, err)
    assert "Traceback" not in err and ("stopped; all that was measured is stored" in out or err == "error: stopped\n")
    assert traces(db) >= rows and (rows == 0 or document(tg("db", "check", "--db", db, "--json"))["ok"])


@pytest.mark.parametrize("module", ["numpy", "typer", "sqlalchemy"])
def test_ctrl_c_while_the_command_is_being_imported_is_one_line(tmp_path: Path, module: str) -> None:
    (tmp_path / "g.tg").write_text("tg 1\ninput x f32[2]\noutput y = exp(x)\n")
    code = f"""
import os, signal, sys
sys.argv = ["tg", "profile", {str(tmp_path / "g.tg")!r}, "--json"]
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from tensor_graphs.cli.main import main
main()
"""
    ended = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "error: stopped\n")


def test_an_interrupt_inside_of_an_eval_ends_with_the_code_for_it_too() -> None:
    code = """
import os, signal, sys
from tensor_graphs.cli import ctrl_c
ctrl_c.while_running()
try:
    eval("os.kill(os.getpid(), signal.SIGINT) or [i for i in range(10**7)]")
except KeyboardInterrupt:
    ctrl_c.leave(130)
"""
    assert subprocess.run([sys.executable, "-c", code], env=environment(), timeout=60, check=False).returncode == 130


def heard(prelude: str, body: str) -> subprocess.CompletedProcess[str]:
    """A program whose body is interrupted; it says so and ends in order, or sleeps."""
    program = f"""
import os, signal, time, weakref
from tensor_graphs.cli import ctrl_c
{prelude}
ctrl_c.while_running()
try:
{textwrap.indent(body, "    ")}
    time.sleep(30)
except KeyboardInterrupt:
    print("heard", flush=True)
    ctrl_c.leave(130)
"""
    return subprocess.run([sys.executable, "-c", program], check=False, env=environment(), capture_output=True, text=True,
                          timeout=20)


@pytest.mark.parametrize("ends", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_comes_while_an_object_is_cleared_up_is_not_lost(ends: signal.Signals) -> None:
    """Python discards what is raised there. Here it comes there twice before anybody can hear of it."""
    done = heard(f"""
class Value:
    def __del__(self):
        os.kill(os.getpid(), {int(ends)})
        time.sleep(0.05)

def callback(_):
    time.sleep(0.1)
""", "value = Value()\nkept = weakref.ref(value, callback)\ndel value")
    assert (done.returncode, done.stdout, done.stderr) == (128 + ends, "heard\n", "")


def test_an_interrupt_that_comes_while_python_tells_of_what_it_discards_is_not_lost() -> None:
    done = heard("""
class Failure(Exception):
    def __str__(self):
        os.kill(os.getpid(), signal.SIGINT)
        return "failed"

class Value:
    def __del__(self):
        raise Failure
""", "value = Value()\ndel value")
    assert (done.returncode, done.stdout) == (130, "heard\n")
    assert done.stderr.endswith("Failure: failed\n") and "KeyboardInterrupt" not in done.stderr


def test_a_program_that_imports_the_package_keeps_its_own_ctrl_c() -> None:
    code = "import signal, tensor_graphs; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    assert subprocess.run([sys.executable, "-c", code], env=environment(), timeout=60, check=False).returncode == 0


def test_ctrl_c_before_anything_is_measured_is_quiet_too(tmp_path: Path) -> None:
    fifo = tmp_path / "never.tg"
    os.mkfifo(fifo)  # the command waits for a text that never comes
    process = subprocess.Popen(
        [*TG, "profile", str(fifo)], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with open(fifo, "wb"):  # opens when the command has opened its end
        time.sleep(0.5)  # between its last look at signals and its read Python hears none until the read ends
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "") and "Traceback" not in err


def test_a_reader_that_has_seen_enough_hears_no_complaint() -> None:
    process = subprocess.Popen(
        [*TG, "show", "gemma-3-270m"], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    first = process.stdout.readline()
    process.stdout.close()
    assert first == "tg 1\n" and process.stderr.read() == ""
    assert process.wait(timeout=30) == 1
