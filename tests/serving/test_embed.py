"""serving/embed.py: texts packed into few runs get the vectors that each gets alone, in their order."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.frontends.huggingface.load import load_model
from tensor_graphs.runtime.compiled_graph import bind
from tensor_graphs.serving.embed import PACKED, packs, start_encoder

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from family_cases import ENCODERS, VOCABULARY


def test_many_texts_get_the_vectors_of_each_alone(tmp_path: Path) -> None:
    ENCODERS[0].write(tmp_path)
    model = load_model(tmp_path)
    draw = np.random.default_rng(0)
    texts = [draw.integers(3, VOCABULARY, int(n)).tolist() for n in draw.integers(1, 40, 40)]
    encoder = start_encoder(model)
    vectors = encoder(texts)
    compiled = bind(compile_graph(model.graph, backends=("numpy",), at={"n": 16}), model.weights)
    for ids, vector in zip(texts, vectors, strict=True):
        np.testing.assert_allclose(vector, compiled.run({"ids": np.array(ids, np.int32)})["embedding"], rtol=1e-4, atol=1e-5)


def test_runs_hold_as_many_texts_as_fit() -> None:
    lengths = [1, 2, PACKED - 3, 1, PACKED, PACKED + 1, 5]
    runs = list(packs(lengths))
    assert runs == [[0, 1, 2], [3], [4], [5], [6]] and list(packs([])) == []
