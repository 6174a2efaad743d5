"""in_place: which outputs of a program may share the memory of an operand.

An output of which only some rows are stored shares its operand's memory by definition (`StageProgram.updated`). Another output may
if each element of the operand is read by the iteration that writes the same element, before the write, or by an earlier nest.
"""

from __future__ import annotations

from tensor_graphs.codegen.loop_ir import Array, Nest, Pairs, Stage, StageProgram, values_in
from tensor_graphs.language.atomic import same_dim


def shared_by(program: StageProgram) -> Pairs:
    """Return the pairs (output, operand) of an arranged program that may share memory."""
    taken = dict(program.updated)
    free = [(o, y) for o, y in enumerate(program.outputs) if o not in taken]
    alike = [(o, i) for o, y in free for i, x in enumerate(program.operands)
             if x.dtype == y.dtype and i not in taken.values() and same_dim(x.size, y.size)]
    return (*program.updated, *((o, i) for o, i in alike if _read_before(program, program.operands[i], program.outputs[o])))


def _read_before(program: StageProgram, x: Array, y: Array) -> bool:
    writers = [(k, nest, s) for k, nest in enumerate(program.nests) for s in nest.stages if s.target == y]
    if len(writers) != 1:
        return False
    ((last, own, writer),) = writers
    gathered = [v for root in program.gathered.values() for v in values_in(root)]
    if any(v.op == "load" and v.attr[0] == x for v in gathered):
        return False
    for k, nest in enumerate(program.nests):
        for s in nest.stages:
            reads = [v for v in values_in(*s.roots()) if v.op == "load" and v.attr[0] == x]
            if reads and not (k < last and not all(n.advice.beside for n in program.nests[k + 1:last + 1])):
                same = k == last and all(v.attr[1] == writer.index for v in reads)
                if not (same and _in_turn(own, s, writer)):
                    return False
    return True


def _in_turn(nest: Nest, reader: Stage, writer: Stage) -> bool:
    """Return whether two stages loop over the same axes and the reader runs before the writer or is the writer."""
    plain = nest.blocks is None and reader.does is writer.does is None
    return (plain and reader.axes == writer.axes and reader.level == writer.level
            and nest.stages.index(reader) <= nest.stages.index(writer))
