"""codegen/passes/softmax_exp.py: a sum of exponentials is rounded once only where the maximum of their row was taken away from
each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen.backend_cuda import call_of, program_of
from tensor_graphs.codegen.passes.softmax_exp import is_shifted
from tensor_graphs.language.node import Node
from tests.codegen import emulated
from tests.codegen.print.test_cuda_loops import definition_of

X = tg.input("x", (12, 1024))


def kept(x: Node) -> Node:
    return tg.reshape(tg.reduce_max(x, axis=1), (12, 1))


CASES: dict[str, tuple[bool, Callable[[], Node]]] = {
    "log-sum-exp": (True, lambda: tg.logsumexp(X)),
    "by hand": (True, lambda: tg.exp(X * 2.0 + kept(X * 2.0) * -1.0).sum(axis=1)),
    "the maximum of something else": (False, lambda: tg.exp(X * 2.0 + kept(X) * -1.0).sum(axis=1)),
    "of a part of the row": (False, lambda: tg.exp(X[:, 512:] + kept(X[:, :512]) * -1.0).sum(axis=1)),
    "nothing taken away": (False, lambda: tg.exp(X * 0.01).sum(axis=1)),
    "a maximum added": (False, lambda: tg.exp(X * 0.01 + kept(X * 0.01)).sum(axis=1)),
    "its exponentials are wanted": (False, lambda: tg.softmax(X)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_sum_is_recognised_by_the_maximum_that_its_terms_are_less(name: str) -> None:
    wanted, made = CASES[name]
    definition = definition_of(made())
    program = program_of(definition)
    found = [is_shifted(program, nest, s) for nest in program.nests for s in nest.stages]
    assert any(found) is wanted and ("f32_exp_in_sum(" in call_of(definition).text) is wanted, str(program)


def test_a_sum_whose_terms_are_rounded_once_is_as_near_as_another(tmp_path: Path) -> None:
    """Where most of the sum comes from far below the maximum, as many terms as can be; rows that are infinite, or not numbers."""
    x = np.random.default_rng(4).uniform(-8, -6, (12, 1024)).astype(np.float32)
    x[:, 0], x[4], x[5] = 0, 90 * x[4], 1e6 + x[5]
    x[6, 3], x[7], x[8, 5] = np.inf, -np.inf, np.nan
    (out,) = emulated.run(tmp_path, definition_of(tg.logsumexp(X)), [((12,), np.dtype(np.float32))], [x], {})
    wide = x.astype(np.float64)
    most = np.where(np.isfinite(m := wide.max(axis=1)), m, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        right = most + np.log(np.exp(wide - most[:, None]).sum(axis=1))
    np.testing.assert_allclose(out, right, rtol=2e-7, atol=2e-7)
