"""backend: tests which ops a backend computes correctly at which dtypes, by judging every kernel that accepts an instance.

`judge.examine` runs each kernel on the instances of cases.py: in a worker process, at sizes from 0 up, in place, on strided
operands, with NaN and infinities. Nothing is stored. A cell of the table has one of the statuses of `Kind`, and a reason."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from tensor_graphs.errors import TensorGraphsError, close_to
from tensor_graphs.kernels.kernel import ANY_OP, Kernel, Spec
from tensor_graphs.kernels.registry import all_kernels, by_op, lacking, why_missing
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.dtypes import DTYPES
from tensor_graphs.language.errors import DTypeError
from tensor_graphs.measure.conformance.cases import instances, op_named, ops
from tensor_graphs.measure.isolation.replies import JUDGE_ERROR
from tensor_graphs.measure.isolation.worker_process import JudgeError
from tensor_graphs.measure.judge import Judge
from tensor_graphs.records.logs import reason_of

log = logging.getLogger(__name__)

Kind = Literal["pass", "fail", "not claimed", "no kernel", "view", "undefined"]
"""status of a cell. pass, fail: all instances that a kernel accepts are right, or one is wrong. not claimed: the kernels accept
none. no kernel: the backend has none (a composite then runs by its definition, an atomic op on another backend). view: a plan
implements the op by strides, so no kernel runs. undefined: the op does not take this dtype."""

KINDS: tuple[Kind, ...] = get_args(Kind)

TYPICAL, TIMED = (12, 29, 7), (256, 1024, 64)
"""sizes of an instance's dims at which it is compared (besides the judge's), and at which a cell's largest instance is timed"""

TIME_BUDGET = 0.05
"""seconds of timed runs per cell"""

Step = Callable[[int, int, str], None]
"""called with (number of cells done, number of all cells, next cell)"""


class ConformanceError(TensorGraphsError):
    """Table that cannot be computed: the backend is not available, or an op is unknown."""


@dataclass(frozen=True)
class TableCell:
    """Result for one op at one dtype. instances: number of the case's instances; claimed: of those that a kernel accepts. error:
    their largest max_relative_error, None where nothing ran. seconds: median cold time of `timed`, an op with operand types."""

    op: str
    dtype: str
    status: Kind
    reason: str
    error: float | None = None
    instances: int = 0
    claimed: int = 0
    seconds: float | None = None
    timed: str = ""


@dataclass(frozen=True)
class Conformance:
    """Cells of one backend; ops in the order of `cases.ops`, dtypes in the order of DTYPES."""

    backend: str
    cells: tuple[TableCell, ...]

    def counts(self) -> dict[Kind, int]:
        return {kind: sum(c.status == kind for c in self.cells) for kind in KINDS}

    @property
    def failed(self) -> tuple[TableCell, ...]:
        return tuple(c for c in self.cells if c.status == "fail")


def keys(only: Sequence[str] | None = None) -> list[tuple[str, str]]:
    """Return (op, dtype) of every cell, or of the cells of the given ops. Raises ConformanceError for an unknown op."""
    names = ops()
    for name in only or ():
        if name not in names:
            near = close_to(name, names)
            meant = f"did you mean {' or '.join(near)}? It is " if near else ""
            raise ConformanceError(f"{name!r} is no op\n  fix: {meant}an atomic op or a library composite: {', '.join(names)}")
    return [(name, dtype) for name in names if not only or name in only for dtype in DTYPES]


def judge_backend(backend: str, judge: Judge, *, cells: Iterable[tuple[str, str]] | None = None, timed: bool = False,
                  on_step: Step | None = None) -> Conformance:
    """Judge a backend's kernels at these cells (default: all). Raises ConformanceError (backend not available), KernelError."""
    kernels = kernels_of(backend)
    wanted = list(keys() if cells is None else cells)
    step, judged = on_step or (lambda done, total, what: None), []
    for i, (op, dtype) in enumerate(wanted):
        step(i, len(wanted), f"{op} {dtype}")
        judged.append(judge_cell([*kernels.get(op, ()), *kernels.get(ANY_OP, ())], op, dtype, judge, timed=timed))
    step(len(wanted), len(wanted), "")
    return Conformance(backend, tuple(judged))


