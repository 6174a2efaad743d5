"""origin: the worker knows a kernel wherever it was declared: in a cell, in a session, in a module run with -m."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tensor_graphs as tg
from tensor_graphs.kernels import registry
from tensor_graphs.kernels.kernel_origin import Origin, load, origin_of, out_of_reach
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.measure.judge import Judge
from tensor_graphs.records.database import Database

ROOT = Path(__file__).parents[2]
RELU = signature_of(tg.relu(tg.input("x", (4, 8))))

KERNEL = """
import numpy as np
import tensor_graphs as tg
FLOOR = 0

@tg.kernel("relu", name="numpy.somewhere")
def somewhere(outs, ins, attrs):
    np.maximum(ins[0], FLOOR, out=outs[0])
"""
USE = """
if __name__ == "__main__":
    graph = tg.graph(tg.relu(tg.input("x", (4, 8))))
    how = {"backends": ("numpy",), "database": "own.db"}
    asked = next((p for p in tg.list_paths(graph, **how) if "numpy.somewhere" in p.choices.values()), None)
    try:
        plan = tg.compile(graph, path=asked, **how)
    except tg.TensorGraphsError:                                    # refused: what is chosen without it
        plan = tg.compile(graph, **how)
    print(sorted(plan.variants[0].kernels), [line for line in tg.explain(plan).splitlines() if "refused" in line])
"""
FOUND = "['numpy.somewhere'] []\n"


@pytest.fixture(autouse=True)
def forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    registry.unregister("numpy.somewhere")
    sys.modules.pop("origin_module", None)


def python(folder: Path, *arguments: str, text: str | None = None) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=folder, input=text, capture_output=True, text=True, timeout=120,
                          check=False, env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_script_that_was_started_by_hand_is_loaded_without_what_it_guards(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text("ran = []\nif __name__ == '__main__':\n    raise SystemExit('the guarded part ran')\n")
    load(Origin("__main__", str(script)))
    assert sys.modules.pop("__tensor_graphs_main__").ran == []


def test_a_kernel_of_a_module_that_is_run_with_m_may_import_relatively(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "near.py").write_text("from . import far\n")
    (package / "far.py").write_text("FLOOR = 0\n")
    (package / "module.py").write_text(KERNEL.replace("FLOOR = 0", "from .near import far\nFLOOR = far.FLOOR") + USE)
    (package / "__main__.py").write_text((package / "module.py").read_text())
    assert python(tmp_path, "-W", "error", "-m", "package.module") == FOUND
    assert python(tmp_path, "-m", "package") == FOUND


def test_a_kernel_that_is_read_from_standard_input_or_a_command_is_judged(tmp_path: Path) -> None:
    assert python(tmp_path, "-", text=KERNEL + USE) == FOUND
    assert python(tmp_path, "-c", KERNEL + USE) == FOUND


def test_a_cell_with_an_edit_is_judged_again_and_a_changed_value_asks_for_its_cell(tmp_path: Path) -> None:
    cells = [KERNEL, USE, KERNEL, USE, "FLOOR = 0.5", USE, KERNEL.replace("FLOOR = 0", "FLOOR = 0.5"), USE, KERNEL, USE]
    session = f"for number, text in enumerate({cells!r}):\n    exec(compile(text, f'<cell {{number}}>', 'exec'), globals())\n"
    first, again, changed, wrong, right = python(tmp_path, "-", text=session).splitlines()
    assert first == again == right == FOUND.strip()
    assert "['numpy.somewhere']" not in changed and "a value that numpy.somewhere uses was changed after it was declared" in changed
    assert "['numpy.somewhere']" not in wrong and "numpy.somewhere: INCORRECT_NUMERICAL" in wrong


def test_a_c_kernel_of_a_cell_with_a_composite_of_ones_own_is_judged(tmp_path: Path) -> None:
    cell = r"""
import math
import tensor_graphs as tg
@tg.composite
def triple(x): return x * 3.0
tg.c_kernel(triple, entry="triple", dtypes=["f32"], ints=lambda spec: [math.prod(spec.outputs[0].shape)], source='''
#include "tg.h"
TG_KERNEL(triple) { for (int64_t i = 0; i < ints[0]; i++) ((float *)ptr[0])[i] = 3 * ((float *)ptr[1])[i]; (void)floats; }
''')
graph = tg.graph(triple(tg.input("x", (40, 80))))
asked = next(p for p in tg.list_paths(graph, database="own.db") if "c.triple" in p.choices.values())
print("c.triple" in tg.compile(graph, path=asked, database="own.db").variants[0].kernels.keys())
"""
    assert python(tmp_path, "-", text=cell) == "True\n"


def test_a_module_that_is_reloaded_is_judged_as_it_is_now(tmp_path: Path, shared: Database) -> None:
    file = tmp_path / "origin_module.py"
    file.write_text(KERNEL)
    importlib.invalidate_caches()
    module: Any = importlib.import_module("origin_module")
    with Judge(shared) as judge:
        assert judge.examine(module.somewhere, RELU, {}).status == "PASSED"
        file.write_text(KERNEL.replace("FLOOR = 0", "FLOOR = 0.5"))
        assert "was changed after this process imported it" in str(out_of_reach(module.somewhere))
        importlib.reload(module)
        assert out_of_reach(module.somewhere) is None
        assert judge.examine(module.somewhere, RELU, {}).status == "INCORRECT_NUMERICAL"
        file.write_text(KERNEL)
        importlib.reload(module)
        assert judge.examine(module.somewhere, RELU, {}).status == "PASSED"


def test_an_origin_says_where_a_kernel_is(tmp_path: Path) -> None:
    assert origin_of(registry.kernel_named("c.softmax")).module == "tensor_graphs.kernels.c.backend"
    (tmp_path / "origin_module.py").write_text(KERNEL)
    importlib.invalidate_caches()
    module: Any = importlib.import_module("origin_module")
    assert origin_of(module.somewhere) == Origin("origin_module", str(tmp_path / "origin_module.py"))
    with pytest.raises(ImportError, match="a session that is not at hand"):
        load(Origin("__main__"))


def test_a_kernel_that_only_the_started_script_registers_is_told_to_stand_at_the_top_level(tmp_path: Path) -> None:
    guarded = "if __name__ == '__main__':" + KERNEL.replace("\n", "\n    ") + "\n"
    (tmp_path / "own.py").write_text(f"{guarded}{USE}")
    assert "the judge imports the file, so register it at the top level" in python(tmp_path, "own.py")
