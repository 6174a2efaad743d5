"""skip_masked_blocks: a pass over blocks (online_reductions.py) skips blocks in which every element is masked.

Masked elements are −∞ unless index comparisons hold (causal order, a window). As −∞ does not change a maximum and has weight 0, a
block of −∞ changes nothing. The comparisons give the first and last block with an unmasked element, for all lanes together.

In: a pass, with or without lanes, that may skip hidden blocks (`OnePass.may_skip`).  Out: the program, which skips them.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from functools import partial

from tensor_graphs.codegen.default_schedule import Entangled, changed, moved
from tensor_graphs.codegen.loop_ir import Axis, Blocks, Reduce, Stage, StageProgram, Value
from tensor_graphs.codegen.lower import least_of
from tensor_graphs.codegen.passes.closed_form_count import all_of
from tensor_graphs.codegen.passes.online_reductions import OnePass, hidden_unless
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim


def without_hidden(program: StageProgram, one_pass: OnePass) -> StageProgram:
    """Return the program with the hidden blocks left out of its pass, or as it is where there are none.

    >>> from tensor_graphs.codegen.lower import lower_text
    >>> from tensor_graphs.codegen.passes.online_reductions import online
    >>> program, one_pass = online(lower_text("input q f32[256, 1, 8]", "output y = attention(q, q, q; scale=0.1, causal=true)"))
    >>> print(program)  # doctest: +ELLIPSIS
    nest over ...
        in turns of _r12p in 0..4:
        ...
    >>> print(without_hidden(program, one_pass))  # doctest: +ELLIPSIS
    nest over ...
        in turns of _r12pv in 0.._i4 // 64 + 1:
        ...
    """
    nest = next(n for n in program.nests if n.blocks is not None and n.blocks.axis == one_pass.blocks)
    assert nest.blocks is not None
    blocks, block = one_pass.blocks, one_pass.block
    most = next(s for s in nest.blocks.stages if s.monoid == "max")
    scores = next((s for s in nest.stages if most.value.op == "load" and s.target == most.value.attr[0]), most)
    hidden = hidden_unless(scores.value, one_pass.turn.name)
    if not one_pass.may_skip or hidden is None:
        return program
    low, high, end = _walked(hidden[1], one_pass, most.axes, {a.name for a in nest.axes} | {str(s) for s in program.dims})
    if low == 0 and high == blocks.size:
        return program
    seen = Axis(f"{blocks.name}v", d.dim_max(0, high - low))
    at = low + d.dim(seen.name, 0, max(d.bounds(blocks.size)[1] - 1, 0))
    turn = one_pass.turn
    if not isinstance(turn.size, int) or end != one_pass.size:
        turn = Axis(turn.name, d.dim_min(block, end - at * block))
    change, values = partial(moved, axis=blocks, at=at), program.values

    def axes(those: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(turn if a == one_pass.turn else a for a in those)

    def at_seen(s: Stage) -> Stage:
        does = replace(s.does, over=axes(s.reduce)) if isinstance(s.does, Reduce) else s.does
        return s.with_roots(lambda v: changed(values, v, change, {blocks.name}, seen.name), index=change(s.index),
                            axes=axes(s.axes), does=does)

    try:
        new = Blocks(seen, tuple(map(at_seen, nest.blocks.stages)))
    except Entangled:
        return program
    walked = f"of {d.format_dim(blocks.size)} blocks {d.format_dim(seen.size)} are walked, from {d.format_dim(low)} on"
    fewer = replace(nest, body=tuple(new if part is nest.blocks else part for part in nest.body))
    return program.made_of((fewer if other is nest else other for other in program.nests),
                           derivation=(*program.derivation, f"what is hidden weighs nothing: {walked}"))


def _walked(seen: Value, one_pass: OnePass, rows: Sequence[Axis], names: Set[str]) -> tuple[Dim, Dim, Dim]:
    """Return the first block with an element that is not hidden, the one after the last, and the end of its elements, as far as
    comparisons of the symbols `names` say. rows: the axes of what is computed beside each other."""
    blocks, block = one_pass.blocks, one_pass.block
    low: Dim = 0
    high: Dim = blocks.size
    end = one_pass.size
    for condition in all_of(seen):
        least = least_of(condition, True)                           # seen where this is at least 0
        step = None if least is None else d.coefficient(least, blocks.name)
        if least is None or step not in (block, -block):
            continue
        rest = least - step * blocks.symbol
        for axis in (one_pass.turn, *rows):
            by, longest = d.coefficient(rest, axis.name), block if axis is one_pass.turn else axis.size
            if not isinstance(by, int) or not isinstance(longest, int):
                break
            rest = rest - by * d.dim(axis.name, 0, longest - 1) + max(by, 0) * (longest - 1)
        if not {str(s) for s in d.symbols(rest)} <= names:
            continue
        if step > 0:
            low = d.dim_max(low, d.ceil_div(-rest, block))
        else:
            high, end = d.dim_min(high, rest // block + 1), d.dim_min(end, rest + 1)
    return low, high, end
