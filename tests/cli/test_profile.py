"""`tg profile --inputs`: real values of inputs, and what is said when they cannot be had."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tensor_graphs.cli.options import UsageError
from tensor_graphs.cli.profile import named
from tests.cli.command import document, tg


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_file({"lin.weight": np.ones((4, 8), np.float32)}, tmp_path / "m.safetensors")
    (tmp_path / "g.tg").write_text("tg 1\ninput x f32[3, 8]\nparameter w f32[4, 8]\noutput y = linear(x, w)\n")
    return tmp_path


def test_each_input_is_named_once_with_its_values() -> None:
    assert named(["w=m.safetensors:a=b", "s=0.5"]) == {"w": "m.safetensors:a=b", "s": "0.5"} and named([]) == {}
    for wrong in (["w"], ["=3"], ["w="], ["w=3", "w=4"]):
        with pytest.raises(UsageError, match="--inputs: '.*\n  fix: "):
            named(wrong)


def test_a_profile_with_real_weights_stores_which_they_were(folder: Path) -> None:
    at = folder / "own.db"
    said = document(tg("profile", folder / "g.tg", "--budget", 60, "--backends", "numpy", "--db", at, "--json",
                       "--inputs", f"w={folder / 'm.safetensors'}:lin.weight"))  # fmt: skip
    assert said["measured"] >= 2 and said["failed"] == 0 and said["unused_inputs"] == []
    with sqlite3.connect(at) as connection:
        stored = [json.loads(text) for (text,) in connection.execute("SELECT input_descriptors FROM workloads")]
    file = str(folder / "m.safetensors")
    assert [{"name": "x1", "type": "safetensors", "path": file, "tensor_key": "lin.weight"}] in stored


def test_a_missing_tensor_is_said_with_the_file_and_the_fix(folder: Path) -> None:
    said = tg("profile", folder / "g.tg", "--db", folder / "own.db", "--inputs", f"w={folder / 'm.safetensors'}:lin.weigh")
    assert said.returncode == 1 and said.stdout == ""
    assert said.stderr.startswith("error: input 'w': there is no tensor 'lin.weigh'") and "did you mean lin.weight?" in said.stderr
