"""costs/form_front.py: no form is missed that is cheaper within some limit of the error, up to the loss that the module states."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.costs import form_front
from tensor_graphs.costs.form_front import FormCost, WordCost, front, spaced, undominated, within

Pair = tuple[float, float]
"""cost and error"""


def words(**sites: Sequence[Pair]) -> list[WordCost]:
    return [WordCost(site, f"w{i}", *pair) for site, pairs in sites.items() for i, pair in enumerate(pairs)]


def by_site(choices: Sequence[WordCost]) -> dict[str, list[WordCost]]:
    return {site: [c for c in choices if c.site == site] for site in dict.fromkeys(c.site for c in choices)}


def all_forms(choices: Sequence[WordCost]) -> list[Pair]:
    return [(sum(c.seconds for c in form), sum(c.error for c in form)) for form in itertools.product(*by_site(choices).values())]


def best(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs that no other beats, by definition."""
    return sorted({p for p in pairs if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in pairs)})


def pairs_of(forms: Sequence[FormCost]) -> list[Pair]:
    return [(form.seconds, form.error) for form in forms]


def by_slope(choices: Sequence[WordCost]) -> list[Pair]:
    """Vertices of the lower convex hull of all forms: from the most accurate form on, the step with the most seconds per error."""
    steps = []
    cost = error = 0.0
    for site in by_site(choices).values():
        at = min(site, key=lambda c: (c.error, c.seconds))
        cost, error = cost + at.seconds, error + at.error
        while coarser := [c for c in site if c.error > at.error and c.seconds < at.seconds]:
            following = max(coarser, key=lambda c: (at.seconds - c.seconds) / (c.error - at.error))
            steps.append((at.seconds - following.seconds, following.error - at.error))
            at = following
    steps.sort(key=lambda step: step[1] / step[0])
    return [(cost, error), *((cost := cost - saved, error := error + lost) for saved, lost in steps)]


def many(sites: int, seed: int = 1) -> list[WordCost]:
    """Sites with five words each: rounding as in f64, f32, tf32 and bf16, with random factors; squared errors from 1e-16 on."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(sites):
        errors = 10 ** rng.normal(-4, 1) * np.array([0, 1e-12, 1e-6, 1e-3, 1e-1]) * rng.lognormal(0, 0.3, 5)
        seconds = 10 ** rng.normal(0, 0.5) * np.array([1, 0.9, 0.5, 0.3, 0.2]) * rng.lognormal(0, 0.05, 5)
        rows += [WordCost(f"site{i}", f"w{j}", float(seconds[j]), float(errors[j])) for j in range(5)]
    return rows


@st.composite
def problems(draw: st.DrawFn, sites: int, octaves: int) -> list[WordCost]:
    """Costs and errors are small integers, the errors times a power of two, so that sums are exact in any order."""
    rows = []
    for i in range(draw(st.integers(1, sites))):
        for j in range(draw(st.integers(1, 4))):
            error = draw(st.integers(0, 15)) * 2.0 ** -draw(st.integers(0, octaves))
            rows.append(WordCost(f"site{i}", f"word{j}", draw(st.integers(-4, 20)), error, draw(st.integers(0, 9))))
    return rows


@settings(derandomize=True, max_examples=150, deadline=None)
@given(choices=problems(sites=5, octaves=16))
def test_a_small_front_is_that_of_all_forms(choices: list[WordCost]) -> None:
    assert pairs_of(front(choices)) == best(all_forms(choices))


@settings(derandomize=True, max_examples=100, deadline=None)
@given(choices=problems(sites=5, octaves=4), buckets=st.sampled_from([16, 32, 64]))
def test_with_few_buckets_each_form_is_met_up_to_the_stated_loss(choices: list[WordCost], buckets: int) -> None:
    forms = front(choices, buckets=buckets)
    octaves = math.log2(5 * 15) + 4
    width = (octaves + 0.09) / (buckets - 2)
    for cost, error in all_forms(choices):
        assert any(form.seconds <= cost and form.error <= error * (1 + width) ** len(by_site(choices)) for form in forms)
    assert pairs_of(forms) == best(pairs_of(forms))


@settings(derandomize=True, max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), zero=st.booleans())
def test_one_step_with_buckets_loses_at_most_the_width_of_one(seed: int, zero: bool) -> None:
    rng = np.random.default_rng(seed)
    partial, cost = np.sort(2 ** rng.uniform(-9, 0, 60)), -np.sort(-rng.uniform(0, 1, 60))
    partial[0] *= not zero
    errors = np.array([0, *2 ** rng.uniform(-9, 0, 3)])[:, None] + partial
    costs = rng.uniform(0, 1, 4)[:, None] + cost
    buckets = 50
    places = undominated(errors, costs, buckets)
    left_errors, left_costs = errors.ravel()[places], costs.ravel()[places]
    width = (math.log2(errors.max() / errors[errors > 0].min()) + 0.09) / (buckets - 2)
    assert len(places) <= buckets and (np.diff(left_errors) > 0).all() and (np.diff(left_costs) < 0).all()
    for e, c in zip(errors.ravel(), costs.ravel(), strict=True):
        assert ((left_costs <= c) & (left_errors <= e * (1 + width))).any()


def test_errors_of_three_hundred_sites_exceed_the_convex_hull_by_two_percent_at_most() -> None:
    """No form is below the hull, so the loss relative to the best form at a vertex's cost is no larger."""
    choices = many(300)
    forms = front(choices)
    seconds = [form.seconds for form in forms]
    for cost, error in by_slope(choices):
        assert forms[bisect.bisect_right(seconds, cost * (1 + 1e-9)) - 1].error <= 1.02 * error


