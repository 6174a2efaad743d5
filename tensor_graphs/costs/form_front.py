"""form_front: lists forms of a graph from the cheapest to the most accurate; costs and errors are sums over the words of its sites.

This is the multiple-choice knapsack problem (Kellerer, Pferschy and Pisinger, Knapsack Problems, Springer 2004, chapter 11), solved
for all limits of the error at once. Sites are added one by one to a list of partial forms, none of which another one beats in cost
and error (Nemhauser and Ullmann, Management Science 15(9), 1969). If adding a site makes more than `buckets` candidates, only the
cheapest in each bucket of the error stays (interval partitioning: Sahni, Operations Research 25(6), 1977). Costs and errors of
partial forms remain sums; they are not rounded to those of buckets.

What buckets lose. Errors span many decades, so buckets have equal widths on a logarithmic axis: each covers an equal number of
float64 values, which amounts to log2 with straight lines between powers of two (Mitchell, IRE Transactions on Electronic Computers
EC-11(4), 1962). Error 0 has a bucket of its own. If the positive errors of a list span o octaves, its buckets are

    d ≤ (o + 0.09) / (buckets − 2) octaves wide, and while d ≤ 1 the errors in one differ by a factor of at most 1 + d.

For each form of cost C and error E, the front has one of cost ≤ C and error ≤ E · (1 + d)^p, where p is the number of sites that
made more than `buckets` candidates. Proof: a dropped partial form of error e has a cheaper one of error ≤ e · (1 + d) in its
bucket, and the same words continue both. If p = 0, the front is exact; p is 0 if there are at most `buckets` forms.

This bound is 2.2 for 300 sites, 53 octaves and 20,000 buckets. Losses are much smaller: sites with small errors are added first, so
most losses are relative to small partial sums, and seldom do all of them affect one form. Measured with 300 sites of 5 words and
four kinds of random costs and errors: 1.1 % at worst, 0.2 % on average (against 200,000 buckets), in 0.1 to 0.3 s on one core.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tensor_graphs.argument_checks import ArgumentError, number, whole

Floats = NDArray[np.float64]
Indices = NDArray[np.integer[Any]]

EQUAL = 1e-12
"""relative difference by rounding up to which two sums count as equal; for costs, relative to the largest cost of a front"""


@dataclass(frozen=True)
class WordCost:
    """One word at one site. seconds, nbytes: cost of the site with this word; they may be differences from the written word, and so
    negative. error: what the word adds to the error of a form (a squared norm, or KL)."""

    site: str
    word: str
    seconds: float
    error: float
    nbytes: float = 0.0


@dataclass(frozen=True)
class FormCost:
    """One form: a word per site, with the sums of their seconds, errors (and the fixed error) and bytes."""

    words: Mapping[str, str]
    seconds: float
    error: float
    nbytes: float


class ChosenWords(Mapping[str, str]):
    """Mapping of each site to its word. columns: site -> (column, words to choose from), shared by all forms of a front, as
    thousands of dicts with hundreds of sites would take 100 MB. places: per column, the index of the chosen word."""

    def __init__(self, columns: Mapping[str, tuple[int, Sequence[str]]], places: Indices) -> None:
        self._columns, self._places = columns, places

    def __getitem__(self, site: str) -> str:
        column, words = self._columns[site]
        return words[self._places[column]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return repr(dict(self))


def front(choices: Sequence[WordCost], fixed_error: float = 0.0, by: Literal["seconds", "nbytes"] = "seconds",
          buckets: int = 20_000) -> list[FormCost]:
    """Return the forms that no other one beats in cost and error, the cheapest first; errors fall from each to the next.

    choices: the words of all sites; a form has one per site. A word whose error or cost is not finite is never chosen.
    fixed_error: part of each form's error. by: which cost counts. buckets: most partial forms in a list; time grows like
    sites · words · buckets, memory like sites · buckets. Costs and errors count as equal up to a relative difference of EQUAL.
    Raises ArgumentError (a ValueError): a site with no finite word, a word that occurs twice at a site, a negative error.
    """
    buckets = whole("buckets", buckets, 3)
    fixed_error = number("fixed_error", fixed_error, "a finite number of 0 or more") + 0.0           # + 0.0: -0.0 becomes 0.0
    sites = {site: _best_words(site, words, by) for site, words in _by_site(choices).items()}
    rows = {site: np.array([(w.seconds, w.error, w.nbytes) for w in words]) for site, words in sites.items()}
    cost_column = 0 if by == "seconds" else 2
    ascending = sorted(rows, key=lambda site: float(rows[site][-1, 1]))
    error, cost = np.array([fixed_error]), np.zeros(1)
    steps: list[tuple[Indices, int]] = []                         # per site: candidates in its list, length of the list before
    for site in ascending:
        errors, costs = rows[site][:, 1, None] + error, rows[site][:, cost_column, None] + cost            # [word, partial form]
        chosen = undominated(errors, costs, buckets)
        steps.append((chosen.astype(np.int32), len(error)))
        error, cost = errors.ravel()[chosen], costs.ravel()[chosen]
    at, sums = np.arange(len(error)), np.tile((0.0, fixed_error, 0.0), (len(error), 1))
    places = np.empty((len(ascending), len(error)), np.int16)
    for column in reversed(range(len(ascending))):
        candidates, before = steps[column]
        place, at = np.divmod(candidates[at], before)
        places[column] = place
        sums += rows[ascending[column]][place]
    cost, error = sums[:, cost_column], sums[:, 1]
    order = np.lexsort((cost, error))                             # again: some sums are equal but for the order of their additions
    order = order[_falls(cost[order], EQUAL * np.abs(cost).max())][::-1]
    order = order[_falls(error[order], EQUAL * error[order])]
    column_of = {site: column for column, site in enumerate(ascending)}
    columns = {site: (column_of[site], tuple(w.word for w in words)) for site, words in sites.items()}
    return [FormCost(ChosenWords(columns, places[:, i].copy()), *sums[i].tolist()) for i in order]


def _by_site(choices: Sequence[WordCost]) -> dict[str, dict[str, WordCost]]:
    sites: dict[str, dict[str, WordCost]] = {}
    for choice in choices:
        words = sites.setdefault(choice.site, {})
        if choice.word in words:
            raise ArgumentError(f"site {choice.site} has the word {choice.word} twice\n  fix: one WordCost per site and word")
        if choice.error < 0:
            raise ArgumentError(f"the error of {choice.word} at site {choice.site} is {choice.error}\n  fix: an error of 0 or more")
        words[choice.word] = choice
    return sites


def _best_words(site: str, words: Mapping[str, WordCost], by: str) -> list[WordCost]:
    """Return the words of a site that no other word of the site beats in cost and error, by ascending error."""
    finite = sorted((word for word in words.values() if math.isfinite(word.error) and math.isfinite(getattr(word, by))),
                    key=lambda word: (word.error, getattr(word, by)))
    if not finite:
        raise ArgumentError(f"site {site} has no word with a finite error and finite {by}\n  fix: add its written word")
    falls = _falls(np.array([getattr(word, by) for word in finite]))
    return [word for word, falling in zip(finite, falls, strict=True) if falling]


def undominated(errors: Floats, costs: Floats, buckets: int) -> Indices:
    """Return the flat indices of the candidates that no other one beats in error and cost, by ascending error. errors, costs:
    [word, partial form], with ascending errors and falling costs along partial forms. If there are more than `buckets` candidates,
    only the cheapest in each bucket of the error are considered."""
    flat = costs.ravel()
    order = np.lexsort((flat, errors.ravel())) if errors.size <= buckets else _cheapest_of_buckets(errors, costs, buckets)
    return order[_falls(flat[order])]


def _cheapest_of_buckets(errors: Floats, costs: Floats, buckets: int) -> Indices:
    bits = errors.view(np.int64)                                  # of floats ≥ 0: in the order of the floats
    lowest = bits[:, :2][bits[:, :2] > 0].min()                   # only the first of a row can be 0
    width = (bits[:, -1].max() - lowest) // (buckets - 2) + 1
    bucket = (bits - (lowest - width)) // width
    bucket[bits[:, 0] == 0, 0] = 0
    ends = np.ones(bucket.shape, bool)                            # the last, so cheapest, of a word's candidates in a bucket
    ends[:, :-1] = bucket[:, 1:] != bucket[:, :-1]
    cheapest, chosen = np.full(buckets, math.inf), np.full(buckets, -1)
    for word in range(len(errors)):
        last = np.flatnonzero(ends[word])
        place = bucket[word, last]
        cheaper = costs[word, last] < cheapest[place]
        place, last = place[cheaper], last[cheaper]
        cheapest[place], chosen[place] = costs[word, last], word * errors.shape[1] + last
    return chosen[chosen >= 0]


def _falls(values: Floats, margin: Floats | float = 0.0) -> NDArray[np.bool_]:
    """Return for each value whether it is lower than all values before it, by more than a margin."""
    falls = np.ones(len(values), bool)
    falls[1:] = (values + margin)[1:] < np.minimum.accumulate(values)[:-1]
    return falls


def spaced(forms: Sequence[FormCost], most: int, by: Literal["seconds", "nbytes"] = "seconds") -> list[FormCost]:
    """Return at most `most` (2 or more) forms of a front, in its order: the first, the last, and forms at about equal distances
    between them. A distance is the difference of costs plus that of ln(error), each relative to its range; error 0 counts as the
    least positive one."""
    if len(forms) <= whole("most", most, 2):
        return list(forms)
    costs, errors = np.array([getattr(form, by) for form in forms]), np.array([form.error for form in forms])
    logs = np.log(np.maximum(errors, errors[errors > 0].min(initial=math.inf)))
    places = sum((x - x[0]) / max(abs(x[-1] - x[0]), 1e-300) for x in (costs, -logs))
    nearest = [int(np.abs(places - place).argmin()) for place in np.linspace(places[0], places[-1], most)]
    return [forms[i] for i in sorted({0, len(forms) - 1, *nearest})]


def within(forms: Sequence[FormCost], limit: float) -> FormCost | None:
    """Return the cheapest form of a front whose error is at most the limit; None if there is none."""
    return next((form for form in forms if form.error <= limit), None)
