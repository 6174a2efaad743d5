"""split_into_groups: split a nest's axis whose iterations share numbers in groups: an axis of groups, an axis in a group.

Each group becomes an iteration of the nest, and all of its threads share the sums of the group (group_norm). Without this pass one
iteration has all groups, and only as many threads add as there are groups.

In: an arranged program.  Out: the program, split where a nest has this form; only the order of sums may change.
"""

from __future__ import annotations

from dataclasses import replace

from tensor_graphs.codegen.loop_ir import Axis, Nest, Stage, StageProgram, Value, Values, rewritten, values_in
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim


def grouped(program: StageProgram) -> StageProgram:
    """Return the program with the last axis of each such nest split into groups.

    >>> from tensor_graphs.codegen.lower import lower_text
    >>> from tensor_graphs.codegen.pipelines import arranged
    >>> program = arranged(lower_text("input x f32[2, 8, 5]", "s = sum(reshape(x; shape=(2, 4, 10)); axes=(2,))",
    ...     "output y = x + reshape(expand(reshape(s; shape=(2, 4, 1)); shape=(2, 4, 2)); shape=(2, 8, 1))"))
    >>> print(program)
    nest over _i0 in 0..2, _i1 in 0..8
        t1[_j3] = sum over _r4 in 0..10 of x0[40*_i0 + 10*_j3 + _r4]    over _j3 in 0..4    in 1 of its axes
        y0[40*_i0 + 5*_i1 + _j2] = (x0[40*_i0 + 5*_i1 + _j2] + t1[_i1 // 2])    over _j2 in 0..5
    >>> print(grouped(program))
    nest over _i0 in 0..2, _i1g in 0..4
        t1[0] = sum over _r4 in 0..10 of x0[40*_i0 + 10*_i1g + _r4]
        y0[40*_i0 + 10*_i1g + 5*_i1h + _j2] = (x0[40*_i0 + 10*_i1g + 5*_i1h + _j2] + t1[0])    over _i1h in 0..2, _j2 in 0..5
    """
    sizes = [_groups(program, nest) for nest in program.nests]
    return program.made_of(nest if groups is None else _split(program.values, nest, *groups)
                           for nest, groups in zip(program.nests, sizes, strict=True))


def _groups(program: StageProgram, nest: Nest) -> tuple[int, int] | None:
    """Return (number of groups, iterations of each) for a nest's last axis; None where the nest has another form."""
    if len(nest.axes) < 1 or nest.tile is not None:
        return None
    axis, level = nest.axes[-1], len(nest.axes) - 1
    outer = [s for s in nest.stages if s.level == level]
    inner = [s for s in nest.stages if s.level == level + 1]
    if not d.is_static(axis.size) or not outer or not inner or len(outer) + len(inner) != len(nest.stages):
        return None
    if nest.blocks is not None or any(s.scan is not None or s.held or s.product for s in nest.stages):
        return None
    if any(s.monoid is not None or s.target.role == "scratch" or not s.axes for s in inner):
        return None
    if any(len(s.axes) != 1 or s.index != s.axes[0].symbol or s.target.role != "scratch" or s.target.level != level for s in outer):
        return None
    sizes = {s.axes[0].size for s in outer}
    if len(sizes) != 1 or not all(map(d.is_static, sizes)):
        return None
    turns, groups = int(d.evaluate(axis.size, {})), int(d.evaluate(sizes.pop(), {}))
    if groups < 2 or turns % groups or turns == groups or any(axis.name in v.symbols for v in program.gathered.values()):
        return None
    size = turns // groups
    targets = [s.target for s in outer]
    for s in nest.stages:
        here = s.axes[0].symbol if s in outer else axis.symbol // size
        if any(v.op == "load" and v.attr[0] in targets and v.attr[1] != here for root in s.roots() for v in values_in(root)):
            return None
    others = (s for other in program.nests if other is not nest for s in other.stages)
    if any(v.op == "load" and v.attr[0] in targets for s in others for root in s.roots() for v in values_in(root)):
        return None
    return groups, size


def _split(values: Values, nest: Nest, groups: int, size: int) -> Nest:
    axis, level = nest.axes[-1], len(nest.axes) - 1
    group, turn = Axis(f"{axis.name}g", groups), Axis(f"{axis.name}h", size)
    numbers = {s.target: replace(s.target, size=1, level=level + 1) for s in nest.stages if s.level == level}

    def value_of(value: Value, names: dict[str, Dim]) -> Value:
        def one(v: Value, args: tuple[Value, ...]) -> Value:
            attr = v.attr
            if v.op == "index":
                attr = d.substitute(attr, names)
            elif v.op == "load" and v.attr[0] in numbers:
                attr = (numbers[v.attr[0]], 0, (v.attr[2] - {axis.name}) | {group.name})
            elif v.op == "load":
                inside = v.attr[2]
                attr = (v.attr[0], d.substitute(v.attr[1], names),
                        (inside - {axis.name}) | {group.name, turn.name} if axis.name in inside else inside)
            return values.make(v.op, v.dtype, *args, attr=attr)

        return rewritten(value, one)

    def split(s: Stage) -> list[Stage]:
        if s.level == level:
            names: dict[str, Dim] = {s.axes[0].name: group.symbol}
            return [replace(s, target=numbers[s.target], index=0, axes=(), value=value_of(s.value, names), level=level + 1)]
        names = {axis.name: group.symbol * size + turn.symbol}
        return [replace(s, index=d.substitute(s.index, names), axes=(turn, *s.axes), value=value_of(s.value, names))]

    return nest.mapped(split, axes=(*nest.axes[:-1], group))
