"""admission: a rule is let in only after its two sides have been compared on random instances.

An instance is the pattern with random shapes, dtypes, attributes and values for its variables. Both sides are evaluated by the
oracle. Bitwise rules have to give the same bits as written, for 0, −0, ±∞, NaN, denormal and huge values and for integers that
wrap. Reassociating ones have to give the same real number for finite values, within float64's rounding of the largest number
met on the way; and `meaning.equal` must not refute a few of them. A rule that fails is refused, with the instance that shows it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language.composite import LIBRARY
from tensor_graphs.language.dtypes import DTYPES, DType, bool_
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node, TensorType, apply, rebuild, walk
from tensor_graphs.language.text import print_graph
from tensor_graphs.meaning.equality import equal
from tensor_graphs.meaning.interpreter import evaluate
from tensor_graphs.rewrites.egraph import CLASS, EGraph
from tensor_graphs.rewrites.errors import RewriteError, UnsoundRuleError
from tensor_graphs.rewrites.pattern import ANY_OP, Application, AttributeVariable, Literal, Pattern, Variable, search
from tensor_graphs.rewrites.rule import BITWISE, NumericClass, Rule, make_rule
from tensor_graphs.rewrites.saturate import index_of

INSTANCES = 200
TRIES = 60
"""Draws for each instance that is wanted, before a rule is refused because none fits its pattern and condition."""

TOLERANCE = 1e-9
"""Of a reassociating rule: difference over the largest finite number on the way, in float64."""

FINGERPRINTS = 2
"""Instances that `equal` is asked about, too."""

SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -3.0, 1e-3, np.inf, -np.inf, np.nan, 5e-324, 1e-40, 1e-30, 3.4e38, -1e30, 65504.0)
TAME = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.0, 1e-3, 5e-324, 1e-40)

UNARY = ("neg", "exp2", "floor", "sqrt", "abs", "reciprocal", "exp", "tanh", "relu", "sin")
BINARY = ("add", "mul", "max", "sub", "min", "xor", "less", "div", "and", "equals")
"""What an op variable is drawn from; an op of every kind that works element by element."""


@dataclass(frozen=True)
class Instance:
    """The two sides of a rule for one draw (one pair for each of its patterns), with values for their leaves."""

    left: tuple[Node, ...]
    right: tuple[Node, ...]
    values: Mapping[Node, np.ndarray]

    def graphs(self) -> tuple[Graph, Graph]:
        return make_graph(list(self.left)), make_graph(list(self.right))


@dataclass(frozen=True)
class Admitted:
    """How a rule was let in: instances compared, and how many `equal` proved."""

    rule: Rule
    instances: int
    proved: int


class _NoInstance(Exception):
    """This draw does not fit; another one may."""


class _Draw:
    """One random instance of a rule's patterns."""

    def __init__(self, rule: Rule, rng: np.random.Generator) -> None:
        self.rule, self.rng = rule, rng
        kinds = list(rule.dtypes)
        kind = kinds[int(rng.integers(len(kinds)))]
        self.dtype = self.pick([t for t in DTYPES.values() if t.kind == kind])
        self.shape = tuple(int(x) for x in rng.choice([1, 2, 3, 4], size=int(rng.choice([0, 1, 2, 2, 3]))))
        if rng.random() < 0.04 and self.shape:
            self.shape = (0, *self.shape[1:])
        self.sizes: dict[str, int] = {}
        self.shapes: dict[str, tuple[str, ...]] = {}
        self.kinds: dict[str, str] = {}
        for name, dims, dtype in re.findall(r"(\w+)(?:\[([^\]]*)\])?(?::(\w+))?", rule.shapes):
            if dims:
                self.shapes[name] = tuple(s.strip() for s in dims.split(","))
            if dtype:
                self.kinds[name] = dtype
        self.bound: dict[str, Any] = {}

    def pick(self, choices: Any) -> Any:
        choices = list(choices)
        return choices[int(self.rng.integers(len(choices)))]

    def size(self, name: str) -> int:
        if name.isdigit():
            return int(name)
        return self.sizes.setdefault(name, int(self.rng.choice([1, 2, 2, 3, 4, 5, 6])))

    def variable(self, name: str) -> Node:
        if name not in self.bound:
            shape = tuple(map(self.size, self.shapes[name])) if name in self.shapes else self.shape
            if name not in self.shapes and shape and self.rng.random() < 0.15:
                shape = tuple(1 if self.rng.random() < 0.5 else s for s in shape)
            dtype = bool_ if self.kinds.get(name) == "bool" else self.dtype
            kind = leaves.parameter if name in self.rule.parameters else leaves.input
            self.bound[name] = kind(name, shape, dtype)
        return self.bound[name]

    def build(self, pattern: Pattern, like: TensorType | None = None) -> Node:
        if isinstance(pattern, Variable):
            return self.variable(pattern.name)
        if isinstance(pattern, Literal):
            if like is None:
                raise _NoInstance
            return atomic.fill(pattern.value, like.shape, like.dtype)
        operands: list[Node | None] = [None if isinstance(p, Literal) else self.build(p) for p in pattern.operands]
        known = next((o.type for o in reversed(operands) if o is not None), TensorType(self.shape, self.dtype))
        if pattern.name == "where" and operands[0] is None:
            operands[0] = self.build(pattern.operands[0], TensorType(known.shape, bool_))
        nodes = [self.build(p, known) if o is None else o for p, o in zip(pattern.operands, operands, strict=True)]
        if pattern.name.startswith(ANY_OP):
            name = self.bound.setdefault(pattern.name, self.pick(UNARY if len(nodes) == 1 else BINARY))
            return apply(atomic.ATOMIC.get(name) or LIBRARY[name], nodes)
        op = atomic.ATOMIC.get(pattern.name) or LIBRARY[pattern.name]
        attrs = {name: self.attribute(pattern, name, wanted, nodes) for name, wanted in pattern.attributes}
        absent = tuple(n for n in getattr(op, "operands", ())[len(nodes):] if n in getattr(op, "optional", ()))
        if absent and not getattr(op, "variadic", None):
            attrs["absent"] = absent
        return leaves.item(apply(op, nodes, attrs), pattern.output)

    def attribute(self, pattern: Application, name: str, wanted: Any, nodes: list[Node]) -> Any:
        if not isinstance(wanted, AttributeVariable):
            return wanted
        if wanted.name not in self.bound:
            self.bound[wanted.name] = self.draw_attribute(pattern.name, name, nodes)
        return self.bound[wanted.name]

    def draw_attribute(self, op: str, name: str, nodes: list[Node]) -> Any:
        rng, x = self.rng, nodes[0]
        rank, shape = x.rank, [int(s) for s in x.shape]
        if (op, name) == ("reshape", "shape"):
            size = int(np.prod(shape, dtype=np.int64))
            options = [tuple(shape), (size,), (*shape, 1), (1, *shape), tuple(reversed(shape))]
            if rank:
                options.append(tuple(1 if i == rank - 1 else s for i, s in enumerate(shape)))
            return self.pick([s for s in options if int(np.prod(s, dtype=np.int64)) == size])
        if name == "shape" and op == "expand":
            ones = [i for i, s in enumerate(shape) if s == 1]
            other = next((n for n in self.bound.values() if isinstance(n, Node) and n.rank == rank and n is not x), None)
            if other is not None and rng.random() < 0.8:
                return tuple(a if b == 1 else b for a, b in zip(other.shape, shape, strict=True))
            return tuple(self.pick([1, 2, 3, 5]) if i in ones else s for i, s in enumerate(shape))
        if (op, name) == ("permute", "axes"):
            return tuple(int(i) for i in rng.permutation(rank))
        if op in ("sum", "reduce_max", "reduce_min", "flip") and name == "axes":
            return tuple(i for i in range(rank) if rng.random() < 0.5)
        if name == "axes":
            return self.pick([None, *range(rank)])
        if name == "axis":
            return self.pick(range(-rank, rank)) if rank else 0
        if name == "keepdims":
            return bool(rng.random() < 0.5)
        if name == "dtype":
            return self.pick(DTYPES.values())
        if name == "bounds":
            out = []
            for s in shape:
                lo = int(rng.integers(0, s + 1))
                hi = int(rng.integers(lo, s + 1))
                out.append(self.pick([(lo, hi, 1), (0, s, 1), (0, s // 2, 1), (s // 2, s, 1), (lo, hi, 2)]))
            return tuple(out)
        if name == "padding":
            return tuple((int(rng.integers(0, 3)), int(rng.integers(0, 3))) for _ in shape)
        if name == "value":
            return leaves.constant(self.pick([0, 1]), x.dtype).attrs["value"]
        if name == "exponent":
            return int(rng.integers(0, 4))
        if name in ("eps", "scale", "offset"):
            return float(self.pick([1e-6, 0.5, 1.0, 0.125]))
        raise _NoInstance


def _values(rng: np.random.Generator, node: Node, special: bool, small: bool) -> np.ndarray:
    shape = tuple(int(s) for s in node.shape)
    t: DType = node.dtype
    if t.kind == "bool":
        return rng.random(shape) < 0.5
    if t.is_integer:
        info = np.iinfo(t.numpy)
        wide = rng.integers(info.min, info.max, shape, dtype=t.numpy, endpoint=True)
        near = np.clip(rng.integers(-3, 8, shape), info.min, info.max).astype(t.numpy)
        edge = rng.choice(np.array([info.min, info.max, 0, 1], dtype=t.numpy), shape)
        kind = rng.random(shape)
        return np.asarray(np.where(kind < 0.4, wide, np.where(kind < 0.8, near, edge)), dtype=t.numpy)
    drawn = rng.standard_normal(shape) * (1.0 if small else float(rng.choice([1.0, 1.0, 100.0])))
    share = float(rng.choice([0.0, 0.1, 0.4]))
    with np.errstate(all="ignore"):
        chosen = rng.choice(np.array(SPECIAL if special else TAME), shape)
        return np.asarray(np.where(rng.random(shape) < share, chosen, drawn)).astype(t.numpy)


def draw_instance(rule: Rule, rng: np.random.Generator) -> Instance | None:
    """One random instance, or None when the draw does not fit the pattern or the rule's condition."""
    draw = _Draw(rule, rng)
    try:
        left = tuple(draw.build(p) for p in rule.patterns)
    except (_NoInstance, TensorGraphsError, IndexError, ValueError):
        return None
    e, at = EGraph(), {}
    for node in walk(left):
        if len(node.types) == 1 and node.op is not leaves.ITEM:
            at[e.find(e.add(node))] = node
    homes = [e.add(x) for x in left]
    for side, home in zip(left, homes, strict=True):
        at[e.find(home)] = side
    match: dict[Any, Any] = {}
    index = index_of(e)
    for pattern, home in zip(rule.patterns, homes, strict=True):
        found = next((m for root, m in search(e, pattern, index, match) if e.find(root) == e.find(home)), None)
        if found is None:
            return None
        match = found
    arguments = {name: rule._argument(e, match, name, kind) for name, kind in rule.variables.items()}
    try:
        made = rule.replace(arguments)
    except TensorGraphsError:
        return None
    if made is None:
        return None

    def real(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        return at[e.find(node.attrs["index"])] if node.op is CLASS else None

    right = tuple(rebuild(list(made), real))
    for a, b in zip(left, right, strict=True):
        if a.type != b.type:
            raise UnsoundRuleError(f"{rule.name} replaces a value of {a.type} by one of {b.type}:\n"
                                   f"{print_graph(make_graph(a))}=>\n{print_graph(make_graph(b))}")
    special = rule.numeric_class == BITWISE
    small = bool(rule.assuming)
    values = {n: _values(rng, n, special, small) for n in walk((*left, *right)) if n.op in leaves.NAMED_LEAVES}
    return Instance(left, right, values)


def difference(instance: Instance, numeric_class: NumericClass) -> str | None:
    """Where the sides of an instance differ by more than their class allows; None where they do not."""
    both = [*instance.left, *instance.right]
    count = len(instance.left)
    if numeric_class == BITWISE:
        found = evaluate(both, instance.values, {}, "as_written", use_direct=False)
        for a, b in zip(found[:count], found[count:], strict=True):
            wrong = _different_bits(a, b)
            if wrong is not None:
                return f"{b[wrong]!s} instead of {a[wrong]!s} at {list(wrong)}"
        return None
    scale = 1.0
    inner = [n for n in walk(both) if len(n.types) == 1 and n.dtype.kind == "float"]
    found = evaluate([*both, *inner], instance.values, {}, "real")
    for value in found[len(both):]:
        finite = np.abs(value[np.isfinite(value)])
        if finite.size != value.size and not any(n.op is leaves.CONSTANT for n in inner):
            return None                                          # beyond the reals: nothing is promised there
        scale = max(scale, float(finite.max(initial=0.0)))
    for a, b in zip(found[:count], found[count:len(both)], strict=True):
        ok = np.isfinite(a)
        if a.dtype.kind != "f":
            if not np.array_equal(a, b):
                return f"{b.tolist()} instead of {a.tolist()}"
            continue
        if not np.array_equal(ok, np.isfinite(b)):
            if scale < 1e100:
                place = tuple(int(i) for i in np.argwhere(ok != np.isfinite(b))[0])
                return f"{b[place]!s} instead of {a[place]!s} at {list(place)}"
            return None
        gap = np.where(ok, np.abs(np.where(ok, a, 0) - np.where(ok, b, 0)), 0)
        if gap.size and float(gap.max()) > TOLERANCE * scale:
            place = tuple(int(i) for i in np.unravel_index(int(gap.argmax()), gap.shape))
            return f"{b[place]!s} instead of {a[place]!s} at {list(place)}"
    return None


def _different_bits(a: np.ndarray, b: np.ndarray) -> tuple[int, ...] | None:
    if a.dtype.kind in "iub":
        wrong = np.asarray(a != b)
    else:
        x, y = a.astype(np.float64), b.astype(np.float64)
        wrong = ~((np.isnan(x) & np.isnan(y)) | ((x == y) & (np.signbit(x) == np.signbit(y))))
    if not wrong.any():
        return None
    return tuple(int(i) for i in np.argwhere(wrong)[0])


def instances(rule: Rule, seed: int = 0, count: int = INSTANCES) -> Iterator[Instance]:
    """Random instances of a rule. Raises RewriteError when too few draws fit."""
    found = 0
    for attempt in itertools.count():
        if attempt >= TRIES * count:
            raise RewriteError(f"of {attempt} draws only {found} fit the rule {rule.name}, {count} are needed",
                               fix="say the shapes of its variables (shapes='x[n, k] w[m, k]') or their dtypes")
        made = draw_instance(rule, np.random.default_rng([seed, attempt]))
        if made is not None:
            found += 1
            yield made
            if found == count:
                return


def admit(rule: Rule, seed: int = 0, count: int = INSTANCES, fingerprints: int = FINGERPRINTS) -> Admitted:
    """Compare the sides of a rule on `count` random instances. Raises UnsoundRuleError with the first at which they differ."""
    proved = 0
    for number, made in enumerate(instances(rule, seed, count)):
        wrong = difference(made, rule.numeric_class)
        if wrong is None and number < fingerprints:
            verdict = equal(*made.graphs())
            proved += verdict.proved
            if verdict.status == "refuted" and not rule.assuming and verdict.counterexample is not None:
                wrong = verdict.counterexample.show()
        if wrong is not None:
            raise UnsoundRuleError(_counterexample(rule, made, wrong),
                                   fix="a condition (return None where it does not hold), or a weaker numeric class")
    return Admitted(rule, count, proved)


def _counterexample(rule: Rule, made: Instance, wrong: str) -> str:
    a, b = made.graphs()
    shown = {n.attrs["name"]: v if v.dtype.kind in "iub" else v.astype(np.float64) for n, v in made.values.items()}
    values = "\n".join(f"  {name} = {np.array2string(v, threshold=12)}" for name, v in shown.items())
    return (f"the rule {rule.name} ({rule.numeric_class}) is wrong: {wrong}\n{print_graph(a)}is not\n{print_graph(b)}for\n{values}")


USER_RULES: list[Rule] = []
"""Rules that were admitted by `tg.rule` in this process, for those who run rules."""


def user_rule(pattern: str | tuple[str, ...], numeric_class: NumericClass = "reassociating",
              **options: Any) -> Callable[[Callable[..., Any]], Rule]:
    """`@tg.rule("mul(add(a, b), c)")`: make a rule of a function, compare its sides, and keep it for later runs.

    Options are those of rewrites.rule.Rule (assuming, shapes, dtypes, …). Raises UnsoundRuleError with a counterexample.
    """
    def register(replacement: Callable[..., Any]) -> Rule:
        made = make_rule(pattern, numeric_class, replacement, **options)
        admit(made)
        USER_RULES.append(made)
        return made

    return register

