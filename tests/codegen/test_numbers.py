"""The functions of numbers.h, through kernels: how far they are from the oracle, on values that are hard for them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.pipelines import arranged
from tensor_graphs.language.anonymous_composite import part_between
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import interpret
from tests.codegen.generated import Library

COUNT = 4000


def of_any_size(rng: np.random.Generator, dtype: DType) -> np.ndarray:
    """All exponents but the outermost, both signs."""
    reach = float(np.log2(dtype.max)) * 0.98
    return np.asarray(np.exp2(rng.uniform(-reach, reach, COUNT)) * rng.choice([-1.0, 1.0], COUNT))


def around_poles(rng: np.random.Generator, _: DType) -> np.ndarray:
    return np.asarray((rng.integers(-40, 40, COUNT) + 0.5) * np.pi + np.exp2(rng.uniform(-20, 0, COUNT)))


def near(rng: np.random.Generator, _: DType) -> np.ndarray:
    return rng.uniform(-9, 9, COUNT)


CASES: dict[str, tuple[Callable[..., Node], int, Callable[[np.random.Generator, DType], np.ndarray], float, float]] = {
    # operands, how they are drawn, and the error relative to the result or, where that is larger, to all results' mean square:
    # in f32, in f64
    "mod": (tg.mod, 2, of_any_size, 6e-8, 0.0),
    "tan": (tg.tan, 1, around_poles, 2e-7, 1e-15),
    "cos": (tg.cos, 1, near, 2e-7, 1e-15),
    "erf": (tg.erf, 1, near, 3e-7, 1e-15),
    "erfc": (tg.erfc, 1, near, 5e-7, 1e-15),
    "gelu": (tg.gelu, 1, near, 2e-7, 1e-15),
    "gelu tanh": (lambda x: tg.gelu(x, approximate="tanh"), 1, near, 2e-7, 1e-15),
    "silu": (tg.silu, 1, near, 2e-7, 1e-15),
}
TAILS: dict[str, tuple[Callable[[Node], Node], float, float, float]] = {
    # relative error in f32 where the result is a normal number, however small; the result at -inf and +inf
    "exp": (tg.exp, 1.5e-7, 0.0, np.inf), "tanh": (tg.tanh, 2.5e-7, -1.0, 1.0), "sigmoid": (tg.sigmoid, 2.5e-7, 0.0, 1.0),
    "silu": (tg.silu, 2.5e-7, np.nan, np.inf), "gelu": (tg.gelu, 2e-5, np.nan, np.inf),
    "gelu tanh": (lambda x: tg.gelu(x, approximate="tanh"), 2e-5, np.nan, np.inf)}


@pytest.fixture(scope="module")
def results() -> dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]:
    """(function, dtype) -> what was computed, what the oracle says."""
    made: list[tuple[str, str, Graph, dict[str, np.ndarray]]] = []
    for name, (function, operands, draw, *_) in CASES.items():
        for dtype in (tg.f32, tg.f64):
            rng = np.random.default_rng(7)
            values = {f"x{i}": draw(rng, dtype).astype(dtype.numpy) for i in range(operands)}
            node = function(*(tg.input(x, (COUNT,), dtype) for x in values))
            made.append((name, dtype.name, tg.graph(node), values))
    written = [part_between(list(g.outputs.values()), list(g.inputs.values())).written for _, _, g, _ in made]
    library = Library([arranged(lower(w)) for w in written])
    found = {}
    for i, (name, dtype_name, graph, values) in enumerate(made):
        (out,) = library.run(i, written[i], list(values.values()), {})
        (expected,) = interpret(graph, values).outputs.values()
        found[name, dtype_name] = out, expected
    return found


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", CASES)
def test_a_function_of_numbers_is_as_near_as_its_bound_says(name: str, dtype: str,
                                                             results: dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]) -> None:
    out, expected = results[name, dtype]
    bound = CASES[name][3 if dtype == "f32" else 4]
    scale = np.maximum(np.abs(expected), 0.0 if name in ("mod", "tan") else np.sqrt(np.mean(expected**2)))
    wrong = np.abs(out - expected) > bound * scale + (2e-45 if dtype == "f32" else 0.0)
    assert not wrong.any(), (out[wrong][:5], expected[wrong][:5])


@pytest.mark.parametrize("name", TAILS)
def test_tails_are_relatively_near_and_nan_and_infinity_are_carried(name: str) -> None:
    function, bound, at_minus, at_plus = TAILS[name]
    dense = np.linspace(-110, 110, 6001)
    ends = [0.0, -0.0, 1e-30, 3e38, -3e38, np.nan, -np.inf, np.inf]
    x = np.concatenate([dense, dense / 20, dense / 1e4, ends]).astype(np.float32)
    graph = tg.graph(function(tg.input("x", x.shape)))
    written = part_between(list(graph.outputs.values()), list(graph.inputs.values())).written
    (out,) = Library([arranged(lower(written))]).run(0, written, [x], {})
    (expected,) = interpret(graph, {"x": x}).outputs.values()
    assert np.isnan(out[-3]) and np.array_equal(out[-2:], [at_minus, at_plus], equal_nan=True)
    out, expected = out[:-3].astype(float), np.asarray(expected)[:-3]
    held = (abs(expected) > 2.7e-37) & (abs(expected) < 3.4e38)     # below, x / (1 + e^-x) is 0: e^-x is infinite
    assert np.max(np.abs(out[held] - expected[held]) / abs(expected[held])) <= bound
    assert np.max(np.abs(out - expected)[abs(expected) <= 2.7e-37]) <= 2.7e-37 and np.isposinf(out[expected > 3.5e38]).all()
