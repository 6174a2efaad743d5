"""node_instructions: finds the instruction that outputs the value of a node of the user's graph, or that computes it internally.

A node is mapped through the compiler's changes (`Plan.images`, the choices of the path), then looked up among the program's
values."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from tensor_graphs.errors import listed
from tensor_graphs.language.composite import TooManyNodesError, expand_all
from tensor_graphs.language.node import Node, consumers
from tensor_graphs.paths.lower import Operand, Program
from tensor_graphs.paths.path import Path, expanded
from tensor_graphs.paths.plan import Plan
from tensor_graphs.rewrites.passes.recognise import Classes


class NodeValues:
    """The values of one variant of a plan, found by nodes of the user's graph."""

    def __init__(self, plan: Plan, path: Path, program: Program) -> None:
        self.plan, self.path, self.program = plan, path, program
        self.made = {o.buffer: (ins.label, i) for ins in program.instructions for i, o in enumerate(ins.outs)}
        self.kernels = {ins.label: ins.kernel for ins in program.instructions}

    def at(self, node: Node) -> tuple[str, int, Operand] | None:
        """Return (label of the instruction that outputs a node's value, number of the output, operand); None if there is none."""
        operand = self._of_given.get(node) if node in self._given else self._operands([node]).get(node)
        operand = operand or self._equal.get(node)
        return None if operand is None or operand.buffer not in self.made else (*self.made[operand.buffer], operand)

    def why_not(self, node: Node) -> tuple[str, str]:
        """Return (reason, fix) as parts of a sentence: why no instruction outputs a node's value, and what to do."""
        if node.op.kind == "leaf" or node in self._of_given or node in self._equal:
            return ", which is given, or made when parameters are bound", ""
        graph = self.plan.given
        if graph is None:                                           # of a plan that was read from bytes
            return "", ""
        if node not in graph.nodes:
            return ", which is no node of the graph that was compiled", ""
        labels = self._after(node)
        if not labels:
            return ", which no output depends on", ""
        inside = listed([f"{label} ({self.kernels[label]})" for label in labels], 4)
        plain = ", or compile with simplify=False" if self.plan.prepared else ""
        return (f", which is computed inside of {inside}",
                f"\n  fix: tap {labels[0]!r} for what that makes{plain}, or have the value as an output of the graph")

    def written_at(self, label: str) -> str:
        """Return the location in the user's source of an instruction's first known node, "" if unknown."""
        return self._places.get(label, "")

    @cached_property
    def _places(self) -> dict[str, str]:
        places: dict[str, str] = {}
        for node, operand in self._of_given.items():
            if operand.buffer in self.made and node.location is not None and not node.op.facts.view:
                places.setdefault(self.made[operand.buffer][0], str(node.location))
        return places

    @cached_property
    def _given(self) -> dict[Node, None]:
        """The nodes of the user's graph that have one output; none for a plan that was read from bytes."""
        return {} if self.plan.given is None else dict.fromkeys(n for n in self.plan.given.nodes if len(n.types) == 1)

    @cached_property
    def _of_given(self) -> dict[Node, Operand]:
        return self._operands(self._given)

    def _operands(self, nodes: Iterable[Node]) -> dict[Node, Operand]:
        """Return node -> operand with its value, for those of the nodes that the plan still computes."""
        images, nodes = self.plan.images, list(nodes)
        now = expanded([images.get(n, n) for n in nodes], self.path)
        return {n: self.program.values[value] for n, value in zip(nodes, now, strict=True) if value in self.program.values}

    @cached_property
    def _equal(self) -> dict[Node, Operand]:
        """Node of the user's graph -> operand of a value with the same expansion into atomic ops (where a path expanded it)."""
        values, nodes = self.program.values, self._given
        try:
            atoms = expand_all([*values, *nodes])
        except TooManyNodesError:
            return {}
        number = Classes(atoms).of
        by_class = {number[atom]: operand for atom, operand in zip(atoms, values.values(), strict=False)}
        return {n: by_class[number[atom]] for n, atom in zip(nodes, atoms[len(values):], strict=True) if number[atom] in by_class}

    @cached_property
    def _readers(self) -> dict[Node, list[Node]]:
        assert self.plan.given is not None
        return consumers(self.plan.given.roots)

    def _after(self, node: Node) -> list[str]:
        """Return the labels of the nearest instructions that compute something from a node's value."""
        labels: dict[str, None] = {}
        todo, seen = [node], {node}
        for n in todo:
            for reader in self._readers[n]:
                if reader in seen:
                    continue
                seen.add(reader)
                at = self.at(reader) if len(reader.types) == 1 else None
                if at is None:
                    todo.append(reader)
                else:
                    labels[at[0]] = None
        return list(labels)
