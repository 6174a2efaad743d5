"""equality: a verdict on two graphs being the same function: proved, refuted, or unknown.

    verdict = equal(a, b)
    verdict.status      "structural" | "fingerprint" | "approximate" | "tested" | "refuted" | "unknown"
    verdict.proved      True for the first two

Leaves of the two graphs are paired by kind and name, outputs by name (by position, where names differ). Paired float leaves and
outputs may differ in width, as real numbers have none. With bits=True they may not, and every narrowing cast, and the rounding of
every op on floats below 32 bits, is a function that has to match. Arithmetic in f32 and f64 is that of real numbers even then. So
graphs equal by fingerprint are reassociating: the same real number, rounded to the same narrow widths at the same points, and
otherwise rounded in f32 and f64. Only "structural" means bitwise equal. Without bits, licences to round (narrowing casts, `rounded`
and products of such operands) are identities; a verdict names them.

A proof by fingerprint needs agreement at every size and point (fingerprint.py), every node inside the fragment in which that is a
proof (decidable_fragment.py), and no float64 run that contradicts it. Agreement with a node outside of it is "tested". A refutation
needs inputs where float64 results differ by more than rounding explains (counterexample.py). All else is unknown, with a reason.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language import dims as d
from tensor_graphs.language.composite import LIBRARY, expand_all
from tensor_graphs.language.composites.quantise import without_blocks
from tensor_graphs.language.composites.rounded import without_licences
from tensor_graphs.language.dim_proofs import proved_equal
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.explain_call_errors import worded
from tensor_graphs.language.graph import Graph, replace_dims, require_graph
from tensor_graphs.language.node import Node, rebuild, walk
from tensor_graphs.meaning.same_math import licensed_unit
from tensor_graphs.proof import counterexample, decidable_fragment, piecewise_sizes, ranges, size_breakpoints
from tensor_graphs.proof.counterexample import Counterexample
from tensor_graphs.proof.errors import OutsideFragmentError, TooMuchToComputeError
from tensor_graphs.proof.fingerprint import MOST_WORK, Points, compare
from tensor_graphs.proof.normal_form import in_atoms, literals_as_held, rounding_aloud
from tensor_graphs.proof.sizes import Sizes, choose, unseen
from tensor_graphs.proof.sizes_as_dims import has_large_sizes, with_dims

log = logging.getLogger(__name__)

Status = Literal["structural", "fingerprint", "approximate", "tested", "refuted", "unknown"]

LARGEST_RUN = 40_000_000
"""Largest cost of one run in float64 (in units of counterexample.cost): a seventh of a second."""

_WORK_AT_SIZES = MOST_WORK // 16
"""Most elements times points at fixed sizes before large ones are replaced by dims, as a proof over dims takes less."""

_RUNS_WORK = 150_000_000
"""Largest cost of all float64 runs of one comparison: half a second."""


@dataclass(frozen=True)
class EqualityVerdict:
    """Verdict on two graphs; status is the key "verdict" of as_json.

    probability: of different graphs passing as equal (fingerprint only; at most 2^-24). sizes: those compared. tested_at: by dim,
    the numbers of the program that meet it; for such a dim the proof is shown as "tested" at the sizes, not as "compared".
    assuming: the assumptions, first the sizes common to both graphs, where their dims differ. counterexample: inputs (refuted
    only). reason: why the verdict is unknown, or only tested. difference: largest relative difference of float64 runs, None without
    runs. licences: the licences to round in the graphs, which are identities without bits. formats: of
    blocks in which the graphs store weights, where they are equal but for these (approximate only).
    """

    status: Status
    probability: float | None = None
    sizes: tuple[Mapping[str, int], ...] = ()
    tested_at: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    assuming: tuple[str, ...] = ()
    counterexample: Counterexample | None = None
    reason: str = ""
    difference: float | None = None
    bits: bool = False
    licences: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()

    @property
    def proved(self) -> bool:
        return self.status in ("structural", "fingerprint")

    def __bool__(self) -> bool:
        raise TypeError("a verdict has six values, not two; ask verdict.proved, or compare verdict.status")

    def __str__(self) -> str:
        return self.show()

    def show(self) -> str:
        """Return the verdict as a few lines of text, which print shows."""
        assuming = [f"  assuming {', '.join(self.assuming)}"] if self.assuming else []
        if self.licences:
            reals = "" if self.bits else "over the real numbers they change nothing, "
            assuming.append(f"  licences to round: {', '.join(self.licences)}; {reals}with bits they count")
        shown = "" if self.difference is None else f"\n  largest relative difference in float64: {self.difference:.1e}"
        if self.status == "approximate":
            return "\n".join([f"approximate: equal, were numbers not stored in blocks of {', '.join(self.formats)}", *assuming])
        if self.status == "structural":
            return "\n".join(["equal: the same graph once composites are written out", *assuming])
        if self.status == "refuted":
            assert self.counterexample is not None
            return "not equal:\n" + self.counterexample.show()
        if self.status == "unknown":
            return "\n".join([f"not known: {self.reason}{shown}", *assuming])
        if self.status == "tested":
            at = "; ".join(", ".join(f"{k} = {v}" for k, v in s.items()) for s in self.sizes if s)
            return "\n".join([f"not proved: the same wherever it was looked at{f', which is at {at}' if at else ''}",
                              f"  not seen: {self.reason}{shown}", *assuming])
        lines = [f"equal: the same values at random points of finite fields (wrong with probability ≤ {self.probability:.1e})"
                 if self.probability else
                 "equal: the same graph once composites are written out and licences to round are left out"]
        if any(self.sizes):
            at = "; ".join(", ".join(f"{k} = {v}" for k, v in s.items()) for s in self.sizes)
            meets = "; ".join(f"{k} meets {', '.join(map(str, v))}" for k, v in self.tested_at.items())
            lines.append(f"  {'tested' if self.tested_at else 'compared'} at {at}{f' ({meets})' if meets else ''}")
        return "\n".join([*lines, *assuming])

    def as_json(self) -> dict[str, Any]:
        return {"verdict": self.status, "probability": self.probability, "sizes": [dict(s) for s in self.sizes],
                "tested_at": {k: list(v) for k, v in self.tested_at.items()}, "assuming": list(self.assuming),
                "counterexample": None if self.counterexample is None else self.counterexample.as_json(),
                "reason": self.reason, "difference": None if self.difference is None else str(self.difference)
                if self.difference == float("inf") else self.difference, "mode": "bits" if self.bits else "math",
                "licences": list(self.licences), "formats": list(self.formats)}


@worded
def equal(a: Graph, b: Graph, *, bits: bool = False, seed: int = 0) -> EqualityVerdict:
    """Return the verdict on a and b computing the same outputs (and new states) for all inputs; see the module's docstring.

    bits: True (mode *bits*): narrowing casts count, and a proof means reassociating at worst. False (mode *math*): floats are real
    numbers, and a proof means approximate at worst. Deterministic for a given seed. Never raises for well-formed graphs: if nothing
    can be decided, the verdict is "unknown", with the reason. Raises GraphError for an argument that is no graph.
    """
    a, b = require_graph(a, "equal"), require_graph(b, "equal")
    verdict = _verdict(a, b, bits, seed)
    if not verdict.proved and not bits:
        (left, of_left), (right, of_right) = without_blocks(a), without_blocks(b)
        exact = _verdict(left, right, bits, seed) if of_left or of_right else verdict
        if exact.proved:
            return replace(exact, status="approximate", formats=tuple(dict.fromkeys((*of_left, *of_right))))
    return verdict


def _verdict(a: Graph, b: Graph, bits: bool, seed: int) -> EqualityVerdict:
    try:
        left, right, common = _together(a, b, bits)
    except TensorGraphsError as e:
        return EqualityVerdict("unknown", reason=_first_line(e), bits=bits)
    if all(x is right[name] for name, x in left.items()):
        return EqualityVerdict("structural", assuming=common, bits=bits)
    roots = [*left.values(), *right.values()]
    licences = _licences(roots)
    try:
        expanded = expand_all(roots)
        if expanded[:len(left)] == expanded[len(left):]:
            return EqualityVerdict("structural", assuming=common, bits=bits)
        if not bits and licensed_unit(roots):
            roots = without_licences(roots)
            left, right = _by_name(left, roots)
            expanded = expand_all(roots)
            if expanded[:len(left)] == expanded[len(left):]:
                return EqualityVerdict("fingerprint", 0.0, assuming=common, licences=licences)
    except TensorGraphsError as e:
        return EqualityVerdict("unknown", reason=_first_line(e), bits=bits)
    if bits:                                                # in the runs, too
        roots = literals_as_held(roots)
        left, right = _by_name(left, roots)
    return replace(_decided(left, right, expanded, common, bits, seed), licences=licences)


def _by_name(names: Mapping[str, Node], roots: Sequence[Node]) -> tuple[dict[str, Node], dict[str, Node]]:
    """Return the roots of both graphs by the names of the first one's."""
    return dict(zip(names, roots[:len(names)], strict=True)), dict(zip(names, roots[len(names):], strict=True))


