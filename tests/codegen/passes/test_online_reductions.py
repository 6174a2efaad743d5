"""Reductions that depend on each other become one pass: its rules are proved, what it computes is held to the oracle, in the stage
interpreter and as C; what has no such pass stays as it is."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen.interpret import StageError, run
from tensor_graphs.codegen.loop_ir import StageProgram, Value
from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.mapping import cpu_parts
from tensor_graphs.codegen.passes.closed_form_count import counted
from tensor_graphs.codegen.passes.online_reductions import (
    BLOCK,
    LONG,
    QUOTIENT,
    REFUSED,
    REWRITES,
    WEIGHTS,
    SumRule,
    Weight,
    number_of,
    online,
    parsed,
)
from tensor_graphs.codegen.spec_to_loops import one_pass_of
from tensor_graphs.language import dims as d
from tensor_graphs.language.anonymous_composite import part_between
from tensor_graphs.language.composite import Definition
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import interpret
from tests.codegen.generated import Library

S = tg.dim("s", 1, 300)


def qkv(n: int, heads: int, groups: int, width: int = 24, dtype: tg.DType = tg.f32) -> tuple[Node, Node, Node]:
    k, v = (tg.input(name, (S, groups, width), dtype) for name in "kv")
    return tg.input("q", (n, heads, width), dtype), k, v


X, W, M = tg.input("x", (5, S)), tg.input("w", (S, 7)), tg.input("m", (3, S), tg.bool_)
POWERS = tg.exp2(X - tg.reduce_max(X, axis=1, keepdims=True))
CASES: dict[str, Node] = {
    "one head": tg.attention(*qkv(3, 1, 1), scale=0.3),
    "grouped heads": tg.attention(*qkv(3, 4, 2), scale=0.3),
    "causal": tg.attention(*qkv(3, 2, 1), scale=0.3, causal=True, start=S - 3),
    "a window": tg.attention(*qkv(3, 2, 2), scale=0.3, causal=True, window=9, start=70),
    "a mask": tg.attention(*qkv(3, 2, 2), M, scale=0.3),
    "a soft cap": tg.attention(*qkv(3, 2, 2), scale=0.3, softcap=5.0),
    "f64": tg.attention(*qkv(3, 2, 2, dtype=tg.f64), scale=0.3),
    "bf16": tg.attention(*qkv(3, 2, 2, dtype=tg.bf16), scale=0.3),
    "f16": tg.attention(*qkv(3, 2, 2, dtype=tg.f16), scale=0.3),
    "a softmax times a matrix": tg.softmax(X) @ W,
    "powers of two": (POWERS / POWERS.sum(axis=1, keepdims=True)) @ W,
}


def definition_of(*outputs: Node) -> tuple[Graph, Definition]:
    graph = tg.graph({f"y{i}": y for i, y in enumerate(outputs)})
    return graph, part_between(list(graph.outputs.values()), list(graph.inputs.values())).written


def passed(definition: Definition) -> StageProgram:
    program = counted(lower(definition))
    found = online(program)
    assert found is not None, str(program)
    return found[0]


def drawn(graph: Graph, s: int, strange: bool = False) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(s)
    found = {}
    for name, x in graph.inputs.items():
        shape = x.type.at({"s": s} if graph.dims else {}).shape
        made = rng.random(shape) < 0.5 if x.dtype is tg.bool_ else rng.normal(size=shape) * 4
        if strange and name == "x":
            made[0], made[1, ::2], made[2, -1], made[3, 0] = -np.inf, -np.inf, np.inf, np.nan
            made[4] = np.linspace(-2000, 2000, s)                   # what was seen first weighs nothing in the end
        found[name] = made.astype(x.dtype.numpy)
    return found


def agree(found: Sequence[np.ndarray], graph: Graph, values: dict[str, np.ndarray], s: int, tolerance: float,
          at: Mapping[str, int] | None = None) -> None:
    expected = interpret(graph, values, dims=at if at is not None else {"s": s} if graph.dims else {}).outputs.values()
    for out, ref in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(out, np.float64).reshape(ref.shape), ref, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("s", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5])
def test_one_pass_means_what_the_reductions_meant(name: str, s: int) -> None:
    graph, definition = definition_of(CASES[name])
    values = drawn(graph, s)
    agree(run(passed(definition), list(values.values()), {"s": s}), graph, values, s, 1e-9)


def test_one_pass_means_the_same_in_c() -> None:
    pairs = [definition_of(y) for y in CASES.values()]
    compiled = Library([passed(definition) for _, definition in pairs])
    for i, (name, (graph, definition)) in enumerate(zip(CASES, pairs, strict=True)):
        for s in (1, BLOCK + 1, 3 * BLOCK):
            values = drawn(graph, s)
            tolerance = {"f64": 1e-12, "bf16": 2e-2, "f16": 2e-3}.get(name, 2e-4)
            agree(compiled.run(i, definition, list(values.values()), {"s": s}), graph, values, s, tolerance)


def test_infinite_and_missing_numbers_come_out_as_they_did() -> None:
    long = tg.input("x", (5, LONG // 4 + 1))
    graph, definition = definition_of(CASES["a softmax times a matrix"])
    other, sums = definition_of(tg.logsumexp(long, axis=1))
    compiled = Library([passed(definition), passed(sums)])
    for s in (3, 2 * BLOCK + 1):
        values = drawn(graph, s, strange=True)
        agree(run(passed(definition), list(values.values()), {"s": s}), graph, values, s, 1e-9)
        agree(compiled.run(0, definition, list(values.values()), {"s": s}), graph, values, s, 1e-5)
    values = drawn(other, LONG // 4 + 1, strange=True)
    values["x"] = values["x"][:, :long.shape[1]]
    agree(run(passed(sums), list(values.values())), other, values, 0, 1e-9)
    agree(compiled.run(1, sums, list(values.values()), {}), other, values, 0, 1e-5)


# ---- the tables ----------------------------------------------------------------------------------------------------------------

OPS = {"where": tg.where, "div": tg.div, "mul": tg.mul, "add": tg.add, "exp": tg.exp, "exp2": tg.exp2, "tanh": tg.tanh,
       "max": tg.maximum, "less": tg.less, "sum": lambda x: x.sum(axis=0)}


def as_node(word: ast.expr, letters: dict[str, Node]) -> Node | float:
    number = number_of(word)
    if number is not None:
        return number
    if isinstance(word, ast.Name):
        return letters[word.id]
    assert isinstance(word, ast.Call) and isinstance(word.func, ast.Name)
    return OPS[word.func.id](*(as_node(w, letters) for w in word.args))  # type: ignore[operator]


def graph_of(text: str, letters: dict[str, Node]) -> Graph:
    made = as_node(parsed(text), letters)
    assert isinstance(made, Node)
    return tg.graph(made)


@pytest.mark.parametrize("rule", [*REWRITES, QUOTIENT], ids=lambda rule: rule.left)
def test_both_sides_of_a_rewrite_are_proved_equal(rule: SumRule) -> None:
    letters = {x: tg.input(x, () if x in rule.same else (7,), tg.bool_ if x == "c" and "where" in rule.left else tg.f32)
               for x in "abc"}
    verdict = tg.equal(graph_of(rule.left, letters), graph_of(rule.right, letters))
    assert verdict.proved, verdict.show()


def moved(weight: Weight, letters: dict[str, Node]) -> tuple[Node, Node]:
    """A weight taken from a new base, and taken from the old one and changed."""
    new, old = (as_node(parsed(weight.left), {**letters, "b": letters[b]}) for b in ("new", "old"))
    return new, old * as_node(parsed(weight.factor), letters)  # type: ignore[operator,return-value]


LETTERS = {"x": tg.input("x", (7,)), "old": tg.input("old", ()), "new": tg.input("new", ())}


@pytest.mark.parametrize("weight", WEIGHTS, ids=lambda w: w.name)
def test_a_weight_changes_by_its_factor(weight: Weight) -> None:
    new, old = moved(weight, LETTERS)
    verdict = tg.equal(tg.graph(new), tg.graph(old))
    assert verdict.proved, verdict.show()


@pytest.mark.parametrize("weight", REFUSED, ids=lambda w: w.name)
def test_what_is_refused_does_not_change_by_a_factor(weight: Weight) -> None:
    new, old = moved(weight, LETTERS)
    assert tg.equal(tg.graph(new), tg.graph(old)).status == "refuted"


@pytest.mark.parametrize("weight", WEIGHTS, ids=lambda w: w.name)
def test_two_halves_are_taken_together_by_the_factor(weight: Weight) -> None:
    x, w = tg.input("x", (9,)), tg.input("w", (9,))

    def state(x: Node, w: Node) -> tuple[Node, Node]:
        most = tg.reduce_max(x, axis=0)
        return most, (as_node(parsed(weight.left), {"x": x, "b": most}) * w).sum(axis=0)  # type: ignore[operator]

    (m, s), (n, t) = state(x[:4], w[:4]), state(x[4:], w[4:])
    most = tg.maximum(m, n)
    by = [as_node(parsed(weight.factor), {"old": old, "new": most}) for old in (m, n)]
    whole = state(x, w)
    verdict = tg.equal(tg.graph({"most": whole[0], "sum": whole[1]}), tg.graph({"most": most, "sum": s * by[0] + t * by[1]}))
    assert verdict.proved, verdict.show()


def test_a_pass_that_forgets_the_factor_is_seen_to_be_wrong() -> None:
    graph, definition = definition_of(CASES["one head"])
    values = drawn(graph, 3 * BLOCK)
    program = passed(definition)
    forgets = program.mapped(lambda s: [replace(s, does=replace(s.does, held=1)) if isinstance(s.held, Value) else s])
    with pytest.raises(AssertionError):
        agree(run(forgets, list(values.values()), {"s": 3 * BLOCK}), graph, values, 3 * BLOCK, 1e-9)


def test_a_sum_that_was_not_begun_is_an_error() -> None:
    graph, definition = definition_of(CASES["one head"])
    program = passed(definition)
    forgets = program.mapped(lambda s: [] if s.note == "before the first turn" else [s])
    with pytest.raises(StageError, match="before it is written"):
        run(forgets, list(drawn(graph, 9).values()), {"s": 9})


# ---- what is one pass, and what is not -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", [
    tg.softmax(X),                                                  # all weights are wanted
    tg.logsumexp(X, axis=1),                                        # a short row is read again from the cache
    tg.tanh(X - tg.reduce_max(X, axis=1, keepdims=True)) @ W,       # has no factor
    (tg.exp(X - tg.reduce_max(X, axis=1, keepdims=True)) * tg.exp(X - tg.reduce_max(X, axis=1, keepdims=True))) @ W,
    tg.exp(X - X.sum(axis=1, keepdims=True)) @ W,                   # a sum is no maximum
    tg.linear(X, tg.input("z", (4, S))),
], ids=["softmax", "logsumexp of short rows", "tanh", "a square", "a sum inside", "a product"])
def test_what_has_no_such_pass_stays_as_it_is(output: Node) -> None:
    _, definition = definition_of(output)
    assert online(counted(lower(definition))) is None


def test_softmax_statistics_of_long_rows_are_read_once() -> None:
    x = tg.input("x", (2, LONG))
    most = tg.reduce_max(x, axis=1, keepdims=True)
    program = passed(definition_of(tg.exp(x - most).sum(axis=1))[1])
    assert sum("x0[" in line for line in str(program).splitlines()) == 2  # of one block, which stays in the cache
    assert all(n.blocks is not None and s in n.blocks.stages for n in program.nests for s in n.stages if s.reduce)


def test_the_derivation_is_said_with_the_program() -> None:
    text = str(passed(definition_of(CASES["one head"])[1]))
    for name in (REWRITES[1].name, QUOTIENT.name, WEIGHTS[0].name, "one pass over", "stored at once"):
        assert name in text


def test_memory_does_not_grow_with_queries_times_keys() -> None:
    def bytes_of(n: int, s: int) -> int:
        q, k = tg.input("q", (n, 2, 64)), tg.input("k", (s, 2, 64))
        program = one_pass_of(definition_of(tg.attention(q, k, k, scale=0.1))[1])
        assert program is not None
        return sum(int(d.evaluate(x, {})) for x in cpu_parts.scratch_bytes(program))

    assert bytes_of(4096, 4096) == bytes_of(256, 256) < 1 << 20
