"""trees: a cost model as data: sums of decision trees (gradient boosting) over the features of a call.

Fitting a model needs LightGBM (fit.py, the extra `tuning`); evaluating it does not. cost_model.py imports this module on demand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensor_graphs.costs.learned.features import features_of
from tensor_graphs.kernels.signature import Signature

FORMAT = 2
"""Format of the model file. Increase it when the features or the meaning of the trees change."""

MIDDLE, HIGH = "middle", "high"
"""Keys of the two sets of trees: for the geometric mean of a call's time, and for the time that five of six calls stay below."""


@dataclass(frozen=True)
class Estimate:
    """An estimate. off: natural logarithm of seconds ÷ roofline. spread: how much higher it is for the slowest sixth of calls."""

    off: float
    spread: float


@dataclass(frozen=True)
class Tree:
    """A decision tree as arrays. At node i evaluation goes to left[i] if feature[i] is at most limit[i], else to right[i]. A
    negative number n is a leaf, whose result is value[~n]."""

    feature: tuple[int, ...]
    limit: tuple[float, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    value: tuple[float, ...]

    def at(self, x: Sequence[float]) -> float:
        i = 0 if self.feature else -1
        while i >= 0:
            i = self.left[i] if x[self.feature[i]] <= self.limit[i] else self.right[i]
        return self.value[~i]

    def to_json(self) -> list[Any]:
        return [self.feature, self.limit, self.left, self.right, self.value]


@dataclass(frozen=True)
class Model:
    """A fitted cost model. names: the features, in the order of the trees' feature numbers. rows: how many measurements it was
    fitted to. machine: where they were measured (`Environment.machine`). note: a remark for people."""

    names: tuple[str, ...]
    trees: Mapping[str, tuple[Tree, ...]]
    rows: int
    machine: str
    note: str = ""

    @property
    def origin(self) -> str:
        return f"learned from {self.rows} times"

    def estimate(self, features: Mapping[str, float]) -> Estimate:
        """Return the estimate for these features. A missing feature counts as 0, one that the model does not have is ignored."""
        x = [features.get(name, 0.0) for name in self.names]
        middle, high = (sum(tree.at(x) for tree in self.trees[which]) for which in (MIDDLE, HIGH))
        return Estimate(middle, max(0.0, high - middle))

    def of_call(self, signature: Signature, binding: Mapping[str, int], backend: str, kernel: str, roofline: float,
                moved: float | None, arithmetic: float | None) -> Estimate:
        """Return the estimate for a call of a kernel; the arguments are those of `features_of`."""
        return self.estimate(features_of(signature, binding, backend, kernel, roofline, moved, arithmetic))

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "names": list(self.names), "rows": self.rows, "machine": self.machine, "note": self.note,
                "trees": {which: [t.to_json() for t in trees] for which, trees in self.trees.items()}}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Model:
        """Return the model in JSON data. Raises ValueError if the data is no model of this format."""
        try:
            if data["format"] != FORMAT:
                raise ValueError(f"it has format {data['format']}, this is {FORMAT}")
            trees = {which: tuple(Tree(*map(tuple, tree)) for tree in data["trees"][which]) for which in (MIDDLE, HIGH)}
            return Model(tuple(data["names"]), trees, int(data["rows"]), str(data["machine"]), str(data["note"]))
        except (KeyError, TypeError) as e:
            raise ValueError(f"it is no cost model: {e!r}") from e
