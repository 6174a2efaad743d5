"""Whatever a candidate says or leaves, it gets a row of its own, and the judge goes on to the next kernel."""

from __future__ import annotations

import gc
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tensor_graphs.kernels.kernel_origin import out_of_reach
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.measure import judge as judging
from tensor_graphs.measure.isolation.replies import MOST_TEXT, ProtocolError, Reply, clean, parse, read
from tensor_graphs.measure.isolation.signed_frames import KEY_BYTES, Channel
from tensor_graphs.measure.isolation.worker import run_job
from tensor_graphs.measure.isolation.worker_process import WorkerProcess
from tensor_graphs.measure.judge import Judge
from tensor_graphs.measure.timing import bench
from tensor_graphs.records import queries
from tensor_graphs.records.database import Database, open_database
from tests.measure.malformed_kernels import MALFORMED
from tests.measure.wrong_kernels import BY_NAME, NODES, Candidate

RELU, SOFTMAX = signature_of(NODES["relu"]), signature_of(NODES["softmax"])
OURS = kernel_named("numpy.softmax")
SIZES = {"n": 20}
FAILED = ("RUNTIME_ERROR", "TIMEOUT", "INCORRECT_SHAPE", "INCORRECT_DTYPE", "INCORRECT_NUMERICAL", "MUTATED_INPUT", "IMPLAUSIBLE")

Words = dict[str, Any]
Change = Callable[[Words], Any]
"""what a worker would say -> what is said: a word, several, bytes as they are, or None for nothing"""


class Stub(WorkerProcess):
    """A worker in a thread of this process, that runs what it is asked and says something else."""

    change: Change = staticmethod(lambda said: said)
    """of each word that a worker says"""

    on_job: Callable[[int], None] = staticmethod(lambda outputs: None)
    """is called with the file of outputs before the job's last word"""

    def ready(self) -> None:
        self.leave()
        key = os.urandom(KEY_BYTES)
        mine, theirs = socket.socketpair()
        self._channel, self.pid = Channel(mine, key, judge=True), os.getpid()
        self._thread = threading.Thread(target=self._work, args=(theirs, key), daemon=True)
        self._thread.start()

    def _work(self, sock: socket.socket, key: bytes) -> None:
        with suppress(OSError, KeyError), sock:                     # the judge has had enough
            channel = _Speaking(sock, key, self)
            job = channel.receive()
            hooks, gc.callbacks[:] = gc.callbacks[:], []            # hypothesis has one; a worker of its own has none
            try:
                reply = run_job(job, channel, list, self._outputs_end)
            finally:
                gc.callbacks[:] = hooks
            self.on_job(self._outputs_end)
            channel.send(reply)
            sock.recv(1)

    def _ask(self, what: str) -> dict[str, Any]:
        return {"alive": True, "status": None, "left": 0}

    def leave(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
            self._thread.join(10.0)                                 # what it adds to the outputs later would be the next job's

    kill = leave


class _Speaking(Channel):
    def __init__(self, sock: socket.socket, key: bytes, stub: Stub) -> None:
        super().__init__(sock, key, judge=False)
        self._stub, self._honest = stub, self._pack

    def send(self, value: Words) -> None:
        said = self._stub.change(value)
        for each in said if isinstance(said, list) else [said]:
            if isinstance(each, bytes):
                self._pack = lambda value: value
            if each is not None:
                super().send(each)
            self._pack = self._honest


# ---- what is said ----


def instead(mark: str, said: Any) -> Change:
    """This in the place of a word (""; the last)."""
    return lambda value: said if value.get("mark", "") == mark else value


def with_field(mark: str, name: str, to: Any) -> Change:
    """The word with another value of a field: `to`, or what it makes of the value."""
    return lambda value: {**value, name: to(value[name]) if callable(to) else to} if value.get("mark", "") == mark else value


def without(mark: str, name: str) -> Change:
    return lambda value: {n: v for n, v in value.items() if n != name} if value.get("mark", "") == mark else value


def first(to: Any) -> Callable[[list[Any]], list[Any]]:
    return lambda values: [to, *values[1:]]


def told(**changed: Any) -> Change:
    """Of the first output that is told of."""
    return with_field("shown", "points", lambda points: [{**points[0], **changed}, *points[1:]])


RAW = {
    "nothing": b"", "no JSON": b"{'status': 1}", "half a reply": b'{"status": "RA', "two replies": b'{"status": "RAN"}{}',
    "no UTF-8": b'{"status": "\xff\xfe"}', "NaN": b'{"status": NaN}', "infinity": b'{"mark": "shown", "points": -Infinity}',
    "nested lists": b"[" * 100_000, "nested objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "a number of 5000 digits": b'{"status": ' + b"9" * 5000 + b"}", "a number of 4000 digits": b'{"status": ' + b"9" * 4000 + b"}",
    "a key twice": b'{"status": "RUNTIME_ERROR", "status": "RAN"}', "many lists": b"[" + b"[]," * 200_000 + b"0]",
    "many numbers": b"[" + b"1," * 600_000 + b"0]", "17 megabytes": b'{"log": "' + b"x" * (17 << 20) + b'"}',
    "a list": b"[1, 2]", "a text": b'"RAN"', "a number": b"7", "null": b"null", "an empty object": b"{}",
    "a status that is a list": b'{"status": ["RAN"]}', "a status that is true": b'{"status": true}',
    "a mark that is an object": b'{"mark": {}}', "half a pair": b'{"status": "\\ud800"}', "a NUL in a key": b'{"status\\u0000": 1}',
}

