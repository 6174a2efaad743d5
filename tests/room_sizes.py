"""room_sizes: how large each room of the package is; `make size` prints it, test_size.py holds it to [tool.tensor_graphs.size].

Code lines are those with a token that is neither a comment nor a docstring. The lines of a function or class are those from its
`def` or `class` to its last statement.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "tensor_graphs"
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@dataclass(frozen=True)
class Room:
    """functions, classes: the lines of each by its name, FILE:NAME."""

    files: int
    lines: int
    code_lines: int
    tokens: int
    functions: dict[str, int]
    classes: dict[str, int]

    @property
    def tokens_per_line(self) -> float:
        return self.tokens / max(self.code_lines, 1)


def rooms() -> dict[str, Room]:
    """Each folder of the package, and "." for the modules beside them."""
    files: dict[str, list[Path]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        first, *rest = file.relative_to(PACKAGE).parts
        files.setdefault(first if rest else ".", []).append(file)
    return {name: _room(paths) for name, paths in sorted(files.items())}


def _room(paths: list[Path]) -> Room:
    lines = code_lines = tokens = 0
    functions: dict[str, int] = {}
    classes: dict[str, int] = {}
    for path in paths:
        text = path.read_text()
        tree = ast.parse(text)
        nodes = list(ast.walk(tree))
        docstrings = {line for node in nodes for line in _docstring(node)}
        all_tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        held = [t for t in all_tokens if t.type not in LAYOUT and t.start[0] not in docstrings]
        lines += text.count("\n")
        code_lines += len({line for t in held for line in range(t.start[0], t.end[0] + 1)})
        tokens += len(held)
        for node in nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                sizes = classes if isinstance(node, ast.ClassDef) else functions
                name = f"{path.relative_to(PACKAGE)}:{node.name}"
                sizes[name] = max(sizes.get(name, 0), (node.end_lineno or 0) - node.lineno + 1)
    return Room(len(paths), lines, code_lines, tokens, functions, classes)


def _docstring(node: ast.AST) -> Iterator[int]:
    """The lines of strings that stand alone as a statement, as docstrings of modules, classes, functions and constants do."""
    for statement in getattr(node, "body", ()) if not isinstance(node, (ast.Lambda, ast.IfExp)) else ():
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str):
            yield from range(statement.lineno, (statement.end_lineno or 0) + 1)


def main() -> int:
    print(f"{'room':12} {'files':>6} {'lines':>7} {'code':>7} {'tokens/line':>12}  longest function, longest class")
    for name, room in rooms().items():
        longest = [max(sizes.items(), key=lambda item: item[1], default=("-", 0)) for sizes in (room.functions, room.classes)]
        print(f"{name:12} {room.files:6} {room.lines:7} {room.code_lines:7} {room.tokens_per_line:12.1f}  "
              + ", ".join(f"{size} {where}" for where, size in longest))
    print(f"{'all':12} {sum(r.files for r in rooms().values()):6} {sum(r.lines for r in rooms().values()):7} "
          f"{sum(r.code_lines for r in rooms().values()):7}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
