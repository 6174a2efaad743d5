"""The C compiler is found or its absence explained; libraries are built once, privately, and identified by what made them."""

from __future__ import annotations

import ctypes
import errno
import multiprocessing
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from tensor_graphs.devices import c_code, cache_folder, toolchain
from tensor_graphs.devices.c_code import ToolchainError

SOURCE = "#include \"answer.h\"\n__attribute__((visibility(\"default\"))) int answer(void) { return ANSWER; }\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "answer.h").write_text("#define ANSWER 42\n")
    (folder / "answer.c").write_text(SOURCE)
    return folder / "answer.c"


def answer(path: Path) -> int:
    return int(ctypes.CDLL(str(path)).answer())


def fake_compiler(folder: Path, script: str, name: str = "fakecc") -> str:
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport os, sys\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_the_compiler_named_by_argument_or_by_cc_comes_first(tmp_path: Path) -> None:
    mine = fake_compiler(tmp_path, "print('mine 1.0')")
    other = fake_compiler(tmp_path, "print('other 2.0')", "other")
    found, reason = c_code.find_compiler(mine, {"CC": other})
    assert found == c_code.Compiler((mine,), "mine 1.0") and "mine 1.0" in reason
    found, _ = c_code.find_compiler(None, {"CC": f"{other} -m64"})
    assert found == c_code.Compiler((other, "-m64"), "other 2.0")
    found, _ = c_code.find_compiler(None, {})
    assert found is not None and found.version


def test_a_compiler_that_writes_nothing_is_told_as_that(source: Path, tmp_path: Path) -> None:
    silent = fake_compiler(tmp_path, "print('silent 1.0')")
    with pytest.raises(ToolchainError) as caught:
        toolchain.build_library([source], name="answer", cache=tmp_path / "cache", cc=silent)
    text = str(caught.value)
    assert text.startswith(f"cannot compile answer.c: {silent} says that it is done and wrote nothing")
    assert "fix: name one in CC" in text


