"""draw_bound: the bound on an output's error that a few measured draws allow, with 95 % confidence.

Errors are positive and their logarithms about normal: mean m and spread s over n draws. The spread is pooled with that of earlier
paths (`Spread`), as few draws say little about it. The bound is exp(m + k·s). For an extreme over the elements of an output (max,
cosine), 99 % of further draws are below it; for a mean over rows (norm, kl, top1), the mean of further logarithms is. Shares and
cosines v are bounded as errors 1 − v. For n = 8 and s = 0.17, from these draws alone, the bound of max is 2.1 × the geometric mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from tensor_graphs.meaning.error_measure import Array

CONFIDENCE = 0.95
FURTHER_DRAWS = 0.99
"""share of further draws that the bound of an extreme covers"""

EXTREMES = ("max", "cosine")
LEAST = {"top1": 0.0, "cosine": -1.0}
"""statistics of which more is better, with their least values"""

NORMAL = NormalDist()
POINTS = 200
"""points of the integral over the spread; k is then exact to six digits"""


@dataclass(frozen=True)
class Spread:
    """Standard deviation of ln(error) between draws, from earlier measurements; `count`, its degrees of freedom, is its weight."""

    log_sigma: float = 0.20
    count: int = 8


PRIOR = Spread()
"""the spread before anything was measured: text varies the largest error of a decoder by 0.17, and its norm by 0.10"""


def bound(values: Sequence[float], statistic: str, spread: Spread = PRIOR) -> float:
    """Return the bound on a statistic of which `values` were measured, one per draw: an upper one; of top1 and cosine a lower one.

    It is exact (0, or 1) if all draws were, and beyond all limits (∞, or −∞) if there are none, or one of them is not finite.
    """
    errors = np.asarray(values, dtype=np.float64)
    if statistic not in LEAST:
        return _upper(errors, statistic in EXTREMES, spread)
    error = _upper(1.0 - errors, statistic in EXTREMES, spread)
    return -math.inf if math.isinf(error) else max(1.0 - error, LEAST[statistic])


def _upper(errors: Array, extreme: bool, spread: Spread) -> float:
    if errors.size == 0 or not np.isfinite(errors).all():
        return math.inf
    positive = errors[errors > 0]
    if positive.size == 0:
        return 0.0
    # 0 has no logarithm. An extreme is bounded by the other draws, which errs upwards. A mean, as a share of few rows that is often
    # 0, would err too far: it is taken over all draws, without logarithms.
    plain = not extreme and positive.size < errors.size
    x = errors if plain else np.log(positive)
    mean = float(x.mean())
    freedom = spread.count + x.size - 1
    if freedom == 0:
        return math.inf
    earlier = spread.log_sigma * (mean if plain else 1.0)
    variance = (spread.count * earlier ** 2 + float(np.square(x - mean).sum())) / freedom
    upper = mean + factor(x.size, freedom, FURTHER_DRAWS if extreme else 0.5) * math.sqrt(variance)
    with np.errstate(over="ignore"):
        return upper if plain else float(np.exp(upper))


@lru_cache(maxsize=256)
def factor(draws: int, freedom: float, share: float) -> float:
    """Return the one-sided tolerance factor k: mean + k·s is above `share` of a normal population with a probability of CONFIDENCE,
    where `draws` values give the mean, and s is an independent estimate of the spread with `freedom` > 0 degrees of freedom.

    P(Z/√n + z ≤ k·S) = CONFIDENCE, with Z normal, z the share's quantile, and S√f of the chi distribution: k√n is a quantile of the
    noncentral t distribution, for a share of ½ of Student's. Source: Owen, Technometrics 10(3), 1968; tables in ISO 16269-6.
    """
    quantile, reach = NORMAL.inv_cdf(share), 8.0 / math.sqrt(2.0 * freedom)
    low, high = -reach - 20.0 / freedom, math.log(1.0 + reach)      # ln S lies outside with a probability below 1e-8
    log_s = low + (high - low) * (np.arange(POINTS) + 0.5) / POINTS
    s = np.exp(log_s)
    log_density = freedom * (log_s - np.square(s) / 2.0)
    weights = np.exp(log_density - log_density.max())
    weights /= weights.sum()

    def probability(k: float) -> float:
        return math.fsum(w * NORMAL.cdf(x) for w, x in zip(weights, math.sqrt(draws) * (k * s - quantile), strict=True))

    low, high = 0.0, 1.0
    while probability(high) < CONFIDENCE:
        low, high = high, 2.0 * high
    for _ in range(40):
        middle = (low + high) / 2.0
        low, high = (middle, high) if probability(middle) < CONFIDENCE else (low, middle)
    return high
