"""sampling: picks the next token from one row of logits: the largest logit, or a draw from the likeliest tokens.

Order, as in transformers: penalise the tokens of the context, divide by the temperature, keep the top k, keep the smallest
set that holds probability p, keep tokens at least min p times as likely as the likeliest, draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensor_graphs.frontends.errors import SamplingError


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settings by which a token is picked. temperature: 0 = always the largest logit. top_k: 0 = all. top_p: 1 = all. seed: of the
    draws. min_p: share of the largest probability that a token needs, 0 = all. repetition_penalty: logits of tokens that are in the
    context are divided by it where positive, multiplied where negative (Keskar et al., CTRL, 2019); 1 = none.

    Raises SamplingError when a value is out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        def number(x: Any) -> bool:
            return isinstance(x, (int, float)) and not isinstance(x, bool)

        def whole(x: Any) -> bool:
            return isinstance(x, int) and not isinstance(x, bool)

        for name, fits, range_ in (
            ("temperature", number(self.temperature) and 0 <= self.temperature < math.inf, "a number ≥ 0"),
            ("top_k", whole(self.top_k) and self.top_k >= 0, "a whole number ≥ 0 (0 = all)"),
            ("top_p", number(self.top_p) and 0 < self.top_p <= 1, "a number in (0, 1] (1 = all)"),
            ("min_p", number(self.min_p) and 0 <= self.min_p <= 1, "a number in [0, 1] (0 = all)"),
            ("repetition_penalty", number(self.repetition_penalty) and 0 < self.repetition_penalty < math.inf,
             "a number > 0 (1 = none)"),
            ("seed", whole(self.seed) and 0 <= self.seed < 2**64, "a whole number in 0 … 2^64 − 1"),
        ):
            if not fits:
                raise SamplingError(f"{name} is {getattr(self, name)!r}", fix=range_)

    @property
    def greedy(self) -> bool:
        """True where the largest logit is always picked."""
        return self.temperature == 0 or self.top_k == 1

    @property
    def needs_logits(self) -> bool:
        """True where a graph that outputs only the likeliest token is not sufficient."""
        return not self.greedy or self.repetition_penalty != 1


class Sampler:
    """A picker of tokens, one per row of logits; equal settings and rows give equal tokens."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self._generator = np.random.Generator(np.random.Philox(sampling.seed))

    def pick(self, logits: np.ndarray[Any, Any] | Sequence[float], context: Sequence[int] = ()) -> int:
        """Return the id of the next token, from logits[vocabulary] of any float dtype. context: preceding ids, for the penalty.

        Greedy sampling takes the first of equal largest logits. A logit of −inf is never picked. Raises SamplingError for logits of
        another rank, with a NaN or +inf (the model is wrong), or with −inf only.
        """
        row = penalised(_checked(logits), context, self.sampling.repetition_penalty)
        if self.sampling.greedy:
            return int(row.argmax())
        ids, weights = _kept(_checked(row), self.sampling)
        starts = np.arange(0, weights.size, 256)
        blocks = np.cumsum(np.add.reduceat(weights, starts))            # a running sum of all takes longer than the rest
        at = self._generator.random() * blocks[-1]
        block = min(int(np.searchsorted(blocks, at, side="right")), starts.size - 1)
        reached = np.cumsum(weights[starts[block]:starts[block] + 256]) + (blocks[block - 1] if block else 0.0)
        return int(ids[starts[block] + min(int(np.searchsorted(reached, at, side="right")), reached.size - 1)])


def penalised(row: np.ndarray[Any, Any], context: Sequence[int], penalty: float) -> np.ndarray[Any, Any]:
    """Return logits[vocabulary] with each token of the context penalised once; the row itself without a penalty."""
    if penalty == 1 or not context:
        return row
    out, seen = row.astype(np.float64), np.unique(np.asarray(context, dtype=np.int64))
    out[seen] = np.where(out[seen] < 0, out[seen] * penalty, out[seen] / penalty)
    return out


def log_probability(logits: np.ndarray[Any, Any] | Sequence[float], token: int) -> float:
    """Return the natural logarithm of the probability that the model gives a token: before temperature, penalty and cuts."""
    row = _checked(logits).astype(np.float64)
    return float(row[token] - row.max() - np.log(np.exp(row - row.max()).sum()))