def _licences(roots: Sequence[Node]) -> tuple[str, ...]:
    """Return texts on the nodes that may round, outside of the definitions of the library's composites."""
    nodes = walk(expand_all(roots, lambda node: LIBRARY.get(node.op.name) is node.op))
    roundings = [node for node in nodes if node.op.facts.licence or (
        node.op.name == "cast" and node.dtype.is_float and node.inputs[0].dtype.is_float
        and node.dtype.itemsize < node.inputs[0].dtype.itemsize)]
    return tuple(dict.fromkeys(f"{node.op.name} to {node.attrs.get('to', node.dtype)}" for node in roundings))


def _decided(left: Mapping[str, Node], right: Mapping[str, Node], expanded: Sequence[Node], common: tuple[str, ...], bits: bool,
             seed: int, as_dims: bool = True) -> EqualityVerdict:
    """Return the verdict on graphs that are not structurally equal. expanded: both, with composites expanded. as_dims: sizes too
    large to compute with may become dims."""
    roots = [*left.values(), *right.values()]
    symbols = _symbols(roots)
    compared: _AtPoints | None = None
    why_not_at_any = ""
    try:
        try:
            compared = _compared_at_points(list(left.values()), list(right.values()), symbols, bits, seed,
                                        _WORK_AT_SIZES if as_dims and has_large_sizes(roots) else MOST_WORK)
        except TooMuchToComputeError:
            if not (as_dims and has_large_sizes(roots)):
                raise
            proved, why_not_at_any = _at_any_size(left, right, common, bits, seed)
            if proved is not None:
                return proved
            compared = _compared_at_points(list(left.values()), list(right.values()), symbols, bits, seed)
        reason, weak, sizes, done = compared.reason, compared.weak, compared.sizes, list(compared.done)
    except TensorGraphsError as e:
        reason, weak, done = _first_line(e), "", []
        if why_not_at_any and isinstance(e, TooMuchToComputeError):
            reason = f"{reason}, and {why_not_at_any}"
        sizes = _sizes(roots, symbols)
    if compared is not None and compared.differing is not None:
        trial = counterexample.attempt(left, right, compared.differing[0], 0, seed, values=compared.differing[1])
        if trial is not None and trial.example is not None:
            return EqualityVerdict("refuted", counterexample=trial.example, difference=trial.difference, bits=bits)
    difference: float | None = None
    allowed = _RUNS_WORK
    numbers = counterexample.numbers_at(expanded) if reason or weak else []
    for run_at, kind, trial_seed in itertools.islice(
            counterexample.trials(_runnable(sizes, done, roots), numbers), None if reason or weak else 2):
        try:
            size = counterexample.cost(roots, run_at)
            again = counterexample.PERTURBED * counterexample.work(expanded, run_at)
            use_direct = counterexample.FEWEST_RUNS * again > _RUNS_WORK
            if use_direct:
                again = counterexample.cost(roots, run_at, True)
            if size > LARGEST_RUN or size + counterexample.FEWEST_RUNS * again > allowed:
                continue
            trial = counterexample.attempt(left, right, run_at, kind, seed + trial_seed, use_direct, {}, numbers)
        except TensorGraphsError:
            continue
        allowed -= size + (0 if trial is None else again * trial.perturbed)
        if trial is None:
            continue
        difference = max(difference or 0.0, trial.difference)
        if trial.example is not None:
            if not reason and not weak:
                log.warning("a fingerprint says equal, float64 differs: %s", trial.example.show())
                return EqualityVerdict("unknown", difference=difference, sizes=tuple(done), bits=bits,
                                       reason="the fingerprints agree, but float64 runs differ by more than their rounding")
            return EqualityVerdict("refuted", counterexample=trial.example, difference=difference, bits=bits)
    if compared is None or reason:
        return EqualityVerdict("unknown", reason=reason, difference=difference, sizes=tuple(done), bits=bits)
    assuming = (*common, *_assuming(compared.points))
    return EqualityVerdict("tested" if weak else "fingerprint", compared.probability, tuple(done), sizes.met, assuming, reason=weak,
                           difference=difference, bits=bits)


