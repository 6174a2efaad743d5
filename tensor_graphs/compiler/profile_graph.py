"""profile_graph: which measurements would settle the choices of a graph, asked of `profiling` until a budget is spent."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path as FilePath
from typing import Any

from tensor_graphs.compiler.choose import GUESS_MARGIN, PriceBook, as_database, resolve_backends, tolerance_for
from tensor_graphs.compiler.compile import price_points
from tensor_graphs.compiler.intermediates import forms
from tensor_graphs.compiler.prepare import prepare
from tensor_graphs.costs.roofline import uncertainty
from tensor_graphs.errors import close_to, listed
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import all_kernels, by_op, matching
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.conditions import all_hold, conditions_of
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node
from tensor_graphs.paths.path import NoPathError, Path, Paths, Price, needs_choice
from tensor_graphs.profiling.calibration import known_rates, measure_device
from tensor_graphs.profiling.deployed import NotDeployed, measure_deployed, record_deployed, refute
from tensor_graphs.profiling.descriptors import RANDOM, Descriptor, Given, InputError, check, read_descriptor
from tensor_graphs.profiling.judge import VERIFIER, Judge
from tensor_graphs.profiling.profile import ProfileReport, Question, answer, question_key, unanswered
from tensor_graphs.profiling.queue import settle_queue
from tensor_graphs.records.database import Database

log = logging.getLogger(__name__)

ROUNDS = 6
"""how often another path may turn out the cheapest before the search for it ends"""

MANY_RUNS = 20.0
"""runs of a path that measuring it as a whole costs, about"""

OnStep = Callable[[int, int, str], None]
"""(done, total, what) for a progress bar"""


def questions_of(graph: Graph, *, backends: Sequence[str] | None, database: Database, tolerance: float,
                 at: Mapping[str, int] | None, largest: Mapping[str, int] | None, threads: int | None = None,
                 given: Given = ()) -> list[Question]:
    """Every kernel that could run a signature of the graph, at the sizes the compiler prices at, weighed by what is in doubt.

    A question's worth is the share of the path's time that would be saved if the kernel took as little as its guess leaves open:
    of a kernel that the path has chosen, its share of the time × how uncertain that is; nothing, where it cannot become cheaper
    than what is chosen.

    The signatures are the graph's own, and those inside the definitions that the cheapest path expands. What is cheapest by guesses
    changes as rows arrive: asked again then, the answer may name more. What reads an input whose values are given is asked about
    with those too, as another workload. Raises NoPathError when nothing may be used.
    """
    here, _ = resolve_backends(backends)
    book = PriceBook(database, here, tolerance, threads).load()
    table = by_op(all_kernels(here))
    out: list[Question] = []
    for binding in price_points(graph, at, largest):
        paths = Paths(graph, table, partial(_price, book, binding))
        path = paths.cheapest()
        reached = {s.key: s for s in paths.known()}
        for key, calls in path.calls.items():
            s = reached[key]
            sizes, best = {n: int(binding[n]) for n in s.dim_names}, paths.best(s)[0]
            for kernel in matching(s.spec, table):
                price = book.price(kernel, s, binding, True)
                if price is not None:
                    least = price.seconds if price.measured else price.seconds * (1.0 - uncertainty(kernel.backend))
                    share = max(0.0, best - least) * calls / max(path.seconds, 1e-9)      # every range of sizes counts alike
                    out.append(Question(kernel, s, sizes, share))
        for s, operands in readers(graph, given, binding):          # whether the path runs them whole or by their definitions
            sizes = {n: int(binding[n]) for n in s.dim_names}
            for kernel in matching(s.spec, table):
                price = book.price(kernel, s, binding, True)
                if price is not None:
                    share = price.seconds * path.calls.get(s.key, 0) / max(path.seconds, 1e-9)
                    out.append(Question(kernel, s, sizes, share, operands))
    return out


def readers(graph: Graph, given: Given, binding: Mapping[str, int]) -> list[tuple[Signature, Given]]:
    """The ops that read an input whose values are given and fit at these sizes, and what their operands are given; each once."""
    out: list[tuple[Signature, Given]] = []
    leaves = {graph.inputs.get(name, graph.parameters.get(name)): (name, descriptor) for name, descriptor in given}
    fitting = {leaf: descriptor for leaf, (name, descriptor) in leaves.items()
               if leaf is not None and _fits(name, descriptor, leaf, binding) is None}
    for node in graph.nodes:
        if needs_choice(node) and (read := [(i, x) for i, x in enumerate(node.inputs) if x in fitting]):
            s = signature_of(node)
            names = list(s.graph.inputs)
            found = s, tuple((names[i], fitting[x]) for i, x in read)
            if found not in out:
                out.append(found)
    return out


def _fits(name: str, descriptor: Descriptor, leaf: Node, binding: Mapping[str, int]) -> InputError | None:
    try:
        check(name, descriptor, leaf.type.at(binding))
    except InputError as e:
        return e
    return None


def given_inputs(graph: Graph, inputs: Mapping[str, str | Mapping[str, Any] | Descriptor], bindings: Sequence[Mapping[str, int]],
                 ) -> Given:
    """The descriptors of those inputs and parameters whose values are not random, each of which fits at one binding at least.

    Raises InputError: no such input, a description that says nothing, or values that fit nowhere.
    """
    out = []
    for name, said in sorted(inputs.items()):
        leaf = graph.inputs.get(name, graph.parameters.get(name))
        if leaf is None:
            known = [*graph.inputs, *graph.parameters]
            near = close_to(name, known)
            raise InputError(f"the graph has no input or parameter named {name!r}\n  fix: "
                             + (f"did you mean {' or '.join(near)}?" if near else f"it has {listed(known)}"))
        descriptor = read_descriptor(name, said)
        if descriptor != RANDOM:
            problems = [_fits(name, descriptor, leaf, b) for b in bindings]
            if all(problems):
                raise next(p for p in problems if p is not None)
            out.append((name, descriptor))
    return tuple(out)


def in_place(judge: Judge, graph: Graph, binding: Mapping[str, int], backends: Sequence[str], tolerance: float, end: float,
             say: Callable[[str], None]) -> int:
    """Measure the cheapest path at these sizes where it will run, beside the best guess, until the cheapest one is known there.

    end: of the budget, on the clock of time.perf_counter. Returns how many steps were measured.
    """
    if not all_hold(conditions_of(graph.roots), binding):           # x[5] of two rows: no run at these sizes
        return 0
    table = by_op(all_kernels(backends))
    measured = 0
    guessed: Path | None = None
    for _ in range(ROUNDS):
        book = PriceBook(judge.database, tuple(backends), tolerance, judge.threads, GUESS_MARGIN).load()
        paths = Paths(graph, table, partial(_verified, book, binding))
        path = paths.cheapest()
        chosen = {key: a.kernel for key, a in paths.kernels(path).items() if a.kernel is not None}
        signatures = {s.key: s for s in paths.known()}
        unknown = [key for key, kernel in chosen.items() if not _known_in_graph(book, kernel, signatures[key], binding)]
        if not unknown or path.seconds * MANY_RUNS > end - time.perf_counter():
            break
        if guessed is None:                                         # so that what is chosen later was compared with it in one run
            plain = Paths(graph, table, partial(_guess, book, binding))
            guessed = plain.cheapest()
            chosen_by_guess = {key: a.kernel for key, a in plain.kernels(guessed).items() if a.kernel is not None}
            signatures |= {s.key: s for s in plain.known()}
        both = [path, *([guessed] if guessed.choices != path.choices else [])]
        kernels = {k.name: k for k in (*chosen.values(), *chosen_by_guess.values())}
        at = {n: int(s) for n, s in binding.items()}
        say(f"{len(both)} path{'s' if len(both) > 1 else ''} as a whole")
        try:
            found = measure_deployed(judge, graph, both, kernels, at, backends)
        except NotDeployed as e:
            log.warning("the path %s could not be measured as a whole: %s", path.id, e)
            if e.path is not None and refute(judge, e.path, str(e), kernels, signatures, at, VERIFIER):
                guessed = None                                      # other paths are the cheapest now
                continue
            break
        measured += record_deployed(judge, found, kernels, signatures, at, VERIFIER)
    return measured


def _known_in_graph(book: PriceBook, kernel: Kernel, signature: Signature, binding: Mapping[str, int]) -> bool:
    timed = book.timed(kernel, signature, binding)
    return timed is not None and timed[1]


def _verified(book: PriceBook, binding: Mapping[str, int], kernel: Kernel, signature: Signature) -> Price | None:
    return book.price(kernel, signature, binding)


def _guess(book: PriceBook, binding: Mapping[str, int], kernel: Kernel, signature: Signature) -> Price | None:
    """The price of a kernel that may be used, as if nothing had been timed."""
    return None if book.why_not(kernel, signature, binding) is not None else book.guess(kernel, signature, binding)


def _price(book: PriceBook, binding: Mapping[str, int], kernel: Kernel, signature: Signature) -> Price | None:
    return book.price(kernel, signature, binding, True)


def profile_graph(graph: Graph, *, budget: float = 60.0, per_kernel: float | None = None, backends: Sequence[str] | None = None,
                  database: Database | str | FilePath | None = None, tolerance: float | None = None,
                  at: Mapping[str, int] | None = None, largest: Mapping[str, int] | None = None, threads: int | None = None,
                  timeout: float | None = None, on_step: OnStep | None = None,
                  inputs: Mapping[str, str | Mapping[str, Any] | Descriptor] | None = None) -> ProfileReport:
    """Measure what the compiler would want to know about a graph, until the budget [s] is spent or nothing is left.

    The budget is for measuring kernels and paths. What comes before and between (what the graph is made of, which question is worth
    most, the device's own constants, the start of a worker) is reported beside it. Of any budget at least one question is answered;
    a budget of 0 asks none. What was begun when the budget is spent is finished in short: each kernel that takes turns with others
    is measured in one process at least, and in no further one.

    Rounds: what the cheapest path could use is measured, which may make another path the cheapest, and so on until the cheapest
    one rests on rows only. Then the cheapest path is run as a whole, and the times of its steps in their places count before
    those of kernels on their own; again until nothing is cheaper. Interrupting it (Ctrl-C) keeps every row measured so far; the
    next call goes on from there.

    per_kernel: seconds of timed runs for each kernel (default: 0.25, less of a small budget), from 0.6 on over several processes.
    tolerance: as in `compile_graph`. timeout: seconds after which a kernel counts as hanging.
    Raises NoPathError when nothing may be used from the start.

    inputs: where values of inputs and parameters come from: "random" (as all others), a number, "model.safetensors:norm.weight", or
    FlashInfer-Trace's {"type": "safetensors", "path": …, "tensor_key": …}. Ops that read these directly are measured with them too,
    and their traces' workloads say so; a kernel that is wrong on them is not used. Raises InputError when values do not fit.
    """
    tolerance = tolerance_for(graph, tolerance)
    started = time.perf_counter()
    graph = prepare(graph).graph                                    # what is measured is what compile_graph runs
    report = ProfileReport()
    spent = Stopwatch()
    given = given_inputs(graph, inputs or {}, price_points(graph, at, largest))
    store = as_database(database)
    here, _ = resolve_backends(backends)
    seen: set[tuple[str, str]] = set()
    used: set[Descriptor] = set()
    done = 0

    def say(what: str) -> None:
        if on_step is not None:
            on_step(done, done, what)

    try:
        tried = forms(graph, tolerance)                             # what is measured is what would be run
        form = next(tried)
        begun = time.perf_counter()
        if measure_device(store, here, threads=threads):
            report.device_seconds = time.perf_counter() - begun
        with Judge(store, timeout=timeout, threads=threads, rates=known_rates(store, here, threads)) as judge:
            while True:
                try:
                    asked = questions_of(form.graph, backends=backends, database=store, tolerance=tolerance, at=at, largest=largest,
                                         threads=threads, given=given)
                except NoPathError:
                    other = next(tried, None)
                    if other is not None:
                        form = other
                        continue
                    if not seen:
                        raise
                    break                                           # what was measured leaves nothing to use: no question is left
                used |= {descriptor for q in asked for _, descriptor in q.given}
                report.unused = tuple(name for name, descriptor in given if descriptor not in used)
                todo = unanswered(store, asked, VERIFIER, threads)
                new = {question_key(q) for q in asked} - seen
                seen |= new
                report.already_known += len(new - {question_key(q) for q in todo})
                report.left = len(todo)
                total = done + len(todo)
                if todo and budget > 0:
                    judge.ready()
                with spent:
                    for q, status in answer(judge, todo, budget=budget - spent.seconds, per_kernel=per_kernel,
                                            at_least=1 if budget > 0 and not done else 0):
                        done += 1
                        report.left -= 1
                        report.statuses[status] = report.statuses.get(status, 0) + 1
                        report.measured += status == "PASSED"
                        report.failed += status != "PASSED"
                        if on_step is not None:
                            on_step(done, total, f"{q.kernel.name} {q.signature.title()}")
                if report.left:
                    break
                if not todo:                                        # times in place may make another path the cheapest: ask again
                    with spent:
                        end = time.perf_counter() + budget - spent.seconds
                        steps = sum(in_place(judge, form.graph, binding, here, tolerance, end, say)
                                    for binding in price_points(form.graph, at, largest))
                    report.deployed += steps
                    if not steps:
                        break
        settle_queue(store, here, threads)
    except KeyboardInterrupt:
        report.interrupted = True
    report.seconds = time.perf_counter() - started
    report.search_seconds = report.seconds - report.device_seconds - spent.seconds
    return report


class Stopwatch:
    """The time that passed inside its `with` blocks, in all of those that have ended."""

    def __init__(self) -> None:
        self.seconds = self._begun = 0.0

    def __enter__(self) -> None:
        self._begun = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._begun
