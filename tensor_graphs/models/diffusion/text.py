"""text: the encoders of prompts, CLIP's and T5's.

Sources: CLIP, Radford et al. 2021; T5, Raffel et al. 2020 (positions in buckets), Shazeer 2020 (gated feed-forward).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tensor_graphs.language import atomic
from tensor_graphs.language.composites.batches import attention
from tensor_graphs.language.composites.elementary import gelu, sigmoid
from tensor_graphs.language.composites.indexing import embedding
from tensor_graphs.language.composites.normalisation import softmax
from tensor_graphs.language.composites.products import dot
from tensor_graphs.language.dtypes import f32, i32
from tensor_graphs.language.graph import Graph, graph
from tensor_graphs.language.leaves import constant, input
from tensor_graphs.language.node import Node
from tensor_graphs.models.diffusion.layers import Layers


@dataclass(frozen=True, slots=True)
class ClipFacts:
    """The facts of one CLIP text encoder. positions: tokens that it reads, always all of them. skip: number of last layers that the
    returned vectors leave out; normed: they pass the last norm nevertheless. projected: size of the pooled vector after its
    projection; 0: without one."""

    vocabulary: int
    hidden: int
    ffn: int
    layers: int
    heads: int
    positions: int
    eps: float
    activation: Literal["quick_gelu", "gelu"]
    skip: int = 0
    normed: bool = True
    projected: int = 0


@dataclass(frozen=True, slots=True)
class T5Facts:
    """The facts of one T5 encoder of version 1.1. buckets, furthest: of the distances between tokens."""

    vocabulary: int
    hidden: int
    ffn: int
    layers: int
    heads: int
    width: int
    eps: float
    buckets: int = 32
    furthest: int = 128


def clip_graph(facts: ClipFacts, at: Layers, texts: int) -> Graph:
    """Return the graph ids i32[texts, positions], last i32[texts] -> `hidden` f32[texts, positions, hidden] and `pooled`: the
    vector of the token at place `last`, after the last norm and its projection."""
    ids, last = input("ids", (texts, facts.positions), i32), input("last", (texts,), i32)
    within = at.at("text_model")
    x = embedding(within.weight("embeddings.token_embedding.weight", facts.vocabulary, facts.hidden), ids, dtype=f32)
    x = x + atomic.cast(within.weight("embeddings.position_embedding.weight", facts.positions, facts.hidden), f32)
    hidden, width = x, facts.hidden // facts.heads
    for i in range(facts.layers):
        layer = within.at(f"encoder.layers.{i}")
        y, self_attention = layer.layer_norm("layer_norm1", x, facts.eps), layer.at("self_attn")
        q, k, v = (self_attention.heads(name, y, facts.heads, width) for name in ("q_proj", "k_proj", "v_proj"))
        seen = atomic.reshape(attention(q, k, v, scale=width ** -0.5, causal=True), x.shape)
        x = x + self_attention.linear("out_proj", seen, facts.hidden)
        y = layer.linear("mlp.fc1", layer.layer_norm("layer_norm2", x, facts.eps), facts.ffn)
        y = y * sigmoid(y * 1.702) if facts.activation == "quick_gelu" else gelu(y)
        x = x + layer.linear("mlp.fc2", y, facts.hidden)
        if i + 1 == facts.layers - facts.skip:
            hidden = x
    if facts.normed:
        hidden = within.layer_norm("final_layer_norm", hidden, facts.eps)
    rows = atomic.reshape(x, (texts * facts.positions, facts.hidden))
    places = last + atomic.iota((texts,), 0, i32) * facts.positions
    pooled = within.layer_norm("final_layer_norm", atomic.gather(rows, places, axis=0), facts.eps)
    if facts.projected:
        pooled = at.linear("text_projection", pooled, facts.projected, bias=False)
    return graph({"hidden": hidden, "pooled": pooled})


def t5_graph(facts: T5Facts, at: Layers, texts: int, tokens: int) -> Graph:
    """Return the graph ids i32[texts, tokens] -> `hidden` f32[texts, tokens, hidden]. Every token sees every token."""
    x = embedding(at.weight("shared.weight", facts.vocabulary, facts.hidden), input("ids", (texts, tokens), i32), dtype=f32)
    table = at.weight("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", facts.buckets, facts.heads)
    bias = atomic.permute(embedding(table, constant(buckets(facts, tokens)), dtype=f32), (2, 0, 1))
    for i in range(facts.layers):
        layer = at.at(f"encoder.block.{i}")
        x = x + _t5_attention(facts, layer.at("layer.0.SelfAttention"), layer.rms_norm("layer.0.layer_norm", x, facts.eps), bias)
        y, dense = layer.rms_norm("layer.1.layer_norm", x, facts.eps), layer.at("layer.1.DenseReluDense")
        gate, up = (dense.linear(part, y, facts.ffn, bias=False) for part in ("wi_0", "wi_1"))
        x = x + dense.linear("wo", gelu(gate, approximate="tanh") * up, facts.hidden, bias=False)
    return graph({"hidden": at.rms_norm("encoder.final_layer_norm", x, facts.eps)})


def _t5_attention(facts: T5Facts, at: Layers, x: Node, bias: Node) -> Node:
    """Return x[b, n, c] -> [b, n, c]: scores are not scaled, and have a bias[heads, n, n] of the distance."""
    q, k, v = (at.heads(name, x, facts.heads, facts.width, bias=False) for name in ("q", "k", "v"))
    scores = dot(atomic.permute(q, (0, 2, 1, 3)), atomic.permute(k, (0, 2, 3, 1))) + bias
    seen = atomic.permute(dot(softmax(scores), atomic.permute(v, (0, 2, 1, 3))), (0, 2, 1, 3))
    return at.linear("o", atomic.reshape(seen, (*x.shape[:2], facts.heads * facts.width)), facts.hidden, bias=False)


def buckets(facts: T5Facts, tokens: int) -> np.ndarray:
    """Return i32[tokens, tokens]: the bucket of the distance from each token to each. Small distances have one each, larger ones
    share them, in logarithmic steps; half of the buckets are for later tokens."""
    half = facts.buckets // 2
    exact, ahead = half // 2, np.arange(tokens)[None] - np.arange(tokens)[:, None]
    far = np.abs(ahead)
    steps = np.log(np.maximum(far, 1).astype(np.float32) / np.float32(exact)) / np.float32(np.log(facts.furthest / exact))
    shared = np.minimum(exact + (steps * np.float32(half - exact)).astype(np.int64), half - 1)
    return (np.where(far < exact, far, shared) + half * (ahead > 0)).astype(np.int32)
