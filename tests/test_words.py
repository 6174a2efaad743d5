"""Words that do not come back: into names of locals and parameters, and into the first sentences of docstrings.

A local is named after what it holds (`rows`, `plan`, `kernel`), not after what was done to get it. A first sentence has a subject
and a verb, or names the thing. LEFT counts what each room still has, and may only shrink.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tensor_graphs

PACKAGE = Path(tensor_graphs.__file__).parent
ROOMS = sorted(p.parent.name for p in PACKAGE.glob("*/__init__.py"))
NAMES = frozenset({"found", "made", "each", "said", "told", "given", "kept", "known", "heard", "beside"})
OPENINGS = re.compile(r"(Of|What|Whether|As|That|So|How|Which|Where|When|Who|Whose|Those|These|It|They|Whatever|Whoever)\b")
LEFT: dict[str, tuple[int, int]] = {"choice": (1, 0), "measure": (3, 0)}
"""room -> (bindings of NAMES, first sentences that open so); these name what the field `given` of a point holds"""


def scopes(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def bound(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Names that a function binds, those of functions inside of it left out."""
    waiting: list[ast.AST] = [*ast.iter_child_nodes(function)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            waiting += ast.iter_child_nodes(node)


def names(tree: ast.AST) -> list[str]:
    return [f"{function.name}: {name}" for function in scopes(tree) for name in sorted({*bound(function)} & NAMES)]


def openings(tree: ast.AST) -> list[str]:
    documented = (n for n in ast.walk(tree) if isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)))
    texts = ((getattr(node, "name", "module"), ast.get_docstring(node) or "") for node in documented)
    return [f"{name}: {text[:60]}" for name, text in texts if OPENINGS.match(text)]


@pytest.mark.parametrize("room", ROOMS)
def test_words_do_not_come_back(room: str) -> None:
    trees = [ast.parse(file.read_text()) for file in sorted((PACKAGE / room).rglob("*.py"))]
    of_names, of_openings = ([line for tree in trees for line in lines(tree)] for lines in (names, openings))
    allowed = LEFT.get(room, (0, 0))
    assert len(of_names) <= allowed[0], f"name it after what it holds: {of_names}"
    assert len(of_openings) <= allowed[1], f"begin with a subject and a verb, or the thing's name: {of_openings}"
    assert (len(of_names), len(of_openings)) == allowed, "lower the row of LEFT"


def test_such_a_name_and_such_an_opening_are_seen() -> None:
    tree = ast.parse('def f(given):\n    """What is given."""\n    rows = [each for each in given]\n    return rows\n')
    assert names(tree) == ["f: each", "f: given"] and openings(tree) == ["f: What is given."]
