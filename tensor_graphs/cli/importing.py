"""importing: imports modules of the user: kernels, composites and rules (`--import`), and backends (`--module`)."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tensor_graphs.errors import TensorGraphsError

if TYPE_CHECKING:
    from tensor_graphs.language.composite import CompositeOp


class NotImported(TensorGraphsError):
    """A module named by the user that cannot be imported: exit code 1."""


COMPOSITES: dict[str, CompositeOp] = {}
"""name -> composite, from the modules of this command's --import; a .tg file may call them"""


def take_composites(module: ModuleType) -> None:
    """Let .tg files call a module's composites, except library composites."""
    from tensor_graphs.language.composite import LIBRARY, CompositeOp

    for value in vars(module).values():
        if isinstance(value, CompositeOp) and LIBRARY.get(value.name) is not value:
            COMPOSITES[value.name] = value


def imported(source: str, option: str) -> ModuleType:
    """Return the module with this dotted name or path. For a path, the folder of its top package is put on sys.path, which workers
    get too. Raises NotImported: there is no such module, it cannot be imported, or another module has its name."""
    file, name = Path(source), source
    by_path = source.endswith(".py") or "/" in source
    if by_path:
        if not file.is_file():
            raise NotImported(f"{option}: there is no file {source}\n  fix: the path of a Python module")
        root, parts = file.resolve().parent, [file.stem]
        while (root / "__init__.py").is_file():
            parts.insert(0, root.name)
            root = root.parent
        name = ".".join(parts)
        sys.path.insert(0, str(root))
    fix = f"\n  fix: {'python ' + source if by_path else f'python -c {chr(34)}import {name}{chr(34)}'} says where it fails"
    if (file.is_file() and not by_path) or file.is_dir():
        fix = "\n  fix: the path of a Python module, FILE.py, or its dotted name"
    try:
        module = importlib.import_module(name)
    except TensorGraphsError as e:
        raise NotImported(f"{option}: {source} cannot be imported: {e}" + ("" if "\n  fix: " in str(e) else fix)) from e
    except (Exception, SystemExit) as e:  # anyone's code
        raise NotImported(f"{option}: {source} cannot be imported: {type(e).__name__}: {e}{fix}") from e
    there = getattr(module, "__file__", None)
    if by_path and (there is None or Path(there).resolve() != file.resolve()):
        raise NotImported(
            f"{option}: {source} has the name of another module, {name} ({there or 'built in'})\n  fix: give the file another name"
        )
    return module
