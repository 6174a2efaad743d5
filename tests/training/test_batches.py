"""training/batches.py and text.py: an order that depends on seed and epoch, and rows of a text with the token after each."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.training.batches import Batches
from tensor_graphs.training.text import next_token, windows


def test_an_epoch_has_each_example_once_in_an_order_of_its_own() -> None:
    batches = Batches({"x": np.arange(10), "y": np.arange(10) * 2}, 3, seed=1)
    epochs = [np.concatenate([batches[3 * e + i]["x"] for i in range(3)]) for e in range(2)]
    assert all(len(set(epoch)) == 9 for epoch in epochs) and not np.array_equal(*epochs)
    assert all(np.array_equal(batches[i]["y"], 2 * batches[i]["x"]) for i in range(6))


def test_a_batch_is_known_by_its_number_alone() -> None:
    one, other = (Batches({"x": np.arange(64)}, 8, seed=5) for _ in range(2))
    forward = [one[i]["x"] for i in range(20)]
    assert all(np.array_equal(other[i]["x"], forward[i]) for i in reversed(range(20)))
    assert not np.array_equal(Batches({"x": np.arange(64)}, 8, seed=6)[0]["x"], forward[0])


def test_arrays_of_different_lengths_are_refused() -> None:
    with pytest.raises(tg.TensorGraphsError, match=r"3 rows \(x\), 4 rows \(y\)"):
        Batches({"x": np.arange(3), "y": np.arange(4)}, 2)
    with pytest.raises(tg.TensorGraphsError, match="the batch's size is 5"):
        Batches({"x": np.arange(3)}, 5)


def test_a_texts_rows_do_not_overlap_and_have_the_next_token() -> None:
    rows = windows(np.arange(12), 5)
    assert rows["ids"].tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert rows["target"].tolist() == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]
    with pytest.raises(tg.TensorGraphsError, match="length is 12"):
        windows(np.arange(12), 12)


def test_a_graph_without_logits_is_no_decoder() -> None:
    with pytest.raises(tg.TensorGraphsError, match="no decoder with logits"):
        next_token(tg.graph({"logits": tg.input("x", (3,))}))
