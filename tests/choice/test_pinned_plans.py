"""Kernel calls and memory of plans, as last reviewed: of Gemma, MiniLM and all graphs of benchmarks/kernels_cpu.py.

They are chosen from guesses alone: no row, no verdict, no measured constant, no kernel that only some processors have, so that
they are the same on each machine. A plan that moves is looked at, then `make snapshots`.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

import tensor_graphs as tg
from benchmarks.cpu_graphs import cases
from benchmarks.twin_plans import gemma, minilm
from tensor_graphs.choice import search
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.choice.storing import VARIABLE
from tensor_graphs.kernels import registry
from tensor_graphs.language.graph import Graph
from tensor_graphs.records.database import Database
from tests.conftest import Snapshot

BACKENDS = ("c", "gen", "numpy")
STEP = {"n": 1, "m": 1, "p": 64}
MODELS: Mapping[str, tuple[Graph, Mapping[str, int]]] = {
    "Gemma-3-270M, f32 logits": (gemma(18, tg.f32), STEP), "Gemma-3-270M, bf16 token": (gemma(18, output="token"), STEP),
    "MiniLM": (minilm(), {"n": 32})}


@pytest.fixture
def estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled, compared or measured: a plan is what is guessed to be cheapest."""
    monkeypatch.setenv(VARIABLE, "off")
    monkeypatch.setattr(search, "calibrate", lambda *_: None)
    paths = search._Chooser.paths
    monkeypatch.setattr(search._Chooser, "paths", lambda chooser, binding, optimistic: paths(chooser, binding, True))
    monkeypatch.setattr(search._Chooser, "_built", lambda *_: True)
    monkeypatch.setattr(search._Chooser, "_pending", lambda *_: [])
    monkeypatch.setattr(registry, "lacking", lambda kernel: "not on each machine" if kernel.requirements else None)


def line(name: str, graph: Graph, database: Database, at: Mapping[str, int] | None = None) -> str:
    plan = compile_graph(graph, backends=BACKENDS, database=database, at=at, threads=2)
    use, program = plan.memory(**plan.variants[0].at), plan.variants[0].program
    return f"{name:40s} {len(program.instructions):4d} calls  {use.arena:9d} B of arena  {use.bound:9d} B made of parameters\n"


@pytest.mark.usefixtures("estimated")
def test_calls_and_memory_of_the_suite_are_as_reviewed(store: Database, snapshot: Snapshot) -> None:
    snapshot.check("suite.txt", "".join(line(f"{case.kind}: {case.name}", case.graph, store) for case in cases(torch)))


@pytest.mark.long
@pytest.mark.usefixtures("estimated")
def test_calls_and_memory_of_models_are_as_reviewed(store: Database, snapshot: Snapshot) -> None:
    snapshot.check("models.txt", "".join(line(name, graph, store, {n: s for n, s in at.items() if n in graph.dims})
                                         for name, (graph, at) in MODELS.items()))
