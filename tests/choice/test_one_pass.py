"""A plan whose attention is a generated pass needs no memory for queries times keys, and is right."""

from __future__ import annotations

import numpy as np

import tensor_graphs as tg
from tensor_graphs.choice.path_listing import signatures_of
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.records.database import Database
from tests.choice.conftest import add_row

LOOPS = kernel_named("gen.loops")


def test_arena_and_scratch_do_not_grow_with_queries_times_keys(database: Database) -> None:
    n = tg.dim("n", 1, 4096)
    q, k, v = (tg.input(name, (n, 2, 64)) for name in "qkv")
    graph = tg.graph(tg.attention(q, k, v, scale=0.125, causal=True))
    for s in signatures_of(prepare(graph).graph):
        if s.spec.op.name == "attention":
            add_row(database, LOOPS, s)                             # it was compared, and is fast
            for size in (1, 64, 512, 4096):
                add_row(database, LOOPS, s, {"n": size}, us=10.0)
    plan = tg.compile(graph, backends=("gen",), database=database, at={"n": 512})
    assert {i.kernel for v in plan.variants for i in v.program.instructions if i.op == "attention"} == {LOOPS.name}
    text = tg.explain(plan)
    assert "derived: an exponential of a difference" in text and "derived: what is hidden weighs nothing" in text
    small, large = (plan.memory(n=size) for size in (256, 4096))
    assert (small.arena, small.scratch) == (large.arena, large.scratch) and large.scratch < 4 << 20
    assert large.outputs == 16 * small.outputs
    rng = np.random.default_rng(0)
    values = {name: rng.standard_normal((70, 2, 64)).astype(np.float32) for name in "qkv"}
    (found,), (expected,) = tg.bind(plan, {}).run(values).values(), interpret(graph, values, dims={"n": 70}).outputs.values()
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
