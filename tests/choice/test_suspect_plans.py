"""Plans whose kernels are right alone and wrong together: each is measured as a whole, and refused or replaced by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.kernel import HostCall, Kernel, source_of
from tensor_graphs.kernels.registry import kernel_named, register, unregister
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.paths.path import NoPathError
from tensor_graphs.records.database import Database
from tests.choice.conftest import add_row

N = tg.dim("n", 1, 64)


def run_rough(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
    """exp that is off by 4e-5: the same math for every kernel's verdict."""
    np.multiply(np.exp(ins[0]), np.float32(1 + 4e-5), out=outs[0])


def test_a_kernel_that_is_right_alone_and_wrong_in_its_place_is_left_out(database: Database) -> None:
    x = tg.input("x", (N, 256))
    graph = tg.graph({"y": (tg.exp(x * 1e-3) - 1.0) * 1e3})         # which shows 4e-5 of rows near 0 as 50
    kernel = Kernel("trial.rough_exp", "numpy", "exp", lambda spec: HostCall(run_rough), lambda spec: None, source_of(run_rough),
                    __name__)
    register(kernel)
    try:
        signature = signature_of(graph.outputs["y"].inputs[0].inputs[0])
        assert signature.spec.op.name == "exp"
        for which, us in ((kernel, 0.01), (kernel_named("numpy.exp"), 50.0)):
            add_row(database, which, signature, {"n": 64}, us=us)
            add_row(database, which, signature, error=4e-5 if which is kernel else 1e-7)
        options: dict[str, Any] = {"database": database, "backends": ("numpy",), "at": {"n": 64}, "precision": "written"}
        for tolerance, used in ((1e3, True), (1.0, False)):
            plan = tg.compile(graph, tolerance=tolerance, **options)
            assert used == (kernel.name in {i.kernel for v in plan.variants for i in v.program.instructions}), tolerance
    finally:
        unregister(kernel.name)


def test_a_sum_of_equal_numbers_in_f16_is_right(database: Database) -> None:
    graph = tg.graph({"y": tg.sum(tg.input("x", (4096,), tg.f16))})
    for tolerance in (None, 1e-3):
        plan = tg.compile(graph, tolerance=tolerance, database=database)
        assert tg.bind(plan).run({"x": np.ones(4096, np.float16)})["y"] == 4096


@pytest.mark.parametrize("scale", [1e4, -1e4, 1e-4])
def test_a_softmax_of_scaled_scores_is_finite_and_right(database: Database, scale: float) -> None:
    x, s = tg.input("x", (N, 64)), tg.constant(scale)
    graph = tg.graph({"y": tg.softmax(x * s)})
    plan = tg.compile(graph, tolerance=1e-2, database=database, at={"n": 8})
    inputs = {"x": np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)}
    exact = tg.interpret(graph, inputs).outputs["y"]
    output = tg.bind(plan).run(inputs)["y"]
    assert np.isfinite(output).all() and np.abs(output - exact).max() <= 1e-2


def test_the_floor_of_a_sum_of_a_softmax_is_refused_by_its_name(database: Database) -> None:
    graph = tg.graph({"y": tg.floor(tg.sum(tg.softmax(tg.input("x", (N, 64))), axis=-1))})
    with pytest.raises(NoPathError, match="floor"):
        tg.compile(graph, tolerance=1e-3, database=database, at={"n": 8})
    assert tg.compile(graph, database=database, at={"n": 8}).variants, "without a tolerance it runs as written"
