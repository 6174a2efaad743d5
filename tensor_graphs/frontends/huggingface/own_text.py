"""own_text: texts that a decoder writes itself, the inputs on which a plan's error is measured where a caller gives none.

They are nearer to what a model reads than uniform ids are, for which errors of a real model are 2.5 to 4 times as large.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.measure.error_draws import ROWS, STEPS
from tensor_graphs.runtime.compiled_graph import bind

if TYPE_CHECKING:
    from tensor_graphs.frontends.huggingface.load import LoadedModel
    from tensor_graphs.paths.plan import Plan
    from tensor_graphs.records.database import Database


@dataclass
class SampledText:
    """Function from a seed to a text of a decoder, {"ids": i32[n]}, of as many positions as an error draw has, fewer if the model
    holds fewer: the begin token (without one a random token), then tokens drawn at temperature 1, also after an end of text. Equal
    seeds have equal texts. model: runs as written, on `backends` (default: the usual ones). database: has the kernels' verdicts."""

    model: LoadedModel
    database: Database | str | Path | None = None
    backends: Sequence[str] | None = None
    _texts: dict[int, Mapping[str, np.ndarray]] = field(default_factory=dict, repr=False)

    @property
    def weights(self) -> Mapping[str, Any]:
        """The weights of the model, whose own text this is."""
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
            self._texts[seed] = {"ids": self._text(np.random.default_rng(seed))}
        return self._texts[seed]

    def _text(self, rng: np.random.Generator) -> np.ndarray:
        """Return the ids of a text. Weights are bound for it alone: prepared, they may take as much memory as the model."""
        begin, vocabulary = self.model.generation.bos_token_id, self.model.facts.vocabulary
        ids = np.empty(self.positions, np.int32)
        ids[0] = rng.integers(vocabulary) if begin is None or begin >= vocabulary else begin
        compiled = bind(self.plan, self.model.weights)
        session = compiled.session()
        for past in range(len(ids) - 1):
            logits = compiled.run({"ids": ids[past:past + 1]}, dims={"p": past, "m": 1}, session=session)["logits"][-1]
            # the largest logit plus Gumbel noise is a draw from softmax(logits) (Gumbel 1954)
            ids[past + 1] = np.argmax(logits.astype(np.float64) + rng.gumbel(size=len(logits)))
        ids.setflags(write=False)
        return ids
