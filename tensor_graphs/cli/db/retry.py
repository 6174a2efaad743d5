"""retry: measures again what failed, and compares again what passed. Rows never change; a newer row supersedes an older.

A crash, a time-out or a failed build is superseded by a newer row: if verification passes now, the next compile may use the kernel.
A wrong shape, a wrong dtype, a changed operand or a wrong number is permanent: such code must change, and then it has another
source hash. The same holds for a kernel that passed before and is wrong now: it is no longer chosen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tensor_graphs.cli import option_groups, options

if TYPE_CHECKING:
    from tensor_graphs.measure.judge import Judge
    from tensor_graphs.records.database import Database
    from tensor_graphs.records.queries import FullTrace

MOST = 10_000
"""limit on the traces of one kernel that are read, the newest first"""


def retry(
    *,
    what: Annotated[str, typer.Argument(metavar="KERNEL|TRACE", help="A kernel's name, or the number of one trace.")],
    threads: options.Threads = None,
    common: option_groups.Common,
) -> None:
    """Have the judge measure again what failed on this machine, compare again what passed (a trace that passed: by its number, a
    time too), and store what it finds. Exit code 1 if anything fails."""
    from tensor_graphs.measure.judge import Judge

    store = common.store(create=False)
    todo = _last_here(store, what, threads)
    results: list[dict[str, object]] = []
    with Judge(store, threads=threads) as judge, options.status("retrying", common.json) as update:
        for i, t in enumerate(todo):
            update(f"comparing {t.implementation_name} again ({i + 1} of {len(todo)})")
            status, reason = _again(judge, store, t)
            results.append({
                "trace_id": t.trace_id, "kernel": t.implementation_name, "graph": t.graph_name, "graph_key": t.graph_key,
                "axes": dict(t.axes), "before": t.status, "status": status, "reason": reason,
            })  # fmt: skip
    if common.json:
        options.print_json(results)
    else:
        for row in results:
            became = f"{row['before']} → {row['status']}"
            print(f"{row['trace_id']:8d}  {row['kernel']} {row['graph']}: {became}  {row['reason']}".rstrip())
        if not results:
            print(f"nothing of {what} was compared here")
    if any(row["status"] != "PASSED" for row in results):
        raise typer.Exit(1)


def _last_here(store: Database, what: str, threads: int | None) -> list[FullTrace]:
    """Return the newest traces of this kernel (or this trace) in this machine's environments: failures, and verdicts that passed
    for the kernel's current code; verdicts come before times."""
    from tensor_graphs.costs.database_keys import environment_of
    from tensor_graphs.kernels.registry import BACKENDS, why_missing
    from tensor_graphs.records import MissingRecord, queries

    here = {environment_of(name, threads).key() for name in BACKENDS if why_missing(name) is None}
    if what.isdecimal():
        try:
            (asked,) = queries.evidence(store, int(what))
        except MissingRecord as e:
            raise options.NotPossible(f"{store.location} has no trace {what}\n  fix: tg db failures has their numbers") from e
        if asked.environment_key not in here:
            raise options.NotPossible(f"trace {what} was measured on {asked.hardware_name} ({asked.backend}), not in an "
                                     "environment of this machine\n  fix: retry it there")  # fmt: skip
        newest = _newest(store, asked.source_hash)
        if asked.trace_id not in (t.trace_id for t in newest):
            raise options.NotPossible(f"trace {what} was measured again since\n  fix: tg db history {asked.implementation_name}")
        # a failure at one size that is a failure at all sizes: the verdict about all is what keeps the kernel from being chosen
        stands = [t for t in newest if asked.axes and not t.axes and asked.status == t.status != "PASSED"
                  and (t.graph_key, t.environment_key) == (asked.graph_key, asked.environment_key)]
        return [*stands, asked]
    if not queries.kernels_like(store, what):
        raise options.NotPossible(f"{store.location} knows no kernel named {what!r}\n  fix: tg db failures lists them")
    today = _identity_today(what)
    last = [t for t in _newest(store, what) if t.environment_key in here and
             (t.status != "PASSED" or (not t.axes and today in (None, t.source_hash)))]
    return sorted(last, key=lambda t: (bool(t.axes), t.trace_id))


def _newest(store: Database, kernel: str) -> list[FullTrace]:
    """Return the newest trace for each identity, workload and environment. kernel: a name, or a source hash."""
    from tensor_graphs.records import queries

    newest: dict[tuple[str, str, str], FullTrace] = {}
    for t in queries.history(store, kernel, limit=MOST):
        newest.setdefault((t.source_hash, t.workload_key, t.environment_key), t)
    return list(newest.values())


def _identity_today(name: str) -> str | None:
    """Return the identity of the installed kernel of this name; None if there is none (`name` may be a source hash, or a kernel
    that is not imported)."""
    from tensor_graphs.kernels.kernel import KernelError
    from tensor_graphs.kernels.registry import kernel_named

    try:
        return kernel_named(name).identity
    except KernelError:
        return None


def _again(judge: Judge, store: Database, t: FullTrace) -> tuple[str, str]:
    """Verify or measure the kernel as the trace was, and store the row. Return (its status or "NOT RETRIED", the reason)."""
    from tensor_graphs.measure.dataset import NotAgain, asked_again
    from tensor_graphs.measure.points.input_descriptors import given_of
    from tensor_graphs.records import queries
    from tensor_graphs.records.logs import reason_of
    from tensor_graphs.records.rows import REFUTING

    text, _ = queries.graph_text(store, t.graph_key)
    inputs = given_of(queries.workload_inputs(store, t.workload_key)) if t.axes else ()
    try:
        verdict = asked_again(judge, t.implementation_name, t.source_hash, text, t.axes, inputs,
                              command=f"tg db retry {t.implementation_name}")
    except NotAgain as why:
        return "NOT RETRIED", str(why)
    reason = reason_of(verdict.log)
    if verdict.status == "PASSED" and (t.status in REFUTING or t.status == "INCORRECT_NUMERICAL"):
        reason = f"but {t.status} stays: such code must change before it is used"
    return verdict.status, reason
