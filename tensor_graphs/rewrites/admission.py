"""admission: a rule is admitted only after its two sides have been compared on random instances.

An instance is the pattern with random shapes, dtypes, attributes and values for its variables (admission_values.py). The oracle
evaluates both sides. The sides of a bitwise rule must give the same bits when evaluated as written, for 0, −0, ±∞, NaN, denormal
and huge values and for integers that wrap. The sides of a reassociating rule must give the same real number wherever the left side
is defined and finite and no intermediate value is infinite. Differences that rounding explains (monte_carlo_rounding.py) or that
the rule's assumptions exclude (conditions.py) do not count. `proof.equal` must not refute the first few instances.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.declaration_place import here
from tensor_graphs.kernels.identity import code_of
from tensor_graphs.language import leaves
from tensor_graphs.language.atomic import same_dim
from tensor_graphs.language.dtypes import DTYPES, DType
from tensor_graphs.language.errors import LanguageError
from tensor_graphs.language.graph import Graph, replace_dims
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node, rebuild, walk
from tensor_graphs.language.text_writer import print_graph
from tensor_graphs.meaning.assumptions import CONDITIONS, DOMAIN, OVERFLOW
from tensor_graphs.meaning.errors import MeaningError
from tensor_graphs.meaning.interpreter import evaluate
from tensor_graphs.proof.equality import equal
from tensor_graphs.rewrites.admission_instances import Drawn
from tensor_graphs.rewrites.admission_values import POINTS, grid, random_values, written
from tensor_graphs.rewrites.conditions import SMALLEST, UNDERFLOW, Places, broken
from tensor_graphs.rewrites.egraph import CLASS, EGraph
from tensor_graphs.rewrites.errors import PatternError, RewriteError, UnsoundRuleError
from tensor_graphs.rewrites.monte_carlo_rounding import SAFETY, runs
from tensor_graphs.rewrites.pattern import is_among, search
from tensor_graphs.rewrites.random_graph import LARGEST, MOST_ELEMENTS, Draw, RuleMemory, Unfit, first_line, symbolic
from tensor_graphs.rewrites.rule import BITWISE, NumericClass, Rule, make_rule, require_pattern
from tensor_graphs.rewrites.saturate import index_of
from tensor_graphs.rewrites.user_rules import put, require_free

log = logging.getLogger(__name__)

INSTANCES = 200
TRIES = 60
"""Draws per required instance before a rule is refused because too few of them fit its pattern and condition."""

TOLERANCE = 1e-9
"""Relative difference of an element, in float64, that a reassociating rule may have in addition to what rounding explains."""

HOPELESS = (400, 800)
"""Draws after which a rule is refused: if none fitted; if so few fitted that half of the instances are out of reach."""

FEWEST = 10
"""At least one of this many instances must have an element at which the sides can be compared."""

LARGEST_GRID = 4_000_000
"""Limit on the elements of all nodes of a grid, with composites counted as one node."""

BEYOND = 1e100
"""Size of the left side's numbers from which the right side may overflow float64."""

MORE_RUNS = range(8, 32)
"""Seeds of further runs with random rounding, which confirm a difference before it counts."""

SMALL_DRAWS = 80
"""Draws in search of the smallest instance at which a rule is wrong."""

SYMBOLIC = 0.2
"""Share of the instances in which one size is replaced by a dim, if it can be."""

FINGERPRINTS = 2
"""Number of instances that `proof.equal` also examines."""

@dataclass(frozen=True)
class Instance:
    """The two sides of a rule for one draw, one pair of nodes per pattern of the rule, with values for their leaves."""

    left: tuple[Node, ...]
    right: tuple[Node, ...]
    values: Mapping[Node, np.ndarray]
    attributes: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    binding: Mapping[str, int] = field(default_factory=dict)

    def graphs(self) -> tuple[Graph, Graph]:
        return make_graph(list(self.left)), make_graph(list(self.right))


@dataclass(frozen=True)
class Admitted:
    """Record of an admission: the numbers of instances compared and of those that `equal` proved, and statistics of the draws."""

    rule: Rule
    instances: int
    proved: int
    drawn: Drawn

    def show(self) -> str:
        return f"{self.rule.name}: held on {self.instances} random instances, {self.proved} of them proved\n{self.drawn.show()}"


