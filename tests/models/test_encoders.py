"""frontends/huggingface/families.py: every encoder against transformers' own model, from one compiled plan."""

from __future__ import annotations

import copy
import dataclasses
import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from family_cases import ENCODERS, VOCABULARY, Case
from test_families import ROW_MUTANTS, fact, first_of_families, graph_in_bf16, marked, relative_error, stored_in

from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.frontends.huggingface.families import FAMILIES, MODEL_TYPES
from tensor_graphs.frontends.huggingface.load import LoadedModel, load_model
from tensor_graphs.language.dtypes import bf16, f32
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.models.transformer import encoder_graph
from tensor_graphs.runtime.compiled_graph import bind

LENGTHS = (1, 9, 40)


def ids_of(length: int) -> np.ndarray:
    return np.random.default_rng(length).integers(3, VOCABULARY, length).astype(np.int32)


def hidden(theirs: Any, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(theirs(torch.from_numpy(ids.astype(np.int64))[None]).last_hidden_state[0].double().numpy())


def error_in_float32(theirs: Any, ids: np.ndarray, expected: np.ndarray) -> float:
    """How far transformers itself is off with float32 between its layers."""
    return relative_error(hidden(copy.deepcopy(theirs).float(), ids).astype(np.float32), expected)


def pooled(rows: np.ndarray, pooling: str) -> np.ndarray:
    return {"mean": rows.mean(0), "cls": rows[0], "max": rows.max(0)}[pooling]


def say_how_to_pool(folder: Path, pooling: str) -> None:
    """The files of sentence-transformers: pooled so, and brought to length 1."""
    kinds = ("Transformer", "Pooling", "Normalize")
    (folder / "modules.json").write_text(json.dumps([
        {"type": f"sentence_transformers.models.{kind}", "path": "" if kind == "Transformer" else f"{i}_{kind}"}
        for i, kind in enumerate(kinds)]))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": pooling, "embedding_dimension": 32}))


@pytest.mark.parametrize("case", marked(ENCODERS))
def test_embeddings_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    theirs, pooling = case.write(tmp_path), ("mean", "cls", "max")[len(case.name) % 3]
    say_how_to_pool(tmp_path, pooling)
    model = load_model(tmp_path)
    assert model.encoder and model.kind == case.family and model.facts.pooling == pooling
    compiled = bind(compile_graph(model.graph, backends=("c", "numpy"), at={"n": 16}, simplify=False), model.weights)
    for length in LENGTHS:
        ids = ids_of(length)
        out, expected = compiled.run({"ids": ids}), hidden(theirs, ids)
        error = relative_error(out["hidden"], expected)
        assert error <= 1e-5 or error <= 3 * error_in_float32(theirs, ids, expected)      # some weights amplify every rounding
        vector, wanted = out["embedding"].astype(np.float64), pooled(expected, pooling)
        assert vector @ wanted / np.linalg.norm(wanted) >= 0.99999 and abs(np.linalg.norm(vector) - 1) <= 1e-5


@pytest.mark.parametrize("case", marked(ENCODERS))
def test_packed_sentences_have_the_embeddings_of_each_alone(case: Case, tmp_path: Path) -> None:
    case.write(tmp_path)
    model = load_model(tmp_path)
    texts = [ids_of(length) for length in (7, 1, 12)]
    lengths = [len(ids) for ids in texts]
    inputs = {"ids": np.concatenate(texts), "positions": np.concatenate([np.arange(n, dtype=np.int32) for n in lengths]),
              "sentences": np.repeat(np.array([5, 0, 2], np.int32), lengths), "firsts": np.array([0, 7, 8], np.int32)}
    for pooling in ("mean", "cls", "max"):
        facts = dataclasses.replace(model.facts, pooling=pooling, normalise=pooling == "mean")
        alone, packed = (encoder_graph(facts, model.names, max_positions=model.max_positions, packed=most) for most in (None, 64))
        weights = {name: model.weights[name] for name in alone.parameters}
        vectors = interpret(packed, inputs, weights, {}, {"t": 20, "s": 3}).outputs["embedding"]
        for ids, vector in zip(texts, vectors, strict=True):
            expected = interpret(alone, {"ids": ids}, weights, {}, {"n": len(ids)}).outputs["embedding"]
            np.testing.assert_allclose(vector, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", first_of_families(ENCODERS).values(), ids=lambda case: case.family)
def test_an_encoder_in_bf16_has_hidden_rows_of_bf16_and_an_embedding_of_float32(case: Case, tmp_path: Path) -> None:
    g = graph_in_bf16(case, tmp_path)
    assert {name: node.dtype for name, node in g.outputs.items()} == {"hidden": bf16, "embedding": f32}
    assert stored_in(g) == {bf16}


@cache
def reference(case: Case) -> tuple[LoadedModel, dict[str, np.ndarray], np.ndarray, np.ndarray]:
    with TemporaryDirectory() as folder:
        theirs, ids = case.write(Path(folder)), ids_of(40)
        model = load_model(folder)
        return model, {k: np.array(v) for k, v in model.weights.items()}, ids, hidden(theirs, ids)


MUTANTS = {**{name: ROW_MUTANTS[name] for name in (
    "scale of scores", "eps", "window + 1", "window - 1", "rope base x 2", "no rope", "no bias of v", "no bias of up",
    "no bias of norm")},
    "positions": lambda facts, names: None if not facts.positions else (
        dataclasses.replace(facts, first_position=0 if facts.first_position else 1), names),
    "no types": lambda facts, names: (facts.token_types and (dataclasses.replace(facts, token_types=0), names)) or None,
    "no relative positions": fact("buckets", lambda buckets: 0),
    "norm inside": lambda facts, names: (names.attention_sum and (
        facts, dataclasses.replace(names, attention_out=names.attention_sum, attention_sum=""))) or None,
    "first norm": lambda facts, names: None if names.first_in else (facts, dataclasses.replace(names,
                                                                                               embed_norm="layers.1.attn_norm"))}


@pytest.mark.parametrize("case", [case for case in ENCODERS if not case.shards], ids=lambda case: case.id)
def test_a_row_with_a_mistake_is_refused(case: Case) -> None:
    model, weights, ids, expected = reference(case)
    refused = 0
    for name, change in {"": lambda facts, names: (facts, names), **MUTANTS}.items():
        wrong = change(model.facts, model.names)
        if wrong is None:
            continue
        g = encoder_graph(*wrong, max_positions=40)
        error = relative_error(interpret(g, {"ids": ids}, weights, {}, {"n": len(ids)}).outputs["hidden"], expected)
        assert error > 2e-5 if name else error <= 1e-5, (name, error)
        refused += bool(name)
    assert refused >= 4


def test_every_encoder_has_three_cases() -> None:
    encoders = {row.name for row in FAMILIES.values() if row.encoder}
    counted = [case.family for case in ENCODERS]
    assert set(counted) == encoders <= set(MODEL_TYPES) and all(counted.count(name) >= 3 for name in encoders)
