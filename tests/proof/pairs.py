"""pairs: how the suites of equal pairs and near misses say a pair: a function that builds both sides, and its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import tensor_graphs as tg

Side = tg.Node | Mapping[str, tg.Node] | tg.Graph
Build = Callable[[], tuple[Side, Side]]


@dataclass(frozen=True)
class Pair:
    """name: a sentence. tested_at: dims that meet a number of the program, so that it is tested at some sizes, and not proved."""

    name: str
    build: Build
    tested_at: tuple[str, ...] = ()
    bits: bool = False

    def graphs(self) -> tuple[tg.Graph, tg.Graph]:
        left, right = self.build()
        return as_graph(left), as_graph(right)


def as_graph(side: Side) -> tg.Graph:
    return side if isinstance(side, tg.Graph) else tg.graph(side)


class Suite(list[Pair]):
    """A list of pairs that grows by decorating functions; a function's name is the pair's."""

    def add(self, tested_at: tuple[str, ...] = (), bits: bool = False) -> Callable[[Build], Build]:
        def register(build: Build) -> Build:
            self.append(Pair(build.__name__, build, tested_at, bits))
            return build

        return register

    def many(self, bits: bool = False, **builds: Build) -> None:
        """Short ones, each a lambda."""
        for name, build in builds.items():
            self.append(Pair(name, build, bits=bits))
