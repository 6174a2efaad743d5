"""Generated kernels are compiled together, found again by their content, and left out where the compiler fails."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen import backend, compiled_libraries, spec_to_loops
from tensor_graphs.codegen.loop_ir import StageProgram
from tensor_graphs.devices import toolchain
from tensor_graphs.kernels.c import library
from tensor_graphs.kernels.kernel import Spec, make_together
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.language.node import Node
from tensor_graphs.records.database import Database

X = tg.input("x", (5, 9))                                       # rows too short to be read where they lie: one text each


def of(node: Node) -> tuple[StageProgram, Spec]:
    spec = Spec.of(node)
    program = spec_to_loops.loops_of(spec_to_loops.definition_of(spec))
    assert isinstance(program, StageProgram)
    return program, spec


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs of the compiler, as they are begun."""
    seen: list[str] = []
    run = toolchain._run
    monkeypatch.setattr(toolchain, "_run", lambda command, what: (seen.append(what), run(command, what))[1])
    return seen


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process with other headers: no library of the cache is of this code."""
    assert kernel_named("gen.loops").identity                       # of the real ones
    monkeypatch.setattr(compiled_libraries, "made_with", lambda: str(tmp_path))
    made: list[Path] = []
    link = toolchain._link
    monkeypatch.setattr(toolchain, "_link", lambda file, other: (made.append(Path(other.name)), link(file, other))[1])
    yield
    for file in made:
        (library.load().path.parent / file).unlink()


def test_kernels_that_are_wanted_together_share_two_runs_and_one_more_kernel_is_one_more_run(
        elsewhere: None, runs: list[str]) -> None:
    kernel = kernel_named("gen.loops")
    nodes = [tg.tanh(X), tg.softmax(X), X * X + 1.0, tg.silu(X)]
    wanted = [(kernel, of(node)[1]) for node in nodes]
    files = [compiled_libraries.code_of(of(node)[0]).path for node in nodes]
    assert make_together(wanted[:3]) == [None] * 3 and len(runs) == 2 and [file.exists() for file in files] == [True] * 3 + [False]
    assert make_together(wanted) == [None] * 4 and len(runs) == 3 and files[3].exists()
    calls = [backend.build(spec) for _, spec in wanted]
    assert len(runs) == 3 and len({library.load().address(call.symbol, call.image) for call in calls}) == 4


def test_what_is_only_priced_is_not_compiled(elsewhere: None, store: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels by hand may be: on an empty cache they are, beside this."""
    made: list[object] = []
    build = toolchain.build_each
    monkeypatch.setattr(toolchain, "build_each", lambda *asked, **more: (made.append(asked), build(*asked, **more))[1])
    paths = tg.list_paths(tg.graph(tg.exp(tg.tanh(X) + 1.0)), backends=("gen", "numpy"), database=store)
    assert any("gen.loops" in path.choices.values() for path in itertools.islice(paths, 9)) and not made


def test_a_kernel_that_does_not_compile_is_left_out_and_the_plan_is_of_other_kernels(
        store: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    graph = tg.graph(tg.tanh(tg.input("x", (3, 41))) * 2.0 + 0.125)

    start = subprocess.run

    def killed(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, -9, "", "") if "-o" in command else start(command, **options)

    assert kernel_named("gen.loops").identity                       # of the real ones
    with monkeypatch.context() as patched:
        patched.setattr(compiled_libraries, "made_with", lambda: str(tmp_path))   # no library of the cache is of this code
        patched.setattr(subprocess, "run", killed)
        plan = tg.compile(graph, backends=("gen", "numpy"), database=store)
    assert not any(name.startswith("gen.") for v in plan.variants for name in v.kernels)
    assert "is left out for" in caplog.text and "exit status -9" in caplog.text
    refused = [why for v in plan.variants for e in v.evidence for name, why in e.refused if name == "gen.loops"]
    assert any("it cannot be built" in why for why in refused)
    x = np.linspace(-1, 1, 123, dtype=np.float32).reshape(3, 41)
    np.testing.assert_allclose(tg.bind(plan).run({"x": x})["out"], np.tanh(x) * 2 + 0.125, rtol=1e-5)
    again = tg.compile(graph, backends=("gen", "numpy"), database=store)           # nothing of it is on file
    assert any(name == "gen.loops" for v in again.variants for name in v.kernels)
