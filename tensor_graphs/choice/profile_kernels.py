"""profile_kernels: measure single kernels on a graph. Each is compared and timed at the signatures of its op, even inside a
definition that no current plan expands. Nothing else is measured, so that a verdict takes seconds.
"""

from __future__ import annotations

import difflib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

from tensor_graphs.choice.cost_table import CostTable
from tensor_graphs.choice.forms import forms
from tensor_graphs.choice.graph_forms import GraphForm
from tensor_graphs.choice.path_listing import signatures_of
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.choice.request import Request
from tensor_graphs.choice.search import asked_sizes
from tensor_graphs.costs.database_keys import VERIFIER, timed_workload
from tensor_graphs.costs.measured_rates import known_rates
from tensor_graphs.errors import close_to, listed
from tensor_graphs.kernels.kernel import ANY_OP, Kernel, KernelError
from tensor_graphs.kernels.registry import BACKENDS, all_kernels, by_op, kernel_named, lacking, matching, refused, why_missing
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language.anonymous_composite import PartOp
from tensor_graphs.language.atomic import ATOMIC
from tensor_graphs.language.composite import LIBRARY, CompositeOp
from tensor_graphs.language.conditions import all_hold, conditions_of
from tensor_graphs.language.graph import Graph
from tensor_graphs.measure.isolation.replies import JUDGE_ERROR
from tensor_graphs.measure.judge import Judge
from tensor_graphs.measure.points.single_op_plans import with_parameters
from tensor_graphs.measure.queue.next_measurements import Question, answer, question_key, unanswered
from tensor_graphs.measure.queue.profile_report import LEFT, NOT_OFFERED, Answered, ProfileReport
from tensor_graphs.measure.queue.requests import settle_queue
from tensor_graphs.paths.signature_counts import tally_of
from tensor_graphs.rewrites.why_no_match import why_nowhere

MOST_REASONS = 5
"""most lines on why kernels are not offered"""


