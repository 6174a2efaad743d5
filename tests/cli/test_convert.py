"""tg convert: a folder becomes a file that every verb of models takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tensor_graphs.devices.gguf import read_gguf
from tensor_graphs.frontends.huggingface.families import SLIDING
from tensor_graphs.frontends.huggingface.folder import write_gemma3_folder
from tests.cli.command import TINY, assert_complains, document, tg


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Gemma whose windows and scores are those that llama.cpp assumes."""
    path = tmp_path_factory.mktemp("models") / "gemma"
    write_gemma3_folder(path, replace(TINY, query_pre_attn_scalar=TINY.head_dim, layer_types=(SLIDING, SLIDING)), seed=0)
    return path


def test_a_converted_folder_gives_the_same_tokens(folder: Path, tmp_path: Path) -> None:
    file, more = tmp_path / "m.gguf", ("--ids", "2,9,10", "--tokens", 4, "--json", "--backends", "numpy")
    written = document(tg("convert", folder, file, "--json"))
    assert written == {"file": str(file), "bytes": file.stat().st_size, "precision": "F32"}
    assert document(tg("run", file, *more))["ids"] == document(tg("run", folder, *more))["ids"]
    assert_complains(tg("convert", folder, file), f"{file} is there already", "fix: --force replaces it")
    again = tg("convert", file, file, "--precision", "Q8_0", "--force")
    assert again.returncode == 0 and "Q8_0, gemma3" in again.stdout
    assert {entry.stored for entry in read_gguf(file).entries.values()} >= {"F32", "Q8_0"}
    assert tg("plan", file, "--backends", "numpy").returncode == 0


def test_what_is_not_written_is_refused(folder: Path, gemma: Path, tmp_path: Path) -> None:
    assert_complains(tg("convert", folder, tmp_path / "m.gguf", "--precision", "Q4_K"), "weights cannot be written as 'Q4_K'",
                     "fix: one of F32, F16, Q8_0, BF16")
    assert_complains(tg("convert", gemma, tmp_path / "m.gguf"), "a GGUF file cannot hold this model: its layers would be",
                     "fix: the folder as it is")
    assert not (tmp_path / "m.gguf").exists()
