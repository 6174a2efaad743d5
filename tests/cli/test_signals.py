"""Ctrl-C and a closed pipe end a command quietly, and what was measured before stays."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

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
    graph.write_text("tg 1\ndim n 1..512\ninput x f32[n, 640]\noutput y = softmax(x)\n")
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
    kept = traces(db)
    assert kept >= 2
    assert document(tg("db", "check", "--db", db, "--json"))["ok"]
    rest = document(tg(*arguments, "--budget", 100, "--json"))
    assert rest["already_known"] >= 1 and rest["left"] == 0 and not rest["interrupted"]
    assert traces(db) >= kept + rest["measured"]


def test_ctrl_c_before_anything_is_measured_is_quiet_too(tmp_path: Path) -> None:
    fifo = tmp_path / "never.tg"
    os.mkfifo(fifo)  # the command waits for a text that never comes
    process = subprocess.Popen(
        [*TG, "profile", str(fifo)], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with open(fifo, "wb"):  # opens when the command has opened its end
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
