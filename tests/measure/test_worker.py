"""What a worker says of an exception: what was raised, where in the kernel's own file, and the traceback."""

from __future__ import annotations

from pathlib import Path
from types import CodeType

import pytest

from tensor_graphs.kernels.kernel import KernelError
from tensor_graphs.kernels.kernel_origin import Origin
from tensor_graphs.kernels.user_source import require_numbers
from tensor_graphs.measure.isolation.worker import LONGEST_LOG, words_of
from tensor_graphs.records.logs import reason_of

MINE = """
import json

def inner(x):
    return json.loads(x)

def my_softmax(x):
    if x is None:
        raise ValueError("shapes (3,) (4,) \\n  fix: equal ones")
    if x == "deep":
        return my_softmax(x)
    return helped(inner, x)
"""
HELPER = "def helped(f, x):\n    return f(x)\n"


def code(folder: Path, name: str, text: str) -> CodeType:
    (folder / name).write_text(text)
    return compile(text, str(folder / name), "exec")


def raised(folder: Path, argument: str | None) -> BaseException:
    names: dict[str, object] = {}
    exec(code(folder, "helper.py", HELPER), names)
    exec(code(folder, "my.py", MINE), names)
    with pytest.raises((ValueError, RecursionError)) as error:
        names["my_softmax"](argument)  # type: ignore[operator]
    return error.value


def said(folder: Path, argument: str | None, file: str | None) -> str:
    log = words_of(raised(folder, argument), [Origin("my", None if file is None else str(folder / file))])
    assert len(log) <= LONGEST_LOG and "Traceback (most recent call last):" in log
    return reason_of(log)


def test_the_reason_names_the_line_of_the_kernels_file_that_raised(tmp_path: Path) -> None:
    assert said(tmp_path, None, "my.py") == "ValueError: shapes (3,) (4,) at my.py:9 in my_softmax"


def test_what_a_library_raises_is_told_with_the_innermost_line_of_the_kernels_file(tmp_path: Path) -> None:
    reason = said(tmp_path, "{", "my.py")
    assert reason.startswith("json.decoder.JSONDecodeError: ") and reason.endswith(" at my.py:5 in inner")
    assert said(tmp_path, "{", "helper.py").endswith(" at helper.py:2 in helped")


def test_a_kernel_without_a_file_has_the_innermost_line_that_is_of_no_library(tmp_path: Path) -> None:
    assert said(tmp_path, "{", None).endswith(" at my.py:5 in inner")


def test_a_mistake_that_the_package_finds_has_no_line_of_the_package(tmp_path: Path) -> None:
    with pytest.raises(KernelError) as caught:
        require_numbers("c.mine", "ints", None, "what ints returns")
    reason = reason_of(words_of(caught.value, [Origin("my", str(tmp_path / "my.py"))]))
    assert "what ints returns is None" in reason and "user_source.py" not in reason


def test_a_long_traceback_is_cut_and_the_reason_stays(tmp_path: Path) -> None:
    error = raised(tmp_path, None)
    for i in range(40):
        error.add_note(f"{i} " * 200)
    log = words_of(error, [Origin("my", str(tmp_path / "my.py"))])
    assert len(log) == LONGEST_LOG and reason_of(log) == "ValueError: shapes (3,) (4,) at my.py:9 in my_softmax"
    assert "RecursionError" in said(tmp_path, "deep", "my.py")