def likeliest(logits: np.ndarray[Any, Any], token: int, count: int) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Return (natural logarithm of a token's probability, (id, logarithm) of the `count` likeliest), as `log_probability` does."""
    row = _checked(logits).astype(np.float64)
    logs = row - row.max() - np.log(np.exp(row - row.max()).sum())
    return float(logs[token]), tuple((int(i), float(logs[i])) for i in _largest(logs, min(count, logs.size))[:count])


def candidates(
    logits: np.ndarray[Any, Any] | Sequence[float], sampling: Sampling
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return (ids i64[c], probabilities f64[c]) of the tokens that may be drawn, likeliest first; probabilities sum to 1.

    Equal logits are taken in the order of their ids. Raises SamplingError as `Sampler.pick` does.
    """
    row = _checked(logits)
    if sampling.greedy:
        return np.array([row.argmax()]), np.ones(1)
    ids, weights = _kept(row, sampling)
    order = np.argsort(-weights, kind="stable")
    return ids[order], weights[order] / weights.sum()


def _kept(row: np.ndarray[Any, Any], sampling: Sampling) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return (ids i64[c] of the tokens that may be drawn, rising; weights f64[c], the likeliest token's is 1)."""
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the largest to −inf, as it should
        scaled = (row.astype(np.float64) - float(row.max())) / sampling.temperature
    ids = np.arange(row.size)
    if 0 < sampling.top_k < row.size:
        ids = np.sort(_largest(scaled, sampling.top_k))
        scaled = scaled[ids]
    weights = np.exp(scaled)
    possible = (weights > 0) & (weights >= sampling.min_p)
    if sampling.top_p < 1:
        possible &= _nucleus(scaled, weights, sampling.top_p)
    return (ids, weights) if possible.all() else (ids[possible], weights[possible])


def _nucleus(scaled: np.ndarray[Any, Any], weights: np.ndarray[Any, Any], share: float) -> np.ndarray[Any, Any]:
    """Return which tokens are in the smallest set of the likeliest that holds this share of the weights = exp(scaled), bool[c].

    Weights are summed by bins of equal scaled logits, and only the bin in which the share is reached is sorted: a flat row of
    49152 logits takes 1 ms, where sorting it whole takes 10."""
    bins = (np.maximum(scaled, -63.0) * -64.0).astype(np.int32)
    sums = np.cumsum(np.bincount(bins, weights))
    last = int(np.searchsorted(sums, share * sums[-1]))
    edge = np.flatnonzero(bins == last)
    edge = edge[np.argsort(-scaled[edge], kind="stable")]
    held = np.cumsum(weights[edge]) + (sums[last - 1] if last else 0.0)
    inside: np.ndarray[Any, Any] = bins < last
    inside[edge[: int(np.searchsorted(held, share * sums[-1])) + 1]] = True
    return inside


def _largest(row: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """Return the indices of the `count` largest values, in falling order, equal values by rising index."""
    if count == 0:
        return np.arange(0)
    if count < row.size:
        least = np.partition(row, row.size - count)[row.size - count]
        above = np.flatnonzero(row > least)
        chosen = np.concatenate([above, np.flatnonzero(row == least)[: count - above.size]])
    else:
        chosen = np.arange(row.size)
    return chosen[np.lexsort((chosen, -row[chosen]))]


def _checked(logits: np.ndarray[Any, Any] | Sequence[float]) -> np.ndarray[Any, Any]:
    row = np.asarray(logits)
    if row.ndim != 1 or row.size == 0:
        raise SamplingError(f"logits have shape {list(row.shape)}", fix="one row: logits[vocabulary] of the last position")
    if row.dtype not in (np.float32, np.float64):
        row = row.astype(np.float64)  # f16, bf16: exact
    largest = float(row.max())  # NaN when any is NaN
    if math.isnan(largest):
        first = int(np.flatnonzero(np.isnan(row))[0])
        raise SamplingError(f"{int(np.isnan(row).sum())} of {row.size} logits are NaN, the first of token {first}",
                            fix="the model's output is wrong: verify its kernels and weights before sampling")
    if math.isinf(largest):
        raise SamplingError(f"the logit of token {int(row.argmax())} is +inf" if largest > 0 else "all logits are −inf",
                            fix="the model's output is wrong: verify its kernels and weights before sampling")
    return row
