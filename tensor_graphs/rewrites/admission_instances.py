"""admission_instances: statistics of the instances that an admission drew, for its report: ranks, sizes, dtypes, attributes,
special values, and the smallest and largest integers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensor_graphs.language.node import Node

MOST_SHOWN = 12


@dataclass
class Drawn:
    """Counts over the instances of a rule: how many had each rank, dtype, attribute value, and special value in a leaf."""

    instances: int = 0
    grids: int = 0
    ranks: Counter[int] = field(default_factory=Counter)
    dtypes: Counter[str] = field(default_factory=Counter)
    sizes: Counter[int] = field(default_factory=Counter)
    symbolic: Counter[int] = field(default_factory=Counter)
    attributes: dict[str, Counter[str]] = field(default_factory=dict)
    values: Counter[str] = field(default_factory=Counter)

    def add(self, tops: Sequence[Node], values: Mapping[Node, np.ndarray], attributes: Mapping[str, tuple[str, Any]],
            binding: Mapping[str, int], grid: bool = False) -> None:
        """Count one instance."""
        self.instances += not grid
        self.grids += grid
        self.ranks.update({n.rank for n in values})
        self.dtypes.update({n.dtype.name for n in values})
        self.sizes.update({int(s) for n in values for s in n.shape})
        self.symbolic.update(binding.values())
        for name, (of, value) in attributes.items():
            self.attributes.setdefault(f"{name} ({of})", Counter())[str(value)] += 1
        self.values.update({word for n, v in values.items() for word in _special(n, v)})

    def as_json(self) -> dict[str, Any]:
        return {"instances": self.instances, "grids": self.grids, "ranks": dict(self.ranks), "dtypes": dict(self.dtypes),
                "sizes": dict(self.sizes), "symbolic": dict(self.symbolic), "values": dict(self.values),
                "attributes": {name: dict(counts) for name, counts in self.attributes.items()}}

    def show(self) -> str:
        """Return the counts as a few lines for a person."""
        lines = [f"  {self.instances} instances, {self.grids} grids",
                 f"  ranks: {_counts(self.ranks)}", f"  dtypes: {_counts(self.dtypes)}", f"  sizes: {_counts(self.sizes)}",
                 f"  of a symbolic dim: {_counts(self.symbolic) or 'none fitted'}"]
        lines += [f"  {name}: {len(counts)} values: {_counts(counts)}" for name, counts in self.attributes.items()]
        return "\n".join([*lines, f"  special values: {_counts(self.values) or 'none'}"])


def _counts(counter: Counter[Any]) -> str:
    keys = sorted(counter, key=lambda k: (-counter[k], str(k)))[:MOST_SHOWN]
    if all(isinstance(k, int) for k in counter):
        keys = sorted(counter)
    more = len(counter) - len(keys)
    return ", ".join(f"{k} × {counter[k]}" for k in keys) + (f", {more} more" if more > 0 else "")


def _special(node: Node, value: np.ndarray) -> list[str]:
    if node.dtype.kind == "bool" or not value.size:
        return [] if value.size else ["nothing"]
    if node.dtype.is_integer:
        ends = {"lowest": node.dtype.min, "highest": node.dtype.max, "below 0": None}
        return [w for w, end in ends.items() if ((value < 0).any() if end is None else (value == end).any())]
    x = value.astype(np.float64)
    masks = {"NaN": np.isnan(x), "∞": x == np.inf, "−∞": x == -np.inf, "−0": (x == 0) & np.signbit(x),
             "0": (x == 0) & ~np.signbit(x), "denormal": (x != 0) & (np.abs(x) < node.dtype.smallest_normal), "below 0": x < 0}
    return [w for w, mask in masks.items() if mask.any()]
