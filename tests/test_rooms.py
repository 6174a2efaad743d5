"""The house: imports lead in no circle, every door has its sign, and the pages that name the rooms name all of them."""

from __future__ import annotations

import ast
import doctest
import functools
import importlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import tensor_graphs

PACKAGE = Path(tensor_graphs.__file__).parent
ROOMS = sorted(p.parent.name for p in PACKAGE.glob("*/__init__.py"))
MODULES = {".".join(("tensor_graphs", *p.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): p
           for p in PACKAGE.rglob("*.py") if "migrations" not in p.parts}


def imported(body: Sequence[ast.stmt]) -> Iterator[str]:
    """Modules of ours that are imported when a module is: not for types alone, and not inside of a function."""
    for s in body:
        if isinstance(s, ast.ImportFrom) and s.module is not None and s.module.startswith("tensor_graphs"):
            for name in s.names:
                full = f"{s.module}.{name.name}"
                yield full if full in MODULES else s.module
        elif isinstance(s, ast.If) and "TYPE_CHECKING" not in ast.dump(s.test):
            yield from imported((*s.body, *s.orelse))
        elif isinstance(s, (ast.Try, ast.With, ast.ClassDef)):
            yield from imported(s.body)


def behind_doors(tree: ast.Module) -> Iterator[str]:
    """Modules of ours that a module's functions import when they are called; not for types alone."""
    for function in (n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))):
        yield from imported([n for n in ast.walk(function) if isinstance(n, ast.ImportFrom)])


@dataclass(frozen=True)
class Read:
    """What the tests below ask of a module: the string it begins with, what `imported` and `behind_doors` say of it, the names of
    its classes."""

    said: str
    imports: frozenset[str]
    doors: frozenset[str]
    classes: tuple[str, ...]


@functools.cache
def read(name: str) -> Read:
    """Once for all tests; the tree itself is large, and not kept."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    return Read(ast.get_docstring(tree) or "", frozenset(imported(tree.body)), frozenset(behind_doors(tree)),
                tuple(n.name for n in ast.walk(tree) if isinstance(n, ast.ClassDef)))


def circle(edges: dict[str, set[str]]) -> list[str]:
    """Modules that lead back to the first; [] where there is no circle."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as e:
        return list(e.args[1])
    return []


def test_imports_lead_in_no_circle() -> None:
    """Imports inside of functions count: a door hides no circle."""
    found = circle({name: {*read(name).imports, *read(name).doors} for name in MODULES})
    assert not found, " -> ".join(found)


def test_a_circle_behind_a_door_is_seen() -> None:
    tree = ast.parse("def f():\n    from tensor_graphs.paths.plan import Plan\n    return Plan")
    assert list(imported(tree.body)) == [] and list(behind_doors(tree)) == ["tensor_graphs.paths.plan"]


def test_a_circle_is_seen() -> None:
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"b"}})) == {"b", "c"}


def test_every_module_says_first_what_it_is() -> None:
    assert [name for name in sorted(MODULES) if not read(name).said.startswith(f"{name.rpartition('.')[2]}:")] == []


def test_no_two_classes_have_one_name() -> None:
    homes: dict[str, list[str]] = {}
    for name in MODULES:
        for each in read(name).classes:
            homes.setdefault(each, []).append(name)
    several = {name: there for name, there in homes.items() if len(there) > 1}
    assert not several, "one name, one thing: " + "; ".join(f"{name} in {', '.join(there)}" for name, there in several.items())


@pytest.mark.parametrize("name", sorted(name for name, path in MODULES.items() if ">>>" in path.read_text(encoding="utf-8")))
def test_an_example_in_a_docstring_gives_what_stands_below_it(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted and not found.failed


def test_the_pages_that_name_the_rooms_name_all() -> None:
    page = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for room in ROOMS:
        assert f"[{room}](tensor_graphs/{room})" in page
        assert f"{room}," in (tensor_graphs.__doc__ or "") or f"{room}." in (tensor_graphs.__doc__ or "")


def test_the_map_of_where_things_go_names_what_is_there() -> None:
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text[text.index("Where would you change"):text.index("## How it is judged")]
    for row in table.splitlines()[4:]:
        cells = row.split("|")
        folder = ""
        for name in re.findall(r"`([\w/*.]+)`", cells[-2] if row else ""):
            if "/" in name:
                folder = name.rpartition("/")[0]
            found = list(PACKAGE.glob(name.rstrip("/"))) or list((PACKAGE / folder).glob(name))
            assert found, f"{name}: {row}"


def test_the_index_of_decisions_has_each_of_them_once_by_its_title() -> None:
    folder = PACKAGE.parent / "docs" / "decisions"
    rows = re.findall(r"^- \[(\d{4})\]\((.+?)\) (.+)$", (folder / "README.md").read_text(), re.M)
    titles = [(*re.match(r"# (\d{4}) (.+)", page.read_text()).groups(), page.name)     # type: ignore[union-attr]  # each has one
              for page in sorted(folder.glob("0*.md"))]
    assert sorted((number, title, name) for number, name, title in rows) == titles
