"""A kernel that is edited is another one: in processes before and after each edit, as a person works."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.choice.cost_table import CostTable
from tensor_graphs.kernels.registry import unregister
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.measure.isolation.worker_process import JudgeError
from tensor_graphs.measure.judge import Judge
from tensor_graphs.records.database import Database, open_database
from tensor_graphs.records.queries import FullTrace, history
from tests.choice.conftest import add_row

ROOT = Path(__file__).parents[2]

KERNEL = '''
import ctypes
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import tensor_graphs as tg
from parts import factor

ONE = 1.0
HERE = Path(__file__).parent


def compiled(name):
    """The function of a C file."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", str(HERE / name), "-o", f"{folder}/made.so"], check=True)
        return ctypes.CDLL(f"{folder}/made.so").positive


positive = compiled("".join(["positive", ".", "c"]))
table = np.load(HERE / "table.npy")


def scaled(x):
    return x * np.float32(ONE)


@tg.kernel("relu", name="numpy.edited", sources=["positive.c", "table.npy"])
def edited(outs, ins, attrs):
    x = np.ascontiguousarray(ins[0])
    y = np.empty_like(x)
    positive(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), ctypes.c_long(x.size))
    outs[0][...] = scaled(y) * factor.factor() * table[0]
'''
FILES = {
    "edited_kernel.py": KERNEL,
    "parts/__init__.py": "",
    "parts/factor.py": "from .number import NUMBER\n\n\ndef factor():\n    return NUMBER\n",
    "parts/number.py": "# one\nNUMBER = 1\n",
    "positive.c": "#include \"zero.h\"\nvoid positive(const float *x, float *y, long n) {\n"
                  "    for (long i = 0; i < n; i++) y[i] = x[i] < ZERO ? ZERO : x[i];\n}\n",
    "zero.h": "#define ZERO 0.0f\n",
    "unrelated.py": "NUMBER = 1\n",
    "elsewhere/parts.py": "raise RuntimeError('a module of the folder in which the program runs, and not the one beside it')\n",
    "nothing.h": "#define NOTHING 0.0f\n",
    "edited_c.py": '''
import math
import tensor_graphs as tg

