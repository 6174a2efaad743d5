"""random_graph: random graphs for a rule's patterns: random ranks, sizes, dtypes, attributes and ops, and symbolic sizes.

Draws start from the rule's dtypes and shapes. Without shapes, variables have one shape, or each has a variant of the first one (an
axis less, more, longer, or of size 1; `VARIANTS`). Trials find the variants with which a pattern can be built. Given shapes vary in
the same way, since the rule matches other shapes, too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language import dims as d
from tensor_graphs.language.atomic import ATOMIC
from tensor_graphs.language.composite import LIBRARY, CompositeOp
from tensor_graphs.language.dtypes import DTYPES, DType, bool_
from tensor_graphs.language.node import Node, TensorType, apply, rebuild
from tensor_graphs.rewrites.attribute_values import AttributeDraw, in_turn, numbers_of
from tensor_graphs.rewrites.pattern import ANY_OP, AttributeVariable, Literal, Pattern, Variable, elementwise, is_among
from tensor_graphs.rewrites.rule import Rule

RANKS = (0, 1, 1, 2, 2, 3, 3, 3, 4)
SIZES = (1, 2, 2, 3, 4, 5, 6)
LONG = (17, 33, 130)
"""Sizes of axes longer than a tile; a shape has at most one of them, and its other axes are short."""

LARGEST = 300
"""Largest size of an axis that is drawn because the rule contains a number near it."""

MOST_ELEMENTS = 4096
ATTRIBUTE_TRIES = 8

HOPELESS_KIND = 25
"""One of this many draws of a kind (varied shapes, mixed dtypes) must fit; otherwise hardly any more draws are of that kind."""

MOST_SKIPPED = 200
"""Largest number of a rule's draws that are skipped because their attributes were drawn before."""

Shape = tuple[int, ...]

VARIANTS: tuple[Callable[[Shape, int], Shape], ...] = (
    lambda s, m: s, lambda s, m: s, lambda s, m: s[:-1], lambda s, m: s[1:], lambda s, m: s[-1:], lambda s, m: s[:1],
    lambda s, m: s[::-1], lambda s, m: (m, *s), lambda s, m: (*s, m), lambda s, m: (*s[:-1], m) if s else s,
    lambda s, m: (m, *s[1:]) if s else s, lambda s, m: (m,), lambda s, m: (), lambda s, m: (1,) * len(s),
    lambda s, m: (*s[:-1], 1) if s else s, lambda s, m: (1, *s[1:]) if s else s, lambda s, m: (*s[-1:], m),
    lambda s, m: (s[0], s[1] // 2, *s[2:]) if len(s) > 1 and s[1] % 2 == 0 else (s[0], 1, *s[2:]) if len(s) > 1 else s,
    lambda s, m: (s[0], 2 * s[1], *s[2:]) if len(s) > 1 else s, lambda s, m: (m, *s[-1:]),
    lambda s, m: (*s[:-2], *s[-1:], m), lambda s, m: (*s[:1], m, *s[2:]))
"""Functions from the shape of the first variable, or from a given shape, to that of a variable; m is a random size of the draw."""


class Unfit(Exception):
    """A draw does not fit the rule; another draw may. The text is the reason."""


@cache
def any_ops(operands: int) -> tuple[AtomicOrComposite, ...]:
    """Return all ops that an op variable with this number of operands can match."""
    ops: list[AtomicOrComposite] = [
        row for row in ATOMIC.values() if row.arity == operands and row.elementwise]
    for op in LIBRARY.values():
        if len(op.operands) == operands and not op.opaque and any(
                elementwise(op, (TensorType((3, 5), t),) * operands) for t in DTYPES.values()):
            ops.append(op)
    return tuple(ops)


@cache
def _takes(op: AtomicOrComposite, dtypes: tuple[DType, ...]) -> bool:
    """Return whether an op works on operands of these dtypes."""
    try:
        apply(op, [leaves.argument(i, TensorType((2,), t)) for i, t in enumerate(dtypes)],
              dict.fromkeys(op.attributes, DTYPES["f32"]))  # a cast's
    except TensorGraphsError:
        return False
    return True


@dataclass
class RuleMemory:
    """Memory between the draws of one rule: the numbers in its code, the variants with which it could be built, and statistics."""

    numbers: tuple[int | float, ...] = ()
    variants: list[tuple[int, ...]] = field(default_factory=list)
    draws: Counter[str] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)
    known: Counter[Any] = field(default_factory=Counter)
    skipped: int = 0

    def worth(self, how: str) -> bool:
        """Return whether further draws of a kind may fit."""
        return self.draws[how] < HOPELESS_KIND or self.kept[how] * HOPELESS_KIND > self.draws[how]

    def is_known(self, draw: Draw) -> bool:
        """Return whether a draw's attributes and ranks came up more than twice, so that it is skipped (MOST_SKIPPED times)."""
        if not draw.drawn or self.skipped >= MOST_SKIPPED:
            return False
        key = (tuple(map(repr, draw.drawn.items())), tuple(n.rank for n in draw.bound.values() if isinstance(n, Node)))
        self.known[key] += 1
        self.skipped += self.known[key] > 2
        return self.known[key] > 2

    @staticmethod
    def of(rule: Rule) -> RuleMemory:
        return RuleMemory(numbers_of(rule.replacement))