UNTIMED: dict[str, Change] = {
    **{f"says {name} first": instead("loaded", data) for name, data in RAW.items()},
    **{f"says {name} last": instead("", data) for name, data in list(RAW.items())[::4]},
    "says that it passed": instead("", {"status": "PASSED"}),
    "says that it timed out": instead("", {"status": "TIMEOUT", "log": ""}),
    "says that it is ready": instead("", {"status": "READY"}),
    "says that inputs have changed": instead("", {"status": "INPUT", "log": "the file has changed"}),
    "says that it is another kernel": instead("", {"status": "OTHER", "log": "another"}),
    "says before it is loaded that it is another kernel": instead("loaded", {"status": "OTHER", "log": "another"}),
    "says that a path was wrong": instead("", {"status": "INCORRECT_NUMERICAL", "log": "", "path": 7}),
    "says how it went before it has run": instead("loaded", {"status": "RAN", "points": []}),
    "has a log that is a list": instead("", {"status": "RUNTIME_ERROR", "log": ["a"]}),
    "has a field that nobody knows": instead("", {"status": "RAN", "verdict": "PASSED"}),
    "has an outlandish log": instead("", {"status": "RUNTIME_ERROR", "log": "\x1b[2J\x00\ud800\u202e" * 100_000}),
    "is loaded twice": lambda said: [said, said] if said.get("mark") == "loaded" else said,
    "shows twice": lambda said: [said, said] if said.get("mark") == "shown" else said,
    "shows nothing": instead("shown", None),
    "shows before it is loaded": lambda said: None if said.get("mark") == "loaded" else said,
    "keeps what was not timed": instead("shown", {"mark": "kept", "runs": [1], "salts": [1]}),
    "begins a block though nothing is timed": lambda said: [said, {"mark": "begin"}] if said.get("mark") == "shown" else said,
    "is at a point that nobody asked for": with_field("at", "number", 10_000),
    "is at a point without a number": with_field("at", "number", True),
    "is at a point when all were shown": lambda said: [said, {"mark": "at", "number": 0, "many": False}]
                                         if said.get("mark") == "shown" else said,
    "says a word that is none": instead("shown", {"mark": "shewn", "points": []}),
    "shows one point less": with_field("shown", "points", lambda points: points[1:]),
    "shows no list": with_field("shown", "points", {}),
    "shows points that are lists": with_field("shown", "points", lambda points: [[]] * len(points)),
    "names no output": told(shapes={}),
    "names another output": told(shapes={"z": [20, 24]}),
    "tells a shape as a text": told(shapes={"y0": "20x24"}),
    "tells a shape of digits": told(shapes={"y0": ["20", "24"]}),
    "tells a shape of truths": told(shapes={"y0": [True, 24]}),
    "tells a negative shape": told(shapes={"y0": [-1, 24]}),
    "tells a huge shape": told(shapes={"y0": [1 << 40, 1 << 40]}),
    "tells a shape beyond all memory": told(shapes={"y0": [10 ** 400]}),
    "tells a rank of a thousand": told(shapes={"y0": [1] * 1000}),
    "tells a fractional shape": told(shapes={"y0": [20.0, 24]}),
    "tells a smaller shape": told(shapes={"y0": [1, 1]}),
    "says where it wrote as a text": told(outside="everywhere"),
    "says that it wrote at a thousand places": told(outside=["here"] * 1000),
    "says that an operand changed as 0": told(mutated=0),
    "says nothing of changed operands": with_field("shown", "points", lambda points: [{"shapes": points[0]["shapes"]}]),
}

