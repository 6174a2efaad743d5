"""The real MiniLM: sentence embeddings in f32 are those of transformers."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import tensor_graphs as tg
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.frontends.huggingface.load import load_model
from tensor_graphs.runtime.compiled_graph import bind
from tests.acceptance.test_minilm import SENTENCES as MORE_SENTENCES

pytestmark = pytest.mark.models

SENTENCES = ("A cat sleeps on the warm windowsill.", "A kitten naps in the sun by the window.",
             "The compiler fuses two kernels into one.", "Prices rose by 3.5 % in the second quarter.")


EIGHT_BITS = "weight=q8_0,product=int8x2"
"""words with which `tg embed FOLDER --texts FILE --precision …` keeps all but the direction's fourth digit"""


def expected_embeddings(folder: Path) -> np.ndarray:
    """f32[sentences, 384]: the mean over tokens of transformers' last hidden vectors, scaled to length 1."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).float().eval()
    with torch.no_grad():
        means = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(dim=0) for text in SENTENCES]
    return np.stack([(mean / mean.norm()).numpy() for mean in means])


def test_embeddings_point_where_those_of_transformers_point(minilm: Path) -> None:
    model = load_model(minilm)
    assert model.tokenizer is not None
    compiled = bind(compile_graph(model.graph, at={"n": 16}), model.weights)
    ids = [np.array(model.tokenizer.encode(text), np.int32) for text in SENTENCES]
    cosines = np.stack([compiled.run({"ids": i})["embedding"].reshape(-1) for i in ids]) @ expected_embeddings(minilm).T
    assert np.diag(cosines).min() >= 0.9999 and np.diag(cosines).max() <= 1.0001
    assert cosines[~np.eye(len(ids), dtype=bool)].max() < 0.99       # the comparison distinguishes sentences


@pytest.mark.slow
def test_weights_of_eight_bits_keep_directions_and_time_and_a_cosine_is_reached_as_fast(minilm: Path, tmp_path: Path) -> None:
    model = load_model(minilm)
    assert model.tokenizer is not None
    sentences = [text for text in MORE_SENTENCES if " " in text]     # "Why?" has 0.9994, all others at least 0.9997
    ids = [np.array(model.tokenizer.encode(text), np.int32) for text in sentences]
    cosine = tg.accuracy.cosine("embedding", 0.999)
    runs: list[dict[str, Any]] = [{"ids": i} for i in ids[:8]]
    compiled = [bind(compile_graph(model.graph, at={"n": 16}, database=tmp_path / "bench.db", **options), model.weights)
                for options in ({}, {"precision": EIGHT_BITS}, {"tolerance": cosine, "weights": model.weights, "inputs": runs})]
    written, narrow, chosen = (np.stack([c.run({"ids": i})["embedding"].reshape(-1) for i in ids]) for c in compiled)
    for vectors, least in ((narrow, 0.9995), (chosen, 0.999)):
        assert ((written * vectors).sum(1) / np.linalg.norm(written, axis=1) / np.linalg.norm(vectors, axis=1)).min() >= least
    seconds = np.zeros((3, 15))
    for number, which in itertools.product(range(15), range(3)):    # interleaved, and the time that processors worked
        start = time.process_time()
        for i in ids[:4]:
            compiled[which].run({"ids": i})
        seconds[which, number] = time.process_time() - start
    assert np.median(seconds[1] / seconds[0]) < 0.9 and np.median(seconds[2] / seconds[1]) < 1.05
