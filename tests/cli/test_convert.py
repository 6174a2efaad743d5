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


def test_words_of_weights_say_the_type_of_each_tensor(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    words = "weight=q4_0,weight:model.embed_tokens.weight@embedding=q5_0,weight:*layers.1.mlp*=bf16"
    assert tg("convert", folder, file, "--precision", words).returncode == 0
    read = read_gguf(file)
    stored = {name: entry.stored for name, entry in read.entries.items() if len(entry.shape) > 1}
    assert stored["token_embd.weight"] == "Q5_0" and stored["blk.0.attn_q.weight"] == "Q4_0"
    assert stored["blk.1.ffn_up.weight"] == "BF16" and stored["blk.0.ffn_down.weight"] == "F16"       # rows of 48
    assert read.metadata["general.file_type"] == 2
    assert tg("convert", folder, file, "--precision", "q6_k", "--force").returncode == 0
    assert read_gguf(file).metadata["general.file_type"] == 18 and read_gguf(file).entries["token_embd.weight"].stored == "Q8_0"


def test_types_are_chosen_for_a_size_from_the_models_own_text(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    chosen = document(tg("convert", folder, file, "--bits-per-weight", 9, "--json", "--db", tmp_path / "a.db"))
    words = set(chosen["words"].values())
    assert 0 < chosen["kl"] < 1e-3 and len(words) > 1 and chosen["bytes"] == file.stat().st_size
    stored = {entry.stored.lower() for entry in read_gguf(file).entries.values() if len(entry.shape) > 1}
    assert stored == words
    assert_complains(tg("convert", folder, file, "--bytes", 9, "--precision", "F32"), "each choose the types", "fix: one of them",
                     code=2)


def test_what_is_not_written_is_refused(folder: Path, gemma: Path, tmp_path: Path) -> None:
    assert_complains(tg("convert", folder, tmp_path / "m.gguf", "--precision", "IQ4_NL"), "weights cannot be written as 'IQ4_NL'",
                     "fix: one of F32, F16, Q4_0, Q4_1, Q8_0")
    assert_complains(tg("convert", folder, tmp_path / "m.gguf", "--precision", "weight:head=q8_0"), "the graph has no such site",
                     "fix: one of weight:model.embed_tokens.weight@embedding")
    assert_complains(tg("convert", gemma, tmp_path / "m.gguf"), "a GGUF file cannot hold this model: its layers would be",
                     "fix: the folder as it is")
    assert not (tmp_path / "m.gguf").exists()
