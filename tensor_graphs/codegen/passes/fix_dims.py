"""fix_dims: a program for some values of its dims, where axes of one iteration are no loops.

In: a program, values of some of its dims.  Out: the program without these dims and such axes; arrays keep the sizes they have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tensor_graphs.codegen.default_schedule import without_single_turns
from tensor_graphs.codegen.loop_ir import Axis, Nest, Reduce, Stage, StageProgram, Value, rewritten
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim


def with_dims(program: StageProgram, dims: Mapping[str, int]) -> StageProgram:
    """Return a program for some values of its dims.

    >>> from tensor_graphs.codegen.lower import lower_text
    >>> program = lower_text("dim n 1..4", "input x f32[n, 8]", "output y = sum(x * x; axes=(1,))")
    >>> print(with_dims(program, {"n": 1}))
    nest over nothing
        y0[0] = sum over _r1 in 0..8 of (x0[_r1] * x0[_r1])
    """
    values = program.values
    axes = {a.name: a for nest in program.nests for s in nest.stages for a in (*nest.axes, *s.axes, *s.reduce)}
    sized = {name: Axis(name, d.substitute(a.size, dims)) for name, a in axes.items()}
    fixed = {**dims, **{name: a.symbol for name, a in sized.items()}}

    def index(x: Dim) -> Dim:
        if not isinstance(x, d.Expr):
            return x
        read = {str(s): values.gather(of(program.gathered[str(s)]), d.bounds(s)[1] + 1)
                for s in d.symbols_in(x) if str(s) in program.gathered}
        return d.substitute(x, {**fixed, **read})

    def change(v: Value, args: tuple[Value, ...]) -> Value:
        attr = v.attr
        if v.op == "index":
            attr = index(attr)
        elif v.op == "load":
            attr = attr[0], index(attr[1]), frozenset(name for name in attr[2] if name not in sized or sized[name].size != 1)
        return values.make(v.op, v.dtype, *args, attr=attr)

    def of(value: Value) -> Value:
        return rewritten(value, change)

    def staged(nest: Nest, s: Stage) -> Stage:
        does = s.does
        if isinstance(does, Reduce):
            does = replace(does, over=tuple(sized[a.name] for a in does.over))
        elif does is not None:
            does = replace(does, along=sized[does.along.name])
        level = sum(sized[a.name].size != 1 for a in nest.axes[:s.level])
        return replace(s, does=does).with_roots(of, index=index(s.index), axes=tuple(sized[a.name] for a in s.axes), level=level)

    nests = [nest.mapped(lambda s, nest=nest: [staged(nest, s)], tile=None,      # type: ignore[misc]
                         axes=tuple(sized[a.name] for a in nest.axes if sized[a.name].size != 1)) for nest in program.nests]
    return without_single_turns(program.made_of(nests, values))
