"""sensitivity: predicts how much each word of a form adds to the error of a graph's outputs, from a few backward passes.

For cotangents v at an output, drawn so that E(v · δ)² is the squared error of a small change δ, the gradient g at a value of the
graph gives the error of an independent change Δ of that value: Σ g² Δ². So the squared error of a form is about the sum over its
sites of A[site, word] = mean over v of Σ g² Δ². Rounding a value
v to a dtype counts as (0.42 u)² v², the mean square of an error that is uniform between ±u v / (1 … 2).

Statistics: norm (v normal, divided by the row's norm), kl (v = ∇ log p(c), c drawn from p = softmax(row): the Fisher form, E(v ·
δ)² = 2 KL), cosine (v normal, orthogonal to the row and divided by its norm: E(v · δ)² = 2 (1 − cosine)).

The sum assumes independent changes. It is too low where they are correlated, and says nothing where a comparison of computed floats
lies behind a site; so it only orders what is measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tensor_graphs.costs.predicted_error import unit_roundoff
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language.autodiff import vjp
from tensor_graphs.language.composites.products import linear
from tensor_graphs.language.dtypes import DType, f32
from tensor_graphs.language.errors import LanguageError
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node, apply
from tensor_graphs.meaning.precision import WORDS, WRITTEN
from tensor_graphs.measure.points.single_op_plans import plain_plan
from tensor_graphs.paths.path import NoPathError
from tensor_graphs.rewrites.passes.apply_precision import (
    PrecisionSite,
    apply_form,
    is_narrower,
    parameter_of,
    rounded,
    sites,
    written_out,
)
from tensor_graphs.runtime.compiled_graph import bind

Metric = Literal["norm", "kl", "cosine"]

COTANGENTS = 4
"""backward passes per output and metric"""

ROUNDED = 0.42 ** 2
"""mean square of a rounding error, relative to the square of its largest size: 1/3 of an error that is uniform up to u |v| / s,
with s between 1 and 2 as v lies between two powers of two"""

LANES = 64
"""partial sums of a matrix product on a processor with 16 lanes, about"""

Sensitivities = dict[tuple[str, str], dict[tuple[str, Metric], float]]
"""(site, word) -> (output, metric) -> its share of the squared error (of the divergence, of 1 − cosine)"""


@dataclass(frozen=True)
class _WordChange:
    """Change of a node's value by a word: `scale` times the values of `square`, element by element; None: times the squared node."""

    node: Node
    square: Node | None
    scale: float


def words_of(site: PrecisionSite) -> list[str]:
    """Return the words that may change something at a site, and `written`. A product's own narrow dtype is one, as its operands may
    be kept in wider ones."""
    if site.kind == "weight":
        return [WRITTEN, *(name for name, dtype in WORDS.items() if is_narrower(dtype, site.dtype))]
    if site.kind == "product":
        widest = f32 if is_narrower(site.dtype, f32) else site.dtype
        return [WRITTEN, *(name for name, dtype in WORDS.items() if is_narrower(dtype, widest))]
    return [WRITTEN, *(name for name, dtype in WORDS.items() if dtype != site.dtype)]


