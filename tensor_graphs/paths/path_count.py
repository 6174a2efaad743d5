"""path_count: the number of paths of a graph, without listing them.

A path has a choice for each signature that it reaches. If the signatures inside a signature's alternatives share none, its number
of paths is a sum over its alternatives of products over the signatures inside. Signatures that share some are counted together, one
state per set of decided signatures. Beyond MOST_STATES states the number is an upper limit: a shared signature then counts once for
each position.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tensor_graphs.kernels.signature import Signature
from tensor_graphs.paths.path import Paths

MOST_STATES = 20_000

State = tuple[frozenset[Signature], frozenset[Signature]]
"""(signatures that wait for a choice, signatures that have a choice and may be reached again)."""


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
    """The count needs more than MOST_STATES states."""


class _Counter:
    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self._reach: dict[Signature, frozenset[Signature]] = {}
        self._most: dict[Signature, int] = {}
        self._counts: dict[State, int] = {}

    def ways(self, s: Signature) -> Iterable[frozenset[Signature]]:
        """Yield for each alternative of s the set of signatures inside it."""
        for way in self.paths.alternatives(s):
            yield frozenset() if way.kernel is not None else frozenset(i for i, _ in self.paths.inner(s, way))

    def reach(self, s: Signature) -> frozenset[Signature]:
        """Return s and all signatures inside it, in all of its alternatives and at all depths."""
        if s not in self._reach:
            self._reach[s] = frozenset((s,)).union(*(self.reach(i) for inner in self.ways(s) for i in inner))
        return self._reach[s]

    def most(self, s: Signature) -> int:
        """Return the number of paths of s if no two signatures shared any."""
        if s not in self._most:
            self._most[s] = sum(math.prod(map(self.most, inner)) for inner in self.ways(s))
        return self._most[s]

    def count(self, waiting: frozenset[Signature], decided: frozenset[Signature]) -> int:
        """Return the number of choices for the undecided signatures among `waiting`, and for all signatures that they reach."""
        return math.prod(self._together(group, decided) for group in self._groups(waiting - decided, decided))

    def _groups(self, waiting: frozenset[Signature], decided: frozenset[Signature]) -> list[frozenset[Signature]]:
        """Return the waiting signatures in groups, such that no undecided signature is reached from two groups."""
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
