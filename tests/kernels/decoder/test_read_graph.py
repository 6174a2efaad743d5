"""decoder: a decoder's run of one token is read from its graph; what is no such decoder is refused by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.kernels.decoder.one_kernel import Attention, Likeliest, NormRows
from tensor_graphs.kernels.decoder.read_graph import decoder_of
from tensor_graphs.kernels.kernel import NotLowered
from tensor_graphs.language.graph import Graph
from tensor_graphs.models.gemma3 import Gemma3Spec, gemma3_graph
from tensor_graphs.models.rope import Rope

SPEC = Gemma3Spec(vocabulary=24000, hidden=640, ffn=2048, heads=4, kv_heads=1, head_dim=256, layers=("sliding", "full"), window=512,
                  eps=1e-6, scale=1 / 16, sliding_rope=Rope(1e4), full_rope=Rope(1e6, scaling=8.0))


def graph_of(**other: Any) -> Graph:
    return gemma3_graph(dataclasses.replace(SPEC, **other), max_positions=1024, weight_dtype=tg.bf16, output="token")


def test_a_decoder_is_read_from_its_graph() -> None:
    found = decoder_of(graph_of())
    assert (found.ids, found.token, found.logit) == ("ids", "token", "logit")
    assert (found.sizes.hidden, found.sizes.heads, found.sizes.dim, found.sizes.room) == (640, 4, 256, 1024)
    assert found.sizes.embedded == 25.25                            # the root of 640, rounded to bf16
    assert [layer.window for layer in found.layers] == [512, 0]
    assert found.layers[1].keys == "layers.1.k"
    assert found.layers[0].gate == "model.layers.0.mlp.gate_proj.weight"
    assert found.offset == 1.0
    assert {str(one) for one in found.ones} == {"n", "m"}
    assert str(found.position) == "p"


def test_values_between_steps_and_caches_may_be_bf16() -> None:
    narrow = gemma3_graph(SPEC, max_positions=1024, weight_dtype=tg.bf16, activation_dtype=tg.bf16, output="token")
    found, wide = decoder_of(narrow), decoder_of(graph_of())
    assert (found.sizes.cached_bytes, wide.sizes.cached_bytes) == (2, 4)
    assert dataclasses.replace(found, sizes=wide.sizes) == wide
    assert decoder_of(prepare(narrow, True, recipes=False, backends=("gen", "numpy")).graph) == found


def test_steps_follow_each_other_from_the_bottom() -> None:
    found = decoder_of(graph_of())
    kinds = found.kinds
    assert len(kinds) == 11
    assert isinstance(kinds[0], NormRows)
    assert isinstance(kinds[-1], Likeliest)
    assert [(k.layer, k.window) for k in kinds if isinstance(k, Attention)] == [(0, 512), (1, 0)]
    assert found.matrices(0) == tuple(f"model.layers.0.self_attn.{x}_proj.weight" for x in "qkv")
    assert found.norms(0) == ("", "model.layers.0.input_layernorm.weight")
    assert found.norms(5) == ("model.layers.0.post_feedforward_layernorm.weight", "model.layers.1.input_layernorm.weight")
    assert found.norms(10) == ("model.layers.1.post_feedforward_layernorm.weight", "model.norm.weight")
    assert found.matrices(10) == ()


def test_parts_are_read_by_their_definitions() -> None:
    graph = graph_of()
    prepared = prepare(graph, True, recipes=False, backends=("gen", "numpy")).graph
    assert prepared != graph                                        # neighbouring steps are parts there
    assert decoder_of(prepared) == decoder_of(graph)


def test_rotations_are_those_of_the_graph() -> None:
    found = decoder_of(graph_of())
    tables = found.rotation_tables()
    assert tables.shape == (2, 1024, 256)
    at, pair = 700, 3
    for layer, (theta, scaling) in zip(found.layers, ((1e4, 1.0), (1e6, 8.0)), strict=True):
        angle = at / scaling * theta ** (-2 * pair / 256)
        assert np.allclose(tables[layer.rotation, at, [pair, 128 + pair]], [np.cos(angle), np.sin(angle)], atol=1e-7)


def _logits() -> Graph:
    return gemma3_graph(SPEC, max_positions=1024, weight_dtype=tg.bf16)


def _doubled() -> Graph:
    graph = graph_of()
    return tg.graph({**graph.outputs, "logit": graph.outputs["logit"] * 2.0}, dict(graph.updates))


@pytest.mark.parametrize(("made", "why"), [
    (_logits, "linear where item"),
    (_doubled, "mul where item"),
    (lambda: graph_of(activation="silu"), "activation 'silu'"),
    (lambda: graph_of(final_softcap=30.0), "where item"),
    (lambda: graph_of(attention_softcap=50.0), "softcap 50"),
    (lambda: graph_of(attention_bias=True), "a bias"),
    (lambda: graph_of(kv_heads=2), "other rows than those so far"),
    (lambda: graph_of(ffn=1024), "1024 columns of a feed-forward"),
    (lambda: graph_of(hidden=768), "768 columns of the residual"),
    (lambda: graph_of(tied=False), "not the embedding"),
    (lambda: graph_of(vocabulary=1000), "a head of 1000 rows"),
    (lambda: gemma3_graph(SPEC, max_positions=1024, output="token"), "a weight that is a parameter of"),
    (lambda: tg.graph(tg.input("x", (3, 4)) * 2.0), "mul where item"),
])
def test_what_is_no_such_decoder_is_refused(made: Callable[[], Graph], why: str) -> None:
    with pytest.raises(NotLowered, match=why):
        decoder_of(made())
