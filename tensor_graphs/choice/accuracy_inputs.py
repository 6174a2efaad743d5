"""accuracy_inputs: checks and splits the inputs on which a request measures the error of its plans, and names them in rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.language.graph import Graph
from tensor_graphs.measure.error_draws import Run
from tensor_graphs.measure.input_runs import runs_on

Inputs = Sequence[Mapping[str, Any]] | Callable[[int], Mapping[str, Any]] | None
"""Inputs of the error draws: a sequence with a mapping of names to arrays for each draw (measure/input_runs.py describes them), or
a function from a draw's seed, 0, 1, …, to such a mapping; None for random inputs. A function with an attribute `weights` returns
text that the model with these weights wrote itself: `LoadedModel.samples`."""

DRAWN, OWN_TEXT = "drawn", "own text"

IDENTIFYING = 2
"""number of draws of a function whose content is its digest in rows"""

A_LIST = "a list with a mapping of names to arrays for each draw, or a function from a seed to such a mapping"


def check_kinds(weights: Any, inputs: Any) -> None:
    """Raise ArgumentError for weights that are no mapping, and for inputs that are none of what `Inputs` lists."""
    if weights is not None and not isinstance(weights, Mapping):
        raise ArgumentError(f"weights are {weights!r:.60}\n  fix: an array per parameter, by name")
    is_list = isinstance(inputs, Sequence) and len(inputs) > 0 and all(isinstance(draw, Mapping) for draw in inputs)
    if not (inputs is None or callable(inputs) or is_list):
        raise ArgumentError(f"inputs are {inputs!r:.60}\n  fix: {A_LIST}")


class AccuracyInputs:
    """The inputs of a graph's error draws. weights: those with which the graph is measured. sizes: of dims that no input has.

    key: identifies the inputs in rows: "drawn", "own text" (of the model with these weights), or "given" with a digest of their
    content. count: number of draws; None if there is a draw for every seed. Raises ArgumentError and RunError for inputs that
    do not fit the graph.
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
        """Name of the kind of inputs, for people."""
        return {DRAWN: "drawn inputs", OWN_TEXT: OWN_TEXT}.get(self.key, "given inputs")

    def runs(self, seed: int) -> list[Run]:
        """Return the inputs and sizes of each run of a draw. Raises ArgumentError and RunError if inputs do not fit the graph."""
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