def _at_any_size(left: Mapping[str, Node], right: Mapping[str, Node], common: tuple[str, ...], bits: bool,
                 seed: int) -> tuple[EqualityVerdict | None, str]:
    """Return (a proof over dims in place of large sizes, which covers these sizes, ""), or (None, the reason as text)."""
    why = "nothing was found that they are at any size"
    for flat in with_dims(in_atoms([*left.values(), *right.values()]), bits):
        one, other = dict(zip(left, flat[:len(left)], strict=True)), dict(zip(right, flat[len(left):], strict=True))
        verdict = _decided(one, other, flat, common, bits, seed, as_dims=False)
        if verdict.proved:
            return verdict, ""
        why = f"over dims in place of large sizes {verdict.reason or 'they differ'}"
    return None, why


def _sizes(roots: Sequence[Node], symbols: Mapping[str, tuple[int, int]]) -> Sizes:
    """Return sizes for float64 runs where the comparison chose none: as it would choose them, else the lowest."""
    try:
        return choose(in_atoms(roots), symbols)
    except TensorGraphsError:
        return Sizes(({name: low for name, (low, _) in symbols.items()},), {}, {})


@dataclass(frozen=True)
class _AtPoints:
    """Result of the comparison at points. done: sizes compared. reason: why the result is unknown, or "". weak: why agreement is no
    proof, or "". differing: sizes and values of leaves at which exact results differ."""

    points: Points
    sizes: Sizes
    done: tuple[Mapping[str, int], ...]
    probability: float
    reason: str
    weak: str
    differing: tuple[Mapping[str, int], Mapping[str, Any]] | None = None


