"""The watch around the calls of a plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.profiling.measure import clock
from tensor_graphs.profiling.measure.clock import Watched
from tensor_graphs.profiling.measure.single import single_kernel_plan
from tensor_graphs.runtime.compiled_graph import bind
from tests.profiling.wrong_kernels import NODES


@pytest.mark.parametrize("name", ["c.softmax", "numpy.softmax"])
def test_a_native_kernel_is_timed_in_c_and_no_clock_of_python_is_asked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def now() -> float:
        asked.append(0.0)
        return 0.0

    monkeypatch.setattr(clock, "now", now)
    graph = signature_of(NODES["softmax"]).graph
    watched = Watched(bind(single_kernel_plan(graph, kernel_named(name))))
    out: Sequence[np.ndarray] = [np.zeros((20, 24), np.float32)]
    taken = watched.run({"x0": np.ones((20, 24), np.float32)}, {"y0": out[0]}, {"n": 20})
    assert out[0][0, 0] == pytest.approx(1 / 24)
    assert (taken > 0 and not asked) if name.startswith("c.") else (taken == 0 and asked)
