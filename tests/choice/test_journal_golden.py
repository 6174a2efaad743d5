"""What a profile asks, in which order, is what was looked at last: moving code about changes none of it.

Answers are made up (a time drawn from the question's own text) and the clock counts them, so that no machine and no load changes
the order. Nothing is run in its place or as a whole.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

import tensor_graphs as tg
from tensor_graphs.choice import profile_graph as module
from tensor_graphs.choice.disturbed_times import Outliers
from tensor_graphs.choice.profile_graph import profile_graph
from tensor_graphs.kernels import registry
from tensor_graphs.language.node import Node
from tensor_graphs.measure.judge import Judge
from tensor_graphs.measure.queue import time_left
from tensor_graphs.measure.queue.next_measurements import Question
from tensor_graphs.records.database import open_database
from tests.choice.conftest import add_row
from tests.choice.test_profile_graph import attention
from tests.conftest import Snapshot

SECONDS, THREADS = 0.05, 2
"""of a question, on the clock that counts them; threads that the estimates are for"""

N, M = tg.dim("n", 1, 64), tg.dim("m", 1, 32)
X = tg.input("x", (N, 32), tg.f32)
GRAPHS: dict[str, Node] = {
    "softmax": tg.softmax(X),
    "two products": tg.linear(tg.relu(tg.linear(X, tg.parameter("a", (64, 32), tg.f32))), tg.parameter("b", (8, 64), tg.f32)),
    "gather and add": tg.gather(tg.parameter("table", (100, 32), tg.f32), tg.input("ids", (N,), tg.i32), axis=0) + X,
    "attention": attention()}


def microseconds(q: Question) -> float:
    """From 10 to 265, by the question's own text."""
    text = f"{q.kernel.name} {q.signature.key} {sorted(q.binding.items())}"
    return 10.0 + hashlib.sha256(text.encode()).digest()[0]


def journal(graph: tg.Graph, budget: float, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    clock = SimpleNamespace(perf_counter=lambda: SECONDS * len(lines), sleep=time.sleep)
    with open_database(":memory:") as database, monkeypatch.context() as patch:

        def answer(judge: Judge, todo: Sequence[Question], *, budget: float, per_kernel: float | None = None,
                   at_least: int = 0) -> Iterator[tuple[Question, str]]:
            end = clock.perf_counter() + budget
            for number, q in enumerate(todo):
                if number >= at_least and clock.perf_counter() >= end:
                    return
                lines.append(f"{q.kernel.name} {q.signature.title()} at {dict(sorted(q.binding.items()))}")
                add_row(database, q.kernel, q.signature, threads=THREADS)
                add_row(database, q.kernel, q.signature, q.binding, us=microseconds(q), threads=THREADS)
                yield q, "PASSED"

        fixed: dict[str, Any] = {
            "answer": answer, "time": clock, "try_finalists": lambda *args, **more: 0, "in_place": lambda *args: 0,
            "measure_device": lambda *args, **more: [], "correct_flops": lambda *args: [], "seconds_due": lambda *args, **more: 0.0}
        for name, value in fixed.items():
            patch.setattr(module, name, value)
        patch.setattr(time_left, "time", clock)
        patch.setattr(Judge, "ready", lambda judge: None)
        patch.setattr(Outliers, "of", lambda *args: None)
        patch.setattr(Outliers, "least", lambda *args: None)
        patch.setattr(registry, "lacking", lambda kernel: "not on each machine" if kernel.requirements else None)
        profile_graph(graph, database=database, budget=budget, backends=("numpy",), threads=THREADS)
    return lines


def test_a_profile_asks_what_it_asked_in_the_order_in_which_it_did(monkeypatch: pytest.MonkeyPatch, snapshot: Snapshot) -> None:
    text = []
    for name, node in GRAPHS.items():
        graph = tg.graph({"y": node})
        for budget in (0.2, 100.0):
            lines = journal(graph, budget, monkeypatch)
            digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
            text += [f"{name}, {budget:g} s: {len(lines)} questions {digest}", *(f"    {line}" for line in lines[:4])]
    snapshot.check("journal.txt", "\n".join(text) + "\n")