def profile_kernels(request: Request, kernels: Sequence[str], ops: Sequence[str], *, budget: float = 60.0,
                    per_kernel: float | None = None, timeout: float | None = None, again: bool = False,
                    on_step: Callable[[int, int, str], None] | None = None,
                    on_verdict: Callable[[Answered], None] | None = None) -> ProfileReport:
    """Compare and time kernels on a graph, at the sizes in `at` (by default at all sizes that it is costed at);
    `ProfileReport.verdicts` has the results.

    kernels: names, of any backend. ops: all kernels of these ops, of the backends that a plan may use. Results in the database are
    reported and not measured, unless `again`. Where no other kernel was timed, the probably fastest one is measured too as a rival:
    one for each signature and size at which a requested kernel is right. All else is as in `profile_graph`, which calls this.
    Raises KernelError for an unknown kernel or op (with similar names), for a kernel whose op does not occur in the graph, and
    where no kernel accepts its op anywhere in the graph."""
    started = time.perf_counter()
    names, written = list(dict.fromkeys(kernels)), request.graph
    wanted = {k.name: k for k in (*(_kernel(name, request.here) for name in names), *_of_ops(ops, request.here))}
    for k in wanted.values():
        if (missing := why_missing(k.backend)) is not None:
            raise KernelError(f"{k.name} cannot be measured here: the backend {k.backend} is missing, as {missing}\n"
                              "  fix: what that says, or a machine that has it")
    request = replace(request, backends=tuple(dict.fromkeys((*request.names, *(k.backend for k in wanted.values())))))
    store, here, threads, at = request.store, request.here, request.threads, request.at
    prepared = prepare(written, recipes=store, backends=here).graph
    form = next(forms(prepared, request))
    graph = form.graph
    signatures = signatures_of(graph)
    places_of = {name: [s for s in signatures if (s.spec.op.name == k.op or k.computes(s.spec))
                    and (name in names or s.spec.op.name in ops or k.op != ANY_OP)] for name, k in wanted.items()}
    for name, k in wanted.items():
        if not places_of[name] and k.composite is not None and any(k.computes(s.spec) for s in signatures_of(prepared)):
            raise KernelError(_made_wider(k, prepared, form, request))
        if not places_of[name] and isinstance(k.composite, PartOp):
            reason = why_nowhere((written, graph), k.composite)
            raise KernelError(f"the graph that {k.name} computes was found nowhere in this one: {reason.why}\n  fix: {reason.fix}")
        if not places_of[name]:
            there = listed({s.spec.op.name for s in signatures}, 20) or "views alone, which run no kernel"
            raise KernelError(f"{k.name} computes {k.op}, which does not occur in this graph, nor in the definitions of its ops\n"
                              f"  fix: it has {there}")
    points = [p for p in asked_sizes(graph, at, request.largest)[0] if all_hold(conditions_of(graph.roots), p)]
    report = ProfileReport()
    refused = [(kernel, s, _why_not(kernel, s)) for kernel in wanted.values() for s in places_of[kernel.name]]
    taken = [(kernel, s) for kernel, s, why in refused if why is None]
    table = by_op([*all_kernels(here), *(k for k in wanted.values() if k not in all_kernels(here))])
    if not taken:
        raise _not_offered([(kernel, s, why or "") for kernel, s, why in refused], table)
    for kernel, s, why in refused:
        if why is not None:
            _say(report, Answered(kernel.name, s.title(), {}, NOT_OFFERED, why=why), on_verdict)
    dims = [n for n in graph.dims if any(n in s.dim_names for _, s in taken)]
    report.sizes = tuple(dict(sizes) for sizes in dict.fromkeys(tuple((n, int(p[n])) for n in dims) for p in points) if dims)
    report.unsized = tuple(n for n in dims if n not in (at or {}))
    costs = CostTable(store, here, request.allowed, threads, assuming=request.assumed)
    places = _Places(graph, costs.load(), taken, points, table, report, on_verdict, again)
    report.left = len(places.open)
    try:
        if places.open and budget > 0:
            with Judge(store, timeout=timeout, threads=threads, rates=known_rates(store, here, threads)) as judge:
                judge.ready()
                report.search_seconds = time.perf_counter() - started
                asked = answer(judge, list(places.open.values()), budget=budget, per_kernel=per_kernel, at_least=1,
                               unless=places.needless)
                for q, status in itertools.chain(asked, places.unbeaten(judge, per_kernel)):
                    places.answered(q, status)
                    report.statuses[status] = report.statuses.get(status, 0) + 1
                    report.measured += status == "PASSED"
                    report.failed += status != "PASSED"
                    if on_step is not None:
                        done = report.measured + report.failed
                        on_step(done, done + report.left, f"{q.kernel.name} {q.signature.title()}")
        settle_queue(store, here, threads)
    except KeyboardInterrupt:
        report.interrupted = True
    places.end()
    report.seconds = time.perf_counter() - started
    return report


def _made_wider(kernel: Kernel, graph: Graph, form: GraphForm, request: Request) -> str:
    """Explain that a kernel's op is in the graph as written, but not in the form that is compiled."""
    what = f"the graph that {kernel.name} computes" if isinstance(kernel.composite, PartOp) else kernel.op
    fix = "precision=\"written\" (--precision written) for profile and compile"
    fix += "; or no tolerance" if request.accuracy.terms and not request.words else ""
    return (f"{what} occurs in the graph as written, but these options compile the graph with other dtypes\n"
            f"  ({form.text})\n  fix: {fix}")


