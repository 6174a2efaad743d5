"""rounding: how far off a graph's outputs will probably be because its values are rounded where they are. A prediction, no bound.

The model. Every node that rounds adds one unit roundoff u of its dtype (relative to its output); what comes behind it amplifies it:

    error = max over paths to an output of  Σ u_i · (1 + AMPLIFICATION · √k_i),    k_i: roundings behind node i on the longest path

n roundings that cannot amplify each other add up to n·u at worst and to √n·u if their signs are random (Higham, Accuracy and
Stability of Numerical Algorithms, SIAM 2002, section 3; Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019). A network does
amplify: each layer divides by norms and multiplies by weights, and a part that is off early is off in all that is made of it. How
much depends on the numbers; the factor is fitted to one model of random weights at its worst, and far too careful for others
(decision 0006 has the tables). For n roundings of one dtype the sum grows like 2·u·n^1.5.

What only chooses or moves values rounds nothing, and neither do leaves: a bf16 weight is exactly the number that it is. A kernel's
own inner roundings count as its one; how good kernels are is measured, each by itself. A composite that no kernel computes runs by
its definition, of which every value rounds. A loop that adds to what it carries rounds that in each turn: n·u. States are taken as
exact, so what a recurrence adds up over many steps is not seen.

The model takes it that nothing cancels: rows of a norm lie about 0, or `centred` says which norm takes a mean off computed floats.
It knows nothing of the error of what leaps (a floor, an index or a comparison of a computed float: the smallest error moves it by
a whole step) or of a long loop that multiplies what it carries. There `unpredictable` says so.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tensor_graphs.kernels.kernel import Kernel, Spec
from tensor_graphs.kernels.registry import all_kernels, by_op, matching, writes_kernels
from tensor_graphs.language import dims as d
from tensor_graphs.language.atomic import ATOMIC
from tensor_graphs.language.composite import LIBRARY, CompositeOp, expand_all
from tensor_graphs.language.composites.scan import ScanOp
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.leaves import Leaf
from tensor_graphs.language.node import Node, walk
from tensor_graphs.language.subgraph import Turns
from tensor_graphs.meaning.choosing import chooses

CAST = ATOMIC["cast"]

AMPLIFICATION = 3.0
"""by how much √k roundings behind a node amplify what it rounds"""

Loses = Callable[[Node], float]
_predicted: weakref.WeakKeyDictionary[Graph, dict[tuple[str, ...], float]] = weakref.WeakKeyDictionary()


def predicted_error(graph: Graph, backends: Sequence[str] = ()) -> float:
    """The relative error of the graph's outputs and states, if every value is rounded to its dtype. See the module's docstring.

    backends: whose kernels there are; without any, or where one writes kernels for what it is given, each composite of the library
    has one. 0 for a graph that rounds nothing. One walk, remembered with the graph.
    """
    known, key = _predicted.setdefault(graph, {}), () if writes_kernels(backends) else tuple(backends)
    if key not in known:
        known[key] = amplified(expand_all(graph.roots, partial(_is_one_step, by_op(all_kernels(key)) if key else None)))
    return known[key]


def _is_one_step(table: Mapping[str, list[Kernel]] | None, node: Node) -> bool:
    """Composites outside of the library have no kernels: their definitions run."""
    return LIBRARY.get(node.op.name) is node.op and (table is None or bool(matching(Spec.of(node), table)))


def amplified(roots: Sequence[Node], loses: Loses | None = None, counts: Loses | None = None, least: float = 1.0) -> float:
    """The model. loses: u_i (as the node's dtype rounds); counts: as how many roundings a node counts behind others (one that
    rounds as one); least: so many u_i at least."""
    order = walk(roots)
    lost = {node: (loses or unit_roundoff)(node) for node in order}
    behind = dict.fromkeys(order, 0.0)                                # roundings on the longest path from a node's output to a root
    for node in reversed(order):
        through = behind[node] + (lost[node] > 0 if counts is None else counts(node))
        for i in node.inputs:
            behind[i] = max(behind[i], through)
    error: dict[Node, float] = {}
    for node in order:
        own = lost[node] and lost[node] * max(least, 1 + AMPLIFICATION * math.sqrt(behind[node]))
        error[node] = own + max((error[i] for i in node.inputs), default=0.0)
    return max((error[r] for r in roots), default=0.0)


def unit_roundoff(node: Node) -> float:
    """Half the gap between 1 and the next larger float of the node's narrowest float output; 0 when the node rounds nothing. Of a
    loop that adds to what it carries: in all turns together."""
    floats = [t.dtype for t in node.types if t.dtype.is_float]
    if not floats or not _rounds(node):
        return 0.0
    turns = loop_roundings(node)
    return max(dtype.epsilon for dtype in floats) / 2 * (turns.roundings if turns.adds else 1)


@dataclass(frozen=True)
class _LoopRoundings:
    """roundings: of what is carried, in all turns, at the largest size. adds: a turn adds to it, and nothing else."""

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
    each = max((depth.get(o, 0) for o in written), default=0)
    return _LoopRoundings(max(1, each * d.bounds(turns.sliced[0].shape[0])[1]), adds)


def unpredictable(graph: Graph, tolerance: float) -> str:
    """Why nothing is known of a graph's error: the first op that leaps on a computed float, or a loop whose roundings may come to
    more than a tolerance; "" where the prediction holds."""
    for node, computed in _computed(graph):
        unit, turns = unit_roundoff(node), loop_roundings(node)
        if any(computed) and _leaps(node):
            return f"{node.op.name} of computed floats may leap"
        if not turns.adds and turns.roundings * unit > tolerance:
            return f"{node.op.name} carries {turns.roundings} roundings, which may grow or fade"
    return ""


def centred(graph: Graph) -> str:
    """The first op that takes a mean off computed floats, "" where there is none. What is left has their error times |mean| over
    standard deviation, of which a graph alone knows nothing."""
    return next((str(node.op.name) for node, computed in _computed(graph) if node.op.facts.centres and computed[0]), "")


def _computed(graph: Graph) -> Iterator[tuple[Node, list[bool]]]:
    """Each node, and which of its operands are floats that were rounded."""
    rounded: dict[Node, bool] = {}
    for node in walk(expand_all(graph.roots, lambda n: LIBRARY.get(n.op.name) is n.op)):
        rounded[node] = unit_roundoff(node) > 0 or any(rounded[i] for i in node.inputs)
        yield node, [rounded[i] and i.types[0].dtype.is_float for i in node.inputs]


def _leaps(node: Node) -> bool:
    """Whether the smallest change of a float operand may change the result by a whole step."""
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
