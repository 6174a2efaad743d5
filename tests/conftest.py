"""What every test shares: a home of its own for the benchmark database, hypothesis settings, and reviewed snapshots."""

from __future__ import annotations

import difflib
import fcntl
import functools
import gc
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import settings

from tensor_graphs.measure.timing.noise_reference import SHARED
from tensor_graphs.rewrites import user_rules
from tests.sampled import EVERY

if TYPE_CHECKING:
    from tensor_graphs.records.database import Database

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None, print_blob=True)
settings.load_profile("repeatable")

_home: Path | None = None
_claimed: set[Path] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-processes", action="store_true",
                     help="leave out the tests marked `processes`, and fail any other one that starts a process")
    parser.addoption("--renew-snapshots", action="store_true",
                     help="rewrite the snapshots, run only the tests that have some, and delete what no test claims")


def pytest_configure(config: pytest.Config) -> None:
    """No test reads or writes the user's own benchmark database. The workers of a parallel run share one home."""
    global _home
    # Hundreds of processes are started here. Each would compile the package's source anew (0.2 to 0.6 s of CPU time) where the
    # variable says that nobody keeps bytecode. What a test edits while processes read it, it runs with the variable set.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if "PYTEST_XDIST_WORKER" not in os.environ:
        _home = Path(tempfile.mkdtemp(prefix="tensor_graphs-tests-"))
        os.environ["XDG_DATA_HOME"] = str(_home)
    # torch's threads would spin between two operations (read when torch is loaded): half the time of a small model, where tests
    # of several processes share the cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Ten thousand collected tests and the libraries are objects that stay; every full collection would go through them again.
    gc.disable()                                                    # until they are collected
    if config.getoption("--no-processes"):
        sys.addaudithook(_refuse_processes)                         # not otherwise: it is called at each open and import
    os.environ.pop("TENSOR_GRAPHS_DB", None)
    os.environ["TENSOR_GRAPHS_PLANS"] = "off"                       # tests replace what decides; those of the file turn it on
    os.environ[SHARED] = "1"                                        # other tests run meanwhile
    for ends, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(ends) is signal.SIG_IGN:                # a shell's background job, nohup; children would be deaf too
            signal.signal(ends, handler)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup() -> None:
    """A worker is forked by the supervisor of the one before only where the environment is the same. pytest writes the name of each
    test into it, so that each would import the package anew (0.45 s of CPU time)."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Begin a test without the rules of others, and with generators as they were at first, so that what it draws does not depend on
    the tests before it. Under --no-processes, let it start no process: `make quick` promises that."""
    global _forbidden
    user_rules._admitted, _forbidden = [], item.config.getoption("--no-processes")
    random.seed(0)
    np.random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
    for generator, state in _generators(item.module):
        generator.bit_generator.state = state
    return (yield)


