"""Kernels that round their operands to TF32 are used in forms whose words allow it, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.choice import plan_times
from tensor_graphs.choice.mixed_forms import formats_here
from tensor_graphs.kernels.kernel import Kernel, Spec
from tensor_graphs.kernels.registry import unregister
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.composites.rounded import rounded_linear
from tensor_graphs.records.database import Database
from tests.choice.conftest import add_row
from tests.measure.fewer_bits_kernels import cut_off

X, W, V = tg.input("x", (8, 64)), tg.parameter("w", (64, 64)), tg.parameter("v", (64, 64))
ONE, TWO = tg.graph(tg.linear(X, W)), tg.graph(tg.linear(tg.gelu(tg.linear(X, W)), V))


@pytest.fixture
def rough() -> Iterator[Kernel]:
    """A linear whose operands are rounded to 10 bits of fraction, cut off."""
    def accepts(spec: Spec) -> str | None:
        return None if spec.attrs["to"] == "tf32" else "tf32 only"

    @tg.kernel("rounded_linear", name="numpy.rough_linear", accepts=accepts)
    def rough_linear(outs: Sequence[np.ndarray], ins: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
        with np.errstate(all="ignore"):
            np.matmul(cut_off(ins[0], 10), cut_off(ins[1], 10).T, out=outs[0])
            outs[0][...] += ins[2] if len(ins) == 3 else 0

    yield rough_linear
    unregister(rough_linear.name)


@pytest.fixture
def fast(rough: Kernel, database: Database) -> Kernel:
    """The same kernel, on file as right and much faster than any other."""
    signature = signature_of(rounded_linear(X, W, to="tf32"))
    add_row(database, rough, signature, error=2e-3)
    add_row(database, rough, signature, {}, us=0.01, error=2e-3)
    return rough


def kernels_of(plan: tg.Plan) -> list[str]:
    return [call.kernel for call in plan.variants[0].program.instructions]


def test_formats_are_words_only_where_a_kernel_computes_such_products(rough: Kernel) -> None:
    assert formats_here(("numpy",)) == {"tf32": [tg.linear], "bf16x2": [tg.linear]}
    unregister(rough.name)
    assert formats_here(("numpy",)) == {}


def test_it_is_chosen_at_the_tolerance_that_allows_it_and_at_no_other(database: Database, fast: Kernel,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_times, "against_written", lambda *arguments: (1e-6, 2e-6))     # in truth it is slower
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((8, 64), (64, 64)))
    for tolerance, is_rough in ((None, False), (1e-4, False), (1e-2, True)):
        plan = tg.compile(ONE, tolerance=tolerance, backends=("numpy",), database=database)
        assert (fast.name in kernels_of(plan)) is is_rough
        out = tg.bind(plan, {"w": w}).run({"x": x})["out"]
        exact = x.astype(float) @ w.T.astype(float)
        off = np.abs(out - exact).max() / np.sqrt(np.mean(exact ** 2))
        assert off < (tolerance or 1e-4) and bool(off > 1e-4) is is_rough


def test_a_word_by_name_rounds_that_product_alone(database: Database, fast: Kernel) -> None:
    plan = tg.compile(TWO, precision={"product:v": "tf32"}, backends=("numpy",), database=database)
    names = kernels_of(plan)
    assert names.count(fast.name) == 1 and any("linear" in name and name != fast.name for name in names)
    assert "product:v tf32" in tg.explain(plan)


def test_a_format_without_a_kernel_is_computed_by_its_definition(database: Database, rough: Kernel) -> None:
    plan = tg.compile(ONE, precision="bf16x2", backends=("numpy",), database=database)
    assert rough.name not in kernels_of(plan)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((8, 64), (64, 64)))
    exact = x.astype(float) @ w.T.astype(float)
    off = np.abs(tg.bind(plan, {"w": w}).run({"x": x})["out"] - exact).max() / np.sqrt(np.mean(exact ** 2))
    assert 1e-6 < off < 1e-4


def test_a_format_is_no_word_of_what_is_no_product(database: Database) -> None:
    with pytest.raises(ArgumentError, match=r"precision of between is 'tf32'(.|\n)*f64, f32, f16, bf16 or written"):
        tg.compile(ONE, precision={"between": "tf32"}, database=database)


@pytest.mark.parametrize("backends, is_stored", [(("numpy",), True), (("gen", "numpy"), False)])
def test_a_word_that_no_kernel_stores_is_named(database: Database, backends: tuple[str, ...], is_stored: bool) -> None:
    x: tg.Node = tg.input("x", (4, 32))
    for layer in range(2):
        x = tg.silu(tg.linear(x, tg.parameter(f"layers.{layer}.w", (32, 32))))
    rng = np.random.default_rng(0)
    weights = {f"layers.{layer}.w": rng.standard_normal((32, 32)).astype(np.float32) for layer in range(2)}
    inputs = {"x": rng.standard_normal((4, 32)).astype(np.float32)}
    plans = [tg.compile(tg.graph({"y": x}), precision=words, backends=backends, database=database)
             for words in (None, {"between:layers.0": "bf16"})]
    plain, narrow = (tg.bind(plan, weights).run(inputs)["y"] for plan in plans)
    assert is_stored is not np.array_equal(plain, narrow)
    assert plans[1].precision == "between:layers.0 bf16, asked for" + (
        "" if is_stored else " (no kernel stores bf16: these values stay wider inside of kernels)")
    assert plans[1].asked == "precision between:layers.0 bf16"
