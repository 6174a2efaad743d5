"""Kernels that round their operands to TF32 are used where the tolerance allows what a graph makes of that, and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.choice.cost_table import CostTable
from tensor_graphs.choice.request import Request
from tensor_graphs.costs.predicted_error import predicted_with
from tensor_graphs.kernels.kernel import Kernel, KernelError
from tensor_graphs.kernels.registry import unregister
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.composite import expand_all
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.precision import TF32
from tensor_graphs.meaning.same_math import SAME_MATH, same_math_limit
from tensor_graphs.records.database import Database
from tests.choice.conftest import add_row
from tests.measure.fewer_bits_kernels import cut_off

X, W, V = tg.input("x", (8, 64)), tg.parameter("w", (64, 64)), tg.parameter("v", (64, 64))
ONE, TWO = tg.graph(tg.linear(X, W)), tg.graph(tg.linear(tg.gelu(tg.linear(X, W)), V))


@pytest.fixture
def rough() -> Iterator[Kernel]:
    """A linear whose operands are rounded to 10 bits of fraction, cut off."""
    @tg.kernel("linear", name="numpy.rough_linear", precision="tf32")
    def rough_linear(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
        with np.errstate(all="ignore"):
            np.matmul(cut_off(ins[0], 10), cut_off(ins[1], 10).T, out=outs[0])
            outs[0][...] += ins[2] if len(ins) == 3 else 0

    yield rough_linear
    unregister(rough_linear.name)


def why_not(database: Database, graph: Graph, kernel: Kernel, tolerance: float) -> str | None:
    node = next(n for n in graph.nodes if n.op.name == "linear")
    return CostTable.of(Request(graph, tolerance, ("numpy",), database)).why_not(kernel, signature_of(node), {})


def test_a_product_that_is_rounded_counts_as_some_roundings_and_what_comes_behind_amplifies_it() -> None:
    one, two = predicted_with(ONE, TF32), predicted_with(TWO, TF32)
    assert one == pytest.approx(4 * TF32.unit, rel=1e-3) and 2 * one < two < 3 * one


def test_a_product_counts_however_it_is_written() -> None:
    written = ONE.with_roots(expand_all(ONE.roots))
    assert not any(n.op.name == "linear" for n in written.nodes)
    assert predicted_with(written, TF32) == pytest.approx(predicted_with(ONE, TF32), rel=1e-3)
    q, k, v = (tg.input(name, (16, 2, 64)) for name in "qkv")
    assert predicted_with(tg.graph(tg.attention(q, k, v, scale=0.125)), TF32) > predicted_with(ONE, TF32)


def test_each_turn_of_a_loop_counts_and_one_of_unknown_length_allows_none() -> None:
    def states(length: Any) -> Graph:
        h, u = tg.input("h", (4, 16)), tg.parameter("u", (16, 16))
        return tg.graph(tg.scan(lambda c, x: (tg.tanh(tg.linear(c, u) + x), None), h, tg.input("xs", (length, 4, 16)))[0])

    assert 12 * 4 * TF32.unit < predicted_with(states(12), TF32) < 0.1
    assert math.isinf(predicted_with(states(tg.dim("n", 1, 100)), TF32))


@pytest.mark.parametrize("steep", [tg.softmax, tg.exp, lambda x: tg.exp2(x), lambda x: 1.0 / x])
def test_what_makes_much_of_little_counts_as_many_roundings(steep: Callable[[Node], Node]) -> None:
    """softmax of products of 256 was off by 8.4e-3, exp by 1.1e-2."""
    assert predicted_with(tg.graph(steep(tg.linear(X, W))), TF32) > 1.14e-2
    assert predicted_with(tg.graph(tg.linear(steep(X), W)), TF32) == pytest.approx(4 * TF32.unit, rel=1e-2)       # before it


@pytest.mark.parametrize("decides", [
    tg.argmax, lambda y: tg.where(y < 0, X[:, :1], X[:, 1:2]), lambda y: tg.cast(y, tg.i32), tg.floor])
def test_what_decides_something_allows_no_rounded_product(database: Database, rough: Kernel,
                                                          decides: Callable[[Node], Node]) -> None:
    assert "may decide something here" in (why_not(database, tg.graph(decides(tg.linear(X, W))), rough, 0.5) or "")


def test_one_that_is_no_product_is_held_to_what_a_product_would_be(database: Database, rough: Kernel) -> None:
    assert predicted_with(tg.graph(tg.softmax(X)), TF32) > 1.9e-3
    assert same_math_limit((X.type,), TF32) == TF32.limit and same_math_limit((X.type,)) == SAME_MATH["f32"]
    for dtype in (tg.f64, tg.bf16, tg.i32):                         # nothing of these is rounded to TF32
        t = tg.input("t", (2,), dtype).type
        assert same_math_limit((t,), TF32) == same_math_limit((t,))


def test_it_is_no_candidate_where_the_graph_makes_more_of_it_than_the_tolerance_allows(database: Database, rough: Kernel) -> None:
    assert why_not(database, ONE, rough, 1e-3) == "products of tf32 are predicted to cost 1.95e-03, beyond the tolerance 1.00e-03"
    assert why_not(database, ONE, rough, 3e-3) == "unverified"
    assert why_not(database, TWO, rough, 3e-3) == "products of tf32 are predicted to cost 4.57e-03, beyond the tolerance 3.00e-03"
    assert why_not(database, TWO, rough, 5e-3) == "unverified"


def test_its_own_error_counts_as_any_kernels(database: Database, rough: Kernel) -> None:
    signature = signature_of(ONE.outputs["out"])
    add_row(database, rough, signature, error=2.1e-3)
    assert why_not(database, ONE, rough, 5e-3) is None
    assert why_not(database, ONE, rough, 2e-3) == "its error 0.0021 is beyond the tolerance 0.002"
    add_row(database, rough, signature, error=4e-3, status="INCORRECT_NUMERICAL")
    assert "INCORRECT_NUMERICAL" in (why_not(database, ONE, rough, 5e-3) or "")


def test_one_that_is_measured_fastest_is_chosen_at_the_tolerance_that_allows_it_and_at_no_other(database: Database,
                                                                                                 rough: Kernel) -> None:
    signature = signature_of(ONE.outputs["out"])
    add_row(database, rough, signature, error=2e-3)
    add_row(database, rough, signature, {}, us=0.01, error=2e-3)
    rng = np.random.default_rng(0)
    given = {n: rng.standard_normal((8, 64) if n == "x" else (64, 64)).astype(np.float32) for n in "xw"}
    for tolerance, chosen in ((1e-3, False), (1e-2, True)):
        plan = tg.compile(ONE, tolerance=tolerance, backends=("numpy",), database=database)
        assert [c.kernel == "numpy.rough_linear" for c in plan.variants[0].program.instructions] == [chosen]
        found = tg.bind(plan, {"w": given["w"]}).run({"x": given["x"]})["out"]
        exact = given["x"].astype(float) @ given["w"].T.astype(float)
        off = np.abs(found - exact).max() / np.sqrt(np.mean(exact ** 2))
        assert off < tolerance and bool(off > 1e-5) is chosen


def test_another_word_for_a_precision_is_refused_where_the_kernel_is_written() -> None:
    for wrong in ("tf23", 3, True):
        with pytest.raises(KernelError, match=r"precision is .*\n  fix: precision='tf32', or leave it out"):
            tg.kernel("linear", name="numpy.rougher_linear", precision=wrong)(lambda outs, ins, attrs: None)  # type: ignore[arg-type]


def test_what_it_rounds_to_is_part_of_its_identity(rough: Kernel) -> None:
    assert replace(rough, precision=None).identity != rough.identity
