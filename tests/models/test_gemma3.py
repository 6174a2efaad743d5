"""models/gemma3.py against transformers' own Gemma 3, on small models whose every constant shows in the result."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest
import torch
from mutants import MUTANTS, Mutant
from transformers import AttentionInterface, AttentionMaskInterface, Gemma3ForCausalLM, Gemma3TextConfig
from transformers.masking_utils import eager_mask
from transformers.models.gemma3.modeling_gemma3 import eager_attention_forward

from tensor_graphs.language.dtypes import bf16, f32
from tensor_graphs.language.errors import AttributeValueError
from tensor_graphs.language.graph import Graph
from tensor_graphs.meaning.error_measure import measure
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.models.gemma3 import Gemma3Spec, Rope, gemma3_graph

TOLERANCE = 1e-5          # transformers computes in float32, the interpreter in float64
TOKENS, POSITIONS = 21, 32

ONE_KV_HEAD = Gemma3Spec(
    vocabulary=67, hidden=32, ffn=48, heads=4, kv_heads=1, head_dim=16, layers=("sliding", "sliding", "full"), window=8,
    eps=1e-6, scale=16 ** -0.5, sliding_rope=Rope(10_000.0), full_rope=Rope(1_000_000.0))
VARIANTS = {
    "one kv head": ONE_KV_HEAD,
    "two kv heads, untied, stretched": dataclasses.replace(
        ONE_KV_HEAD, kv_heads=2, head_dim=12, eps=1e-5, layers=("full", "sliding"), window=5, scale=20 ** -0.5,
        tied=False, full_rope=Rope(50_000.0, 8.0)),
    "as many kv heads as heads, biases, soft cap": dataclasses.replace(
        ONE_KV_HEAD, hidden=30, heads=3, kv_heads=3, head_dim=8, layers=("sliding", "full"), scale=8 ** -0.5,
        attention_bias=True, final_softcap=0.02, activation="gelu"),
    "only full layers, scores capped": dataclasses.replace(
        ONE_KV_HEAD, heads=2, kv_heads=1, layers=("full", "full"), attention_softcap=0.7),
    "only sliding layers": dataclasses.replace(ONE_KV_HEAD, layers=("sliding", "sliding"), activation="silu", window=3),
}


def relative_error(out: np.ndarray, expected: np.ndarray) -> float:
    return measure(out, expected, f32).max_relative_error


def _capped(module: torch.nn.Module, *args: torch.Tensor, **kwargs: object) -> object:
    """transformers' eager attention with the configured cap, which its Gemma 3 reads but never passes on."""
    return eager_attention_forward(module, *args, softcap=module.config.attn_logit_softcapping, **kwargs)


AttentionInterface.register("eager_capped", _capped)
AttentionMaskInterface.register("eager_capped", eager_mask)


def random_weights(g: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """A weight for every parameter: embeddings so small that eps counts, norms so far from 1 that each one shows."""
    rng = np.random.default_rng(seed)

    def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
        spread = 0.002 if "embed_tokens" in name else 0.3 if len(shape) == 1 else 1.5 * shape[-1] ** -0.5
        return (spread * rng.standard_normal(shape)).astype(np.float32)

    return {name: draw(name, node.shape) for name, node in g.parameters.items()}


def transformers_logits(spec: Gemma3Spec, weights: Mapping[str, np.ndarray], ids: np.ndarray) -> np.ndarray:
    """Teacher-forced logits[n, vocabulary] of transformers' model in float32."""
    full: dict[str, object] = {"rope_type": "default", "rope_theta": spec.full_rope.theta}
    if spec.full_rope.scaling != 1.0:
        full |= {"rope_type": "linear", "factor": spec.full_rope.scaling}
    config = Gemma3TextConfig(
        vocab_size=spec.vocabulary, hidden_size=spec.hidden, intermediate_size=spec.ffn,
        num_hidden_layers=len(spec.layers), num_attention_heads=spec.heads, num_key_value_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        layer_types=[f"{kind}_attention" for kind in spec.layers], sliding_window=spec.window, rms_norm_eps=spec.eps,
        query_pre_attn_scalar=round(spec.scale ** -2), attention_bias=spec.attention_bias,
        tie_word_embeddings=spec.tied,
        rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": spec.sliding_rope.theta},
                         "full_attention": full},
        hidden_activation={"gelu_tanh": "gelu_pytorch_tanh", "gelu": "gelu", "silu": "silu"}[spec.activation],
        final_logit_softcapping=spec.final_softcap or None, attn_logit_softcapping=spec.attention_softcap or None,
        max_position_embeddings=POSITIONS)
    config._attn_implementation = "eager_capped"
    model = Gemma3ForCausalLM(config).eval()
    missing, unexpected = model.load_state_dict({k: torch.from_numpy(v) for k, v in weights.items()}, strict=False)
    assert not unexpected and set(missing) <= ({"lm_head.weight"} if spec.tied else set())
    with torch.no_grad():
        return np.asarray(model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0].numpy())


def ids_for(spec: Gemma3Spec) -> np.ndarray:
    return np.random.default_rng(7).integers(0, spec.vocabulary, TOKENS).astype(np.int32)


@cache
def reference(name: str) -> tuple[Graph, dict[str, np.ndarray], np.ndarray]:
    spec = VARIANTS[name]
    g = gemma3_graph(spec, max_positions=POSITIONS)
    weights = random_weights(g)
    return g, weights, transformers_logits(spec, weights, ids_for(spec))


