"""Benchmarks of rewriting and of equality refuse what means nothing before they work, and count what they say they count."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

import tensor_graphs as tg
from benchmarks.recipes_against_oracle import REASSOCIATES, distinct
from tensor_graphs.rewrites.passes.recognise import write_out
from tensor_graphs.rewrites.rule import REASSOCIATING
from tests.cli.command import ROOT, environment
from tests.proof.random_graphs import expression


def called(name: str, arguments: tuple[object, ...], monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    """Call the benchmark's `main` in this process; return its exit code."""
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        sys.exit(importlib.import_module(f"benchmarks.{name}").main())
    return ended.value.code


@pytest.mark.parametrize("name", ["saturate_gemma", "recipes_against_oracle", "twin_plans", "random_pairs",
                                  "profiles_beside_a_neighbour", "search"])
def test_help_is_help_and_measures_nothing(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(name, ("--help",), monkeypatch) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: {name}.py") and "templates" not in printed


def test_what_benchmarks_import_from_the_package_is_there() -> None:
    files = sorted((ROOT / "benchmarks").rglob("*.py"))
    asked = {(file.name, node.module, each.name) for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
             if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tensor_graphs")
             for each in node.names}
    assert len(asked) > 100
    missing = [(file, module, name) for file, module, name in sorted(asked)
               if not hasattr(importlib.import_module(module), name) and importlib.util.find_spec(f"{module}.{name}") is None]
    assert not missing


@pytest.mark.parametrize(("name", "arguments"), [
    ("saturate_gemma", ("abc",)), ("saturate_gemma", (0,)), ("saturate_gemma", (-1,)), ("twin_plans", ("x",)),
    ("recipes_against_oracle", (1, 2, 3)), ("recipes_against_oracle", (0,)), ("recipes_against_oracle", (1, 0)),
    ("random_pairs", ("--pairs", 0)), ("random_pairs", ("--pairs", -3)), ("random_pairs", ("--seed", -1)),
    ("profiles_beside_a_neighbour", ("--budget", 0)), ("search", ("--seconds", 0)), ("search", ("--kernel", "no such")),
    ("cost_model", ("--measure-nothing",)),
    ("random_pairs", ("--json", "/nonexistent/x.json")), ("random_pairs", ("--json", "/")),
], ids=str)
def test_arguments_that_mean_nothing_are_refused_at_once(name: str, arguments: tuple[object, ...], monkeypatch: pytest.MonkeyPatch,
                                                         capsys: pytest.CaptureFixture[str]) -> None:
    assert called(name, arguments, monkeypatch) == 2
    out, err = capsys.readouterr()
    assert f"{name}.py: error: " in err and not out


def test_as_many_pairs_are_judged_as_were_asked_for(tmp_path: Path) -> None:
    arguments = ("--pairs", "6", "--seed", "3", "--json", tmp_path / "pairs.json")
    command = [sys.executable, ROOT / "benchmarks" / "random_pairs.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    said = json.loads((tmp_path / "pairs.json").read_text(encoding="utf-8"))
    assert said["pairs"] == sum(said["counts"].values()) == 6
    assert said["drawn"] == said["pairs"] + said["left_out"]
    assert f"{said['drawn']} pairs drawn, {said['left_out']} of them left out" in done.stdout and "wrong 0 of 6" in done.stdout


def test_the_recipes_that_are_compared_differ_from_the_graph_and_from_each_other() -> None:
    led = 0
    for seed in range(12):
        graph = tg.graph(expression(random.Random(seed), 2 + seed % 4))
        found = distinct(graph, 5, REASSOCIATING)
        keys = [write_out(g).structural_key for g in (graph, *(r.graph for r in found))]
        assert len(set(keys)) == len(keys)
        led += sum(not REASSOCIATES.isdisjoint(r.rules) for r in found)
    assert led
