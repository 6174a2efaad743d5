"""numpy's threads go to sleep between products: known before numpy is imported, and said where it is too late."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tensor_graphs as tg
from tensor_graphs import blas_thread_sleep
from tensor_graphs.blas_thread_sleep import TICKS, VARIABLE
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.choice.cost_table import ESTIMATE_MARGIN, CostTable
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.records.database import open_database
from tests.choice.conftest import add_row

ROOT = Path(__file__).parents[1]


def said(code: str, **variables: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k != VARIABLE}
    done = subprocess.run([sys.executable, "-c", f"import os; {code}"], env={**environment, "PYTHONPATH": str(ROOT), **variables},
                          capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_variable_is_set_before_numpy_is_imported_and_only_where_it_is_not() -> None:
    show = f"import tensor_graphs.blas_thread_sleep as b; print(os.environ[{VARIABLE!r}], b.LATE)"
    assert said(show) == f"{TICKS} False"
    assert said(f"import numpy; {show}") == f"{TICKS} True"
    assert said(f"import numpy; {show}", **{VARIABLE: "20"}) == "20 False"


@pytest.mark.parametrize("late", [True, False])
def test_a_plan_that_mixes_native_kernels_and_products_says_when_it_was_too_late(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    monkeypatch.setattr(blas_thread_sleep, "LATE", late)
    product = tg.linear(tg.input("x", (4, 64)), tg.parameter("w", (64, 64)))
    mixed = tg.graph({"y": tg.softmax(product)})
    with open_database(tmp_path / "bench.db") as database:
        for name, node in (("numpy.linear", product), ("c.softmax", mixed.outputs["y"])):
            kernel, signature = kernel_named(name), signature_of(node)
            add_row(database, kernel, signature)
            add_row(database, kernel, signature, {}, us=1e-3)
        assert CostTable(database, ("c", "numpy"), 1e-3, margin=ESTIMATE_MARGIN).load().known
        plan = compile_graph(mixed, database=database, backends=("c", "numpy"))
    assert {k.name for v in plan.variants for k in v.kernels.values()} == {"numpy.linear", "c.softmax"}
    assert any(VARIABLE in note for note in plan.notes) is late
