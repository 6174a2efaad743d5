"""`equal` on twins: what differs on an edge only is never proved, what is the same function never refuted, in a small sample.

`benchmarks/twins.py` runs the same code for as many as wanted.
"""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.proof.equality import equal
from tests.proof.boundary_mutants import Edge, twins, witness
from tests.proof.equal_twins import equal_twins, rule_twin
from tests.proof.example_pairs import FOLDER, disagreement, names, pair
from tests.proof.twin_graphs import models, random_graph

X = tg.input("x", (tg.dim("n", 1, 64),))


@pytest.mark.parametrize("seed", range(4))
def test_no_boundary_mutant_of_a_random_graph_is_proved(seed: int) -> None:
    judged = 0
    for twin in twins(random_graph(seed), seed, 5):
        verdict = equal(twin.left, twin.right)
        assert not verdict.proved, (twin.kind, twin.witness, verdict.show())
        judged += 1
    assert judged >= 3


@pytest.mark.parametrize("name", ["window", "alibi", "decode mask"])
def test_no_boundary_mutant_of_a_model_is_proved(name: str) -> None:
    mutants = list(twins(models()[name], 1, 3))
    assert mutants
    for twin in mutants:
        verdict = equal(twin.left, twin.right)
        assert not verdict.proved, (twin.kind, twin.witness, verdict.show())


def test_a_witness_is_what_the_interpreter_gives() -> None:
    twin = next(islice(twins(random_graph(2), 2, 1), 1))
    seen = twin.witness
    inputs = {name: seen.values[name] for name in {**twin.left.inputs, **twin.right.inputs}}
    results = [
        interpret(
            g, {k: v for k, v in inputs.items() if k in g.inputs}, dims={k: v for k, v in seen.binding.items() if k in g.dims}
        )
        for g in (twin.left, twin.right)
    ]
    name = seen.output.partition("[")[0]
    left, right = ({**r.outputs, **r.updates}[name] for r in results)
    assert (left != right).any()


def test_there_is_no_witness_for_what_is_the_same() -> None:
    for left, right in (
        (X + X, X * 2.0),
        (tg.exp(X), tg.exp(X - 1.0) * float(np.e)),
        (tg.floor(X * 3.0 * (1 / 3)), tg.floor(X * (1 / 3) * 3.0)),
    ):
        assert witness(tg.graph(left), tg.graph(right), Edge("none", left, right), None, 0) is None


def test_there_is_a_witness_for_a_tie_and_for_one_integer() -> None:
    y = tg.input("y", X.shape)
    tie = witness(tg.graph(tg.less(X, y)), tg.graph(tg.less_equal(X, y)), Edge("tie", X, y), None, 0)
    assert tie is not None and (tie.values["x"] == tie.values["y"]).any()
    i = tg.input("i", X.shape, tg.i32)
    left, right = tg.graph(i), tg.graph(tg.where(tg.equals(i, 123456), i + 1, i))
    one = witness(left, right, Edge("one", i, i, (123456.0,)), None, 0)
    assert one is not None and (one.values["i"] == 123456).any()


@pytest.mark.parametrize("seed", range(3))
def test_no_equal_twin_is_refuted(seed: int) -> None:
    pairs = [*equal_twins(random_graph(seed), seed, 6), *(rule_twin(k, seed) for k in range(40 * seed, 40 * seed + 6))]
    for twin in pairs:
        if twin is not None:
            verdict = equal(twin.left, twin.right)
            assert verdict.status != "refuted", (twin.kind, verdict.show())


@pytest.mark.parametrize("part", range(6))
def test_both_sides_of_each_example_agree(part: int) -> None:
    for name in names()[part::6]:
        assert disagreement(*pair(name), rounds=1) == "", name


def test_sides_that_differ_on_a_tie_are_seen_to() -> None:
    y = tg.input("y", X.shape)
    assert "True" in disagreement(tg.graph(tg.less(X, y)), tg.graph(tg.less_equal(X, y)))
    p = tg.input("p", (tg.dim("n", 1, 65536),), tg.i8)
    assert disagreement(tg.graph(tg.maximum(p, -p)), tg.graph(tg.minimum(tg.maximum(p, -p), 126)))


def test_an_example_is_listed_with_the_reason_why_it_is_equal() -> None:
    listed = (FOLDER / "README.md").read_text()
    assert len(names()) >= 120
    for name in names():
        assert f"- `{name}`: " in listed
        for side, other in ("ab", "ba"):
            assert f"# Equal to {name}.{other}.tg: " in (FOLDER / f"{name}.{side}.tg").read_text()
    assert listed.count("\n- `") == len(names())


def test_no_example_of_a_sample_is_refuted() -> None:
    for name in names()[::24]:
        verdict = equal(*pair(name))
        assert verdict.status != "refuted", (name, verdict.show())