class Draw:
    """A random instance of a rule's patterns. attempt: the number of the draw, which selects the dtype. fixed: the dtype and shape,
    if they are not random. small: draw the smallest shapes only."""

    def __init__(self, rule: Rule, rng: np.random.Generator, tried: RuleMemory, attempt: int = 0,
                 fixed: tuple[DType, Shape] | None = None, small: bool = False) -> None:
        self.rule, self.rng, self.fixed, self.tried, self.small = rule, rng, fixed is not None, tried, small
        self.attributes = AttributeDraw(rng, tried.numbers)
        self.bound: dict[str, Any] = {}
        self.drawn: dict[str, tuple[str, Any]] = {}
        """For each attribute or op variable: (the op and attribute that it belongs to, the value drawn)"""
        self.sizes: dict[str, int] = {}
        self.shapes = {name: entry.dims for name, entry in rule.said.items() if entry.dims is not None}
        self.variants: list[int] = []
        among = [t for t in DTYPES.values() if is_among(t, rule.dtypes)]
        self.dtype = in_turn(among, attempt)
        self.mixed = fixed is None and rng.random() < (0.2 if tried.worth("mixed") else 0.02)
        self.shape: Shape = self.draw_shape()
        if fixed is not None:
            self.dtype, self.shape = fixed
        self.ratio = 2 if rng.random() < 0.15 else 1
        self.m = int(rng.integers(1, 6))
        how = rng.random()
        self.how = "same" if fixed is not None or how < 0.45 else "ones" if how < 0.6 and not self.shapes else "varied"
        if self.how == "varied" and not tried.worth("varied") and rng.random() < 0.9:
            self.how = "same"
        self.kinds = [k for k, is_it in (("varied", self.how == "varied"), ("mixed", self.mixed)) if is_it]
        tried.draws.update(self.kinds)
        self.again = self.pick(tried.variants) if tried.variants and rng.random() < 0.6 else ()
        self.whole = int(rng.integers(len(VARIANTS))) if rng.random() < 0.35 else None
        """Index of one variant for all variables, for example a batch axis in front of each; None for separate variants."""

    def pick(self, choices: Any) -> Any:
        """Return a random choice. For a few choices `rng.choice` takes ten times as long."""
        choices = list(choices)
        return choices[int(self.rng.integers(len(choices)))]

    def draw_shape(self) -> Shape:
        rng = self.rng
        whole = [int(n) for n in self.tried.numbers if isinstance(n, int)]
        rank = self.pick(RANKS)
        ranks = [n for n in whole if 4 < n <= 6]
        if ranks and rng.random() < 0.1:
            rank = self.pick(ranks)
        if self.small:
            rank = min(rank, int(rng.integers(0, 4)))
            return tuple(int(s) for s in rng.choice((1, 2, 3), rank))
        if rng.random() < 0.25:
            return (self.pick((2, 3, 4)),) * rank
        shape = [self.pick(SIZES[:5] if rank > 2 else SIZES) for _ in range(rank)]
        if shape and rng.random() < 0.04:
            shape[int(rng.integers(rank))] = 0
        if shape and rng.random() < 0.15:
            near = [m for n in whole for m in (n - 1, n, n + 1) if 6 < m <= LARGEST]
            shape = [min(s, 3) for s in shape]
            shape[int(rng.integers(rank))] = self.pick([*LONG, *near, *near])
        return tuple(shape)

    def size(self, name: str) -> int:
        if name.isdigit():
            return int(name) * (self.ratio if int(name) > 1 else 1)
        if name not in self.sizes:
            whole = [int(n) for n in self.tried.numbers if isinstance(n, int)]
            near = [m for n in whole for m in (n - 1, n, n + 1) if 6 < m <= LARGEST]
            long = not self.small and self.rng.random() < 0.05 and all(s < 7 for s in self.sizes.values())
            choices = [1, 2, 3] if self.small else [*LONG[:2], *near, *near] if long else SIZES
            self.sizes[name] = 0 if not self.small and self.rng.random() < 0.01 else self.pick(choices)
        return self.sizes[name]

    def shape_of(self, name: str) -> Shape:
        has_shape = name in self.shapes
        shape = tuple(map(self.size, self.shapes[name])) if has_shape else self.shape
        if self.how == "same" or (not has_shape and not self.bound and self.how != "ones"):
            self.variants.append(0)
            return shape
        if self.how == "ones":
            self.variants.append(0)
            return tuple(1 if self.rng.random() < 0.4 else s for s in shape) if self.rng.random() < 0.5 else shape
        at = len(self.variants)
        if at < len(self.again):
            number = self.again[at]
        elif self.whole is not None:
            number = self.whole
        elif any(self.variants) and self.rng.random() < 0.3:
            number = max(self.variants)                     # two that belong together, as keys and values do
        else:
            number = int(self.rng.integers(len(VARIANTS))) if not has_shape or self.rng.random() < 0.4 else 0
        self.variants.append(number)
        return VARIANTS[number](shape, self.m)

    def variable(self, name: str) -> Node:
        if name not in self.bound:
            shape = self.shape_of(name)
            words = self.rule.said[name].dtypes if name in self.rule.said else ()
            if words or self.mixed:
                fitting = [t for t in DTYPES.values() if is_among(t, words or self.rule.dtypes)]
                dtype = in_turn(fitting, int(self.rng.integers(0, 1 << 16)))
            else:
                dtype = self.dtype
            if math.prod(shape) > MOST_ELEMENTS:
                raise Unfit("too large a tensor was drawn")
            kind = leaves.parameter if name in self.rule.parameters else leaves.input
            self.bound[name] = kind(name, shape, dtype)
        return self.bound[name]

    def tops(self) -> tuple[Node, ...]:
        """Return the nodes that the patterns become. Raises Unfit."""
        try:
            tops = tuple(self.build(p) for p in self.rule.patterns)
        except (TensorGraphsError, IndexError, ValueError) as error:
            raise Unfit(f"what was drawn does not fit the pattern: {first_line(error)}") from None
        if self.how == "varied" and any(self.variants) and tuple(self.variants) not in self.tried.variants:
            self.tried.variants.append(tuple(self.variants))
        return tops

    def build(self, pattern: Pattern, like: TensorType | None = None) -> Node:
        if isinstance(pattern, Variable):
            return self.variable(pattern.name)
        if isinstance(pattern, Literal):
            if like is None:
                raise Unfit("nothing says which dtype a number of the pattern has")
            return atomic.fill(pattern.value, like.shape, like.dtype)
        operands: list[Node | None] = [None if isinstance(p, Literal) else self.build(p) for p in pattern.operands]
        type = next((o.type for o in reversed(operands) if o is not None), TensorType(self.shape, self.dtype))
        if pattern.name == "where" and operands[0] is None:
            operands[0] = self.build(pattern.operands[0], TensorType(type.shape, bool_))
        nodes = [self.build(p, type) if o is None else o for p, o in zip(pattern.operands, operands, strict=True)]
        if pattern.name.startswith(ANY_OP):
            return self.any_op(pattern.name, nodes)
        op = ATOMIC.get(pattern.name) or LIBRARY[pattern.name]
        error: TensorGraphsError | None = None
        for _ in range(ATTRIBUTE_TRIES):
            fresh: dict[str, Any] = {}
            attrs = {name: self.attribute(op, name, wanted, nodes, fresh) for name, wanted in pattern.attributes}
            if pattern.absent:
                attrs["absent"] = pattern.absent
            try:
                result = leaves.item(apply(op, nodes, attrs), pattern.output)
            except TensorGraphsError as e:
                error = e
                if not fresh:
                    raise
                continue
            self.bound.update(fresh)
            self.drawn.update({wanted.name: (f"{op.name}.{name}", attrs[name]) for name, wanted in pattern.attributes
                               if isinstance(wanted, AttributeVariable) and wanted.name in fresh})
            return result
        raise Unfit(f"no legal value of the attributes of {op.name} was drawn: {first_line(error) if error else ''}")

    def any_op(self, name: str, nodes: list[Node]) -> Node:
        if name not in self.bound:
            fits = [op for op in any_ops(len(nodes)) if _takes(op, tuple(n.dtype for n in nodes))]
            if not fits:
                raise Unfit(f"no op takes {', '.join(str(n.dtype.name) for n in nodes)}")
            op = self.pick(fits)
            self.bound[name] = op, {a: self.attributes.value(op, a, nodes, [], []) for a in op.attributes}
        op, attrs = self.bound[name]
        result = apply(op, nodes, attrs)
        self.drawn[name] = "op", op.name
        return result

    def attribute(self, op: AtomicOrComposite, name: str, wanted: Any, nodes: list[Node], fresh: dict[str, Any]) -> Any:
        if not isinstance(wanted, AttributeVariable):
            return wanted
        if wanted.name in self.bound:
            return self.bound[wanted.name]
        if wanted.name not in fresh:
            earlier = [v for of, v in self.drawn.values() if of.endswith(f".{name}") and isinstance(v, tuple)]
            try:
                fresh[wanted.name] = self.attributes.value(op, name, nodes, list(self.bound.values()), earlier)
            except LookupError:
                raise Unfit(f"no value is drawn for the attribute {name!r} of {op.name}: write a number for it") from None
        return fresh[wanted.name]


