"""gemma3: the text decoder of Gemma 3, as facts for the decoder in transformer.py.

Sources: Gemma 3 Technical Report, 2025; Gemma 2 report, 2024 (norms before and after each block, soft caps). Every norm multiplies
by 1 + weight; queries and keys are normalised per head before they are rotated; sliding layers see the last `window` positions
(the query's position included), full layers all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tensor_graphs.language.dtypes import DType, f32
from tensor_graphs.language.errors import AttributeValueError
from tensor_graphs.language.graph import Graph
from tensor_graphs.models.rope import Rope
from tensor_graphs.models.transformer import Facts, Layer, Output, TensorNames, decoder_graph

LayerKind = Literal["sliding", "full"]

GEMMA3 = TensorNames(q_norm="self_attn.q_norm", k_norm="self_attn.k_norm", attention_out="post_attention_layernorm",
                     ffn_in="pre_feedforward_layernorm", ffn_out="post_feedforward_layernorm")
ALIKE: Mapping[str, Any] = {"norm_offset": 1.0, "embedding_scale": None}
"""The facts that all Gemmas share."""


@dataclass(frozen=True, slots=True)
class Gemma3Spec:
    """The differences between Gemma 3 decoders; `facts` has all facts.

    layers: the kind of each layer, from the bottom. window: number of positions that a sliding layer sees. scale: factor of
    attention scores. The other fields are those of `Facts`. Raises AttributeValueError for sizes that do not fit together.
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
        for i, kind in enumerate(self.layers):
            if kind not in ("sliding", "full"):
                raise AttributeValueError(f"Gemma3Spec: layer {i} is {kind!r}", fix="'sliding' or 'full'")
        if "sliding" in self.layers and self.window < 1:
            raise AttributeValueError(f"Gemma3Spec: sliding layers with a window of {self.window}", fix="at least 1")
        self.facts  # noqa: B018  # raises where sizes do not fit

    @property
    def facts(self) -> Facts:
        """The model as facts for `decoder_graph`."""
        kinds = {"sliding": Layer(self.scale, self.window, self.sliding_rope), "full": Layer(self.scale, 0, self.full_rope)}
        return Facts(
            self.vocabulary, self.hidden, self.ffn, self.heads, self.kv_heads, self.head_dim,
            layers=tuple(kinds[kind] for kind in self.layers), eps=self.eps, activation=self.activation,
            biases=frozenset("qkvo") if self.attention_bias else frozenset(), attention_softcap=self.attention_softcap,
            final_softcap=self.final_softcap, tied=self.tied, **{**ALIKE, "embedding_scale": self.embedding_scale})


def gemma3_graph(spec: Gemma3Spec, *, max_positions: int, weight_dtype: DType = f32,
                 activation_dtype: DType = f32, output: Output = "logits") -> Graph:
    """Return the graph of a Gemma 3 decoder: see `decoder_graph`."""
    return decoder_graph(spec.facts, GEMMA3, max_positions=max_positions, weight_dtype=weight_dtype,
                         activation_dtype=activation_dtype, output=output)
