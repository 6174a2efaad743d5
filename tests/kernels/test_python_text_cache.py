"""A module's text is parsed once for all processes, whatever lies in the cache's place."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from tensor_graphs.kernels import python_text_cache
from tensor_graphs.kernels.python_text import ModuleText, parsed
from tensor_graphs.kernels.python_text_cache import text_of

DATA = b"""
import os
from . import near
__all__ = ["f"]

def f(x, g=lambda y: y):
    exec("x")
    return "table.c", x

class A:
    @staticmethod
    def h(): ...
"""


def module_text(data: bytes = DATA) -> ModuleText:
    return text_of(data, hashlib.sha256(data).hexdigest())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of cached texts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tensor_graphs" / "texts"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Grows by what is parsed."""
    seen: list[bytes] = []

    def counting(data: bytes) -> ModuleText:
        seen.append(data)
        return parsed(data)

    monkeypatch.setattr(python_text_cache, "parsed", counting)
    return seen


def test_what_a_text_says_is_the_same_from_its_file(folder: Path, asked: list[bytes]) -> None:
    first = module_text()
    assert first.imports == ((0, "os", None), (1, "", ("near",))) and first.lines == {6: (0, 1), 11: (2,)}
    assert first.strings == ("table.c",) and first.listed == ("f",) and first.computed == (7,)
    assert module_text() == first == parsed(DATA) and len(list(folder.iterdir())) == 1
    assert asked == [DATA]


def test_other_bytes_are_parsed_though_they_say_the_same(folder: Path, asked: list[bytes]) -> None:
    assert module_text() == module_text(DATA + b"# a comment\n") and len(asked) == len(list(folder.iterdir())) == 2
    assert module_text().digest != module_text(DATA.replace(b"return", b"yield")).digest


def test_a_damaged_file_is_left_out_and_replaced(folder: Path, asked: list[bytes]) -> None:
    first = module_text()
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    for bad in (b"", whole[:-9], whole.replace(b"table.c", b"tablf.c"), whole.partition(b"\n")[2], b"\n", b"\xff" * 99):
        file.write_bytes(bad)
        assert module_text() == first and file.read_bytes() == whole
    assert len(asked) == 7


def test_a_file_that_others_may_write_to_is_left_out(folder: Path, asked: list[bytes]) -> None:
    first = module_text()
    (file,) = folder.iterdir()
    os.chmod(file, 0o666)
    assert module_text() == first and len(asked) == 2 and not file.stat().st_mode & 0o022


def test_without_a_folder_texts_are_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[bytes]) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert module_text() == module_text() and len(asked) == 2


def test_what_is_no_python_is_refused_each_time(folder: Path) -> None:
    for _ in range(2):
        with pytest.raises(SyntaxError):
            module_text(b"def (")
    assert not list(folder.iterdir())