def run(g: Graph, weights: Mapping[str, np.ndarray], ids: np.ndarray, chunks: tuple[int, ...]) -> np.ndarray:
    """Logits of every token, the tokens given in chunks, the states carried from chunk to chunk."""
    states = {name: np.zeros(node.shape) for name, node in g.states.items()}
    out, done = [], 0
    for size in chunks:
        result = interpret(g, {"ids": ids[done:done + size]}, weights, states, {"n": size, "p": done, "m": size})
        out.append(result.outputs["logits"])
        states = {**states, **result.updates}
        done += size
    assert done == len(ids)
    return np.concatenate(out)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_logits_are_those_of_transformers(name: str) -> None:
    g, weights, expected = reference(name)
    assert relative_error(run(g, weights, ids_for(VARIANTS[name]), (TOKENS,)), expected) <= TOLERANCE


@pytest.mark.parametrize("chunks", [(12, 1, 1, 7), (1,) * TOKENS, (2, 19)])
@pytest.mark.parametrize("name", ["one kv head", "two kv heads, untied, stretched"])
def test_a_prompt_in_chunks_gives_the_logits_of_the_whole(name: str, chunks: tuple[int, ...]) -> None:
    g, weights, expected = reference(name)
    chunked = run(g, weights, ids_for(VARIANTS[name]), chunks)
    whole = run(g, weights, ids_for(VARIANTS[name]), (TOKENS,))
    assert relative_error(chunked, whole) <= 1e-12
    assert relative_error(chunked, expected) <= TOLERANCE


def test_m_selects_the_last_positions() -> None:
    g, weights, _ = reference("one kv head")
    ids = ids_for(ONE_KV_HEAD)
    whole = run(g, weights, ids, (TOKENS,))
    for m in (1, 5):
        last = interpret(g, {"ids": ids}, weights, {k: np.zeros(s.shape) for k, s in g.states.items()},
                         {"n": TOKENS, "p": 0, "m": m}).outputs["logits"]
        assert last.shape == (m, ONE_KV_HEAD.vocabulary)
        assert relative_error(last, whole[-m:]) <= 1e-12


def test_the_cache_keeps_every_row_that_was_not_written() -> None:
    g, weights, _ = reference("one kv head")
    rng = np.random.default_rng(3)
    states = {name: rng.standard_normal(node.shape) for name, node in g.states.items()}
    updates = interpret(g, {"ids": ids_for(ONE_KV_HEAD)[:3]}, weights, states, {"n": 3, "p": 6, "m": 1}).updates
    assert set(updates) == {f"layers.{i}.{kv}" for i in range(3) for kv in "kv"}
    for name, new in updates.items():
        kept = np.r_[0:6, 9:POSITIONS]
        assert np.array_equal(new[kept], states[name][kept])
        assert (new[6:9] != states[name][6:9]).all()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_comparison_with_transformers_refuses(mutant: Mutant) -> None:
    g, weights, expected = reference("one kv head")
    wrong = run(mutant.apply(g), weights, ids_for(ONE_KV_HEAD), (TOKENS,))
    assert not relative_error(wrong, expected) <= 10 * TOLERANCE


def test_a_mutant_that_changes_nothing_says_so() -> None:
    g, _, _ = reference("only full layers, scores capped")
    with pytest.raises(LookupError, match="found nothing to change"):
        MUTANTS[0].apply(g)


def test_bf16_weights_mean_the_same_as_their_values_in_f32() -> None:
    narrow = gemma3_graph(ONE_KV_HEAD, max_positions=POSITIONS, weight_dtype=bf16)
    assert {node.dtype for node in narrow.parameters.values()} == {bf16}
    weights = {k: v.astype(bf16.numpy) for k, v in random_weights(narrow).items()}
    scale = float(np.asarray(32 ** 0.5).astype(bf16.numpy))
    wide = gemma3_graph(dataclasses.replace(ONE_KV_HEAD, embedding_scale=scale), max_positions=POSITIONS)
    ids = ids_for(ONE_KV_HEAD)
    a = run(narrow, weights, ids, (TOKENS,))
    b = run(wide, {k: v.astype(np.float32) for k, v in weights.items()}, ids, (TOKENS,))
    assert relative_error(a, b) <= 1e-12


def test_graphs_of_different_lengths_live_side_by_side() -> None:
    short, long = (gemma3_graph(ONE_KV_HEAD, max_positions=length) for length in (16, 64))
    ranges = [dim.bounds() for g in (short, long) for dim in (g.dims["n"], g.dims["p"])]
    assert ranges == [(1, 16), (0, 15), (1, 64), (0, 63)]
    assert short.inputs["ids"] is not long.inputs["ids"]


def test_layers_of_one_kind_share_one_table_of_angles() -> None:
    g = gemma3_graph(dataclasses.replace(ONE_KV_HEAD, layers=("sliding",) * 5 + ("full",)), max_positions=POSITIONS)
    assert sorted(n.attrs["theta"] for n in g.nodes if n.is_op("rope_table")) == [10_000.0, 1_000_000.0]


@pytest.mark.parametrize(("change", "message"), [
    ({"kv_heads": 3}, "4 heads are not a multiple of 3 kv_heads"),
    ({"hidden": 0}, "hidden is 0"),
    ({"layers": ("sliding", "global")}, "layer 1 is 'global'"),
    ({"window": 0}, "a window of 0"),
])
def test_a_spec_that_does_not_fit_together_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(AttributeValueError, match=message):
        dataclasses.replace(ONE_KV_HEAD, **change)  # type: ignore[arg-type]