TIMED: dict[str, Change] = {
    **{f"{name} of {field}": with_field("end", field, first(value)) for field, name, value in [
        ("whole", "a negative time", -1.0), ("whole", "no time", 0.0), ("whole", "an age", 1e300), ("calls", "a text", "1.0"),
        ("calls", "a truth", True), ("busy", "null", None), ("reference", "no time", 0), ("switches", "a huge number", 10 ** 400),
        ("waits", "less than none", -1e-3)]},
    "ends a block of an unknown name": with_field("end", "name", "warm"),
    "ends a block without runs": with_field("end", "whole", []),
    "ends a block of a list of names": with_field("end", "name", ["cold"]),
    "ends a block without its walk": without("end", "walk"),
    "ends a block whose runs were counted before": with_field("end", "first", 3),
    "ends a block whose first run is a fraction": with_field("end", "first", 0.0),
    "ends a block that it has not begun": instead("begin", {"mark": "returned", "digests": []}),
    "begins a block in a block": lambda said: [said, said] if said.get("mark") == "begin" else said,
    "returns digests that are none": with_field("returned", "digests", lambda told: [[run, "?"] for run, _ in told]),
    "returns digests of runs that were not": with_field("returned", "digests", lambda told: [[9_999, told[0][1]]]),
    "returns the digest of a run twice": with_field("returned", "digests", lambda told: [told[0], *told]),
    "returns nothing": instead("returned", None),
    "keeps nothing": instead("kept", {"mark": "kept", "runs": [], "salts": []}),
    "keeps runs that were not": with_field("kept", "runs", lambda runs: [run + 10_000 for run in runs]),
    "keeps all runs but one": lambda said: ({**said, "runs": said["runs"][1:], "salts": said["salts"][1:]}
                                            if said.get("mark") == "kept" else said),
    "keeps a run twice": with_field("kept", "runs", lambda runs: [runs[0]] * len(runs)),
    "keeps runs without what was drawn": with_field("kept", "salts", []),
    "draws what is negative": with_field("kept", "salts", first(-1)),
    "never says what it has kept": lambda said: {"status": "RAN", "points": []} if said.get("mark") == "kept" else said,
    "tells of one timed output less": with_field("", "points", lambda points: points[1:]),
}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with open_database(tmp_path_factory.mktemp("malformed") / "bench.db") as made:
        yield made


@pytest.fixture(scope="module")
def judge(database: Database) -> Iterator[Judge]:
    """One whose worker is a stub."""
    with Judge(database, timeout=20.0) as made, pytest.MonkeyPatch.context() as patch:
        made.worker.close()
        made.worker = Stub(20.0)
        patch.setattr(bench, "QUIET_SECONDS", 0.012)
        patch.setattr(bench, "BUSY_SHARE", 100.0)                   # what works here is this process
        patch.setattr(judging, "AGAIN", ())
        yield made


def one_row(judge: Judge, change: Change, *, timed: bool) -> None:
    """What is said becomes a row, which is a failure; an honest worker's kernel then passes."""
    assert isinstance(judge.worker, Stub)
    judge.worker.change = change
    try:
        verdict = judge.examine(OURS, SOFTMAX, SIZES, time_at=SIZES if timed else None, budget=0.0, verify=not timed)
    finally:
        judge.worker.change = lambda said: said
    row = judge.record(OURS, SOFTMAX, verdict, SIZES if timed else None)
    assert row.status in FAILED, verdict
    known = queries.verified(judge.database, OURS.identity, row.workload, row.environment)
    assert known.statuses[row.status] >= 1
    assert verdict.log and clean(verdict.log, 1 << 20) == verdict.log and len(verdict.log) <= MOST_TEXT
    assert judge.examine(OURS, SOFTMAX, SIZES).status == "PASSED"


@pytest.mark.parametrize("name", UNTIMED)
def test_a_malformed_reply_is_a_row_and_the_judge_goes_on(judge: Judge, name: str) -> None:
    one_row(judge, UNTIMED[name], timed=False)


@pytest.mark.parametrize("name", TIMED)
def test_a_malformed_claim_about_times_is_a_row_and_the_judge_goes_on(judge: Judge, name: str) -> None:
    one_row(judge, TIMED[name], timed=True)


