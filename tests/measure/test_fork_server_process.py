"""A supervisor is forked from a process that has run no candidate, and has nothing of the judges before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensor_graphs.measure.isolation import fork_server_process, process_tree
from tensor_graphs.measure.isolation.worker import INSIDE
from tensor_graphs.measure.isolation.worker_process import WorkerProcess


@pytest.fixture(autouse=True)
def no_template(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process that has judged nothing yet."""
    own: dict[object, fork_server_process.TemplateProcess] = {}
    monkeypatch.setattr(fork_server_process, "_templates", own)
    yield
    for template in own.values():
        template.end()


def processes(made: WorkerProcess) -> tuple[int, int, int]:
    """The numbers of its template, its supervisor and its worker."""
    made.ready()
    assert made.supervisor is not None and made.pid is not None
    return made.supervisor.template.process.pid, made.supervisor.pid, made.pid


def there(process: int) -> bool:
    """Whether it is there a little later, too."""
    end = time.monotonic() + 5.0
    while process_tree.works(process) and time.monotonic() < end:
        time.sleep(0.01)
    return process_tree.works(process)


def test_each_judge_has_a_supervisor_of_its_own_from_one_template() -> None:
    with WorkerProcess() as one, WorkerProcess() as two:
        (template, *first), (same, *second) = processes(one), processes(two)
        assert template == same and len({template, *first, *second}) == 5
        assert process_tree.children(template) == [first[0], second[0]]
    assert process_tree.children(template) == [] and process_tree.works(template)
    assert not any(map(process_tree.works, [*first, *second]))


def test_the_first_supervisor_is_forked_from_a_template_that_was_begun_before() -> None:
    fork_server_process.begin()
    fork_server_process.begin()
    (begun,) = fork_server_process._templates.values()
    with WorkerProcess() as one:
        assert processes(one)[0] == begun.process.pid and [*fork_server_process._templates.values()] == [begun]


def test_a_template_that_does_not_start_is_another_ones_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was begun for starts its own, and says what is wrong where that does not start either."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    fork_server_process.begin()
    monkeypatch.undo()
    with WorkerProcess() as one:
        assert process_tree.works(processes(one)[0])


def test_what_a_supervisor_is_given_is_its_own() -> None:
    with WorkerProcess() as one, WorkerProcess() as two:
        for made in (one, two):
            _, supervisor, worker = processes(made)
            assert process_tree.carrying(INSIDE, made._token) == sorted((supervisor, worker))
            own = {Path(f"/proc/{each}/fd/1").resolve() for each in (supervisor, worker)}
            assert own == {Path(f"/proc/self/fd/{made._said}").resolve()}
            assert Path(f"/proc/{worker}/cwd").resolve() == Path.cwd()


def test_who_kills_one_supervisor_ends_its_worker_and_no_other() -> None:
    with WorkerProcess() as one, WorkerProcess() as two:
        (_, supervisor, worker), others = processes(one), processes(two)
        os.kill(supervisor, signal.SIGKILL)
        one.kill()
        assert not there(worker) and process_tree.carrying(INSIDE, one._token) == []
        assert all(map(process_tree.works, others)) and processes(two) == others


@pytest.mark.parametrize("what", [signal.SIGKILL, signal.SIGSTOP], ids=lambda s: s.name)
def test_without_its_template_a_supervisor_ends_and_the_next_has_another(what: signal.Signals,
                                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server_process, "ANSWER_SECONDS", 0.3)
    with WorkerProcess() as one:
        template, supervisor, worker = processes(one)
        os.kill(template, what)
        if what == signal.SIGKILL:
            assert not there(supervisor) and not there(worker)
        one.kill()
        again = processes(one)
        assert not {template, supervisor, worker} & set(again)
        assert not any(map(there, (template, supervisor, worker)))


def test_another_template_where_something_else_is_inherited_and_few_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def template() -> int:
        with WorkerProcess() as made:
            return processes(made)[0]

    monkeypatch.setattr(fork_server_process, "MOST", 1)
    first = template()
    assert template() == first
    with monkeypatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        other = template()
    assert other != first and not process_tree.works(first), "the one that was used last stays"


def test_an_edited_file_of_the_package_or_other_libraries_need_another_template(monkeypatch: pytest.MonkeyPatch,
                                                                               tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    source = tmp_path / "room" / "file.py"
    source.write_text("x = 1\n")
    monkeypatch.setattr(fork_server_process, "PACKAGE", str(tmp_path))
    before = fork_server_process._inherited({}, ())
    assert fork_server_process._inherited({}, ()) == before != fork_server_process._inherited({}, ("wave",))
    os.utime(source, ns=(1, 1))
    assert fork_server_process._inherited({}, ()) != before


def test_the_folder_is_that_of_the_judge_when_it_asks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with WorkerProcess() as one, WorkerProcess() as two:
        template = processes(one)[0]
        monkeypatch.chdir(tmp_path)
        assert processes(two)[0] == template
        assert Path(f"/proc/{two.pid}/cwd").resolve() == tmp_path.resolve()


def test_a_fork_of_the_judge_starts_its_own() -> None:
    with WorkerProcess() as one:
        before = template, *_ = processes(one)
        child = os.fork()
        if child == 0:
            try:
                with WorkerProcess() as two:
                    other = processes(two)[0]
                one.close()
                fork_server_process._end_all()
                os._exit(0 if other != template and process_tree.works(template) else 1)
            finally:
                os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert processes(one) == before


SCRIPT = """
import time
from tensor_graphs.measure.isolation.worker_process import WorkerProcess
with WorkerProcess() as made:
    made.ready()
    print(made.supervisor.template.process.pid, flush=True)
input()
"""


@pytest.mark.parametrize("killed", [False, True])
def test_a_template_ends_with_the_process_that_judges(killed: bool) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
                          text=True) as judge:
        assert judge.stdin is not None and judge.stdout is not None
        template = int(judge.stdout.readline())
        assert process_tree.works(template)
        if killed:
            judge.kill()
        else:
            judge.stdin.write("\n")
    assert not there(template)
