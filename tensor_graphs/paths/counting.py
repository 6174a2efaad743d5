"""counting: the number of paths, without listing them.

A path is a choice for each signature that it reaches, so a signature has Σ over its ways Π over the signatures within of paths,
where these share none. Those that share some are counted together, by what is decided so far; beyond MOST_STATES of such states the
number is an upper limit: shared signatures then count once for each place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tensor_graphs.kernels.signature import Signature
from tensor_graphs.paths.path import Paths

MOST_STATES = 20_000

State = tuple[frozenset[Signature], frozenset[Signature]]
"""signatures that wait for a choice, and those that have one and may be reached again"""


@dataclass(frozen=True)
class PathCount:
    """A number of paths. exact: False where it is an upper limit."""

    number: int
    exact: bool = True

    def __str__(self) -> str:
        return f"{'' if self.exact else 'at most '}{_in_digits(self.number)}"


def _in_digits(number: int) -> str:
    return f"{number:,}" if number < 10**15 else f"10^{len(str(number)) - 1}"


def count_paths(paths: Paths) -> PathCount:
    """Return the number of paths that `paths` lists."""
    counter = _Counter(paths)
    top = frozenset(s for s, _ in paths.top)
    try:
        return PathCount(counter.count(top, frozenset()))
    except _TooManyError:
        return PathCount(math.prod(map(counter.most, top)), False)


class _TooManyError(Exception):
    """More states than are looked at."""


class _Counter:
    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self._reach: dict[Signature, frozenset[Signature]] = {}
        self._most: dict[Signature, int] = {}
        self._counts: dict[State, int] = {}

    def ways(self, s: Signature) -> Iterable[frozenset[Signature]]:
        """Yield the signatures within s in each of its ways."""
        for way in self.paths.alternatives(s):
            yield frozenset() if way.kernel is not None else frozenset(i for i, _ in self.paths.inner(s, way))

    def reach(self, s: Signature) -> frozenset[Signature]:
        """Return s and all signatures within it in some way."""
        if s not in self._reach:
            self._reach[s] = frozenset((s,)).union(*(self.reach(i) for inner in self.ways(s) for i in inner))
        return self._reach[s]

    def most(self, s: Signature) -> int:
        """Return the number of ways of s where nothing is shared."""
        if s not in self._most:
            self._most[s] = sum(math.prod(map(self.most, inner)) for inner in self.ways(s))
        return self._most[s]

    def count(self, waiting: frozenset[Signature], decided: frozenset[Signature]) -> int:
        """Return the number of choices for the undecided signatures among those that wait and all that these reach."""
        return math.prod(self._together(group, decided) for group in self._groups(waiting - decided, decided))

    def _groups(self, waiting: frozenset[Signature], decided: frozenset[Signature]) -> list[frozenset[Signature]]:
        """Return the signatures that wait in groups, no two of which reach the same undecided one."""
        groups: list[tuple[frozenset[Signature], frozenset[Signature]]] = []
        for s in waiting:
            own, reached = frozenset((s,)), self.reach(s) - decided
            apart = []
            for group, theirs in groups:
                if theirs & reached:
                    own, reached = own | group, reached | theirs
                else:
                    apart.append((group, theirs))
            groups = [*apart, (own, reached)]
        return [group for group, _ in groups]

    def _together(self, group: frozenset[Signature], decided: frozenset[Signature]) -> int:
        reached = frozenset[Signature]().union(*map(self.reach, group))
        state = group, decided & reached
        if state not in self._counts:
            if len(self._counts) >= MOST_STATES:
                raise _TooManyError
            first = min(group, key=lambda s: (len(self.reach(s)), s.key))
            self._counts[state] = sum(self.count(group - {first} | inner, state[1] | {first}) for inner in self.ways(first))
        return self._counts[state]
