"""accuracy_inputs: the inputs on which a request measures the error of its plans: checked, named in rows, and cut into runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.language.graph import Graph
from tensor_graphs.measure.error_draws import Run
from tensor_graphs.measure.input_runs import runs_on

Inputs = Sequence[Mapping[str, Any]] | Callable[[int], Mapping[str, Any]] | None
"""Inputs of each draw, by name (measure/input_runs.py says which): a sequence, or a function of the draw's seed, 0, 1, …; None for
random ones. A function with an attribute `weights` draws from the model that has them: `LoadedModel.samples`."""

DRAWN, OWN_TEXT = "drawn", "own text"

IDENTIFYING = 2
"""draws of a function whose content identifies it"""

A_LIST = "a list with a mapping of names to arrays for each draw, or a function from a seed to such a mapping"


def check_kinds(weights: Any, inputs: Any) -> None:
    """Raise ArgumentError for weights or inputs of another kind."""
    if weights is not None and not isinstance(weights, Mapping):
        raise ArgumentError(f"weights are {weights!r:.60}\n  fix: an array per parameter, by name")
    is_list = isinstance(inputs, Sequence) and len(inputs) > 0 and all(isinstance(draw, Mapping) for draw in inputs)
    if not (inputs is None or callable(inputs) or is_list):
        raise ArgumentError(f"inputs are {inputs!r:.60}\n  fix: {A_LIST}")


class AccuracyInputs:
    """The inputs of a graph's draws. weights: those that it is measured with. sizes: of dims that no input has.

    key: identifies the inputs in rows: "drawn", "own text" (of the model with these weights) or "given" with a digest of their
    content. count: number of draws; None where there is one for every seed. Raises ArgumentError and RunError for inputs that do
    not fit the graph.
    """

    def __init__(self, inputs: Inputs, weights: Mapping[str, Any] | None, graph: Graph, sizes: Mapping[str, int]) -> None:
        self.inputs, self.graph, self.sizes = inputs, graph, sizes
        self.count = len(self.inputs) if isinstance(self.inputs, Sequence) else None
        self.first: list[Run] = []
        if inputs is None:
            self.key = DRAWN
        elif weights is not None and getattr(inputs, "weights", None) is weights:
            self.key = OWN_TEXT
        else:
            self.first = self.runs(0)
            self.key = f"given {self._digest()}"

    @property
    def source(self) -> str:
        return {DRAWN: "drawn inputs", OWN_TEXT: OWN_TEXT}.get(self.key, "given inputs")

    def runs(self, seed: int) -> list[Run]:
        """Return the runs of one draw. Raises ArgumentError and RunError for inputs that do not fit the graph."""
        assert self.inputs is not None
        draw = self.inputs(seed) if callable(self.inputs) else self.inputs[seed]
        if not isinstance(draw, Mapping):
            raise ArgumentError(f"the inputs of draw {seed} are {draw!r:.60}\n  fix: {A_LIST}")
        return runs_on(self.graph, self.sizes, draw)

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for seed in range(IDENTIFYING if self.count is None else self.count):
            for arrays, sizes in self.runs(seed):
                digest.update(f"{sorted(sizes.items())}\n".encode())
                for name, array in sorted(arrays.items()):
                    digest.update(f"{name} {array.dtype} {array.shape}\n".encode() + array.tobytes())
        return digest.hexdigest()
