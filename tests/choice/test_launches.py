"""Launches of layers as a GPU runs them, counted in paths that estimates choose; no GPU is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tensor_graphs as tg
from tensor_graphs.choice.cost_table import ESTIMATE_MARGIN, CostTable
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.choice.request import Request
from tensor_graphs.devices.device import Device
from tensor_graphs.devices.target import HOPPER
from tensor_graphs.kernels.kernel import Kernel, LaunchCall
from tensor_graphs.kernels.registry import all_kernels, begin, by_op
from tensor_graphs.language import dims as d
from tensor_graphs.language.graph import Graph
from tensor_graphs.models.rope import Rope
from tensor_graphs.models.transformer import Facts, Layer, TensorNames, decoder_graph
from tensor_graphs.paths.lowered import lowered
from tests.fake import cuda

BACKENDS = ("cuda", "gencuda")
HEAD_NORMS = {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"}


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    """A GPU that is none, with the multiprocessors and the memory of an H200."""
    monkeypatch.setitem(cuda.ATTRIBUTES, "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT", HOPPER.units)
    return request.getfixturevalue("gpu_that_is_none")


def launches(g: Graph, at: dict[str, int], largest: dict[str, int]) -> list[tuple[str, int]]:
    """Return (kernel, number of its launches that have blocks) of each call on the device, in order."""
    begin(BACKENDS)
    prepared = prepare(g, recipes=True, backends=BACKENDS).graph
    request = Request(g, None, BACKENDS, ":memory:", at, largest, None, True, None, None, True, None, (), None, 0.0, None, ())
    paths = CostTable.of(request, ESTIMATE_MARGIN).paths(prepared, by_op(all_kernels(BACKENDS)), at, optimistic=True)
    path = paths.cheapest()
    chosen = paths.kernels(path)

    def kernel_of(key: str) -> Kernel:
        kernel = chosen[key].kernel
        assert kernel is not None
        return kernel

    program = lowered(prepared, path, kernel_of, BACKENDS, largest).program
    return [(i.kernel, sum(int(d.evaluate(launch.grid, at)) > 0 for launch in i.call.launches))
            for i in program.instructions if isinstance(i.call, LaunchCall)]


def of_a_layer(facts: Facts, names: TensorNames, n: int) -> list[str]:
    """Return the kernel of each launch from one attention to the next. n: tokens."""
    g = decoder_graph(facts, names, max_positions=2048, weight_dtype=tg.bf16, activation_dtype=tg.bf16)
    at = {"n": n, "m": n, "p": 64 if n == 1 else 0}
    calls = launches(g, at, at | {"p": 2048 - n})
    first, second = (k for k, (kernel, _) in enumerate(calls) if "attention" in kernel)
    return [kernel for kernel, count in calls[first + 1:second + 1] for _ in range(count)]


def llama() -> tuple[Facts, TensorNames]:
    layer = Layer(scale=64 ** -0.5, rope=Rope(500000.0))
    return Facts(128256, 2048, 8192, 32, 8, 64, (layer,) * 2, 1e-5, tied=True), TensorNames()


def qwen() -> tuple[Facts, TensorNames]:
    layer = Layer(scale=128 ** -0.5, rope=Rope(1e6))
    return Facts(151936, 1024, 3072, 16, 8, 128, (layer,) * 2, 1e-6, tied=True), TensorNames(**HEAD_NORMS)


def gemma() -> tuple[Facts, TensorNames]:
    layer = Layer(scale=256 ** -0.5, rope=Rope(1e6), window=512)
    facts = Facts(262144, 640, 2048, 4, 1, 256, (layer,) * 2, 1e-6, "gelu_tanh", norm_offset=1.0, tied=True, embedding_scale=None)
    return facts, TensorNames(**HEAD_NORMS, attention_out="post_attention_layernorm", ffn_in="pre_feedforward_layernorm",
                              ffn_out="post_feedforward_layernorm")


@pytest.mark.parametrize("model", [llama, qwen, gemma])
@pytest.mark.parametrize(("n", "most"), [(1, 6), (512, 8)])
def test_a_layer_of_a_decoder_is_few_launches(hopper: Device, model: Callable[[], tuple[Facts, TensorNames]], n: int,
                                              most: int) -> None:
    kernels = of_a_layer(*model(), n)
    assert len(kernels) <= most, kernels


def test_a_product_with_its_bias_and_activation_is_one_launch_and_a_gated_layer_two(hopper: Device) -> None:
    x, w, b = tg.input("x", (197, 768), tg.bf16), tg.parameter("w", (3072, 768), tg.bf16), tg.parameter("b", (3072,), tg.bf16)
    assert [n for _, n in launches(tg.graph({"y": tg.gelu(tg.linear(x, w, b))}), {}, {})] == [1]
    for rows in (8, 2048):
        x = tg.input("x", (rows, 2048), tg.bf16)
        gate, up, down = (tg.parameter(name, shape, tg.bf16)
                          for name, shape in (("g", (8192, 2048)), ("u", (8192, 2048)), ("d", (2048, 8192))))
        y = tg.linear(tg.silu(tg.linear(x, gate)) * tg.linear(x, up), down)
        assert [n for _, n in launches(tg.graph({"y": y}), {}, {})] == [1, 1]


@pytest.mark.parametrize("rows", [1, 512])
def test_queries_keys_and_values_of_other_widths_are_one_launch(hopper: Device, rows: int) -> None:
    x = tg.input("x", (rows, 2048), tg.bf16)
    weights = {name: tg.parameter(name, (width, 2048), tg.bf16) for name, width in (("q", 2048), ("k", 512), ("v", 512))}
    g = tg.graph({name: tg.linear(x, w) for name, w in weights.items()})
    assert [n for _, n in launches(g, {}, {})] == [1]
