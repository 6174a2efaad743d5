"""divide_axes: an axis whose index is divided by constants becomes an axis for each digit, so that loops compute no quotients.

The elements of a window, which a reshape has counted in one, are then a row and a column of it, and conditions on the border of
an image are bounds of their loops (split_at_conditions.py).

In: an arranged program.  Out: the program with such axes divided; only the order of sums may change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from tensor_graphs.codegen.default_schedule import changed, dims_of
from tensor_graphs.codegen.loop_ir import Axis, Reduce, Stage, StageProgram, flat
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim


def divided(program: StageProgram) -> StageProgram:
    """Return the program with the axes of its stages divided.

    >>> from tensor_graphs.codegen.lower import lower_text
    >>> program = lower_text("input x f32[2, 4, 5]", "input b f32[2, 4]",
    ...     "output y = sum(reshape(x * expand(reshape(b; shape=(2, 4, 1)); shape=(2, 4, 5)); shape=(2, 20)); axes=(1,))")
    >>> print(program)
    nest over _i0 in 0..2
        y0[_i0] = sum over _r1 in 0..20 of (x0[20*_i0 + _r1] * x1[4*_i0 + _r1 // 5])
    >>> print(divided(program))
    nest over _i0 in 0..2
        y0[_i0] = sum over _r1d in 0..4, _r1e in 0..5 of (x0[20*_i0 + 5*_r1d + _r1e] * x1[4*_i0 + _r1d])
    """
    nests = (nest if nest.tile is not None else nest.mapped(lambda s: [_divided(program, s)]) for nest in program.nests)
    return program.made_of(nests)


def _divided(program: StageProgram, s: Stage) -> Stage:
    if s.scan is not None or s.product is not None:
        return s
    for axis in (*(s.axes if s.level else ()), *s.reduce):          # the axes of a nest of one turn are shared by threads
        if any(axis.name in v.symbols for v in program.gathered.values()):
            continue
        digits = digits_of(axis, dims_of(program, s))
        if len(digits) > 1:
            s = in_digits(program, s, axis, digits)
    return s


def in_digits(program: StageProgram, s: Stage, axis: Axis, digits: tuple[Axis, ...]) -> Stage:
    """Return a stage with an axis replaced by its digits."""
    change = partial(d.substitute, mapping={axis.name: flat(digits)})
    names, last = frozenset({axis.name}), digits[-1].name

    def axes(old: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(new for a in old for new in (digits if a == axis else (a,)))

    does = replace(s.does, over=axes(s.reduce)) if isinstance(s.does, Reduce) else s.does
    return s.with_roots(lambda v: changed(program.values, v, change, names, last), index=change(s.index), axes=axes(s.axes),
                        does=does)


def digits_of(axis: Axis, dims: Iterable[Dim]) -> tuple[Axis, ...]:
    """Return the axes that count an axis in the constants by which dims divide its index: the last one fastest. Only the axis
    itself where these are no multiples of each other."""
    if not isinstance(axis.size, int):
        return (axis,)
    sizes, rest = list[int](), 1
    for c in (*sorted({c for x in dims for c in _divisors(x, axis.symbol)}), axis.size):
        if c % rest:
            return (axis,)
        sizes.append(c // rest)
        rest = c
    sizes = [n for n in sizes if n > 1]
    letters = "defghijk"
    if not 1 < len(sizes) <= len(letters):
        return (axis,)
    return tuple(Axis(axis.name + letters[i], n) for i, n in enumerate(reversed(sizes)))


def _divisors(x: Dim, of: Dim) -> Iterator[int]:
    """Yield the constants by which a dim divides another one."""
    for monomial, _ in x.terms if isinstance(x, d.Expr) else ():
        for atom in monomial:
            if isinstance(atom, d.Call):
                if atom.fn == "floordiv" and atom.args[0] == of and isinstance(atom.args[1], int):
                    yield atom.args[1]
                for arg in atom.args:
                    yield from _divisors(arg, of)