FILES: dict[str, Callable[[int], None]] = {
    "cuts the outputs to nothing": lambda file: os.ftruncate(file, 0),
    "cuts an output in half": lambda file: os.ftruncate(file, 30),
    "makes a hole of a terabyte": lambda file: (os.ftruncate(file, 0), os.ftruncate(file, 1 << 40))[0],
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_outputs_that_was_changed_is_a_row(judge: Judge, name: str) -> None:
    """Compared only when all is said, as those of timed runs are."""
    assert isinstance(judge.worker, Stub)
    judge.worker.on_job = FILES[name]
    try:
        verdict = judge.examine(OURS, SOFTMAX, SIZES, time_at=SIZES, budget=0.0)
    finally:
        judge.worker.on_job = lambda outputs: None
    assert verdict.status in ("INCORRECT_DTYPE", "INCORRECT_NUMERICAL"), verdict
    assert judge.record(OURS, SOFTMAX, verdict, SIZES).status == verdict.status
    assert judge.examine(OURS, SOFTMAX, SIZES).status == "PASSED"


def test_the_stub_is_an_honest_worker_where_it_changes_nothing(judge: Judge) -> None:
    """The control: else every case here would fail for another reason."""
    verdict = judge.examine(OURS, SOFTMAX, SIZES, time_at=SIZES, budget=0.0)
    assert verdict.status in ("PASSED", "IMPLAUSIBLE"), verdict     # the last: beside others, in blocks of 10 ms, measured once
    assert len(UNTIMED) + len(TIMED) + len(FILES) + len(MALFORMED) >= 60 <= len(UNTIMED) + len(TIMED)


# ---- what a real worker's candidate does ----


@pytest.fixture(scope="module")
def real(database: Database) -> Iterator[Judge]:
    with Judge(database, timeout=5.0) as made:
        yield made


@pytest.mark.parametrize("candidate", MALFORMED, ids=lambda c: c.name)
def test_a_kernel_that_breaks_what_it_shares_with_its_worker_is_a_row_and_the_next_one_passes(real: Judge,
                                                                                            candidate: Candidate) -> None:
    real.worker.timeout = candidate.timeout if "TIMEOUT" not in candidate.status else 1.5
    verdict = real.examine(candidate.kernel, RELU, SIZES)
    row = real.record(candidate.kernel, RELU, verdict, None)
    assert row.status in candidate.status.split("|"), verdict
    assert clean(verdict.log, 1 << 20) == verdict.log and len(verdict.log) <= MOST_TEXT
    real.worker.timeout = 30.0
    assert real.examine(BY_NAME["trial.right_in_place"].kernel, RELU, SIZES).status == "PASSED"
    link = Path(real.worker.folder.name).parent / "tensor_graphs_trial_link_target"
    if link.exists():
        assert (link / "kept").read_text() == "kept"


@pytest.mark.parametrize("changed", [{"name": 7}, {"source": "half a pair: \ud800"}, {"module": None}, {"in_place": 1},
                                     {"toolchain": "\0"}], ids=str)
def test_a_kernel_that_no_row_can_name_is_asked_nothing(judge: Judge, changed: Mapping[str, Any]) -> None:
    assert "have to be texts" in str(out_of_reach(replace(OURS, **changed)))


# ---- the parser alone ----


def test_what_a_worker_says_is_read_as_it_was_meant() -> None:
    assert parse(read(b'{"status": "READY"}')) == Reply("READY")
    assert parse({"status": "RUNTIME_ERROR", "log": "a\tb\r\nc\x07"}) == Reply("RUNTIME_ERROR", "a\tb\nc\N{REPLACEMENT CHARACTER}")


@pytest.mark.parametrize("around", [31e-6, 1.0, -1e-6, True, "x", [1e-6]], ids=str)
def test_what_the_host_is_said_to_do_around_a_device_is_a_part_of_every_run(around: Any) -> None:
    path = {"whole": [40e-6, 30e-6], "sums": [40e-6, 30e-6], "steps": [], "parts": [], "quiet": True, "error": 0.0}
    for right in (None, 0.0, 30e-6):
        told = parse({"status": "RAN", "paths": [{**path, "around": right}]})
        assert isinstance(told, Reply) and told.paths[0].around == right
    with pytest.raises(ProtocolError):
        parse({"status": "RAN", "paths": [{**path, "around": around}]})


@pytest.mark.parametrize("name", RAW)
def test_what_is_no_reply_is_refused_by_its_parser_alone(name: str) -> None:
    with pytest.raises(ProtocolError):
        parse(read(RAW[name]))
