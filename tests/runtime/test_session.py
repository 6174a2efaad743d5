"""runtime/session.py: states live from run to run, one session at a time, and come and go as snapshots."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

import tensor_graphs as tg
from tensor_graphs.runtime.errors import RunError
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
            (lambda: session.restore({"s": ONES, "t": ONES}), "no state is named 't'; there are s, last"),
            (lambda: session.restore({"s": ONES, "last": np.ones(4, np.float32)}),
             "state 'last' is f32[3], the array has shape (4,)"),
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


def test_two_graphs_may_share_a_session() -> None:
    s, x = tg.state("s", (3,)), tg.input("x", (3,))
    double = compiled_of(tg.graph({"y": s.read()}, {s: s.read() * 2.0}))
    add = compiled_of(tg.graph({"y": s.read()}, {s: s.read() + x}))
    session = add.session()
    add.run({"x": ONES}, session=session)
    double.run({}, session=session)
    assert session["s"].tolist() == [2, 2, 2]
