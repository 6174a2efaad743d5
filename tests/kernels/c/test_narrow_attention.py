"""kernels/c/narrow_attention.c: attention of bfloat16 is rounded once, at all sizes, also where there is no memory for floats."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.c import library
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.measure.points.inputs import make_inputs
from tensor_graphs.measure.points.single_op_plans import single_kernel_plan
from tensor_graphs.runtime.compiled_graph import bind
from tests.kernels.c.test_native import poisoned

N, S = tg.dim("n", 1, 300), tg.dim("s", 1, 500)
FORMS: dict[str, dict[str, Any]] = {"plain": {}, "causal": {"causal": True}, "window": {"causal": True, "window": 5, "start": 3},
                                    "capped": {"softcap": 2.0}}


def graph(heads: int, of_keys: int, width: int, masked: bool = False, **how: Any) -> tg.Graph:
    q = tg.input("q", (N, heads, width), tg.bf16)
    k, v = (tg.input(name, (S, of_keys, width), tg.bf16) for name in "kv")
    mask = (tg.input("mask", (N, S), tg.bool_),) if masked else ()
    return tg.graph({"y": tg.attention(q, k, v, *mask, scale=width**-0.5, **how)})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("heads", "of_keys", "width", "masked"), [(4, 1, 64, False), (2, 2, 7, True), (6, 3, 32, True)])
def test_it_is_rounded_once(form: str, heads: int, of_keys: int, width: int, masked: bool) -> None:
    g = graph(heads, of_keys, width, masked, **FORMS[form])
    plan = single_kernel_plan(g, kernel_named("c.attention_bf16"))
    compiled, lib = bind(plan), library.load()
    for n, s in ((1, 1), (1, 130), (3, 17), (40, 129), (300, 500)):
        given = make_inputs(g, {"n": n, "s": s}, 1)
        lib.scratch_watch()
        found = compiled.run(given)["y"].astype(float)
        assert lib.scratch_watch() <= plan.memory(n=n, s=s).scratch
        wanted = np.asarray(interpret(g, given).outputs["y"], float)
        np.testing.assert_allclose(found, wanted, rtol=2.0**-8, atol=1e-5 * max(1e-30, np.abs(wanted).max()))


def test_without_memory_for_floats_it_is_computed_as_it_is_defined() -> None:
    g = graph(2, 1, 8, causal=True, window=9, softcap=3.0)
    given = make_inputs(g, {"n": 6, "s": 11}, 1)
    wanted = np.asarray(interpret(g, given).outputs["y"], float)
    q, k, v = (np.ascontiguousarray(given[name]) for name in "qkv")
    out, lib = poisoned((6, 2, 8), q.dtype), library.load()
    lib.part("narrow_attention").tg_attention_one_by_one((ctypes.c_void_p * 5)(*(a.ctypes.data for a in (out, q, k, v)), None),
        (ctypes.c_int64 * 14)(6, 11, 2, 1, 8, 1, 9, 0), (ctypes.c_double * 2)(8**-0.5, 3.0))
    np.testing.assert_allclose(out.astype(float), wanted, rtol=2.0**-8, atol=1e-5)
    k[3, 0, 2] = np.nan                                             # which queries 0 to 2 do not see
    lib.part("narrow_attention").tg_attention_one_by_one(
        (ctypes.c_void_p * 5)(*(a.ctypes.data for a in (out, q, k, v)), None),
        (ctypes.c_int64 * 14)(6, 11, 2, 1, 8, 1, 9, 0), (ctypes.c_double * 2)(8**-0.5, 3.0))
    assert np.isnan(out[3:].astype(float)).all() and np.isfinite(out[:3].astype(float)).all()