class _Places:
    """Questions about single kernels, grouped by place (a signature and sizes). The verdict on a right kernel waits until nothing
    else is left to measure at its place, so that it is reported next to its best rival; a failed kernel is reported immediately.

    open: the questions to be measured, in order."""

    def __init__(self, graph: Graph, costs: CostTable, taken: Sequence[tuple[Kernel, Signature]],
                 points: Sequence[Mapping[str, int]], table: Mapping[str, list[Kernel]], report: ProfileReport,
                 on_verdict: Callable[[Answered], None] | None, again: bool) -> None:
        self.bound = tally_of(graph).bound
        self.costs, self.table, self.report, self.on_verdict = costs, table, report, on_verdict
        self.asked: dict[str, list[Question]] = {}
        self.rivals: dict[str, Question] = {}
        self.right: dict[str, list[tuple[Question, bool]]] = {}
        """place -> the right kernels that wait for their verdict, and whether the result was in the database"""
        self.open: dict[tuple[str, str], Question] = {}
        for s in dict.fromkeys(s for _, s in taken):
            for binding in points:
                at = {n: int(binding[n]) for n in s.dim_names}
                for kernel in (k for k, other in taken if other is s):
                    q = Question(kernel, s, at, 0.0, again="asked for" if again else "")
                    asked = self.asked.setdefault(_place(q), [])
                    if q.kernel not in [question.kernel for question in asked]:
                        asked.append(q)
        of_asked = self._unanswered([q for asked in self.asked.values() for q in asked])
        for place, asked in self.asked.items():
            for q in (q for q in asked if question_key(q) not in of_asked):
                report.already_known += 1
                self._found(q, self._verdict(q, True))
            rival = self._rival(asked) if place in self.right or any(question_key(q) in of_asked for q in asked) else None
            if rival is not None:
                self.rivals[place] = rival
        of_rivals = self._unanswered(list(self.rivals.values()))
        for place, asked in self.asked.items():
            due = [*(q for q in asked if question_key(q) in of_asked),
                   *(q for q in (self.rivals.get(place),) if q is not None and question_key(q) in of_rivals)]
            self.open |= {question_key(q): replace(q, worth=1.0 / (1 + len(self.open) + i)) for i, q in enumerate(due)}
        for place in list(self.right):
            self._tell(place)

    def _unanswered(self, questions: list[Question]) -> set[tuple[str, str]]:
        return {question_key(q) for q in unanswered(self.costs.database, questions, VERIFIER, self.costs.threads)}

    def _rival(self, asked: Sequence[Question]) -> Question | None:
        """Return a question about the probably fastest kernel that was not requested; None where such a kernel was timed, or none
        may be used."""
        q, costs = asked[0], self.costs
        others = [k for k in matching(q.signature.spec, self.table) if k not in [question.kernel for question in asked]]
        by_cost = [(cost.seconds, k) for k in others if (cost := costs.cost(k, q.signature, q.binding, True)) is not None]
        if not by_cost or any(self._alone_takes(k, q) is not None for _, k in by_cost):
            return None
        return Question(min(by_cost, key=itemgetter(0))[1], q.signature, q.binding, 0.0)

    def needless(self, q: Question) -> bool:
        """Return whether a question is about the rival of kernels of which none is right."""
        place = _place(q)
        return self.rivals.get(place) is not None and q.kernel is self.rivals[place].kernel and place not in self.right and not any(
            question_key(question) in self.open for question in self.asked[place])

    def unbeaten(self, judge: Judge, per_kernel: float | None) -> Iterator[tuple[Question, str]]:
        """Answer, in short runs, the open questions about rivals of right kernels; without them a plan would choose the right
        kernel untested."""
        rivals = [q for place, q in self.rivals.items() if question_key(q) in self.open and self.right.get(place)]
        yield from answer(judge, rivals, budget=0.0, per_kernel=per_kernel, at_least=len(rivals))

    def answered(self, q: Question, status: str) -> None:
        """Process a measurement, and report the verdicts that are now due."""
        del self.open[question_key(q)]
        self.report.left = len(self.open)
        place = _place(q)
        if place not in self.rivals or q.kernel is not self.rivals[place].kernel:
            self.costs.load()
            self._found(q, self._verdict(q, False) if status != JUDGE_ERROR else Answered(
                q.kernel.name, q.signature.title(), dict(q.binding), JUDGE_ERROR, why="the judge itself failed, as the log says"))
        self._tell(place)

    def end(self) -> None:
        """Report all waiting verdicts, and the questions left open."""
        for key in [key for key, q in self.open.items() if self.needless(q)]:
            del self.open[key]
        self.report.left = len(self.open)
        for place in list(self.right):
            self._tell(place, True)
        for q in self.open.values():
            if q.kernel in [question.kernel for question in self.asked[_place(q)]]:
                _say(self.report, Answered(q.kernel.name, q.signature.title(), q.binding, LEFT), self.on_verdict)

    def _found(self, q: Question, verdict: Answered) -> None:
        if verdict.status == "PASSED":
            self.right.setdefault(_place(q), []).append((q, verdict.known))
            return
        if verdict.status != LEFT:
            where = verdict.kernel, verdict.signature
            self.report.failed_at[where] = self.report.failed_at.get(where, 0) + 1
        _say(self.report, verdict, self.on_verdict)

    def _tell(self, place: str, last: bool = False) -> None:
        """Report the verdicts of right kernels at a place, unless something is still to be measured there."""
        if place in self.right and (last or not any(_place(q) == place for q in self.open.values())):
            self.costs.load()
            for q, on_file in self.right[place]:
                _say(self.report, self._verdict(q, on_file), self.on_verdict)
            self.right[place] = []

    def _verdict(self, q: Question, on_file: bool) -> Answered:
        """Return the current answer to a question, from the database rows."""
        costs = self.costs
        verdict, row = costs.verdict(q.kernel, q.signature), costs.time(q.kernel, q.signature, q.binding)
        bad = next((r for r in (verdict, row) if r is not None and (r.status != "PASSED" or r.refuted)), None)
        others = [k for k in matching(q.signature.spec, self.table) if k is not q.kernel]
        timed = ((seconds, k.name) for k in others if (seconds := self._alone_takes(k, q)) is not None
                 and costs.why_wrong(k, q.signature, q.binding) is None)
        rival = next(((name, seconds) for seconds, name in sorted(timed)), None)
        why = "" if bad is None else costs.logged(q.kernel, q.signature, q.binding)
        seconds = None if bad is not None else self._alone_takes(q.kernel, q)
        status = bad.status if bad is not None and bad.status != "PASSED" else "REFUTED" if bad is not None else "PASSED"
        if bad is None and row is None:
            status = LEFT
        return Answered(q.kernel.name, q.signature.title(), dict(q.binding), status, seconds,
                        costs.error(q.kernel, q.signature, q.binding), why, rival, on_file,
                        "" if rival is not None else self._no_rival(q, others))

    def _alone_takes(self, kernel: Kernel, q: Question) -> float | None:
        """Return the seconds of a kernel timed alone at the question's place. Times inside a graph, where caches are warm, do not
        count, since one of two kernels may never have run there."""
        row = self.costs.time(kernel, q.signature, q.binding)
        return None if row is None or row.median_ms is None else row.median_ms * 1e-3

    def _no_rival(self, q: Question, others: Sequence[Kernel]) -> str:
        """Explain why no other kernel was timed at the question's place."""
        rival = self.rivals.get(_place(q))
        if rival is None:
            return ("no other kernel takes it" if not others else "no other kernel may be used for it") + self._by_definition(q)
        if question_key(rival) in self.open:
            return f"it ended before {rival.kernel.name} was timed too"
        return f"{rival.kernel.name}: {self.costs.refusal(rival.kernel, rival.signature, rival.binding) or 'not timed'}"

    def _by_definition(self, q: Question) -> str:
        """Return a text with the predicted time of a composite's definition, the only rival of its only kernel."""
        if not isinstance(q.signature.spec.op, CompositeOp) or q.signature.spec.op.opaque:
            return ""
        alone = with_parameters(q.signature.spec.single_node_graph(), [f"x{i}" for i in self.bound(q.signature)])
        paths = self.costs.paths(alone, self.table, q.binding, optimistic=True)
        seconds = sum(calls * paths.best(inner)[0] for inner, calls in paths.inner(q.signature))
        return f"; its definition {seconds * 1e6:.1f} µs, predicted" if seconds < math.inf else ""


