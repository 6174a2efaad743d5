"""shared_verdicts: a kernel of the package is compared with the oracle once in a run of the tests, whichever test asks first.

Comparing the two kernels of a tiny graph takes 0.4 s of processor time, and hundreds of tests begin with an empty database. What
`compile` and `profile` ask a judge about the package's own kernels is looked up among the verdicts that tests of this run have had,
under the key by which a database files them, and is filed there. Only what passed is kept. Tests of the judge call it themselves,
and `tg` is a process of its own: neither looks here.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tensor_graphs.choice import search
from tensor_graphs.costs.database_keys import environment_of, implementation_of, verify_workload
from tensor_graphs.measure import comparison_pipeline
from tensor_graphs.measure.judge import Judge, JudgeTask, Verdict
from tensor_graphs.records.database import Database


class _PatientJudge(Judge):
    """A judge whose worker starts with its first question."""

    def begin(self) -> None:
        pass


def _file(judge: Judge, task: JudgeTask) -> Path:
    kernel = task.kernel
    key = repr((implementation_of(kernel), verify_workload(task.signature), environment_of(kernel.backend, judge.threads)))
    return Path(os.environ["XDG_DATA_HOME"], "verdicts", hashlib.sha256(key.encode()).hexdigest())


def _verdict(judge: Judge, task: JudgeTask) -> Verdict | None:
    if not task.kernel.ours or not _file(judge, task).exists():
        return None
    verdict: Verdict = pickle.loads(_file(judge, task).read_bytes())
    return verdict


def _keep(judge: Judge, task: JudgeTask, verdict: Verdict) -> None:
    if task.kernel.ours and verdict.status == "PASSED":
        file = _file(judge, task)
        file.parent.mkdir(exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_bytes(pickle.dumps(verdict))
        part.replace(file)                                          # whole, as other processes read it


_patch = pytest.MonkeyPatch()


def share() -> None:
    """Share verdicts from now on."""
    compare, foresee = comparison_pipeline.compare, search.foresee

    def compared(judge: Judge, asked: Sequence[JudgeTask]) -> Generator[tuple[JudgeTask, Verdict]]:
        rest = []
        for task in asked:
            verdict = _verdict(judge, task)
            if verdict is None:
                rest.append(task)
            else:
                yield task, verdict
        if rest:
            for task, verdict in compare(judge, rest):
                _keep(judge, task, verdict)
                yield task, verdict

    def foreseen(judge: Judge, pending: Sequence[Any], enough: Callable[[], bool]) -> None:
        foresee(judge, [question for question in pending if _verdict(judge, JudgeTask(*question)) is None], enough)

    def opened(database: Database, threads: int | None, rates: Any) -> Judge:
        return _PatientJudge(database, threads=threads, rates=rates)

    _patch.setattr(comparison_pipeline, "compare", compared)
    _patch.setattr(search, "foresee", foreseen)
    _patch.setattr(search, "open_judge", opened)


def stop_sharing() -> None:
    """Let each comparison be made, as for users."""
    _patch.undo()
