"""`equal` proves what is equal, refutes what is not, and is never wrong."""

from __future__ import annotations

import math

import pytest

from tensor_graphs.meaning.equality import equal
from tests.meaning.equal_pairs import EQUAL
from tests.meaning.near_misses import MISSES, UNDECIDED
from tests.meaning.pairs import Pair


@pytest.mark.parametrize("pair", EQUAL, ids=lambda pair: pair.name)
def test_an_equal_pair_is_proved(pair: Pair) -> None:
    a, b = pair.graphs()
    verdict = equal(a, b, bits=pair.bits)
    assert verdict.proved, verdict.show()
    if verdict.status == "fingerprint":
        assert verdict.probability is not None and verdict.probability <= 2.0**-24
        assert set(pair.tested_at) <= set(verdict.tested_at), verdict.tested_at
    assert equal(b, a, bits=pair.bits).proved


@pytest.mark.parametrize("pair", MISSES, ids=lambda pair: pair.name)
def test_a_near_miss_is_refuted_with_a_counterexample(pair: Pair) -> None:
    a, b = pair.graphs()
    verdict = equal(a, b, bits=pair.bits)
    assert verdict.status == "refuted", verdict.show()
    found = verdict.counterexample
    assert found is not None and (math.isinf(found.left) or abs(found.left - found.right) > found.noise)


@pytest.mark.parametrize("pair", UNDECIDED, ids=lambda pair: pair.name)
def test_a_miss_that_is_too_near_is_never_called_equal(pair: Pair) -> None:
    a, b = pair.graphs()
    for one, other in ((a, b), (b, a)):
        verdict = equal(one, other, bits=pair.bits)
        assert verdict.status in ("refuted", "unknown"), verdict.show()
        assert (verdict.counterexample is not None) == (verdict.status == "refuted")
        assert verdict.status == "refuted" or verdict.reason
