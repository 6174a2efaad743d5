"""widen_intermediates: forms of a graph with wider values between its ops, or with narrower products, that meet a tolerance.

A piece of narrow floats for which a user registered a kernel stays one node with its written dtypes, if the tolerance allows the
roundings that this adds: of each operand that is computed, and of the result. Inside the piece nothing else is rounded: its
definition has wider values like the rest of the graph, whether it is run or the kernel (decision 0092).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from weakref import WeakKeyDictionary

from tensor_graphs.choice.graph_forms import NARROWER, WIDER, Intermediates
from tensor_graphs.choice.rewriting import said_anew
from tensor_graphs.kernels.registry import all_kernels, by_op, matching, writes_kernels
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.anonymous_composite import PartOp
from tensor_graphs.language.composite import CompositeOp, expand_all
from tensor_graphs.language.defined_ops import is_library
from tensor_graphs.language.dtypes import parse_dtype
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, walk
from tensor_graphs.phase_times import phase
from tensor_graphs.rewrites import user_rules
from tensor_graphs.rewrites.passes.narrow import narrow
from tensor_graphs.rewrites.passes.result import PassResult
from tensor_graphs.rewrites.passes.widen import widen, widened_around, written_for_kernels

_made: WeakKeyDictionary[Graph, dict[Hashable, tuple[Graph, Mapping[Node, Node]]]] = WeakKeyDictionary()
"""graph -> its forms with other intermediates (of which dtype, for which backends, except which pieces), and the images of
`Intermediates`"""


def widened(graph: Graph, word: str = WIDER[-1]) -> Graph:
    """Return the graph with wider values between its ops, or with narrower products; itself where nothing of it changes."""
    if word == NARROWER:
        return narrow(widen(graph, parse_dtype(WIDER[0])).graph).graph
    return widen(graph, parse_dtype(word)).graph


@phase("prepare")
def rewritten(graph: Graph, word: str = "float64", why: str = "asked for", backends: Sequence[str] = (),
              unchanged: Collection[Signature] = frozenset()) -> Intermediates:
    """Return the graph with intermediates of one of REWRITTEN; as it is, when none of it changes. Parts are written out, as they
    are of the dtypes that were written, except those in `unchanged`; where rules can rewrite some, and where a backend writes
    kernels for any piece, new ones are formed."""
    fused, there = writes_kernels(backends), _made.setdefault(graph, {})
    key = word, tuple(backends), frozenset(unchanged), user_rules.digest()
    if key not in there:
        if unchanged:
            wide = widened_around(graph, unchanged, parse_dtype(word))
        else:
            wide = PassResult(widened(graph, word))
        base = walk(expand_all(graph.roots, lambda n: not (isinstance(n.op, PartOp) and n.op.of_kernels)))
        recipes = any(isinstance(n.op, PartOp) and n.op.recipes for n in base)
        if wide.graph is not graph and (recipes or fused):
            wide = wide.then(PassResult(*said_anew(wide.graph, recipes, fused, backends)))
        there[key] = wide.graph, wide.images
    form, images = there[key]
    reason = f"{word}, {why}"
    if unchanged:
        reason += f"; as written: {', '.join(sorted({s.spec.op.name for s in unchanged}))}, for which kernels are registered"
    return Intermediates(form, True, reason, graph, images)


def own_pieces(graph: Graph, word: str, backends: Sequence[str]) -> list[Signature]:
    """Return the pieces of a graph that users' kernels compute, be it a graph or a composite that is not the library's: those of no
    narrower floats first, then those that end last."""
    table, to = by_op([k for k in all_kernels(backends) if k.composite is not None]), parse_dtype(word)
    if not table:
        return []
    is_narrow: dict[Signature, bool] = {}
    whole = expand_all(graph.roots, lambda n: not (isinstance(n.op, PartOp) and n.op.alone), written_for_kernels)
    for node in reversed(walk(whole)):
        if isinstance(node.op, CompositeOp) and not (is_library(node.op) or node.op.opaque):
            s = signature_of(node)
            if s not in is_narrow and matching(s.spec, table):
                is_narrow[s] = any(t.dtype.is_float and t.dtype.itemsize < to.itemsize for t in (*s.spec.inputs, *s.spec.outputs))
    return sorted(is_narrow, key=is_narrow.__getitem__)
