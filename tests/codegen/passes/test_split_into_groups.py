"""Norms of groups are one nest for all groups, however the groups are written, and compute what the oracle and torch do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen import interpret as stages
from tensor_graphs.codegen.loop_ir import StageProgram
from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.pipelines import arranged
from tensor_graphs.language.anonymous_composite import part_between
from tensor_graphs.language.composite import Definition
from tensor_graphs.language.node import Node
from tests.codegen.generated import Library

N = tg.dim("n", 1, 6)
G, B = tg.input("g", (24,)), tg.input("b", (24,))


def image(*shape: tg.Dim) -> Node:
    return tg.input("x", shape)


def affine(y: Node) -> Node:
    return y * tg.reshape(G, (24, 1, 1)) + tg.reshape(B, (24, 1, 1))


def reshaped(x: Node, groups: int, norm: Callable[[Node], Node] = tg.layer_norm) -> Node:
    rows = (x.shape[0] * groups, 24 // groups * x.shape[2] * x.shape[3])
    return affine(tg.reshape(norm(tg.reshape(x, rows)), x.shape))


def centred(x: Node) -> Node:
    return x - tg.mean(x, axis=1, keepdims=True)


X = image(5, 24, 4, 7)
TOGETHER = {
    "layer_norm between reshapes": reshaped(X, 8), "one group": reshaped(image(8, 24, 4, 7), 1),
    "one channel each": reshaped(X, 24), "of a batch of any size": reshaped(image(N, 24, 4, 7), 8),
    "one image": reshaped(image(1, 24, 4, 7), 8),
    "softmax": reshaped(X, 8, tg.softmax), "mean": reshaped(X, 8, centred), "group_norm": tg.group_norm(X, G, B, groups=8),
    "rows that are rows again": tg.reshape(tg.layer_norm(tg.reshape(image(4, 5, 4, 7), (20, 28))), (4, 5, 28))
                                * tg.input("r", (28,))}


def few_groups() -> list[Node]:
    return [reshaped(image(1, 24, 4, 7), 2)]


def long_rows() -> list[Node]:
    return [reshaped(image(2, 24, 80, 80), 4)]


def sums_that_are_an_output() -> list[Node]:
    rows = tg.reshape(X, (40, 84))
    mean = tg.mean(rows, axis=1, keepdims=True)
    return [affine(tg.reshape(rows - mean, X.shape)), mean]


def sums_of_another_group() -> list[Node]:
    rows = tg.reshape(X, (40, 84))
    return [affine(tg.reshape(rows - tg.mean(rows, axis=1, keepdims=True)[::-1], X.shape))]


def groups_that_are_no_rows() -> list[Node]:
    sums = tg.sum(tg.reshape(tg.permute(X, (1, 0, 2, 3)), (40, 84)), axis=1, keepdims=True)
    return [X + tg.permute(tg.reshape(tg.expand(sums, (40, 84)), (24, 5, 4, 7)), (1, 0, 2, 3))]


APART = (few_groups, long_rows, sums_that_are_an_output, sums_of_another_group, groups_that_are_no_rows)


def lowered(*outputs: Node) -> tuple[Definition, StageProgram]:
    inputs = tg.graph({f"y{i}": o for i, o in enumerate(outputs)}).inputs
    definition = part_between(list(outputs), list(inputs.values())).written
    return definition, arranged(lower(definition))


CASES = {**{name: [output] for name, output in TOGETHER.items()}, **{make.__name__: make() for make in APART}}


@pytest.fixture(scope="module")
def library() -> tuple[Library, list[Definition]]:
    pairs = [lowered(*outputs) for outputs in CASES.values()]
    return Library([program for _, program in pairs]), [definition for definition, _ in pairs]


@pytest.mark.parametrize("name", TOGETHER)
def test_the_sums_of_a_group_are_computed_where_it_is_stored(name: str) -> None:
    _, program = lowered(TOGETHER[name])
    (nest,) = program.nests
    *numbers, stored = nest.stages
    assert stored.level == len(nest.axes) and not any(s.axes for s in numbers), str(program)


@pytest.mark.parametrize("make", APART)
def test_sums_stay_in_a_nest_before_where(make: Callable[[], list[Node]]) -> None:
    assert len(lowered(*make())[1].nests) > 1


@pytest.mark.parametrize("name", CASES)
def test_loops_over_groups_compute_what_the_oracle_does(library: tuple[Library, list[Definition]], name: str) -> None:
    number = list(CASES).index(name)
    definition, program = library[1][number], library[0].programs[number]
    rng, dims = np.random.default_rng(number), {"n": 3} if program.dims else {}
    graph = tg.graph({f"y{i}": o for i, o in enumerate(CASES[name])})
    arrays = [rng.standard_normal([3 if s is N else s for s in x.shape], np.float32) for x in graph.inputs.values()]
    expected = tg.interpret(graph, dict(zip(graph.inputs, arrays, strict=True)), {}).outputs
    for outs in (library[0].run(number, definition, arrays, dims), stages.run(program, arrays, dims)):
        for out, reference in zip(outs, expected.values(), strict=True):
            np.testing.assert_allclose(np.asarray(out).reshape(reference.shape), reference, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("groups", [1, 8, 24])
def test_a_norm_between_reshapes_is_torchs_group_norm(library: tuple[Library, list[Definition]], groups: int) -> None:
    import torch

    name = {8: "layer_norm between reshapes", 1: "one group", 24: "one channel each"}[groups]
    number = list(CASES).index(name)
    rng = np.random.default_rng(groups)
    arrays = [rng.standard_normal(x.shape, np.float32) for x in tg.graph(TOGETHER[name]).inputs.values()]
    x, gain, shift = (torch.from_numpy(a) for a in arrays)
    (out,) = library[0].run(number, library[1][number], arrays, {})
    np.testing.assert_allclose(out, torch.nn.functional.group_norm(x, groups, gain, shift).numpy(), rtol=1e-4, atol=1e-5)
