"""Plans and their execution know devices by what they declare: no name of one, no array type, no question of what a call is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tensor_graphs

ROOT = Path(tensor_graphs.__file__).parent
FILES = sorted([*(ROOT / "paths").glob("*.py"), ROOT / "runtime/executor.py", ROOT / "runtime/run_frame.py"])
KINDS = {"ndarray", "Memory", "Device", "HostCall", "NativeCall", "Transfer", "Segment", "HostCalls", "NativeList", "Transfers"}


def special(text: str) -> Iterator[str]:
    """Yield the places where a file names one device, or how memory is held there."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and node.value == "cpu":
            yield f"line {node.lineno}: the literal 'cpu'"
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (f"line {node.lineno}: imports {m}" for m in modules if m.split(".")[0] == "numpy")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "type"):
            names = [n for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute))]
            asked = {n.id if isinstance(n, ast.Name) else n.attr for n in names}
            yield from (f"line {node.lineno}: asks whether something is a {kind}" for kind in sorted(asked & KINDS))


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_no_device_and_no_engine_is_special(file: Path) -> None:
    assert not list(special(file.read_text()))


def test_what_would_be_special_is_seen() -> None:
    wrong = "import numpy as np\nfrom numpy import sin\nif device == 'cpu' or isinstance(step, np.ndarray): pass\ntype(Memory)"
    assert len(list(special(wrong))) == 5
    assert len(list(special("isinstance(call, (HostCall, NativeCall))"))) == 2
