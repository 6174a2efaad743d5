"""A C compiler that is missing, fails or is killed: the plan is of numpy's kernels, it runs, and nothing broken is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import json, numpy as np, tensor_graphs as tg
x = tg.input("x", (3, 41), tg.f32)
plan = tg.compile(tg.graph(tg.softmax(tg.tanh(x) * 2.0)), threads=2)
given = np.linspace(-1, 1, 123, dtype=np.float32).reshape(3, 41)
wanted = np.exp(np.tanh(given.astype(np.float64)) * 2.0)
error = np.abs(tg.bind(plan).run({"x": given})["out"] - wanted / wanted.sum(1, keepdims=True)).max()
print(json.dumps({"kernels": [name for v in plan.variants for name in v.kernels], "notes": plan.notes, "error": float(error)}))
"""

DIES = "os.kill(os.getpid(), 9)"
OBEYS = "if '--version' in sys.argv: sys.exit(print('mine 1.0'))"
BREAKS = {
    "missing": None, "says nothing": "sys.exit(3)", "fails": f"{OBEYS}\nsys.exit(1)", "killed": f"{OBEYS}\n{DIES}",
    "killed half way": f"{OBEYS}\nopen(sys.argv[sys.argv.index('-o') + 1], 'w').write('half'); {DIES}",
}


def compiled(folder: Path, compiler: str | None) -> dict[str, Any]:
    """What a new process says of its plan, with caches and a database of its own."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "XDG_DATA_HOME": str(folder / "data")}
    for name in ("TENSOR_GRAPHS_DB", "TENSOR_GRAPHS_PLANS", "CC"):
        environment.pop(name, None)
    environment |= {} if compiler is None else {"CC": compiler}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("how", [how if how in ("missing", "killed half way") else pytest.param(how, marks=pytest.mark.long)
                                 for how in BREAKS])
def test_without_a_compiler_that_works_the_plan_is_numpys_and_the_cache_is_whole(how: str, tmp_path: Path) -> None:
    compiler, script = tmp_path / "cc", BREAKS[how]
    if script is not None:
        compiler.write_text(f"#!{sys.executable}\nimport os, sys\n{script}\n")
        compiler.chmod(0o755)
    found = compiled(tmp_path, str(compiler))
    assert found["kernels"] and all(name.startswith("numpy.") for name in found["kernels"]) and found["error"] < 1e-6
    assert any(note.startswith("backend c is not available") for note in found["notes"])
    made = [path for path in (tmp_path / "cache").rglob("*") if path.suffix in (".so", ".o", ".made") or "build-" in path.name]
    assert not made
    if how == "killed half way":                                    # nothing of it is in the way of one that works
        again = compiled(tmp_path, None)
        assert not any(note.startswith("backend c") for note in again["notes"]) and again["error"] < 1e-6
        assert any(not name.startswith("numpy.") for name in again["kernels"])