@functools.cache
def _generators(module: ModuleType) -> list[tuple[np.random.Generator, Any]]:
    """Return the generators under the module's names and their states as of the first call."""
    return [(v, v.bit_generator.state) for v in vars(module).values() if isinstance(v, np.random.Generator)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    global _forbidden
    _forbidden = False
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Tests marked `alone` have the GPU to themselves, among the processes of this user's tests: others wait for them, and they for
    those. Where a kernel of another process does not end, right ones run into their time limit, and times say nothing."""
    if item.get_closest_marker("gpu") is None:
        return (yield)
    with open(Path(tempfile.gettempdir(), f"tensor_graphs-tests-{os.getuid()}.gpu"), "a") as lock:     # given back with the file
        fcntl.flock(lock, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call() -> None:
    pytest_fixture_setup()


def pytest_unconfigure(config: pytest.Config) -> None:
    if _home is not None:
        shutil.rmtree(_home, ignore_errors=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    from tests import shared_verdicts  # here: most of the package is imported by now

    shared_verdicts.share()
    gc.freeze()
    gc.set_threshold(5_000, 10, 50)                                 # looking for cycles takes 5 % of the time of tests by default
    gc.enable()


_cases: Counter[tuple[str, str]] = Counter()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark `long` what the default run leaves out of the cases of a test (sampled.py)."""
    name = getattr(item, "originalname", item.name)
    if name not in EVERY or item.get_closest_marker("long") is not None:
        return
    number, every = _cases[item.nodeid.partition("::")[0], name], EVERY[name]
    _cases[item.nodeid.partition("::")[0], name] += 1
    if not every or number % every:
        item.add_marker(pytest.mark.long)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = items
    if config.getoption("--renew-snapshots"):
        chosen = [item for item in chosen if "snapshot" in getattr(item, "fixturenames", ())]
    if config.getoption("--no-processes"):
        chosen = [item for item in chosen if item.get_closest_marker("processes") is None]
    kept = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = chosen


def _refuse_processes(event: str, args: tuple[Any, ...]) -> None:
    if _forbidden and event in ("subprocess.Popen", "os.fork", "os.posix_spawn"):
        raise RuntimeError(f"the test starts a process ({event}): mark it `processes`, so that make quick leaves it out")


_forbidden = False


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    if not config.getoption("--renew-snapshots"):
        return
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK                    # no test has a snapshot: nothing to renew is no failure
    narrowed = config.option.keyword or config.option.file_or_dir
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and not narrowed:
        for folder in sorted(Path(config.rootpath, "tests").rglob("snapshots")):
            for file in sorted(f for f in folder.rglob("*") if f.is_file() and f not in _claimed):
                file.unlink()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """At the end, what tests have to tell whether they pass or not: `record_property("told", line)`."""
    told = [str(value) for reports in terminalreporter.stats.values() for report in reports
            if getattr(report, "when", "") == "call" for name, value in report.user_properties if name == "told"]
    if told:
        terminalreporter.section("told")
        terminalreporter.write_line("\n".join(sorted(told)))


@pytest.fixture(scope="session")
def store() -> Iterator[Database]:
    """One benchmark database for all tests of this process: pass it to `compile`. Other workers have their own: some tests ask for
    a plan twice, and it is made anew where rows were added in between. Verdicts are shared by shared_verdicts.py."""
    from tensor_graphs.records.database import open_database

    with open_database(Path(os.environ["XDG_DATA_HOME"]) / f"store_{os.getpid()}.sqlite") as database:
        yield database


class Snapshot:
    """Texts that a person has reviewed, under `snapshots/<test file>/` beside the test that claims them."""

    def __init__(self, folder: Path, renew: bool) -> None:
        self.folder, self.renew = folder, renew

    def check(self, name: str, text: str) -> None:
        """Fail with a diff unless `text` is what was last reviewed under `name` (like `decode.plan.txt`)."""
        file = self.folder / name
        _claimed.add(file)
        if self.renew:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            return
        if not file.exists():
            pytest.fail(f"there is no snapshot {file}; look at the text, then: make snapshots", pytrace=False)
        known = file.read_text(encoding="utf-8")
        if known != text:
            diff = difflib.unified_diff(known.splitlines(), text.splitlines(), "reviewed", "now", lineterm="", n=2)
            lines = list(diff)
            shown = "\n".join(lines[:60]) + (f"\n… {len(lines) - 60} more lines" if len(lines) > 60 else "")
            pytest.fail(f"{name} is not the text last reviewed; if it should move: make snapshots\n{shown}", pytrace=False)


@pytest.fixture
def snapshot(request: pytest.FixtureRequest) -> Snapshot:
    """`snapshot.check(name, text)` holds a generated text to the reviewed one."""
    here = Path(request.path)
    return Snapshot(here.parent / "snapshots" / here.stem, request.config.getoption("--renew-snapshots"))


@pytest.fixture
def every_verdict_is_new() -> Iterator[None]:
    """Kernels are compared with the oracle though another test has had their verdicts (tests/shared_verdicts.py)."""
    from tests import shared_verdicts

    shared_verdicts.stop_sharing()
    yield
    shared_verdicts.share()


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine of one's own: measurements wait for quiet moments."""
    monkeypatch.delenv(SHARED)


@pytest.fixture
def gpu_that_is_none(tmp_path: Path) -> Iterator[Any]:
    """cuda:0 whose kernels are compiled for the host (tests/fake/cuda.py), for the length of a test."""
    from tensor_graphs.devices.device_registry import device_named
    from tests.fake import cuda

    cuda.install(tmp_path)
    yield device_named("cuda:0")
    cuda.remove()


@pytest.fixture
def fake() -> Iterator[Any]:
    """A second device in host memory, and its backend (tests/fake), known for the length of a test."""
    from tests.fake import backend  # here: it is known as soon as it is imported

    yield backend.make_known()
    backend.forget()
