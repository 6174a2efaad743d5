"""why_no_match: why a part occurs nowhere in a graph, and what to do about it: a size out of range, a proof that failed, an
operand, a dtype or a number that differs.

    why_nowhere([graph], op).why    # "linear occurs; where the part has rms_norm, the graph has layer_norm"

Occurrences are found by proof (find_parts.py), whatever ops express them. The nearest miss is a piece with the part's operand types
and telling ops. Besides, graph and part are compared op by op from the top, and the node that agrees furthest is reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tensor_graphs.errors import listed
from tensor_graphs.language import leaves
from tensor_graphs.language.anonymous_composite import PartOp, part_between, steps_said
from tensor_graphs.language.atomic import AtomicOp
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node
from tensor_graphs.rewrites.find_parts import Several, form, nearest, size_out_of_range
from tensor_graphs.rewrites.subgraphs import Cuts


@dataclass(frozen=True)
class Nowhere:
    """The reason why a part occurs nowhere. why: one line for people on what the graphs lack and where. fix: what to do."""

    why: str
    fix: str = "declare the kernel for the graph that is written here, with its dtypes, numbers and sizes"


@dataclass
class _InWords:
    """Agreement of a node with a part, op by op. agreeing: how many nodes and operands agree. differs: the first difference, for
    people. other_op: whether that is a different op."""

    agreeing: int = 0
    differs: str = ""
    other_op: bool = False
    operands: dict[Node, Node] = field(default_factory=dict)


def why_nowhere(graphs: Sequence[Graph], op: PartOp) -> Nowhere:
    """Return why a part occurs in none of the graphs, which are one function as written and as compiled."""
    if len(op.written.outputs) > 1:
        return _of_several(graphs, op)
    difference, other_op = _in_words(graphs, op)
    near = max((n for g in graphs if (n := nearest(g, op)) is not None), key=lambda n: n.rank, default=None)
    if near is None or (near.lacks == "same" and not other_op):     # a number, a dtype or an operand, by its name
        return Nowhere(difference)
    if near.lacks == "range":
        return Nowhere(f"{_occurs(near.node)}; {near.why}", "dims whose ranges hold the sizes that the graph has")
    piece = f"{steps_said(part_between([near.node], near.operands))} over {', '.join(_said(o) for o in near.operands)}"
    compared = f"{_occurs(near.node)}; {piece} was compared with the part, and"
    if near.lacks == "proof":
        return Nowhere(f"{compared} not proved to be the same: {near.why}",
                       "declare the kernel for the graph that is written here, in its words and with its sizes")
    return Nowhere(f"{compared} is another function: {near.why}; in words, {difference}")


def _of_several(graphs: Sequence[Graph], op: PartOp) -> Nowhere:
    """Return why a part with several outputs occurs nowhere, by its first output that occurs nowhere alone."""
    for i, (wanted, _) in enumerate(Several(op).outputs):
        if not any(form(g, [wanted.op]).places for g in graphs):
            why = why_nowhere(graphs, wanted.op)
            return Nowhere(f"output {i} of {len(op.written.outputs)}: {why.why}", why.fix)
    return Nowhere("each of its outputs occurs, and nowhere all of them on the same operands",
                   "declare the kernel for outputs that the graph computes of the same values")


def _in_words(graphs: Sequence[Graph], op: PartOp) -> tuple[str, bool]:
    """Return the first difference of the best agreeing node, for people, and whether it is a different op."""
    last, numbers = op.written.outputs[0], {a: i for i, a in enumerate(op.written.arguments)}
    nodes = list(dict.fromkeys((n, g) for g in graphs for n in g.nodes))
    likely = [(n, g) for n, g in nodes if n.op.name == last.op.name]
    if not likely:
        there = {n.op.name for n, _ in nodes if n.op.kind in ("atomic", "composite") and not isinstance(n.op, PartOp)}
        return f"the part's last op is {last.op.name}, and the graph has none; it has {listed(there, 12)}", True
    best, at = _InWords(-1), likely[0]
    for node, graph in likely:
        agreement = _compare(_InWords(), last, node, numbers)
        if not agreement.differs:
            agreement.differs = _no_operands(graph, agreement.operands, numbers)
        if agreement.agreeing > best.agreeing:
            best, at = agreement, (node, graph)
    return f"{_occurs(at[0])}; {best.differs or 'the math of no such place is proved to be the same'}", best.other_op


def _occurs(node: Node) -> str:
    return f"{node.op.name} occurs ({node.location})" if node.location else f"{node.op.name} occurs"


def _compare(agreement: _InWords, wanted: Node, node: Node, numbers: Mapping[Node, int]) -> _InWords:
    """Compare a node with a wanted one from the top, up to the first difference."""
    if wanted in numbers:
        agreement.differs = _operand(agreement.operands, wanted, node, f"operand {numbers[wanted]}")
        agreement.agreeing += not agreement.differs
        return agreement                                                # what the graph makes it of is its own affair
    if wanted.op.name != node.op.name:
        agreement.differs, agreement.other_op = f"where the part has {_said(wanted)}, the graph has {_said(node)}", True
    elif wanted.type.dtype != node.type.dtype:
        agreement.differs = f"{node.op.name} is {wanted.type.dtype} in the part, and {node.type.dtype} in the graph"
    elif len(wanted.inputs) != len(node.inputs):
        agreement.differs = f"{node.op.name} has {len(wanted.inputs)} operands in the part, and {len(node.inputs)} in the graph"
    elif number := _number(wanted, node):
        agreement.differs = number
    if agreement.differs:
        return agreement
    agreement.agreeing += 1
    orders = [node.inputs]
    if isinstance(node.op, AtomicOp) and node.op.commutative:
        orders.append(node.inputs[::-1])
    tried = []
    for order in orders:
        one = _InWords(agreement.agreeing, operands=dict(agreement.operands))
        for theirs, ours in zip(wanted.inputs, order, strict=True):
            _compare(one, theirs, ours, numbers)
            if one.differs:
                break
        tried.append(one)
    furthest = max(tried, key=lambda trial: (not trial.differs, trial.agreeing))
    agreement.agreeing, agreement.differs = furthest.agreeing, furthest.differs
    agreement.other_op, agreement.operands = furthest.other_op, furthest.operands
    return agreement


def _operand(bound: dict[Node, Node], wanted: Node, node: Node, called: str) -> str:
    """Bind a node as an operand; return why it cannot be one, or ""."""
    w, t = wanted.type, node.type
    if w.dtype != t.dtype or w.rank != t.rank:
        return f"{called} is {w} in the part, and {t} in the graph: another {'dtype' if w.dtype != t.dtype else 'rank'}"
    if outside := size_out_of_range(t, w, called):
        return outside
    if bound.setdefault(wanted, node) is not node:
        return f"{called} is one value in the part, and two values in the graph"
    return ""


def _number(wanted: Node, node: Node) -> str:
    """Return the attribute or constant in which two nodes of one op differ, or "". Sizes of views follow from their operands."""
    if node.op.facts.view:
        return ""
    for name, value in wanted.attrs.items():
        other = node.attrs.get(name)
        if isinstance(value, (int, float, str)) and isinstance(other, (int, float, str)) and value != other:
            return f"{name} of {node.op.name} is {value} in the part, and {other} in the graph"
    return ""


def _no_operands(graph: Graph, bound: Mapping[Node, Node], numbers: Mapping[Node, int]) -> str:
    """Return why the values that agree with a part's arguments cannot be the operands of an occurrence, or ""."""
    fed, seen = Cuts(graph).fed, dict[Node, int]()
    for argument, node in sorted(bound.items(), key=lambda item: numbers[item[0]]):
        if node not in fed:
            return f"operand {numbers[argument]} would be {_said(node)}, which depends on no input and no parameter"
        if node in seen:
            return f"operands {seen[node]} and {numbers[argument]} are one value in the graph: say that as a graph of its own"
        seen[node] = numbers[argument]
    return ""


def _said(node: Node) -> str:
    """Return a node as words of a sentence."""
    if node.op in leaves.NAMED_LEAVES:
        return f"the {node.op.name} {node.attrs['name']} {node.type}"
    return f"{node.op.name} {node.type}" if node.op.kind == "leaf" else node.op.name