def test_lists_of_partial_forms_never_outgrow_the_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    candidates, lengths = [], []

    def counted(errors: form_front.Floats, costs: form_front.Floats, buckets: int) -> form_front.Indices:
        places = undominated(errors, costs, buckets)
        candidates.append(errors.size)
        lengths.append(len(places))
        return places

    monkeypatch.setattr(form_front, "undominated", counted)
    front(many(100), buckets=500)
    assert len(lengths) == 100 and max(lengths) <= 500 < max(candidates) <= 5 * 500


def test_one_large_item_is_not_taken_first_nor_left_out_for_its_slope() -> None:
    """Greedy by slope takes four small items, and the large one no longer fits; it and three small ones save more."""
    choices = words(head=[(60, 0), (27, 7)], a=[(9, 0), (3, 1)], b=[(9, 0), (3, 1)], c=[(9, 0), (3, 1)], d=[(9, 0), (3, 1)])
    greedy = min(cost for cost, error in by_slope(choices) if error <= 10)
    form = within(front(choices), 10)
    assert form is not None and (greedy, form.seconds, form.error) == (96 - 24, 96 - 33 - 18, 10)
    assert form.words["head"] == "w1" and sorted(form.words.values()) == ["w0", "w1", "w1", "w1", "w1"]


def test_the_sums_of_a_form_are_those_of_its_words() -> None:
    choices = [WordCost(c.site, c.word, c.seconds, c.error, nbytes=100 * c.seconds) for c in many(40)]
    table = {(c.site, c.word): c for c in choices}
    for form in spaced(front(choices, fixed_error=1e-9), 20):
        chosen = [table[item] for item in form.words.items()]
        assert [*form.words] == [*by_site(choices)]
        assert form.seconds == pytest.approx(sum(c.seconds for c in chosen), rel=1e-12)
        assert form.error == pytest.approx(1e-9 + sum(c.error for c in chosen), rel=1e-12)
        assert form.nbytes == pytest.approx(sum(c.nbytes for c in chosen), rel=1e-12)


@pytest.mark.parametrize(("by", "word"), [("seconds", "fast"), ("nbytes", "small")])
def test_the_cost_is_the_seconds_or_the_bytes(by: Literal["seconds", "nbytes"], word: str) -> None:
    choices = [WordCost("s", "fast", 1, 0.5, 9), WordCost("s", "small", 2, 0.5, 3), WordCost("s", "written", 4, 0, 10)]
    assert [form.words for form in front(choices, by=by)] == [{"s": word}, {"s": "written"}]


