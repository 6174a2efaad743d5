"""frontends/gguf/file_types.py: each matrix of a file gets the type with which a file of some size is most accurate."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.devices.gguf import read_gguf
from tensor_graphs.frontends.errors import FrontendError
from tensor_graphs.frontends.gguf.file_types import TypeChoice
from tensor_graphs.frontends.gguf.write import write_model
from tensor_graphs.frontends.huggingface.families import SLIDING
from tensor_graphs.frontends.huggingface.folder import write_gemma3_folder
from tests.cli.command import TINY


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "gemma"
    write_gemma3_folder(path, replace(TINY, query_pre_attn_scalar=TINY.head_dim, layer_types=(SLIDING, SLIDING)), seed=0)
    return path


@pytest.fixture(scope="module")
def choice(folder: Path) -> TypeChoice:
    rng = np.random.default_rng(0)
    return TypeChoice(tg.load_model(folder), [{"ids": rng.integers(3, 200, 24).astype(np.int32)} for _ in range(3)])


def test_a_larger_file_is_predicted_to_be_more_accurate_and_each_one_fits(choice: TypeChoice) -> None:
    most = choice.numbers * 4 + choice.others
    files = [choice.within(most * share) for share in (0.21, 0.24, 0.27, 0.3, 0.6, 1.0)]
    assert all(file.nbytes <= most * share for file, share in zip(files, (0.21, 0.24, 0.27, 0.3, 0.6, 1.0), strict=True))
    errors = [file.error for file in files]
    assert errors == sorted(errors, reverse=True) and errors[0] > 3 * errors[3] and errors[-1] == 0.0
    assert len(set(files[2].words.values())) > 1                    # not one word for all
    with pytest.raises(FrontendError, match="no file of gemma has 1,000 bytes of tensors"):
        choice.within(1000)


def test_a_file_has_the_types_and_the_bytes_that_were_chosen(choice: TypeChoice, folder: Path, tmp_path: Path) -> None:
    typed = choice.within((choice.numbers * 4 + choice.others) * 0.24)
    write_model(tg.load_model(folder), tmp_path / "m.gguf", precision=typed.words, importance=choice.importance)
    entries = read_gguf(tmp_path / "m.gguf").entries
    assert sum(entry.nbytes for entry in entries.values()) == typed.nbytes
    words = {"f32" if entry.stored == "F32" else entry.stored.lower() for entry in entries.values() if len(entry.shape) > 1}
    assert words == {"f32" if word == "written" else word for word in typed.words.values()}


def test_one_type_for_all_is_taken_where_a_mix_is_hardly_predicted_to_be_better(choice: TypeChoice) -> None:
    (half,) = [form for form in choice.uniform if set(form.words.values()) == {"f16"}]
    nbytes = half.nbytes + choice.others
    assert set(choice.within(nbytes).words.values()) == {"f16"} and choice.within(nbytes).error == half.error
    assert any(form.error > 1.25 * choice.within(form.nbytes + choice.others).error for form in choice.uniform)


def test_both_readers_of_a_table_have_one_word_and_errors_of_both_count(choice: TypeChoice) -> None:
    typed = choice.within((choice.numbers * 4 + choice.others) * 0.24)
    table = [word for site, word in typed.words.items() if "embed_tokens" in site]
    assert len(table) == 2 and len(set(table)) == 1
    name = "token_embd.weight"
    assert math.isfinite(choice.errors[name, "q4_0"]) and choice.errors[name, "q8_0"] < choice.errors[name, "q4_0"] / 10
