"""oracle_cache: the answers that a judge keeps for the next kernels of a signature, within a number of bytes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tensor_graphs.kernels.signature import Signature
from tensor_graphs.measure.points.changed_rows import Updated
from tensor_graphs.measure.points.inputs import Point

MOST_HELD = 512 << 20
MOST_IN_USE = 2 << 30
"""bytes of answers that are kept beyond the number of signatures that are in work, and of all of them"""


@dataclass
class Answers:
    """Cached answers of the oracle on one signature, by point. took: wall seconds; worked: processor seconds of the thread; nbytes:
    bytes of `expected` and `rounding`, by point. asking: lock held while the oracle evaluates; stored answers are read without it.
    """

    expected: dict[Point, dict[str, np.ndarray | Updated] | None] = field(default_factory=dict)
    rounding: dict[Point, dict[str, np.ndarray]] = field(default_factory=dict)
    took: dict[Point, float] = field(default_factory=dict)
    worked: dict[Point, float] = field(default_factory=dict)
    nbytes: dict[Point, int] = field(default_factory=dict)
    asking: threading.RLock = field(default_factory=threading.RLock)


class OracleCache:
    """Answers by signature, not its key, as points contain names of dims. The oldest are dropped and, if needed, evaluated again:
    beyond `signatures` of them where all hold more than MOST_HELD bytes, and any where all hold more than MOST_IN_USE."""

    def __init__(self, signatures: int) -> None:
        self.signatures = signatures
        self.by_signature: dict[Signature, Answers] = {}
        self._lock = threading.Lock()

    def of(self, signature: Signature) -> Answers:
        """Return a signature's answers, from now on the newest."""
        with self._lock:
            current = self.by_signature.pop(signature, None) or Answers()
            self.by_signature[signature] = current
            while len(self.by_signature) > self.signatures and self._nbytes() > MOST_HELD:
                del self.by_signature[next(iter(self.by_signature))]
            return current

    def make_room(self, answers: Answers, point: Point, arrays: Mapping[str, np.ndarray | Updated]) -> None:
        """Count arrays that are about to be cached at a point; drop answers of other signatures, then those at other points."""
        with self._lock:
            answers.nbytes[point] = answers.nbytes.get(point, 0) + sum(array.nbytes for array in arrays.values())
            for signature in [other for other, cached in self.by_signature.items() if cached is not answers]:
                if self._nbytes() <= MOST_IN_USE:
                    return
                del self.by_signature[signature]
            for oldest in [other for other in answers.nbytes if other != point]:
                if sum(answers.nbytes.values()) <= MOST_IN_USE:
                    return
                for cached in (answers.expected, answers.rounding, answers.nbytes):
                    cached.pop(oldest, None)

    def _nbytes(self) -> int:
        return sum(sum(answers.nbytes.values()) for answers in self.by_signature.values())
