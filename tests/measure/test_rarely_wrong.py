"""Kernels that are wrong only where values, sizes, indices or runs meet do not pass; their honest twins do."""

from __future__ import annotations

import pytest

from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.measure.judge import Judge, Verdict
from tests.measure.rarely_wrong_kernels import NODES, PAIRS, Kernel, Pair


def examined(judge: Judge, kernel: Kernel, each: Pair) -> Verdict:
    signature = signature_of(NODES[each.node])
    return judge.examine(kernel, signature, {name: 3 if name == "few" else 20 for name in signature.dim_names})


@pytest.mark.parametrize("each", PAIRS, ids=lambda each: each.name)
def test_it_is_refused(judge: Judge, each: Pair) -> None:
    verdict = examined(judge, each.wrong, each)
    assert verdict.status == "INCORRECT_NUMERICAL", verdict.log


@pytest.mark.parametrize("each", [pytest.param(pair, marks=[pytest.mark.long] * (i % 2)) for i, pair in enumerate(PAIRS)],
                         ids=lambda each: each.name)
def test_its_honest_twin_passes(judge: Judge, each: Pair) -> None:
    verdict = examined(judge, each.honest, each)
    assert verdict.status == "PASSED", verdict.log
