"""fold_repeats: folds consecutive repetitions, nested ones too: 18 equal layers become one layer, times 18."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

WORTH = 4
"""Fewest elements that a fold has to save: two equal steps in a row are no layer."""


@dataclass(frozen=True)
class Repeat:
    """Consecutive repetitions, `times` of them. inside: the items of the first repetition."""

    times: int
    inside: tuple[Item, ...]


Item = int | Repeat
"""The number of an element, or a Repeat of several."""


def folded(kinds: Sequence[Hashable], among: Sequence[int] | None = None) -> tuple[Item, ...]:
    """Return the elements in their order, with runs of equal blocks folded; elements are equal where their kinds are.

    The fold that saves the most comes first, then those before, in and after it. among: the numbers of the elements to fold.

    >>> folded("xababaababacy")
    (0, Repeat(times=2, inside=(1, 2, 3, 4, 5)), 11, 12)
    >>> folded("aaaaab" * 3)
    (Repeat(times=3, inside=(Repeat(times=5, inside=(0,)), 5)),)
    """
    order = list(range(len(kinds)) if among is None else among)
    saved, start, period, times = _best([kinds[i] for i in order])
    if saved < WORTH:
        return tuple(order)
    end = start + period * times
    return (*folded(kinds, order[:start]), Repeat(times, folded(kinds, order[start:start + period])), *folded(kinds, order[end:]))


def _best(kinds: Sequence[Hashable]) -> tuple[int, int, int, int]:
    """Return (elements saved, start of the first block, its length, number of blocks) of the fold that saves the most; of equal
    folds the one with the shortest block, and the first."""
    number = {kind: i for i, kind in enumerate(dict.fromkeys(kinds))}
    numbers = np.array([number[kind] for kind in kinds])
    best = 0, 0, 1, 1
    for period in range(1, len(numbers) // 2 + 1):
        ends = np.flatnonzero(numbers[:-period] != numbers[period:])
        starts = np.concatenate(([0], ends + 1))                    # of runs in which each element equals the one a period later
        saved = (np.append(ends, len(numbers) - period) - starts) // period * period
        run = int(np.argmax(saved))
        if saved[run] > best[0]:
            best = int(saved[run]), int(starts[run]), period, int(saved[run]) // period + 1
    return best


def shown_for(items: Sequence[Item], many: int = 1) -> dict[int, int]:
    """Return the elements that are shown, each -> the number of elements that it is shown for."""
    counts: dict[int, int] = {}
    for item in items:
        counts |= {item: many} if isinstance(item, int) else shown_for(item.inside, many * item.times)
    return counts


def stands_for(items: Sequence[Item]) -> list[int]:
    """Return for every element, in order, the number of the element that is shown for it.

    >>> stands_for(folded("aaaaab" * 2))
    [0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 5]
    """
    shown: list[int] = []
    for item in items:
        shown += [item] if isinstance(item, int) else stands_for(item.inside) * item.times
    return shown
