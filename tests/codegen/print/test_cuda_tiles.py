"""gencuda.tiles, .turned, .skinny: products with what is computed from their elements. Texts are compiled without a GPU, and the
form for operands that lie anywhere runs as C++ on the host; the tiles themselves need a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen import spec_to_loops
from tensor_graphs.codegen.print import cuda_tiles
from tensor_graphs.codegen.refusals import or_none
from tensor_graphs.devices import nvrtc
from tensor_graphs.devices.device_registry import device_named
from tensor_graphs.kernels.cuda import backend
from tensor_graphs.kernels.kernel import LaunchCall, Spec
from tensor_graphs.language import dims as d
from tensor_graphs.language.anonymous_composite import PartOp
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.rewrites.passes.fuse import fuse
from tests.codegen import emulated, launched

N, FEW = tg.dim("n", 1, 5000), tg.dim("n", 1, 300)
NEAR = {"bf16": 2.0**-7, "f16": 2.0**-10, "f32": 1e-5}


def operands(dtype: DType, rows: Dim, k: int, columns: int) -> dict[str, Node]:
    shapes: dict[str, tuple[Dim, ...]] = {"x": (rows, k), "w": (columns, k), "u": (columns, k), "v": (k, columns), "b": (columns,),
                                          "r": (rows, columns)}
    return {name: tg.input(name, shape, dtype) for name, shape in shapes.items()}


def gelu(x: Node, w: Node, b: Node, **_: Node) -> Node:
    return tg.gelu(tg.linear(x, w, b))


def residual(r: Node, x: Node, w: Node, b: Node, **_: Node) -> Node:
    return r + tg.linear(x, w, b)


def gated(x: Node, w: Node, u: Node, **_: Node) -> Node:
    return tg.silu(tg.linear(x, w)) * tg.linear(x, u)


def gated_residual(x: Node, w: Node, u: Node, r: Node, b: Node, **_: Node) -> Node:
    return r + tg.tanh(tg.linear(x, u) + b) * tg.linear(x, w)


def stored_across(x: Node, v: Node, b: Node, **_: Node) -> Node:
    return tg.relu(tg.dot(x, v) + b) * 0.5


FORMS: list[Callable[..., Node]] = [gelu, residual, gated, gated_residual, stored_across]


def part_of(y: Node) -> Node:
    """The part that a graph of one product and its epilogue becomes, which has to be all of it."""
    (part,) = [n for n in fuse(tg.graph(y), tiles=True).graph.nodes if n.op.kind != "leaf"]
    assert isinstance(part.op, PartOp)
    return part


TILES = cuda_tiles.TEMPLATES[0]


def takes(template: cuda_tiles.TileTemplate, part: Node) -> bool:
    return cuda_tiles.refuse(template, Spec.of(part)) is None


def call_of(part: Node, template: cuda_tiles.TileTemplate = TILES) -> LaunchCall:
    assert takes(template, part)
    return cuda_tiles.build(template, Spec.of(part))


def drawn(part: Node, rows: int) -> list[np.ndarray]:
    draw = np.random.default_rng(rows)
    return [(draw.standard_normal([int(d.evaluate(s, {"n": rows})) for s in i.shape]) / i.shape[-1] ** (0.5 * (i.rank > 1))).astype(
        i.dtype.numpy) for i in part.inputs]


def exact(part: Node, arrays: Sequence[np.ndarray], rows: int) -> np.ndarray:
    values = {i.attrs["name"]: a for i, a in zip(part.inputs, arrays, strict=True)}
    return interpret(tg.graph({"y": part}), values, dims={"n": rows}).outputs["y"].astype(np.float64)


def close(part: Node, actual: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(actual.astype(np.float64), wanted, rtol=0, atol=NEAR[part.type.dtype.name] * np.abs(wanted).max())


@pytest.mark.parametrize("form", FORMS)
def test_a_product_and_what_follows_it_is_one_launch_of_tiles(form: Callable[..., Node]) -> None:
    call = call_of(part_of(form(**operands(tg.bf16, 197, 768, 3072))))
    assert [launch.entry for launch in call.launches] == ["tensor_tiles"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [tg.bf16, pytest.param(tg.f16, marks=pytest.mark.long), tg.f32])
def test_the_texts_compile_for_gpus_with_and_without_tiles(form: Callable[..., Node], dtype: DType) -> None:
    part = part_of(form(**operands(dtype, FEW, 64, 136)))
    for template in cuda_tiles.TEMPLATES:
        for architecture in ("sm_90a", "sm_80") if takes(template, part) else ():
            assert nvrtc.compiled(call_of(part, template).text, architecture, backend.HEADER.parent)[:4] == b"\x7fELF"


def test_the_templates_take_what_they_have_room_for() -> None:
    def taken(form: Callable[..., Node], dtype: DType, rows: Dim) -> list[str]:
        part = part_of(form(**operands(dtype, rows, 64, 136)))
        return [t.name for t in cuda_tiles.TEMPLATES if takes(t, part)]

    assert taken(gated, tg.bf16, FEW) == ["tiles", "turned", "skinny"]
    assert taken(gated, tg.bf16, N) == ["tiles", "skinny"]          # thousands of rows are no columns of a tile
    assert taken(gated, tg.f32, FEW) == ["tiles", "turned"]         # weights of floats have no parts in registers
    assert taken(stored_across, tg.bf16, FEW) == ["tiles"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [tg.bf16, tg.f32])
def test_operands_that_lie_anywhere_give_what_the_definition_gives(tmp_path: Path, form: Callable[..., Node], dtype: DType) -> None:
    part = part_of(form(**operands(dtype, N, 24, 40)))
    call = call_of(part).otherwise
    assert call is not None
    for rows in (1, 13):
        arrays = drawn(part, rows)
        wanted = exact(part, arrays, rows)
        prepared = [emulated.run(tmp_path, p.call, [(p.outputs[0].shape, p.outputs[0].dtype.numpy)],
                                 [arrays[i] for i in p.operands], {}, 0)[0] for p in cuda_tiles.prepares(Spec.of(part))]
        actual, = emulated.run(tmp_path, call, [(wanted.shape, part.type.dtype.numpy)], [*arrays, *prepared], {"n": rows}, 1)
        close(part, actual, wanted)


@pytest.mark.parametrize("y", [
    tg.softmax(tg.linear(tg.input("x", (N, 64), tg.bf16), tg.input("w", (40, 64), tg.bf16))),                   # rows of the result
    tg.linear(tg.input("x", (N, 64), tg.bf16), tg.input("w", (N, 64), tg.bf16)) * 2.0,                         # no known width
    tg.exp(tg.linear(tg.input("x", (N, 20), tg.bf16), tg.input("w", (40, 20), tg.bf16))),                       # packs of no row
    tg.permute(tg.relu(tg.linear(tg.input("x", (N, 64), tg.bf16), tg.input("w", (40, 64), tg.bf16))), (1, 0))])
def test_other_programs_are_refused_with_a_reason(y: Node) -> None:
    parts = [n for n in fuse(tg.graph(y), tiles=True).graph.nodes if isinstance(n.op, PartOp)]
    product = or_none(spec_to_loops.tiles_of, part_definition(y))
    assert product is None or not any(takes(t, p) for p in parts for t in cuda_tiles.TEMPLATES)


def part_definition(y: Node) -> object:
    from tensor_graphs.language.anonymous_composite import part_of as whole

    return whole(tg.graph(y)).written


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [tg.bf16, tg.f16, tg.f32])
@pytest.mark.parametrize(("k", "columns"), [(64, 40), (768, 3072), (2048, 640), (136, 200)])
@pytest.mark.parametrize("high", [8, 300, 5000])
def test_tiles_give_what_the_definition_gives(form: Callable[..., Node], dtype: DType, k: int, columns: int, high: int) -> None:
    device, part = device_named("cuda:0"), part_of(form(**operands(dtype, tg.dim("n", 1, high), k, columns)))
    for rows in (r for r in (1, 8, 13, 197, 1111) if r <= high):
        arrays = drawn(part, rows)
        wanted = exact(part, arrays, rows)
        prepared = []
        for p in cuda_tiles.prepares(Spec.of(part)):
            outs = [tg.input("p", p.outputs[0].shape, p.outputs[0].dtype)]
            prepared += launched.run_call(device, p.call, outs, [arrays[i] for i in p.operands], {})
        for template in cuda_tiles.TEMPLATES:
            for shift in (0, 1) if takes(template, part) else ():
                more = prepared if template.prepared else []
                actual, = launched.run_call(device, call_of(part, template), [part], [*arrays, *more], {"n": rows}, shift)
                close(part, actual, wanted)


@pytest.mark.gpu
def test_sums_of_parts_that_are_not_finite_are_made_again_before_what_follows_them() -> None:
    device, part = device_named("cuda:0"), part_of(tg.relu(tg.linear(tg.input("x", (N, 64)), tg.input("w", (40, 64)))) + 1.0)
    arrays = drawn(part, 130)
    arrays[0][3, 5], arrays[0][70, 9], arrays[1][7] = 3e38, np.inf, 0.0
    wanted = exact(part, arrays, 130)
    prepared = [launched.run_call(device, p.call, [tg.input("p", p.outputs[0].shape, p.outputs[0].dtype)],
                                  [arrays[i] for i in p.operands], {})[0] for p in cuda_tiles.prepares(Spec.of(part))]
    actual, = launched.run_call(device, call_of(part), [part], [*arrays, *prepared], {"n": 130})
    finite = np.abs(wanted) < 1e6
    assert (np.isnan(actual) == np.isnan(wanted)).all()
    np.testing.assert_allclose(actual[finite], wanted[finite], atol=1e-5 * np.abs(wanted[finite]).max())
