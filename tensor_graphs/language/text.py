"""text: the `.tg` form of a graph, which people write, read and compare, and which the command line takes.

    tg 1                                        # version, the first line
    dim n 1..4096
    input x f32[n, 640]
    parameter w f32[10, 640]
    state k f32[4096, 640]
    h = rms_norm(x; eps=1e-06)                  # operands; attributes (those with defaults may be left out)
    y = softmax(h @ w.T + 1.0)                  # operators broadcast and bind as in Python
    (best, at) = topk(y; k=4)                   # several outputs
    output y = y
    update k = write_rows(k, x; start={n - 1})  # dims among attributes stand in braces

`print_graph` writes one call per line and every attribute, so that parse_graph(print_graph(g)) is g: the same nodes, names, order.
Constants: `constant(2.5, f32)`, `constant([1, 2], i32)`, `constant({n + 1}, i32)`, `constant(base64("…"), f32[2, 3])`.
Composites that are not in the library are written with their definition: `define name#digest(a f32[n]) { … return %0 }`.
The entire syntax, with examples, is in docs/tg_format.md. Read next: text_writer.py, text_reader.py, text_tokens.py.
"""

from __future__ import annotations

from tensor_graphs.language.text_reader import parse_graph
from tensor_graphs.language.text_tokens import TextError
from tensor_graphs.language.text_writer import print_graph

__all__ = ["TextError", "parse_graph", "print_graph"]
