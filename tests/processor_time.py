"""processor_time: a plugin of pytest that prints which tests take the most processor time, processes that they start included.

`make slowest` runs the suite with it. Time on the clock says little where tests share the cores, and a test that waits costs none.
"""

from __future__ import annotations

import ctypes
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SHOWN = 20
_ADOPT_ORPHANS = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2): a process whose parent has ended becomes a child of this one"""


def pytest_configure() -> None:
    ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)


def _of_running(pid: int) -> float:
    """Return the seconds that the processes below this one have worked, with those children of theirs that have ended."""
    seconds = 0.0
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in file.read_text().split():
            try:
                times = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[11:15]
                seconds += sum(map(int, times)) / os.sysconf("SC_CLK_TCK") + _of_running(int(child))
            except OSError:                                         # it ends in this moment, and is counted the next time
                continue
    return seconds


def processor_time() -> float:
    """Return the seconds that this process and all that it started have worked."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime + _of_running(os.getpid())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    item.stash[_BEGAN] = processor_time()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    try:
        return (yield)
    finally:
        item.user_properties.append(("processor time", processor_time() - item.stash[_BEGAN]))


_BEGAN = pytest.StashKey[float]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for kind in ("", "passed", "failed", "error") for report in terminalreporter.stats.get(kind, [])
               if report.when == "teardown"]
    spent = sorted(((seconds, report.nodeid) for report in reports for name, seconds in report.user_properties
                    if name == "processor time"), reverse=True)
    terminalreporter.section(f"{sum(seconds for seconds, _ in spent):.0f} s of processor time")
    for seconds, test in spent[:SHOWN]:
        terminalreporter.write_line(f"{seconds:7.2f} s  {test}")
