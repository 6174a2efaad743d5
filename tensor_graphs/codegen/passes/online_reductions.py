"""online_reductions: fuse reductions along one axis that depend on each other's results into one pass over the axis, by blocks.

The state kept between blocks is an element of a monoid: a maximum, and sums relative to it. Two elements (m, s) and (n, t) combine
to (M = max(m, n), s · H(m, M) + t · H(n, M)), where H is the factor on a sum when its maximum changes (`WEIGHTS`). A sum has an H
where its element is such a weight times something independent of the maximum. `REWRITES` bring elements into that form; `REFUSED`
lists examples without an H. The tables are expressions in the ops of stages. Tests prove each row as graphs, and compare each
derived program with the stage interpreter.

In: a program as lowered.  Out: the program with such a pass, and the steps recorded in `StageProgram.derivation`. Source of the
monoid: Milakov and Gimelshein, Online normalizer calculation for softmax, 2018; of the rule that such a factor makes two reductions
one: Gibbons, The third homomorphism theorem, 1996.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from tensor_graphs.codegen.default_schedule import Entangled, in_chunks
from tensor_graphs.codegen.loop_ir import (
    Array,
    Axis,
    Blocks,
    Nest,
    Reduce,
    Stage,
    StageProgram,
    Value,
    Values,
    flat,
    rewritten,
    symbols_of,
    values_in,
)
from tensor_graphs.language import dims as d
from tensor_graphs.language.dim_proofs import proved_equal
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, bool_

BLOCK = 64
"""iterations of the axis in one block"""

LONG = 1 << 18
"""bytes of a row from which on reading it again costs more than rescaling its sums; shorter rows fuse only for another gain"""


# ---- the tables ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SumRule:
    """A rewrite rule: left equals right if the letters in `same` do not depend on the reduced axis. Names are ops of stages,
    letters stand for any value."""

    name: str
    left: str
    right: str
    same: tuple[str, ...] = ()


REWRITES = (
    SumRule("a quotient out of a choice", "where(c, div(a, b), 0)", "div(where(c, a, 0), where(c, b, 1))", same=("b", "c")),
    SumRule("a quotient out of a product", "mul(div(a, b), c)", "div(mul(a, c), b)", same=("b",)),
    SumRule("a quotient out of a product", "mul(c, div(a, b))", "div(mul(c, a), b)", same=("b",)),
)

QUOTIENT = SumRule("a quotient out of a sum", "sum(div(a, b))", "div(sum(a), b)", same=("b",))


@dataclass(frozen=True)
class Weight:
    """A factor of a sum's elements that depends on the sum's maximum b. `left` at b = new equals `left` at b = old, times `factor`,
    where old and new are finite."""

    name: str
    left: str
    factor: str


WEIGHTS = (
    Weight("an exponential of a difference", "exp(add(x, mul(b, -1)))", "exp(add(old, mul(new, -1)))"),
    Weight("a power of two of a difference", "exp2(add(x, mul(b, -1)))", "exp2(add(old, mul(new, -1)))"),
)

REFUSED = (
    Weight("a hyperbolic tangent of a difference", "tanh(add(x, mul(b, -1)))", "exp(add(old, mul(new, -1)))"),
    Weight("a difference", "add(x, mul(b, -1))", "add(old, mul(new, -1))"),
)

AGAIN = 4
"""ops from which on the operand of the maximum is stored for its weights rather than computed again"""

FINITE = "where(less(max(b, mul(b, -1)), inf), b, 0)"
"""the base that weights subtract: the maximum, or 0 where that is not finite; a definition may contain this expression itself"""

CHANGED = "where(less(-inf, seen), f, 0)"
"""the factor on a sum when its maximum changes: 0 as long as the sum has seen only −∞, else f"""


# ---- words ---------------------------------------------------------------------------------------------------------------------


@cache
def parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def number_of(word: ast.expr) -> float | None:
    """Return the number that an expression denotes; None where it is an op or a letter."""
    if isinstance(word, ast.UnaryOp):
        inner = number_of(word.operand)
        return None if inner is None else -inner
    if isinstance(word, ast.Name) and word.id == "inf":
        return math.inf
    return float(word.value) if isinstance(word, ast.Constant) and isinstance(word.value, (int, float)) else None


def matched(word: ast.expr, value: Value, letters: dict[str, Value]) -> bool:
    """Match a value against an expression, and bind its letters in `letters`; return whether it matches."""
    number = number_of(word)
    if number is not None:
        return value.is_constant(number)
    if isinstance(word, ast.Name):
        return letters.setdefault(word.id, value) is value
    assert isinstance(word, ast.Call) and isinstance(word.func, ast.Name)
    return (value.op == word.func.id and len(value.args) == len(word.args)
            and all(matched(w, v, letters) for w, v in zip(word.args, value.args, strict=True)))


def built(values: Values, word: ast.expr, letters: dict[str, Value], dtype: DType) -> Value:
    """Build the value of an expression, computed in a dtype; comparisons give bool."""
    number = number_of(word)
    if number is not None:
        return values.constant(number, dtype)
    if isinstance(word, ast.Name):
        return letters[word.id]
    assert isinstance(word, ast.Call) and isinstance(word.func, ast.Name)
    args = [built(values, w, letters, dtype) for w in word.args]
    return values.make(word.func.id, bool_ if word.func.id == "less" else dtype, *args)


# ---- what is derived -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OnePass:
    """A pass over `size` elements of an axis. blocks: the axis of its blocks; turn: the axis within a block, of at most `block`
    iterations. may_skip: blocks whose elements are all hidden may be skipped."""

    size: Dim
    block: int
    blocks: Axis
    turn: Axis
    may_skip: bool


def online(program: StageProgram, block: int = BLOCK) -> tuple[StageProgram, OnePass] | None:
    """Return the program with the first nest that can be one pass fused, and that pass; None where there is no such nest. block:
    iterations per block.

    >>> from tensor_graphs.codegen.lower import lower_text
    >>> program = lower_text("input x f32[5, 256]", "output y = sum(softmax(x) * x; axes=(1,))")
    >>> print(program)
    nest over _i0 in 0..5
        t3[0] = max over _r4 in 0..256 of x0[256*_i0 + _r4]
        t2[_j3] = exp((x0[256*_i0 + _j3] + (t3[0] * -1.0)))    over _j3 in 0..256
        t1[0] = sum over _r2 in 0..256 of t2[_r2]
        y0[_i0] = sum over _r1 in 0..256 of (div(t2[_r1], t1[0]) * x0[256*_i0 + _r1])
    >>> print(online(program)[0])  # doctest: +ELLIPSIS
    nest over _i0 in 0..5
        ...
        in turns of _r4p in 0..4:
            ...
            t3[0] = max of what it holds and all over _r4q in 0..64 of x0[256*_i0 + 64*_r4p + _r4q]
            ...
            t2[_r4q] = exp((x0[256*_i0 + 64*_r4p + _r4q] + (t3_base[0] * -1.0)))    over _r4q in 0..64
            t1_sum[0] = sum of what it holds * t3_change[0] and all over _r4q in 0..64 of t2[_r4q]
            y0_sum[0] = sum of what it holds * t3_change[0] and all over _r4q in 0..64 of (t2[_r4q] * x0[256*_i0 + 64*_r4p + _r4q])
        ...
    """
    for nest in program.nests:
        for stage in nest.stages:
            if stage.monoid == "max" and stage.scan is None and len(stage.reduce) == 1 and stage.value.dtype.is_float:
                fusion = _PassOfNest(program, nest, stage, block)
                result = fusion.derived()
                if result is not None:
                    fused, one_pass = result
                    nests = tuple(fused if other is nest else other for other in program.nests)
                    derivation = (*program.derivation, *fusion.said)
                    return _stored_at_once(program.made_of(nests, derivation=derivation), fused), one_pass
    return None


def hidden_unless(value: Value, turn: str) -> tuple[Value | None, Value] | None:
    """Return (where, seen) for an element that is −∞ unless `seen`, wherever `where` holds (None: everywhere). `where` does not
    depend on the summed axis. None for another element."""
    if value.op != "where":
        return None
    condition, one, other = value.args
    if other.is_constant(-math.inf):
        return None, condition
    if not one.is_constant(-math.inf):
        return None
    if condition.op == "xor" and condition.args[1].is_constant(True):
        return None, condition.args[0]
    for where, negated in (condition.args, condition.args[::-1]) if condition.op == "and" else ():
        if negated.op == "xor" and negated.args[1].is_constant(True) and turn not in where.symbols:
            return where, negated.args[0]
    return None


def _stored_at_once(program: StageProgram, nest: Nest) -> StageProgram:
    """Return the program with a result of the nest stored directly where another nest would only copy it, element by element."""
    for s in nest.stages:
        copies = [(n, c) for n in program.nests for c in n.stages if s.target in _read_by(c)]
        whole = s.target.role == "scratch" and s.target.level == 0 and s.monoid is None
        if not whole or len(copies) != 1 or copies[0][0] is nest:
            continue
        ((other, copy),) = copies
        loads = [v for v in values_in(copy.value) if v.op == "load"]
        if len(other.stages) != 1 or copy.monoid is not None or len(loads) != 1 or loads[0].args:
            continue
        theirs, ours = (*other.axes[:copy.level], *copy.axes), (*nest.axes[:s.level], *s.axes)
        (read, at, _) = loads[0].attr
        named = {a.name: next((b for b in ours if proved_equal(a.size, b.size)
                               and d.coefficient(at, a.name) == d.coefficient(s.index, b.name)), None)
                 for a in theirs if a.symbol != 0}
        wanted = [b for b in ours if b.symbol != 0]
        if None in named.values() or len(set(named.values())) != len(wanted) or len(named) != len(wanted):
            continue
        to = {name: b.symbol for name, b in named.items() if b is not None}
        if not proved_equal(d.substitute(at, to), s.index):
            continue
        placed = replace(s, target=copy.target, index=d.substitute(copy.index, to),
                         value=_with(program.values, copy.value, loads[0], s.value))
        fewer = nest.mapped(lambda stage, s=s, placed=placed: [placed if stage is s else stage])    # type: ignore[misc]
        return program.made_of((fewer if n is nest else n for n in program.nests if n is not other),
                               derivation=(*program.derivation, f"stored at once: {copy.target} is {read}, put elsewhere"))
    return program


class _NotDerived(Exception):
    """Signal that reductions cannot be fused."""


class _PassOfNest:
    """The reductions of one nest along one axis; `most` is the maximum on which the others depend."""

    def __init__(self, program: StageProgram, nest: Nest, most: Stage, block: int) -> None:
        self.program, self.nest, self.most, self.values = program, nest, most, program.values
        self.level, (self.axis,), self.block = most.level, most.reduce, block
        self.said: list[str] = []

    def derived(self) -> tuple[Nest, OnePass] | None:
        """Return the nest as one pass; None where its reductions do not fuse."""
        most = self.most
        if not self.level or most.axes or most.target.role != "scratch" or most.target.level != self.level or self.axis.size == 1:
            return None
        blocks, turn, change = in_chunks(self.axis, self.block)
        try:
            body, may_skip = self.in_turns(self.members(), blocks, turn, change)
        except (_NotDerived, Entangled):
            return None
        nest = replace(self.nest, axes=self.nest.axes[:self.level], body=body)
        return nest, OnePass(self.axis.size, self.block, blocks, turn, may_skip)

    # ---- which stages ----

    def members(self) -> list[Stage]:
        """Return the stages that need only one iteration of the axis at a time: elements, the maximum, sums that depend on it.
        Raises _NotDerived."""
        elements = {s.target: s for s in self.nest.stages if self.is_element(s)}
        sums = [s for s in self.nest.stages if s.monoid == "sum" and s.scan is None and self.along(s) is not None
                and self.most.target in self.read(s, elements)]
        if not sums:
            raise _NotDerived
        wanted = {self.most, *sums}
        for s in reversed(self.nest.stages):
            if s in wanted:
                wanted |= {elements[a] for a in _read_by(s) if a in elements}
        for s in self.nest.stages:
            if s not in wanted and any(elements.get(a) in wanted for a in _read_by(s)):
                raise _NotDerived                                   # somebody wants all of them
        return [s for s in self.nest.stages if s in wanted]

    def is_element(self, s: Stage) -> bool:
        return (s.level == self.level and s.target.role == "scratch" and s.target.level == self.level and len(s.axes) == 1
                and s.scan is None and proved_equal(s.axes[0].size, self.axis.size) and s.index == s.axes[0].symbol)

    def along(self, s: Stage) -> Axis | None:
        """Return the reduced axis of a stage if it is as long as the maximum's; else None."""
        same = len(s.reduce) == 1 and s.level >= self.level and proved_equal(s.reduce[0].size, self.axis.size)
        return s.reduce[0] if same else None

    def read(self, s: Stage, elements: dict[Array, Stage]) -> set[Array]:
        """Return the arrays that a stage reads, directly or through elements."""
        arrays: set[Array] = set()
        todo = [s]
        while todo:
            new = _read_by(todo.pop()) - arrays
            arrays |= new
            todo += [elements[a] for a in new if a in elements]
        return arrays

    # ---- one after another ----

    def in_turns(self, members: Sequence[Stage], blocks: Axis, turn: Axis,
                 change_to: Callable[[Dim], Dim]) -> tuple[tuple[Stage | Blocks, ...], bool]:
        """Return the nest's body with the members fused into one pass, and whether the pass may skip hidden blocks. Raises
        _NotDerived, Entangled."""
        values, level = self.values, self.level
        elements = {s.target: replace(s.target, size=self.block) for s in members if self.is_element(s)}
        at = d.dim(turn.name, 0, self.block - 1)
        names = frozenset(a.name for a in self.nest.axes[:level])
        dtype = self.most.value.dtype

        def number(suffix: str) -> tuple[Array, Value]:
            array = Array(f"{self.most.target.name}_{suffix}", "scratch", 0, dtype, 1, level)
            return array, values.make("load", dtype, attr=(array, 0, names))

        now = values.make("load", dtype, attr=(self.most.target, 0, names))
        (seen, was), (base, taken), (last_base, took), (change, factor) = map(number, ("seen", "base", "last", "change"))
        first: list[Stage] = []
        inside: list[Stage] = []
        last: list[Stage] = []
        weighed: dict[Array, str] = {}                              # an element that is a weight, and of which kind
        bases: dict[str, Value] = {}
        done: set[Array] = set()                                    # sums, which no turn may read
        hidden: tuple[Value | None, Value] | None = None
        again: list[Value] = []                                     # what the maximum is of, and where that is kept
        where: Value | None = None                                  # where an element may be hidden
        doubted = [self.most.target]                                # what means nothing elsewhere, once hidden blocks are left out
        for member in members:
            s = self.at_level(member)
            own = s.axes[0] if s.target in elements else s.reduce[0]
            if any(a in done for a in _read_by(s)) and s.target in elements:
                raise _NotDerived

            def moved(v: Value, own: Axis = own) -> Value:
                return self.at_turn(v, own, turn, change_to, elements)

            if s.target in elements:
                value = _with(values, moved(s.value), *again) if again else moved(s.value)
                kind, value = self.weight(value, turn.name, now, taken, weighed, bases)
                if kind:
                    if s.reduce:
                        raise _NotDerived
                    weighed[elements[s.target]] = kind
                inside.append(replace(s, target=elements[s.target], axes=(turn,), index=at, value=value))
                continue
            value = moved(s.value)
            if member is self.most:
                if self.most.target in _loads(value):
                    raise _NotDerived
                most = replace(s, value=self.once(value, at, turn, inside, again), does=Reduce((turn,), "max", held=1))
                hidden = hidden_unless(value, turn.name)
                where = None if hidden is None else hidden[0]
                first += [self.begun(s.target, (), -math.inf), self.begun(base, (), 0.0)]
                inside += [Stage(seen, 0, (), now, level, note="the maximum before"),
                           Stage(last_base, 0, (), taken, level, note="what weights were taken from"), most]
                continue
            value, divisors = self.without_divisors(value, {turn.name})
            kind, value = self.weight(value, turn.name, now, taken, weighed, bases)
            if done & set(_loads(value)):
                raise _NotDerived
            held = Array(f"{s.target.name}_sum", "scratch", 0, value.dtype, d.product(a.size for a in s.axes), level)
            first.append(self.begun(held, s.axes, 0.0))
            index = first[-1].index
            inside.append(Stage(held, index, s.axes, value, level, Reduce((turn,), "sum", factor if kind else 1), s.note))
            result: Value = values.make("load", held.dtype, attr=(held, index, names))
            if kind:
                raw, result = result, self.corrected(result, kind, bases, taken)
                if where is not None and _is_chosen(value, where):
                    result = values.make("where", result.dtype, where, result, raw)
                else:
                    doubted.append(held)
            for by in divisors:
                result = values.make("div", result.dtype, result, by)
            last.append(Stage(s.target, s.index, s.axes, result, level, note=f"{s.note}, done"))
            done.add(s.target)
        if len(bases) != 1 or not (elements or d.bounds(self.axis.size)[1] * dtype.itemsize > LONG):
            raise _NotDerived
        ((kind, of),) = bases.items()
        by = built(values, parsed(CHANGED), {"seen": was, "f": self.factor(kind, took, taken)}, dtype)
        place = next(i for i, s in enumerate(inside) if s is most) + 1
        inside[place:place] = [Stage(base, 0, (), self.finite(of), level, note="what weights are taken from"),
                               Stage(change, 0, (), by, level, note="what sums change by")]
        self.said.append(f"{kind}: when the maximum changes, sums of it change by {by}")
        self.said.append(f"elements at their own turn: {', '.join(sorted(a.name for a in elements)) or 'none are kept'}; "
                         f"{len(inside)} stages are one pass over {self.axis.name}, {self.block} at a time")
        others = [s for s in self.nest.stages if s not in members]
        late: set[Array] = {s.target for s in last} | {self.most.target}
        early = []
        for s in others:
            if s.level > level and s.target.role == "scratch" and s.target.level > level:
                raise _NotDerived
            s = self.at_level(s)
            if s.level == level and late & _read_by(s):
                late.add(s.target)
                last.append(s)
            else:
                early.append(s)
        may_skip = hidden is not None and (where is None or all(_only_where(where, array, last) for array in doubted))
        return (*early, *first, Blocks(blocks, tuple(inside)), *last), may_skip

    def at_level(self, s: Stage) -> Stage:
        """Return a stage with the axes of the nest inside of the pass as its own."""
        return s if s.level <= self.level else replace(s, axes=(*self.nest.axes[self.level:s.level], *s.axes), level=self.level)

    def once(self, value: Value, at: Dim, turn: Axis, inside: list[Stage], again: list[Value]) -> Value:
        """Return the operand of the maximum. If computing it costs more than a read, it is stored for the stages that need it
        again."""
        if sum(v.op not in ("constant", "index", "load") for v in values_in(value)) < AGAIN:
            return value
        held = Array(f"{self.most.target.name}_of", "scratch", 0, value.dtype, self.block, self.level)
        inside.append(Stage(held, at, (turn,), value, self.level, note="what the maximum is of"))
        names = frozenset(a.name for a in self.nest.axes[:self.level])
        again += [value, self.values.make("load", value.dtype, attr=(held, at, names))]
        return again[1]

    def at_turn(self, value: Value, own: Axis, turn: Axis, change: Callable[[Dim], Dim],
                elements: Mapping[Array, Array]) -> Value:
        """Return a value with its axis split into a block and an iteration; elements are read where this iteration stored them.
        Raises _NotDerived, Entangled."""
        values = self.values

        def moved(x: Dim) -> Dim:
            index = change(d.substitute(x, {own.name: self.axis.symbol}))
            if {own.name, self.axis.name} & symbols_of(index, values.gathered):
                raise _NotDerived                                   # by way of an index that is read
            return index

        def one(v: Value, args: tuple[Value, ...]) -> Value:
            attr = v.attr
            if v.op == "load" and v.attr[0] in elements:
                if v.attr[1] != own.symbol:
                    raise _NotDerived
                attr = (elements[v.attr[0]], d.dim(turn.name, 0, self.block - 1), v.attr[2])
            elif v.op == "load":
                attr = (v.attr[0], moved(v.attr[1]), v.attr[2])
            elif v.op == "index":
                attr = moved(v.attr)
            return values.remade(v, args, attr)

        return rewritten(value, one)

    def begun(self, target: Array, axes: tuple[Axis, ...], value: float) -> Stage:
        return Stage(target, flat(axes), axes, self.values.constant(value, target.dtype), self.level, note="before the first turn")

    # ---- rules at work ----

    def without_divisors(self, value: Value, inner: set[str]) -> tuple[Value, list[Value]]:
        """Return an element without the divisors that do not depend on the axes `inner`, and these divisors."""
        rewritten = self.rewritten(value, inner)
        divisors = []
        while rewritten.op == "div" and not rewritten.args[1].symbols & inner:
            self.note(QUOTIENT)
            divisors.append(rewritten.args[1])
            rewritten = rewritten.args[0]
        return rewritten, divisors[::-1]

    def note(self, rule: SumRule) -> None:
        line = f"{rule.name}: {rule.left} is {rule.right}"
        if line not in self.said:
            self.said.append(line)

    def rewritten(self, value: Value, inner: set[str]) -> Value:
        """Return a value after applying REWRITES bottom-up until none matches."""
        args = tuple(self.rewritten(a, inner) for a in value.args)
        v = self.values.remade(value, args)
        for rule in REWRITES:
            letters: dict[str, Value] = {}
            if matched(parsed(rule.left), v, letters) and not any(letters[x].symbols & inner for x in rule.same):
                self.note(rule)
                return self.rewritten(built(self.values, parsed(rule.right), letters, v.dtype), inner)
        return v

    def weight(self, v: Value, turn: str, now: Value, taken: Value, weighed: dict[Array, str],
               bases: dict[str, Value]) -> tuple[str, Value]:
        """Return (kind, value): the kind of weight that is a factor of a value ("" without one), and the value with that weight
        relative to `taken`, a finite base. Raises _NotDerived where it depends on the maximum in another way."""
        if v.op == "load" and v.attr[0] in weighed:
            return weighed[v.attr[0]], v
        if not _depends(v, now, set(weighed)):
            return "", v
        for row in WEIGHTS:
            letters: dict[str, Value] = {}
            if not matched(parsed(row.left), v, letters):
                continue
            x, b = letters["x"], letters["b"]
            if turn in b.symbols or _depends(x, now, set(weighed)) or not _depends(b, now, set()):
                raise _NotDerived
            if bases.setdefault(row.name, b) is not b:
                raise _NotDerived
            return row.name, built(self.values, parsed(row.left), {"x": x, "b": taken}, v.dtype)
        if v.op == "mul":
            weights = [self.weight(a, turn, now, taken, weighed, bases) for a in v.args]
            kinds = [kind for kind, _ in weights if kind]
            if len(kinds) > 1:
                raise _NotDerived                                   # it would change by the factor's square
            return kinds[0] if kinds else "", self.values.make("mul", v.dtype, *(x for _, x in weights))
        if v.op == "where" and not _depends(v.args[0], now, set(weighed)) and v.args[2].is_constant(0):
            kind, x = self.weight(v.args[1], turn, now, taken, weighed, bases)
            return kind, self.values.make("where", v.dtype, v.args[0], x, v.args[2])
        raise _NotDerived

    def finite(self, base: Value) -> Value:
        """Return a base, or 0 where it may not be finite."""
        if matched(parsed(FINITE), base, {}):
            return base
        return built(self.values, parsed(FINITE), {"b": base}, base.dtype)

    def factor(self, kind: str, old: Value, new: Value) -> Value:
        row = next(row for row in WEIGHTS if row.name == kind)
        return built(self.values, parsed(row.factor), {"old": old, "new": new}, new.dtype)

    def corrected(self, result: Value, kind: str, bases: dict[str, Value], taken: Value) -> Value:
        """Return a sum of weights relative to the finite base `taken`, converted to weights relative to the original base."""
        base = bases[kind]
        if self.finite(base) is base:
            return result
        return self.values.make("mul", result.dtype, result, self.factor(kind, taken, base))


