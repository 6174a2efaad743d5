"""split_differences: x − m of many x in f32 and one m in f64, as a norm's, is computed in f32 from both halves of m.

    f64(x) + c    →    f64((x + high(c)) + low(c))                  c = high(c) + low(c), a number that no axis of the stage changes

The first sum is exact where x and c nearly cancel (P. H. Sterbenz, "Floating-point computation", 1974), so that the result is off
by two roundings to f32. A GPU has half as many units for f64, and its numbers take two registers.

In: a program for a GPU.  Out: the same with such sums in f32; a cast of one back to f32 is gone.
"""

from __future__ import annotations

from tensor_graphs.codegen.loop_ir import Stage, StageProgram, Value, rewritten
from tensor_graphs.language.dtypes import f32, f64


def with_split_differences(program: StageProgram) -> StageProgram:
    """Return the program with differences from numbers in f64 computed in f32.

    >>> from tensor_graphs.codegen.lower import lower_text
    >>> program = lower_text("input x f32[4, 800]", "output y = layer_norm(x)")
    >>> print(str(with_split_differences(program)).split("y0")[0])
    nest over _i0 in 0..4
        t2[0] = sum over _r3 in 0..800 of cast(x0[800*_i0 + _r3])
        t1[0] = sum over _r2 in 0..800 of (v42 * v42)
            where v26 = ((t2[0] * reciprocal(800.0)) * -1.0)
            where v42 = cast(((x0[800*_i0 + _r2] + high(v26)) + low(v26)))
    <BLANKLINE>
    """
    def of_stage(s: Stage) -> list[Stage]:
        return [s.with_roots(lambda root: _split(program, s, root))]

    return program.mapped(of_stage)


def _split(program: StageProgram, s: Stage, root: Value) -> Value:
    own, make = {a.name for a in (*s.axes, *s.reduce)}, program.values.make

    def change(v: Value, args: tuple[Value, ...]) -> Value:
        if v.op == "add" and v.dtype is f64:
            for x, c in (args, args[::-1]):
                if x.op == "cast" and x.args[0].dtype is f32 and not own.isdisjoint(x.symbols) and own.isdisjoint(c.symbols):
                    first = make("add", f32, x.args[0], make("high", f32, c))
                    return make("cast", f64, make("add", f32, first, make("low", f32, c)))
        if v.op == "cast" and v.dtype is f32 and args[0].op == "cast" and args[0].dtype is f64 and args[0].args[0].dtype is f32:
            return args[0].args[0]
        return make(v.op, v.dtype, *args, attr=v.attr)

    return rewritten(root, change)
