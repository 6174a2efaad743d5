"""Attention of a batch against torch, sequence by sequence."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensor_graphs as tg
from tensor_graphs.language.composite import expand
from tensor_graphs.language.errors import ShapeError
from tensor_graphs.language.node import walk

RNG = np.random.default_rng(5)


def arrays(batch: int, n: int = 3, s: int = 5, heads: int = 4, groups: int = 2, d: int = 8) -> dict[str, np.ndarray]:
    return {"q": RNG.normal(size=(batch, n, heads, d)), "k": RNG.normal(size=(batch, s, groups, d)),
            "v": RNG.normal(size=(batch, s, groups, d))}


def expected(x: dict[str, np.ndarray], mask: np.ndarray | None = None) -> np.ndarray:
    q, k, v = (torch.tensor(x[name]).transpose(1, 2) for name in "qkv")
    seen = None if mask is None else torch.tensor(mask if mask.ndim == 2 else mask[:, None])
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, seen, scale=0.3, enable_gqa=True)
    return out.transpose(1, 2).numpy()


def found(x: dict[str, np.ndarray], shape: tuple[tg.Dim, ...] | None = None, mask: np.ndarray | None = None) -> np.ndarray:
    q, k, v = (tg.input(name, (shape or x[name].shape[:1]) + x[name].shape[1:], tg.f64) for name in "qkv")
    seen = None if mask is None else tg.input("mask", mask.shape, tg.bool_)
    given = x if mask is None else x | {"mask": mask}
    return np.asarray(tg.interpret(tg.graph(tg.attention(q, k, v, seen, scale=0.3)), given).outputs["out"])


@pytest.mark.parametrize("batch", [1, 3, 40])
def test_each_sequence_attends_to_its_own_keys(batch: int) -> None:
    x, shared, own = arrays(batch), RNG.random((3, 5)) < 0.7, RNG.random((batch, 3, 5)) < 0.7
    shared[:, 0] = own[:, :, 0] = True                              # each query sees a key: torch gives NaN where it sees none
    np.testing.assert_allclose(found(x), expected(x), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found(x, mask=shared), expected(x, shared), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found(x, mask=own), expected(x, own), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("batch", [1, 4])
def test_the_number_of_sequences_may_be_a_dim(batch: int) -> None:
    x = arrays(batch)
    np.testing.assert_allclose(found(x, (tg.dim("b", 1, 8),)), expected(x), rtol=1e-10, atol=1e-12)


def test_a_small_batch_is_one_attention_for_each_sequence() -> None:
    x = {name: value.astype(np.float32) for name, value in arrays(3).items()}
    graph = tg.graph(tg.attention(*(tg.input(name, value.shape) for name, value in x.items()), scale=0.3))
    (batched,) = [node for node in graph.nodes if node.op.name == "batched_attention"]
    assert [node.op.name for node in walk(expand(batched))].count("attention") == 3
    out = tg.interpret(graph, x).outputs["out"]
    np.testing.assert_allclose(out, expected(x), rtol=1e-6, atol=1e-6)


def test_sequences_that_do_not_fit_each_other_are_refused() -> None:
    q, k, b = tg.input("q", (2, 3, 4, 8)), tg.input("k", (3, 5, 2, 8)), tg.dim("b", 1, 4)
    with pytest.raises(ShapeError, match="they differ in the number of sequences"):
        tg.attention(q, k, k, scale=1.0)
    q, k = tg.input("q", (b, 3, 4, 8)), tg.input("k", (b, 5, 2, 8))
    with pytest.raises(ShapeError, match="a number of sequences that is known"):
        tg.attention(q, k, k, tg.input("mask", (b, 3, 5), tg.bool_), scale=1.0)
