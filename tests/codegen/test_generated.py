"""Every op, every dtype, random sizes and views: what the generated C gives is what the oracle says."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen.interpret import run as evaluated
from tensor_graphs.codegen.loop_ir import StageProgram
from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.pipelines import arranged
from tensor_graphs.kernels.kernel import NotLowered
from tensor_graphs.language import leaves
from tensor_graphs.language.anonymous_composite import part_between
from tensor_graphs.language.composite import Definition, expand_all
from tensor_graphs.language.dtypes import DTYPES, DType, parse_dtype
from tensor_graphs.language.errors import DTypeError
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.meaning.error_measure import ErrorReport, measure
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.meaning.same_math import licensed_unit
from tests.codegen.generated import Library
from tests.kernels.cases import CASES, Draw

USUAL = ("f32", "i32")
"""the dtypes of which every op is drawn by default; the others are drawn by `long` tests"""

CLOSE = {"f64": 1e-12, "f32": 4e-6, "bf16": 8e-3, "f16": 2e-3, "f8e4m3": 0.07, "f8e5m2": 0.13}
"""errors that are a few roundings, or one of the output's dtype"""


def is_close(report: ErrorReport, dtype: DType) -> bool:
    close = CLOSE.get(dtype.name, 0.0)
    twice = dtype.name.startswith("f8") and report.norm_error <= 2 * close              # conv rounds weights to 8 bits, too
    return twice or report.within(close)


NEVER = {"topk", "gather_linear", "scan", "quantize", "block_linear", "rounded_block_linear"}
"""ops that stages do not say: they are opaque, or several outputs of one value, or products of what is computed from bytes, which
have kernels of their own; a scan is a loop around stages (test_turns.py)"""


def drawn(op: str, dtype: str, seed: int) -> tuple[Graph, Definition, dict[str, np.ndarray]] | None:
    """One instance of an op behind views, as a graph, as a definition, and its values; None where the dtype has none."""
    draw = Draw(seed, DTYPES[dtype])
    try:
        node = CASES[op](draw)
    except DTypeError:
        return None
    outputs = [leaves.item(node, i) for i in range(len(node.types))]
    graph = make_graph({f"y{i}": o for i, o in enumerate(outputs)})
    operands = list(graph.inputs.values())
    if not operands or any(o in operands for o in outputs):
        return None
    written = part_between(outputs, operands).written
    return graph, written, {name: draw.values[name] for name in graph.inputs}


@cache
def cases(dtype: str, seeds: int) -> tuple[dict[str, list[int]], list[tuple[Graph, Definition, dict[str, np.ndarray]]], Library]:
    """op -> the numbers of its cases, the cases, and their programs, compiled."""
    numbers: dict[str, list[int]] = {}
    found: list[tuple[Graph, Definition, dict[str, np.ndarray]]] = []
    programs: list[StageProgram] = []
    for op in CASES:
        for seed in range(seeds):
            made = drawn(op, dtype, seed)
            if made is None:
                continue
            try:
                program = arranged(lower(made[1]))
            except NotLowered:
                continue
            numbers.setdefault(op, []).append(len(found))
            found.append(made)
            programs.append(program)
    return numbers, found, Library(programs)


