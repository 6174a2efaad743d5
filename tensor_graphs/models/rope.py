"""rope: the rule by which a model's positions become rotation angles, published ways to stretch a context included, as data.

Sources: RoFormer, Su et al. 2021; position interpolation ("linear"), Chen et al. 2023; NTK-aware scaling by length ("dynamic"),
bloc97 and emozilla 2023; YaRN, Peng et al. 2023; LongRoPE, Ding et al. 2024; Llama 3.1 ("llama3"), Meta 2024.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tensor_graphs.language import atomic
from tensor_graphs.language.atomic import dim_fill, fill
from tensor_graphs.language.composites import arithmetic
from tensor_graphs.language.composites.elementary import cos
from tensor_graphs.language.composites.indexing import concat
from tensor_graphs.language.composites.positions import rope, rope_table
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import f32, f64, i32
from tensor_graphs.language.leaves import constant
from tensor_graphs.language.node import Node
from tensor_graphs.language.operands import broadcast_to

RopeKind = Literal["linear", "dynamic", "yarn", "llama3", "longrope"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rule by which positions become angles: position · frequency[i], in radians, frequency[i] = theta^(−2i/channels) before
    scaling.

    kind, scaling: "linear" divides all frequencies by scaling (1: no scaling). "llama3" divides only the low ones (wavelengths
    beyond original / low; those below original / high are unchanged, between them the two are mixed). "yarn" divides those that
    turn fewer than `low` times in `original` positions (those with more than `high` turns are unchanged; truncate: the borders are
    whole channels). "dynamic" enlarges theta with the length beyond `original`. "longrope" divides by `short`, or beyond `original`
    positions by `long`. With the last two, keys in a cache keep the angles of the length at which they were written. channels:
    number of a head's channels that are rotated, from the first; 0 = all. neighbours: channels 2i and 2i + 1 are a pair, not i and
    i + channels/2. magnitude: factor of cosines and sines.
    """

    theta: float
    scaling: float = 1.0
    kind: RopeKind = "linear"
    channels: int = 0
    neighbours: bool = False
    magnitude: float = 1.0
    original: int = 0
    low: float = 1.0
    high: float = 4.0
    truncate: bool = True
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()

    @property
    def by_length(self) -> bool:
        """True if frequencies depend on the number of positions so far."""
        return self.kind in ("dynamic", "longrope")

    def table(self, positions: Node, end: Dim | Node, head_dim: int) -> tuple[Node, Node]:
        """Return (cos, sin)[n, channels/2] f32 for i32 positions[n], computed in f64; end: the number of positions so far, of all
        tokens or i32[n] of each."""
        channels = self.channels or head_dim
        if self.kind == "linear" and self.magnitude == 1.0:
            table: tuple[Node, Node] = rope_table(positions, head_dim=channels, theta=self.theta, scaling=self.scaling, dtype=f32)
            return table
        where = atomic.reshape(atomic.cast(positions, f64), (positions.shape[0], 1))
        angles = where * self.frequencies(channels, end)
        return tuple(atomic.cast(f(angles) * self.magnitude, f32) for f in (cos, atomic.sin))  # type: ignore[return-value]

    def frequencies(self, channels: int, end: Dim | Node) -> Node:
        """Return the frequencies, f64[channels/2] or, for an i32[n] of ends, [n, channels/2], in radians per position."""
        half = np.arange(0, channels, 2, dtype=np.float64)
        plain = self.theta ** (-half / channels)
        if self.by_length:
            shape: tuple[Dim, ...] = (*end.shape, channels // 2) if isinstance(end, Node) else (channels // 2,)
            ends = (broadcast_to(atomic.reshape(end, (*end.shape, 1)), shape) if isinstance(end, Node) else
                    dim_fill(end, shape, i32))
        if self.kind == "dynamic":
            length = atomic.max(atomic.cast(ends, f64), fill(self.original, shape, f64))
            growth = length * (self.scaling / self.original) - (self.scaling - 1.0)
            return constant(plain, f64) * atomic.exp2(atomic.log2(growth) * constant(-half / (channels - 2), f64))
        if self.kind == "longrope":
            beyond = atomic.less(fill(self.original, shape, i32), ends)
            return arithmetic.where(beyond, *(constant(plain / np.array(by), f64) for by in (self.long, self.short)))
        return constant({"linear": self._linear, "llama3": self.llama3, "yarn": self._yarn}[self.kind](plain, channels), f64)

    def _linear(self, plain: Any, channels: int) -> Any:
        return plain / self.scaling

    def llama3(self, plain: Any, channels: int) -> Any:
        """Return the frequencies that become of plain ones where kind is llama3."""
        # 0 at the longest wavelength that is mixed, 1 at the shortest
        share = np.clip((self.original * plain / (2 * math.pi) - self.low) / (self.high - self.low), 0.0, 1.0)
        return plain * (share + (1.0 - share) / self.scaling)

    def _yarn(self, plain: Any, channels: int) -> Any:
        def border(turns: float) -> float:
            """Return the channel pair that makes this many turns in `original` positions."""
            return channels * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(self.theta))

        first, last = border(self.high), border(self.low)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, channels - 1)
        # published code widens an empty ramp by the same number
        scaled = np.clip((np.arange(channels // 2) - first) / (last - first or 0.001), 0.0, 1.0)
        return plain * (1.0 - scaled + scaled / self.scaling)

    def turn(self, x: Node, cos: Node, sin: Node) -> Node:
        """Return x[n, heads, d] with its first `channels` channels rotated.

        Neighbouring pairs are reordered into halves and not restored: dot products of queries and keys do not depend on that order.
        """
        n, heads, width = x.shape
        channels = self.channels or width
        first = x if channels == width else x[:, :, :channels]
        if self.neighbours:
            pairs = atomic.reshape(first, (n, heads, channels // 2, 2))
            first = atomic.reshape(atomic.permute(pairs, (0, 1, 3, 2)), (n, heads, channels))
        turned: Node = rope(first, cos, sin)
        return turned if channels == width else concat(turned, x[:, :, channels:], axis=2)
