"""models/transformer.py, decoder_graph(paged=…): a step of many sequences means what a step of each of them means."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from family_cases import DECODERS, VOCABULARY, Case
from test_families import first_of_families

from tensor_graphs.frontends.huggingface.load import load_model
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.models.transformer import Pool
from tensor_graphs.serving.scheduler import TokenSequence

POOL = Pool(pages=12, page=4, tokens=40, asked=40)
LONG, SHORT = [7, 2, 9, 0, 4], [3, 11]
"""pages of two sequences"""


def rows(pages: list[int], start: int, end: int, sequence: TokenSequence) -> dict[str, np.ndarray]:
    """The inputs of one sequence's tokens from `start` to `end`."""
    at = np.arange(start, end, dtype=np.int32)
    table = np.array(pages + [-1] * (5 - len(pages)), np.int32)
    ends = {} if sequence.lengths is None else {"ends": sequence.ends(start, end)}
    return ends | {"positions": at, "slots": table[at // 4] * 4 + at % 4, "pages": np.tile(table, (end - start, 1))}


FIRST = [*first_of_families(DECODERS).values(), *(case for case in DECODERS if "window" in case.name)]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id, marks=() if case in FIRST else pytest.mark.long)
                                  for case in DECODERS])
def test_portions_of_two_sequences_in_one_step_get_the_logits_of_both_alone(case: Case, tmp_path: Path) -> None:
    case.write(tmp_path)
    model = load_model(tmp_path, dtype="float32", max_positions=20)
    weights, graph = dict(model.weights), model.paged_graph(POOL)
    draw = np.random.default_rng(0)
    texts = [draw.integers(0, VOCABULARY, n).astype(np.int32) for n in (19, 7)]
    alone = [interpret(model.graph, {"ids": ids}, weights, dims={"p": 0, "m": len(ids)}).outputs["logits"] for ids in texts]
    states: dict[str, np.ndarray] = {}
    for long, short in (((0, 11), (0, 6)), ((11, 19), (6, 7))):
        parts = [(LONG, 0, long), (SHORT, 1, short)]
        inputs = [rows(pages, *span, TokenSequence(texts[i].tolist(), model.facts.lengths)) | {"ids": texts[i][slice(*span)]}
                  for pages, i, span in parts]
        batch = {name: np.concatenate([part[name] for part in inputs]) for name in inputs[0]}
        order = draw.permutation(len(batch["ids"])).astype(np.int32)
        result = interpret(graph, batch | {"asked": order}, weights, states)
        states = dict(result.updates)
        wanted = np.concatenate([alone[i][slice(*span)] for _, i, span in parts])[order]
        np.testing.assert_allclose(result.outputs["logits"], wanted, rtol=1e-9, atol=1e-9)