def sensitivities(graph: Graph, weights: Mapping[str, Any], inputs: Mapping[str, np.ndarray], sizes: Mapping[str, int],
                  metrics: Sequence[tuple[str, Metric]], seed: int = 0) -> Sensitivities:
    """Return the predicted share of each word of each site in the squared error of some outputs, for one run from empty states.

    inputs, sizes: of that run. metrics: (output, metric) pairs. The graph is evaluated in float32 where it is written in fewer
    bits. Raises GraphError where an op has no gradient, and NoPathError where numpy does not compute the graph or its gradient."""
    written = written_out(graph)
    places = sites(written)
    is_narrow = any(is_narrower(t.dtype, f32) for node in written.nodes for t in node.types)
    base = apply_form(written, {"between": "f32", "state": "f32"}) if is_narrow else None
    images = {} if base is None else base.images
    changes = {(site.key, word): list(_changes(site, word, images)) for site in places for word in words_of(site)}
    nodes = list(dict.fromkeys(change.node for of_word in changes.values() for change in of_word))
    squares = list(dict.fromkeys(c.square for of_word in changes.values() for c in of_word if c.square is not None))
    outputs = {name: (written if base is None else base.graph).outputs[name] for name, _ in metrics}
    values = _evaluated({**{f"output {n}": y for n, y in outputs.items()}, **{f"node {i}": x for i, x in enumerate(nodes)},
                         **{f"square {i}": x for i, x in enumerate(squares)}}, weights, inputs, sizes)
    of_node = {x: np.square(values[f"node {i}"], dtype=np.float64) for i, x in enumerate(nodes)}
    of_square = {x: values[f"square {i}"] for i, x in enumerate(squares)}
    shares: Sensitivities = {key: {} for key in changes}
    for name, metric in metrics:
        mean_g2 = _mean_squared_gradients(outputs[name], values[f"output {name}"], metric, nodes, weights, inputs, sizes, seed)
        sums: dict[tuple[Node, Node | None], float] = {}            # words of a site often differ in their scale alone
        for key, of_word in changes.items():
            for c in of_word:
                if (c.node, c.square) not in sums:
                    square = of_node[c.node] if c.square is None else of_square[c.square]
                    sums[c.node, c.square] = float(np.vdot(mean_g2[c.node], square))
            shares[key][name, metric] = sum(c.scale * sums[c.node, c.square] for c in of_word)
    return shares


def _changes(site: PrecisionSite, word: str, images: Mapping[Node, Node]) -> Iterator[_WordChange]:
    """Yield what a word changes at the nodes of a site. images: node as written -> node in float32."""
    for written in site.nodes:
        dtype = None if word == WRITTEN else WORDS[word]
        node = images.get(written, written)
        if site.kind == "product" and dtype is not None:
            yield from _rounded_product(node, dtype)
        elif site.kind == "weight" and dtype is not None:
            for reader in site.readers:
                now = images.get(reader, reader)
                if now.op is linear:
                    yield _WordChange(now, _of_squares(now), ROUNDED * (dtype.epsilon / 2) ** 2)
                elif now.op.facts.product:
                    yield from _replaced(now, [_narrowed(x, written, dtype) for x in now.inputs])
                else:                                               # it reads rows
                    yield _WordChange(now, None, ROUNDED * (dtype.epsilon / 2) ** 2)
        elif site.kind in ("between", "state") and len(written.types) == 1 and written.dtype.is_float:
            if site.kind == "state" or unit_roundoff(written):
                stored = dtype or written.dtype
                yield _WordChange(node, None, ROUNDED * ((stored.epsilon / 2) ** 2 + _summed(node, stored) ** 2))


def _rounded_product(node: Node, dtype: DType) -> Iterator[_WordChange]:
    """Yield the change of a product by operands that are rounded to a dtype."""
    if node.op is linear:
        changed = sum(is_narrower(dtype, x.dtype) for x in node.inputs[:2])
        yield _WordChange(node, _of_squares(node), changed * ROUNDED * (dtype.epsilon / 2) ** 2)
    else:
        yield from _replaced(node, [rounded(x, dtype) if x.rank > 1 and x.dtype.is_float else x for x in node.inputs])


def _of_squares(node: Node) -> Node:
    """Return Σ x² w² for a product Σ x w: what independent relative errors of one operand change its square by."""
    x, weight = (atomic.cast(operand, node.dtype) for operand in node.inputs[:2])
    return linear(x * x, weight * weight)


def _summed(node: Node, stored: DType) -> float:
    """Return the error of adding up a product's terms, in float32 at least, as the size of one rounding of its result: partial sums
    of LANES chains, each rounded once per term, grow like the result of a random walk."""
    if not node.op.facts.product or not isinstance(node.inputs[0].shape[-1], int):
        return 0.0
    added = stored if is_narrower(f32, stored) else f32
    return added.epsilon / 2 * math.sqrt(node.inputs[0].shape[-1] / (2 * LANES))


