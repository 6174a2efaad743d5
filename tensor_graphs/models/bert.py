"""bert: the BERT encoder of one sentence, as facts for the encoder in transformer.py.

Sources: BERT, Devlin et al. 2018 (post-norm blocks, learnt positions); Sentence-BERT, Reimers and Gurevych 2019 (pooling).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tensor_graphs.language.dtypes import DType, f32
from tensor_graphs.language.errors import AttributeValueError
from tensor_graphs.language.graph import Graph
from tensor_graphs.models.transformer import Facts, Layer, TensorNames, encoder_graph

BERT = TensorNames(
    embed="embeddings.word_embeddings", positions="embeddings.position_embeddings", types="embeddings.token_type_embeddings",
    embed_norm="embeddings.LayerNorm", norm="", layer="encoder.layer.{i}.", attention_in="",
    attention_sum="attention.output.LayerNorm", ffn_in="", ffn_sum="output.LayerNorm", q="attention.self.query",
    k="attention.self.key", v="attention.self.value", o="attention.output.dense", gate="", up="intermediate.dense",
    down="output.dense", root="", older=(("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")),
    unused=("pooler.", "position_ids", "cls.", "lm_head.", "head.", "decoder.", "classifier", "vocab_", "qa_outputs", "rotary_emb"))
"""Names of BERT's tensors. unused: tensors that serve an encoder's training only, not its embeddings."""
ALIKE: Mapping[str, Any] = {"norm": "layer", "biases": frozenset(("q", "k", "v", "o", "up", "down", "norm"))}
"""The facts that BERT and related families share."""


@dataclass(frozen=True, slots=True)
class BertSpec:
    """The differences between BERT encoders. Fields are those of `Facts`, but layers is the number of layers.

    Raises AttributeValueError when hidden is not a multiple of heads.
    """

    vocabulary: int
    hidden: int
    ffn: int
    layers: int
    heads: int
    positions: int
    token_types: int
    eps: float
    activation: Literal["gelu", "gelu_tanh", "relu", "silu"] = "gelu"
    pooling: Literal["mean", "cls", "max"] = "mean"
    normalise: bool = False

    def __post_init__(self) -> None:
        if self.heads < 1 or self.hidden % self.heads:
            raise AttributeValueError(f"BertSpec: hidden {self.hidden} is not a multiple of {self.heads} heads")
        self.facts  # noqa: B018  # raises where facts do not fit

    @property
    def facts(self) -> Facts:
        """The model as facts for `encoder_graph`."""
        head_dim = self.hidden // self.heads
        return Facts(
            self.vocabulary, self.hidden, self.ffn, self.heads, self.heads, head_dim, (Layer(head_dim ** -0.5),) * self.layers,
            self.eps, self.activation, positions=self.positions, token_types=self.token_types, pooling=self.pooling,
            normalise=self.normalise, **ALIKE)


def bert_graph(spec: BertSpec, *, max_positions: int | None = None, weight_dtype: DType = f32,
               activation_dtype: DType = f32) -> Graph:
    """Return the graph of a BERT encoder: see `encoder_graph`. max_positions: by default all positions of the model."""
    return encoder_graph(spec.facts, BERT, weight_dtype=weight_dtype, activation_dtype=activation_dtype,
                         max_positions=spec.positions if max_positions is None else max_positions)