def kernels_of(backend: str) -> Mapping[str, Sequence[Kernel]]:
    """Return op -> the backend's kernels. Raises ConformanceError when the backend is not available on this machine."""
    reason = why_missing(backend)
    if reason is not None:
        raise ConformanceError(f"the backend {backend!r} is not available here: {reason}\n"
                               "  fix: a backend that is (tg devices lists them)")
    return by_op(all_kernels((backend,)))


def judge_cell(kernels: Sequence[Kernel], op: str, dtype: str, judge: Judge, *, timed: bool = False) -> TableCell:
    """Judge one cell with the kernels that compute its op. Raises JudgeError where the judge's own code fails."""
    try:
        nodes = instances(op, DTYPES[dtype])
    except DTypeError as e:
        return TableCell(op, dtype, "undefined", str(e).splitlines()[0].removeprefix(f"DTypeError at {e.location}: "))
    count = len(nodes)
    if op_named(op).facts.view:
        return TableCell(op, dtype, "view", "a plan reads it through strides, so no kernel runs", instances=count)
    if not kernels:
        return TableCell(op, dtype, "no kernel", "the backend has no kernel for this op", instances=count)
    claims, refusals = _claims(kernels, [signature_of(n) for n in nodes])
    claimed = len({s.key for _, s in claims})
    refused = "; ".join(dict.fromkeys(refusals))
    if not claims:
        return TableCell(op, dtype, "not claimed", refused, instances=count)
    worst, seconds, at = 0.0, None, ""
    largest = max(range(len(claims)), key=lambda i: _elements(claims[i][1], _sizes(claims[i][1], TIMED))) if timed else -1
    for i, (kernel, signature) in enumerate(claims):
        large = _sizes(signature, TIMED)
        verdict = judge.examine(kernel, signature, _sizes(signature, TYPICAL), time_at=large if i == largest else None,
                                budget=TIME_BUDGET)
        if verdict.status == JUDGE_ERROR:
            raise JudgeError(verdict.log)
        if verdict.status != "PASSED":
            failure = f"{verdict.status}: {kernel.name} on {signature.title()}: {reason_of(verdict.log) or 'no message'}"
            return TableCell(op, dtype, "fail", failure, verdict.error, count, claimed)
        worst = max(worst, verdict.error or 0.0)
        if verdict.samples:
            seconds, at = statistics.median(verdict.samples), _at(signature, large)
    reason = "within tolerance" if claimed == count else f"{claimed} of {count} instances are claimed; the others: {refused}"
    return TableCell(op, dtype, "pass", reason, worst, count, claimed, seconds, at)


def _claims(kernels: Sequence[Kernel], signatures: Sequence[Signature]) -> tuple[list[tuple[Kernel, Signature]], list[str]]:
    """Return the (kernel, signature) pairs that the kernel accepts, ordered by signature (the judge caches few oracles), and the
    reasons for refusal of signatures that no kernel accepts. An exception in a kernel's `accepts` counts as its reason."""
    claims, refusals = [], []
    for signature in signatures:
        reasons = [(k, _accepts(k, signature.spec)) for k in kernels]
        takers = [k for k, reason in reasons if reason is None]
        claims += [(k, signature) for k in takers]
        if not takers:
            refusals += [r for _, r in reasons if r]
    return claims, refusals


def _accepts(kernel: Kernel, spec: Spec) -> str | None:
    missing = lacking(kernel)
    if missing is not None:
        return f"{kernel.name}: {missing}"
    try:
        reason = kernel.accepts(spec)
    except Exception as e:                                          # anyone's code
        log.debug("%s.accepts raised", kernel.name, exc_info=True)
        return f"{kernel.name}'s accepts raised {type(e).__name__}: {e}"
    return reason if reason is None or (isinstance(reason, str) and reason.strip()) else f"{kernel.name} says no without a word"


def _sizes(signature: Signature, sizes: Sequence[int]) -> dict[str, int]:
    return dict(zip(signature.dim_names, sizes, strict=False))


def _elements(signature: Signature, sizes: Mapping[str, int]) -> int:
    return sum(int(t.at(sizes).size()) for t in (*signature.spec.inputs, *signature.spec.outputs))


def _at(signature: Signature, sizes: Mapping[str, int]) -> str:
    return " ".join([signature.spec.op.name, *(str(t.at(sizes)) for t in signature.spec.inputs)])