def _replaced(node: Node, operands: Sequence[Node]) -> Iterator[_WordChange]:
    """Yield the change of a node by other operands, in float32."""
    try:
        other = apply(node.op, operands, node.attrs)
    except LanguageError:
        return
    if other is not node and len(node.types) == 1:
        change = atomic.cast(other, node.dtype) - node
        yield _WordChange(node, change * change, 1.0)


def _narrowed(x: Node, weight: Node, dtype: DType) -> Node:
    """Return an operand with a weight rounded to a dtype in it."""
    if parameter_of(x) is not weight:
        return x
    return rounded(x, dtype) if x is weight else apply(x.op, [_narrowed(x.inputs[0], weight, dtype)], x.attrs)


def _mean_squared_gradients(output: Node, value: np.ndarray, metric: Metric, nodes: Sequence[Node], weights: Mapping[str, Any],
                            inputs: Mapping[str, np.ndarray], sizes: Mapping[str, int], seed: int) -> dict[Node, np.ndarray]:
    """Return the mean over cotangents of the squared gradient at each node, per row of the output."""
    cotangent = leaves.input("cotangent", output.shape, output.dtype)
    gradients = vjp([output], [cotangent], nodes)
    graph = make_graph({f"g{i}": g for i, g in enumerate(gradients)})
    rng, rows = np.random.default_rng(seed), max(1, value.size // max(1, value.shape[-1] if value.ndim else 1))
    total = {x: np.zeros(()) for x in nodes}
    run = _runner(graph, weights)
    for _ in range(COTANGENTS):
        v = _cotangent(value.astype(np.float64), metric, rng).astype(output.dtype.numpy)
        for i, g in run({**inputs, "cotangent": v}, sizes).items():
            total[nodes[int(i[1:])]] = total[nodes[int(i[1:])]] + np.square(g, dtype=np.float64)
    half = 2.0 if metric in ("kl", "cosine") else 1.0
    return {x: of_x / (COTANGENTS * rows * half) for x, of_x in total.items()}


def _cotangent(rows: np.ndarray, metric: Metric, rng: np.random.Generator) -> np.ndarray:
    """Return a cotangent of an output's value for which E(v · δ)² is the squared error of a change δ of each row."""
    if metric == "kl":
        p = np.exp(rows - rows.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        drawn = (np.cumsum(p, -1) > rng.random((*rows.shape[:-1], 1))).argmax(-1)
        p = -p
        np.put_along_axis(p, drawn[..., None], np.take_along_axis(p, drawn[..., None], -1) + 1.0, -1)
        return p
    norms = np.sqrt(np.sum(np.square(rows), -1, keepdims=True)) if rows.ndim else np.abs(rows)
    unit = rows / np.where(norms > 0, norms, 1.0)
    v = rng.standard_normal(rows.shape)
    if metric == "cosine":
        v -= unit * np.sum(unit * v, -1, keepdims=True)
    return v / np.where(norms > 0, norms, 1.0)


def _evaluated(nodes: Mapping[str, Node], weights: Mapping[str, Any], inputs: Mapping[str, np.ndarray],
               sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    names = {f"y{i}": name for i, name in enumerate(nodes)}
    graph = make_graph({f"y{i}": node for i, node in enumerate(nodes.values())})
    return {names[y]: value for y, value in _runner(graph, weights)(inputs, sizes).items()}


def _runner(graph: Graph, weights: Mapping[str, Any]) -> Any:
    """Return a function from inputs and sizes to the outputs of a graph, by numpy's kernels, from empty states."""
    plan = plain_plan(graph)
    if plan is None:
        raise NoPathError("no kernels of numpy compute the graph, or its gradient")
    model = bind(plan, {name: weights[name] for name in graph.parameters})

    def run(inputs: Mapping[str, np.ndarray], sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
        dims = {name: size for name, size in sizes.items() if name in graph.dims}
        return model.run({name: inputs[name] for name in graph.inputs}, dims=dims, session=model.session())
    return run
