"""few_queries.cu, plain_attention.cu: attention over keys in pages. The plain form runs as C++ on the host; tiles need a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.devices import nvrtc
from tensor_graphs.devices.device_registry import device_named
from tensor_graphs.kernels.cuda import attention, backend
from tensor_graphs.kernels.kernel import Spec
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import interpret
from tests.codegen import emulated, launched
from tests.kernels.c.test_paged_attention import FORMS, POOL, batch

NEAR = {"bf16": 2.0**-7, "f16": 2.0**-10, "f32": 2e-6}


def attending(heads: int, groups: int, width: int, dtype: DType, page: int = 4, sinks: bool = False, **how: Any) -> Node:
    t, w = tg.dim("t", 1, 64), tg.dim("w", 1, 80)
    q, pools = tg.input("q", (t, heads, width), dtype), [tg.input(name, (POOL * page, groups, width), dtype) for name in "kv"]
    pages, positions = tg.input("pages", (t, w), tg.i32), tg.input("positions", (t,), tg.i32)
    scores = tg.input("sinks", (heads,)) if sinks else None
    return tg.paged_attention(q, *pools, pages, positions, scores, page=page, scale=width**-0.5, **how)


def right(y: Node, values: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(interpret(tg.graph({"y": y}), values).outputs["y"], np.float64)


@pytest.mark.parametrize("form", FORMS)
def test_the_plain_form_agrees_with_the_definition(tmp_path: Path, form: str) -> None:
    for shape, dtype in (((6, 2, 16), tg.f32), ((4, 1, 40), tg.bf16)):
        y, values = attending(*shape, dtype, **FORMS[form]), batch(*shape, dtype, dtype, **FORMS[form])
        call, dims = attention.paged_attention(Spec.of(y)), {"t": len(values["q"]), "w": values["pages"].shape[1]}
        operands = [values[i.attrs["name"]] for i in y.inputs]
        actual, = emulated.run(tmp_path, call, [(values["q"].shape, dtype.numpy)], operands, dims)
        np.testing.assert_allclose(actual.astype(float), right(y, values), rtol=NEAR[dtype.name], atol=NEAR[dtype.name])


@pytest.mark.parametrize(("width", "page", "sinks"), [(64, 16, True), (128, 16, False), (192, 4, False)])
def test_texts_for_pages_compile(width: int, page: int, sinks: bool) -> None:
    spec = Spec.of(attending(4, 2, width, tg.bf16, page, sinks, window=9, softcap=30.0))
    assert attention.paged_few_takes(spec) is None
    call = attention.few_queries(spec)
    for architecture in ("sm_80", "sm_90a"):
        for text in (call.text, call.otherwise.text):                   # type: ignore[union-attr]
            assert nvrtc.compiled(text, architecture, backend.HEADER.parent)[:4] == b"\x7fELF"


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("heads", "groups", "width"), [(4, 2, 64), (16, 8, 128), (8, 1, 192), (3, 3, 64)])
def test_tiles_agree_with_the_definition_on_a_gpu(form: str, heads: int, groups: int, width: int) -> None:
    device = device_named("cuda:0")
    for dtype, page in ((tg.bf16, 4), (tg.f16, 16)):
        y, values = attending(heads, groups, width, dtype, page, **FORMS[form]), batch(heads, groups, width, dtype, dtype, page,
                                                                                       **FORMS[form])
        call, wanted, operands = attention.few_queries(Spec.of(y)), right(y, values), [values[i.attrs["name"]] for i in y.inputs]
        for rows in (slice(None), slice(0, 17), slice(46, 48)):         # as many parts of the keys as fit
            some = [x[rows] if number in (0, 3, 4) else x for number, x in enumerate(operands)]
            dims = {"t": len(some[0]), "w": some[3].shape[1]}
            actual, = launched.run_call(device, call, [y], some, dims)
            np.testing.assert_allclose(actual.astype(float), wanted[rows], rtol=NEAR[dtype.name], atol=NEAR[dtype.name])
