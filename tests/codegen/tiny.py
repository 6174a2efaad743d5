"""tiny: small definitions at random, and their programs of stages: what every interpreter, mapper and printer has to agree on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import tensor_graphs as tg
from tensor_graphs.codegen.loop_ir import StageProgram
from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.pipelines import arranged
from tensor_graphs.kernels.kernel import NotLowered
from tensor_graphs.language.anonymous_composite import part_between
from tensor_graphs.language.composite import Definition
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node


def one_more(x: Node, others: list[Node], rng: np.random.Generator) -> Node:
    """A step on x at random, or on x and one of the others that is as large or smaller."""
    fits = [y for y in others if y.rank <= x.rank and all(a in (1, b) for a, b in zip(y.shape[::-1], x.shape[::-1], strict=False))]
    y = fits[int(rng.integers(len(fits)))]
    axis, turned = int(rng.integers(max(x.rank, 1))), tuple(int(i) for i in rng.permutation(x.rank))
    here = [i == axis for i in range(x.rank)]
    made: list[Callable[[], Node]] = [lambda: tg.tanh(x), lambda: x * y, lambda: tg.maximum(x, y) + 1.0]
    if x.rank:
        made += [lambda: x.permute(turned), lambda: tg.flip(x, axis), lambda: x.reshape(-1, int(x.shape[-1])),  # type: ignore[arg-type]
                 lambda: tg.pad(x, [(1, 2) if h else (0, 0) for h in here], 0.5), lambda: tg.cumsum(x, axis),
                 lambda: x - x.sum(axis=axis, keepdims=True), lambda: tg.reduce_max(x, axis=axis), lambda: tg.softmax(x, axis=axis),
                 lambda: x[tuple(slice(None, None, 2 if h else None) for h in here)], lambda: tg.concat(x, x * 2.0, axis=axis)]
    return made[int(rng.integers(len(made)))]()


def grown(seed: int) -> tuple[Graph, Definition, dict[str, np.ndarray]]:
    """A definition at random: element-wise steps, views, reductions and scans, values that are read again later."""
    rng = np.random.default_rng(seed)
    sizes = [int(n) for n in rng.choice([1, 2, 3, 8, 9, 17], 3)]
    nodes = [tg.input("x", sizes), tg.input("y", sizes), tg.input("z", sizes[1:])]
    for _ in range(int(rng.integers(2, 9))):
        nodes.append(one_more(nodes[int(rng.integers(max(0, len(nodes) - 3), len(nodes)))], nodes, rng))
    graph = tg.graph(nodes[-1] * 1.0)
    definition = part_between(list(graph.outputs.values()), list(graph.inputs.values())).written
    return graph, definition, {k: rng.uniform(-2, 2, x.type.at({}).shape).astype(np.float32) for k, x in graph.inputs.items()}


def programs(seed: int) -> tuple[list[StageProgram], list[np.ndarray]]:
    """The stages of a definition at random, as lowered and as arranged (none where stages do not say it), and its operands."""
    _, definition, values = grown(seed)
    try:
        return [lower(definition), arranged(lower(definition))], list(values.values())
    except NotLowered:
        return [], []
