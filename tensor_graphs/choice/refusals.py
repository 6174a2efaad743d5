"""refusals: explain why no path of a graph may be used, and what to do, in the error that replaces a plan or a list."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tensor_graphs.choice.cost_table import CostTable
from tensor_graphs.choice.graph_forms import words_text
from tensor_graphs.choice.measured_accuracy import PlanAccuracy, measured_accuracy, rounded_up
from tensor_graphs.choice.request import Request, roundoff
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import BACKENDS, by_op, device_of, left_out, load_backend, matching, why_missing
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language.composite import CompositeOp, is_loop
from tensor_graphs.meaning.precision import parse_form
from tensor_graphs.paths.path import NoPathError, Paths
from tensor_graphs.paths.plan import Plan
from tensor_graphs.rewrites.passes.apply_precision import apply_form
from tensor_graphs.rewrites.passes.unroll import IN_ALL, why_whole

TURNS = "for a loop a length that is a number and not too large, or a backend that runs it as it is, like numpy; else "
"""advice on a loop, placed before OTHERWISE"""

COMPARES = ("tg profile compares them with the oracle (--backends), and tg.compile those that it runs; without "
            "all_kernels_count=False tg.list_paths lists them as they are")
"""advice where no kernel was compared yet"""

OTHERWISE = ("other backends (tg devices lists them); what was not compared yet is by tg profile, and what failed once is compared "
             "again by tg db retry KERNEL")


def with_reasons(error: NoPathError, paths: Paths, costs: CostTable, table: Mapping[str, list[Kernel]],
                 binding: Mapping[str, int]) -> NoPathError:
    """Return the error with the refused kernels, the reasons, and a fix: a sufficient tolerance where only the tolerance is the
    obstacle.

    paths: the paths object that has no path at these sizes."""
    reasons = _Reasons(paths, costs, table, binding)
    culprits = [s for s, _ in paths.top if paths.best(s)[1] is None]
    needed = max(map(reasons.enough, culprits))
    listed = "\n  ".join(map(reasons.line, culprits[:5]))
    if all(map(reasons.uncompared, culprits)):
        return NoPathError(f"{error}\n  {listed}\n  fix: {COMPARES}")
    if needed == math.inf:
        more = reasons.backends_with(culprits)
        fix = TURNS + OTHERWISE if any(is_loop(s.spec.op) for s in culprits) else OTHERWISE
        if more:
            fix = f"--backends {','.join((*costs.backends, *more))} (in Python backends=): {' and '.join(more)} computes it"
        return NoPathError(f"{error}\n  {listed}\n  fix: {fix}")
    assert costs.tolerance is not None                              # where there is none, it stands in nobody's way
    coarse = sorted({t.dtype for s in culprits for t in s.spec.outputs if roundoff(t.dtype) > costs.tolerance}, key=str)
    listed += "".join(f"\n  rounding a result to {dtype} costs up to {roundoff(dtype):.1e} by itself" for dtype in coarse)
    return NoPathError(f"no path is within the tolerance {costs.tolerance:.2g}\n  {listed}\n"
                       f"  fix: a tolerance of {rounded_up(needed)} or more")


def _with_words(plan: Plan) -> str:
    return f"with {words_text(plan.words)}" if plan.words else "as written"


def not_accurate(request: Request, measured: Sequence[tuple[PlanAccuracy, Plan]]) -> NoPathError:
    """Return the error for plans that were measured and are all less accurate than asked: it names the most accurate one of each
    form, and the words that were asked for if the graph in float64 may be accurate enough."""
    best_of: dict[str, tuple[PlanAccuracy, Plan]] = {}
    for pair in sorted(measured, key=lambda pair: pair[0].allowed.ratio):
        best_of.setdefault(words_text(pair[1].words), pair)
    best, plan = next(iter(best_of.values()))
    lines = [f"{words}: {accuracy}" for words, (accuracy, _) in best_of.items()]
    fixes = [f"no precision=, which asks for {words_text(request.words)}"] * _forbids(request)
    fixes.append(f"{best.fix}, which the graph reaches {_with_words(plan)}" if best.fix else "no tolerance, and it runs as written")
    return NoPathError("\n  ".join([f"no path is as accurate as asked: {request.accuracy}", *lines, f"fix: {'; or '.join(fixes)}"]))


def _forbids(request: Request) -> bool:
    """Return whether the words of a request may be what keeps its graph from being accurate enough."""
    return bool(request.words) and measured_accuracy(request).promises(apply_form(request.graph, parse_form("f64")).graph)


@dataclass
class _Reasons:
    """Reasons why signatures cannot be computed at given sizes."""

    paths: Paths
    costs: CostTable
    table: Mapping[str, list[Kernel]]
    binding: Mapping[str, int]
    errors: dict[str, float] = field(default_factory=dict)
    """signature key -> `best_error`"""
    waiting: dict[str, set[str] | None] = field(default_factory=dict)
    """signature key -> `uncompared`"""

    def line(self, s: Signature) -> str:
        """Explain why nothing computes a signature, and which kernels were refused."""
        kernels = matching(s.spec, self.table)
        refused = [f"{k.name}: {why}" for k in kernels if (why := self.costs.refusal(k, s, self.binding)) is not None]
        refused += [f"{k.name}: {why}" for k, why in left_out(s.spec, self.table)]
        error = self.best_error(s)
        best = f"best error {error:.2g}{self.reached_by(s)}" if error < math.inf else self.why_none(s)
        text = f"{s.title()}: {best}" + (f" ({'; '.join(refused[:4])})" if refused else "")
        return f"{text}; {why_whole(s.spec.inputs, s.spec.attrs) or IN_ALL}" if is_loop(s.spec.op) and not kernels else text

    def right_errors(self, s: Signature) -> list[float]:
        """Return the errors of a signature's right kernels."""
        errors = [self.costs.error(k, s, self.binding) for k in matching(s.spec, self.table)
                  if self.costs.why_wrong(k, s, self.binding) is None]
        return [e for e in errors if e is not None]

    def best_error(self, s: Signature) -> float:
        """Return the least error of right kernels, or of the definition run by right kernels; inf where there are none."""
        if s.key not in self.errors:
            self.errors[s.key] = math.inf
            inner = max((self.best_error(i) for i, _ in self.paths.within(s)), default=0.0) if _may_expand(s) else math.inf
            self.errors[s.key] = min([inner, *self.right_errors(s)])
        return self.errors[s.key]

    def enough(self, s: Signature) -> float:
        """Return a tolerance that can be met; it includes rounding the result, even where measured errors are smaller."""
        best = self.best_error(s)
        return max(best, *(roundoff(t.dtype) for t in s.spec.outputs if best > roundoff(t.dtype) / 2), 0.0)

    def reached_by(self, s: Signature) -> str:
        return "" if min(self.right_errors(s), default=math.inf) <= self.best_error(s) else " by its definition"

    def uncompared(self, s: Signature) -> set[str] | None:
        """Return the kernels without a verdict that compute a signature, or those for the otherwise uncomputed steps of its
        definition; None where they do not suffice."""
        if s.key not in self.waiting:
            names = {k.name for k in matching(s.spec, self.table) if self.costs.why_not(k, s, self.binding) == "unverified"}
            computed = self.paths.best(s)[1] is not None
            inside = [self.uncompared(i) for i, _ in self.paths.within(s)] if not (names or computed) and _may_expand(s) else []
            of_steps = set().union(*filter(None, inside)) if inside and None not in inside else None
            self.waiting[s.key] = set() if computed else names or of_steps
        return self.waiting[s.key]

    def without_kernel(self, s: Signature, seen: set[str]) -> list[Signature]:
        """Return the steps of a signature that no kernel of these backends computes."""
        if s.key in seen or matching(s.spec, self.table) or self.paths.best(s)[1] is not None:
            return []
        seen.add(s.key)
        return [step for i, _ in self.paths.within(s) for step in self.without_kernel(i, seen)] if _may_expand(s) else [s]

    def backends_with(self, culprits: Sequence[Signature]) -> list[str]:
        """Return backends of the same device whose addition gives each culprit a kernel; [] where none suffice."""
        left, added = {step for s in culprits for step in self.without_kernel(s, set())}, list[str]()
        device = device_of(self.costs.backends[0])
        others = [b for b in BACKENDS if b not in self.costs.backends and why_missing(b) is None and device_of(b) is device]
        computed = {b: {step for step in left if matching(step.spec, by_op(load_backend(b)))} for b in others}
        while left:
            best = max(others, key=lambda b: len(computed[b] & left), default=None)
            if best is None or not computed[best] & left:
                return []
            added.append(best)
            left -= computed[best]
        return added

    def why_none(self, s: Signature) -> str:
        """Explain why no kernel is right: none was compared yet, none exists here, or all are wrong."""
        if waiting := sorted(self.uncompared(s) or ()):
            return f"what computes it was not compared with the oracle yet: {', '.join(waiting[:6])}{', …' * (len(waiting) > 6)}"
        if steps := self.without_kernel(s, set()):
            inside = "it" if steps == [s] else f"{'; '.join(step.title() for step in steps[:4])} in it"
            return f"no kernel of {', '.join(self.costs.backends)} computes {inside}"
        return "nothing that computes it is right here"


def _may_expand(s: Signature) -> bool:
    return isinstance(s.spec.op, CompositeOp) and not s.spec.op.opaque
