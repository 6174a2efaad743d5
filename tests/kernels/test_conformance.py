"""Every kernel, at every dtype its op allows, on shapes, attributes and strides of all sorts: as the oracle, or refused."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.kernel import HostCall, Kernel, Spec
from tensor_graphs.kernels.registry import load_backend, why_missing
from tensor_graphs.language.composites.rounded import unit_of
from tensor_graphs.language.dtypes import DTYPES, DType
from tensor_graphs.language.errors import DTypeError
from tensor_graphs.language.leaves import item
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.measure.conformance.cases import op_named
from tensor_graphs.measure.points.single_op_plans import single_kernel_plan
from tensor_graphs.runtime.compiled_graph import bind
from tests.kernels.cases import CASES, Draw, applied
from tests.plans import TOLERANCE, poison, worst_error

BACKENDS = ("numpy", "torch", "c")
KERNELS = [k for name in BACKENDS for k in load_backend(name)]
TRIES = 8


@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_is_here(name: str) -> None:
    """A missing backend would take its rows out of the tables below without a word."""
    assert why_missing(name) is None and load_backend(name)


def instance(op: str, dtype: DType, seed: int) -> tuple[tg.Graph, dict[str, np.ndarray], Spec] | None:
    """A graph of one random application with its inputs; None when the op takes no such dtype."""
    draw = Draw(seed, dtype)
    try:
        node = applied(CASES[op](draw))
    except DTypeError:
        return None
    assert node.op.name == op
    g = tg.graph({f"y{i}": item(node, i) for i in range(len(node.types))})
    return g, {n: draw.values[n] for n in g.inputs}, Spec.of(node)


@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_a_kernel_computes_its_op_or_says_why_not(kernel: Kernel, half: int) -> None:
    """half: one dtype and not the next, of one kernel the odd ones and of the next the even ones."""
    for dtype in list(DTYPES.values())[(KERNELS.index(kernel) + half) % 2::2]:
        accepted = [accepts_and_computes(kernel, dtype, 1000 * seed + len(kernel.op)) for seed in range(TRIES)]
        if kernel.backend == "numpy" and kernel.name not in REFUSALS and None not in accepted:
            assert all(accepted), dtype


def accepts_and_computes(kernel: Kernel, dtype: DType, seed: int) -> bool | None:
    """Compare the kernel with the oracle on one random application of its op; return whether it accepts that, and None where the op
    takes no such dtype."""
    made = instance(kernel.op, dtype, seed)
    if made is None:
        return None
    g, values, spec = made
    reason = kernel.accepts(spec)
    if reason is not None:
        assert len(reason) > 5
        return False
    before = {n: v.copy() for n, v in values.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if op_named(kernel.op).facts.view:             # a plan folds them into strides; the kernel is there for whoever cannot
            call = kernel.build(spec)
            assert isinstance(call, HostCall)
            out = np.empty(spec.outputs[0].shape, spec.outputs[0].dtype.numpy)
            operand = interpret(tg.graph(applied(g.outputs["y0"]).inputs[0]), values).outputs["out"].astype(dtype.numpy)
            call.run([out], [operand], spec.attrs)
            results = {"y0": out}
        else:
            compiled = bind(single_kernel_plan(g, kernel))
            poison(compiled)
            results = compiled.run(values)
    ratio, where = worst_error(g, results, {}, interpret(g, values))
    rounding = unit_of(spec.attrs) if op_named(kernel.op).facts.licence else 0.0
    allowed = 1 + ROUNDINGS * rounding / TOLERANCE[dtype.name] if rounding else 1
    assert ratio <= allowed, f"{kernel.name} on {', '.join(map(str, spec.inputs))} {dict(spec.attrs)}, seed {seed}: {where}"
    for n, v in values.items():
        assert v.tobytes() == before[n].tobytes(), f"{kernel.name} wrote to an operand"
    return True


ROUNDINGS = 8
"""roundings of an operand, as an op allows them, by which a sum of products that partly cancel may be off"""

REFUSALS = {"numpy.gelu", "numpy.gated"}
"""numpy kernels that leave some attributes to the definition"""


def test_every_kernel_takes_floats_or_the_integers_it_is_for() -> None:
    def takes(kernel: Kernel, dtype: str, seed: int) -> bool:
        made = instance(kernel.op, DTYPES[dtype], seed)
        return made is not None and kernel.accepts(made[2]) is None

    dtypes = ("f32", "f64", "bf16", "f16", "i32", "bool", "u8")
    assert [k.name for k in KERNELS if not any(takes(k, dtype, seed) for dtype in dtypes for seed in range(60))] == []


# ---- floats of eight bits ------------------------------------------------------------------------------------------------------

EIGHT = (tg.f8e4m3, tg.f8e5m2)


@pytest.mark.parametrize("dtype", EIGHT, ids=str)
@pytest.mark.parametrize("backend", ["numpy", "torch", "gen"])
def test_weights_of_eight_bits_are_exactly_the_numbers_that_they_are(backend: str, dtype: DType) -> None:
    rng = np.random.default_rng(0)
    graph = tg.graph(tg.linear(tg.input("x", (7, 256)), tg.parameter("w", (3, 256), dtype), tg.input("b", (3,), dtype)))
    w = np.tile(np.arange(256, dtype=np.uint8).view(dtype.numpy), (3, 1))
    w[~np.isfinite(w.astype(np.float32))] = 1
    values = {"x": rng.standard_normal((7, 256)).astype(np.float32), "b": rng.standard_normal(3).astype(dtype.numpy)}
    model = tg.bind(tg.compile(graph, backends=(backend,)), {"w": w})
    found = model.run(values)["out"]
    expected = interpret(graph, values, {"w": w}).outputs["out"]
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5 * float(np.abs(expected).max()))


@pytest.mark.parametrize("dtype", EIGHT, ids=str)
def test_kernels_that_do_not_round_to_eight_bits_say_so(dtype: DType) -> None:
    """Backends whose kernels list their dtypes: what moves rows, whatever they are, is all that may take them."""
    for kernel, seed in itertools.product([k for k in KERNELS if k.backend != "numpy"], range(TRIES)):
        made = instance(kernel.op, dtype, seed)
        if made is not None and any(t.dtype is dtype for t in made[2].outputs):
            reason = kernel.accepts(made[2])
            assert kernel.op in ("write_rows", "write_at_index") or (reason is not None and len(reason) > 5), kernel.name