def test_a_faster_word_without_an_error_is_always_chosen() -> None:
    forms = front(words(free=[(5, 0), (2, 0)], other=[(5, 0), (2, 1)]))
    assert len(forms) == 2 and all(form.words["free"] == "w1" for form in forms)


@pytest.mark.parametrize("error", [math.inf, math.nan])
def test_a_word_with_an_error_that_is_not_finite_is_never_chosen(error: float) -> None:
    assert [form.words for form in front(words(s=[(5, 0), (1, error)]))] == [{"s": "w0"}]
    with pytest.raises(ArgumentError, match="site layers.0.q has no word"):
        front([WordCost("s", "w", 1, 0), WordCost("layers.0.q", "w", 1, error)])


def test_a_word_of_unknown_time_is_never_chosen() -> None:
    assert [form.words for form in front(words(s=[(5, 0), (math.nan, 0), (math.inf, 0), (4, 1)]))] == [{"s": "w3"}, {"s": "w0"}]


@pytest.mark.parametrize(("choices", "message"), [
    ([WordCost("q", "f32", 1, 0), WordCost("q", "f32", 2, 0)], "site q has the word f32 twice"),
    ([WordCost("q", "f32", 1, -1e-9)], "error of f32 at site q is -1e-09")])
def test_an_impossible_word_is_refused_with_its_site(choices: list[WordCost], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        front(choices)


def test_without_sites_only_the_fixed_error_is_left() -> None:
    assert front([], fixed_error=0.25) == [FormCost({}, 0, 0.25, 0)]


def test_sums_that_differ_by_rounding_only_are_one_form() -> None:
    """18 equal sites with costs that no float holds: orders of additions differ, and the hull has 4 steps per site."""
    choices = words(**{f"s{i}": [(1.0, 0), (0.73, 1.1e-9), (0.51, 3.3e-6), (0.29, 7.7e-4), (0.17, 0.013)] for i in range(18)})
    forms = front(choices)
    assert len(forms) == 4 * 18 + 1
    assert all(b.error < a.error * (1 - 1e-9) and b.seconds > a.seconds * (1 + 1e-9) for a, b in itertools.pairwise(forms))


@pytest.mark.parametrize("least", [0.0, 1e-14])
@pytest.mark.parametrize("most", [2, 3, 12])
def test_spaced_forms_are_both_ends_and_some_at_equal_distances(most: int, least: float) -> None:
    forms = front([WordCost(c.site, c.word, c.seconds, c.error) for c in many(60)], fixed_error=least)
    few = spaced(forms, most)
    assert most // 2 < len(few) <= most and few[0] is forms[0] and few[-1] is forms[-1]
    assert pairs_of(few) == best(pairs_of(few))
    floor = min(form.error for form in forms if form.error > 0)
    ranges = forms[-1].seconds - forms[0].seconds, math.log(forms[0].error / floor)
    steps = [(b.seconds - a.seconds) / ranges[0] + math.log(a.error / max(b.error, floor)) / ranges[1]
             for a, b in itertools.pairwise(few)]
    assert sum(steps) == pytest.approx(2.0) and max(steps) < 2 * 2.0 / (most - 1)


def test_a_front_of_few_forms_is_not_spaced() -> None:
    forms = front(words(a=[(5, 0), (2, 1)], b=[(5, 0), (1, 3)]))
    assert len(forms) == 4 and spaced(forms, 4) == forms and len(spaced(forms, 3)) == 3
    with pytest.raises(ArgumentError, match="most is 1"):
        spaced(forms, 1)


def test_within_a_limit_is_the_fastest_form_or_none() -> None:
    forms = front(words(a=[(5, 0.5), (2, 1)]))
    assert [within(forms, limit) for limit in (0.4, 0.5, 0.99, 1.0, 9)] == [None, forms[1], forms[1], forms[0], forms[0]]