def _with(values: Values, value: Value, old: Value, new: Value) -> Value:
    """Return a value with one of its subexpressions, `old`, replaced by `new`."""
    return rewritten(value, lambda v, args: new if v is old else values.remade(v, args))


def _is_chosen(value: Value, where: Value) -> bool:
    """Return whether an element is, or has as a factor, a selection that is 0 where `where` does not hold."""
    if value.op == "mul":
        return any(_is_chosen(a, where) for a in value.args)
    return value.op == "where" and value.args[0] is where and value.args[2].is_constant(0)


def _only_where(where: Value, array: Array, stages: Sequence[Stage]) -> bool:
    """Return whether the nest's results depend on an array only where a condition holds."""
    def covered(v: Value) -> bool:
        if v.op == "load" and v.attr[0] is array:
            return False
        return all(covered(a) for a in (v.args[2:] if v.op == "where" and v.args[0] is where else v.args))

    return all(covered(s.value) or (s.target.role == "scratch" and _only_where(where, s.target, stages))
               for s in stages if array in _read_by(s))


def _depends(value: Value, now: Value, weighed: set[Array]) -> bool:
    return any(v.op == "load" and (v.attr[0] is now.attr[0] or v.attr[0] in weighed) for v in values_in(value))


def _loads(value: Value) -> Iterable[Array]:
    return (v.attr[0] for v in values_in(value) if v.op == "load")


def _read_by(s: Stage) -> set[Array]:
    return {a for root in s.roots() for a in _loads(root)}
