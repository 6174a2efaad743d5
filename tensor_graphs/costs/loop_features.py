"""loop_features: features of the learned cost model (features.py) that hold for every kernel of a signature: the sizes of its
reductions, scans and matrix products, and the loop stages to which its definition is lowered.

They are derived once for a signature, as expressions of its dims, and evaluated for each call.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from tensor_graphs.codegen.arithmetic_count import steps_of
from tensor_graphs.codegen.loop_ir import Axis, Nest, Stage, StageProgram, across, parallel, values_in
from tensor_graphs.codegen.lower import DEAR
from tensor_graphs.codegen.refusals import or_none
from tensor_graphs.codegen.spec_to_loops import definition_of, loops_of
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language import dims as d
from tensor_graphs.language.atomic import AtomicOp
from tensor_graphs.language.composite import CompositeOp, looked_into
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.node import Node, walk

DEEPEST = 12
"""Depth to which nested definitions of composites are expanded."""

SLOW = 4.0
"""Flops per element from which an atomic op counts as slow (many instructions): a division, a root, an exponential."""


@dataclass
class Shapes:
    """Features of a signature by name. counts: numbers that do not depend on sizes. sizes: expressions of the dims."""

    counts: dict[str, float] = field(default_factory=dict)
    sizes: dict[str, Dim] = field(default_factory=dict)

    def at(self, binding: Mapping[str, int]) -> dict[str, float]:
        """Return the features at these sizes: counts unchanged, sizes as log2(size + 1)."""
        return self.counts | {name: math.log2(float(d.evaluate(size, binding)) + 1.0) for name, size in self.sizes.items()}


@lru_cache(maxsize=16384)
def shapes_of(signature: Signature) -> Shapes:
    shapes = Shapes()
    _add_ops(signature, shapes)
    program = or_none(loops_of, definition_of(signature.spec))
    if program is not None:
        _add_stages(program, shapes)
    return shapes


def _atomic(nodes: tuple[Node, ...] | list[Node], deeper: int = DEEPEST) -> Iterator[tuple[AtomicOp, Node]]:
    for node in nodes:
        if isinstance(node.op, AtomicOp):
            yield node.op, node
        elif isinstance(node.op, CompositeOp) and deeper:
            yield from _atomic(walk(looked_into(node).outputs), deeper - 1)


def _add_ops(signature: Signature, shapes: Shapes) -> None:
    """Count the atomic ops of each group and the slow ones. Add three sizes of the largest reduction: the products of the axes
    before those reduced, of the reduced axes, and of the later axes. (In a matrix product: rows and columns, and the summed
    axis.)"""
    largest = 0
    for op, node in _atomic(signature.graph.nodes):
        for group in (op.group, "slow") if op.flops >= SLOW else (op.group,):
            shapes.counts[f"has {group}"] = shapes.counts.get(f"has {group}", 0.0) + 1.0
        if op.group == "reduce":
            shape, axes = node.inputs[0].shape, node.attrs["axes"]
            elements = d.bounds(d.product(shape))[1]
            if axes and elements >= largest:
                largest = elements
                shapes.sizes["reduced, beside"] = d.product(shape[:axes[0]])
                shapes.sizes["reduced, along"] = d.product(shape[i] for i in axes)
                shapes.sizes["reduced, below"] = d.product(shape[axes[-1] + 1:])


def _add_stages(program: StageProgram, shapes: Shapes) -> None:
    stages = [(nest, s) for nest in program.nests for s in nest.stages]
    nest, heaviest = max(stages, key=lambda stage: _turns(*stage))
    inner = (*nest.loops(heaviest)[-1:], *nest.axes[-1:])[:1]
    scratch: Dim = 0
    for array in program.scratch:
        scratch = scratch + (array.size * array.dtype.itemsize if array.level == 0 else 0)
    shapes.sizes |= {"stages: steps": steps_of(program),
                    "stages: turns that threads share": _product(nest.axes[:parallel(nest)], program),
                    "stages: innermost axis": _product(inner, program), "stages: scratch": scratch}
    loads = [v for _, s in stages for root in s.roots() for v in values_in(root) if v.op == "load"]
    step = [d.coefficient(v.attr[1], inner[0].name) for v in loads] if inner else []
    shapes.counts |= {
        "stages": float(len(stages)), "stages: nests": float(len(program.nests)),
        "stages: reductions": float(sum(bool(s.reduce) for _, s in stages)),
        "stages: scans": float(sum(s.scan is not None for _, s in stages)),
        "stages: across memory": float(sum(across(s) for _, s in stages)),
        "stages: in tiles": float(sum(n.tile is not None for n in program.nests)),
        "stages: loads": float(len(loads)), "stages: loads with gaps": float(sum(s not in (0, 1) for s in step)),
        "stages: dear values": float(sum(v.op in DEAR for _, s in stages for root in s.roots() for v in values_in(root))),
        "stages: conversions": float(sum(a.dtype.is_float and a.dtype.itemsize < 4 for a in (*program.operands, *program.outputs))),
    }


def _turns(nest: Nest, stage: Stage) -> float:
    return math.prod(float(d.bounds(a.size)[1]) for a in (*nest.axes[:stage.level], *nest.loops(stage)))


def _product(axes: tuple[Axis, ...], program: StageProgram) -> Dim:
    """Return the product of the axes' sizes. An axis whose size depends on other axes counts with its largest size."""
    names = {a.name for n in program.nests for s in n.stages for a in (*n.axes, *n.loops(s))}
    return d.product(d.bounds(a.size)[1] if isinstance(a.size, d.Expr) and set(a.size.symbols) & names else a.size for a in axes)
