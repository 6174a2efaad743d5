"""residue_lanes: the lanes in which each node's residues are needed, and the ops that become random functions, found in advance.

2^x takes residues of lane i to lane i + 1, log2 from i + 1 to i, so results are known in fewer lanes than their operands. Where no
lane is left (a third nested 2^x), the op becomes a random function of its operand, known in all lanes. Going back from the outputs,
each node is needed in one lane or two, and only those are computed.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensor_graphs.language.node import Node, walk
from tensor_graphs.proof.errors import OutsideFragmentError
from tensor_graphs.proof.finite_field import Lanes
from tensor_graphs.proof.residues import CHAINS, MAIN

ALL = frozenset(range(len(CHAINS[0])))
FUNCTIONS = frozenset({"sin", "floor", "erf"})


def common(lanes: frozenset[int]) -> int:
    """Return the lane in which a value known in several lanes is compared: MAIN, or else the highest."""
    return MAIN if MAIN in lanes else max(lanes)


def _floats(node: Node) -> list[Node]:
    return [i for i in node.inputs if i.dtype.kind == "float"]


def known_lanes(order: Sequence[Node], bits: bool) -> tuple[dict[Node, frozenset[int]], frozenset[Node]]:
    """Return (the lanes in which each float node is known, the nodes that are random functions). Raises OutsideFragmentError where
    operands have no lane in common."""
    lanes_of: dict[Node, frozenset[int]] = {}
    random: set[Node] = set()
    for node in order:
        floats, name = _floats(node), node.op.name
        if name in ("exp2", "log2"):
            step = 1 if name == "exp2" else -1
            lanes = frozenset(i + step for i in lanes_of[floats[0]]) & ALL
            if not lanes:
                random.add(node)
            lanes_of[node] = lanes or ALL
        elif name in FUNCTIONS or is_rounding(node, bits):
            random.add(node)
            lanes_of[node] = ALL
        elif floats:
            shared = ALL.intersection(*(lanes_of[i] for i in floats))
            if not shared:
                raise OutsideFragmentError(f"{name} of the result of exp2 and the result of log2", node.location)
            lanes_of[node] = shared
        else:
            lanes_of[node] = ALL
    return lanes_of, frozenset(random)


def is_rounding(node: Node, bits: bool) -> bool:
    """Return whether a node is a narrowing cast between floats whose rounding counts (bits)."""
    if not bits or node.op.name != "cast" or node.dtype.kind != "float" or node.inputs[0].dtype.kind != "float":
        return False
    old, new = node.inputs[0].dtype, node.dtype
    return new.epsilon > old.epsilon or new.max < old.max


def plan(outputs: Sequence[Sequence[Node]], bits: bool = False) -> tuple[Lanes, tuple[int, ...]]:
    """Return (the lanes of all nodes, for each output the lane in which it is compared). outputs: the roots of each graph, in
    matching order. Raises OutsideFragmentError where operands or outputs have no lane in common."""
    order = walk([root for roots in outputs for root in roots])
    lanes_of, random = known_lanes(order, bits)
    needed: dict[Node, set[int]] = {node: set() for node in order}
    compared = []
    for same in zip(*outputs, strict=True):
        shared = ALL.intersection(*(lanes_of[r] for r in same))
        if not shared:
            raise OutsideFragmentError("the outputs have no residues in common: one ends in exp2, one in log2")
        compared.append(common(shared))
        for r in same:
            needed[r].add(compared[-1])
    looks: dict[Node, int] = {}
    for node in reversed(order):
        floats, name = _floats(node), node.op.name
        if not floats:
            continue
        shared = ALL.intersection(*(lanes_of[i] for i in floats))
        to_whole = name == "cast" and node.dtype.kind != "float"
        if node.op.facts.compares or node.op.facts.selects or node in random or to_whole:
            if not shared:
                raise OutsideFragmentError(f"{name} of the result of exp2 and the result of log2", node.location)
            looks[node] = common(shared)
        for i in floats:
            if node in random:
                needed[i].add(looks[node])
            elif name == "exp2":
                needed[i] |= {lane - 1 for lane in needed[node]}
            elif name == "log2":
                needed[i] |= {lane + 1 for lane in needed[node]}
            else:
                needed[i] |= needed[node] if node.dtype.kind == "float" else set()
                if node.op.facts.compares or node.op.facts.selects or to_whole:
                    needed[i].add(looks[node])
    return Lanes({n: frozenset(s) for n, s in needed.items()}, random, looks), tuple(compared)
