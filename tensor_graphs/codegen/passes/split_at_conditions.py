"""split_at_conditions: decide conditions on indices before the loop, so that vector lanes and GPU threads take no branch.

In: a program as lowered.  Out: the program; its results do not change, except for the sign of a sum that is zero.

- A sum of elements selected where an index equals a number, and 0 elsewhere, becomes one load (`_select`). Example: the logit of a
  row's label.
- A reduction that ignores elements outside of bounds runs only over iterations inside them (`limits`, used by the mapper).
  Example: a window at the border of an image.
- A stage whose conditions change at equally spaced points of its last axis becomes one stage for each piece, without conditions
  (`_cut`). Example: both halves of a rotation, which then share their loads, also in the nest of a norm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from functools import partial

from tensor_graphs.codegen.loop_ir import Axis, Nest, Stage, StageProgram, Value, Values, identity_of, values_in
from tensor_graphs.language import dims as d
from tensor_graphs.language.dim_proofs import dim_ge
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import bool_, i64

PIECES = 4
"""most pieces of an axis"""


def decided(program: StageProgram) -> StageProgram:
    """Return the program with the conditions of its stages decided where they can be.

    >>> from tensor_graphs.codegen.lower import lower_text
    >>> program = lower_text("input x f32[4, 8]", "output y = pad(x; padding=((0, 0), (8, 0)), value=0.0)")
    >>> print(program)
    nest over _i0 in 0..4
        y0[16*_i0 + _j1] = where(v2, (v2 and x0[8*_i0 + _j1 - 8]), 0.0)    over _j1 in 0..16
            where v2 = at_least(i64(_j1 - 8), i64(0))
    >>> print(decided(program))
    nest over _i0 in 0..4
        y0[16*_i0 + _j1h] = 0.0    over _j1h in 0..8
        y0[16*_i0 + _j1h + 8] = x0[8*_i0 + _j1h]    over _j1h in 0..8
    """
    values, nests = program.values, []
    for nest in program.nests:
        first, rest = list[Stage](), list[Stage]()
        for s in nest.stages:
            selected = _selected(values, s)
            (rest if selected is None else first).append(selected or s)
        stages = sorted([*first, *rest], key=lambda s: s.level)     # a load of one number is begun before the long ones end
        pieces = tuple(_in_pieces(values, nest, stages))
        nests.append(Nest(nest.axes, pieces, nest.tile, nest.advice) if pieces != nest.body else nest)
    return program.made_of(nests, values) if tuple(nests) != program.nests else program


# ---- one turn of many ----------------------------------------------------------------------------------------------------------


def _selected(values: Values, s: Stage) -> Stage | None:
    """Return a sum that selects one element as a load; None for another stage."""
    where = s.value
    if s.monoid != "sum" or len(s.reduce) != 1 or where.op != "where":
        return None
    (over,) = s.reduce
    for part in (1, 2):
        none, x = where.args[3 - part], where.args[part]
        number = _equal_to(where.args[0], part == 1, over)
        if number is None or none.op != "constant" or none.attr != 0:
            continue
        if any(v.op == "load" and v.attr[0].role != "operand" for v in values_in(x)) or _gathers(values, x, over):
            return None                                             # what a turn has made is in the threads that made it
        wide = number if number.dtype == i64 else values.make("cast", i64, number)
        inside = values.make("and", bool_, values.make("at_least", bool_, wide, values.index(0, i64)),
                             values.make("less", bool_, wide, values.index(over.size, i64)))
        at = values.gather(values.make("where", i64, inside, wide, values.constant(0, i64)), over.size)
        read = _rewritten(values, x, partial(_put, name=over.name, by=at), inside)
        value = values.make("where", s.value.dtype, inside, read, values.constant(0, s.value.dtype))
        return replace(s, value=value, does=None, note=f"{s.note} of what one index selects")
    return None


def _equal_to(condition: Value, holds: bool, over: Axis) -> Value | None:
    """Return the value that an axis equals wherever `condition` is true (holds=False: false); None for another condition."""
    while condition.op == "xor" and condition.args[1].op == "constant" and condition.args[1].attr is True:
        condition, holds = condition.args[0], not holds
    if condition.op != "not_equal" or holds or over.symbol == 0:
        return None
    for i, other in (condition.args, condition.args[::-1]):
        if i.op == "index" and i.attr == over.symbol and i.dtype.is_integer and d.bounds(over.size)[1] <= i.dtype.max \
                and over.name not in other.symbols and other.dtype.name != "u64":
            return other
    return None


def _gathers(values: Values, value: Value, axis: Axis) -> bool:
    """Return whether a value reads at an index that is itself loaded from memory along an axis."""
    return any(axis.name in v.symbols for name, v in values.gathered.items() if name in value.symbols)


def _put(x: Dim, name: str, by: Dim) -> Dim:
    return d.substitute(x, {name: by}) if isinstance(x, d.Expr) and name in x.symbols else x


# ---- pieces of an axis -----------------------------------------------------------------------------------------------------------


def _in_pieces(values: Values, nest: Nest, every: list[Stage]) -> list[Stage]:
    """Return the stages of a nest with those that store cut into pieces, where that decides all conditions along their axis."""
    stages = [s for s in every if s.target.role == "output"]
    before = every[:len(every) - len(stages)]                       # what the stores read, as the sum of a row
    if [*before, *stages] != every or not stages:
        return every
    if any(s.monoid is not None or s.level != len(nest.axes) or not s.axes or s.axes != stages[0].axes for s in stages):
        return every
    axis = stages[0].axes[-1]
    if any(_made_along(v, axis) for s in stages for v in values_in(s.value)):
        return every
    if not d.is_static(axis.size) or any(_gathers(values, s.value, axis) for s in stages):
        return every
    size = int(d.evaluate(axis.size, {}))
    places = {p for s in stages for v in values_in(s.value) if (p := _changes_at(v, axis)) is not None and 0 < p < size}
    if not places:
        return every
    step = min(places)
    if size % step or any(p % step for p in places) or not 1 < size // step <= PIECES:
        return every
    inner = Axis(f"{axis.name}h", step)
    pieces = []
    for piece in range(size // step):
        for s in stages:
            at = inner.symbol + piece * step
            value = _rewritten(values, s.value, partial(_put, name=axis.name, by=at), None)
            pieces.append(Stage(s.target, _put(s.index, axis.name, at), (*s.axes[:-1], inner), value, s.level, note=s.note))
    return every if any(_changes_at(v, inner) is not None for s in pieces for v in values_in(s.value)) else [*before, *pieces]


def _made_along(v: Value, axis: Axis) -> bool:
    """Return whether a value reads, along an axis, what another stage stored."""
    if v.op != "load" or v.attr[0].role == "operand":
        return False
    _, offset, inside = v.attr
    return axis.name in inside or (isinstance(offset, d.Expr) and axis.name in offset.symbols)


def _changes_at(v: Value, axis: Axis) -> int | None:
    """Return the index of an axis at which a condition changes; None where it is constant or depends on other axes."""
    over = margin(v)
    if over is None or not isinstance(over, d.Expr) or axis.name not in over.symbols:
        return None
    step = d.coefficient(over, axis.name)
    rest = over - axis.symbol * step if step in (1, -1) else None
    if rest is None or not d.is_static(rest):
        return None
    at = int(d.evaluate(rest, {}))
    return -at if step == 1 else at + 1


def margin(v: Value) -> Dim | None:
    """Return a dim that is ≥ 0 exactly where an index comparison holds; None for another condition."""
    if v.op not in ("at_least", "less"):
        return None
    numbers = []
    for a in v.args:
        number = a.attr if a.op in ("index", "constant") else None
        if number is None or isinstance(number, (bool, float)) or not a.dtype.is_integer:
            return None
        low, high = d.bounds(number)
        if low < a.dtype.min or high > a.dtype.max:
            return None
        numbers.append(number)
    left, right = numbers
    return left - right if v.op == "at_least" else right - left - 1


# ---- turns that are inside -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limits:
    """The iterations of a reduction that count. free: conditions that do not depend on the axis; along: pairs (coefficient, rest),
    where coefficient · axis + rest ≥ 0 must hold; value: the reduced value for these iterations."""

    free: tuple[Value, ...]
    along: tuple[tuple[int, Dim], ...]
    value: Value


def limits(values: Values, s: Stage, axis: Axis) -> Limits | None:
    """Return the limits of a reduction; None where a condition is no bound on indices, or where excluded elements count."""
    where = s.value
    if where.op != "where" or not _changes_nothing(s, where.args[2]):
        return None
    parts, asked = [where.args[0]], list[Value]()
    for v in parts:                                                 # those that it is made of are looked at behind it
        if v.op == "and" and v.dtype is bool_:
            parts += v.args
        else:
            asked.append(v)
    free, along = list[Value](), list[tuple[int, Dim]]()
    for v in asked:
        over = margin(v)
        if over is None:
            return None
        step = d.coefficient(over, axis.name)
        if not isinstance(step, int):
            return None
        if step:
            along.append((step, over - axis.symbol * step))
        elif isinstance(over, d.Expr) and axis.name in over.symbols:
            return None
        else:
            free.append(v)
    inside = _rewritten(values, where.args[1], lambda x: x, None, {*parts, *asked})
    return Limits(tuple(free), tuple(along), inside)


def _changes_nothing(s: Stage, v: Value) -> bool:
    """Return whether a value is the identity of a stage's monoid."""
    return v.op == "constant" and s.monoid in ("max", "sum") and bool(v.attr == identity_of(s.monoid, v.dtype))


