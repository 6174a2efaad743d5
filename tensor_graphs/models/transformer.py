"""transformer: one decoder and one encoder, described by facts: differences between families are data here, not code.

A graph is built from two descriptions: `Facts` (sizes, constants and choices of one model) and `TensorNames` (names of tensors in
a family's checkpoints; a norm or a projection without a name does not exist). Rows of both are in
frontends/huggingface/families.py.
Sources: Vaswani et al. 2017 (attention), Shazeer 2020 (gated feed-forward), Wang and Komatsuzaki 2021 (parallel blocks), Gemma 2
report 2024 (soft caps, norms before and after), Shazeer et al. 2017 and Jiang et al. 2024 (experts), Raffel et al. 2020 (relative
positions in buckets), Reimers and Gurevych 2019 (pooling).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tensor_graphs.language import atomic
from tensor_graphs.language.atomic import fill
from tensor_graphs.language.composites import arithmetic
from tensor_graphs.language.composites.elementary import gelu, relu, sigmoid, silu, tanh
from tensor_graphs.language.composites.gated import ACTIVATIONS as GATED
from tensor_graphs.language.composites.gated import gated
from tensor_graphs.language.composites.indexing import argmax, embedding, linear_argmax, topk
from tensor_graphs.language.composites.normalisation import layer_norm, logsumexp, mean, rms_norm, softmax
from tensor_graphs.language.composites.paged import paged_attention
from tensor_graphs.language.composites.products import attention, dot, gather_linear, linear
from tensor_graphs.language.dims import Dim, bounds, dim
from tensor_graphs.language.dtypes import DType, f32, i32
from tensor_graphs.language.errors import AttributeValueError
from tensor_graphs.language.graph import Graph, graph
from tensor_graphs.language.leaves import State, constant, input, parameter, state
from tensor_graphs.language.node import Node
from tensor_graphs.models.rope import Rope

Output = Literal["logits", "token"]
"""Output of a decoder: all logits, or (for greedy decoding) the largest logit and its token."""

ACTIVATIONS: dict[str, Callable[[Node], Node]] = {
    "gelu": gelu, "gelu_tanh": lambda x: gelu(x, approximate="tanh"), "relu": relu, "silu": silu}

_SHORTEST = 1e-12
"""Least divisor of a vector that is scaled to length 1, as in torch.nn.functional.normalize."""


@dataclass(frozen=True, slots=True)
class Experts:
    """A feed-forward of `count` experts of width `ffn`, of which each token uses the `chosen` likeliest.

    normalised: divide the chosen probabilities by their sum (the same as a softmax over the chosen experts alone). shared: width of
    a further expert that every token uses, weighted by a sigmoid gate (0: none). limit: if not 0, gates are limited to at most
    `limit` and ups to ± `limit`, and an expert computes gate · sigmoid(gain · gate) · (up + 1); if 0, activation(gate) · up without
    limits. Source: Shazeer et al. 2017; Jiang et al. 2024 (Mixtral); Dai et al. 2024 (shared); OpenAI 2025 (gpt-oss: limit, gain).
    """

    count: int
    chosen: int
    ffn: int
    normalised: bool = True
    shared: int = 0
    limit: float = 0.0
    gain: float = 1.0


@dataclass(frozen=True, slots=True)
class Layer:
    """Settings that may differ between the layers of one model.

    window: number of last positions that a token sees, its own included (in an encoder: number on either side); 0 = all. rope: None
    = positions are not rotated. scale: factor of attention scores. experts: None = an ordinary feed-forward.
    """

    scale: float
    window: int = 0
    rope: Rope | None = None
    experts: Experts | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts that the math of one transformer needs besides its weights.

    vocabulary, hidden, ffn, heads, kv_heads, head_dim: sizes. layers: from the bottom. norm: "rms" or "layer"; norm_offset: number
    added to its weight. head_norms: True if q and k are normalised per head, False if over all heads together. biases: those of q,
    k, v, o, gate, up, down, norm and head that add one. A softcap of 0 means none. parallel: attention and feed-forward read the
    same x. embedding_scale: None = √hidden rounded to the dtype of the weights, as Gemma's published code does. residual_scale:
    factor of each block's result before it is added; logit_scale: factor of logits, before their cap. positions: rows of a table of
    learnt positions (0: none), of which the first token takes row first_position. token_types: rows of a table of sentence types,
    of which row 0 is added (0: none). buckets: number of buckets of relative positions (0: none). pooling: how an encoder's tokens
    become one vector; normalise: scale that vector to length 1. Raises AttributeValueError for facts that do not fit together.
    """

    vocabulary: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: tuple[Layer, ...]
    eps: float
    activation: str = "silu"
    norm: Literal["rms", "layer"] = "rms"
    norm_offset: float = 0.0
    head_norms: bool = True
    biases: frozenset[str] = frozenset()
    attention_softcap: float = 0.0
    final_softcap: float = 0.0
    tied: bool = False
    parallel: bool = False
    embedding_scale: float | None = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    positions: int = 0
    first_position: int = 0
    token_types: int = 0
    buckets: int = 0
    pooling: Literal["mean", "cls", "max"] = "mean"
    normalise: bool = False

    def __post_init__(self) -> None:
        for name in ("vocabulary", "hidden", "ffn", "heads", "kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise AttributeValueError(f"the model's {name} is {getattr(self, name)}", fix="sizes are ≥ 1")
        if self.heads % self.kv_heads:
            raise AttributeValueError(f"{self.heads} heads are not a multiple of {self.kv_heads} kv_heads",
                                      fix="each head of keys and values serves the same number of query heads")
        for experts in (layer.experts for layer in self.layers if layer.experts):
            if not 1 <= experts.chosen <= experts.count:
                raise AttributeValueError(f"{experts.chosen} of {experts.count} experts", fix="at least 1, at most all")
        if self.activation not in ACTIVATIONS or self.pooling not in ("mean", "cls", "max"):
            raise AttributeValueError(f"activation {self.activation!r}, pooling {self.pooling!r}",
                                      fix=f"activation in {sorted(ACTIVATIONS)}, pooling mean, cls or max")

    @property
    def lengths(self) -> tuple[int, int | None] | None:
        """Least and largest length of a text, in tokens, that rotations distinguish, None for no largest; None where rotations do
        not depend on it."""
        ropes = {layer.rope for layer in self.layers if layer.rope is not None and layer.rope.by_length}
        if not ropes:
            return None
        most = None if any(rope.kind == "dynamic" for rope in ropes) else max(rope.original for rope in ropes) + 1
        return min(rope.original for rope in ropes), most

    def embedding_scale_for(self, weight_dtype: DType) -> float:
        """Return the factor of embedded tokens: embedding_scale, or for None √hidden rounded to the dtype of the weights."""
        if self.embedding_scale is not None:
            return self.embedding_scale
        return float(np.asarray(math.sqrt(self.hidden), dtype=np.float64).astype(weight_dtype.numpy))


@dataclass(frozen=True, slots=True)
class Fused:
    """Weights that checkpoints store as one tensor, `parts` one after another along the outputs (per_head: within each head).

    A part with {e} in its name is the stack of all experts along a first axis; the checkpoint's name has no `.weight`. in_turn: the
    outputs of the parts are interleaved; transposed: stored as [in, out].
    """

    tensor: str
    parts: tuple[str, ...]
    per_head: bool = False
    in_turn: bool = False
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class TensorNames:
    """Names of tensors in the checkpoints of a family, without `.weight` and `.bias`; "" = the family has none.

    layer: prefix of layer {i}, before all names from attention_in to shared_gate. *_in: norms before a block, *_out: of a block's
    result, *_sum: after the result was added. Without a gate the feed-forward is down(activation(up x)). first_in: True if layer 0
    has the norm attention_in. q_norm, k_norm: with {e}, each head has a norm of its own, without bias. sinks: one logit per head,
    added to the softmax over the keys without a value. root: prefix that checkpoints of the bare model may lack. fused: parts that
    are stored together; transposed: projections of layers are stored as [in, out]. older: spellings in older checkpoints. unused:
    parts of names of tensors that the graph does not need (heads for training, buffers). Parameters of all experts are stacks
    [experts, …], and norms of all heads [heads, head_dim], under the name of a single one without its `.{e}`.
    """

    embed: str = "model.embed_tokens"
    positions: str = ""
    types: str = ""
    embed_norm: str = ""
    norm: str = "model.norm"
    head: str = "lm_head"
    relative: str = ""
    layer: str = "model.layers.{i}."
    attention_in: str = "input_layernorm"
    attention_out: str = ""
    attention_sum: str = ""
    ffn_in: str = "post_attention_layernorm"
    ffn_out: str = ""
    ffn_sum: str = ""
    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    o: str = "self_attn.o_proj"
    q_norm: str = ""
    k_norm: str = ""
    sinks: str = ""
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    router: str = ""
    expert_gate: str = "mlp.experts.{e}.gate_proj"
    expert_up: str = "mlp.experts.{e}.up_proj"
    expert_down: str = "mlp.experts.{e}.down_proj"
    shared: str = "mlp.shared_expert."
    shared_gate: str = "mlp.shared_expert_gate"
    root: str = "model."
    first_in: bool = True
    fused: tuple[Fused, ...] = ()
    transposed: bool = False
    older: tuple[tuple[str, str], ...] = field(default=())
    unused: tuple[str, ...] = ("rotary_emb.inv_freq",)


@dataclass(frozen=True, slots=True)
class Pool:
    """Sizes of a decoder of many sequences. pages: in the pool, of `page` tokens each. tokens: most in one step, of all sequences
    together; least: fewest. asked: most of them that get logits."""

    pages: int
    page: int = 16
    tokens: int = 256
    asked: int = 64
    least: int = 1


def decoder_graph(facts: Facts, names: TensorNames, *, max_positions: int, weight_dtype: DType = f32,
                  activation_dtype: DType = f32, output: Output = "logits", paged: Pool | None = None) -> Graph:
    """Return a decoder with a cache of `max_positions` positions: `ids` i32[n] -> `logits` f32[m, vocabulary].

    output "token": outputs `token` i32[m] and `logit` f32[m] instead, the likeliest token of each position and its logit; most of
    the head's weights need not be read then.

    Dims: n new tokens, p tokens that are in the cache already, m ≤ n last positions that get logits; p + n ≤
    max_positions. n = all, p = 0 is a prefill; n = m = 1 decodes; m = n is teacher forcing.
    States: `layers.{i}.k` and `layers.{i}.v`, [max_positions, kv_heads, head_dim]; rows p … p + n − 1 are written,
    keys after their rotation.
    Parameters are declared in `weight_dtype` under the names of the checkpoint (`model.embed_tokens.weight`, …); activations and
    states in `activation_dtype`, except the logits, a router's probabilities and an attention sink's share, which are f32; norms
    and softmax are computed in f32 inside. Raises AttributeValueError when max_positions < 1, or beyond a table of learnt
    positions.

    paged: return a step of many sequences, whose keys and values lie in pages of one pool. Inputs of its t tokens: `ids`,
    `positions` (−1: a token that stands for nothing), `slots` (row of the pool that its key and value are written to; −1: none),
    all i32[t], and `pages` i32[t, w], the pages of its sequence in order; with `facts.lengths` also `ends`, the number of the
    sequence's tokens when it came. `asked` i32[m]: numbers of the tokens that get logits. States have pages · page rows. Dims: t,
    w, m.
    """
    if max_positions < 1:
        raise AttributeValueError(f"decoder_graph: max_positions is {max_positions}", fix="at least 1")
    step: _Step
    if paged is None:
        n, p, m = dim("n", 1, max_positions), dim("p", 0, max_positions - 1), dim("m", 1, max_positions)
        step = _Step(facts, names, weight_dtype, n, p, max_positions, activation_dtype)
    else:
        step = _PagedStep(facts, names, weight_dtype, max_positions, activation_dtype, paged)
    x, table = step.embed(input("ids", (step.n,), i32))
    for i in range(len(facts.layers)):
        x = step.layer(i, x)
    last = x[n - m:] if paged is None else atomic.gather(x, input("asked", (dim("m", 1, paged.asked),), i32), axis=0)
    x = atomic.cast(step.norm(names.norm, last), f32)
    head = table if facts.tied else step.weight(names.head + ".weight", facts.vocabulary, facts.hidden)
    bias = step.bias("head", names.head, facts.vocabulary)

    def scaled(logits: Node) -> Node:
        logits = logits * facts.logit_scale if facts.logit_scale != 1.0 else logits
        return tanh(logits / facts.final_softcap) * facts.final_softcap if facts.final_softcap else logits

    if output == "logits":
        return graph({"logits": scaled(linear(x, head, bias))}, step.updates)
    if output != "token":
        raise AttributeValueError(f"decoder_graph: the output is {output!r}", fix="'logits' or 'token'")
    if bias is not None or facts.logit_scale <= 0:
        logits = scaled(linear(x, head, bias))
        return graph({"token": argmax(logits), "logit": atomic.reduce_max(logits, (1,))}, step.updates)
    logit, token = linear_argmax(x, head)               # scale and cap are increasing functions: the largest stays the largest
    return graph({"token": token, "logit": scaled(logit)}, step.updates)


def encoder_graph(facts: Facts, names: TensorNames, *, max_positions: int, weight_dtype: DType = f32,
                  activation_dtype: DType = f32, packed: int | None = None) -> Graph:
    """Return an encoder: `ids` i32[n], one sentence with its special tokens -> `hidden` [n, hidden], `embedding` f32[hidden].

    n: 1 … max_positions. Every token sees every token, or those in its window; all are of sentence type 0. Parameters are
    declared in `weight_dtype` under the names of the checkpoint; activations, `hidden` too, in `activation_dtype`.
    Raises AttributeValueError when max_positions < 1, or beyond a table of learnt positions.

    packed: return an encoder of several sentences, one after another, of `packed` tokens at most (at least max_positions). Inputs
    of its t tokens: `ids`, `positions` in their sentence and `sentences`, the numbers of these, all i32[t]; `firsts` i32[s], the
    numbers of the sentences' first tokens. Output `embedding` f32[s, hidden]. Dims: t, s.
    """
    if max_positions < 1:
        raise AttributeValueError(f"encoder_graph: max_positions is {max_positions}", fix="at least 1")
    if packed is None:
        step = _Step(facts, names, weight_dtype, dim("n", 1, max_positions), 0, max_positions, activation_dtype, cached=False)
    else:
        step = _PackedStep(facts, names, weight_dtype, max_positions, activation_dtype, max(packed, max_positions))
    x, _ = step.embed(input("ids", (step.n,), i32))
    for i in range(len(facts.layers)):
        x = step.layer(i, x)
    x = step.norm(names.norm, x)
    return graph({"embedding": step.pooled(x)} if packed is not None else {"hidden": x, "embedding": step.pooled(x)})


def unit(facts: Facts, pooled: Node) -> Node:
    """Return the pooled vectors [..., d], scaled to length 1 if facts.normalise."""
    if not facts.normalise:
        return pooled
    squares = atomic.mul(pooled, pooled)
    total = atomic.sum(squares) if pooled.rank == 1 else arithmetic.sum(squares, 1, keepdims=True)
    return pooled / arithmetic.maximum(atomic.sqrt(total), _SHORTEST)


class _Step:
    """One forward step under construction: n new tokens after p cached ones. An encoder has no cache."""

    def __init__(self, facts: Facts, names: TensorNames, weight_dtype: DType, n: Dim, p: Dim, max_positions: int, dtype: DType,
                 cached: bool = True, positions: Node | None = None, ends: Node | None = None) -> None:
        if facts.positions and max_positions > facts.positions - facts.first_position:
            raise AttributeValueError(f"max_positions is {max_positions}",
                                      fix=f"the model has 1 to {facts.positions - facts.first_position}")
        self.facts, self.names, self.weight_dtype, self.dtype, self.cached = facts, names, weight_dtype, dtype, cached
        self.n, self.p, self.max_positions, self.several = n, p, max_positions, positions is not None
        self.updates: dict[State | str, Node] = {}
        if positions is None:
            places = atomic.iota((n,), 0, i32)
            positions = atomic.add(places, atomic.dim_fill(p, (n,), i32)) if cached else places
        self.positions = positions
        self.tables = {rope: rope.table(positions, p + n if ends is None else ends, facts.head_dim)
                       for rope in dict.fromkeys(layer.rope for layer in facts.layers) if rope is not None}

    # ---- weights, under the names of the checkpoint

    def weight(self, name: str, *shape: Dim) -> Node:
        return parameter(name, shape, self.weight_dtype)

    def bias(self, part: str, name: str, size: int) -> Node | None:
        return self.weight(name + ".bias", size) if part in self.facts.biases else None

    def linear(self, part: str, name: str, x: Node, size: int) -> Node:
        inner = x.shape[-1]
        assert isinstance(inner, int)
        out: Node = linear(x, self.weight(name + ".weight", size, inner), self.bias(part, name, size))
        return out

    def norm(self, name: str, x: Node) -> Node:
        """Return x normalised over its last axis; x itself where the family has no norm."""
        facts, size = self.facts, x.shape[-1]
        if not name:
            return x
        if "{e}" in name:                                # x[n, heads, size]: a weight for each head
            unit = (rms_norm if facts.norm == "rms" else layer_norm)(atomic.cast(x, f32), eps=facts.eps)
            stack = atomic.cast(self.weight(name.replace(".{e}", "") + ".weight", *x.shape[1:]), f32)
            return atomic.cast(unit * (stack + facts.norm_offset if facts.norm_offset else stack), self.dtype)
        assert isinstance(size, int)
        weight = self.weight(name + ".weight", size)
        out: Node = (rms_norm(x, weight, eps=facts.eps, offset=facts.norm_offset) if facts.norm == "rms" else
                     layer_norm(x, weight, self.bias("norm", name, size), eps=facts.eps))
        return out

    # ---- the parts of a model, from the bottom

    def embed(self, ids: Node) -> tuple[Node, Node]:
        """Return (vectors [n, hidden] of the tokens, with token types and learnt positions added; embedding table)."""
        facts, names = self.facts, self.names
        table = self.weight(names.embed + ".weight", facts.vocabulary, facts.hidden)
        x = embedding(table, ids, scale=facts.embedding_scale_for(self.weight_dtype), dtype=self.dtype)
        if facts.token_types:
            x = x + atomic.cast(self.weight(names.types + ".weight", facts.token_types, facts.hidden)[0], self.dtype)
        if facts.positions:
            x = x + atomic.cast(self.learnt(self.weight(names.positions + ".weight", facts.positions, facts.hidden)), self.dtype)
        return self.norm(names.embed_norm, x), table

    def learnt(self, table: Node) -> Node:
        """Return the rows of a table of learnt positions for the new tokens."""
        if self.several:                                 # texts, whose positions begin anew
            return atomic.gather(table, self.positions + self.facts.first_position, axis=0)
        start = self.facts.first_position + self.p
        return table[start:start + self.n]

    def layer(self, i: int, x: Node) -> Node:
        """Return x[n, hidden] after layer i: attention and feed-forward, each with its norms, added to its input."""
        names, at = self.names, self.names.layer.format(i=i)

        def norm(name: str, x: Node) -> Node:
            return self.norm(at + name if name else "", x)

        def feed_forward(x: Node) -> Node:
            experts = self.facts.layers[i].experts
            return self.mix(at, x, experts) if experts else self.feed_forward(at, x)

        def add(x: Node, branch: Node) -> Node:
            return x + (branch * self.facts.residual_scale if self.facts.residual_scale != 1.0 else branch)

        inside = x if i == 0 and not names.first_in else norm(names.attention_in, x)
        attended = norm(names.attention_out, self.attend(i, inside))
        if self.facts.parallel:
            return add(add(x, attended), norm(names.ffn_out, feed_forward(norm(names.ffn_in, x))))
        x = norm(names.attention_sum, add(x, attended))
        return norm(names.ffn_sum, add(x, norm(names.ffn_out, feed_forward(norm(names.ffn_in, x)))))

    def attend(self, i: int, x: Node) -> Node:
        """Return the attention block's result, x[n, hidden] -> [n, hidden], including its output projection."""
        facts, names, layer, at = self.facts, self.names, self.facts.layers[i], self.names.layer.format(i=i)
        q = self.turn(layer, self.project("q", at + names.q, x, facts.heads, at + names.q_norm if names.q_norm else ""))
        k = self.turn(layer, self.project("k", at + names.k, x, facts.kv_heads, at + names.k_norm if names.k_norm else ""))
        v = self.project("v", at + names.v, x, facts.kv_heads)
        seen = self.seen(i, q, k, v)
        width = facts.heads * facts.head_dim
        return self.linear("o", at + names.o, atomic.reshape(seen, (self.n, width)), facts.hidden)

    def seen(self, i: int, q: Node, k: Node, v: Node) -> Node:
        """Return the values that queries see, [n, heads, head_dim]; k and v are put into the cache first, if there is one."""
        facts, names, layer = self.facts, self.names, self.facts.layers[i]
        seen: Node
        if self.cached:
            end = self.p + self.n
            keys, values = self.remember(f"layers.{i}.k", k), self.remember(f"layers.{i}.v", v)
            seen = attention(q, keys[:end], values[:end], scale=layer.scale, causal=True, start=self.p,
                             window=layer.window, softcap=facts.attention_softcap)
            if names.sinks:
                sinks = self.weight(names.layer.format(i=i) + names.sinks, facts.heads)
                seen = seen * self.kept(layer, q, keys[:end], sinks)
        elif facts.buckets:
            scores = dot(atomic.permute(q, (1, 0, 2)), atomic.permute(k, (1, 2, 0))) * layer.scale + self.relative()
            visible = self.near(0)
            scores = scores if visible is None else arithmetic.where(visible, scores, -math.inf)
            seen = atomic.permute(dot(softmax(scores), atomic.permute(v, (1, 0, 2))), (1, 0, 2))
        else:
            seen = attention(q, k, v, self.near(layer.window), scale=layer.scale, softcap=facts.attention_softcap)
        return seen

    def project(self, part: str, name: str, x: Node, heads: int, norm: str = "") -> Node:
        """Return a projection of x[n, hidden] as [n, heads, head_dim], normalised where the family has a norm for it."""
        out = self.linear(part, name, x, heads * self.facts.head_dim)
        if not self.facts.head_norms:
            out = self.norm(norm, out)
        out = atomic.reshape(out, (self.n, heads, self.facts.head_dim))
        return self.norm(norm, out) if self.facts.head_norms else out

    def turn(self, layer: Layer, x: Node) -> Node:
        return x if layer.rope is None else layer.rope.turn(x, *self.tables[layer.rope])

    def kept(self, layer: Layer, q: Node, keys: Node, sinks: Node) -> Node:
        """Return [n, heads, 1]: the share of the softmax left to keys by a sink: Σ exp(score) / (Σ exp(score) + exp(sink)).

        Source: Xiao et al. 2023 (sinks); Miller 2023 (one more term in the denominator); OpenAI 2025 (learnt, per head).
        """
        (n, heads, width), (s, groups, _) = q.shape, keys.shape
        per = self.facts.heads // self.facts.kv_heads
        rows = atomic.cast(atomic.reshape(atomic.permute(q, (1, 0, 2)), (groups, n * per, width)), f32)
        scores = atomic.reshape(dot(rows, atomic.cast(atomic.permute(keys, (1, 2, 0)), f32)), (heads, n, s)) * layer.scale
        if self.facts.attention_softcap:
            scores = tanh(scores / self.facts.attention_softcap) * self.facts.attention_softcap
        ahead = arithmetic.sub(atomic.iota((n, s), 1, i32), atomic.iota((n, s), 0, i32)) - atomic.dim_fill(self.p, (n, s), i32)
        seen = arithmetic.less_equal(ahead, 0)
        if layer.window:
            seen = atomic.bit_and(seen, atomic.less(fill(-layer.window, (n, s), i32), ahead))
        total = logsumexp(arithmetic.where(seen, scores, -math.inf), axis=-1)                                  # [heads, n]
        sink_logits = atomic.reshape(atomic.cast(sinks, f32), (self.facts.heads, 1))
        return atomic.cast(atomic.reshape(atomic.permute(sigmoid(total - sink_logits), (1, 0)), (n, heads, 1)), self.dtype)

    def near(self, window: int) -> Node | None:
        """Return bool[n, n], True where two tokens are at most `window` positions apart; None for window 0 (all see all)."""
        return arithmetic.less_equal(arithmetic.abs(self.ahead()), window) if window else None

    def ahead(self) -> Node:
        """Return i32[n, n]: by how many positions each token (axis 1) comes after another one (axis 0)."""
        return arithmetic.sub(atomic.iota((self.n, self.n), 1, i32), atomic.iota((self.n, self.n), 0, i32))

    def pooled(self, hidden: Node) -> Node:
        """Return one vector f32[d] for hidden[n, d]: the tokens' mean, the first, or each channel's maximum."""
        hidden = atomic.cast(hidden, f32)
        if self.facts.pooling == "mean":
            return unit(self.facts, mean(hidden, axis=0))
        return unit(self.facts, hidden[0] if self.facts.pooling == "cls" else atomic.reduce_max(hidden, (0,)))

    def relative(self) -> Node:
        """Return [heads, n, n]: each head's addition to the score of two tokens by distance; large distances share buckets."""
        half = self.facts.buckets // 2
        exact, distances = half // 2, np.arange(self.max_positions)
        # in f32 like the published code, so that distances on a border fall into the same bucket
        far = np.log(np.maximum(distances, 1).astype(np.float32) / np.float32(exact)) / np.float32(math.log(128 / exact))
        beyond = exact + (far * np.float32(half - exact)).astype(np.int64)
        buckets = np.where(distances < exact, distances, np.minimum(beyond, half - 1))
        ahead = self.ahead()
        bucket = atomic.gather(constant(buckets.astype(np.int32)), arithmetic.abs(ahead), axis=0)
        bucket = bucket + arithmetic.where(arithmetic.less(0, ahead), half, 0)
        table = self.weight(self.names.relative + ".weight", self.facts.buckets, self.facts.heads)
        return atomic.permute(embedding(table, bucket, dtype=self.dtype), (2, 0, 1))

    def remember(self, name: str, rows: Node, *, at: Dim | Node | None = None, length: int = 0) -> Node:
        """Return the cache with `rows` written at `at` (default: at p), and register it as the state's next value."""
        cache = state(name, (length or self.max_positions, *rows.shape[1:]), self.dtype)
        self.updates[cache] = cache.write(rows, at=self.p if at is None else at)
        return self.updates[cache]

    def feed_forward(self, at: str, x: Node) -> Node:
        """Return x[n, hidden] -> [n, hidden]: down(activation(gate x) · up x), or down(activation(up x)) without a gate."""
        facts, names = self.facts, self.names
        up = self.linear("up", at + names.up, x, facts.ffn)
        inner = (_gated(self.linear("gate", at + names.gate, x, facts.ffn), up, facts.activation) if names.gate else
                 ACTIVATIONS[facts.activation](up))
        return self.linear("down", at + names.down, inner, facts.hidden)

    def mix(self, at: str, x: Node, experts: Experts) -> Node:
        """Return x[n, hidden] -> [n, hidden]: results of the chosen experts, weighted by probability, plus a shared expert's."""
        names, count, hidden = self.names, experts.count, self.facts.hidden
        likely = softmax(atomic.cast(self.linear("router", at + names.router, x, count), f32))
        best, which = topk(likely, k=experts.chosen)
        if experts.normalised:
            best = best / best.sum(-1, keepdims=True)
        best = atomic.cast(best, self.dtype)

        def chosen(part: str, name: str, x: Node, size: int) -> Node:
            """Return x[n, chosen or 1, …] -> [n, chosen, size], each row multiplied by the matrix of its expert."""
            stack = at + name.replace(".{e}", "")
            bias = self.weight(stack + ".bias", count, size) if part in self.facts.biases else None
            out: Node = gather_linear(x, self.weight(stack + ".weight", count, size, x.shape[-1]), which, bias)
            return out

        alone = atomic.reshape(x, (self.n, 1, hidden))
        gate, up = (chosen("expert", name, alone, experts.ffn) for name in (names.expert_gate, names.expert_up))
        if experts.limit:
            gate, up = arithmetic.minimum(gate, experts.limit), arithmetic.clip(up, -experts.limit, experts.limit) + 1.0
            inner = gate * sigmoid(gate * experts.gain) * up
        else:
            inner = _gated(gate, up, self.facts.activation)
        outputs = chosen("expert", names.expert_down, inner, hidden)
        mixed: Node = (outputs * atomic.reshape(best, (*best.shape, 1))).sum(1)
        if not experts.shared:
            return mixed
        share = sigmoid(self.linear("shared_gate", at + names.shared_gate, x, 1))
        gate, up = (self.linear("shared", at + names.shared + part, x, experts.shared) for part in ("gate_proj", "up_proj"))
        shared = _gated(gate, up, self.facts.activation)
        return mixed + self.linear("shared", at + names.shared + "down_proj", shared, hidden) * share


class _PagedStep(_Step):
    """One step of many sequences under construction: t tokens, whose positions and places in the pool are inputs."""

    def __init__(self, facts: Facts, names: TensorNames, weight_dtype: DType, max_positions: int, dtype: DType, pool: Pool) -> None:
        t, w = dim("t", pool.least, pool.tokens), dim("w", 1, -(-max_positions // pool.page))
        self.pool, self.slots, self.pages = pool, input("slots", (t,), i32), input("pages", (t, w), i32)
        ends = None if facts.lengths is None else input("ends", (t,), i32)
        super().__init__(facts, names, weight_dtype, t, 0, max_positions, dtype, positions=input("positions", (t,), i32), ends=ends)

    def seen(self, i: int, q: Node, k: Node, v: Node) -> Node:
        """Return the values that queries see in the pages of their sequences, [t, heads, head_dim]."""
        layer, rows = self.facts.layers[i], self.pool.pages * self.pool.page
        keys, values = (self.remember(f"layers.{i}.{name}", x, at=self.slots, length=rows) for name, x in (("k", k), ("v", v)))
        sinks = self.weight(self.names.layer.format(i=i) + self.names.sinks, self.facts.heads) if self.names.sinks else None
        out: Node = paged_attention(q, keys, values, self.pages, self.positions, None if sinks is None else atomic.cast(sinks, f32),
                                    page=self.pool.page, scale=layer.scale, window=layer.window,
                                    softcap=self.facts.attention_softcap)
        return out


class _PackedStep(_Step):
    """An encoder of several sentences, whose tokens follow each other: each token sees those of its own sentence."""

    def __init__(self, facts: Facts, names: TensorNames, weight_dtype: DType, max_positions: int, dtype: DType,
                 tokens: int) -> None:
        t = dim("t", 1, tokens)
        self.sentences = input("sentences", (t,), i32)
        super().__init__(facts, names, weight_dtype, t, 0, max_positions, dtype, cached=False,
                         positions=input("positions", (t,), i32))

    def ahead(self) -> Node:
        """Return i32[t, t]: by how many positions each token (axis 1) comes after another one (axis 0)."""
        t = self.n
        return arithmetic.sub(atomic.reshape(self.positions, (1, t)), atomic.reshape(self.positions, (t, 1)))

    def near(self, window: int) -> Node:
        """Return bool[t, t], True where two tokens are of one sentence, and at most `window` positions apart if it is not 0."""
        t, near = self.n, super().near(window)
        same = arithmetic.equals(atomic.reshape(self.sentences, (t, 1)), atomic.reshape(self.sentences, (1, t)))
        return same if near is None else atomic.bit_and(same, near)

    def pooled(self, hidden: Node) -> Node:
        """Return one vector for each sentence, f32[s, d]."""
        hidden, t, s = atomic.cast(hidden, f32), self.n, dim("s", 1, bounds(self.n)[1])
        firsts = input("firsts", (s,), i32)
        if self.facts.pooling == "cls":
            return unit(self.facts, atomic.gather(hidden, firsts, axis=0))
        own = atomic.reshape(atomic.gather(self.sentences, firsts, axis=0), (s, 1))
        inside = arithmetic.equals(own, atomic.reshape(self.sentences, (1, t)))
        if self.facts.pooling == "max":
            rows = arithmetic.where(atomic.reshape(inside, (s, t, 1)), atomic.reshape(hidden, (1, t, hidden.shape[1])), -math.inf)
            return unit(self.facts, atomic.reduce_max(rows, (1,)))
        counted = atomic.cast(inside, f32)
        return unit(self.facts, dot(counted, hidden) / arithmetic.sum(counted, 1, keepdims=True))


def _gated(gate: Node, up: Node, activation: str) -> Node:
    """Return activation(gate) · up: by the composite `gated` if it has the activation, else as two steps."""
    return gated(gate, up, activation=activation) if activation in GATED else ACTIVATIONS[activation](gate) * up
