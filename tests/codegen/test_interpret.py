"""The stage interpreter: lowering and each arrangement mean what the definition means, and a wrong program is seen to be wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import integers

import tensor_graphs as tg
from tensor_graphs.codegen.interpret import StageError, run
from tensor_graphs.codegen.loop_ir import Stage, StageProgram
from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.pipelines import arranged
from tensor_graphs.kernels.kernel import NotLowered
from tensor_graphs.language import dims as d
from tensor_graphs.language.anonymous_composite import part_between
from tensor_graphs.language.composite import Definition
from tensor_graphs.language.dtypes import DTYPES
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.error_measure import measure
from tensor_graphs.meaning.interpreter import interpret
from tests.codegen.generated import Library
from tests.codegen.test_generated import CLOSE, drawn, expected_of
from tests.codegen.test_scans import SCANS
from tests.codegen.test_tiles import TILED
from tests.codegen.tiny import grown
from tests.kernels.cases import CASES


def same(found: list[np.ndarray], expected: list[np.ndarray], error: float = 1e-9) -> None:
    for out, ref in zip(found, expected, strict=True):
        if ref.dtype.kind == "f":
            np.testing.assert_allclose(out.reshape(ref.shape), ref, rtol=error, atol=error)
        else:
            np.testing.assert_array_equal(out.reshape(ref.shape), ref)


def means_the_same(graph: Graph, definition: Definition, values: Mapping[str, np.ndarray], error: float = 1e-9) -> bool:
    """Whether stages say it; then they say it rightly, as lowered and as arranged."""
    try:
        programs = [lower(definition), arranged(lower(definition))]
    except NotLowered:
        return False
    expected = expected_of(graph, values)
    for program in programs:
        same(run(program, list(values.values())), expected, error)
    return True


@pytest.mark.parametrize("op", CASES)
def test_what_an_op_is_lowered_to_is_what_the_oracle_says(op: str) -> None:
    for dtype in DTYPES:
        made = drawn(op, dtype, 3)
        if made is not None:                                        # the op has such a dtype
            graph, definition, values = made
            means_the_same(graph, definition, values, CLOSE[dtype] if dtype.startswith("f8") else 1e-9)   # weights cast to 8 bits


@pytest.mark.parametrize("name", [*SCANS, *TILED])
def test_scans_and_tiles_mean_what_was_lowered(name: str) -> None:
    graph = tg.graph((SCANS | TILED)[name])
    if not graph.dims:
        return                                                      # long rows: test_scans runs them
    definition = part_between(list(graph.outputs.values()), list(graph.inputs.values())).written
    rng = np.random.default_rng(2)
    for n in (0, 1, 9):
        sizes = {"m": 11, "n": max(n, int("a piece" in name))}
        sizes = {k: v for k, v in sizes.items() if k in graph.dims}
        values = {k: rng.integers(0, 2 if x.dtype.kind == "bool" else 9, x.type.at(sizes).shape).astype(x.dtype.numpy)
                  for k, x in graph.inputs.items()}
        expected = list(interpret(graph, values, dims=sizes).outputs.values())
        for program in (lower(definition), arranged(lower(definition))):
            same(run(program, list(values.values()), sizes), expected)


@given(seed=integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_definitions_at_random_mean_what_they_say(seed: int) -> None:
    assert means_the_same(*grown(seed))


def test_what_is_compiled_of_definitions_at_random_is_what_the_interpreter_says() -> None:
    made = [grown(seed) for seed in range(24)]
    library = Library([arranged(lower(definition)) for _, definition, _ in made])
    for number, (graph, definition, values) in enumerate(made):
        (out,) = library.run(number, definition, list(values.values()), {})
        (expected,) = run(library.programs[number], list(values.values()))
        report = measure(out, expected.reshape(out.shape), tg.f32)
        assert report.within(1e-5), f"seed {number}\n{graph}\n{library.programs[number]}\n{report}"


def softmax() -> tuple[StageProgram, np.ndarray]:
    x: Node = tg.input("x", (3, 5))
    graph = tg.graph(tg.softmax(x))
    return arranged(lower(part_between(list(graph.outputs.values()), [x]).written)), np.arange(15.0).reshape(3, 5)


def last(program: StageProgram) -> Stage:
    return program.nests[-1].stages[-1]


def shift(s: Stage) -> Stage:
    return replace(s, index=s.index + 1)


def squeeze(s: Stage) -> Stage:
    return replace(s, index=s.index // 2)


def shorten(s: Stage) -> Stage:
    return replace(s, axes=tuple(replace(a, size=a.size - 1) for a in s.axes))


@pytest.mark.parametrize(("spoil", "why"), [(shift, "is element 15 of 15"), (squeeze, "is written twice"),
                                             (shorten, "3 of 15 elements of y0 are never written")])
def test_a_program_that_writes_elsewhere_is_refused(spoil: Callable[[Stage], Stage], why: str) -> None:
    program, x = softmax()
    spoiled = program.mapped(lambda s: [spoil(s) if s is last(program) else s])
    with pytest.raises(StageError, match=why):
        run(spoiled, [x])


def test_what_is_read_before_it_is_written_is_refused() -> None:
    program, x = softmax()
    backwards = program.made_of(replace(nest, body=nest.body[::-1]) for nest in program.nests)
    with pytest.raises(StageError, match="is read before it is written"):
        run(backwards, [x])


def test_another_program_is_seen_to_differ() -> None:
    program, x = softmax()
    wrong = {"max": "sum", "sum": "max"}                            # of the row's maximum, and of what is divided by
    other = program.mapped(lambda s: [s if s.does is None else replace(s, does=replace(s.does, monoid=wrong[s.does.monoid]))])
    with pytest.raises(AssertionError):
        same(run(other, [x]), list(interpret(tg.graph(tg.softmax(tg.input("x", (3, 5)))), {"x": x}).outputs.values()))


def test_rows_that_lie_anywhere_are_the_same_program_with_their_steps_as_dims() -> None:
    n = tg.dim("n", 1, 64)
    x = tg.input("x", (n, 4))
    graph = tg.graph(tg.cumsum(x * 2.0, axis=0))
    program = arranged(lower(part_between(list(graph.outputs.values()), [x]).written, apart=True))
    wide = np.random.default_rng(0).standard_normal((6, 9))
    assert [str(s) for s in program.dims] == ["n", "_s0_0"] and all(isinstance(s, d.Expr) for s in program.dims)
    same(run(program, [wide], {"n": 6, "_s0_0": 9}), [np.cumsum(wide[:, :4] * 2.0, axis=0)])
