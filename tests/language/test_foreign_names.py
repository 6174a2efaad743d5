"""language/foreign_names.py: a name of numpy or torch is told with ours, where it is looked for."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.errors import NoAttributeError, TensorGraphsError
from tensor_graphs.language.errors import NoValueError
from tensor_graphs.language.foreign_names import ABSENT, FUNCTIONS

X = tg.input("x", (4, 8))
H = tg.input("h", (4,), tg.f16)


def test_every_name_of_the_table_is_missing_here_and_leads_to_one_that_is_there() -> None:
    assert not [name for name in (*FUNCTIONS, *ABSENT) if name in tg.__all__] and not FUNCTIONS.keys() & ABSENT.keys()
    assert not [ours for names in FUNCTIONS.values() for ours in names if ours not in tg.__all__]


@pytest.mark.parametrize(("call", "said"), [
    (lambda: tg.matmul, "'tensor_graphs' has no attribute 'matmul'\n  fix: did you mean tg.dot or tg.linear?"),
    (lambda: tg.softmx, "did you mean tg.softmax"), (lambda: X.item(), "tg.bind(tg.compile(tg.graph(x))).run(inputs)"),
    (lambda: tg.rfft, "no attribute 'rfft'\n  fix: there are no Fourier transforms"), (lambda: tg.complex64, "no dtype is complex"),
    (lambda: tg.nonzero, "the size of its result would depend on values"), (lambda: X.fft, "fix: there are no Fourier transforms"),
    (lambda: X.var(), "fix: tg.var(x, …)"), (lambda: X.astype("f16"), "fix: x.cast(dtype)"),
    (lambda: X.shap, "did you mean x.shape"), (lambda: X.concatenate, "did you mean tg.concat?"),
    (lambda: tg.graph(X + 1).run({}), "fix: tg.bind(tg.compile(graph), parameters).run(inputs)"),
])  # fmt: skip
def test_an_attribute_that_is_missing_names_what_is_meant(call: Callable[[], object], said: str) -> None:
    with pytest.raises(AttributeError) as caught:
        call()
    assert isinstance(caught.value, NoAttributeError) and said in str(caught.value)


def test_pythons_own_protocols_are_answered_as_python_does() -> None:
    for owner in (tg, X, tg.graph(X + 1)):
        with pytest.raises(AttributeError) as caught:
            _ = owner.__cuda_array_interface__                      # type: ignore[union-attr]
        assert not isinstance(caught.value, TensorGraphsError)


@pytest.mark.parametrize(("call", "fix"), [
    (lambda: float(X), "compile the graph and run it"), (lambda: math.exp(X), "compile the graph and run it"),  # type: ignore[arg-type]
    (lambda: int(X), "compile the graph and run it"), (lambda: np.exp(X), "tg.exp says"), (lambda: np.sqrt(X), "tg.sqrt says"),
    (lambda: np.add(X, 1), "tg.add says"), (lambda: np.ones((4, 8), np.float32) @ X, "tg.dot says"),
])  # fmt: skip
def test_a_function_that_wants_values_is_refused_with_what_says_the_same_here(call: Callable[[], object], fix: str) -> None:
    with pytest.raises(NoValueError) as caught:
        call()
    assert fix in str(caught.value) and "nothing is computed yet" in str(caught.value)


def test_numbers_and_arrays_of_numpy_on_the_left_stay_operands() -> None:
    ones = np.ones((4, 8), np.float32)
    for made, same in ((ones - X, tg.sub(ones, X)), (ones < X, X > ones), (np.float32(2) * H, 2.0 * H), (np.int64(2) < H, H > 2),
                       (np.float64(2) >= H, H <= 2.0), (np.float64(2) / H, 2.0 / H)):
        assert made is same
    with pytest.raises(NoValueError, match=r"tg\.equals\(x, 2\.0\)"):
        _ = np.float64(2) == H