def test_without_a_compiler_the_reason_says_what_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = fake_compiler(tmp_path, "sys.exit(3)")
    assert c_code.find_compiler(broken) == (
        None,
        f"no C compiler: {broken} does not answer --version (exit status 3). Fix: install gcc or clang, or name one in CC",
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    found, reason = c_code.find_compiler(None, {})
    assert found is None and all(f"'{name}' is not on PATH" in reason for name in ("cc", "gcc", "clang"))
    with pytest.raises(ToolchainError, match="cannot compile nothing: no C compiler: 'cc' is not on PATH"):
        toolchain.build_library([], name="nothing", cache=tmp_path / "cache")


def test_a_library_is_built_once_and_again_when_anything_it_was_made_of_changes(source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    compiled: list[str] = []

    def build(portable: bool = False) -> Path:
        return toolchain.build_library([source], name="answer", cache=cache, portable=portable, progress=compiled.append)

    first = build()
    assert answer(first) == 42 and compiled == ["answer.c"]
    assert build() == first and compiled == ["answer.c"]
    portable = build(portable=True)
    assert portable != first and answer(portable) == 42
    (source.parent / "answer.h").write_text("#define ANSWER 43\n")
    second = build()
    assert second != first and answer(second) == 43 and len(compiled) == 3
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700 and sorted(cache.iterdir()) == sorted([first, portable, second])


def test_a_library_meets_the_loaded_copy_of_the_one_it_is_linked_against_even_when_its_file_was_replaced(tmp_path: Path) -> None:
    """As when two processes compile at the same time: a second copy would have a pool of threads and scratch memory of its own."""
    shown = '__attribute__((visibility("default")))'
    for name, text in (("first.c", f"int value; {shown} int *where(void) {{ return &value; }}\n"),
                       ("second.c", f"int *where(void); {shown} int *seen(void) {{ return where(); }}\n")):
        (tmp_path / name).write_text(text)
    first = toolchain.build_library([tmp_path / "first.c"], name="first", cache=tmp_path / "cache")
    loaded = ctypes.CDLL(str(first))
    (tmp_path / "copy").write_bytes(first.read_bytes())
    (tmp_path / "copy").chmod(0o700)
    (tmp_path / "copy").replace(first)
    linked = toolchain.build_library([tmp_path / "second.c"], name="second", against=[first], cache=tmp_path / "cache")
    second = ctypes.CDLL(str(linked))
    loaded.where.restype = second.seen.restype = ctypes.c_void_p
    assert second.seen() == loaded.where()


def test_an_identity_follows_text_headers_flags_and_compiler_but_not_the_folder(source: Path, tmp_path: Path) -> None:
    first = toolchain.source_identity(source)
    moved = tmp_path / "moved"
    moved.mkdir()
    for path in source.parent.iterdir():
        (moved / path.name).write_bytes(path.read_bytes())
    assert toolchain.source_identity(moved / "answer.c") == first
    assert toolchain.source_identity(source, portable=True) != first
    assert toolchain.source_identity(source, cc=fake_compiler(tmp_path, "print('mine 1.0')")) != first
    (moved / "answer.h").write_text("#define ANSWER 44\n")
    assert toolchain.source_identity(moved / "answer.c") != first


def test_a_portable_library_has_no_flag_of_this_processor() -> None:
    assert not [flag for flag in toolchain.compile_flags(portable=True, machine="x86_64") if flag.startswith("-m")]
    assert "-march=native" in toolchain.compile_flags(machine="x86_64")
    assert "-mcpu=native" in toolchain.compile_flags(machine="aarch64")
    assert "-ffast-math" not in toolchain.compile_flags()


def test_a_file_that_does_not_compile_is_an_error_with_the_compilers_words(source: Path, tmp_path: Path) -> None:
    source.write_text("int answer(void) { return nonsense; }\n")
    with pytest.raises(ToolchainError, match=r"cannot compile answer\.c: the compiler failed with exit status 1(?s:.*)nonsense"):
        toolchain.build_library([source], name="answer", cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("below", ["file", "file/deeper", "file/deeper/still"])
def test_a_cache_below_a_regular_file_is_refused_by_name(source: Path, tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("here")
    with pytest.raises(ToolchainError, match=r"cannot be made: .*/file is no folder\.(?s:.*)fix: remove that file"):
        toolchain.build_library([source], name="answer", cache=tmp_path / below)
    with pytest.raises(ToolchainError, match=r"cannot be made: /dev/null is no folder\.\nfix: give another cache folder"):
        toolchain.build_library([source], name="answer", cache=Path("/dev/null") / below)


@pytest.mark.parametrize(
    ("number", "said"),
    [(errno.ENOSPC, "no space left for"), (errno.EACCES, "cannot use .*: Permission denied"), (errno.EROFS, "Read-only")],
)
def test_a_cache_that_cannot_be_written_is_an_error_with_a_fix(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(toolchain.tempfile, "mkdtemp", refuse)
        with pytest.raises(ToolchainError, match=f"{said}(?s:.*)fix: "):
            toolchain.build_library([source], name="answer", cache=tmp_path / "cache")
    monkeypatch.setattr(toolchain.os, "replace", refuse)
    with pytest.raises(ToolchainError, match=f"{said}(?s:.*)fix: "):
        toolchain.build_library([source], name="answer", cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_full_disk_under_the_compiler_is_told_apart_from_an_error_in_the_source(source: Path, tmp_path: Path) -> None:
    script = "print('full 1.0') if '--version' in sys.argv else sys.exit('cannot write: No space left on device')"
    with pytest.raises(ToolchainError, match=r"cannot compile answer\.c: no space left on the disk"):
        toolchain.build_library([source], name="answer", cache=tmp_path / "cache", cc=fake_compiler(tmp_path, script))


def test_code_that_others_could_have_written_is_not_loaded(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    library = toolchain.build_library([source], name="answer", cache=cache)
    cache.chmod(0o777)
    assert toolchain.build_library([source], name="answer", cache=cache) == library
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700  # ours, so it was closed
    library.chmod(0o777)
    with pytest.raises(ToolchainError, match=r"others may write to .* \(mode 0777\)(?s:.*)fix: chmod go-w"):
        toolchain.build_library([source], name="answer", cache=cache)
    owner = os.getuid()
    monkeypatch.setattr(toolchain.os, "getuid", lambda: owner + 1)
    with pytest.raises(ToolchainError, match=f"belongs to user {owner}, not to you"):
        cache_folder.check_private(library)


def _build(arguments: tuple[str, str]) -> str:
    return str(toolchain.build_library([Path(arguments[0])], name="answer", cache=Path(arguments[1])))


def test_processes_that_compile_at_the_same_time_end_with_one_library(source: Path, tmp_path: Path) -> None:
    context: Any = multiprocessing.get_context("spawn")
    with context.Pool(3) as pool:
        built = pool.map(_build, [(str(source), str(tmp_path / "cache"))] * 3, chunksize=1)
    assert len(set(built)) == 1 and answer(Path(built[0])) == 42
    assert [str(path) for path in (tmp_path / "cache").iterdir()] == built[:1]


def each(texts: dict[str, str], cache: Path, cc: str | None = None) -> dict[str, ToolchainError]:
    """`build_each` of texts of C, each a library of its name."""
    made = {name: c_code.Text("texts", text, cache.parent) for name, text in texts.items()}
    return toolchain.build_each(made, cache=cache, cc=cc)


def counting_compiler(folder: Path) -> tuple[str, Path]:
    """The compiler, and a file that grows by a line with every run of it."""
    real, _ = c_code.find_compiler()
    assert real is not None
    runs = folder / "runs"
    runs.touch()
    counted = f"if '--version' not in sys.argv: open({str(runs)!r}, 'a').write('run\\n')"
    return fake_compiler(folder, f"{counted}\nos.execv({real.command[0]!r}, [{real.command[0]!r}, *sys.argv[1:]])"), runs


def number(file: Path, name: str) -> int:
    return int(getattr(ctypes.CDLL(str(file)), name)())


def says(name: str, value: int) -> str:
    return f'__attribute__((visibility("default"))) int {name}(void) {{ return {value}; }}\n'


def test_texts_are_compiled_together_and_each_is_kept_by_itself(tmp_path: Path) -> None:
    cc, runs = counting_compiler(tmp_path)
    cache = tmp_path / "cache"
    texts = {f"{name}.so": says(name, i) for i, name in enumerate("abcdef")}
    assert not each(texts, cache, cc) and runs.read_text().count("run") == 2
    assert [number(cache / file, file[0]) for file in texts] == list(range(6))
    assert sorted(p.name for p in cache.iterdir()) == sorted(texts) and stat.S_IMODE((cache / "a.so").stat().st_mode) == 0o700
    assert not each({**texts, "g.so": says("g", 6)}, cache, cc) and runs.read_text().count("run") == 3
    assert number(cache / "g.so", "g") == 6
    assert not each(texts, cache, cc) and runs.read_text().count("run") == 3


def test_a_text_that_does_not_compile_keeps_no_other_from_its_library(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    texts = {f"{name}.so": says(name, i) for i, name in enumerate("abc")} | {"wrong.so": "int wrong(void) { return nothing; }\n"}
    failed = each(texts, cache)
    assert list(failed) == ["wrong.so"] and "nothing" in str(failed["wrong.so"])
    assert sorted(p.name for p in cache.iterdir()) == ["a.so", "b.so", "c.so"] and number(cache / "b.so", "b") == 1
    assert not each({"wrong.so": says("wrong", 7)}, cache) and number(cache / "wrong.so", "wrong") == 7


KILLED = "os.kill(os.getpid(), 9)"
BREAKS = {"killed": KILLED, "killed half way": f"open(sys.argv[sys.argv.index('-o') + 1], 'w').write('half'); {KILLED}",
          "fails": "sys.exit(1)", "writes nothing": "pass"}


@pytest.mark.parametrize("script", BREAKS.values(), ids=BREAKS)
def test_a_compiler_that_breaks_down_leaves_nothing_in_the_cache(script: str, tmp_path: Path) -> None:
    cc = fake_compiler(tmp_path, f"if '--version' in sys.argv: sys.exit(print('broken 1.0'))\n{script}")
    cache = tmp_path / "cache"
    texts = {f"{name}.so": says(name, i) for i, name in enumerate("abc")}
    assert set(each(texts, cache, cc)) == set(texts) and not list(cache.iterdir())
    assert not each(texts, cache) and number(cache / "c.so", "c") == 2


def test_without_a_compiler_every_text_is_refused_with_the_reason(tmp_path: Path) -> None:
    broken = fake_compiler(tmp_path, "sys.exit(3)")
    failed = each({"a.so": says("a", 1)}, tmp_path / "cache", broken)
    assert "no C compiler" in str(failed["a.so"])
