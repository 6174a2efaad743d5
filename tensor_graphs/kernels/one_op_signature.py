"""one_op_signature: the signature of a graph of one op; database rows store ops as such graphs."""

from __future__ import annotations

from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.graph import Graph


def signature_of_graph(graph: Graph) -> Signature:
    """Return the signature of a graph of exactly one op, with any number of outputs. Raises ValueError for any other graph."""
    ops = [n for n in graph.nodes if n.op.kind in ("atomic", "composite")]
    if len(ops) != 1:
        raise ValueError(f"a graph of one op is needed, this one has {len(ops)}: {', '.join(n.op.name for n in ops[:6])}")
    return signature_of(ops[0])
