"""What is asked of a graph is held to its kind and range before anything is measured, and what is missing here is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tensor_graphs as tg
from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.choice.request import Request
from tensor_graphs.devices.environment import most_threads
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.kernel import KernelError
from tensor_graphs.paths.path import NoPathError

GRAPH = tg.graph(tg.softmax(tg.input("x", (tg.dim("n", 1, 64), 16), tg.f32)))

USUAL = r"fix: backends=\('c', 'gen', 'numpy'\) \(tg: --backends c,gen,numpy\), or leave it out"


@pytest.mark.parametrize(("asked", "says"), [
    ({"threads": "two"}, rf"^threads is 'two'\n  fix: a whole number from 1 to {most_threads()}, or leave it out$"),
    ({"threads": 10**5000}, "^threads is beyond what a float holds\n"),
    ({"threads": 0}, "^threads is 0\n  fix: a whole number from 1 "), ({"threads": True}, "^threads is True"),
    ({"threads": 10**6}, "^threads is 1000000"), ({"threads": 1.5}, "^threads is 1.5"),
    ({"tolerance": "a"}, "^the tolerance 'a' ends in no number\n  fix: 1e-5, norm:1e-3"),
    ({"tolerance": -1}, "a finite number ≥ 0"),
    ({"tolerance": float("nan")}, "^the tolerance is nan\n  fix: "), ({"tolerance": True}, "^the tolerance is True\n"),

    ({"memory_limit": "all"}, "^memory_limit is 'all'\n  fix: bytes "), ({"memory_limit": -1}, "^memory_limit is -1\n"),
    ({"memory_limit": float("nan")}, "^memory_limit is nan\n"),
    ({"memory_limit": 10**5000}, "^memory_limit is beyond what a float holds\n  fix: bytes "),
    ({"database": 3}, "^database is 3\n  fix: the path or URL "),
    ({"backends": ()}, rf"^backends names no backend: it is \(\)\n  {USUAL}$"), ({"backends": 3}, rf"^backends is 3\n  {USUAL}$"),
    ({"backends": ["c", None]}, r"^backends is \['c', None\]\n  fix: ")])
def test_an_argument_that_does_not_fit_is_named_with_what_does_before_a_kernel_runs(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        Request(GRAPH, **asked)


@pytest.mark.parametrize(("asked", "says"), [
    ({"budget": "a"}, "^the budget is 'a'\n  fix: seconds, 0 or more$"), ({"budget": None}, "^the budget is None"),
    ({"budget": "a", "kernels": "numpy.softmax"}, "^the budget is 'a'"), ({"budget": float("nan"), "paths": 2}, "is nan\n"),
    ({"per_kernel": -1}, "^per_kernel is -1\n  fix: seconds, 0.001 or more"), ({"timeout": 0}, "^timeout is 0\n  fix: seconds"),
    ({"tune": float("inf")}, "^tune is inf\n"), ({"paths": 1.5}, "^paths is 1.5\n  fix: a whole number of 0 or more"),
    ({"paths": -1}, "^paths is -1\n"), ({"kernels": 3}, "^kernels is 3\n  fix: names of kernels"), ({"ops": [3]}, "^ops is "),
    ({"on_step": 3}, "^on_step is 3, which cannot be called\n  fix: a function of how much is done, "),
    ({"on_verdict": "say", "kernels": "numpy.softmax"}, "^on_verdict is 'say', which cannot be called\n  fix: a function of each "),
    ({"inputs": 3}, "^inputs is 3\n  fix: by name"), ({"inputs": {3: "random"}}, "no input or parameter named 3\n  fix: it has x"),
    ({"inputs": {"x": object()}}, "describes no values\n  fix: "),
    ({"strategy": 3}, "no strategy is named 3; .*\n  fix: one of those"),
    ({"backends": "c,numpy"}, r"no backend is named 'c,numpy'(.|\n)*fix: one of those, as backends=\('c', 'numpy'\)")])
def test_profile_names_an_argument_that_does_not_fit(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(TensorGraphsError, match=says):
        tg.profile(GRAPH, **{"budget": 0, "database": ":memory:", **asked})


def test_what_a_compile_reports_to_can_be_called() -> None:
    with pytest.raises(ArgumentError, match=r"^progress is 3, which cannot be called\n  fix: a function of a text that says "):
        tg.compile(GRAPH, progress=3, database=":memory:")  # type: ignore[arg-type]


@pytest.mark.parametrize("ask", [
    tg.compile, tg.list_paths, tg.profile, lambda graph, **more: tg.profile(graph, kernels="numpy.softmax", **more),
    lambda graph, **more: tg.profile(graph, paths=1, **more)], ids=["compile", "list_paths", "profile", "kernels", "paths"])
def test_where_no_backend_that_may_be_used_is_here_each_call_says_why_and_what_to_do(
        monkeypatch: pytest.MonkeyPatch, ask: Callable[..., object]) -> None:
    monkeypatch.setattr("tensor_graphs.choice.request.why_missing", lambda name: "there is no GPU" if name == "cuda" else None)
    says = rf"^no backend is available\n  backend cuda is not available: there is no GPU\n  {USUAL}$"
    with pytest.raises(NoPathError, match=says):
        ask(GRAPH, backends=("cuda",), database=":memory:")


def test_a_kernel_of_a_backend_that_is_missing_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for room in ("kernels.registry", "choice.profile_kernels"):
        monkeypatch.setattr(f"tensor_graphs.{room}.why_missing", lambda name: "there is no GPU" if name == "cuda" else None)
    with pytest.raises(KernelError, match=r"^no kernel is named 'cuda.no' here: backend cuda .*: there is no GPU\n  fix: "):
        tg.profile(GRAPH, kernels="cuda.no", database=":memory:")


@pytest.mark.parametrize("value", [3, "softmax.tg", GRAPH], ids=["a number", "a name", "a graph"])
def test_explain_says_that_it_takes_a_plan(value: object) -> None:
    with pytest.raises(TensorGraphsError, match=r"explain takes a plan, and this is a (int|str|graph)\n(.*\n)?  fix: tg\.explain"):
        tg.explain(value)


def test_explain_names_against_where_that_is_no_plan() -> None:
    plan = tg.compile(GRAPH, database=":memory:")
    with pytest.raises(TensorGraphsError, match=r"explain's against= takes a plan, and this is a int\n(.*\n)?  fix: tg\.explain"):
        tg.explain(plan, against=3)  # type: ignore[arg-type]


def test_simplify_is_true_or_false() -> None:
    with pytest.raises(TensorGraphsError, match=r"^simplify is 'no'\n  fix: simplify=True or simplify=False"):
        tg.compile(GRAPH, simplify="no", database=":memory:")  # type: ignore[arg-type]


def test_a_graph_of_one_size_is_told_of_no_other_sizes() -> None:
    with pytest.raises(TensorGraphsError, match=r"fix: a higher memory limit: it does not fit at its sizes$"):
        tg.compile(tg.graph(tg.softmax(tg.input("x", (4, 8)))), memory_limit=10, database=":memory:")
