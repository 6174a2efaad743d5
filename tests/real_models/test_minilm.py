"""The real MiniLM: sentence embeddings in f32 are those of transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.frontends.huggingface.load import load_model
from tensor_graphs.runtime.compiled_graph import bind

pytestmark = pytest.mark.models

SENTENCES = ("A cat sleeps on the warm windowsill.", "A kitten naps in the sun by the window.",
             "The compiler fuses two kernels into one.", "Prices rose by 3.5 % in the second quarter.")


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
