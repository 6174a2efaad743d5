"""command: runs `tg` as a person does, in a process of its own, and holds what it says to the command line's rules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tensor_graphs.frontends.huggingface_folder import FULL, SLIDING, Gemma3TextConfig

ROOT = Path(__file__).parents[2]
TG = (sys.executable, "-m", "tensor_graphs.cli.main")
SCREEN = 40
"""lines that an error may take"""

TINY = Gemma3TextConfig(
    vocab_size=211,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    rms_norm_eps=1e-6,
    sliding_window=8,
    layer_types=(SLIDING, FULL),
    max_position_embeddings=256,
)


def environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """This process's environment, changed (None: the variable is removed); the package is importable from anywhere."""
    merged: dict[str, str | None] = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", **(changes or {})}
    return {name: value for name, value in merged.items() if value is not None}


def tg(
    *arguments: object,
    env: Mapping[str, str | None] | None = None,
    stdout: Any = subprocess.PIPE,
    before: Callable[[], None] | None = None,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end. env: changes to the environment; before: called in the new process."""
    return subprocess.run(
        [*TG, *map(str, arguments)],
        env=environment(env),
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=before,
        timeout=timeout,
        check=False,
    )


def document(result: subprocess.CompletedProcess[str]) -> Any:
    """The one JSON document that a successful run printed; nothing else may stand on standard output."""
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def assert_complains(result: subprocess.CompletedProcess[str], *said: str, code: int = 1) -> None:
    """It failed with this exit code, on one screen, without a traceback, with all of `said`, and printed no result."""
    assert result.returncode == code, (result.returncode, result.stdout, result.stderr)
    assert not result.stdout
    assert "Traceback" not in result.stderr, result.stderr
    lines = result.stderr.splitlines()
    assert 1 <= len(lines) <= SCREEN, result.stderr
    assert lines[0].startswith("error: " if code != 2 else ("error: ", "Usage: ")), result.stderr
    for text in said:
        assert text in result.stderr, (text, result.stderr)