def _compared_at_points(left: list[Node], right: list[Node], symbols: Mapping[str, tuple[int, int]], bits: bool,
                        seed: int, work: int = MOST_WORK) -> _AtPoints:
    """Compare both graphs, first with fresh leaves for nodes that they share and the fragment does not prove; if that is no proof,
    compare the graphs unchanged. work: most elements times points; if below MOST_WORK, a comparison that costs too much raises and
    is not skipped. Raises OutsideFragmentError."""
    flat = in_atoms([*left, *right])
    if bits:
        flat = rounding_aloud(flat)
    flat = _same_numbers(flat)
    flat = _cut(flat, len(left), lambda node: node.op.name in ("cast", "bitcast") and node.dtype.kind != "float" and
                node.inputs[0].dtype.kind == "float" and _hangs(node))
    points = Points([flat[:len(left)], flat[len(left):]], bits)
    sizes = choose(points.order, symbols)
    findings = decidable_fragment.weak(points.order, points.roots, points.given, sizes.bindings[0])
    wrapping = ranges.find(points.order, sizes.bindings, symbols, points.shared, bits)
    unproved = (*findings.weak, *findings.meets, *findings.calls, *wrapping.nodes)
    apart = {n for n in unproved if n in points.shared and n.op not in leaves.NAMED_LEAVES}
    cut = _cut(flat, len(left), lambda node: node in apart) if apart else flat
    if cut == flat:
        return _over_sizes(points, sizes, findings, symbols, bits, seed, work)
    over = Points([cut[:len(left)], cut[len(left):]], bits)
    try:
        fewer = choose(over.order, symbols)
        fewer_findings = decidable_fragment.weak(over.order, over.roots, over.given, fewer.bindings[0])
        result = _over_sizes(over, fewer, fewer_findings, symbols, bits, seed, work)
        if not result.reason and not result.weak:
            return result
    except TensorGraphsError as e:
        if isinstance(e, TooMuchToComputeError) and work < MOST_WORK:
            raise
        log.debug("over fresh leaves: %s", e)
    return _over_sizes(points, sizes, findings, symbols, bits, seed, work)