class NothingNew(Exception):
    """A draw adds nothing to those before it."""


@dataclass(frozen=True)
class Judgement:
    """Result of a comparison. wrong: the difference. place: (output, element). compared: whether any element could be compared."""

    wrong: str | None = None
    place: tuple[int, tuple[int, ...]] | None = None
    compared: bool = True
    excused_by: tuple[str, ...] = ()


NOTHING = "the replacement returned None"


def draw_instance(rule: Rule, rng: np.random.Generator, fixed: tuple[DType, tuple[int, ...]] | None = None,
                  draw_values: Callable[..., dict[Node, np.ndarray]] = random_values, *, tried: RuleMemory | None = None,
                  attempt: int = 0, small: bool = False) -> Instance:
    """Return one random instance. Raises Unfit if the draw does not fit the pattern or the rule's condition, NothingNew if it
    repeats an earlier one, UnsoundRuleError if the types of the sides differ."""
    tried = RuleMemory.of(rule) if tried is None else tried
    draw = Draw(rule, rng, tried, attempt, fixed, small)
    left, size = draw.tops(), 0
    if fixed is None and not small and tried.is_known(draw):
        raise NothingNew
    if fixed is None and rng.random() < SYMBOLIC and (with_dim := symbolic(left, rng)) is not None:
        left, size = with_dim
    right = _replaced(rule, left)
    _same_types(rule, left, right)
    binding: dict[str, int] = {}
    if size:
        left, right, binding = _at_a_size(rule, left, right, size, rng, tried)
    drawn = [n for n in walk((*left, *right)) if n.op in leaves.NAMED_LEAVES]
    numbers = tuple(dict.fromkeys((*written((*left, *right)), *tried.numbers, *_table_ends(left))))
    values = draw_values(rng, drawn, numbers, rule.numeric_class == BITWISE, bool(rule.assuming))
    tried.kept.update(draw.kinds)
    return Instance(left, right, values, draw.drawn, binding)


def _table_ends(tops: Sequence[Node]) -> Iterator[int]:
    """Yield the sizes of the axes that are indexed: size − 1 is the last valid index, and the size itself is outside."""
    for node in walk(list(tops)):
        if node.op.group == "index":
            yield int(node.inputs[0].shape[node.attrs["axis"]])


