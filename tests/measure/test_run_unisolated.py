"""Kernel.run: one kernel on arrays of a user's, in this process, with errors that say what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensor_graphs.kernels.kernel import ANY_OP, HostCall, Kernel, KernelError, source_of
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.language.call_errors import CallError
from tensor_graphs.language.errors import DTypeError, LanguageError

X = np.array([[1.0, 2.0, 3.0]], np.float32)


def softmax(outs: Any, ins: Any, attrs: Any) -> None:
    e = np.exp(ins[0])
    outs[0][...] = e / e.sum(attrs["axis"], keepdims=True)


def own(op: str = "softmax", refusal: str | None = None) -> Kernel:
    return Kernel("numpy.own", "numpy", op, lambda spec: HostCall(softmax), lambda spec: refusal, source_of(softmax), __name__)


def test_a_kernel_runs_on_arrays_in_a_list_or_by_name_with_attributes() -> None:
    by_columns = np.exp(X) / np.exp(X).sum()
    np.testing.assert_allclose(own().run([X]), by_columns, rtol=1e-6)
    np.testing.assert_allclose(own().run({"x": X}, axis=-1), by_columns, rtol=1e-6)
    np.testing.assert_array_equal(own().run([X], axis=0), np.ones_like(X))


@pytest.mark.processes
@pytest.mark.parametrize("name", ["numpy.softmax", "c.softmax"])
def test_kernels_of_the_package_run_alone_too(name: str) -> None:
    np.testing.assert_allclose(kernel_named(name).run([X]), np.exp(X) / np.exp(X).sum(), rtol=1e-6)


def test_several_outputs_are_a_tuple() -> None:
    values, indices = kernel_named("numpy.topk").run([X[0]], k=2)
    assert values.tolist() == [3, 2] and indices.tolist() == [2, 1]


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(KernelError, match=r"takes its operands in a list, this is ndarray"):
        own().run(X)  # type: ignore[arg-type]
    with pytest.raises(KernelError, match=r"does not take softmax\(f32\[1, 3\]\): too short"):
        own(refusal="too short").run([X])
    with pytest.raises(KernelError, match="computes no op of one name"):
        own(ANY_OP).run([X])
    with pytest.raises(LanguageError, match="add takes 2 operands, got 1"):
        kernel_named("numpy.add").run([X])
    with pytest.raises(LanguageError, match="sum has the attributes"):
        kernel_named("numpy.sum").run([X])
    with pytest.raises(DTypeError, match="softmax takes float"):
        own().run([np.array([1, 2])])
    with pytest.raises(CallError, match="no argument 'axes'"):
        own().run([X], axes=0)
