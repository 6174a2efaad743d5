"""part: a piece of a graph as one node: an anonymous composite, whose definition is the piece and whose name says what is in it.

    fused = part_of(tg.graph(tg.linear(tg.rms_norm(x, g), w)))     # operands: the graph's inputs, in their order

A kernel that computes a part is registered for it as for any op; where the part occurs is found by rewrites/parts.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tensor_graphs.language import leaves
from tensor_graphs.language.composite import Definition, definition_digest
from tensor_graphs.language.errors import GraphError, written_at
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, apply, walk
from tensor_graphs.language.written_ops import DefinedOp

NAMED_STEPS = 3
"""steps of a part that its name lists; a longer one is called part_…"""

KEY_LENGTH = 6


class PartOp(DefinedOp):
    """An anonymous composite: for operands of the written dtypes and ranks, its dims standing for any size in their ranges."""


def part_of(graph: Graph) -> PartOp:
    """The graph as one op. Its operands are the graph's inputs and parameters, in order of first use.

    Raises GraphError for a graph with states, with more than one output, or without operands.
    """
    if graph.updates or graph.states:
        raise GraphError("a part has no states: it is a function of its operands", fix="make each state an input")
    if len(graph.outputs) != 1:
        raise GraphError(f"a part has one output, this graph has {len(graph.outputs)}: {', '.join(graph.outputs)}",
                         fix="a graph of one of them")
    operands = [*graph.inputs.values(), *graph.parameters.values()]
    if not operands:
        raise GraphError("a part has operands, and this graph has no inputs", fix="tg.input for what it reads")
    (output,) = graph.outputs.values()
    if output in operands:
        raise GraphError("this graph only hands its input on, so there is nothing to compute")
    ordered = [n for n in graph.nodes if n in operands]
    return part_between(output, ordered)


def part_between(output: Node, operands: Sequence[Node], key: str = "") -> PartOp:
    """The piece between operands and output as one op; a leaf with a name that is no operand may not be in it. key: for its name,
    by default its own digest.

    Raises GraphError where there is one.
    """
    arguments = [leaves.argument(i, o.type) for i, o in enumerate(operands)]
    made = over(output, operands, arguments)
    strange = next((n for n in walk([made]) if n.op in leaves.NAMED_LEAVES), None)
    if strange is not None:
        raise GraphError(f"the {strange.op.name} {strange.attrs['name']!r} is in the part, and no operand of it",
                         fix="make it an operand")
    return PartOp(name_of(made, key or definition_digest([made])), arguments, (made,), printed=False)


def over(output: Node, operands: Sequence[Node], others: Sequence[Node]) -> Node:
    """The piece between operands and output, on other operands. Raises what an op says of types that it does not take."""
    made = dict(zip(operands, others, strict=True))
    for node in between(output, operands):
        inputs = [made[i] for i in node.inputs]
        with written_at(node.location):
            made[node] = apply(node.op, inputs, node.attrs) if inputs else node
    return made[output]


def between(output: Node, operands: Collection[Node]) -> list[Node]:
    """What a node is made of down to the operands, which are left out, operands before users."""
    order: list[Node] = []
    seen = set(operands)
    stack = [(output, False)]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((i, False) for i in node.inputs)
    return order


_same: set[tuple[str, str]] = set()
"""digests of two definitions that were proved to be the same function of their operands"""


def note_same(one: Definition, other: Definition) -> None:
    """What was proved of two definitions (rewrites/parts.py), for whoever asks in this process."""
    _same.add((one.digest, other.digest))


def known_same(one: Definition, other: Definition) -> bool:
    return (one.digest, other.digest) in _same


def name_of(output: Node, key: str) -> str:
    """Of the steps, in their order, and the beginning of a key: rms_norm_linear_1a2b3c."""
    steps = [n.op.name for n in walk([output]) if n.op.kind in ("atomic", "composite")]
    words = "_".join(steps) if len(steps) <= NAMED_STEPS else "part"
    return f"{words}_{key[:KEY_LENGTH]}"
