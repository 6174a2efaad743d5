"""step: runs one step of many sequences: pieces of the scheduler become inputs of a paged decoder's graph, logits come out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tensor_graphs.frontends.errors import FrontendError
from tensor_graphs.language.dims import bounds
from tensor_graphs.models.transformer import Pool
from tensor_graphs.runtime.compiled_graph import CompiledGraph
from tensor_graphs.serving.scheduler import Portion, TokenSequence

Array = np.ndarray[Any, Any]

LANES = 16
"""rows in multiples of which kernels of products compute all rows alike: a multiple of the lanes of every vector register"""

WIDTH = 8
"""pages of a row of the table, in multiples of which tables grow, so that few shapes occur"""


class BatchStep:
    """A bound graph of a paged decoder with its pool. invariant: tokens and logits are padded to multiples of LANES, so that the
    bits of a row do not depend on the other rows. Raises FrontendError where they do."""

    def __init__(self, compiled: CompiledGraph, pool: Pool, *, invariant: bool = False) -> None:
        self.compiled, self.pool, self.rows = compiled, pool, LANES if invariant else 1
        self.session = compiled.session()
        self._widest = bounds(compiled.graph.dims["w"])[1]
        if invariant:
            self._check()

    def run(self, pieces: Sequence[Portion]) -> Array:
        """Compute the pieces and return logits[m, vocabulary], a row for each piece that is its sequence's last."""
        page, count = self.pool.page, sum(piece.count for piece in pieces)
        width = min(self._widest, -(-max(len(piece.sequence.pages) for piece in pieces) // WIDTH) * WIDTH)
        t = -(-count // self.rows) * self.rows
        ids, positions, slots = np.zeros(t, np.int32), np.full(t, -1, np.int32), np.full(t, -1, np.int32)
        table, asked, end = np.full((t, width), -1, np.int32), [], 0
        for piece in pieces:
            start, end = end, end + piece.count
            pages = np.asarray(piece.sequence.pages, np.int32)
            at = np.arange(piece.start, piece.start + piece.count, dtype=np.int32)
            ids[start:end] = piece.sequence.tokens[piece.start:piece.start + piece.count]
            positions[start:end], slots[start:end] = at, pages[at // page] * page + at % page
            table[start:end, :len(pages)] = pages
            if piece.last:
                asked.append(end - 1)
        m = max(1, -(-len(asked) // self.rows)) * self.rows
        inputs = {"ids": ids, "positions": positions, "slots": slots, "pages": table,
                  "asked": np.asarray(asked + [0] * (m - len(asked)), np.int32)}
        logits: Array = self.compiled.run(inputs, session=self.session)["logits"]
        return logits[:len(asked)]

    def _check(self) -> None:
        """Raise FrontendError if the bits of a sequence depend on the sequences that share its steps, on the portions in which it
        comes, or on its pages."""
        draw, page = np.random.default_rng(0), self.pool.page
        length = min(3 * page + 3, self._widest * page, self.pool.tokens // 2, self.pool.pages // 4 * page)
        vocabulary = bounds(self.compiled.graph.outputs["logits"].shape[1])[1]
        sequences = [TokenSequence(draw.integers(0, vocabulary, length - i % 3).tolist()) for i in range(4)]

        def place(order: Iterable[int]) -> None:
            for sequence, pages in zip(sequences, np.asarray(list(order))[:4 * (self.pool.pages // 4)].reshape(4, -1), strict=True):
                sequence.pages = pages.tolist()

        place(range(self.pool.pages))
        alone = [self.run([Portion(s, 0, len(s.tokens))])[0].copy() for s in sequences]
        for _ in range(3):
            place(draw.permutation(self.pool.pages))
            cuts, together = draw.integers(1, length - 3, 4).tolist(), dict[int, Array]()
            for parts in ([(i, 0, cuts[i]) for i in draw.permutation(4)],
                          [(i, cuts[i], len(sequences[i].tokens) - cuts[i]) for i in draw.permutation(4)]):
                while parts:
                    here, left = [], self.pool.tokens
                    while parts and parts[0][2] <= left:
                        i, start, count = parts.pop(0)
                        here.append((i, Portion(sequences[i], start, count)))
                        left -= count
                    rows = iter(self.run([piece for _, piece in here]))
                    together |= {i: next(rows).copy() for i, piece in here if piece.last}
            if any(alone[i].tobytes() != together[i].tobytes() for i in range(4)):
                raise FrontendError("the kernels of this model compute a row differently in different batches",
                                    fix="invariant=False, or other --backends")
