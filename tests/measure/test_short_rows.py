"""Short rows: no honest kernel depends on what is drawn, and none that is wrong there only passes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import tensor_graphs as tg
from benchmarks.verdict_stability import CASES, TYPICAL, compared, kernels_for
from tensor_graphs.kernels.registry import load_backend
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.meaning.error_measure import measure
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.meaning.same_math import SAME_MATH
from tensor_graphs.measure.judge import Judge
from tensor_graphs.records.database import Database
from tests.measure.short_row_kernels import ROWS, SHORT_ROWS
from tests.measure.wrong_kernels import Candidate

SEEDS = (1, 2)

X = tg.input("x", (6, 8), tg.f32)
LONGER = {
    "dot": tg.dot(X, tg.input("y", (8, 8), tg.f32)), "softmax": tg.softmax(X), "logsumexp": tg.logsumexp(X),
    "rms_norm": tg.rms_norm(X),
    "linear": tg.linear(X, tg.input("w", (5, 8), tg.f32), tg.input("b", (5,), tg.f32)), "layer_norm": tg.layer_norm(X),
    **{name: op(tg.input("x", (6, 9, 8), tg.f32), axis=1) for name, op in (("sum", tg.sum), ("mean", tg.mean), ("var", tg.var))},
}
"""the same ops, whose last axis is long enough"""


@pytest.fixture(scope="module")
def judge(shared: Database) -> Iterator[Judge]:
    for backend in ("numpy", "c", "torch"):
        load_backend(backend)
    with Judge(shared, timeout=60.0) as made:
        yield made


@pytest.mark.parametrize(("op", "columns", "dtype"), [
    *((op, 1, "f32") for op in ("dot", "linear", "sum", "mean", "var", "softmax")), ("dot", 2, "f32"), ("var of a row", 2, "f32"),
    ("mean of a row", 3, "f32"), ("dot", 1, "bf16"), ("mean", 1, "bf16")])
def test_an_honest_kernel_passes_whatever_is_drawn(judge: Judge, op: str, columns: int, dtype: str) -> None:
    """A small sample of benchmarks/verdict_stability.py."""
    node = CASES[op](columns, dtype)
    kernels = list(kernels_for(signature_of(node)))
    assert len(kernels) >= 2
    for name, count in compared(judge, node, kernels, SEEDS).items():
        assert count.statuses == {"PASSED": len(SEEDS)}, (name, count.logs)


@pytest.mark.parametrize("candidate", SHORT_ROWS, ids=lambda c: c.name)
def test_a_kernel_that_is_wrong_on_short_rows_fails_whatever_is_drawn(judge: Judge, candidate: Candidate) -> None:
    node = ROWS[candidate.node]
    for count in compared(judge, node, [candidate.kernel], SEEDS[:1]).values():
        assert count.statuses == {"INCORRECT_NUMERICAL": 1}


def test_a_worker_says_the_same_of_it(judge: Judge) -> None:
    candidate = next(c for c in SHORT_ROWS if c.name == "adds_a_little_of_what_it_has_multiplied")
    assert judge.examine(candidate.kernel, signature_of(ROWS[candidate.node]), TYPICAL).status == "INCORRECT_NUMERICAL"


def test_there_are_fifteen_of_them_and_more() -> None:
    assert len({c.name for c in SHORT_ROWS}) == len(SHORT_ROWS) >= 20


@pytest.mark.parametrize("name", [c.name for c in SHORT_ROWS])
def test_each_is_right_on_longer_rows(name: str) -> None:
    """On eight elements: otherwise it would show anywhere."""
    candidate = next(c for c in SHORT_ROWS if c.name == name)
    rng = np.random.default_rng(1)
    node = LONGER[candidate.node.split(" ")[0]]
    signature = signature_of(node)
    ins = [rng.standard_normal(tuple(int(s) for s in x.shape)).astype(np.float32) for x in node.inputs]
    out = np.empty(tuple(int(s) for s in node.shape), np.float32)
    candidate.kernel.build(signature.spec).run([out], ins, dict(node.attrs))
    expected = interpret(signature.graph, dict(zip(signature.graph.inputs, ins, strict=True))).outputs["y0"]
    assert measure(out, expected, tg.f32).within(SAME_MATH["f32"])
