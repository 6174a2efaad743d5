"""Constants of one chain meet, in every dtype of which the table says so, with the same bits; elsewhere they stay apart."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.language import atomic
from tensor_graphs.language.atomic import ATOMIC
from tensor_graphs.language.composite import LIBRARY
from tensor_graphs.language.dtypes import DTYPES, DType
from tensor_graphs.language.node import Node, apply
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.measure.conformance.cases import op_named
from tensor_graphs.rewrites.admission import admit
from tensor_graphs.rewrites.extract import paid_nodes
from tensor_graphs.rewrites.passes.simplify import simplify
from tensor_graphs.rewrites.rule import BITWISE, make_rule

IN_BITS = {op.name: op.facts.any_order for op in (*ATOMIC.values(), *LIBRARY.values()) if op.facts.any_order}

PLACES = [(name, t) for name, kinds in IN_BITS.items() for t in DTYPES.values() if t.kind in kinds]
WRITTEN = {"and": "bit_and"}


def numbers(rng: np.random.Generator, t: DType, shape: tuple[int, ...]) -> np.ndarray:
    if t.kind == "float":
        with np.errstate(over="ignore"):
            return rng.choice([0.0, -0.0, 1.5, -2.0, np.inf, -np.inf, np.nan, 1e30], shape).astype(t.numpy)
    if t.kind == "bool":
        return rng.random(shape) < 0.5
    return rng.integers(int(t.min), int(t.max), shape, dtype=t.numpy, endpoint=True)


@pytest.mark.parametrize("name", IN_BITS)
def test_an_op_of_the_table_is_associative_in_bits(name: str) -> None:
    op, called = op_named(name), WRITTEN.get(name, name)
    rule = make_rule(f"{called}({called}(x, y), z)", BITWISE, lambda x, y, z: apply(op, (x, apply(op, (y, z)))),
                     name=f"associative/{name}", dtypes=IN_BITS[name])
    assert admit(rule, fingerprints=0).instances >= 200


@pytest.mark.parametrize(("name", "dtype"), PLACES, ids=lambda v: str(v))
def test_a_chain_of_constants_becomes_one_with_the_same_bits(name: str, dtype: DType) -> None:
    rng = np.random.default_rng(5)
    for length in (2, 3, 9):
        x = tg.input("x", (64,), dtype)
        y: Node = x
        for number in numbers(rng, dtype, (length,)):
            constant = atomic.fill(number.item(), x.shape, dtype)
            y = apply(op_named(name), (y, constant) if rng.random() < 0.5 else (constant, y))
        graph = tg.graph(y)
        made = simplify(graph).graph
        assert paid_nodes(made) <= 1
        given = {"x": numbers(rng, dtype, (64,))}
        before, after = (interpret(g, {k: given[k] for k in g.inputs}, mode="as_written").outputs["out"] for g in (graph, made))
        nan = before != before
        assert np.array_equal(nan, after != after) and before[~nan].tobytes() == after[~nan].tobytes()


@pytest.mark.parametrize("dtype", [t for t in DTYPES.values() if t.is_integer], ids=str)
def test_what_is_taken_away_is_a_constant_that_wraps(dtype: DType) -> None:
    x = tg.input("x", (64,), dtype)
    lowest = atomic.fill(int(dtype.min), x.shape, dtype)
    graph = tg.graph(((x - lowest) + 3) - 5)
    made = simplify(graph).graph
    given = {"x": numbers(np.random.default_rng(2), dtype, (64,))}
    assert paid_nodes(made) == 1
    assert np.array_equal(interpret(made, given).outputs["out"], interpret(graph, given).outputs["out"])


def test_constants_that_round_stay_apart() -> None:
    x = tg.input("x", (4,))
    graph = tg.graph((x + 1e8) + 1.0)
    assert simplify(graph).graph is graph
    made = simplify(tg.graph((x * 3.0) * 0.1)).graph
    assert made.nodes[-1].op.name == "mul" and paid_nodes(made) == 2


def test_a_part_of_a_chain_that_is_read_elsewhere_costs_no_more() -> None:
    i = tg.input("i", (4,), tg.i32)
    once = i + 1
    graph = tg.graph({"a": once, "b": once + 2})
    assert paid_nodes(simplify(graph).graph) == 2


def test_a_long_chain_is_walked_and_not_multiplied_out() -> None:
    from tensor_graphs.rewrites.egraph import EGraph
    from tensor_graphs.rewrites.extract import add_graph
    from tensor_graphs.rewrites.rules import SIMPLIFYING
    from tensor_graphs.rewrites.saturate import saturate

    y = tg.input("i", (4,), tg.i32)
    for k in range(60):
        y = y + (k + 1)
    e = EGraph()
    add_graph(e, tg.graph(y))
    before = e.size
    assert saturate(e, SIMPLIFYING, levels=("bitwise",)).report.saturated["bitwise"]
    assert e.size < 3 * before
