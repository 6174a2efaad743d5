"""kernels/declaration_place.py: what is run again replaces its kernels; two kernels of one name are an error that names both
places."""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tensor_graphs.kernels import registry
from tensor_graphs.kernels.kernel import Kernel, KernelError

NAME = "numpy.placed"
DECLARED = f"""
import numpy as np
import tensor_graphs as tg

@tg.kernel("relu", name={NAME!r})
def placed(outs, ins, attrs):
    np.maximum(ins[0], 0, out=outs[0])
"""
EDITED = DECLARED.replace("ins[0], 0", "ins[0], 0.0")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules that can be imported; what they register is taken back."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    registry.unregister(NAME)
    for name in ("placed_one", "placed_two", "placed_factory"):
        sys.modules.pop(name, None)


def cell(text: str, number: int, space: dict[str, Any]) -> Kernel:
    """Run a text as a notebook does; the kernel that is registered then."""
    exec(compile(text, f"<cell {number}>", "exec"), space)
    return registry.kernel_named(NAME)


@pytest.mark.parametrize("name", ["__main__", "session", None])
def test_a_cell_that_is_run_again_replaces_its_kernel(name: str | None) -> None:
    space: dict[str, Any] = {} if name is None else {"__name__": name}
    first, same, edited = cell(DECLARED, 1, space), cell(DECLARED, 2, space), cell(EDITED, 3, space)
    assert first is not same and first.identity == same.identity != edited.identity
    assert [k for k in registry.all_kernels(("numpy",)) if k.name == NAME] == [edited]


def test_a_module_that_is_reloaded_or_imported_anew_replaces_its_kernel(folder: Path) -> None:
    file = folder / "placed_one.py"
    file.write_text(DECLARED)
    module = importlib.import_module("placed_one")
    first = registry.kernel_named(NAME)
    file.write_text(EDITED)
    importlib.invalidate_caches()
    importlib.reload(module)
    second = registry.kernel_named(NAME)
    assert second.identity != first.identity
    del sys.modules["placed_one"]
    importlib.import_module("placed_one")
    assert registry.kernel_named(NAME) is not second and registry.kernel_named(NAME).identity == second.identity
    runpy.run_path(str(file))
    assert registry.kernel_named(NAME).module == "<run_path>"


def test_two_modules_with_a_kernel_of_one_name_are_an_error_that_names_both(folder: Path) -> None:
    for name in ("placed_one", "placed_two"):
        (folder / f"{name}.py").write_text(DECLARED)
    importlib.import_module("placed_one")
    first = registry.kernel_named(NAME)
    with pytest.raises(KernelError, match=rf"^a kernel named '{NAME}' is registered already: {folder}/placed_one\.py:5\n"
                                          rf"  and once more: {folder}/placed_two\.py:5\n  fix: another name"):
        importlib.import_module("placed_two")
    with pytest.raises(KernelError, match=r"placed_one\.py:5\n  and once more: <cell 4>:5\n"):
        cell(DECLARED, 4, {"__name__": "__main__"})
    assert registry.kernel_named(NAME) is first


def test_two_kernels_of_one_name_in_one_run_of_a_file_are_an_error(folder: Path) -> None:
    (folder / "placed_one.py").write_text(DECLARED + EDITED)
    with pytest.raises(KernelError, match=r"placed_one\.py:5\n  and once more: \S+placed_one\.py:12\n"):
        importlib.import_module("placed_one")


def test_a_cell_may_call_a_function_of_a_module_that_declares_a_kernel_again_and_a_file_may_not(folder: Path) -> None:
    inside = "\n".join(f"    {line}" for line in DECLARED.splitlines())
    (folder / "placed_factory.py").write_text(f"def make():\n{inside}\n    return placed\n")
    importlib.invalidate_caches()
    text = f"import placed_factory\nplaced_factory.make()\nkernel = {NAME!r}"
    assert cell(text, 1, {"__name__": "session"}) is not cell(text, 2, {"__name__": "session"})
    registry.unregister(NAME)
    (folder / "placed_one.py").write_text("import placed_factory\nplaced_factory.make()\nplaced_factory.make()\n")
    with pytest.raises(KernelError, match=r"placed_factory\.py:6\n  and once more: \S+placed_factory\.py:6"):
        importlib.import_module("placed_one")


def test_a_program_that_begins_with_text_is_held_to_one_kernel_of_a_name(folder: Path) -> None:
    """Programs like `python -c "import program"`, and a process of pytest-xdist."""
    (folder / "placed_one.py").write_text(DECLARED + EDITED)
    with pytest.raises(KernelError, match=r"placed_one\.py:5\n  and once more: \S+placed_one\.py:12\n"):
        cell("import placed_one", 1, {"__name__": "__main__"})


def test_text_of_other_sessions_is_another_place() -> None:
    cell(DECLARED, 1, {"__name__": "one"})
    with pytest.raises(KernelError, match=r"registered already: <cell 1>:5\n  and once more: <cell 2>:5"):
        cell(DECLARED, 2, {"__name__": "other"})
