"""docs/ops: a page per op, as `make docs` writes it from the op's row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tensor_graphs as tg
from tensor_graphs.language.atomic import ATOMIC
from tensor_graphs.language.composite import LIBRARY
from tests import op_pages

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return op_pages.pages(DOCS / "conformance")


def test_every_op_has_a_page_and_the_index_names_it(made):
    assert set(made) == {f"{name}.md" for name in (*ATOMIC, *LIBRARY)} | {"README.md", "functions.md"}
    linked = re.findall(r"\[(\w+)\]\(\1\.md\)", made["README.md"])
    assert sorted(linked) == sorted([*ATOMIC, *LIBRARY])


def test_the_pages_are_those_that_the_rows_make(made):
    there = {p.name: p.read_text(encoding="utf-8") for p in (DOCS / "ops").glob("*.md")}
    assert sorted(there) == sorted(made), "make docs"
    for name, text in made.items():
        assert there[name] == text, f"{name}: make docs"


def test_every_function_that_makes_tensors_has_a_place_in_the_pages(made):
    shown = set(re.findall(r"```python\ntg\.(\w+)\(", "\n".join(made.values())))
    assert {name for name in (*ATOMIC, *LIBRARY) if op_pages.public(name)} and set(op_pages.sugar()) <= shown
    assert {op_pages.FUNCTION.get(name, name) for name in (*ATOMIC, *LIBRARY)} <= shown <= set(tg.__all__)


@pytest.mark.parametrize("name", ["softmax", "topk", "where", "scatter", "attention", "sum"])
def test_the_example_of_a_page_runs_and_gives_what_it_shows(name, made):
    code, shown = re.search(r"## Example\n\n```python\n(.*?)```\n\n```text\n(.*?)```", made[f"{name}.md"], re.DOTALL).groups()
    scope: dict = {}
    exec(code, scope)
    assert "\n".join(f"{n} = {op_pages.np.array2string(op_pages.np.asarray(v), **op_pages.PRINTED)}"
                     for n, v in scope["outputs"].items()) == shown.rstrip("\n")


def test_writing_the_pages_removes_those_of_ops_that_are_no_more(tmp_path):
    (tmp_path / "conformance").symlink_to(DOCS / "conformance")
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "bygone.md").write_text("")
    assert (tmp_path / "ops" / "softmax.md") in op_pages.write(tmp_path)
    assert not (tmp_path / "ops" / "bygone.md").exists() and (tmp_path / "ops" / "softmax.md").exists()


def test_a_page_says_when_no_gradient_flows_and_when_an_op_is_exact(made):
    assert "None: it takes no floats." in made["any.md"] and "Class: exact." in made["any.md"]
    assert "Class: rounds." in made["softmax.md"] and "Its own rule" in made["softmax.md"]
    assert "Class: a view" in made["permute.md"] and "The derivative of its definition" in made["gated.md"]
