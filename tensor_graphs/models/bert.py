"""bert: the BERT encoder of one sentence, and its sentence embedding (tokens pooled, as sentence-transformers does).

Sources: BERT, Devlin et al. 2018 (post-norm blocks, learnt positions); Sentence-BERT, Reimers and Gurevych 2019
(pooling). Tensor names are those of the published checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tensor_graphs.language import atomic
from tensor_graphs.language.composites import arithmetic
from tensor_graphs.language.composites.elementary import gelu, relu, silu
from tensor_graphs.language.composites.indexing import embedding
from tensor_graphs.language.composites.normalisation import layer_norm, mean
from tensor_graphs.language.composites.products import attention, linear
from tensor_graphs.language.dims import Dim, dim
from tensor_graphs.language.dtypes import DType, f32, i32
from tensor_graphs.language.errors import AttributeValueError
from tensor_graphs.language.graph import Graph, graph
from tensor_graphs.language.leaves import input, parameter
from tensor_graphs.language.node import Node

_SHORTEST = 1e-12
"""What a vector is divided by at least when it is brought to length 1, as in torch.nn.functional.normalize."""


@dataclass(frozen=True, slots=True)
class BertSpec:
    """The sizes and constants of one BERT encoder.

    positions: rows of the table of learnt positions. token_types: rows of the table of sentence types (row 0 is used).
    pooling: how the tokens' hidden vectors become one; normalise: whether that one is brought to length 1.
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
        if self.activation not in _ACTIVATIONS or self.pooling not in ("mean", "cls", "max"):
            raise AttributeValueError(f"BertSpec: activation {self.activation!r}, pooling {self.pooling!r}",
                                      fix=f"activation in {sorted(_ACTIVATIONS)}, pooling mean, cls or max")


_ACTIVATIONS: dict[str, Callable[[Node], Node]] = {
    "gelu": gelu, "gelu_tanh": lambda x: gelu(x, approximate="tanh"), "relu": relu, "silu": silu}


def bert_graph(spec: BertSpec, *, max_positions: int | None = None, weight_dtype: DType = f32) -> Graph:
    """`ids` i32[n], one sentence with its special tokens -> `hidden` f32[n, hidden], `embedding` f32[hidden].

    n: 1 … max_positions (default: as many as the model has positions). Every token sees every token; all are of
    sentence type 0. Parameters are declared in `weight_dtype` under the names of the checkpoint; activations are f32.
    Raises AttributeValueError when max_positions is not within the model's.
    """
    limit = spec.positions if max_positions is None else max_positions
    if not 1 <= limit <= spec.positions:
        raise AttributeValueError(f"bert_graph: max_positions is {limit}", fix=f"the model has 1 to {spec.positions}")
    n = dim("n", 1, limit)
    encoder = _Encoder(spec, weight_dtype, n)
    hidden = encoder.embed(input("ids", (n,), i32))
    for i in range(spec.layers):
        hidden = encoder.layer(f"encoder.layer.{i}.", hidden)
    return graph({"hidden": hidden, "embedding": pool(spec, hidden)})


def pool(spec: BertSpec, hidden: Node) -> Node:
    """hidden[n, d] -> [d]: the mean of the tokens, the first, or each channel's largest; of length 1 if asked."""
    pooled: Node
    if spec.pooling == "mean":
        pooled = mean(hidden, axes=0)
    else:
        pooled = hidden[0] if spec.pooling == "cls" else atomic.reduce_max(hidden, (0,))
    if not spec.normalise:
        return pooled
    length = atomic.sqrt(atomic.sum(atomic.mul(pooled, pooled)))
    return pooled / arithmetic.maximum(length, _SHORTEST)


class _Encoder:
    """The encoder under construction, for n tokens."""

    def __init__(self, spec: BertSpec, weight_dtype: DType, n: Dim) -> None:
        self.spec, self.weight_dtype, self.n = spec, weight_dtype, n

    def weight(self, name: str, *shape: int) -> Node:
        return parameter(name, shape, self.weight_dtype)

    def linear(self, name: str, x: Node, size: int) -> Node:
        inner = x.shape[-1]
        assert isinstance(inner, int)
        out: Node = linear(x, self.weight(name + ".weight", size, inner), self.weight(name + ".bias", size))
        return out

    def norm(self, name: str, x: Node) -> Node:
        weight, bias = (self.weight(f"{name}.{part}", self.spec.hidden) for part in ("weight", "bias"))
        out: Node = layer_norm(x, weight, bias, eps=self.spec.eps)
        return out

    def embed(self, ids: Node) -> Node:
        """The sum of token, position and type vectors, normalised."""
        spec, at = self.spec, "embeddings."
        words = embedding(self.weight(at + "word_embeddings.weight", spec.vocabulary, spec.hidden), ids, dtype=f32)
        positions = self.weight(at + "position_embeddings.weight", spec.positions, spec.hidden)[:self.n]
        kind = self.weight(at + "token_type_embeddings.weight", spec.token_types, spec.hidden)[0]
        return self.norm(at + "LayerNorm", words + atomic.cast(kind, f32) + atomic.cast(positions, f32))

    def layer(self, at: str, x: Node) -> Node:
        """x[n, hidden] through one block: attention and feed-forward, each added to its operand and normalised."""
        spec, head_dim, own = self.spec, self.spec.hidden // self.spec.heads, at + "attention.self."
        q, k, v = (atomic.reshape(self.linear(own + name, x, spec.hidden), (self.n, spec.heads, head_dim))
                   for name in ("query", "key", "value"))
        seen = atomic.reshape(attention(q, k, v, scale=head_dim ** -0.5), (self.n, spec.hidden))
        attended = self.linear(at + "attention.output.dense", seen, spec.hidden)
        x = self.norm(at + "attention.output.LayerNorm", x + attended)
        inner = _ACTIVATIONS[spec.activation](self.linear(at + "intermediate.dense", x, spec.ffn))
        return self.norm(at + "output.LayerNorm", x + self.linear(at + "output.dense", inner, spec.hidden))
