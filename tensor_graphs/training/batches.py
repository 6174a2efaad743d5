"""batches: rows of arrays in an order that depends on a seed and the epoch alone, so that a resumed run reads the same."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tensor_graphs.argument_checks import ArgumentError, whole


class Batches:
    """Arrays with one row for each example; `batches[i]` is batch i, and each epoch has an order of its own.

    Rows that fill no batch at the end of an epoch are left out. Raises ArgumentError for arrays of different lengths.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], size: int, seed: int = 0) -> None:
        counts = {name: len(array) for name, array in arrays.items()}
        if len(set(counts.values())) != 1:
            raise ArgumentError(f"the arrays have {', '.join(f'{n} rows ({name})' for name, n in counts.items()) or 'no rows'}\n"
                                "  fix: one row for each example in all of them")
        self.arrays, self.size, self.seed = arrays, size, seed
        self.count = next(iter(counts.values()))
        whole("the batch's size", size, 1, self.count)
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        epoch, place = divmod(index, self.count // self.size)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, np.random.default_rng((self.seed, epoch)).permutation(self.count)
        rows = self._order[place * self.size:(place + 1) * self.size]
        return {name: array[rows] for name, array in self.arrays.items()}