def _place(q: Question) -> str:
    """Return the key of a question's place, equal for all kernels."""
    return timed_workload(q.signature, q.binding).key


def _say(report: ProfileReport, verdict: Answered, on_verdict: Callable[[Answered], None] | None) -> None:
    """Add a verdict to the report. A failure on a signature is reported once, not for each of its sizes."""
    if any((v.kernel, v.signature, v.status) == (verdict.kernel, verdict.signature, verdict.status)
           and v.status not in ("PASSED", LEFT) for v in report.verdicts):
        return
    report.verdicts.append(verdict)
    if on_verdict is not None:
        on_verdict(verdict)


def _kernel(name: str, backends: Sequence[str]) -> Kernel:
    """Return the kernel of this name. Raises KernelError, with similar names."""
    try:
        return kernel_named(name)
    except KernelError as e:
        own = name.partition(".")[0]
        if own in BACKENDS and why_missing(own) is not None:
            raise
        kernel_names = [k.name for k in all_kernels(backends)]
        near = close_to(name, kernel_names) or difflib.get_close_matches(name, kernel_names, n=3, cutoff=0.5)
        fix = f"did you mean {' or '.join(near)}? " if near else ""
        raise KernelError(f"no kernel is named {name!r} here\n  fix: {fix}A kernel of your own: import the file that registers it "
                          "(tg: --import FILE)") from e