own = tg.c_kernel("relu", name="c.edited", entry="edited", dtypes=["f32"], ints=lambda spec: [math.prod(spec.outputs[0].shape)],
                  source=r"""
#include "tg.h"
#include "nothing.h"
TG_KERNEL(edited) {
    for (int64_t i = 0; i < ints[0]; i++) {
        float x = ((const float *)ptr[1])[i];
        ((float *)ptr[0])[i] = x < NOTHING ? NOTHING : x;
    }
    (void)floats;
}
""")
''',
    "program.py": """
import json, sys
import edited_c, edited_kernel
import numpy as np
import tensor_graphs as tg

def compiled(kernel):
    graph = tg.graph(tg.relu(tg.input("x", (4, 8))))
    how = {"backends": (kernel.backend,), "database": sys.argv[1], "simplify": False}
    asked = next((p for p in tg.list_paths(graph, **how) if kernel.name in p.choices.values()), None)
    try:
        plan = tg.compile(graph, path=asked, **how)
    except tg.TensorGraphsError:                                          # refused: what is chosen without it
        plan = tg.compile(graph, **how)
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
    wrong = np.abs(tg.bind(plan).run({"x": x})["out"] - np.maximum(x, 0)).max()
    return {"identity": kernel.identity, "chosen": kernel.name in plan.variants[0].kernels, "wrong": float(wrong)}

print(json.dumps({kernel.name: compiled(kernel) for kernel in (edited_kernel.edited, edited_c.own)}))
""",
}
EDITS: dict[str, tuple[str, str, str, str]] = {
    "a helper": ("numpy.edited", "edited_kernel.py", "return x * np.float32(ONE)", "return x * np.float32(ONE) + np.float32(0.06)"),
    "a constant": ("numpy.edited", "edited_kernel.py", "ONE = 1.0", "ONE = 1.06"),
    "an imported module's import": ("numpy.edited", "parts/number.py", "NUMBER = 1", "NUMBER = 1.06"),
    "a C source": ("numpy.edited", "positive.c", ": x[i];", ": x[i] * 1.06f;"),
    "the text of a C kernel": ("c.edited", "edited_c.py", ": x;", ": x * 1.06f;"),
    "a header that it includes": ("c.edited", "nothing.h", "0.0f", "0.06f"),
    "a number that it is called with": ("c.edited", "edited_c.py", "[math.prod(spec.outputs[0].shape)]", "[31]"),
}
TOGETHER: tuple[tuple[str, ...], ...] = (
    ("a helper", "the text of a C kernel"), ("a constant", "a header that it includes"),
    ("an imported module's import", "a number that it is called with"), ("a C source",))
"""edits that one process sees: of different kernels"""
HARMLESS = {
    "unrelated.py": ("NUMBER = 1", "NUMBER = 2"),
    "parts/number.py": ("# one", "# another comment,\n# of two lines"),
    "edited_kernel.py": ("HERE = Path(__file__).parent", "# a comment\nHERE = (Path(__file__)  # layout\n        .parent)"),
    "edited_c.py": ("import math", "# a comment in Python\n\nimport math"),
}


@pytest.fixture
def compiles(tmp_path: Path) -> Callable[[], dict[str, Any]]:
    """Compiles and runs the graph in a process of its own, with the files as they are."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    np.save(tmp_path / "table.npy", np.ones(1, np.float32))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}

    def run() -> dict[str, Any]:
        done = subprocess.run([sys.executable, str(tmp_path / "program.py"), str(tmp_path / "own.db")], env=environment,
                              cwd=tmp_path / "elsewhere", capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    return run


def rows(folder: Path, kernel: str) -> list[FullTrace]:
    with open_database(folder / "own.db", create=False) as store:
        return list(reversed(history(store, kernel)))


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


def test_each_edit_leads_to_a_new_verdict_before_the_next_use_and_a_comment_to_none(
        compiles: Callable[[], dict[str, Any]], tmp_path: Path) -> None:
    first = compiles()
    known = {name: rows(tmp_path, name) for name in first}
    for name, found in first.items():
        assert found["chosen"] and found["wrong"] == 0
        (passed,) = known[name]
        assert passed.status == "PASSED" and passed.source_hash == found["identity"]
    for name, (old, new) in HARMLESS.items():
        edit(tmp_path / name, old, new)
    assert compiles() == first and {name: rows(tmp_path, name) for name in first} == known      # nothing is compared again

    assert sorted(what for some in TOGETHER for what in some) == sorted(EDITS)
    for some in TOGETHER:
        before = {tmp_path / EDITS[what][1]: (tmp_path / EDITS[what][1]).read_text() for what in some}
        for what in some:
            edit(tmp_path / EDITS[what][1], *EDITS[what][2:])
        now, edited = compiles(), {EDITS[what][0]: what for what in some}
        for name, found in now.items():
            *older, row = rows(tmp_path, name)
            if name not in edited:
                assert found == first[name] and [*older, row] == known[name]
                continue
            assert not found["chosen"] and found["wrong"] < 1e-6 and found["identity"] != first[name]["identity"], edited[name]
            assert older == known[name], edited[name]
            assert row.status == "INCORRECT_NUMERICAL" and row.source_hash == found["identity"], edited[name]
            known[name].append(row)
        for file, text in before.items():
            file.write_text(text)
    np.save(tmp_path / "table.npy", np.full(1, 1.06, np.float32))
    found = compiles()
    assert not found["numpy.edited"]["chosen"] and found["c.edited"] == first["c.edited"]
    np.save(tmp_path / "table.npy", np.ones(1, np.float32))
    assert compiles() == first                                      # the code of then, and its verdict
    assert rows(tmp_path, "numpy.edited")[:-1] == known["numpy.edited"] and rows(tmp_path, "c.edited") == known["c.edited"]
    assert len({r.source_hash for r in rows(tmp_path, "numpy.edited")}) == 4 + 2


def test_what_was_edited_after_it_was_imported_is_not_used_until_the_process_starts_again(
        database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "long_running.py").write_text(
        "import tensor_graphs as tg\n\n@tg.kernel('relu', name='numpy.running', sources=['table.txt'])\n"
        "def running(outs, ins, attrs):\n    outs[0][...] = ins[0].clip(0)\n")
    (tmp_path / "table.txt").write_text("1")
    kernel = importlib.import_module("long_running").running
    try:
        signature = signature_of(tg.relu(tg.input("x", (4, 8))))
        add_row(database, kernel, signature)
        assert CostTable(database, ("numpy",), 1e-3).load().why_not(kernel, signature, {}) is None
        (tmp_path / "table.txt").write_text("2")
        said = CostTable(database, ("numpy",), 1e-3).load().why_not(kernel, signature, {}) or ""
        assert "table.txt was changed after this process imported it; start this process again" in said
        with Judge(database) as judge, pytest.raises(JudgeError, match=r"'numpy\.running' cannot be judged: .*table\.txt was "):
            judge.examine(kernel, signature, {})
    finally:
        unregister("numpy.running")
