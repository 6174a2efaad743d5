"""What the first page shows is run as it stands there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import tensor_graphs
from tensor_graphs.frontends.huggingface.folder import write_gemma3_folder
from tests.cli.command import TALK, TINY, tg, with_words

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
LANGUAGE, DOORS, RULE, KERNEL, USE = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
# Beside other tests that measure, one of them at a time; it ends as soon as all is measured.
PATIENT = USE.replace("budget=20", "budget=100")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
PIN = "softmax.pin"
"""the file that one of the commands writes, and another one reads"""
WALK = [c for c in COMMANDS if "examples/softmax.tg --at" in c or c.startswith("tg db")]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the examples lie, and a small Gemma folder with a tokenizer of words like w9 and a chat template."""
    folder = tmp_path_factory.mktemp("newcomer")
    (folder / "examples").symlink_to(ROOT / "examples")
    write_gemma3_folder(folder / "gemma", TINY, seed=0)
    with_words(folder / "gemma", folder / "my-gemma", template=TALK)
    (folder / "my.py").write_text(KERNEL)
    onnx.save(helper.make_model(helper.make_graph(
        [helper.make_node("Softmax", ["x"], ["y"])], "model", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (3, 5))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (3, 5))]), opset_imports=[helper.make_opsetid("", 20)]),
        folder / "model.onnx")
    np.savez(folder / "x.npz", x=np.zeros((3, 5), np.float32))
    return folder


def test_the_example_of_the_readme_runs_and_is_right():
    names: dict[str, object] = {}
    exec(LANGUAGE, names)
    probabilities = np.asarray(names["probabilities"])
    assert probabilities.shape == (7, 256)
    np.testing.assert_allclose(probabilities, 1 / 256, rtol=1e-5)         # equal rows of w: equal probabilities


def test_the_modules_and_files_of_the_readme_come_in(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    model, x = torch.nn.Linear(4, 2), torch.ones(3, 4)
    names: dict[str, Any] = {"torch": torch, "tg": tensor_graphs, "model": model, "x": x}
    exec(DOORS, names)
    torch.testing.assert_close(names["fast"](x), model(x))
    assert set(names["loaded"].weights) == {"weight", "bias"} and list(names["onnx_file"].graph.inputs) == ["x"]


def test_the_rule_of_the_readme_is_admitted_and_used() -> None:
    from tensor_graphs.rewrites.recipes import recipes

    exec(RULE, {})
    x, y = tensor_graphs.input("x", (2, 3)), tensor_graphs.input("y", (2, 3))
    found = recipes(tensor_graphs.graph(x * x - y * y), count=20).list
    assert any("difference_of_squares" in r.rules for r in found)


def test_the_map_of_the_rooms_has_a_row_for_each_folder() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Rooms")[2].partition("\n## ")[0]
    named = re.findall(r"^\| \[(\w+)\]\(tensor_graphs/\1\)", table, re.MULTILINE)
    assert set(named) == {p.parent.name for p in (ROOT / "tensor_graphs").glob("*/__init__.py")}


def test_every_page_of_the_documents_is_linked_from_the_readme() -> None:
    pages = {p.name for p in (ROOT / "docs").glob("*.md")}
    assert not pages - set(re.findall(r"docs/(\w+\.md)", README))


def test_the_kernel_of_the_readme_is_judged_measured_and_listed(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(KERNEL + "\n" + PATIENT)
    assert len([line for line in KERNEL.splitlines() if line.strip() and "import" not in line]) <= 8
    own = {**os.environ, "PYTHONPATH": str(ROOT), "TENSOR_GRAPHS_DB": str(tmp_path / "own.db")}
    done = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, env=own,
                          capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "100% of it from measured rows" in done.stdout
    assert "numpy.my_softmax" in done.stdout and "numpy.softmax" in done.stdout     # one is chosen, the other is next


# tests/acceptance runs the true shape
ALONE = [[c] for c in COMMANDS if "--random-weights" not in c and c not in WALK and PIN not in c]
TOGETHER = [c for c in COMMANDS if PIN in c]


@pytest.mark.parametrize("commands", [*ALONE, TOGETHER], ids=lambda each: each[0].partition("#")[0].strip())
def test_the_commands_of_the_readme_run(commands: list[str], here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each by itself, wherever the others run, but for those that share a file."""
    monkeypatch.chdir(here)
    assert len(ALONE) + len(TOGETHER) + len(WALK) + 1 == len(COMMANDS)
    for command in commands:
        words = shlex.split(command, comments=True)
        assert words[0] == "tg"
        done = tg(*words[1:], typed="w9 w10\n")                       # a chat has one turn
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


def test_the_walk_of_the_readme_ends_with_a_plan_that_rests_on_measurements(here: Path, tmp_path: Path,
                                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """In a database of its own, with the budget that stands there."""
    monkeypatch.chdir(here)
    assert [c.split()[1] for c in WALK] == ["list-paths", "profile", "db", "explain"]
    for command in WALK:
        done = tg(*shlex.split(command, comments=True)[1:], env={"TENSOR_GRAPHS_DB": str(tmp_path / "own.db")})
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()
    shown = re.findall(r"(\d+)% of it from measured rows", done.stdout)
    assert shown and int(shown[0]) >= 90, done.stdout


def test_every_file_that_the_documents_link_to_exists():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    links = [(page, target) for page in pages
             for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))]
    assert len(links) > 10
    missing = [f"{page.name}: {target}" for page, target in links if not (page.parent / target).exists()]
    assert not missing, missing
