"""layout: places boxes and arrows on a plane: layers from top to bottom, frames around repetitions as boxes of their own.

    placed = layout(items, sizes, arrows)           # of one block; each frame's inside is placed once, then it is one large box

Layers: the longest chain of arrows before a box. Order in a layer: mean position of the neighbours, a few sweeps in each direction,
the order with the fewest crossings. Positions: the least squares to the neighbours' positions at which no two boxes overlap (pool
adjacent violators). An arrow past other layers has a point in each. Time: linear in boxes and points, times the number of sweeps.
Source of the method: Sugiyama, Tagawa, Toda, Methods for visual understanding of hierarchical system structures, 1981.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tensor_graphs.views.fold_repeats import Item, Repeat

Point = tuple[float, float]
Size = tuple[float, float]

BESIDE, BELOW = 18.0, 26.0
"""Pixels between two boxes of a layer, and between two layers."""
FRAME, LABEL = 14.0, 16.0
"""Pixels between a frame and what is in it, and more of them at its top, for its label."""
LANE = 8.0
"""Width of an arrow among the boxes of a layer that it passes."""
SWEEPS = 6
"""Sweeps that decide the order in the layers, and as many that decide the positions."""
LONGEST = 200
"""Most layers that an arrow has points in; a longer one is drawn straight."""


@dataclass(frozen=True)
class DrawnFrame:
    """A repetition's frame: left, top, width, height; how many times."""

    x: float
    y: float
    width: float
    height: float
    times: int


@dataclass
class DiagramLayout:
    """Positions in pixels. boxes: number -> centre. arrows: (from, to) -> points from the lower border of one box to the upper
    border of the other, in pieces: an arrow into a frame has one outside and one inside. back: arrows to earlier boxes, which
    have a lane at the right of their frame."""

    width: float = 0.0
    height: float = 0.0
    boxes: dict[int, Point] = field(default_factory=dict)
    frames: list[DrawnFrame] = field(default_factory=list)
    arrows: dict[tuple[int, int], list[list[Point]]] = field(default_factory=dict)
    back: dict[tuple[int, int], list[Point]] = field(default_factory=dict)


def layout(items: Sequence[Item], sizes: Mapping[int, Size], arrows: Iterable[tuple[int, int]]) -> DiagramLayout:
    """Return the positions of boxes. items: as folded, in an order in which arrows that are not to an earlier box go forward.
    sizes: width and height of each box."""
    return block_of(items, sizes, arrows).placed()


def block_of(items: Sequence[Item], sizes: Mapping[int, Size], arrows: Iterable[tuple[int, int]]) -> DiagramBlock:
    """Return the whole picture as a block, which a page can place again when boxes get other sizes."""
    return DiagramBlock(items, sizes, sorted(set(arrows)), ())


@dataclass(eq=False)
class Element:
    """A box, the inside of a frame, the end of an arrow that goes into or out of the block, or a point of an arrow."""

    width: float
    height: float
    number: int | None = None
    block: DiagramBlock | None = None
    rank: int = 0
    x: float = 0.0
    before: list[Element] = field(default_factory=list)
    after: list[Element] = field(default_factory=list)


