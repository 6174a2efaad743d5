"""A model written in atomic ops gets the kernels of the same model written in composites, and that one stays as it is."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import atomic
from tensor_graphs.language.anonymous_composite import PartOp
from tensor_graphs.language.composite import LIBRARY, CompositeOp, expand_all
from tensor_graphs.language.node import walk
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.models.bert import BertSpec, bert_graph
from tensor_graphs.models.gemma3 import Gemma3Spec, Rope, gemma3_graph
from tensor_graphs.paths.plan import Plan, PlanError
from tensor_graphs.records.database import Database
from tensor_graphs.rewrites.extract import paid_nodes
from tensor_graphs.rewrites.passes.recognise import (
    Classes,
    FormPart,
    _choices,
    _define,
    _types,
    forms,
    forms_of,
    may_hold_more,
    recognise,
    steps,
    write_out,
)
from tensor_graphs.runtime.compiled_graph import bind
from tensor_graphs.views.explain import explain, explain_data

SPEC = Gemma3Spec(vocabulary=67, hidden=32, ffn=48, heads=4, kv_heads=1, head_dim=16, layers=("sliding", "full", "sliding"),
                  window=8, eps=1e-6, scale=16 ** -0.5, sliding_rope=Rope(10_000.0), full_rope=Rope(1_000_000.0, 8.0))
GEMMA = gemma3_graph(SPEC, max_positions=32)
BERT = bert_graph(BertSpec(vocabulary=61, hidden=32, ffn=64, layers=2, heads=4, positions=32, token_types=2, eps=1e-12,
                            normalise=True))
MODELS = {"gemma": GEMMA, "gemma in bf16": gemma3_graph(SPEC, max_positions=32, weight_dtype=tg.bf16),
          "gemma, the likeliest token": gemma3_graph(SPEC, max_positions=32, output="token"), "bert": BERT}


def calls(plan: Plan) -> Counter[str]:
    """How often each kernel is called, over all variants."""
    return Counter(i.kernel for v in plan.variants for i in (*v.program.instructions, *v.program.bind_instructions))


def found(twin: Counter[str], composite: Counter[str]) -> float:
    """The share of the composite plan's calls that the twin's plan has."""
    return (twin & composite).total() / composite.total()


def weights(graph: tg.Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {n: (rng.standard_normal(x.shape) * x.shape[-1] ** -0.5).astype(x.dtype.numpy) for n, x in graph.parameters.items()}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_written_out_is_recognised_again(name: str) -> None:
    graph = MODELS[name]
    atoms = write_out(graph)
    assert not any(n.op.kind == "composite" for n in atoms.nodes)
    again = recognise(atoms)
    assert steps(again.graph) <= steps(graph) < steps(atoms)
    written, said = (Counter(n.op.name for n in g.nodes if n.op.kind == "composite") for g in (graph, again.graph))
    assert (written & said).total() == written.total()
    assert list(again.graph.outputs) == list(graph.outputs) and again.graph.updates.keys() == graph.updates.keys()
    assert recognise(again.graph).graph is again.graph


@pytest.mark.parametrize("name", ["gemma", pytest.param("bert", marks=pytest.mark.long)])
def test_the_plan_of_the_atomic_twin_has_the_kernel_calls_of_the_composite_one(name: str, store: Database) -> None:
    graph = MODELS[name]
    plan = compile_graph(graph, database=store)
    twin = compile_graph(write_out(graph), database=store)
    assert found(calls(twin), calls(plan)) >= 0.95
    given = weights(graph)
    ids = np.arange(7, dtype=np.int32)
    sizes = {"n": 7, "p": 0, "m": 7} if name == "gemma" else {"n": 7}
    results = []
    for compiled in (bind(plan, given), bind(twin, given)):
        results.append(compiled.run({"ids": ids}, dims=sizes, session=compiled.session() if graph.states else None))
    for out in graph.outputs:
        assert np.allclose(np.asarray(results[0][out]), np.asarray(results[1][out]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_a_graph_of_composites_stays_the_very_graph(name: str) -> None:
    """But for parts that can be said otherwise, in the words that were there."""
    made = prepare(MODELS[name])
    assert expand_all(made.graph.roots, lambda n: not isinstance(n.op, PartOp)) == list(MODELS[name].roots)
    assert made.note.startswith("recipes: ") and "recognised" not in made.note


def test_a_decoder_is_passed_at_a_glance() -> None:
    assert not may_hold_more(GEMMA) and may_hold_more(write_out(GEMMA))


def test_the_glance_knows_all_composites_that_definitions_mention() -> None:
    mentioned = set()
    for op in (op for op in LIBRARY.values() if not op.opaque):
        optional = [n for n in op.operands if n in op.optional]
        for absent in itertools.chain.from_iterable(itertools.combinations(optional, k) for k in range(len(optional) + 1)):
            for choice, _ in _choices(op):
                attrs = {**choice, **({"absent": absent} if absent else {})}
                for types in _types(2 if op.variadic else len(op.operands) - len(absent)):
                    try:
                        definition = op.define(types, attrs)
                    except (TensorGraphsError, TypeError, ValueError, IndexError):
                        continue
                    mentioned |= {n.op.name for n in walk(definition.outputs) if n.op.kind == "composite"}
                    break
    assert mentioned == {op.name for op in LIBRARY.values() if op.facts.mentioned}


N = tg.dim("n", 1, 64)
X = tg.input("x", (N, 16), tg.f32)
W = tg.parameter("w", (16,), tg.f32)


def norm(x: tg.Tensor, w: tg.Tensor, eps: float = 1e-6) -> tg.Tensor:
    """RMS norm as somebody types it in atomic ops, factors the other way round."""
    def wide(v: tg.Tensor) -> tg.Tensor:
        return atomic.expand(v, x.shape)

    total = atomic.reshape(atomic.sum(atomic.mul(x, x), (1,)), (N, 1))
    mean = atomic.mul(atomic.expand(tg.constant(1 / 16, tg.f32).reshape((1, 1)), (N, 1)), total)
    inverse = atomic.reciprocal(atomic.sqrt(atomic.add(mean, atomic.fill(eps, (N, 1), tg.f32))))
    return atomic.mul(atomic.expand(atomic.reshape(w, (1, 16)), x.shape), atomic.mul(wide(inverse), x))


def same_bits(a: tg.Graph, b: tg.Graph) -> None:
    rng = np.random.default_rng(0)
    given = {"x": (rng.standard_normal((5, 16)) * 3).astype(np.float32), "w": rng.standard_normal(16).astype(np.float32)}
    one, two = (interpret(g, {"x": given["x"]}, {n: given[n] for n in g.parameters}, dims={"n": 5}, mode="as_written",
                          use_direct=False).outputs for g in (a, b))
    for name in one:
        assert np.array_equal(one[name], two[name])


def test_attributes_are_read_off_and_bits_stay() -> None:
    for activation, softcap in itertools.product(("gelu", "silu", "gelu_tanh"), (0.0, 30.0)):
        gate = LIBRARY["gated"](X, tg.sigmoid(X), activation=activation)
        q = atomic.reshape(gate, (N, 2, 8))
        graph = tg.graph({"y": LIBRARY["attention"](q, q, q, scale=0.37, causal=True, window=3, softcap=softcap),
                          "z": LIBRARY["layer_norm"](gate, W, eps=1e-3)})
        again = recognise(write_out(graph)).graph
        assert again == graph
        same_bits(graph, write_out(graph))


def test_what_is_used_twice_is_not_computed_twice() -> None:
    y = tg.linear(X, tg.parameter("v", (24, 16), tg.f32))
    graph = tg.graph({"all": y, "most": atomic.reduce_max(y, (1,)), "which": LIBRARY["argmax"](y)})
    again = recognise(write_out(graph)).graph
    assert again == graph
    only = tg.graph({"most": atomic.reduce_max(y, (1,)), "which": LIBRARY["argmax"](y)})
    assert [n.op.name for n in recognise(write_out(only)).graph.nodes if n.op.kind == "composite"] == ["linear_argmax"]


def test_a_shared_part_of_two_composites_is_in_both() -> None:
    two = tg.graph({"a": tg.rms_norm(X, W, eps=1e-5), "b": tg.rms_norm(X, tg.parameter("v", (16,), tg.f32), eps=1e-5)})
    assert recognise(write_out(two)).graph == two


def test_a_step_that_is_no_definition_stays() -> None:
    near = tg.graph({"y": atomic.mul(atomic.sqrt(atomic.add(X, X)), X)})
    assert recognise(near).graph is near and prepare(near, backends=("c", "numpy")).graph is near


def test_random_graphs_never_cost_more_and_keep_their_bits() -> None:
    import random

    from tests.proof.random_graphs import expression

    for seed in range(12):
        graph = tg.graph(expression(random.Random(seed), 4))
        made = prepare(graph).graph
        assert paid_nodes(made) <= paid_nodes(graph) and steps(graph) == paid_nodes(graph)
        assert prepare(made).graph is made


def test_explain_says_what_was_recognised_and_it_can_be_switched_off(store: Database) -> None:
    graph = write_out(tg.graph({"y": tg.softmax(X)}))
    plan = compile_graph(graph, database=store, backends=("numpy",))
    assert "recognised: 1 softmax" in explain(plan) and explain_data(plan)["prepared"] == "recognised: 1 softmax"
    plain = compile_graph(graph, database=store, backends=("numpy",), simplify=False)
    assert plain.graph is graph and "recognised" not in explain(plain)
    path = plain.variants[0].path
    assert compile_graph(graph, database=store, backends=("numpy",), path=path).graph is graph


def test_a_copy_to_the_device_that_everything_is_on_is_its_source(store: Database) -> None:
    x = tg.input("x", (4, 8), tg.f32)
    shifted = tg.exp(tg.copy_to(x, "cpu") - tg.reduce_max(x, -1, keepdims=True))
    out = tg.copy_to(shifted / tg.sum(shifted, -1, keepdims=True), "cpu")
    plan = compile_graph(tg.graph({"y": out, "x": tg.copy_to(x, "cpu")}), backends=("numpy",), database=store)
    assert set(calls(plan)) == {"numpy.softmax", "numpy.copy"} and "copies to cpu left out" in explain(plan)
    given = np.linspace(-3, 3, 32, dtype=np.float32).reshape(4, 8)
    found = bind(plan).run({"x": given})
    np.testing.assert_array_equal(found["x"], given)
    np.testing.assert_allclose(found["y"].sum(-1), 1, rtol=1e-5)


def test_a_copy_to_a_device_that_is_not_there_says_which_one_is(store: Database) -> None:
    x = tg.input("x", (4,), tg.f32)
    with pytest.raises(PlanError, match="no device is named 'cuda:0'; this machine has 'cpu'"):
        compile_graph(tg.graph(tg.exp(tg.copy_to(x * 1.0, "cuda:0"))), backends=("numpy",), database=store)


def concat_of_one() -> dict[str, tg.Node]:
    x = tg.input("x", (3, 4))
    return {"a": tg.concat(x, axis=1) * 2.0, "b": x * tg.reciprocal(1.0 + tg.exp2(x * -1.4426950408889634))}


def abs_without_signs() -> dict[str, tg.Node]:
    x = tg.pad(tg.input("x", (3, 4), tg.u64), [(1, 0), (0, 0)], 0)
    return {"a": tg.log(tg.abs(tg.cast(x, tg.f32)) + 0.25), "b": tg.abs(x)}


@pytest.mark.parametrize("made", [concat_of_one, abs_without_signs])
def test_what_only_hands_its_operand_on_is_no_composite_to_be_found(made: Callable[[], dict[str, tg.Node]]) -> None:
    """Its value is its operand's: computing one by the other has no end."""
    graph = tg.graph(made())
    values = {"x": np.arange(1, 13).reshape(3, 4).astype(graph.inputs["x"].dtype.numpy)}
    found = interpret(recognise(graph).graph, values).outputs
    for name, expected in interpret(graph, values).outputs.items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-12)


@pytest.mark.parametrize("op", [op for op in LIBRARY.values() if op.facts.contains], ids=lambda op: op.name)
def test_a_composite_is_looked_for_wherever_a_graph_may_say_it(op: CompositeOp) -> None:
    """Of all of its forms each has the ops that the facts promise, so that a graph without them is none of them."""
    made = [form for rows in forms_of(op).values() for form in rows]
    for form in made:
        parts, stack = set[str](), [form.top]
        while stack:
            part = stack.pop()
            parts.add(part.op.name)
            stack += [below for _, below in part.operands if isinstance(below, FormPart)]
        assert parts >= set(op.facts.contains), form
    written = [nodes for types in _types(made[0].arguments) if (nodes := _define(op, types, made[0].attrs)) is not None]
    every = [Classes(nodes) for nodes in written]
    searched = [forms(c, [i for i, node in enumerate(c.node) if node.op.kind == "atomic"]) for c in every]
    assert any(made[0] in rows.get(made[0].top.op.name, ()) for rows in searched)
    assert not any(form.op is op for rows in forms(Classes([tg.input("x", (3,))]), ()).values() for form in rows)
