"""own_text: texts that a decoder writes itself, on which the error of its plans is measured if a caller passes no inputs.

They resemble real text more than random ids do: on uniform ids, the errors of a real model are 2.5 to 4 times as large.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.choice.measured_accuracy import weights_key
from tensor_graphs.choice.stored_results import stored
from tensor_graphs.measure.error_draws import ROWS, STEPS
from tensor_graphs.runtime.compiled_graph import bind

if TYPE_CHECKING:
    from tensor_graphs.frontends.huggingface.load import LoadedModel
    from tensor_graphs.paths.plan import Plan
    from tensor_graphs.records.database import Database


@dataclass
class SampledText:
    """Function from a seed to a text that a decoder writes, {"ids": i32[n]}; equal seeds return equal texts.

    A text has as many tokens as an error draw has positions, or as many as the model holds if these are fewer. It starts with the
    begin token (a random one if there is none); the others are drawn at temperature 1, also after an end of text. model: is run as
    written, on `backends` (default: the usual ones). database: has the kernels' verdicts."""

    model: LoadedModel
    database: Database | str | Path | None = None
    backends: Sequence[str] | None = None
    _texts: dict[int, Mapping[str, np.ndarray]] = field(default_factory=dict, repr=False)

    @property
    def weights(self) -> Mapping[str, Any]:
        """The weights of the model that writes the text."""
        return self.model.weights

    @property
    def positions(self) -> int:
        return min(ROWS + STEPS, self.model.max_positions)

    @cached_property
    def plan(self) -> Plan:
        sizes = {"n": 1, "m": 1, "p": self.positions - 1}
        return compile_graph(self.model.graph, database=self.database, backends=self.backends, at=sizes, largest=sizes)

    def __call__(self, seed: int) -> Mapping[str, np.ndarray]:
        if seed not in self._texts:
            ids = np.array(stored("own texts", (*self.key, seed), lambda: self._text(np.random.default_rng(seed))), np.int32)
            ids.setflags(write=False)
            self._texts[seed] = {"ids": ids}
        return self._texts[seed]

    @cached_property
    def key(self) -> tuple[str, str, int, int | None]:
        """Everything that texts depend on, up to rounding errors: the graph, its weights, and where texts begin and end."""
        graph = self.model.graph
        return graph.structural_key, weights_key(self.model.weights, graph), self.positions, self.model.generation.bos_token_id

    def _text(self, rng: np.random.Generator) -> list[int]:
        """Return the ids of one text. Weights are bound for it only, as prepared weights may take as much memory as the model."""
        begin, vocabulary = self.model.generation.bos_token_id, self.model.facts.vocabulary
        ids = np.empty(self.positions, np.int32)
        ids[0] = rng.integers(vocabulary) if begin is None or begin >= vocabulary else begin
        compiled = bind(self.plan, self.model.weights)
        session = compiled.session()
        for past in range(len(ids) - 1):
            logits = compiled.run({"ids": ids[past:past + 1]}, dims={"p": past, "m": 1}, session=session)["logits"][-1]
            # the largest logit plus Gumbel noise is a draw from softmax(logits) (Gumbel 1954)
            ids[past + 1] = np.argmax(logits.astype(np.float64) + rng.gumbel(size=len(logits)))
        return ids.tolist()