def _rewritten(values: Values, root: Value, change: Callable[[Dim], Dim], guard: Value | None,
               true: Set[Value] = frozenset()) -> Value:
    """Return a value with `change` applied to its indices, and without conditions that this decides. guard: an additional condition
    for its loads. true: conditions known to hold."""
    cache: dict[Value, Value] = {v: values.constant(True, bool_) for v in true}

    def one(v: Value) -> Value:
        if v not in cache:
            cache[v] = made(v, tuple(one(a) for a in v.args))
        return cache[v]

    def made(v: Value, args: tuple[Value, ...]) -> Value:
        attr = v.attr
        if v.op == "index":
            attr = change(attr)
        elif v.op == "load":
            asked = [a for a in args if a.attr is not True or a.op != "constant"]
            if any(a.op == "constant" for a in asked):
                return values.constant(0, v.dtype)
            asked += [guard] if guard is not None else []
            both = asked[0] if len(asked) == 1 else values.make("and", bool_, *asked) if asked else None
            array, offset, inside = attr
            return values.make("load", v.dtype, *(() if both is None else (both,)), attr=(array, change(offset), inside))
        truth: Mapping[int, bool | None] = {i: a.attr if a.op == "constant" and isinstance(a.attr, bool) else None
                                            for i, a in enumerate(args)}
        if v.op == "where" and truth[0] is not None:
            return args[1] if truth[0] else args[2]
        if v.op == "and" and v.dtype is bool_ and any(t is not None for t in truth.values()):
            if False in truth.values():
                return values.constant(False, bool_)
            return args[1] if truth[0] else args[0]
        if v.op == "xor" and v.dtype is bool_ and None not in truth.values():
            return values.constant(truth[0] is not truth[1], bool_)
        out = values.make(v.op, v.dtype, *args, attr=attr)
        over = margin(out)
        if over is not None:
            if dim_ge(over, 0) is True:
                return values.constant(True, bool_)
            if dim_ge(-1, over) is True:
                return values.constant(False, bool_)
        return out

    return one(root)