def _replaced(rule: Rule, left: tuple[Node, ...]) -> tuple[Node, ...]:
    """Return the rule's replacement of the drawn nodes. Raises Unfit if the rule's condition does not hold."""
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
        place = next((m for root, m in search(e, pattern, index, match) if e.find(root) == e.find(home)), None)
        if place is None:
            raise Unfit("the pattern is not found in what was drawn for it")
        match = place
    arguments = {name: rule._argument(e, match, name, kind) for name, kind in rule.variables.items()}
    try:
        replacement = rule.replaced(arguments)
    except LanguageError as error:
        if isinstance(error, RewriteError):
            raise
        raise Unfit(f"the replacement raised {first_line(error)}") from None
    except Exception as error:
        raise RewriteError(f"the replacement of the rule {rule.name} raised {type(error).__name__}: {first_line(error)}\nfor\n"
                           f"{print_graph(make_graph(list(left)))}", fix="return None where the rule does not hold") from error
    if replacement is None:
        raise Unfit(NOTHING)

    def real(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        return at[e.find(node.attrs["index"])] if node.op is CLASS else None

    return tuple(rebuild(list(replacement), real))


def _same_types(rule: Rule, left: tuple[Node, ...], right: tuple[Node, ...]) -> None:
    for a, b in zip(left, right, strict=True):
        if a.dtype != b.dtype or a.rank != b.rank or not all(map(same_dim, a.shape, b.shape)):
            raise UnsoundRuleError(f"{rule.name} replaces a value of {a.type} by one of {b.type}:\n"
                                   f"{print_graph(make_graph(a))}=>\n{print_graph(make_graph(b))}",
                                   fix="return a value of the pattern's own shape and dtype, or None where the rule does not hold")


def _at_a_size(rule: Rule, left: tuple[Node, ...], right: tuple[Node, ...], size: int, rng: np.random.Generator,
               tried: RuleMemory) -> tuple[tuple[Node, ...], tuple[Node, ...], dict[str, int]]:
    """Return both sides, drawn over a dim n, at one concrete n: the smallest, the drawn one, a neighbour, a larger one, or a number
    of the rule."""
    near = [m for x in tried.numbers if isinstance(x, int) for m in (x - 1, x, x + 1) if 0 < m <= LARGEST]
    for n in (int(rng.choice([1, 2, size, size + 1, 2 * size + 1, 19, *near])), size):
        try:
            one = tuple(replace_dims(left, {"n": n}))
        except TensorGraphsError:
            continue                                        # the pattern is not there at this size
        if sum(math.prod(map(int, t.shape)) for x in walk(one) for t in x.types) > 40 * MOST_ELEMENTS:
            continue
        try:
            other = tuple(replace_dims(right, {"n": n}))
        except TensorGraphsError as error:
            raise UnsoundRuleError(
                f"the rule {rule.name} is wrong at n = {n}: {first_line(error)}\n{print_graph(make_graph(list(left)))}is not\n"
                f"{print_graph(make_graph(list(right)))}", fix=_FIX) from None
        return one, other, {"n": n}
    raise Unfit("a symbolic size fits none of the sizes that were drawn for it")


def difference(instance: Instance, numeric_class: NumericClass) -> str | None:
    """Return where the sides of an instance differ by more than the numeric class allows, or None."""
    return judge(instance, numeric_class).wrong


def judge(instance: Instance, numeric_class: NumericClass, assuming: tuple[str, ...] = ()) -> Judgement:
    """Compare the sides of an instance on the elements for which the assumed conditions hold."""
    both, count = [*instance.left, *instance.right], len(instance.left)
    bits = numeric_class == BITWISE

    def values(nodes: Sequence[Node]) -> list[np.ndarray]:
        return evaluate(nodes, instance.values, {}, "as_written", use_direct=False) if bits else \
            evaluate(nodes, instance.values, {}, "real")

    try:
        results = values(both)
    except MeaningError:                                    # a scatter that sets one place twice has no value
        try:
            values(instance.left)
        except MeaningError:
            return Judgement(compared=False)
        try:
            values(instance.right)
        except MeaningError as error:
            return Judgement(f"an error instead of a value: {error.message}", (0, ()))
        raise
    left, right = results[:count], results[count:]
    differ = [_other_bits(a, b) if bits else _other_numbers(a, b) for a, b in zip(left, right, strict=True)]
    compared = any(a.dtype.kind != "f" or bool(np.isfinite(a).any()) for a in left) or bits
    if not any(d.any() for d in differ):
        return Judgement(compared=compared)
    if not bits:
        differ = _unexplained(instance, left, right, differ)
    excused = broken(both, instance.values, written_out=True) if any(d.any() for d in differ) else []

    def without(name: str, differ: list[np.ndarray]) -> list[np.ndarray]:
        return [d & ~_excuse(excused[i], name) & ~_excuse(excused[count + i], name) for i, d in enumerate(differ)]

    for name in assuming if excused else ():
        differ = without(name, differ)
    for number, (a, b, wrong) in enumerate(zip(left, right, differ, strict=True)):
        if wrong.any():
            place = tuple(int(i) for i in np.argwhere(wrong)[0])
            helps = tuple(name for name in CONDITIONS if not any(d.any() for d in without(name, differ)))
            return Judgement(f"{b[place]!s} instead of {a[place]!s} at {list(place)}", (number, place), True, helps)
    return Judgement(compared=compared)


def _excuse(places: Places, name: str) -> np.ndarray | bool:
    """Return a mask of the elements that depend on values that a condition excludes. Excluding overflow excludes underflow, too."""
    mask = places.get(name, False)
    return mask | places.get(UNDERFLOW, False) if name == OVERFLOW else mask


def _other_numbers(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a mask of the elements that differ by more than the relative tolerance. If a is NaN, b may be NaN or infinite."""
    if a.dtype.kind != "f":
        return np.asarray(a != b)
    with np.errstate(all="ignore"):
        close = np.abs(a - b) <= TOLERANCE * np.maximum(np.abs(a), np.abs(b))
        return np.asarray(~((a == b) | (np.isnan(a) & ~np.isfinite(b)) | (close & np.isfinite(a) & np.isfinite(b))))


def _unexplained(instance: Instance, left: list[np.ndarray], right: list[np.ndarray], differ: list[np.ndarray]) -> list[np.ndarray]:
    """Return masks of the differences that count: the left side is defined there, and rounding does not explain the difference.

    If the left side is undefined by its domain (0 / 0, not by overflow), the right side may not be a finite number.
    """
    both, count = [*instance.left, *instance.right], len(instance.left)
    undefined, inside = (broken(instance.left, instance.values, written_out=within) for within in (False, True))
    inner = [n for n in walk(instance.left) if len(n.types) == 1 and n.dtype.kind == "float" and n.op is not leaves.CONSTANT]

    def counted(noisy: list[list[np.ndarray]]) -> list[np.ndarray]:
        out = []
        for i, (a, b, wrong) in enumerate(zip(left, right, differ, strict=True)):
            asked = np.logical_or.reduce([np.zeros(a.shape, dtype=np.bool_), *(inside[i][n] for n in DOMAIN if n in inside[i])])
            hidden = asked & ~np.isfinite(a) & np.isfinite(b) & ~_excuse(inside[i], UNDERFLOW)
            for name, mask in undefined[i].items():
                if name != UNDERFLOW:
                    wrong = wrong & (hidden | ~mask)
            x, y = a.astype(np.float64), b.astype(np.float64)
            if largest >= BEYOND:
                wrong = wrong & np.isfinite(y)
            moved = np.zeros(a.shape)
            for run in noisy:
                for other, was in ((run[i], x), (run[count + i], y)):
                    # NaN in one run and not in another is movement without a bound, too
                    gap = np.where(other == was, 0.0, np.abs(other.astype(np.float64) - was))
                    same = np.isnan(other.astype(np.float64)) & np.isnan(was)
                    moved = np.maximum(moved, np.where(same, 0.0, np.where(np.isnan(gap), np.inf, gap)))
            gap = np.where(np.isfinite(x) & np.isfinite(y), np.abs(x - y), np.inf)
            if a.dtype.kind in "iu":                         # 64-bit integers that float64 does not tell apart
                gap = np.maximum(gap, 1.0)
            size = np.where(np.isfinite(x) & np.isfinite(y), np.maximum(np.abs(x), np.abs(y)), 0.0)
            counts = (gap > SAFETY * moved + TOLERANCE * size * (a.dtype.kind == "f")) & (gap > SMALLEST) & np.isfinite(moved)
            out.append(wrong & counts)
        return out

    with np.errstate(all="ignore"):
        largest = max((float(np.max(np.abs(v), initial=0.0, where=np.isfinite(v)))
                       for v in evaluate(inner, instance.values, {}, "real")), default=0.0)
        noisy = runs(both, instance.values)
        out = counted(noisy)
        # a thousand points are many: what eight runs leave on one side by chance gets more of them
        return out if not any(w.any() for w in out) else counted(noisy + runs(both, instance.values, MORE_RUNS))


def _other_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind in "iub":
        return np.asarray(a != b)
    x, y = a.astype(np.float64), b.astype(np.float64)
    return np.asarray(~((np.isnan(x) & np.isnan(y)) | ((x == y) & (np.signbit(x) == np.signbit(y)))))


def instances(rule: Rule, seed: int = 0, count: int = INSTANCES) -> Iterator[Instance]:
    """Yield random instances of a rule. Raises RewriteError, with the reasons, as soon as too few draws fit."""
    fits = passed = 0
    unfit: Counter[str] = Counter()
    tried = RuleMemory.of(rule)
    for draws in itertools.count():
        none_at, few_at = HOPELESS
        attempt = draws - passed                            # what is passed by is no evidence that the rule hardly fits
        if attempt >= TRIES * count or (attempt >= none_at and not fits) or (attempt >= few_at and 2 * TRIES * fits < attempt):
            reasons = unfit.most_common(3)
            why = "\n".join(f"  {n} times: {reason}" for reason, n in reasons)
            fix = "say the shapes of its variables (shapes='x[n, k] w[m, k]') or their dtypes"
            if reasons[0][0] == NOTHING:
                fix = f"return a tensor where the rule holds; if it does so for some shapes or dtypes alone, {fix}"
            raise RewriteError(f"of {attempt} draws only {fits} fit the rule {rule.name}, {count} are needed\n{why}", fix=fix)
        try:
            instance = draw_instance(rule, np.random.default_rng([seed, draws]), tried=tried, attempt=draws)
        except NothingNew:
            passed += 1
            continue
        except Unfit as e:
            unfit[str(e)] += 1
            continue
        fits += 1
        yield instance
        if fits == count:
            return


def _grids(rule: Rule, seed: int) -> Iterator[tuple[Instance, Instance]]:
    """Yield for each dtype a pair: an instance of a thousand points that hold all combinations of the variables' values, and a
    similar instance of one element, which can show a single point. Yield nothing for rules with `shapes`, whose sizes multiply."""
    if any(entry.dims is not None for entry in rule.said.values()):
        return
    tried = RuleMemory.of(rule)
    for number, dtype in enumerate(t for t in DTYPES.values() if is_among(t, rule.dtypes)):
        for attempt, shape in enumerate(((POINTS,), (1, POINTS), (POINTS, 1))):
            def drawn(shape: tuple[int, ...], at: tuple[int, ...] = (number, attempt), dtype: DType = dtype) -> Instance:
                return draw_instance(rule, np.random.default_rng([seed, *at, 1]), (dtype, shape), grid, tried=tried)

            try:
                instance, one = drawn(shape), drawn((1,) * len(shape))
            except Unfit:
                continue
            if sum(t.size() for n in walk((*instance.left, *instance.right)) for t in n.types) <= LARGEST_GRID:
                yield instance, one
                break


def _at_one_point(rule: Rule, instance: Instance, one: Instance,
                  place: tuple[int, tuple[int, ...]]) -> tuple[Instance, Judgement] | None:
    """Return the one-element instance at a point of a grid with its judgement, or None if it does not show the difference."""
    number, index = place
    shape = tuple(int(s) for s in instance.left[number].shape)
    if math.prod(shape) != POINTS:
        return None
    flat = int(np.ravel_multi_index(index, shape))
    values = {n.attrs["name"]: v.reshape(-1)[flat] if v.size == POINTS else v for n, v in instance.values.items()}
    try:
        shown = Instance(one.left, one.right, {n: values[n.attrs["name"]].reshape([int(s) for s in n.shape]) for n in one.values})
    except (KeyError, ValueError):
        return None
    judged = judge(shown, rule.numeric_class, rule.assuming)
    return (shown, judged) if judged.wrong is not None else None


def admit(rule: Rule, seed: int = 0, count: int = INSTANCES, fingerprints: int = FINGERPRINTS) -> Admitted:
    """Compare the sides of a rule on `count` random instances. Raises UnsoundRuleError at the first that shows a difference."""
    proved = compared = 0
    first: list[Instance] = []
    drawn = Drawn()
    for instance in instances(rule, seed, count):
        drawn.add(instance.left, instance.values, instance.attributes, instance.binding)
        judged = judge(instance, rule.numeric_class, rule.assuming)
        if judged.wrong is not None:
            raise _refused(rule, *_smallest(rule, instance, judged, seed))
        compared += judged.compared
        first += [instance] if len(first) < fingerprints else []
    for instance, one in _grids(rule, seed):
        drawn.add(instance.left, instance.values, instance.attributes, instance.binding, grid=True)
        judged = judge(instance, rule.numeric_class, rule.assuming)
        if judged.place is not None:
            raise _refused(rule, *(_at_one_point(rule, instance, one, judged.place) or (instance, judged)))
    for instance in first:
        verdict = equal(*instance.graphs())
        proved += verdict.proved
        if verdict.status == "refuted" and not rule.assuming and verdict.counterexample is not None:
            raise UnsoundRuleError(_counterexample(rule, instance, verdict.counterexample.show(), values=False), fix=_FIX)
    if compared * FEWEST < count:
        raise RewriteError(f"the rule {rule.name} could be compared on {compared} of {count} instances only: elsewhere its left "
                           f"side {rule.text!r} is infinite or NaN", fix="a pattern that is defined for ordinary numbers")
    return Admitted(rule, count, proved, drawn)


def _smallest(rule: Rule, instance: Instance, judged: Judgement, seed: int) -> tuple[Instance, Judgement]:
    """Return the smallest instance that shows a difference, among the given one and SMALL_DRAWS small ones, with its judgement."""
    tried, best = RuleMemory.of(rule), (instance, judged)

    def extent(one: Instance) -> tuple[int, int]:
        return sum(v.size for v in one.values.values()), sum(n.rank for n in one.values)

    for attempt in range(SMALL_DRAWS):
        try:
            one = draw_instance(rule, np.random.default_rng([seed, attempt, 2]), tried=tried, attempt=attempt, small=True)
        except (Unfit, RewriteError):
            continue
        if extent(one) < extent(best[0]):
            now = judge(one, rule.numeric_class, rule.assuming)
            best = (one, now) if now.wrong is not None else best
    return best


_FIX = "a condition (return None where it does not hold), or a weaker numeric class"


def _refused(rule: Rule, instance: Instance, judged: Judgement) -> UnsoundRuleError:
    fix = _FIX
    if judged.excused_by:
        fix = f"assuming=({judged.excused_by[0]!r},), if that holds wherever the rule is to be used; or {fix}"
    return UnsoundRuleError(_counterexample(rule, instance, str(judged.wrong)), fix=fix)


def _counterexample(rule: Rule, instance: Instance, wrong: str, values: bool = True) -> str:
    """Return a message with both sides and the inputs at which they differ. values: include those of the instance."""
    a, b = instance.graphs()
    settings = [f"  {name} = {value}" for name, (_, value) in instance.attributes.items()]
    settings += [f"  n = {n} (a dim)" for n in instance.binding.values()]
    shown = {n.attrs["name"]: v if v.dtype.kind in "iub" else v.astype(np.float64) for n, v in instance.values.items()}
    lines = "\n".join(settings + [f"  {name} = {np.array2string(v, threshold=12, precision=17)}" for name, v in shown.items()])
    if values:
        lines += _both_results(rule, instance)
    return (f"the rule {rule.name} ({rule.numeric_class}) is wrong: {wrong}\n{print_graph(a)}is not\n{print_graph(b)}"
            f"{f'for{chr(10)}{lines}{chr(10)}' if values else ''}")


def _both_results(rule: Rule, drawn: Instance) -> str:
    text = ""
    for name, side in (("left", drawn.left), ("right", drawn.right)):
        try:
            results = evaluate(side, drawn.values, {}, "as_written" if rule.numeric_class == BITWISE else "real", use_direct=False)
        except MeaningError as error:
            text += f"\n  {name} side: {error.message}"
            continue
        for a in results:
            numbers = a if a.dtype.kind in "iub" else a.astype(np.float64)
            text += f"\n  {name} side = {np.array2string(numbers, threshold=12, precision=17)}"
    return text


def user_rule(pattern: str | tuple[str, ...], numeric_class: NumericClass = "reassociating",
              **options: Any) -> Callable[[Callable[..., Any]], Rule]:
    """Decorate a function as a rule, `@tg.rule("mul(add(a, b), c)")`: compare its sides, and add the rule to the built-in rules in
    every later compile, list or profile.

    Options are those of rewrites.rule.Rule (assuming, shapes, dtypes, …). Raises UnsoundRuleError with a counterexample,
    RewriteError if another rule has the name.
    """
    if callable(pattern):
        raise PatternError("@tg.rule has no pattern", fix='@tg.rule("add(x, y)") above the function')
    require_pattern(pattern)

    def register(replacement: Callable[..., Any]) -> Rule:
        rule = make_rule(pattern, numeric_class, replacement, **options)
        code = code_of(getattr(replacement, "__module__", None) or "__main__", [replacement], (), rule.text).digest
        place = here()
        require_free(rule.name, place, code)
        log.info("%s", admit(rule).show())
        put(rule, place, code)
        return rule

    return register

