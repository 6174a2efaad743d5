"""node_instructions: the instruction of a run that makes the value of a node of the compiled graph, or that computes it inside.

A node is followed through the compiler's changes (`Plan.images`, passes/widen.py, the path's choice), then looked up among the
program's values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from tensor_graphs.errors import listed
from tensor_graphs.language.composite import TooManyNodesError, expand_all
from tensor_graphs.language.node import Node, consumers
from tensor_graphs.paths.lower import Operand, Program
from tensor_graphs.paths.path import Path, expanded
from tensor_graphs.paths.plan import Plan
from tensor_graphs.rewrites.passes.narrow import narrowed_values
from tensor_graphs.rewrites.passes.recognise import Classes
from tensor_graphs.rewrites.passes.widen import WIDER, widened_values


class NodeValues:
    """The values of one variant of a plan."""

    def __init__(self, plan: Plan, path: Path, program: Program) -> None:
        self.plan, self.path, self.program = plan, path, program
        self.made = {o.buffer: (ins.label, i) for ins in program.instructions for i, o in enumerate(ins.outs)}
        self.kernels = {ins.label: ins.kernel for ins in program.instructions}

    def at(self, node: Node) -> tuple[str, int, Operand] | None:
        """The label of the instruction, which of its outputs, and the window into that; None where no instruction makes it."""
        operand = self._of_given.get(node) if node in self._given else self._operands([node]).get(node)
        operand = operand or self._equal.get(node)
        return None if operand is None or operand.buffer not in self.made else (*self.made[operand.buffer], operand)

    def why_not(self, node: Node) -> tuple[str, str]:
        """Why no instruction makes a value, and what to do about it, as parts of a sentence."""
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
        """The location in the source of what an instruction makes; "" where that is not known."""
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
        """The nodes of the graph that was compiled; of a plan that was read from bytes they are not known."""
        return {} if self.plan.given is None else dict.fromkeys(n for n in self.plan.given.nodes if len(n.types) == 1)

    @cached_property
    def _of_given(self) -> dict[Node, Operand]:
        return self._operands(self._given)

    def _operands(self, nodes: Iterable[Node]) -> dict[Node, Operand]:
        """The values of those nodes that are still made in the plan's graph."""
        images, written, nodes = self.plan.images, self.plan.written, list(nodes)
        now: list[list[Node | None]] = [[images.get(n, n) for n in nodes]]
        if written is not None:                                     # the graph before it was widened, or its products narrowed
            mine = [n for n in now[0] if n is not None]
            forms: list[Sequence[Node | None]] = [mine, *(widened_values(written, mine, to, last_step=True) for to in WIDER)]
            forms.append(narrowed_values(written, mine))
            now += [[None if n is None else images.get(n, n) for n in row] for row in forms]
        operands: dict[Node, Operand] = {}
        for row in now:
            there = [(n, image) for n, image in zip(nodes, row, strict=True) if image is not None]
            for (n, _), value in zip(there, expanded([image for _, image in there], self.path), strict=True):
                if value in self.program.values:
                    operands.setdefault(n, self.program.values[value])
        return operands

    @cached_property
    def _equal(self) -> dict[Node, Operand]:
        """The values that are nodes of the given graph in atomic ops: where a path runs a definition, it has words of its own."""
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
        """The instructions that make what is next made of a node's value."""
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
