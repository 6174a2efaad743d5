"""serving/sampling.py: draws follow the distribution that was asked for, the seed decides them, and nonsense is
refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tensor_graphs.frontends.errors import SamplingError
from tensor_graphs.serving.sampling import Sampler, Sampling, candidates, likeliest, log_probability, penalised

ROWS = arrays(np.float32, st.integers(1, 40), elements=st.floats(-20, 20, width=32), unique=True)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(np.asarray(x, np.float64) - np.max(x))
    return e / e.sum()


def dense(row: np.ndarray, sampling: Sampling) -> np.ndarray:
    ids, probabilities = candidates(row, sampling)
    out = np.zeros(len(row))
    out[ids] = probabilities
    return out


@settings(derandomize=True, max_examples=50, deadline=None)
@given(row=ROWS, seed=st.integers(0, 2**64 - 1))
def test_no_temperature_and_a_top_k_of_one_are_greedy(row: np.ndarray, seed: int) -> None:
    best = int(row.argmax())
    for sampling in (
        Sampling(),
        Sampling(0.0, 5, 0.5, seed),
        Sampling(1.7, top_k=1, seed=seed),
        Sampling(1e-300, seed=seed),
    ):
        assert Sampler(sampling).pick(row) == best
    assert Sampler(Sampling(1.0, top_p=1e-12, seed=seed)).pick(row) == best


@settings(derandomize=True, max_examples=100, deadline=None)
@given(row=ROWS, temperature=st.sampled_from([0.3, 1.0, 2.0]), top_k=st.integers(0, 50), top_p=st.floats(0.05, 1))
def test_the_probabilities_are_those_of_transformers(
    row: np.ndarray, temperature: float, top_k: int, top_p: float
) -> None:
    scores = torch.from_numpy(row.astype(np.float64))[None]
    no_ids = torch.zeros((1, 0), dtype=torch.long)
    scores = TemperatureLogitsWarper(temperature)(no_ids, scores)
    if top_k:
        scores = TopKLogitsWarper(top_k)(no_ids, scores)
    sums = np.cumsum(np.sort(torch.softmax(scores, -1)[0].numpy())[::-1])
    if top_p < 1 and np.abs(sums - top_p).min() > 1e-9:  # else rounding decides who is in
        scores = TopPLogitsWarper(top_p)(no_ids, scores)
    else:
        top_p = 1.0
    expected = torch.softmax(scores, -1)[0].numpy()
    assert np.allclose(dense(row, Sampling(temperature, top_k, top_p)), expected, rtol=1e-9, atol=1e-15)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(row=ROWS, top_p=st.floats(0.01, 0.99))
def test_top_p_keeps_the_smallest_set_that_holds_p(row: np.ndarray, top_p: float) -> None:
    ids, probabilities = candidates(row, Sampling(1.0, top_p=top_p))
    whole = softmax(row)
    assert whole[ids].sum() >= top_p - 1e-12
    assert whole[ids[:-1]].sum() < top_p
    assert whole[ids].min() >= np.delete(whole, ids).max(initial=0)
    assert probabilities.sum() == pytest.approx(1, abs=1e-12) and (np.diff(probabilities) <= 0).all()


@settings(derandomize=True, max_examples=100, deadline=None)
@given(row=ROWS, min_p=st.floats(0.01, 1.0), top_p=st.sampled_from([1.0, 0.8]))
def test_min_p_is_that_of_transformers(row: np.ndarray, min_p: float, top_p: float) -> None:
    scores = torch.tensor(row[None], dtype=torch.float64)
    for warper in ([] if top_p == 1 else [TopPLogitsWarper(top_p)]) + [MinPLogitsWarper(min_p)]:
        scores = warper(torch.empty(1, 0, dtype=torch.long), scores)
    np.testing.assert_allclose(dense(row, Sampling(1.0, top_p=top_p, min_p=min_p)), softmax(scores[0].numpy()), atol=1e-12)


@settings(derandomize=True, max_examples=50, deadline=None)
@given(row=ROWS, penalty=st.sampled_from([0.5, 1.0, 1.3, 2.0]), seed=st.integers(0, 2**32 - 1))
def test_the_repetition_penalty_is_that_of_transformers(row: np.ndarray, penalty: float, seed: int) -> None:
    context = np.random.default_rng(seed).integers(0, len(row), 6).tolist()
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([context]), torch.tensor(row[None], dtype=torch.float64))
    np.testing.assert_allclose(penalised(row, context, penalty), expected[0].numpy(), rtol=1e-12)
    picked = Sampler(Sampling(repetition_penalty=penalty)).pick(row, context)
    assert picked == int(expected[0].argmax()) and Sampler(Sampling()).pick(row, context) == int(row.argmax())
    assert Sampling(repetition_penalty=penalty).needs_logits is (penalty != 1) and not Sampling().needs_logits


def test_a_log_probability_is_of_the_models_own_distribution() -> None:
    row = np.random.default_rng(0).normal(size=50).astype(np.float32) * 9
    expected = torch.log_softmax(torch.tensor(row, dtype=torch.float64), 0)
    assert log_probability(row, 17) == pytest.approx(float(expected[17]), rel=1e-12)
    assert log_probability([0.0, -np.inf], 1) == -np.inf


@pytest.mark.parametrize("top_k", [0, 700, 4000])
@pytest.mark.parametrize("spread", [0.1, 1.0, 6.0])
def test_a_long_row_keeps_the_same_set_as_sorting_it_whole(spread: float, top_k: int) -> None:
    row = (np.random.default_rng(1).standard_normal(20_000) * spread).astype(np.float32)
    order = np.argsort(-row, kind="stable")[: top_k or None]
    held = np.cumsum(softmax(row[order]))
    expected = order[: int(np.searchsorted(held, 0.9)) + 1]
    assert candidates(row, Sampling(1.0, top_k, 0.9))[0].tolist() == expected.tolist()


def test_equal_logits_are_taken_in_the_order_of_their_ids() -> None:
    row = np.array([1.0, 2.0, 2.0, 1.0, 2.0])
    assert candidates(row, Sampling(1.0, top_k=2))[0].tolist() == [1, 2]
    assert candidates(row, Sampling(1.0, top_k=4))[0].tolist() == [1, 2, 4, 0]
    assert Sampler(Sampling()).pick(row) == 1


@pytest.mark.parametrize(
    "sampling", [Sampling(1.0), Sampling(0.7, seed=5), Sampling(1.5, 4), Sampling(1.0, 0, 0.8)], ids=str
)
def test_draws_follow_the_distribution(sampling: Sampling) -> None:
    row = np.array([0.0, 1.0, -1.0, 2.0, 0.5, -2.0, 1.5])
    expected = dense(row, sampling)
    sampler, draws = Sampler(sampling), 8000
    counts = np.bincount([sampler.pick(row) for _ in range(draws)], minlength=len(row))
    assert (counts[expected == 0] == 0).all()
    kept = expected > 0
    chi2 = float((((counts - draws * expected) ** 2)[kept] / (draws * expected[kept])).sum())
    assert chi2 < 30  # six degrees of freedom at most: p = 4e-5
    wrong = np.roll(expected[kept], 1)
    assert float(((counts[kept] - draws * wrong) ** 2 / (draws * wrong)).sum()) > 300  # the test can tell


def test_the_seed_decides_the_draws() -> None:
    rows = np.random.default_rng(0).standard_normal((40, 30))

    def drawn(seed: int) -> list[int]:
        sampler = Sampler(Sampling(1.0, seed=seed))
        return [sampler.pick(row) for row in rows]

    assert drawn(3) == drawn(3) != drawn(4)
    assert drawn(2**64 - 1) != drawn(0)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_logits_of_every_float_dtype_are_taken(dtype: Any) -> None:
    row = np.array([0.5, 3.0, -np.inf, 1.0]).astype(dtype)
    assert Sampler(Sampling()).pick(row) == 1
    assert dense(row, Sampling(1.0))[2] == 0 and dense(row, Sampling(1.0)).sum() == pytest.approx(1)


def test_a_masked_token_is_never_drawn_even_when_top_k_reaches_it() -> None:
    row = np.array([-np.inf, 0.0, -np.inf])
    sampler = Sampler(Sampling(5.0, top_k=3))
    assert {sampler.pick(row) for _ in range(50)} == {1}


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0), Sampling(1.0, 3, 0.5)], ids=str)
def test_logits_that_are_wrong_are_refused(sampling: Sampling) -> None:
    for row, message in (
        ([0.0, np.nan, np.nan], "2 of 3 logits are NaN, the first of token 1\n  fix: the model's output is wrong"),
        ([0.0, np.inf], r"the logit of token 1 is \+inf"),
        ([-np.inf, -np.inf], "all logits are −inf"),
        ([[0.0, 1.0]], r"logits have shape \[1, 2\]\n  fix: one row"),
        ([], r"logits have shape \[0\]"),
    ):
        with pytest.raises(SamplingError, match=message):
            Sampler(sampling).pick(np.array(row))


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1\n  fix: a number ≥ 0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"top_k": -1}, "top_k is -1\n  fix: a whole number ≥ 0"),
        ({"top_k": 2.5}, "top_k is 2.5"),
        ({"top_k": True}, "top_k is True"),
        ({"top_p": 0}, r"top_p is 0\n  fix: a number in \(0, 1\]"),
        ({"top_p": 1.01}, "top_p is 1.01"),
        ({"top_p": float("nan")}, "top_p is nan"),
        ({"min_p": 1.5}, r"min_p is 1.5\n  fix: a number in \[0, 1\]"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0\n  fix: a number > 0"),
        ({"seed": -1}, "seed is -1\n  fix: a whole number in 0 … 2"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
    ],
)
def test_settings_out_of_range_are_refused(settings_: dict[str, Any], message: str) -> None:
    with pytest.raises(SamplingError, match=message):
        Sampling(**settings_)


def test_a_token_s_logarithm_needs_no_alternatives() -> None:
    logits = np.array([0.5, 2.0, -1.0])
    assert likeliest(logits, 2, 0) == (log_probability(logits, 2), ())
    assert [i for i, _ in likeliest(logits, 2, 9)[1]] == [1, 0, 2]
