"""python_text: parser of a Python module's text for identities: digest of the syntax tree, imports, strings that may name files
(python_text_cache.py caches the results)."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CODE = (".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hpp", ".py", ".cl", ".f", ".f90", ".metal", ".ptx", ".rs", ".s", ".zig")
"""suffixes of code files; such a file counts for an identity if a string names it. Data files do not: programs may write them"""


@dataclass(frozen=True)
class ModuleText:
    """The parsed text of a module. digest: of the syntax tree. imports: (level, module, names; None for `import module`). lines:
    line -> numbers of the functions that begin there. strings: those that may name files. listed: the names in `__all__`. computed:
    lines that import a computed name or run code from text (`exec`)."""

    digest: str
    imports: tuple[tuple[int, str, tuple[str, ...] | None], ...]
    lines: Mapping[int, tuple[int, ...]]
    strings: tuple[str, ...]
    listed: tuple[str, ...]
    computed: tuple[int, ...]


def parsed(data: bytes) -> ModuleText:
    """Parse a module's bytes. Raises SyntaxError, ValueError or RecursionError where they are no Python."""
    read = _TreeReader(ast.parse(data))
    return ModuleText(read.digest, tuple(read.imports), {line: tuple(numbers) for line, numbers in read.lines.items()},
                tuple(read.strings), tuple(read.listed), tuple(read.computed))


class _TreeReader:
    """A reader that walks a syntax tree once, for the fields of ModuleText."""

    def __init__(self, tree: ast.AST) -> None:
        self.imports: list[tuple[int, str, tuple[str, ...] | None]] = []
        self.lines: dict[int, list[int]] = {}
        self.strings: list[str] = []
        self.listed: list[str] = []
        self.computed: list[int] = []
        functions = 0
        parts: list[str] = []
        todo: list[Any] = [tree]
        while todo:                                                 # no recursion: a long sum is a deep tree
            node = todo.pop()
            kind = type(node)
            if kind is list:
                parts.append(f"[{len(node)}")
                todo.extend(reversed(node))
            elif kind in _FIELDS:
                parts.append(kind.__name__)
                if kind in _FUNCTIONS:
                    line = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
                    self.lines.setdefault(line, []).append(functions)
                    functions += 1
                elif kind in _LOOKED_AT:
                    self._look(node)
                for name in _FIELDS[kind]:
                    todo.append(getattr(node, name, None))
            elif kind is int:
                parts.append(f"{node:#x}")                          # repr refuses very long ones
            else:
                parts.append(repr(node))
        self.digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()

    def _look(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            self.imports += [(0, alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            self.imports.append((node.level, node.module or "", tuple(alias.name for alias in node.names)))
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and node.value.endswith(CODE) and len(node.value) < 256 and "\n" not in node.value:
                self.strings.append(node.value)
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__", "exec", "run_path", "run_module"):
                name = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
                if called in ("import_module", "__import__") and isinstance(name, str):
                    level = len(name) - len(name.lstrip("."))
                    self.imports.append((level, name[level:], None))
                else:
                    self.computed.append(node.lineno)
        elif isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets):
                self.listed += [c.value for c in ast.walk(node.value) if isinstance(c, ast.Constant) and isinstance(c.value, str)]


_FIELDS = {kind: tuple(f for f in reversed(kind._fields) if f not in ("ctx", "type_comment", "kind"))
           for kind in vars(ast).values() if isinstance(kind, type) and issubclass(kind, ast.AST)}
_FUNCTIONS = frozenset({ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda})
_LOOKED_AT = frozenset({ast.Import, ast.ImportFrom, ast.Constant, ast.Call, ast.Assign, ast.AugAssign})