def _same_numbers(flat: list[Node]) -> list[Node]:
    """Return graphs in which constants that are equal at all sizes are one node."""
    different: list[Node] = []
    same: dict[Node, Node] = {}
    for node in walk(flat):
        if node.op is leaves.CONSTANT and isinstance(node.attrs["value"], d.Expr):
            one = next((k for k in different if k.type == node.type and proved_equal(k.attrs["value"], node.attrs["value"])), None)
            if one is None:
                different.append(node)
            else:
                same[node] = one
    return rebuild(flat, lambda node, inputs: same.get(node)) if same else flat


def _hangs(node: Node) -> bool:
    return any(n.op in leaves.NAMED_LEAVES for n in walk([node]))


def _cut(flat: list[Node], count: int, wanted: Callable[[Node], bool]) -> list[Node]:
    """Return graphs with fresh leaves for wanted nodes that both have: graphs equal over any values of these leaves are equal."""
    shared = set(walk(flat[:count])) & set(walk(flat[count:]))
    fresh = {node: leaves.input(f"cut_of_both_{k}", node.shape, node.dtype)
             for k, node in enumerate(walk(flat)) if node in shared and wanted(node)}
    return rebuild(flat, lambda node, inputs: fresh.get(node)) if fresh else flat


def _over_sizes(points: Points, sizes: Sizes, findings: decidable_fragment.Findings, symbols: Mapping[str, tuple[int, int]],
                bits: bool, seed: int, work: int) -> _AtPoints:
    needed = piecewise_sizes.find(points.order, sizes.bindings, symbols)
    sizes = sizes.with_more(needed.added, needed.met)
    moved = size_breakpoints.find(points.order, findings.positions, sizes.bindings[0], symbols)
    sizes = sizes.with_more([b for b in moved.added if b not in sizes.bindings], {})
    wrapping = ranges.find(points.order, sizes.bindings, symbols, points.shared, bits)
    sizes = sizes.with_more(wrapping.added, {})
    every = _all_sizes(symbols)
    if every is not None:
        sizes = sizes.with_more([b for b in every if b not in sizes.bindings], {})
    drawn = [] if every is not None else _lattice(findings.degree, findings.reach, symbols)
    reason, probability, done, tied, exact, budget = "", 0.0, [], False, True, work
    differing: tuple[Mapping[str, int], Mapping[str, Any]] | None = None
    no_proof = ("no proof was found, and no inputs that refute it: fingerprints, which take some ops for any function, differ in "
                "{}, as they may for equal graphs")
    for binding in sizes.bindings:
        try:
            agreement = compare(points, binding, budget, seed)
        except d.DimError:
            continue                                        # sizes that do not go together
        if not agreement.equal:
            reason = no_proof.format(agreement.where)
            differing = (binding, agreement.values) if agreement.values else None
            break
        tied |= agreement.tied
        exact &= agreement.exact
        budget -= agreement.work
        probability = max(probability, agreement.probability)
        done.append(binding)
    beyond, all_drawn = [sizes.further] * (sizes.further not in done and every is None), True
    for binding in () if reason else (*beyond, *(drawn or ())):
        try:
            agreement = compare(points, binding, min(budget, MOST_WORK // 8), seed)
            if not agreement.equal:
                reason = no_proof.format(agreement.where)
                break
            tied |= agreement.tied
            exact &= agreement.exact
            done.append(binding)
        except (OutsideFragmentError, d.DimError) as e:
            if isinstance(e, TooMuchToComputeError) and work < MOST_WORK:
                raise
            log.debug("not compared at %s: too much", binding)
            all_drawn = False
    if not done and not reason:
        reason = "no choice of sizes at which both graphs have a meaning"
    if not reason:
        reason = needed.missing or wrapping.missing or _left_out((*needed.added, *wrapping.added), done)
    if not reason and (hidden := unseen(points.order, done, symbols)) is not None:
        reason = f"{hidden.op.name} of sizes comes out otherwise at large sizes than at those compared"
    weak = "values are compared both ways, and what happens at ties was not seen" if tied else ""
    if not reason and (every is None or not all(b in done for b in every)):
        if exact:                                           # whatever the table says of integers, all their values were tried
            of_sizes = {n: row for n, row in findings.weak.items() if set(row.operands) <= {"position", "size"}}
            findings = replace(findings, weak=of_sizes)
        weak = weak or _weak(findings, bool(wrapping.added), drawn is not None and all_drawn, done, symbols)
        weak = weak or moved.missing or _left_out(moved.added, done)
    return _AtPoints(points, sizes, tuple(done), probability, reason, weak, differing)


_MOST_SIZES = 12


def _all_sizes(symbols: Mapping[str, tuple[int, int]]) -> list[dict[str, int]] | None:
    """Return all combinations of sizes, or None where they are more than _MOST_SIZES."""
    if math.prod(high - low + 1 for low, high in symbols.values()) > _MOST_SIZES:
        return None
    names = list(symbols)
    ranges_ = (range(low, high + 1) for low, high in symbols.values())
    return [dict(zip(names, at, strict=True)) for at in itertools.product(*ranges_)]


_MOST_LATTICE = 40


def _lattice(degree: int, reach: int, symbols: Mapping[str, tuple[int, int]]) -> list[dict[str, int]] | None:
    """Return sizes such that only the zero polynomial of this degree in the sizes vanishes at all of them: the principal lattice of
    a simplex (Chung and Yao 1977). None where these would be too many, or above the dims' ranges."""
    free = [name for name, (low, high) in symbols.items() if high > low]
    if not degree:
        return []
    if math.comb(degree + len(free), len(free)) > _MOST_LATTICE:
        return None
    first = {name: max(low, min(reach, high - degree)) for name, (low, high) in symbols.items()}
    if any(first[name] + degree > symbols[name][1] for name in free):
        return None
    steps = (at for at in itertools.product(range(degree + 1), repeat=len(free)) if sum(at) <= degree)
    return [{**first, **{name: first[name] + k for name, k in zip(free, at, strict=True)}} for at in steps]


def _weak(findings: decidable_fragment.Findings, wraps: bool, drawn: bool, done: Sequence[Mapping[str, int]],
          symbols: Mapping[str, tuple[int, int]]) -> str:
    """Return why agreement at these sizes is no proof for all sizes, or ""."""
    if findings.weak:
        node, row = next(iter(findings.weak.items()))
        return f"{decidable_fragment.op_name(node)} of what follows from sizes ({row.reason}){_written(node)}"
    if findings.meets:
        node = next(iter(findings.meets))
        return f"a number of the program meets a size in {node.op.name}, and other sizes were not looked at{_written(node)}"
    if findings.calls:
        return "min, max or // of sizes may come out otherwise at sizes that were not looked at"
    if wraps:
        return "integers leave their dtype at some sizes, and not all of these were looked at"
    if findings.degree and not drawn:
        return f"it is a polynomial of degree {findings.degree} in the sizes, more than sizes were looked at"
    largest = [max(b[name] for b in done) for name, (_, high) in symbols.items()]
    if any(findings.reach > most < high for most, (_, high) in zip(largest, symbols.values(), strict=True)):
        return f"a term takes up {findings.reach} places of an axis, more than it had at the sizes looked at"
    return ""


def _written(node: Node) -> str:
    return f", written at {node.location}" if node.location else ""


def _left_out(needed: Sequence[Mapping[str, int]], done: Sequence[Mapping[str, int]]) -> str:
    """Return a message that names the first needed sizes that were not compared, or "" if there are none."""
    missing = next((binding for binding in needed if binding not in done), None)
    return "" if missing is None else f"the sizes {', '.join(f'{k} = {v}' for k, v in missing.items())} were not compared"


def _first_line(e: TensorGraphsError) -> str:
    return str(getattr(e, "message", "") or e).splitlines()[0]


def _assuming(points: Points) -> tuple[str, ...]:
    assumptions = dict.fromkeys(
        n.op.facts.assumes for n in points.order if n.op.facts.assumes and n.inputs[0].dtype.kind == "float")
    if any(n.op.name == "scatter" and n.attrs["mode"] == "set" and _hangs(n.inputs[1]) for n in points.order):
        assumptions["no two writes of a scatter to one place"] = None
    if any(n.dtype.kind == "float" for n in points.order):
        assumptions["finite inputs"] = assumptions["no overflow"] = None
    return tuple(assumptions)


def _symbols(roots: Sequence[Node]) -> dict[str, tuple[int, int]]:
    graph = Graph({str(i): r for i, r in enumerate(roots)}, {})
    return {name: d.bounds(x) for name, x in graph.dims.items()}


def _runnable(sizes: Sizes, done: Sequence[Mapping[str, int]], roots: Sequence[Node]) -> list[Mapping[str, int]]:
    """Return sizes for float64 runs: the one where the fingerprints differed comes first, those where they agreed come last."""
    rest = [s for s in sizes.bindings if s not in done]
    beyond = {name: min(high, max(low, 37 + place)) for place, (name, (low, high)) in enumerate(_symbols(roots).items())}
    return [*rest[:1], *([beyond] if not rest else []), *done[:1], *rest[1:], *done[1:], beyond]


# ---- the same leaves, dims and outputs -------------------------------------------------------------------------------


def _together(a: Graph, b: Graph, bits: bool) -> tuple[dict[str, Node], dict[str, Node], tuple[str, ...]]:
    """Return the outputs and new states of both graphs by name, over the same leaves and dims, and the common sizes as texts.
    Raises OutsideFragmentError where leaves or outputs cannot be paired."""
    pairs = _pairs(a, b)
    to_a: dict[str, Dim] = {}
    to_b: dict[str, Dim] = {}
    for x, y in pairs:
        if x.rank != y.rank or (x.dtype != y.dtype and (bits or x.dtype.kind != "float" or y.dtype.kind != "float")):
            raise _two_types(x, y)
        for one, other in zip(x.shape, y.shape, strict=True):
            _unify(one, other, to_a, to_b)
    for name in a.dims.keys() & b.dims.keys() - to_a.keys() - to_b.keys():
        _unify(a.dims[name], b.dims[name], to_a, to_b)
    left, right = _output_names(a, b)
    new_a = replace_dims(list(left.values()), to_a) if to_a else list(left.values())
    new_b = replace_dims(list(right.values()), to_b) if to_b else list(right.values())
    now: dict[tuple[Any, str], Node] = {(n.op, n.attrs["name"]): n for n in walk(new_a) if n.op in leaves.NAMED_LEAVES}
    for x in ([replace_dims([x], to_a)[0] for x, _ in pairs] if to_a else [x for x, _ in pairs]):
        now.setdefault((x.op, x.attrs["name"]), x)
    names = {(y.op, y.attrs["name"]): (x.op, x.attrs["name"]) for x, y in pairs}

    def replace(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        if node.op not in leaves.NAMED_LEAVES or (node.op, node.attrs["name"]) not in names:
            return None
        x = now[names[node.op, node.attrs["name"]]]
        if x.shape != node.shape:
            raise _two_types(x, node)
        return atomic.cast(x, node.dtype)

    new_b = rebuild(new_b, replace)
    for name, x, y in zip(left, new_a, new_b, strict=True):
        if x.rank != y.rank or (x.dtype != y.dtype and (bits or not x.dtype.kind == y.dtype.kind == "float")):
            raise OutsideFragmentError(f"{name} is {x.type} in one graph and {y.type} in the other")
    common = dict.fromkeys([*_narrowed(a.dims, to_a), *_narrowed(b.dims, to_b)])
    return dict(zip(left, new_a, strict=True)), dict(zip(left, new_b, strict=True)), tuple(common)


def _narrowed(dims: Mapping[str, Dim], to: Mapping[str, Dim]) -> Iterator[str]:
    """Yield a text for each dim that lost sizes when it was unified with a dim of the other graph."""
    for name, new in to.items():
        if name not in dims:
            continue
        if isinstance(new, d.Expr) and [str(new)] == list(new.symbols):
            low, high = d.bounds(new)
            if (low, high) != d.bounds(dims[name]):
                yield f"{new} from {low} to {high}"
        else:
            yield f"{name} = {new}"


def _two_types(x: Node, y: Node) -> OutsideFragmentError:
    return OutsideFragmentError(f"{x.op.name} {x.attrs['name']!r} is {x.type} in one graph and {y.type} in the other")


def _pairs(a: Graph, b: Graph) -> list[tuple[Node, Node]]:
    """Return pairs of corresponding leaves (of a, of b): by kind and name, else by name alone."""
    pairs = []
    left_b = {kind: dict(getattr(b, kind)) for kind in ("inputs", "parameters", "states")}
    alone: list[Node] = []
    for kind, other in left_b.items():
        one: Mapping[str, Node] = getattr(a, kind)
        alone += [x for name, x in one.items() if name not in other]
        pairs += [(x, other.pop(name)) for name, x in one.items() if name in other]
    for x in alone:                                         # a parameter of one may be an input of the other
        for other in left_b.values():
            if x.attrs["name"] in other:
                pairs.append((x, other.pop(x.attrs["name"])))
                break
    return pairs


def _unify(one: Dim, other: Dim, to_a: dict[str, Dim], to_b: dict[str, Dim]) -> None:
    """Make two sizes of one axis equal by entries in to_a and to_b (new dims by name); one of the sizes must be a single symbol.
    Raises OutsideFragmentError where they cannot be equal."""
    one = d.substitute(one, {k: v for k, v in to_a.items() if isinstance(one, d.Expr) and k in one.symbols})
    other = d.substitute(other, {k: v for k, v in to_b.items() if isinstance(other, d.Expr) and k in other.symbols})
    if one == other:
        return
    alone_a = isinstance(one, d.Expr) and [str(one)] == list(one.symbols)
    alone_b = isinstance(other, d.Expr) and [str(other)] == list(other.symbols)
    if alone_a and alone_b:
        (low, high), (low_b, high_b) = d.bounds(one), d.bounds(other)
        low, high = max(low, low_b), min(high, high_b)
        if low > high:
            raise OutsideFragmentError(f"the dim {one} from {d.bounds(one)[0]} to {d.bounds(one)[1]} of one graph and {other} from "
                                       f"{low_b} to {high_b} of the other have no size in common")
        joined = d.dim(str(one), low, high)
        if joined != one:
            to_a[str(one)] = joined
        if joined != other:
            to_b[str(other)] = joined
    elif alone_b:
        to_b[str(other)] = _within(one, other)
    elif alone_a:
        to_a[str(one)] = _within(other, one)
    else:
        raise OutsideFragmentError(f"an axis has the size {one} in one graph and {other} in the other")


def _within(size: Dim, dim: Dim) -> Dim:
    """Return the size that replaces a dim. Raises OutsideFragmentError where it may be outside the range of the dim."""
    (low, high), (least, most) = d.bounds(size), d.bounds(dim)
    if low < least or high > most:
        described = f"{size}" if low == high else f"{size}, from {low} to {high},"
        raise OutsideFragmentError(f"an axis is {described} in one graph and {dim}, from {least} to {most}, in the other, "
                                   f"which does not cover it")
    return size


def _output_names(a: Graph, b: Graph) -> tuple[dict[str, Node], dict[str, Node]]:
    """Return the outputs and updates of a and of b under a's names; outputs with other names are matched by position."""
    outputs_a, outputs_b = dict(a.outputs), dict(b.outputs)
    if set(outputs_a) != set(outputs_b):
        if common := sorted(set(outputs_a) & set(outputs_b)):
            raise OutsideFragmentError(f"both graphs have an output {common[0]!r}, and others whose names differ: "
                                       f"{', '.join(sorted(set(outputs_a) ^ set(outputs_b)))}")
        if len(outputs_a) != len(outputs_b):
            raise OutsideFragmentError(f"one graph has {len(outputs_a)} outputs, the other {len(outputs_b)}")
        outputs_b = dict(zip(outputs_a, outputs_b.values(), strict=True))
    left = dict(outputs_a)
    right = {name: outputs_b[name] for name in outputs_a}
    for name in dict.fromkeys([*a.updates, *b.updates]):
        if name not in a.updates or name not in b.updates:
            raise OutsideFragmentError(f"only one graph moves the state {name!r} on")
        left[f"{name} (new)"], right[f"{name} (new)"] = a.updates[name], b.updates[name]
    return left, right
