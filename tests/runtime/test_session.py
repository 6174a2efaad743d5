"""runtime/session.py: states live from run to run, one session at a time, and come and go as snapshots."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tensor_graphs as tg
from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.language.errors import ShapeError
from tensor_graphs.language.text import parse_graph
from tensor_graphs.runtime.errors import RunError
from tensor_graphs.runtime.session import Session, Transcript
from tests.plans import compiled_of

BACKENDS = [("numpy",), ("torch", "numpy"), ("c", "numpy")]


def counter() -> tg.Graph:
    """Two states: one adds up its inputs, one holds the last input."""
    s, last, x = tg.state("s", (3,)), tg.state("last", (3,)), tg.input("x", (3,))
    return tg.graph({"y": s.read() + x, "before": last.read()}, {s: s.read() + x, last: x})


ONES = np.ones(3, np.float32)


@pytest.mark.parametrize("backends", BACKENDS, ids="+".join)
def test_states_live_from_run_to_run(backends: tuple[str, ...]) -> None:
    compiled = compiled_of(counter(), backends=backends)
    session = compiled.session()
    for k in range(1, 5):
        out = compiled.run({"x": ONES * k}, session=session)
        assert out["y"].tolist() == [k * (k + 1) / 2] * 3 and out["before"].tolist() == [k - 1] * 3
    assert session["s"].tolist() == [10, 10, 10] and session["last"].tolist() == [4, 4, 4]


@pytest.mark.parametrize("copied", [lambda s: pickle.loads(pickle.dumps(s)), copy.deepcopy, copy.copy],
                         ids=["pickle", "deep", "copy"])
def test_a_session_that_is_pickled_or_copied_goes_on_by_itself(copied: Callable[[Session], Session]) -> None:
    compiled = compiled_of(counter())
    session = compiled.session()
    compiled.run({"x": ONES}, session=session)
    session.transcript = Transcript([2, 9], [10])
    other = copied(session)
    assert other.transcript == session.transcript and other.transcript is not session.transcript
    compiled.run({"x": ONES * 2}, session=other)
    assert session["s"].tolist() == [1, 1, 1] and other["s"].tolist() == [3, 3, 3] and other["last"].tolist() == [2, 2, 2]


def test_an_output_is_not_the_states_memory() -> None:
    compiled = compiled_of(counter())
    session = compiled.session()
    first = compiled.run({"x": ONES}, session=session)["y"]
    compiled.run({"x": ONES}, session=session)
    assert first.tolist() == [1, 1, 1]


def test_reset_puts_zeros_where_the_states_are() -> None:
    compiled = compiled_of(counter())
    session = compiled.session()
    view = session["s"]
    compiled.run({"x": ONES}, session=session)
    session.reset()
    assert view.tolist() == [0, 0, 0]
    assert compiled.run({"x": ONES}, session=session)["y"].tolist() == [1, 1, 1]


def test_a_snapshot_is_a_copy_that_can_be_restored() -> None:
    compiled = compiled_of(counter())
    session, other = compiled.session(), compiled.session()
    compiled.run({"x": ONES}, session=session)
    saved = session.snapshot()
    compiled.run({"x": ONES}, session=session)
    assert saved["s"].tolist() == [1, 1, 1]
    session.restore(saved)
    other.restore(saved)
    for each in (session, other):
        assert compiled.run({"x": ONES}, session=each)["y"].tolist() == [2, 2, 2]
    assert saved["s"].tolist() == [1, 1, 1]


def test_a_state_is_set_from_arrays_tensors_and_lists() -> None:
    session = compiled_of(counter()).session()
    session["s"] = [1, 2, 3]
    assert session["s"].tolist() == [1, 2, 3]
    session["s"] = torch.tensor([4.0, 5.0, 6.0])
    session["last"] = session["s"]
    assert session["last"].tolist() == [4, 5, 6]
    session["s"] = session["s"][::-1]
    assert session["s"].tolist() == [6, 5, 4]
    with pytest.raises(ValueError, match="read-only"):
        session["s"][0] = 1.0


def test_what_does_not_fit_is_refused_and_nothing_changes() -> None:
    session = compiled_of(counter()).session()
    for act, text in (
            (lambda: session["t"], "no state is named 't'; there are s, last"),
            (lambda: session.restore(None), "states are given by name, this is a NoneType\n  fix: restore(session.snapshot())"),
            (lambda: session.restore({"s": ONES, "t": ONES}), "no state is named 't'; there are s, last"),
            (lambda: session.restore({"s": ONES, "last": np.ones(4, np.float32)}),
             "state 'last' is f32[3], the array has shape (4,)\n  fix: an array of shape (3,)"),
            (lambda: session.restore({"s": ONES, "last": np.ones(3)}),
             "state 'last' is f32[3], the array holds float64\n  fix: array.astype('float32')")):
        with pytest.raises(RunError) as caught:
            act()
        assert str(caught.value) == text
        assert session["s"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("backends", BACKENDS, ids="+".join)
def test_sessions_in_threads_do_not_mix(backends: tuple[str, ...]) -> None:
    compiled = compiled_of(counter(), backends=backends)
    sessions = [compiled.session() for _ in range(4)]

    def work(k: int) -> None:
        for _ in range(50):
            compiled.run({"x": ONES * (k + 1)}, session=sessions[k])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [s["s"].tolist() for s in sessions] == [[50.0 * (k + 1)] * 3 for k in range(4)]


def test_runs_on_one_session_take_turns() -> None:
    compiled = compiled_of(counter())
    session = compiled.session()
    seen: list[float] = []

    def work() -> None:
        for _ in range(50):
            seen.append(float(compiled.run({"x": ONES}, session=session)["y"][0]))
            shot = session.snapshot()["s"]
            assert (shot == shot[0]).all()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(seen) == list(range(1, 201))


def test_a_turn_is_waited_for_by_other_threads_and_refused_where_waiting_might_not_end() -> None:
    session, order = compiled_of(counter()).session(), []
    begun = threading.Event()

    def other() -> None:
        begun.set()
        with session.turn():
            order.append("other")

    thread = threading.Thread(target=other)
    with session.turn():
        thread.start()
        begun.wait()
        with pytest.raises(RunError, match="another generate call is running on these states\n  fix: "):
            session.reset()
        order.append("first")
    thread.join()
    assert order == ["first", "other"]
    with session.turn(left_open=True):
        for act in session.reset, lambda: session.restore({"s": ONES}), lambda: session.turn().__enter__():
            with pytest.raises(RunError, match="a stream is open on these states"):
                act()
        assert session.snapshot()["s"].tolist() == [0, 0, 0]
    session.reset()


@pytest.mark.parametrize("length", [-1, 5, 1000, 1.5, True, None, "2"], ids=str)
def test_a_transcript_goes_back_to_a_number_of_ids_that_it_has(length: Any) -> None:
    said = Transcript([2, 9, 10], [4])
    with pytest.raises(ArgumentError, match=r"length is .*\n  fix: how many ids of the 4 stay, from 0 to 4"):
        said.rewind(length)
    assert said == Transcript([2, 9, 10], [4])
    for keep in 4, 3, 1, 0:
        said.rewind(keep)
        assert said.ids == [2, 9, 10, 4][:keep]


def test_two_graphs_may_share_a_session() -> None:
    s, x = tg.state("s", (3,)), tg.input("x", (3,))
    double = compiled_of(tg.graph({"y": s.read()}, {s: s.read() * 2.0}))
    add = compiled_of(tg.graph({"y": s.read()}, {s: s.read() + x}))
    session = add.session()
    add.run({"x": ONES}, session=session)
    double.run({}, session=session)
    assert session["s"].tolist() == [2, 2, 2]


def test_a_session_and_a_model_are_shown_by_what_they_take_and_hold():
    x = tg.input("x", (tg.dim("n", 1, 8), 2))
    states = [tg.state(f"s{i}", (2,)) for i in range(6)]
    g = tg.graph({"y": x @ tg.parameter("w", (2, 2)) + states[0].read()}, {s: s.read() + 1.0 for s in states})
    model = compiled_of(g, {"w": np.eye(2, dtype=np.float32)})
    assert repr(model) == "<compiled graph: x f32[n, 2] -> y f32[n, 2]; 1 parameter (16 B); 6 states>"
    assert repr(model.session()) == "<session: s0 f32[2], s1 f32[2], s2 f32[2], s3 f32[2], and 2 more>"
    assert repr(states[0]) == "<state s0 f32[2]>"


# ---- rows that are not there ----


def cache(at: tg.Node | tg.Dim | int) -> tg.Graph:
    """A state of 8 rows, into which a run writes 3 from `at` on (or at 3 indices)."""
    s, x = tg.state("s", (8, 2)), tg.input("x", (3, 2))
    return tg.graph({"y": x * 2.0}, {s: s.write(x, at=at)})


ROWS = np.ones((3, 2), np.float32)
AT = tg.input("at", (), tg.i32)


@pytest.mark.parametrize("backends", BACKENDS, ids="+".join)
@pytest.mark.parametrize("begin", ["dim", "input", "inputs"])
def test_a_write_behind_the_end_of_a_state_is_refused_and_nothing_is_lost(begin: str, backends: tuple[str, ...]) -> None:
    at = {"dim": tg.dim("p", 0, 8), "input": AT, "inputs": tg.input("at", (3,), tg.i64)}[begin]
    compiled = compiled_of(cache(at), backends=backends)
    session = compiled.session()

    def step(first: int) -> np.ndarray:
        given = {"input": first, "inputs": [first, first + 1, first + 2]}.get(begin)
        rows, dims = ({"x": ROWS}, {"p": first}) if given is None else ({"x": ROWS, "at": given}, {})
        compiled.run(rows, dims=dims, session=session)
        return session["s"][:, 0]

    assert step(5).tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    with pytest.raises(RunError, match=r"the state 's' has 8 rows along axis 0, .*\n  fix: .*(p ≤ 5|at up to [57]).* or more rows"):
        step(6)
    assert session["s"][:, 0].tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    if begin == "inputs":
        assert step(-3).tolist() == [0, 0, 0, 0, 0, 1, 1, 1]        # below 0: left out


def test_a_prepared_run_looks_at_the_rows_that_its_inputs_say_by_then() -> None:
    compiled, at = compiled_of(cache(AT)), np.array(2, np.int32)
    session = compiled.session()
    prepared = compiled.prepared({"x": ROWS, "at": at}, session=session)
    prepared.run()
    at[...] = 6
    with pytest.raises(RunError, match="the state 's' has 8 rows along axis 0"):
        prepared.run()
    assert session["s"][:, 0].tolist() == [0, 0, 1, 1, 1, 0, 0, 0]


def test_a_write_that_never_fits_is_refused_where_it_is_written() -> None:
    with pytest.raises(ShapeError, match=r"state 's' is f32\[8, 2\], and f32\[3, 2\] does not fit into it from 6 on along axis 0"):
        cache(6)
    text = "tg 1\ninput x f32[3, 2]\nstate s f32[8, 2]\noutput y = relu(x)\nupdate s = write_rows(s, x; start=6)\n"
    compiled = compiled_of(parse_graph(text))
    with pytest.raises(RunError, match=r"3 are written from 6 on\n  fix: more rows where the state 's' is made$"):
        compiled.run({"x": ROWS}, session=compiled.session())


def test_rows_of_a_value_that_is_no_state_and_numbers_that_are_computed_are_dropped_as_the_op_says() -> None:
    computed = compiled_of(cache(AT + 1))
    session = computed.session()
    computed.run({"x": ROWS, "at": 5}, session=session)
    assert session["s"][:, 0].tolist() == [0, 0, 0, 0, 0, 0, 1, 1]
    written = compiled_of(tg.graph(tg.write_at(tg.input("b", (8, 2)), tg.input("x", (3, 2)), AT)))
    assert written.run({"b": np.zeros((8, 2), np.float32), "x": ROWS, "at": 7})["out"].sum() == 2
