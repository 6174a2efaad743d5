"""kernels/c/paged_attention.h: it agrees with the definition, and a token's bits depend on no other token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.c import library
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.measure.points.single_op_plans import single_kernel_plan
from tensor_graphs.runtime.compiled_graph import CompiledGraph, bind

PAGE, POOL = 4, 90
FORMS: dict[str, dict[str, Any]] = {"plain": {}, "window": {"window": 5}, "wide window": {"window": 130},
                                    "capped": {"softcap": 2.0},
                                    "sinks": {"sinks": True}, "window and sinks": {"window": 5, "sinks": True}}
SHAPES = [(6, 2, 16), (40, 1, 64), (3, 3, 5), (10, 2, 96)]


def bound(heads: int, groups: int, width: int, dtype: tg.DType, cache: tg.DType, sinks: bool = False, **how: Any) -> CompiledGraph:
    t, w = tg.dim("t", 1, 64), tg.dim("w", 1, 80)
    q, pools = tg.input("q", (t, heads, width), dtype), [tg.input(name, (POOL * PAGE, groups, width), cache) for name in "kv"]
    pages, positions = tg.input("pages", (t, w), tg.i32), tg.input("positions", (t,), tg.i32)
    scores = tg.input("sinks", (heads,)) if sinks else None
    node = tg.paged_attention(q, *pools, pages, positions, scores, page=PAGE, scale=width**-0.5, **how)
    return bind(single_kernel_plan(tg.graph({"y": node}), kernel_named("c.paged_attention")))


def batch(heads: int, groups: int, width: int, dtype: tg.DType, cache: tg.DType, page: int = PAGE, sinks: bool = False,
          **how: Any) -> dict[str, np.ndarray]:
    """Tokens of five sequences: a prompt, the middle of another, two that decode, one that stands for nothing, a page left out."""
    draw = np.random.default_rng(3)
    spans = [(0, 17), (113, 140), (200, 201), (3, 4), (-1, 0), (9, 12)]
    positions = np.concatenate([np.arange(*span) for span in spans]).astype(np.int32)
    rows = [draw.permutation(POOL)[:60] for _ in spans]
    rows[-1][1] = POOL + 3
    table = np.concatenate([np.tile(row, (b - a, 1)) for row, (a, b) in zip(rows, spans, strict=True)]).astype(np.int32)

    def numbers(*shape: int, dtype: tg.DType) -> np.ndarray:
        return draw.standard_normal(shape).astype(dtype.numpy)
    pool = (POOL * page, groups, width)
    return ({"q": numbers(len(positions), heads, width, dtype=dtype), "k": numbers(*pool, dtype=cache),
             "v": numbers(*pool, dtype=cache), "pages": table, "positions": positions} |
            ({"sinks": 3 * numbers(heads, dtype=tg.f32)} if sinks else {}))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "cache"), [(tg.f32, tg.f32), (tg.bf16, tg.bf16), (tg.f32, tg.bf16)], ids=str)
def test_it_agrees_with_the_definition(form: str, shape: tuple[int, int, int], dtype: tg.DType, cache: tg.DType) -> None:
    compiled, values, lib = bound(*shape, dtype, cache, **FORMS[form]), batch(*shape, dtype, cache, **FORMS[form]), library.load()
    lib.scratch_watch()
    actual = compiled.run(values)["y"].astype(float)
    assert lib.scratch_watch() <= compiled.plan.memory(t=len(actual), w=60).scratch
    wanted = np.asarray(interpret(compiled.graph, values).outputs["y"], float)
    np.testing.assert_allclose(actual, wanted, rtol=2.0**-8 if dtype == tg.bf16 else 1e-5, atol=2e-6)
    assert not actual[wanted.any(axis=(1, 2)) == 0].any() and (values["positions"] == -1).sum() == 1


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_bits_of_a_token_depend_on_no_other_token(form: str, shape: tuple[int, int, int]) -> None:
    compiled, values = bound(*shape, tg.f32, tg.f32, **FORMS[form]), batch(*shape, tg.f32, tg.f32, **FORMS[form])
    together, draw = compiled.run(values)["y"].copy(), np.random.default_rng(0)
    orders = [np.array([i]) for i in range(len(together))] + [draw.permutation(len(together)) for _ in range(3)]
    orders.append(np.arange(9, 40))
    for order in orders:
        part = {name: x[order] if name in ("q", "pages", "positions") else x for name, x in values.items()}
        assert compiled.run(part)["y"].tobytes() == together[order].tobytes()


@pytest.mark.parametrize("sinks", [False, True])
def test_the_definition_step_by_step_is_its_direct_evaluation(sinks: bool) -> None:
    values = batch(*SHAPES[0], tg.f32, tg.f32, sinks=sinks)
    graph = bound(*SHAPES[0], tg.f32, tg.f32, sinks=sinks, window=7, softcap=1.5).graph
    direct, steps = (interpret(graph, values, use_direct=use).outputs["y"] for use in (True, False))
    np.testing.assert_allclose(direct, steps, rtol=1e-12, atol=1e-13)