class DiagramBlock:
    """The boxes of one frame, or of the whole picture. arrows: all with an end in it. outside: numbers of boxes that are not."""

    width: float
    height: float

    def __init__(self, items: Sequence[Item], sizes: Mapping[int, Size], arrows: Sequence[tuple[int, int]],
                 times: Sequence[int]) -> None:
        self.times, self.own = times, dict[int, Element]()
        self.elements: list[Element] = []
        members = [_numbers([item]) for item in items]
        place = {n: k for k, of_item in enumerate(members) for n in of_item}
        self.backward = [(a, b) for a, b in arrows if a in place and b in place and (
            place[a] > place[b] or (place[a] == place[b] and not isinstance(items[place[a]], Repeat)))]
        turned = set(self.backward)
        forward = [pair for pair in arrows if pair not in turned]
        for item, of_item in zip(items, members, strict=True):
            if isinstance(item, Repeat):
                block = DiagramBlock(item.inside, sizes, [(a, b) for a, b in forward if a in of_item or b in of_item],
                               (*times, item.times))
                self.elements.append(Element(block.width, block.height, block=block))
            else:
                self.elements.append(Element(*sizes[item], number=item))
            self.own |= dict.fromkeys(of_item, self.elements[-1])
        self.into = {a: Element(LANE, 0.0) for a, b in forward if a not in self.own}
        self.out_of = {a: Element(LANE, 0.0) for a, b in forward if b not in self.own}
        self.chains = dict[tuple[int, int], list[Element]]()
        self._rank(forward)
        self.layers = self._layers()
        self._order()
        self._spread()
        self._measure()

    def _rank(self, forward: Sequence[tuple[int, int]]) -> None:
        ends = {pair: (self.into[pair[0]] if pair[0] not in self.own else self.own[pair[0]],
                       self.out_of[pair[0]] if pair[1] not in self.own else self.own[pair[1]]) for pair in forward}
        ends = {pair: (a, b) for pair, (a, b) in ends.items() if a is not b}
        first = 1 if self.into else 0
        readers = dict[Element, list[Element]]()
        sources = dict[Element, list[Element]]()
        for a, b in set(ends.values()):
            readers.setdefault(a, []).append(b)
            sources.setdefault(b, []).append(a)
        for element in self.elements:
            element.rank = max((a.rank + 1 for a in sources.get(element, ())), default=first)
        for element in reversed(self.elements):                     # what reads nothing lies just before its first reader
            ranks = [b.rank for b in readers.get(element, ()) if b.rank]
            if ranks and element not in sources:
                element.rank = max(first, min(ranks) - 1)
        last = max((e.rank for e in self.elements), default=0) + 1
        for element in self.out_of.values():
            element.rank = last
        for pair, (a, b) in ends.items():
            self.chains[pair] = self._chain(a, b)

    def _chain(self, a: Element, b: Element) -> list[Element]:
        """Return the elements of an arrow from a to b, with a point in each layer between them."""
        points = [Element(LANE, 0.0, rank=rank) for rank in range(a.rank + 1, b.rank)] if b.rank - a.rank <= LONGEST else []
        chain = [a, *points, b]
        for one, next_one in pairwise(chain):
            one.after.append(next_one)
            next_one.before.append(one)
        return chain

    def _layers(self) -> list[list[Element]]:
        everything = dict.fromkeys([*self.into.values(), *self.elements, *(e for c in self.chains.values() for e in c),
                                    *self.out_of.values()])
        layers: list[list[Element]] = [[] for _ in range(1 + max((e.rank for e in everything), default=0))]
        for element in everything:
            layers[element.rank].append(element)
        return layers

    def _order(self) -> None:
        best, fewest = [list(layer) for layer in self.layers], self._crossings()
        for sweep in range(SWEEPS):
            down = sweep % 2 == 0
            step = -1 if down else 1
            for k in range(len(self.layers))[::-step]:
                layer = self.layers[k]
                place = {e: i for i, e in enumerate(self.layers[k + step])} if 0 <= k + step < len(self.layers) else {}
                means = {e: _mean([place[n] for n in (e.before if down else e.after) if n in place], i)
                         for i, e in enumerate(layer)}
                layer.sort(key=means.__getitem__)
            crossings = self._crossings()
            if crossings < fewest:
                best, fewest = [list(layer) for layer in self.layers], crossings
        self.layers = best

    def _crossings(self) -> int:
        count = 0
        for upper, lower in pairwise(self.layers):
            place, seen = {e: k for k, e in enumerate(lower)}, list[int]()
            for element in upper:
                ends = sorted(place[b] for b in element.after if b in place)
                count += sum(len(seen) - bisect_right(seen, end) for end in ends)
                for end in ends:
                    insort(seen, end)
        return count

    def _spread(self) -> None:
        """Decide the horizontal centres."""
        for layer in self.layers:
            _separate(layer, [0.0] * len(layer))
        for sweep in range(SWEEPS):
            down = sweep % 2 == 0
            for layer in self.layers if down else reversed(self.layers):
                _separate(layer, [_mean([n.x for n in (e.before if down else e.after)], e.x) for e in layer])
        everything = [e for layer in self.layers for e in layer]
        left = min((e.x - e.width / 2 for e in everything), default=0.0)
        for element in everything:
            element.x += FRAME - left

    def _measure(self) -> None:
        """Decide the vertical centres of the layers, and the size of the block."""
        top = LABEL if self.times else 0.0
        self.tops: list[float] = []
        for k, layer in enumerate(self.layers):
            height = max((e.height for e in layer), default=0.0)
            top += BELOW if k else FRAME
            self.tops.append(top)
            top += height
        self.heights = [max((e.height for e in layer), default=0.0) for layer in self.layers]
        right = max((e.x + e.width / 2 for layer in self.layers for e in layer), default=0.0)
        self.lane = right + LANE
        self.width = right + FRAME + (2 * LANE if self.backward else 0.0)
        self.height = top + FRAME

    def to_json(self) -> dict[str, Any]:
        """Return the order of the layers, and the elements of each arrow, by numbers of elements. An element is a box's number, a
        block, or null for a point; x: its horizontal centre."""
        number = {e: k for k, e in enumerate(e for layer in self.layers for e in layer)}
        return {"times": self.times[-1] if self.times else 0,
                "elements": [e.number if e.block is None else e.block.to_json() for e in number],
                "x": [round(e.x, 1) for e in number], "layers": [[number[e] for e in layer] for layer in self.layers],
                "chains": [[a, b, [number[e] for e in chain]] for (a, b), chain in self.chains.items()],
                "back": [[a, b, number[self.own[a]], number[self.own[b]]] for a, b in self.backward],
                "into": {str(a): number[e] for a, e in self.into.items()},
                "outof": {str(a): number[e] for a, e in self.out_of.items()}}

    # ---- positions ----

    def placed(self) -> DiagramLayout:
        result = DiagramLayout(self.width, self.height)
        self._place(result, 0.0, 0.0)
        return result

    def _place(self, result: DiagramLayout, left: float, top: float) -> None:
        middle = [top + t + h / 2 for t, h in zip(self.tops, self.heights, strict=True)]
        for element in self.elements:
            if element.block is not None:
                x, y = left + element.x - element.width / 2, middle[element.rank] - element.height / 2
                result.frames.append(DrawnFrame(x, y, element.width, element.height, element.block.times[-1]))
                element.block._place(result, x, y)
            elif element.number is not None:
                result.boxes[element.number] = left + element.x, middle[element.rank]
        for (a, b), chain in self.chains.items():
            points: list[Point] = []
            for k, element in enumerate(chain):
                x, y = left + self._port(element, a, outgoing=k == 0), middle[element.rank]
                half = element.height / 2
                if 0 < k < len(chain) - 1:
                    half = self.heights[element.rank] / 2           # straight past the boxes of its layer
                    points.append((x, y - half))
                    points.append((x, y + half))
                elif element in self.into.values():
                    points.append((x, top))
                elif element in self.out_of.values():
                    points.append((x, top + self.height))
                else:
                    points.append((x, y + half if k == 0 else y - half))
            result.arrows.setdefault((a, b), []).append(points)
        for a, b in self.backward:
            one, other = self.own[a], self.own[b]
            xs = [left + self._port(one, a, outgoing=True), left + other.x]
            low, high = middle[one.rank] + one.height / 2, middle[other.rank] - other.height / 2
            side = left + self.lane
            result.back[a, b] = [(xs[0], low), (xs[0], low + BELOW / 3), (side, low + BELOW / 3), (side, high - BELOW / 3),
                                 (xs[1], high - BELOW / 3), (xs[1], high)]

    def _port(self, element: Element, source: int, *, outgoing: bool) -> float:
        """Return where an arrow of the box `source` meets an element."""
        if element.block is None:
            return element.x
        ports = element.block.out_of if outgoing else element.block.into
        return element.x - element.width / 2 + ports[source].x if source in ports else element.x


def _numbers(items: Sequence[Item]) -> set[int]:
    return {n for item in items for n in (_numbers(item.inside) if isinstance(item, Repeat) else (item,))}


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _separate(layer: Sequence[Element], wanted: Sequence[float]) -> None:
    """Set the centres nearest to `wanted`, by least squares, that keep the order and the distances of a layer."""
    offsets, at = list[float](), 0.0
    for k, element in enumerate(layer):
        at += (layer[k - 1].width + element.width) / 2 + BESIDE if k else 0.0
        offsets.append(at)
    groups: list[tuple[float, int]] = []                            # (sum, number) of elements that touch
    for target, offset in zip(wanted, offsets, strict=True):
        groups.append((target - offset, 1))
        while len(groups) > 1 and groups[-2][0] / groups[-2][1] > groups[-1][0] / groups[-1][1]:
            (s, n), (t, m) = groups[-2:]
            groups[-2:] = [(s + t, n + m)]
    starts = [total / count for total, count in groups for _ in range(count)]
    for element, start, offset in zip(layer, starts, offsets, strict=True):
        element.x = start + offset
