"""models: graphs of complete models — text decoders, sentence encoders, and those that draw pictures — built from their facts.

In: facts (a frozen dataclass with exactly the values that the math needs) and the names of tensors in checkpoints.  Out: a
`Graph` whose parameters have those names.  Nothing here reads a file: `frontends` does.
May import: language.  Never: frontends, cli.
Read first: transformer.py (one graph for prefill, decode and teacher forcing, and the encoder), then rope.py; for pictures,
diffusion/.
Words: facts = sizes, constants and choices of one model; window = number of last positions that a layer sees; tied = the
output matrix is the embedding table.
"""

from __future__ import annotations

from tensor_graphs.models.bert import BertSpec, bert_graph
from tensor_graphs.models.gemma3 import Gemma3Spec, gemma3_graph
from tensor_graphs.models.rope import Rope
from tensor_graphs.models.transformer import Facts, Layer, TensorNames, decoder_graph, encoder_graph

__all__ = [
           "BertSpec", "Facts", "Gemma3Spec", "Layer", "Rope", "TensorNames", "bert_graph", "decoder_graph",
           "encoder_graph", "gemma3_graph",
]
