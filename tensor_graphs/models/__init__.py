"""models: whole models written in the language — Gemma 3 (a text decoder) and BERT (a sentence encoder).

In: a spec (a frozen dataclass with exactly what the math needs).  Out: a `Graph` whose parameters carry the names of
the model's published checkpoints, so that weights need no table of renamings.  Nothing here reads a file: that is
`frontends`' business.
May import: language.  Never: frontends, cli.
Read first: gemma3.py (one graph for prefill, decode and teacher forcing), then bert.py.
Words: spec = sizes and constants of one model; window = how many last positions a sliding layer sees; tied = the output
matrix is the embedding table.
"""

from __future__ import annotations

from tensor_graphs.models.bert import BertSpec, bert_graph
from tensor_graphs.models.gemma3 import Gemma3Spec, Rope, gemma3_graph

__all__ = ["BertSpec", "Gemma3Spec", "Rope", "bert_graph", "gemma3_graph"]
