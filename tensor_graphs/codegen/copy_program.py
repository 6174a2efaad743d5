"""copy_program: the copy of one strided window into another, as loops."""

from __future__ import annotations

from collections.abc import Sequence

from tensor_graphs.codegen.loop_ir import Array, Axis, Nest, Stage, StageProgram, Values
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DTYPES

OF_SIZE = {1: DTYPES["u8"], 2: DTYPES["u16"], 4: DTYPES["u32"], 8: DTYPES["u64"]}
"""bytes of an element -> the dtype as which it is copied"""


def copy_of(shape: Sequence[Dim], out_strides: Sequence[Dim], in_strides: Sequence[Dim], itemsize: int,
            outer: int = 0) -> StageProgram:
    """Return the program of a copy. outer: how many of its axes are those of the nest.

    >>> print(copy_of((5, 7), (7, 1), (1, 5), 4, outer=1))
    nest over _j0 in 0..5
        y0[7*_j0 + _j1] = x0[_j0 + 5*_j1]    over _j1 in 0..7
    """
    values, dtype = Values(), OF_SIZE[itemsize]
    axes = tuple(Axis(f"_j{i}", s) for i, s in enumerate(shape))

    def place(strides: Sequence[Dim]) -> tuple[Dim, int]:
        at: Dim = 0
        far = 1
        for axis, stride in zip(axes, strides, strict=True):
            at = at + axis.symbol * stride
            far += (d.bounds(axis.size)[1]) * max(map(abs, d.bounds(stride)))
        return at, far

    (into, room), (at, far) = place(out_strides), place(in_strides)
    source, target = Array("x0", "operand", 0, dtype, far), Array("y0", "output", 0, dtype, room)
    stage = Stage(target, into, axes[outer:], values.load(source, at), outer, note="copy")
    symbols = {str(s): s for x in (*shape, *out_strides, *in_strides) for s in d.symbols(x)}
    sizes = tuple(symbols[n] for n in sorted(symbols))
    return StageProgram((source,), (target,), (Nest(axes[:outer], (stage,)),), dims=sizes)
