"""Each Python file of examples/ runs on its own, and prints what it is there to show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHOWS = {
    "own_layer.py": (r"inputs: x \| parameters: gate up down", r"n=1: shape \(1, 48\), error below 1e-4: True",
                     r"n=7: shape \(7, 48\), error below 1e-4: True", r"predicted"),
    "own_kernel.py": (r"^numpy\.my_softmax: PASSED$", r"^numpy\.wrong_softmax: INCORRECT_NUMERICAL$", r"rows sum to 1: True"),
    "model_folder.py": (r"files: config.json generation_config.json model.safetensors", r"^gemma3\w*: \d+ weights, states 4$",
                        r"^greedy:( \d+){1,6}$", r"^drawn:( \d+){1,6}$"),
    "training_step.py": (r"the loss falls: True", r"weight: 1\.00 -2\.00 0\.50 \| bias: 0\.25",
                         r"a restored session goes on alike: True"),
    "train_mlp.py": (r"^880 steps, \d+ kernels each", r"at least 97 %: True", r"resumed, the answers are the same: True"),
    "char_gpt.py": (r"^loss 3\.\d+ -> 0\.\d+, log 28 = 3\.33$", r"^it learns: True$", r"^the quick brown fox jumps over the lazy"),
    "cifar_like.py": (r"^19,656 parameters, loss \d\.\d+ -> 0\.\d+, log 4 = 1\.39$", r"at least 90 %: True"),
    "finetune_lora.py": (r"^5,376 numbers trained next to 17,600$", r"below two thirds: True", r"computes the same: True"),
    "service.py": (r"ada: 2 answers of \[4, 4\] tokens, 12 tokens in the cache",
                   r"bob: 2 answers of \[4, 4\] tokens, 12 tokens in the cache", r"equal turns, equal answers: True"),
}
LONG = {"cifar_like.py", "char_gpt.py", "finetune_lora.py"}
"""examples that compile a training step of many layers"""


def test_every_example_is_run() -> None:
    assert {file.name for file in (ROOT / "examples").glob("*.py")} == SHOWS.keys()


@pytest.mark.processes
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in SHOWS])
def test_an_example_prints_what_it_shows(name: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, str(ROOT / "examples" / name)], cwd=tmp_path, env=environment, capture_output=True,
                         text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    for pattern in SHOWS[name]:
        assert re.search(pattern, ran.stdout, re.MULTILINE), f"{pattern} in:\n{ran.stdout}"