def expected_of(graph: Graph, values: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The oracle's outputs. Generated code rounds where a definition rounds, so licences to round are written out."""
    written = graph.with_roots(expand_all(graph.roots)) if licensed_unit(graph.roots) else graph
    return list(interpret(written, values).outputs.values())


def check(op: str, dtype: str, seeds: int) -> None:
    numbers, found, library = cases(dtype, seeds)
    for number in numbers.get(op, ()):
        graph, definition, values = found[number]
        outs = library.run(number, definition, list(values.values()), {})
        expected = expected_of(graph, values)
        for out, ref in zip(outs, expected, strict=True):
            kind = parse_dtype(out.dtype)
            report = measure(out, ref, kind)
            assert is_close(report, kind), f"{graph}\n{library.programs[number]}\n{report}"


@pytest.mark.parametrize("dtype", USUAL)
@pytest.mark.parametrize("op", CASES)
def test_what_is_generated_for_an_op_is_what_the_oracle_says(op: str, dtype: str) -> None:
    check(op, dtype, 1)


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", CASES)
def test_what_is_generated_is_right_for_all_dtypes_and_more_sizes(op: str, dtype: str) -> None:
    check(op, dtype, 2)


def test_nearly_all_ops_are_loops() -> None:
    numbers, _, _ = cases("f32", 1)
    floats = {op for op in CASES if drawn(op, "f32", 0) is not None}
    assert floats - set(numbers) <= NEVER


def test_a_quotient_just_below_a_whole_number_is_not_rounded_up_to_it() -> None:
    y = np.linspace(1, 2, 4001, dtype=np.float32)
    x = np.nextafter(np.float32(7) * y, np.float32(0))
    assert (np.floor(x / y) == 7).any() and (np.floor(x.astype(np.float64) / y) == 6).all()     # what f32 alone says is wrong
    graph = tg.graph({"whole": tg.floor_div(tg.input("x", x.shape, tg.f32), tg.input("y", y.shape, tg.f32))})
    model = tg.bind(tg.compile(graph, backends=("gen",)))
    np.testing.assert_array_equal(model.run({"x": x, "y": y})["whole"], 6)


EIGHT = np.array([[157.7148, 0.6782, 1.001, -3.3e-3, 440.0, -7.7], [-1e-4, 300.1, 0.0, 5.5, -17.0, 2.2]], np.float32)


def rounded_to(dtype: str) -> tuple[dict[str, tg.Node], dict[str, np.ndarray]]:
    """Outputs that read a cast to a float of 8 bits inside of one kernel, and their values: those of ml_dtypes."""
    x, rounded = tg.input("x", EIGHT.shape), EIGHT.astype(DTYPES[dtype].numpy).astype(np.float32)
    y = x.cast(dtype).cast(tg.f32)
    return ({"again": y, "narrow": x.cast(dtype), "wide": x.cast(tg.f64).cast(dtype).cast(tg.f64), "lost": x - y,
             "sums": y.sum(axis=1), "largest": y.max(axis=0)},
            {"again": rounded, "narrow": rounded, "wide": rounded, "lost": EIGHT - rounded, "sums": rounded.sum(axis=1),
             "largest": rounded.max(axis=0)})


@pytest.mark.parametrize("dtype", ["f8e4m3", "f8e5m2"])
def test_a_cast_to_eight_bits_rounds_inside_of_a_kernel(dtype: str) -> None:
    nodes, expected = rounded_to(dtype)
    program = arranged(lower(part_between(list(nodes.values()), list(make_graph(nodes).inputs.values())).written))
    outputs = tg.bind(tg.compile(make_graph(nodes), backends=("gen",), database=":memory:")).run({"x": EIGHT})
    for (name, out), interpreted in zip(outputs.items(), evaluated(program, [EIGHT]), strict=True):
        for values in (out,) if name == "narrow" else (out, interpreted):       # the interpreter stores real numbers
            found = np.asarray(values).astype(np.float64).reshape(expected[name].shape)
            np.testing.assert_allclose(found, expected[name].astype(np.float64), rtol=1e-6)


@pytest.mark.parametrize("form", ["f32", "f64"])
def test_a_cast_to_eight_bits_rounds_whatever_is_wider_between(form: str) -> None:
    nodes, expected = rounded_to("f8e4m3")
    outputs = tg.bind(tg.compile(make_graph(nodes), backends=("gen",), precision=form, database=":memory:")).run({"x": EIGHT})
    np.testing.assert_array_equal(outputs["again"], expected["again"])


SCALED = {"a tensor": lambda x, w: x * w, "a number": lambda x, w: x * w * 0.1, "a mask": lambda x, w: x * 0.3 + w}


@pytest.mark.parametrize("scale", SCALED)
def test_the_greatest_is_taken_off_products_that_are_rounded_as_it_is(scale: str) -> None:
    y, z = SCALED[scale](tg.input("x", (4, 100)), tg.input("w", (100,))), tg.input("z", (4, 100))
    of_y, of_z = (tg.graph({f.__name__: f(rows, axis=-1) for f in (tg.softmax, tg.log_softmax, tg.logsumexp)}) for rows in (y, z))
    model = tg.bind(tg.compile(of_y, backends=("gen",)))
    for magnitude in (1e3, 1e10, 1e30):
        draw = np.random.default_rng(0)
        arrays = {"x": draw.standard_normal((4, 100)).astype(np.float32),
                  "w": (draw.standard_normal(100) * magnitude).astype(np.float32)}
        found = model.run(arrays)
        rounded = interpret(tg.graph(y), arrays).outputs["out"].astype(np.float32)
        exact = interpret(of_z, {"z": rounded}).outputs
        best = rounded.argmax(axis=-1)
        for name, out in found.items():
            assert measure(out, exact[name], tg.f32).within(1e-5), (name, magnitude)
        assert magnitude == 1e3 or not found["log_softmax"][range(4), best].any()
