"""gemma3: the text decoder of Gemma 3 as one graph that serves prefill of any length, decode and teacher forcing.

Sources: Gemma 3 Technical Report, 2025; Gemma 2 report, 2024 (norms before and after each block, soft caps). Constants
and tensor names are those of the published checkpoints. Every norm multiplies by 1 + weight; queries and keys are
normalised per head before they are rotated; sliding layers see the last `window` positions (the query's own included),
full layers all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tensor_graphs.language import atomic
from tensor_graphs.language.composites.elementary import tanh
from tensor_graphs.language.composites.gated import gated
from tensor_graphs.language.composites.indexing import embedding, linear_argmax
from tensor_graphs.language.composites.normalisation import rms_norm
from tensor_graphs.language.composites.positions import rope, rope_table
from tensor_graphs.language.composites.products import attention, linear
from tensor_graphs.language.dims import Dim, dim
from tensor_graphs.language.dtypes import DType, f32, i32
from tensor_graphs.language.errors import AttributeValueError
from tensor_graphs.language.graph import Graph, graph
from tensor_graphs.language.leaves import State, input, parameter, state
from tensor_graphs.language.node import Node

LayerKind = Literal["sliding", "full"]


@dataclass(frozen=True, slots=True)
class Rope:
    """How positions become angles: position / scaling · theta^(−2i/head_dim), in radians."""

    theta: float
    scaling: float = 1.0


@dataclass(frozen=True, slots=True)
class Gemma3Spec:
    """The sizes and constants of one Gemma 3 text decoder.

    vocabulary, hidden, ffn, heads, kv_heads, head_dim: sizes. layers: the kind of each layer, from the bottom. window:
    how many positions a sliding layer sees. scale: what attention scores are multiplied by. A softcap of 0 is none.
    embedding_scale: None = √hidden rounded to the dtype of the weights, as the published code does.
    Raises AttributeValueError for sizes that do not fit together.
    """

    vocabulary: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: tuple[LayerKind, ...]
    window: int
    eps: float
    scale: float
    sliding_rope: Rope
    full_rope: Rope
    attention_softcap: float = 0.0
    final_softcap: float = 0.0
    activation: Literal["gelu_tanh", "gelu", "silu"] = "gelu_tanh"
    tied: bool = True
    attention_bias: bool = False
    embedding_scale: float | None = None

    def __post_init__(self) -> None:
        for name in ("vocabulary", "hidden", "ffn", "heads", "kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise AttributeValueError(f"Gemma3Spec: {name} is {getattr(self, name)}", fix="sizes are ≥ 1")
        if self.heads % self.kv_heads:
            raise AttributeValueError(f"Gemma3Spec: {self.heads} heads are not a multiple of {self.kv_heads} kv_heads",
                                      fix="each head of keys and values serves the same number of query heads")
        for i, kind in enumerate(self.layers):
            if kind not in ("sliding", "full"):
                raise AttributeValueError(f"Gemma3Spec: layer {i} is {kind!r}", fix="'sliding' or 'full'")
        if "sliding" in self.layers and self.window < 1:
            raise AttributeValueError(f"Gemma3Spec: sliding layers with a window of {self.window}", fix="at least 1")

    def embedding_scale_for(self, weight_dtype: DType) -> float:
        """What embedded tokens are multiplied by: as given, or √hidden rounded to the dtype of the weights."""
        if self.embedding_scale is not None:
            return self.embedding_scale
        return float(np.asarray(math.sqrt(self.hidden), dtype=np.float64).astype(weight_dtype.numpy))


Output = Literal["logits", "token"]
"""what a decoder gives: all logits, or (for greedy decoding) the largest one and its token"""


def gemma3_graph(spec: Gemma3Spec, *, max_positions: int, weight_dtype: DType = f32, output: Output = "logits") -> Graph:
    """The decoder over a cache of `max_positions` positions: `ids` i32[n] -> `logits` f32[m, vocabulary].

    output "token": -> `token` i32[m] and `logit` f32[m] instead, the likeliest token of each position and its logit; where they
    alone are asked for, most of the head's weights need not be read.

    Dims: n new tokens, p tokens that are in the cache already, m ≤ n last positions that get logits; p + n ≤
    max_positions. n = all, p = 0 is a prefill; n = m = 1 decodes; m = n is teacher forcing.
    States: `layers.{i}.k` and `layers.{i}.v`, f32[max_positions, kv_heads, head_dim]; rows p … p + n − 1 are written,
    keys after their rotation.
    Parameters are declared in `weight_dtype` under the names of the checkpoint (`model.embed_tokens.weight`, …);
    activations are f32. Raises AttributeValueError when max_positions < 1.
    """
    if max_positions < 1:
        raise AttributeValueError(f"gemma3_graph: max_positions is {max_positions}", fix="at least 1")
    n, p, m = dim("n", 1, max_positions), dim("p", 0, max_positions - 1), dim("m", 1, max_positions)
    step = _Step(spec, weight_dtype, n, p, max_positions)
    table = step.weight("model.embed_tokens.weight", spec.vocabulary, spec.hidden)
    x = embedding(table, input("ids", (n,), i32), scale=spec.embedding_scale_for(weight_dtype), dtype=f32)
    for i in range(len(spec.layers)):
        x = step.layer(i, x)
    x = step.norm("model.norm.weight", x[n - m:])
    head = table if spec.tied else step.weight("lm_head.weight", spec.vocabulary, spec.hidden)

    def capped(logits: Node) -> Node:
        return tanh(logits / spec.final_softcap) * spec.final_softcap if spec.final_softcap else logits

    if output == "logits":
        return graph({"logits": capped(linear(x, head))}, step.updates)
    if output != "token":
        raise AttributeValueError(f"gemma3_graph: the output is {output!r}", fix="'logits' or 'token'")
    logit, token = linear_argmax(x, head)               # the cap grows with its argument: the largest stays the largest
    return graph({"token": token, "logit": capped(logit)}, step.updates)


class _Step:
    """One forward step under construction: n new tokens after p cached ones."""

    def __init__(self, spec: Gemma3Spec, weight_dtype: DType, n: Dim, p: Dim, max_positions: int) -> None:
        self.spec, self.weight_dtype, self.n, self.p, self.max_positions = spec, weight_dtype, n, p, max_positions
        self.updates: dict[State | str, Node] = {}
        positions = atomic.add(atomic.iota((n,), 0, i32), atomic.dim_fill(p, (n,), i32))
        ropes: dict[LayerKind, Rope] = {"sliding": spec.sliding_rope, "full": spec.full_rope}
        self.tables = {kind: rope_table(positions, head_dim=spec.head_dim, theta=r.theta, scaling=r.scaling, dtype=f32)
                       for kind, r in ropes.items() if kind in spec.layers}

    def weight(self, name: str, *shape: int) -> Node:
        return parameter(name, shape, self.weight_dtype)

    def norm(self, name: str, x: Node) -> Node:
        """x / rms(x) · (1 + weight), over the last axis."""
        size = x.shape[-1]
        assert isinstance(size, int)
        out: Node = rms_norm(x, self.weight(name, size), eps=self.spec.eps, offset=1.0)
        return out

    def layer(self, i: int, x: Node) -> Node:
        """x[n, hidden] through layer i: attention, then the gated feed-forward, each normalised before and after."""
        at = f"model.layers.{i}."
        attended = self.attend(i, self.norm(at + "input_layernorm.weight", x))
        x = x + self.norm(at + "post_attention_layernorm.weight", attended)
        fed = self.feed_forward(i, self.norm(at + "pre_feedforward_layernorm.weight", x))
        return x + self.norm(at + "post_feedforward_layernorm.weight", fed)

    def attend(self, i: int, x: Node) -> Node:
        spec, kind, end = self.spec, self.spec.layers[i], self.p + self.n
        at = f"model.layers.{i}.self_attn."
        cos, sin = self.tables[kind]
        q = rope(self.norm(at + "q_norm.weight", self.project(at + "q_proj", x, spec.heads)), cos, sin)
        k = rope(self.norm(at + "k_norm.weight", self.project(at + "k_proj", x, spec.kv_heads)), cos, sin)
        v = self.project(at + "v_proj", x, spec.kv_heads)
        keys, values = self.remember(f"layers.{i}.k", k), self.remember(f"layers.{i}.v", v)
        seen = attention(q, keys[:end], values[:end], scale=spec.scale, causal=True, start=self.p,
                         window=spec.window if kind == "sliding" else 0, softcap=spec.attention_softcap)
        width = spec.heads * spec.head_dim
        out: Node = linear(atomic.reshape(seen, (self.n, width)), self.weight(at + "o_proj.weight", spec.hidden, width),
                           self.bias(at + "o_proj.bias", spec.hidden))
        return out

    def project(self, name: str, x: Node, heads: int) -> Node:
        """x[n, hidden] -> [n, heads, head_dim]."""
        spec, width = self.spec, heads * self.spec.head_dim
        out = linear(x, self.weight(name + ".weight", width, spec.hidden), self.bias(name + ".bias", width))
        return atomic.reshape(out, (self.n, heads, spec.head_dim))

    def bias(self, name: str, size: int) -> Node | None:
        return self.weight(name, size) if self.spec.attention_bias else None

    def remember(self, name: str, rows: Node) -> Node:
        """The cache with rows p … p + n − 1 overwritten; the graph keeps it as the state's next value."""
        cache = state(name, (self.max_positions, *rows.shape[1:]), f32)
        self.updates[cache] = cache.write(rows, at=self.p)
        return self.updates[cache]

    def feed_forward(self, i: int, x: Node) -> Node:
        spec, at = self.spec, f"model.layers.{i}.mlp."
        gate = linear(x, self.weight(at + "gate_proj.weight", spec.ffn, spec.hidden))
        up = linear(x, self.weight(at + "up_proj.weight", spec.ffn, spec.hidden))
        inner = gated(gate, up, activation=spec.activation)
        out: Node = linear(inner, self.weight(at + "down_proj.weight", spec.hidden, spec.ffn))
        return out
