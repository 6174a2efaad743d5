"""predicted_error: predictions, not bounds, of a graph's output error by the rounding of its values.

The model. Every node that rounds adds one unit roundoff u of its dtype (relative to its output); each later rounding on the way
from the node to an output amplifies that error:

    error = max over paths to an output of  Σ u_i · (1 + AMPLIFICATION · √k_i),    k_i: roundings behind node i on the longest path

n roundings that cannot amplify each other add up to n·u at worst and to √n·u if their signs are random (Higham, Accuracy and
Stability of Numerical Algorithms, SIAM 2002, section 3; Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019). A network does amplify:
each layer divides by norms and multiplies by weights, and an early error reaches everything that depends on it. The amount depends
on the values. The factor is fitted to the worst case of one model of random weights, and overestimates the error of other models
(decision 0006 has the tables). For n roundings of one dtype the sum grows like 2·u·n^1.5.

Ops that only choose or move values round nothing, and neither do leaves: a bf16 weight is exact. The roundings inside a kernel
count as one; the error of each kernel is measured elsewhere. A composite that no kernel computes runs by its definition, every
value of which rounds. A loop that adds to its carry rounds the carry in each iteration: n·u. States are taken as exact, so errors
that a recurrence accumulates over many steps are not seen.

The model assumes that nothing cancels: the rows of a norm have means near 0. It does not cover ops that leap (a floor, an index or
a comparison of a computed float: the smallest error moves the result by a whole step), nor a long loop that multiplies its carry.
`unpredictable` names these.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tensor_graphs.kernels.kernel import Kernel, Spec
from tensor_graphs.kernels.registry import all_kernels, by_op, generators, matching
from tensor_graphs.language import dims as d
from tensor_graphs.language.atomic import ATOMIC
from tensor_graphs.language.composite import LIBRARY, CompositeOp, expand_all
from tensor_graphs.language.composites.scan import ScanOp
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.leaves import Leaf
from tensor_graphs.language.node import Node, walk
from tensor_graphs.language.subgraph import Turns
from tensor_graphs.meaning.exact_definitions import chooses

CAST = ATOMIC["cast"]

AMPLIFICATION = 3.0
"""Factor by which √k roundings behind a node amplify the rounding of that node."""

_predicted: weakref.WeakKeyDictionary[Graph, dict[tuple[str, ...], float]] = weakref.WeakKeyDictionary()


def predicted_error(graph: Graph, backends: Sequence[str] = ()) -> float:
    """Return the predicted relative error of the graph's outputs and states if every value is rounded to its dtype (see the
    module).

    backends: those whose kernels are available. If there are none, or one of them generates kernels for any piece, each library
    composite counts as one kernel. A graph that rounds nothing has error 0. The result is cached with the graph.
    """
    by_backends, key = _predicted.setdefault(graph, {}), () if generators(backends) else tuple(backends)
    if key not in by_backends:
        by_backends[key] = amplified(expand_all(graph.roots, partial(_is_one_step, by_op(all_kernels(key)) if key else None)))
    return by_backends[key]


def _is_one_step(table: Mapping[str, list[Kernel]] | None, node: Node) -> bool:
    """Return whether a kernel computes the node. A composite outside of the library has no kernel: its definition runs."""
    return LIBRARY.get(node.op.name) is node.op and (table is None or bool(matching(Spec.of(node), table)))


def amplified(roots: Sequence[Node]) -> float:
    """Return the error of the roots by the model."""
    order = walk(roots)
    lost = {node: unit_roundoff(node) for node in order}
    behind = dict.fromkeys(order, 0.0)                                # roundings on the longest path from a node's output to a root
    for node in reversed(order):
        through = behind[node] + (lost[node] > 0)
        for i in node.inputs:
            behind[i] = max(behind[i], through)
    error: dict[Node, float] = {}
    for node in order:
        own = lost[node] and lost[node] * (1 + AMPLIFICATION * math.sqrt(behind[node]))
        error[node] = own + max((error[i] for i in node.inputs), default=0.0)
    return max((error[r] for r in roots), default=0.0)


def unit_roundoff(node: Node) -> float:
    """Return half the gap between 1 and the next larger float of the node's narrowest float output, or 0 if the node rounds
    nothing. For a loop that adds to its carry, return the sum over all iterations."""
    floats = [t.dtype for t in node.types if t.dtype.is_float]
    if not floats or not _rounds(node):
        return 0.0
    turns = loop_roundings(node)
    return max(dtype.epsilon for dtype in floats) / 2 * (turns.roundings if turns.adds else 1)


@dataclass(frozen=True)
class _LoopRoundings:
    """Roundings of a loop's carry, in all iterations at the largest size. adds: whether an iteration only adds to the carry."""

    roundings: int = 1
    adds: bool = True


