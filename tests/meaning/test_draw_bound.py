"""The bound that a few draws allow: tolerance factors as published, how often it holds, and draws that are exact or not finite."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st

from tensor_graphs.meaning.draw_bound import NORMAL, Spread, bound, factor

ALONE = Spread(count=0)
WELL_KNOWN = Spread(0.17, 10**6)
STATISTICS = ("max", "norm", "kl", "top1", "cosine")


@pytest.mark.parametrize("draws, published", [(2, 37.094), (5, 5.741), (8, 4.354), (10, 3.981), (24, 3.181)])
def test_factors_of_draws_alone_are_the_published_ones(draws: int, published: float):
    """ISO 16269-6: one-sided, 99 % of the population with 95 % confidence, unknown standard deviation."""
    assert factor(draws, draws - 1, 0.99) == pytest.approx(published, abs=6e-4)


def test_a_well_known_spread_makes_the_factor_that_of_a_known_one():
    assert factor(8, 10**6, 0.99) == pytest.approx(2.326 + 1.645 / math.sqrt(8), abs=1e-3)
    assert factor(8, 100, 0.99) == pytest.approx(3.01, abs=0.01)
    assert 3.4 < factor(8, 8 + 7, 0.99) < 3.7                       # with the prior, between these and 4.35


@given(draws=st.integers(1, 60), freedom=st.integers(1, 200), share=st.sampled_from([0.5, 0.9, 0.99]))
def test_factors_are_quantiles_of_the_noncentral_t_distribution(draws: int, freedom: int, share: float):
    shift = NORMAL.inv_cdf(share) * math.sqrt(draws)
    quantile = scipy.special.nctdtrit(freedom, shift, 0.95) if share != 0.5 else scipy.special.stdtrit(freedom, 0.95)
    assert factor(draws, freedom, share) == pytest.approx(float(quantile) / math.sqrt(draws), rel=1e-4)


def drawn(logs: float, count: int, seed: int = 0) -> list[float]:
    """Errors of the geometric mean 1e-3 whose logarithms have this sample standard deviation."""
    x = np.random.default_rng(seed).standard_normal(count)
    return list(1e-3 * np.exp(logs * (x - x.mean()) / x.std(ddof=1)))


def test_bounds_are_the_factors_that_the_design_names():
    errors = drawn(0.17, 8)
    assert bound(errors, "max", ALONE) / 1e-3 == pytest.approx(math.exp(4.354 * 0.17), rel=1e-3)       # 2.1
    assert bound(errors, "max", WELL_KNOWN) / 1e-3 == pytest.approx(math.exp(2.908 * 0.17), rel=1e-3)  # 1.6
    assert bound(drawn(0.17, 24), "max", WELL_KNOWN) / 1e-3 < 1.6
    for mean in ("norm", "kl"):
        assert 1.1 < bound(drawn(0.2, 8), mean) / 1e-3 < 1.15
    assert 2.2 < bound(drawn(0.2, 2), "max") / 1e-3 < 2.6           # the first compile: two draws and the prior
    assert bound([1e-3], "max") > bound(drawn(0.2, 2), "max")


@given(st.lists(st.floats(1e-12, 1.0), min_size=1, max_size=12), st.sampled_from(STATISTICS), st.integers(1, 50))
def test_a_bound_is_no_better_than_the_typical_draw_and_scales_with_errors(errors, statistic, count):
    spread = Spread(0.2, count)
    upper = bound(errors, "max", spread)
    assert upper >= math.exp(np.mean(np.log(errors)))
    assert bound([1e-3 * e for e in errors], "max", spread) == pytest.approx(1e-3 * upper, rel=1e-6)
    if statistic in ("top1", "cosine"):
        lower = bound([1.0 - e for e in errors], statistic, spread)
        assert lower <= 1.0 - min(errors) and lower >= {"top1": 0.0, "cosine": -1.0}[statistic]
    else:
        assert bound(errors, statistic, spread) >= min(errors)


@pytest.mark.parametrize("earlier", [0, 8], ids=["draws alone", "with the spread of earlier draws"])
def test_95_percent_of_bounds_cover_99_percent_of_further_draws(earlier: int):
    rng = np.random.default_rng(0)
    held = {"max": 0, "norm": 0}
    for _ in range(2000):
        sigma = 0.2 * math.sqrt(rng.chisquare(earlier) / earlier) if earlier else 0.2
        errors = np.exp(0.2 * rng.standard_normal(8)).tolist()
        held["max"] += bound(errors, "max", Spread(sigma, earlier)) >= math.exp(0.2 * NORMAL.inv_cdf(0.99))
        held["norm"] += bound(errors, "norm", Spread(sigma, earlier)) >= 1.0
    assert 0.94 <= held["max"] / 2000 <= 0.96 and 0.94 <= held["norm"] / 2000 <= 0.96


def test_shares_and_cosines_are_bounded_from_below_as_errors_are_from_above():
    errors = drawn(0.3, 8)
    assert bound([1 - e for e in errors], "top1") == pytest.approx(1 - bound(errors, "norm"), rel=1e-9)
    assert bound([1 - e for e in errors], "cosine") == pytest.approx(1 - bound(errors, "max"), rel=1e-9)


def test_exact_draws_have_an_exact_bound():
    for statistic in STATISTICS:
        best = 1.0 if statistic in ("top1", "cosine") else 0.0
        assert bound([best] * 3, statistic) == best


def test_some_exact_draws_never_hide_the_others():
    assert bound([0.0] * 7 + [1e-3], "max") > bound([1e-3], "max", WELL_KNOWN) > 1e-3
    assert bound([0.0, 1e-3], "norm") > 0.5e-3
    shares = [1.0, 1.0, 1 - 1 / 48, 1.0, 1 - 1 / 48, 1.0, 1 - 1 / 48, 1.0]
    assert 0.98 < bound(shares, "top1") < np.mean(shares)           # and the mean over all draws is what counts


@pytest.mark.parametrize("statistic", STATISTICS)
def test_no_draw_and_a_draw_that_is_not_finite_are_within_no_limit(statistic: str):
    wrong = -math.inf if statistic in ("top1", "cosine") else math.inf
    for values in ([], [math.nan], [0.5, math.nan], [0.5, math.inf], [0.5, -math.inf]):
        assert bound(values, statistic) == wrong


def test_one_draw_without_an_earlier_spread_bounds_nothing():
    assert bound([1e-3], "max", ALONE) == math.inf


def test_errors_far_apart_overflow_to_no_bound():
    assert bound([1e-300, 1e300], "max") == math.inf
