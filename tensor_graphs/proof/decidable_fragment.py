"""decidable_fragment: the ops and operands for which agreement at random points is a proof, as one table.

`TABLE` has a row for each op and kind of operand: *proved* (what agrees at the points is equal everywhere, with the reason),
*tested* (it is equal at the sizes and points compared, and may differ at others) or *unknown* (nothing can be compared).
docs/equality.md prints the table; decision 0014 has the argument.

Kinds of operand: *constant* (the same at every size and for all inputs), *position* (a size, an index along an axis, or the
difference of two), *size* (any other value computed from sizes alone), *given* (an input integer or boolean, moved or selected),
*computed* (integers computed from given ones), *bool* (results of comparing the above), *real* (a float that depends on inputs).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import leaves
from tensor_graphs.language.dims import Call, Expr, symbols
from tensor_graphs.language.dims import evaluate as evaluate_dim
from tensor_graphs.language.node import ArrayValue, Node
from tensor_graphs.meaning.algebra import Array
from tensor_graphs.meaning.interpreter import evaluate
from tensor_graphs.proof.integer_inputs import IntegerInputs, Kind
from tensor_graphs.proof.sizes import closed

_MOST_VALUES = 1 << 21
"""Most elements of nodes without leaves that are evaluated to find literals."""

Operand = Literal["constant", "position", "size", "given", "computed", "bool", "real"]
Answer = Literal["proved", "tested", "unknown"]

OPERANDS: tuple[Operand, ...] = ("constant", "position", "size", "given", "computed", "bool", "real")


@dataclass(frozen=True)
class Row:
    """A row of the table: the answer for some ops on operands of these kinds (what agreement at points means), and its reason."""

    ops: tuple[str, ...]
    operands: tuple[Operand, ...]
    answer: Answer
    reason: str


_MOVES = ("reshape", "permute", "expand", "slice", "pad")
_FIELD = ("add", "mul", "sum", "dot", "reciprocal")
_ORDER = ("less", "not_equal", "max", "reduce_max")

TABLE: tuple[Row, ...] = (
    Row((*_MOVES, "iota"), OPERANDS, "proved", "an element of the result is one of the operand, at a place that sizes determine"),
    Row(("where",), OPERANDS, "proved", "one of two operands, and every condition is drawn both ways"),
    Row((*_FIELD, "exp2", "log2", "sqrt"), ("constant",), "proved",
        "exact: fractions and roots of fractions with their signs; ln 2 and π are unknowns"),
    Row(_FIELD, ("position", "size"), "proved", "polynomials of sizes and positions, seen on a lattice on which only 0 vanishes"),
    Row(("add", "mul", "sum"), ("given", "computed"), "proved",
        "polynomials modulo 2^k: of degree d in an integer, at least 2^-(1 + log2 d) of all values show a difference"),
    Row(_FIELD, ("real",), "proved", "rational functions: random residues are roots of none (Schwartz and Zippel)"),
    Row(("exp2", "log2"), ("real",), "proved", "homomorphisms between residues; where no residues are left, random functions"),
    Row(("sqrt",), ("real",), "proved", "the root that is a square; signs that other roots determine are choices"),
    Row(("exp2", "log2", "sqrt"), ("position", "size"), "tested", "exponentials and roots of sizes have no bound on their zeros"),
    Row(("sin", "erf"), OPERANDS, "proved", "random odd functions: equal operands, equal results"),
    Row(("floor",), ("real",), "proved", "a random function: equal operands, equal results"),
    Row(("floor",), ("constant",), "proved", "exact"),
    Row(("floor",), ("position", "size"), "tested", "steps at sizes that were not looked at"),
    Row(_ORDER, ("constant",), "proved", "exact: equal residues are ties, and float64 decides gaps larger than its bound (below)"),
    Row(("less", "not_equal"), ("position",), "proved", "every order of so many positions occurs at the sizes looked at"),
    Row(_ORDER, ("size",), "tested", "it may come out otherwise at sizes that were not looked at"),
    Row(("max", "reduce_max"), ("position",), "tested", "it may come out otherwise at sizes that were not looked at"),
    Row(_ORDER, ("given",), "proved", "values are drawn at every threshold, next to it and between any two"),
    Row(("less", "not_equal", "max"), ("computed",), "proved", "random functions of their operands; max and ≠ commute"),
    Row(("reduce_max",), ("computed",), "unknown", "nothing is known of its order"),
    Row(_ORDER, ("real",), "proved", "a random order; where comparisons go both ways, one with ties as well"),
    Row(("not_equal", "and", "xor"), ("bool",), "proved", "every combination is drawn"),
    Row(("less", "reduce_max"), ("bool",), "proved", "whether there is a place of some kind: numbers of such places against 0"),
    Row(("and", "xor"), ("constant",), "proved", "exact"),
    Row(("and", "xor"), ("position", "size"), "tested", "bits of sizes that were not looked at"),
    Row(("and", "xor"), ("given", "computed"), "proved",
        "functions of single bits: of degree d in the bits of an integer, at least 2^-d of all values show a difference"),
    Row(("idiv",), ("constant",), "proved", "exact"),
    Row(("idiv",), ("position", "size"), "tested", "steps at sizes that were not looked at"),
    Row(("idiv",), ("given", "computed"), "proved", "by a power of two a shift of bits, else a random function of the operands"),
    Row(("cast to float",), ("constant", "position", "size", "given", "bool", "real"), "proved", "the same number"),
    Row(("cast to float",), ("computed",), "proved", "of 8 and 16 bits the number; of more a random function of it"),
    Row(("cast to int",), ("constant",), "proved", "exact"),
    Row(("cast to int",), ("position", "size", "given", "computed", "bool"), "proved", "modulo a power of two"),
    Row(("cast a float to int",), ("constant",), "proved", "exact"),
    Row(("cast a float to int", "cast to bool"), ("position", "size"), "tested", "steps at sizes that were not looked at"),
    Row(("cast a float to int", "cast to bool"), ("real",), "unknown", "the field has no whole numbers"),
    Row(("cast to bool",), ("constant", "given", "computed", "bool"), "proved", "a comparison with 0"),
    Row(("bitcast",), ("constant",), "proved", "exact"),
    Row(("bitcast",), ("position", "size"), "tested", "bits of sizes that were not looked at"),
    Row(("bitcast",), ("given", "computed", "bool"), "proved", "the same bits"),
    Row(("bitcast",), ("real",), "unknown", "the field has no bits"),
    Row(("gather", "scatter"), ("constant", "position"), "proved", "the place of an element is one that positions determine"),
    Row(("gather", "scatter"), ("size",), "tested", "places at sizes that were not looked at"),
    Row(("gather", "scatter"), ("given",), "proved", "every place of the axis is drawn, and what is outside"),
    Row(("gather", "scatter"), ("computed", "bool", "real"), "unknown",
        "an index without a known distribution, but where both graphs have it in common"),
)
"""The operand kind is that of the index for gather and scatter, that of a value for where, else that of the operands."""

TALLY = Row(_ORDER, ("real",), "tested", "a number of places is compared: it may be larger at sizes that were not looked at")

_BY_OP: dict[tuple[str, str], Row] = {(op, kind): row for row in TABLE for op in row.ops for kind in row.operands}


def row_of(node: Node, operand: Operand) -> Row | None:
    """Return the row for a node whose operands are of this kind; None for leaves and for ops without a row."""
    return _BY_OP.get((op_name(node), operand))


def op_name(node: Node) -> str:
    """Return the name of a node in the table: that of its op, or the kind of cast."""
    if node.op.name != "cast":
        return node.op.name
    if node.dtype.kind == "float":
        return "cast to float"
    if node.dtype.kind == "bool":
        return "cast to bool"
    return "cast a float to int" if node.inputs[0].dtype.kind == "float" else "cast to int"


# ---- what follows from sizes alone -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class LinearForm:
    """A sum of `plus` indices, minus `minus` indices, plus Σ factor · size, plus a literal of magnitude at most `gap`."""

    plus: int = 0
    minus: int = 0
    sizes: tuple[tuple[str, int], ...] = ()
    gap: int = 0

    def negated(self) -> LinearForm:
        return LinearForm(self.minus, self.plus, tuple((s, -k) for s, k in self.sizes), self.gap)

    def plus_form(self, other: LinearForm) -> LinearForm:
        total = dict(self.sizes)
        for s, k in other.sizes:
            total[s] = total.get(s, 0) + k
        return LinearForm(self.plus + other.plus, self.minus + other.minus, tuple(sorted((s, k) for s, k in total.items() if k)),
                          self.gap + other.gap)

    @property
    def is_position(self) -> bool:
        """True for an index, a size, their mirror image n − i, or the difference of two; no multiple, no sum but i + j − n."""
        counts = (self.plus, self.minus, tuple(k for _, k in self.sizes))
        return counts in {(0, 0, ()), (1, 0, ()), (0, 1, ()), (1, 1, ()), (0, 0, (1,)), (0, 0, (-1,)), (1, 0, (-1,)), (0, 1, (1,)),
                          (2, 0, (-1,)), (0, 2, (1,)), (0, 0, (-1, 1)), (0, 0, (1, -1))}


@dataclass(frozen=True)
class Fact:
    """Facts of a node. hangs: it depends on a leaf. sized: its values follow from sizes. form: these as a linear form, if they are
    positions. degree: as a polynomial in sizes and positions. flat: axes along which a term may be constant (or a polynomial in the
    position), so that a sum over them adds to the degree. null: axes along which some elements are certainly 0. counts: it is a
    number of positions. reach: number of indices, along axes without a fixed size, in one of its terms. whole: it depends on
    integers and booleans alone. tally: it is a sum of such values along such an axis. computed: it is a function of a tally."""

    hangs: bool
    sized: bool = False
    form: LinearForm | None = None
    degree: int = 0
    reach: int = 0
    flat: frozenset[int] = frozenset()
    null: frozenset[int] = frozenset()
    counts: bool = False
    whole: bool = False
    tally: bool = False
    computed: bool = False


@dataclass
class Findings:
    """Reasons why agreement may be no proof. weak: rows that are not proved, by node. meets: literals above 1 that meet a size.
    calls: nodes with min, max or // in sizes or attributes. positions: linear forms of the indices that sizes determine, and of the
    differences of compared positions (size_breakpoints.py). degree, reach: of the outputs, both graphs added."""

    weak: dict[Node, Row] = field(default_factory=dict)
    meets: dict[Node, int] = field(default_factory=dict)
    calls: dict[Node, None] = field(default_factory=dict)
    positions: dict[Node, LinearForm] = field(default_factory=dict)
    degree: int = 0
    reach: int = 0


def weak(order: Sequence[Node], roots: Sequence[Sequence[Node]], integers: IntegerInputs, binding: Mapping[str, int]) -> Findings:
    """Return the findings about nodes in atomic ops, such as those that the table does not call proved. binding: valid sizes."""
    findings = Findings()
    facts: dict[Node, Fact] = {}
    values = _values(order, binding)
    for node in order:
        fact = facts[node] = _fact(node, [facts[i] for i in node.inputs], values)
        if any(_has_call(x) for x in (*node.types[0].shape, *_flat(tuple(node.attrs.values())))):
            findings.calls[node] = None
        literal = _shape_literal(node)
        if literal > 1:
            findings.meets[node] = literal
        if node.op in leaves.NAMED_LEAVES or not node.inputs or node in integers.cut:
            continue
        row = row_of(node, operand_of(node, facts, integers))
        if row is not None and row.answer != "proved":
            findings.weak[node] = row
        elif row is None:
            kind: Operand = "size" if not fact.hangs else "real"
            findings.weak[node] = Row((node.op.name,), (kind,), "tested", "the table has no row of it")
        gap = _compared_gap(node, facts)
        if gap > 1:
            findings.meets[node] = gap
        form = _position(node, facts)
        if form is not None:
            findings.positions[node] = form
        if _compares_tally(node, facts, values):
            findings.weak[node] = TALLY
    for leaf, use in integers.leaves.items():
        against = [n for number, _, _ in use.thresholds for n in (number.value, *number.added)]
        nodes = [n for n in against if not isinstance(n, int)]
        sized = [n for n in nodes if facts[n].sized]
        sized += [u for u, _, _ in (*use.axes, *use.common_axes) if symbols(u.inputs[0].shape[u.attrs["axis"]])]
        literals: list[object] = [n for n in against if isinstance(n, int) and n not in (0, 1)]
        literals += [n for n in nodes if not facts[n].sized and _literal(values.get(n)) not in (0, 1)]
        fixed = [u for u, _, _ in use.axes if not symbols(u.inputs[0].shape[u.attrs["axis"]])]
        if sized and (literals or fixed):
            findings.meets[leaf] = 2
    for same in zip(*roots, strict=True):
        findings.degree = max(findings.degree, sum(facts[r].degree for r in same))
        findings.reach = max(findings.reach, sum(facts[r].reach for r in same))
    return findings


def operand_of(node: Node, facts: Mapping[Node, Fact], integers: IntegerInputs) -> Operand:
    """Return the kind of the operands of a node; if they differ, the kind about which least is known."""
    name = node.op.name
    inputs = [node.inputs[1]] if node.op.group == "index" else list(node.inputs)
    if name in ("and", "xor", "not_equal") and inputs[0].dtype.kind == "bool":
        return "bool"
    if name == "where":
        inputs = list(node.inputs[1:])
    kinds: set[Operand] = {_kind(i, facts, integers) for i in inputs}
    if kinds <= {"constant", "position", "size"} and any(facts[i].counts for i in inputs) and all(
            facts[i].counts or facts[i].form == LinearForm() for i in inputs) and (
            name == "reduce_max" or (node.op.facts.compares and sum(facts[i].counts for i in inputs) == 1)):
        return "bool"                                       # whether there is such a place
    if node.op.facts.compares and kinds <= {"constant", "position", "size"} and kinds != {"constant"}:
        forms = [facts[i].form for i in inputs]
        if forms[0] is None or forms[1] is None:
            return "size"
        return "position" if forms[0].plus_form(forms[1].negated()).is_position else "size"
    if name in ("less", "not_equal", "max") and "size" in kinds and "given" in kinds:
        return "size"
    for kind in ("real", "computed", "given", "bool", "size", "position"):
        if kind in kinds:
            return kind
    return "constant"


def _kind(x: Node, facts: Mapping[Node, Fact], integers: IntegerInputs) -> Operand:
    fact = facts[x]
    if not fact.hangs:
        if not fact.sized:
            return "constant"
        return "position" if fact.form is not None and fact.form.is_position else "size"
    if x.dtype.kind == "float":
        return "real"
    if x.dtype.kind == "bool":
        return "bool"
    return "given" if integers.kinds.get(x, Kind("ring")).name == "plain" else "computed"


def _flat(value: Any) -> list[Any]:
    return [x for v in value for x in _flat(v)] if isinstance(value, tuple) else [value]


def _has_call(x: Any) -> bool:
    return isinstance(x, Expr) and any(isinstance(a, Call) for monomial, _ in x.terms for a in monomial)


def _linear(x: Expr) -> LinearForm | None:
    """Return an expression of sizes with coefficients ±1 as a linear form, None for any other."""
    sizes, gap = [], 0
    for monomial, k in x.terms:
        if not monomial:
            gap = abs(k)
        elif len(monomial) == 1 and not isinstance(monomial[0], Call) and abs(k) == 1:
            sizes.append((monomial[0].name, k))
        else:
            return None
    return LinearForm(sizes=tuple(sorted(sizes)), gap=gap)


def _values(order: Sequence[Node], binding: Mapping[str, int]) -> dict[Node, Array]:
    """Return the values of the nodes that depend on no leaf, at these sizes; no values where these are too many to compute."""
    nodes = closed(order)
    try:
        if sum(math.prod(evaluate_dim(s, binding) for s in n.types[0].shape) for n in nodes) > _MOST_VALUES:
            return {}
        with np.errstate(all="ignore"):
            return dict(zip(nodes, map(np.asarray, evaluate(nodes, {}, binding)), strict=True))
    except TensorGraphsError:
        return {}


def _literal(value: Array | None) -> int | None:
    """Return the largest magnitude in an array of whole numbers (of any dtype), None for other values."""
    if value is None:
        return None
    value = value.astype(np.float64)
    if not np.isfinite(value).all() or (value != np.floor(value)).any():
        return None
    return int(np.abs(value).max()) if value.size else 0


def _shape_literal(node: Node) -> int:
    """Return the largest literal that meets a size in the bounds of a slice or a pad; 2^30 for a slice with a step."""
    most = 0
    if node.op.name == "slice":
        for (start, stop, step), size in zip(node.attrs["bounds"], node.inputs[0].shape, strict=True):
            if not any(symbols(x) for x in (start, stop, size)):
                continue
            if abs(step) > 1:
                return 1 << 30
            low, high = (start, stop) if step > 0 else (stop + 1, start + 1)
            most = max(most, _offset(low), _offset(size - high))
    elif node.op.name == "pad":
        for pair, size in zip(node.attrs["padding"], node.inputs[0].shape, strict=True):
            if any(symbols(x) for x in (*pair, size)):
                most = max(most, *(_offset(x) for x in pair))
    return most


def _offset(x: Any) -> int:
    """Return the magnitude of the literal in an expression of sizes; 2^30 where sizes have factors other than ±1."""
    if not isinstance(x, Expr):
        return abs(int(x))
    form = _linear(x)
    return 1 << 30 if form is None else form.gap


def _compared_gap(node: Node, facts: Mapping[Node, Fact]) -> int:
    """Return the literal that a node adds to positions that it compares, or looks up along an axis without a fixed size."""
    name = node.op.name
    if name in ("less", "not_equal", "max"):
        forms = [facts[i].form for i in node.inputs]
        if any(facts[i].sized for i in node.inputs):
            return sum(f.gap for f in forms if f is not None)
        return 0
    if node.op.group == "index":
        index, axis = facts[node.inputs[1]], node.inputs[0].shape[node.attrs["axis"]]
        if index.hangs:
            return 0
        gap = index.form.gap if index.form is not None else 0
        if symbols(axis):
            return gap + _offset(axis)
        return max(gap, int(axis)) if index.sized else 0
    return 0


def _fact(node: Node, xs: Sequence[Fact], values: Mapping[Node, Array]) -> Fact:
    flat, null = _constant_along(node, xs, values)
    counted = 0
    if node.op.name == "sum":
        counted = sum(bool(symbols(node.inputs[0].shape[a])) for a in node.attrs["axes"] if a in xs[0].flat)
    elif node.op.name == "dot" and symbols(node.inputs[0].shape[-1]):
        second = 0 if node.inputs[1].rank == 1 else node.inputs[1].rank - 2
        counted = int(node.inputs[0].rank - 1 in xs[0].flat and second in xs[1].flat)
    counts = node.op.name == "cast" and node.inputs[0].dtype.kind == "bool"
    if node.op.name in ("sum", "reduce_max", "reshape", "expand", "permute", "cast") and node.dtype.kind != "bool":
        counts = counts or xs[0].counts
    fact = replace(_without_axes(node, xs, values, counted), flat=flat, null=null, counts=counts)
    whole = node.dtype.kind != "float" or (fact.hangs and node.op not in leaves.NAMED_LEAVES and all(
        x.whole for x in xs if x.hangs))
    summed = fact.hangs and whole and fact.reach > max((x.reach for x in xs), default=0)
    below = [x for x in xs if x.tally or x.computed] if node.dtype.kind == "float" else []
    same = node.op.name in ("reshape", "permute", "expand", "slice", "cast", "sum") and not any(x.computed for x in below)
    return replace(fact, whole=whole, tally=node.dtype.kind == "float" and (summed or (bool(below) and same)),
                   computed=bool(below) and not same)


def _position(node: Node, facts: Mapping[Node, Fact]) -> LinearForm | None:
    """Return the linear form of an index that sizes determine, or of the difference of two compared positions; else None."""
    if node.op.group == "index":
        index = facts[node.inputs[1]]
        return index.form if not index.hangs else None
    if node.op.facts.compares:
        one, other = (facts[i] for i in node.inputs)
        if one.hangs or other.hangs or one.form is None or other.form is None or not (one.sized or other.sized):
            return None
        return one.form.plus_form(other.form.negated())
    return None


def _compares_tally(node: Node, facts: Mapping[Node, Fact], values: Mapping[Node, Array]) -> bool:
    """Return whether a node compares a number of positions with more than 1, which only sizes of that many positions reach."""
    if node.op.name not in (*_ORDER, "floor") or not any(facts[i].tally or facts[i].computed for i in node.inputs):
        return False
    others = [_literal(values.get(i)) for i in node.inputs if not facts[i].tally]
    return not others or any(x is None or x > 1 for x in others)


def _constant_along(node: Node, xs: Sequence[Fact], values: Mapping[Node, Array]) -> tuple[frozenset[int], frozenset[int]]:
    """Return (axes along which a term of the node may be constant, axes along which some elements are 0)."""
    name, rank = node.op.name, node.types[0].rank
    every = frozenset(i for i, size in enumerate(node.types[0].shape) if symbols(size))
    if node.op in leaves.NAMED_LEAVES or not xs:
        return (frozenset(), frozenset()) if node.op in leaves.NAMED_LEAVES else (every, frozenset())
    flat, null = frozenset().union(*(x.flat for x in xs)), frozenset().union(*(x.null for x in xs))
    if name == "expand":
        new = frozenset(i for i, (old, now) in enumerate(zip(node.inputs[0].shape, node.shape, strict=True)) if old != now) & every
        value = values.get(node.inputs[0])
        if value is not None and value.size and ((value == 0) | (value == -np.inf)).all():
            return frozenset(), every if (value == 0).any() else frozenset()
        return flat | new, null
    if name in ("add", "max", "cast"):
        return flat, null
    if name == "mul":
        return xs[0].flat & xs[1].flat, null
    if name == "where":
        null = xs[1].null | xs[2].null
        axis = _joins(node)
        return xs[1].flat | xs[2].flat, null if axis is None or null != {axis} else frozenset()
    if name == "permute":
        axes = node.attrs["axes"]
        return frozenset(axes.index(a) for a in flat), frozenset(axes.index(a) for a in null)
    if node.op.group == "reduce":
        outer = [i for i in range(node.inputs[0].rank) if i not in node.attrs["axes"]]
        return frozenset(outer.index(a) for a in flat if a in outer), frozenset(outer.index(a) for a in null if a in outer)
    if name == "slice":
        return flat, null
    if name == "pad":
        padded = frozenset(i for i, pair in enumerate(node.attrs["padding"]) if pair != (0, 0))
        if node.attrs["value"] in (0, -math.inf):
            return flat, null | (padded if node.attrs["value"] == 0 else frozenset())
        return flat | padded, null
    if name == "dot" and min(i.rank for i in node.inputs) >= 2:
        rows, columns = rank - 2, rank - 1
        lead = frozenset(range(rank - 2)) if any(a < x.rank - 2 for x, f in zip(node.inputs, xs, strict=True)
                                                 for a in f.flat) else frozenset()
        sides = ((rows, node.inputs[0].rank - 2, xs[0]), (columns, node.inputs[1].rank - 1, xs[1]))
        return (lead | {axis for axis, operand, x in sides if operand in x.flat},
                lead | {axis for axis, operand, x in sides if operand in x.null})
    if name in ("reciprocal", "sqrt", "exp2", "log2", "sin", "erf", "floor"):
        return flat | null, frozenset()
    if name == "reshape" and not flat and not null:
        return frozenset(), frozenset()
    if name == "reshape":                                   # axes of size 1 come and go; else nothing is known of the axes
        old, now = ([i for i, s in enumerate(x.shape) if s != 1] for x in (node.inputs[0], node))
        if [node.inputs[0].shape[i] for i in old] == [node.shape[i] for i in now]:
            at = dict(zip(old, now, strict=True))
            return frozenset(at[a] for a in flat if a in at), frozenset(at[a] for a in null if a in at)
    return every if flat or null else frozenset(), frozenset()


def _without_axes(node: Node, xs: Sequence[Fact], values: Mapping[Node, Array], counted: int) -> Fact:
    name, shape = node.op.name, node.types[0].shape
    if node.op in leaves.NAMED_LEAVES:
        return Fact(True)
    if name == "iota":
        along = shape[node.attrs["axis"]]
        return Fact(False, True, LinearForm(plus=1), 1) if symbols(along) else Fact(False, form=LinearForm(gap=int(along)))
    if node.op is leaves.CONSTANT:
        value = node.attrs["value"]
        if isinstance(value, Expr):
            return Fact(False, True, _linear(value), max(len(monomial) for monomial, _ in value.terms))
        if isinstance(value, (ArrayValue, bool, float, int)):
            literal = _literal(values.get(node))
            return Fact(False, form=None if literal is None else LinearForm(gap=literal))
        return Fact(False)
    hangs = any(x.hangs for x in xs)
    sized = not hangs and any(x.sized for x in xs)
    degree, reach = max((x.degree for x in xs), default=0), max((x.reach for x in xs), default=0)
    form: LinearForm | None = None
    if name in ("mul", "dot"):
        degree, reach = sum(x.degree for x in xs), sum(x.reach for x in xs)
    if name in ("sum", "reduce_max", "dot"):
        axes = [node.inputs[0].shape[-1]] if name == "dot" else [node.inputs[0].shape[a] for a in node.attrs["axes"]]
        more = sum(bool(symbols(a)) for a in axes)
        if more and not hangs:
            sized = True
        degree, reach = degree + (counted if name != "reduce_max" else 0), reach + more
    elif name == "scatter":
        reach += bool(symbols(node.inputs[1].type.size()))
    elif name in ("pad", "slice", "gather") and not hangs and not sized:
        sized = any(symbols(x) for x in (*_flat(tuple(node.attrs.values())), *node.inputs[0].shape)) and not _uniform(node)
    if not hangs and not sized:
        literal = _literal(values.get(node)) if node.dtype.kind != "bool" else None
        form = None if literal is None else LinearForm(gap=literal)
        return Fact(False, False, form, degree, reach)
    if sized:
        first = xs[0].form if xs else None
        if name in ("expand", "reshape", "permute", "cast") and node.dtype.kind != "bool":
            form = first
        elif name == "slice" and first is not None:
            form = LinearForm(first.plus, first.minus, first.sizes, first.gap + max(
                (_offset(start) for start, _, _ in node.attrs["bounds"]), default=0)) if all(
                    step == 1 for _, _, step in node.attrs["bounds"]) and not any(
                    symbols(start) for start, _, _ in node.attrs["bounds"]) else None
        elif name == "add" and first is not None and xs[1].form is not None:
            form = first.plus_form(xs[1].form)
        elif name == "mul":
            for x, other in ((0, 1), (1, 0)):
                inner, factor = xs[x].form, node.inputs[other]
                if inner is not None and not xs[other].sized and (sign := _sign(values.get(factor))) is not None:
                    form = inner if sign > 0 else inner.negated()
    return Fact(hangs, sized, form, degree, reach)


def _joins(node: Node, start: Any = 0) -> int | None:
    """Return the axis along which a where joins padded tensors from `start` on (as concat does), None for any other where."""
    condition, first, rest = node.inputs
    if condition.op.name != "less" or condition.inputs[0].op.name != "iota" or first.op.name != "pad":
        return None
    axis: int = condition.inputs[0].attrs["axis"]
    end = condition.inputs[1]
    while end.op.name in ("expand", "reshape"):
        end = end.inputs[0]
    if end.op is not leaves.CONSTANT or first.attrs["padding"][axis][0] != start:
        return None
    if start + first.inputs[0].shape[axis] != end.attrs["value"]:
        return None
    if rest.op.name == "where":
        return axis if _joins(rest, end.attrs["value"]) == axis else None
    return axis if rest.op.name == "pad" and rest.attrs["padding"][axis] == (end.attrs["value"], 0) else None


def _uniform(node: Node) -> bool:
    """Return whether a node is a slice of a constant whose elements are all equal."""
    x = node.inputs[0]
    while x.op.name in ("expand", "reshape", "permute", "slice", "cast"):
        x = x.inputs[0]
    return node.op.name == "slice" and (x.op is leaves.CONSTANT and not isinstance(x.attrs["value"], ArrayValue))


def _sign(value: Array | None) -> int | None:
    """Return 1 or −1 where all elements are that number, else None."""
    if value is None or not value.size or (value != value.reshape(-1)[0]).any():
        return None
    if value.dtype.kind == "u" and value.reshape(-1)[0] == np.iinfo(value.dtype).max:
        return -1
    return int(value.reshape(-1)[0]) if abs(float(value.reshape(-1)[0])) == 1 else None
