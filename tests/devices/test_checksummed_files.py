"""devices/checksummed_files.py: files appear whole, and what was cut or changed is left out before anything maps it."""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tensor_graphs.devices import cache_folder, checksummed_files, fallback_folder, toolchain, write_checksummed_files
from tensor_graphs.devices.cache_folder import CacheFolderError
from tensor_graphs.devices.checksummed_files import holds, mapped, place, read
from tensor_graphs.devices.write_checksummed_files import keep, seal, whole_file

CONTENT = bytes(range(256)) * 9


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _cut_seal(path: Path) -> None:
    os.truncate(path, len(CONTENT))


def _emptied(path: Path) -> None:
    os.truncate(path, 0)


def _changed(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(5)
        file.write(b"\xff")


def _seal_changed(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(-20, os.SEEK_END)
        file.write(b"\xff")


def _grown(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"more")


DAMAGES = (_cut, _cut_seal, _emptied, _changed, _seal_changed, _grown)


def test_a_file_takes_its_place_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "plan"
    with whole_file(path) as file:
        file.write(b"first")
        assert not path.exists()
    assert read(path) == b"first"
    with pytest.raises(ValueError, match="no more"), whole_file(path) as file:
        file.write(b"sec")
        raise ValueError("no more")
    assert read(path) == b"first" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("known", [False, True], ids=["new to this process", "checked before"])
def test_a_damaged_file_is_not_there_until_it_is_written_again(tmp_path: Path, damage: Callable[[Path], None], known: bool) -> None:
    path = tmp_path / "file"
    keep(path, [CONTENT], 1 << 20)
    if known:
        assert holds(path) and read(path) == CONTENT and bytes(mapped(path) or b"") == CONTENT
    damage(path)
    assert not holds(path) and read(path) is None and mapped(path) is None
    keep(path, [CONTENT], 1 << 20)
    assert holds(path) and read(path) == CONTENT and bytes(mapped(path) or b"") == CONTENT


def test_a_file_without_a_seal_or_that_others_may_write_to_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    assert not holds(path) and read(path) is None
    keep(path, [CONTENT], 1 << 20)
    path.chmod(0o666)
    assert read(path) is None and mapped(path) is None
    with pytest.raises(CacheFolderError, match="others may write"):
        holds(path)


def test_a_large_file_is_digested_once_for_all_processes_and_again_when_it_was_written_to(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digested: list[int] = []
    digest = checksummed_files.digest_of
    monkeypatch.setattr(checksummed_files, "digest_of", lambda file, size: (digested.append(size), digest(file, size))[1])
    for module in (checksummed_files, write_checksummed_files):
        monkeypatch.setattr(module, "LARGE", 1000)
    monkeypatch.setattr(checksummed_files, "BLOCK", 100)                # several, which threads digest
    path, small = tmp_path / "large", tmp_path / "small"

    def processes(path: Path, count: int) -> int:
        """How often so many new processes digest a file."""
        digested.clear()
        for _ in range(count):
            checksummed_files._checked.clear()
            assert read(path) is not None
        return len(digested)

    keep(path, [CONTENT], 1 << 20)
    keep(small, [b"small"], 1 << 20)
    assert processes(path, 3) == 0 and processes(small, 3) == 3     # what was written here is known
    assert holds(path) and not digested[3:]
    (listed,) = tmp_path.glob(".checked-*")
    assert listed.stat().st_mode & 0o077 == 0
    listed.rename(tmp_path / ".checked-before-the-machine-was-started")
    assert processes(path, 3) == 1 and [file.name for file in tmp_path.glob(".checked-*")] == [listed.name]
    _changed(path)
    assert not holds(path)


def test_use_moves_a_file_behind_others_and_leaves_its_time_of_writing(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("first", "second", "third")]
    for age, path in zip((300, 200, 100), paths, strict=True):
        keep(path, [CONTENT], 1 << 20)
        os.utime(path, (1e9 - age, 1e9 - age))
    assert read(paths[0]) == CONTENT and paths[0].stat().st_mtime == 1e9 - 300
    keep(paths[2], [CONTENT], 2 * len(CONTENT) + 200)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "third"]


def test_a_library_is_there_only_with_those_that_it_needs(tmp_path: Path) -> None:
    for name, needs in (("core", ()), ("gemm", ("core",)), ("generated", ("gemm", "core"))):
        (tmp_path / name).write_bytes(CONTENT)
        seal(tmp_path / name, needs)
    assert all(holds(tmp_path / name) for name in ("core", "gemm", "generated"))
    _cut(tmp_path / "core")
    assert not any(holds(tmp_path / name) for name in ("core", "gemm", "generated"))


def _answer(library: Path) -> str:
    """What a library's function returns, in a process of its own: this one must not have mapped what is cut later."""
    return subprocess.run([sys.executable, "-c", f"import ctypes; print(ctypes.CDLL({str(library)!r}).answer())"],
                          capture_output=True, text=True, check=True).stdout


def test_a_sealed_library_can_be_loaded_and_linked_against(tmp_path: Path) -> None:
    visible = '__attribute__((visibility("default")))'
    (tmp_path / "six.c").write_text(f"{visible} int six(void) {{ return 6; }}\n")
    (tmp_path / "answer.c").write_text(f"int six(void); {visible} int answer(void) {{ return 7 * six(); }}\n")
    six = toolchain.build_library([tmp_path / "six.c"], name="six", cache=tmp_path / "cache")
    answer = toolchain.build_library([tmp_path / "answer.c"], name="answer", cache=tmp_path / "cache", against=[six])
    assert _answer(answer) == "42\n"
    _cut(six)
    assert not holds(answer)
    assert toolchain.build_library([tmp_path / "six.c"], name="six", cache=tmp_path / "cache") == six and holds(answer)


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder with one file, on a disk that is full like the one in memory; temporary files are on another."""
    folder = tmp_path / "cache" / "native"
    keep(place(folder, "there"), [CONTENT], 1 << 20)
    why_unusable = cache_folder.why_unusable
    for module in (checksummed_files, fallback_folder):
        monkeypatch.setattr(module, "why_unusable", lambda path: why_unusable(path) if tmp_path / "temporary" in path.parents
                            else f"0 KiB are left on the disk of {path}")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(fallback_folder.tempfile, "tempdir", str(tmp_path / "temporary"))
    return folder


def test_on_a_full_disk_what_is_there_is_read_and_what_is_new_goes_elsewhere(
        full: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert place(full, "there") == full / "there"
    new = place(full, "new")
    other = new.parent.parent
    assert other.parent == tmp_path / "temporary" and new.parent.name == "native"
    assert all(folder.stat().st_mode & 0o777 == 0o700 for folder in (new.parent, other))
    assert place(full, "new") == new and place(full.parent / "plans", "new").parent.parent == other
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "0 KiB are left" in line and str(other) in line and "fix:" in line and "XDG_CACHE_HOME" in line


def test_a_folder_among_temporary_files_that_others_control_is_not_used(full: Path, tmp_path: Path,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    other = place(full, "new").parent.parent
    owner = os.getuid()
    with monkeypatch.context() as patch:
        patch.setattr(cache_folder.os, "getuid", lambda: owner + 1)
        (tmp_path / "temporary" / other.name.replace(str(owner), str(owner + 1), 1)).mkdir()
        assert place(full, "new") == full / "new"
    (other / "native").rmdir()
    other.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    other.symlink_to(tmp_path / "elsewhere")
    assert place(full, "new") == full / "new" and not list((tmp_path / "elsewhere").iterdir())


def test_a_library_on_a_full_disk_is_linked_with_those_that_are_there(full: Path, tmp_path: Path) -> None:
    visible = '__attribute__((visibility("default")))'
    (tmp_path / "six.c").write_text(f"{visible} int six(void) {{ return 6; }}\n")
    (tmp_path / "answer.c").write_text(f"int six(void); {visible} int answer(void) {{ return 7 * six(); }}\n")
    elsewhere = toolchain.build_library([tmp_path / "six.c"], name="six", cache=tmp_path / "cache")
    there = full / elsewhere.name
    elsewhere.replace(there)
    assert toolchain.build_library([tmp_path / "six.c"], name="six", cache=full) == there
    answer = toolchain.build_library([tmp_path / "answer.c"], name="answer", cache=full, against=[there])
    assert answer.parent != full and holds(answer)
    assert _answer(answer) == "42\n"


# ---- whole processes ----

PROGRAM = """
import sys
import numpy as np
import tensor_graphs as tg
plan = tg.compile(tg.graph(tg.tanh(tg.input("x", (8, 64))) * 2.0), backends=("gen", "numpy"), database=sys.argv[1])
value = tg.bind(plan).run({"x": np.ones((8, 64), np.float32)})["out"]
print(round(float(value.sum()), 3), sorted({name.partition(".")[0] for variant in plan.variants for name in variant.kernels}))
"""
SUM = round(8 * 64 * 2.0 * math.tanh(1.0), 3)


def _run(cache: Path, database: Path, before: str = "", **more: str) -> tuple[str, str]:
    """What a new process prints that compiles and runs a graph, and what it logs."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), **more}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(before) + PROGRAM, str(database)], env=environment,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout, done.stderr


@pytest.mark.slow
def test_damaged_libraries_are_compiled_again_and_end_no_process(tmp_path: Path) -> None:
    assert _run(tmp_path, tmp_path / "bench.db")[0] == f"{SUM} ['gen']\n"
    libraries = sorted((tmp_path / "tensor_graphs" / "native").glob("*.so"))
    assert len(libraries) >= 2
    for damage in (_cut, _changed):
        for path in libraries:
            damage(path)
        assert _run(tmp_path, tmp_path / "bench.db")[0] == f"{SUM} ['gen']\n"
    assert any(holds(path) for path in libraries)


@pytest.mark.slow
def test_where_the_cache_folder_cannot_be_made_a_plan_runs_and_one_line_says_so(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    printed, logged = _run(Path("/proc/nowhere"), tmp_path / "bench.db", TMPDIR=str(tmp_path / "temporary"))
    assert printed == f"{SUM} ['gen']\n"
    (line,) = logged.splitlines()
    assert "cannot use /proc/nowhere" in line and str(tmp_path / "temporary") in line and "fix:" in line
    assert list((tmp_path / "temporary").glob("tensor_graphs-*/native/*.so"))


@pytest.mark.slow
def test_where_nothing_can_be_written_at_all_a_plan_runs_on_numpy(tmp_path: Path) -> None:
    no_room = """
        import os, types
        os.statvfs = lambda folder: types.SimpleNamespace(f_flag=0, f_bavail=0, f_frsize=4096)
    """
    printed, logged = _run(Path("/proc/nowhere"), tmp_path / "bench.db", no_room, TMPDIR=str(tmp_path))
    assert printed == f"{SUM} ['numpy']\n"
    (line,) = logged.splitlines()
    assert "cannot use /proc/nowhere" in line and "nothing new is kept or compiled" in line and "fix:" in line