def loop_roundings(node: Node) -> _LoopRoundings:
    if not isinstance(node.op, ScanOp):
        return _LoopRoundings()
    turns = Turns(node.inputs, node.attrs)
    carried = turns.step.arguments[:len(turns.carries)]
    written = expand_all(turns.step.outputs[:len(carried)])
    depth = dict.fromkeys(carried, 0)                               # roundings from a carry to what depends on it
    adds = True
    for inner in walk(written):
        before = [depth[i] for i in inner.inputs if i in depth]
        if before:
            depth[inner] = max(before) + (unit_roundoff(inner) > 0)
            adds = adds and (inner.op is ATOMIC["add"] or inner.op.facts.view or inner.op.facts.exact)
    per_turn = max((depth.get(o, 0) for o in written), default=0)
    return _LoopRoundings(max(1, per_turn * d.bounds(turns.sliced[0].shape[0])[1]), adds)


def unpredictable(graph: Graph, tolerance: float) -> str:
    """Return why a graph's error cannot be predicted: the first op that leaps on a computed float, or a loop whose roundings may
    exceed the tolerance. Return "" if the prediction holds."""
    for node, computed in _computed(graph):
        unit, turns = unit_roundoff(node), loop_roundings(node)
        if any(computed) and _leaps(node):
            return f"{node.op.name} of computed floats may leap"
        if not turns.adds and turns.roundings * unit > tolerance:
            return f"{node.op.name} carries {turns.roundings} roundings, which may grow or fade"
    return ""


def _computed(graph: Graph) -> Iterator[tuple[Node, list[bool]]]:
    """Yield each node with one flag per operand: whether the operand is a rounded float."""
    rounded: dict[Node, bool] = {}
    for node in walk(expand_all(graph.roots, lambda n: LIBRARY.get(n.op.name) is n.op)):
        rounded[node] = unit_roundoff(node) > 0 or any(rounded[i] for i in node.inputs)
        yield node, [rounded[i] and i.types[0].dtype.is_float for i in node.inputs]


def _leaps(node: Node) -> bool:
    """Return whether the smallest change of a float operand may change the result by a whole step."""
    if node.op.name == "cast":
        return node.inputs[0].dtype.is_float and not node.dtype.is_float
    return node.op.facts.leaps or node.op.facts.compares


def _rounds(node: Node) -> bool:
    op, attrs = node.op, node.attrs
    if isinstance(op, CompositeOp):
        return op.opaque or not chooses(op.define([i.type for i in node.inputs], attrs))
    if isinstance(op, Leaf) or op.kind != "atomic" or not (op.facts.rounds or op is CAST):
        return False
    if op.name == "scatter":
        return bool(attrs["mode"] == "add")
    if op.name == "cast":
        old, new = node.inputs[0].dtype, node.dtype
        exact = old.kind == "bool" or (old.is_float and old.itemsize < new.itemsize) or (
            old.is_integer and 2.0 ** (old.bits - old.is_signed) <= 2 / new.epsilon)
        return not exact
    return True
