"""split_into_groups: split a nest's axis whose iterations share numbers in groups: an axis of groups, an axis in a group.

Each group becomes an iteration of the nest, and all of its threads share the sums of the group (group_norm). Without this pass one
iteration has all groups, and only as many threads add as there are groups. Numbers t[8 i + c // 8] that earlier nests compute for
each group join the nest too, so that the rows of a norm between two reshapes are still in the cache when they are read again.

In: a program with merged axes.  Out: the program, split where a nest has this form; only the order of sums may change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tensor_graphs.codegen.loop_ir import Axis, Nest, Stage, StageProgram, Value, flat, rewritten, values_in
from tensor_graphs.language import dims as d
from tensor_graphs.language.dim_proofs import exact_div
from tensor_graphs.language.dims import Dim

LEAST_GROUPS = 8
"""fewest groups for which earlier nests join one whose iterations become fewer, since threads share these"""

LONGEST_ROW = 1 << 15
"""most elements of a sum that joins a nest: longer rows leave the cache, and a GPU cuts them into parts (split_reduction.py)"""


@dataclass(frozen=True)
class _Groups:
    """Groups of a nest's last axis. numbers: the stage of each number that a group shares -> its axis. outer: the axes of the nest
    that this axis counts in addition to the groups. groups: their number. size: iterations of each."""

    numbers: Mapping[Stage, Axis]
    outer: tuple[Axis, ...]
    groups: int
    size: int


def grouped(program: StageProgram) -> StageProgram:
    """Return the program with the last axis of each such nest split into groups.

    >>> from tensor_graphs.codegen.lower import lower_text
    >>> from tensor_graphs.codegen.default_schedule import merged
    >>> program = merged(lower_text("input x f32[2, 8, 5]", "s = sum(reshape(x; shape=(2, 4, 10)); axes=(2,))",
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
    for place in range(len(program.nests)):
        nest = program.nests[place]
        groups = _groups(program, nest) if nest.axes and nest.tile is None else None
        if groups is not None:
            program = _split(program, place, groups)
    return program if all(nest.body for nest in program.nests) else program.made_of(nest for nest in program.nests if nest.body)


def _groups(program: StageProgram, nest: Nest) -> _Groups | None:
    """Return the groups of a nest's last axis; None where the nest has another form."""
    axis, level = nest.axes[-1], len(nest.axes) - 1
    inner = [s for s in nest.stages if s.level == level + 1]
    own = {s: s.axes for s in nest.stages if s.level == level}
    numbers = own or _earlier(program, nest)
    outer, target_level = ((), level) if own else (nest.axes[:-1], 0)
    stages = [*numbers, *inner]
    if not numbers or not inner or len(own) + len(inner) != len(nest.stages) or not d.is_static(axis.size):
        return None
    if nest.blocks is not None or any(s.scan is not None or s.held or s.product for s in stages):
        return None
    if any(s.monoid is not None or s.target.role == "scratch" or not s.axes for s in inner):
        return None
    if any(len(axes) != 1 or s.index != axes[0].symbol or s.target.role != "scratch" or s.target.level != target_level
           for s, axes in numbers.items()) or len({axes[0].size for axes in numbers.values()}) != 1:
        return None
    places = {s: axes[0] for s, axes in numbers.items()}
    total, turns = next(iter(places.values())).size, int(d.evaluate(axis.size, {}))
    groups = exact_div(total, d.product(a.size for a in outer))
    if not isinstance(groups, int) or groups < 1 or turns % groups:
        return None
    size = turns // groups
    few = groups < 2 or size == 1 if own else size > 1 and d.bounds(total)[0] < LEAST_GROUPS
    if few or not _only_here(program, nest, places, flat(outer) * groups + axis.symbol // size):
        return None
    return _Groups(places, outer, groups, size)


def _earlier(program: StageProgram, nest: Nest) -> dict[Stage, tuple[Axis, ...]]:
    """Return the stages of earlier nests that compute numbers for a nest, one in each iteration, and the axes of their nests."""
    numbers: dict[Stage, tuple[Axis, ...]] = {}
    read = {v.attr[0] for v in _loads(nest.stages)}
    for other in reversed(program.nests[:program.nests.index(nest)]):
        alone = all(s.level == len(other.axes) and not s.axes for s in other.stages)
        short = all(d.bounds(d.product(a.size for a in s.reduce))[1] <= LONGEST_ROW for s in other.stages)
        if alone and short and len(other.axes) == 1 and any(s.target in read for s in other.stages):
            numbers = {**dict.fromkeys(other.stages, other.axes), **numbers}
            read |= {v.attr[0] for v in _loads(other.stages)}
    return numbers


def _only_here(program: StageProgram, nest: Nest, places: Mapping[Stage, Axis], group: Dim) -> bool:
    """Return whether the numbers are read by each other in the iteration of their group, by a nest's other stages at the index
    `group`, and nowhere else; and whether nothing depends on the axes that are split in another way than by indices."""
    targets = {s.target for s in places}
    for other in program.nests:
        for s in other.stages:
            here = places[s].symbol if s in places else group if other is nest else None
            if any(v.attr[1] != here for v in _loads([s]) if v.attr[0] in targets):
                return False
    names = {nest.axes[-1].name, *(axis.name for axis in places.values())}
    sizes = (a.size for s in (*places, *nest.stages) for a in (*s.axes, *s.reduce))
    gathered = program.gathered.values()
    return (names.isdisjoint(str(x) for size in sizes for x in d.symbols(size))
            and not any(v.symbols & names or any(x.op == "load" and x.attr[0] in targets for x in values_in(v)) for v in gathered))


def _loads(stages: Iterable[Stage]) -> Iterable[Value]:
    return (v for s in stages for root in s.roots() for v in values_in(root) if v.op == "load")


def _split(program: StageProgram, place: int, split: _Groups) -> StageProgram:
    nest, values = program.nests[place], program.values
    axis, level = nest.axes[-1], len(nest.axes)
    group, turn = Axis(f"{axis.name}g", split.groups), Axis(f"{axis.name}h", split.size)
    turns = (turn,) if split.size > 1 else ()
    around = frozenset(a.name for a in (*nest.axes[:-1], group))
    numbers = {s.target: replace(s.target, size=1, level=level) for s in split.numbers}

    def value_of(value: Value, names: dict[str, Dim]) -> Value:
        def one(v: Value, args: tuple[Value, ...]) -> Value:
            attr = v.attr
            if v.op == "index":
                attr = d.substitute(attr, names)
            elif v.op == "load" and v.attr[0] in numbers:
                attr = (numbers[v.attr[0]], 0, around)
            elif v.op == "load":
                inside = v.attr[2]
                attr = (v.attr[0], d.substitute(v.attr[1], names),
                        (inside - {axis.name}) | {group.name, *(a.name for a in turns)} if axis.name in inside else inside)
            return values.make(v.op, v.dtype, *args, attr=attr)

        return rewritten(value, one)

    shared = [replace(s, target=numbers[s.target], index=0, axes=(), level=level,
                      value=value_of(s.value, {own.name: flat((*split.outer, group))})) for s, own in split.numbers.items()]
    names: dict[str, Dim] = {axis.name: group.symbol * split.size + turn.symbol}
    inner = [replace(s, value=value_of(s.value, names), index=d.substitute(s.index, names), axes=(*turns, *s.axes))
             for s in nest.stages if s not in split.numbers]
    nests = [other.mapped(lambda s: () if s in split.numbers else (s,)) for other in program.nests]
    nests[place] = Nest((*nest.axes[:-1], group), (*shared, *inner), nest.tile, nest.advice)
    return program.made_of(nests)
