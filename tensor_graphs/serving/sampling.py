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
        weights = _weights(_checked(row), self.sampling)
        starts = np.arange(0, weights.size, 256)
        blocks = np.cumsum(np.add.reduceat(weights, starts), dtype=np.float64)     # a running sum of all takes longer than the rest
        at = self._generator.random() * blocks[-1]
        block = int(min(np.searchsorted(blocks, at, side="right"), np.searchsorted(blocks, blocks[-1])))
        part = weights[starts[block]:starts[block] + 256]
        reached = np.cumsum(part, dtype=np.float64) + (blocks[block - 1] if block else 0.0)
        return int(starts[block] + min(np.searchsorted(reached, at, side="right"), np.flatnonzero(part)[-1]))


def penalised(row: np.ndarray[Any, Any], context: Sequence[int], penalty: float) -> np.ndarray[Any, Any]:
    """Return logits[vocabulary] with each token of the context penalised once; the row itself without a penalty."""
    if penalty == 1 or not context:
        return row
    out, seen = row.astype(np.float64), np.unique(np.asarray(context, dtype=np.int64))
    out[seen] = np.where(out[seen] < 0, out[seen] * penalty, out[seen] / penalty)
    return out


def log_probability(logits: np.ndarray[Any, Any] | Sequence[float], token: int) -> float:
    """Return the natural logarithm of the probability that the model gives a token: before temperature, penalty and cuts."""
    return likeliest(logits, token, 0)[0]


def likeliest(logits: np.ndarray[Any, Any] | Sequence[float], token: int,
              count: int) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Return (natural logarithm of a token's probability, (id, logarithm) of the `count` likeliest), as `log_probability` does."""
    row = _checked(logits).astype(np.float64)
    logs = row - row.max() - np.log(np.exp(row - row.max()).sum())
    return float(logs[token]), tuple((int(i), float(logs[i])) for i in _largest(logs, count))


def candidates(
    logits: np.ndarray[Any, Any] | Sequence[float], sampling: Sampling
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return (ids i64[c], probabilities f64[c]) of the tokens that may be drawn, likeliest first; probabilities sum to 1.

    Equal logits are taken in the order of their ids. Raises SamplingError as `Sampler.pick` does.
    """
    row = _checked(logits)
    if sampling.greedy:
        return np.array([row.argmax()]), np.ones(1)
    weights = _weights(row.astype(np.float64), sampling)
    ids = np.flatnonzero(weights)
    ids = ids[np.argsort(-weights[ids], kind="stable")]
    return ids, weights[ids] / weights.sum()


def _weights(row: np.ndarray[Any, Any], sampling: Sampling) -> np.ndarray[Any, Any]:
    """Return the weights by which tokens are drawn, of the row's shape and dtype: the likeliest token's is 1, others' may be 0."""
    weights: np.ndarray[Any, Any] = row - row.max()
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the largest to −inf, as it should
        weights /= max(sampling.temperature, float(np.finfo(row.dtype).tiny))
    np.exp(weights, out=weights)
    if 0 < sampling.top_k < row.size:
        weights *= _likeliest(row, weights, count=sampling.top_k)
    if sampling.top_p < 1:
        some = np.flatnonzero(weights) if sampling.top_k else slice(None)
        weights[some] *= _likeliest(row[some], weights[some], share=sampling.top_p)
    if sampling.min_p:
        weights *= weights >= sampling.min_p
    return weights


def _likeliest(row: np.ndarray[Any, Any], weights: np.ndarray[Any, Any], *, count: int = 0,
               share: float = 0.0) -> np.ndarray[Any, Any]:
    """Return the `count` likeliest tokens, or the fewest with this share of the weights, bool[c]; of equal ones the first.

    Tokens are counted, or weights summed, by the first 15 bits of the weights as f32, which rise with the logits of the row, and
    only the tokens of the bin in which the end is reached are sorted: sorting a row of 49152 takes ten times as long. Parts of the
    row go one after another, as fresh memory for copies of it all would take longer than the rest."""
    narrow, sums = weights.astype(np.float32, copy=False), np.zeros(1 << 13)
    for part in np.array_split(narrow, -(-row.size // 8192)):
        sums += np.bincount((part.view(np.int32) >> 17).astype(np.intp), None if count else part.astype(np.float64), sums.size)
    sums = np.cumsum(sums[::-1])
    wanted = count or share * sums[-1]
    likelier = min(int(np.searchsorted(sums, wanted)), sums.size - 1)
    low, high = (np.array([sums.size - 1 - likelier, sums.size - likelier], np.int32) << 17).view(np.float32)
    inside: np.ndarray[Any, Any] = narrow >= high
    edge = np.flatnonzero((narrow >= low) & ~inside)
    edge = edge[np.argsort(-row[edge], kind="stable")]
    held = np.cumsum(np.ones(edge.size) if count else weights[edge], dtype=np.float64) + (sums[likelier - 1] if likelier else 0.0)
    inside[edge[:int(np.searchsorted(held, wanted)) + 1]] = True
    return inside


def _largest(row: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """Return the indices of the `count` largest values, in falling order, equal values by rising index."""
    chosen = np.arange(row.size if count else 0)
    if 0 < count < row.size:
        chosen = np.flatnonzero(row >= np.partition(row, row.size - count)[row.size - count])
    return chosen[np.argsort(-row[chosen], kind="stable")][:count]


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