AtomicOrComposite = atomic.AtomicOp | CompositeOp


def symbolic(tops: Sequence[Node], rng: np.random.Generator) -> tuple[tuple[Node, ...], int] | None:
    """Return the graphs with one of their sizes replaced by the dim n wherever it occurs, and that size; None if that fails."""
    named: list[Node] = []

    def note(node: Node, new: tuple[Node, ...]) -> None:
        if node.op in leaves.NAMED_LEAVES:
            named.append(node)

    rebuild(list(tops), note)
    sizes = sorted({int(s) for n in named for s in n.shape if int(s) > 1})
    if not sizes:
        return None
    size, n = int(rng.choice(sizes)), d.dim("n", 1, 512)

    def one(value: Any) -> Any:
        return n if not isinstance(value, bool) and isinstance(value, int) and value == size else value

    def put(node: Node, new: tuple[Node, ...]) -> Node | None:
        attrs: Mapping[str, Any] = node.attrs
        if "shape" in attrs and node.op is not leaves.CONSTANT:
            attrs = {**attrs, "shape": tuple(map(one, attrs["shape"]))}
        elif "bounds" in attrs:
            attrs = {**attrs, "bounds": tuple(
                (n - 1 if a == size - 1 and step < 0 else one(a), one(b), step) for a, b, step in attrs["bounds"])}
        return apply(node.op, new, attrs)

    try:
        return tuple(rebuild(list(tops), put)), size
    except TensorGraphsError:
        return None


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
