"""kernels/skeleton: names that a backend cannot have, and what is written for one that it can."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensor_graphs.kernels.kernel import KernelError
from tensor_graphs.kernels.skeleton import FILES, check_name, write_skeleton


@pytest.mark.parametrize(("name", "said"), [
    ("my-backend", "it is no Python name"), ("2fast", "it is no Python name"), ("class", "it is no Python name"),
    ("", "it is no Python name"), ("größer", "it is no Python name"), ("numpy", "there is a backend 'numpy' already"),
    ("json", "a Python module 'json' exists already"), ("sys", "a Python module 'sys' exists already")])
def test_a_name_that_is_taken_or_no_name_is_refused_with_a_fix(name: str, said: str) -> None:
    with pytest.raises(KernelError) as caught:
        check_name(name)
    assert said in str(caught.value) and "\n  fix: " in str(caught.value)


def test_a_project_is_short_and_names_only_itself(tmp_path: Path) -> None:
    written = write_skeleton("fast_numbers", tmp_path / "new")
    assert len(written) == len(FILES) and all(f.is_relative_to(tmp_path / "new" / "fast_numbers") for f in written)
    texts = [f.read_text(encoding="utf-8") for f in written]
    assert sum(len(t.splitlines()) for t in texts) <= 300
    for text in texts:
        assert "{{" not in text and "}}" not in text and text.endswith("\n") and max(map(len, text.splitlines())) <= 132
    for f in written:
        if f.suffix == ".py":
            compile(f.read_text(encoding="utf-8"), str(f), "exec")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "fast_numbers").mkdir()
    with pytest.raises(KernelError, match=r"exists already, and nothing is overwritten"):
        write_skeleton("fast_numbers", tmp_path)
    assert not list((tmp_path / "fast_numbers").iterdir())