def _not_offered(refused: Sequence[tuple[Kernel, Signature, str]], table: Mapping[str, list[Kernel]]) -> KernelError:
    """Return an error that explains why kernels accept their ops nowhere in a graph, and which kernels do."""
    others = {k.name for _, s, _ in refused for k in matching(s.spec, table)}
    reasons = "\n  ".join(f"{k.name} on {s.title()}: {why}" for k, s, why in refused[:MOST_REASONS])
    more = f"\n  … {len(refused) - MOST_REASONS} more" if len(refused) > MOST_REASONS else ""
    return KernelError(f"{listed({k.name for k, _, _ in refused})}: not offered for this graph\n  {reasons}{more}\n"
                       f"  fix: {f'what is: {listed(others)}' if others else 'no kernel is; plans run the definition'}")


def _of_ops(ops: Sequence[str], backends: Sequence[str]) -> list[Kernel]:
    """Return all kernels of these ops, including user-registered composites. Raises KernelError for a name that no op has, and for
    an op without any kernel."""
    available = all_kernels(backends)
    result = []
    for op in ops:
        ours = op in ATOMIC or op in LIBRARY
        kernels = [k for k in available if k.op == op or (ours and k.op == ANY_OP)]
        if not kernels and not ours:
            near = close_to(op, [*ATOMIC, *LIBRARY, *(k.op for k in available if k.composite is not None)])
            raise KernelError(f"no op is named {op!r}\n  fix: " + (f"did you mean {' or '.join(near)}?" if near else
                                                                   "README.md and tg show FILE name ops"))
        if not kernels:
            raise KernelError(f"no kernel computes {op} on {', '.join(backends)}; plans run its definition\n  fix: other backends")
        result += kernels
    return result


def _why_not(kernel: Kernel, signature: Signature) -> str | None:
    """Return None, or why this kernel is no candidate for a signature."""
    missing = lacking(kernel)
    if missing is not None:
        return missing
    if not kernel.computes(signature.spec):
        return "its op is a namesake of the one that occurs here"
    return refused(kernel, signature.spec)
