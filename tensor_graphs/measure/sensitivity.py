"""sensitivity: predicts how much each word of a form adds to the error of a graph's outputs, from a few backward passes.

A cotangent v of an output is drawn so that E(v · δ)² is the squared error of a small change δ of that output. Let g be the gradient
of v · output with respect to a value inside the graph. A change Δ of that value, independent from element to element, then causes
the squared error Σ g² Δ². A[site, word] is the mean of this sum over several cotangents, for the Δ that the word causes at the
site. The squared error of a form is about the sum of A over its sites. Rounding a value x with unit roundoff u counts as
Δ² = (0.42 u x)² (ROUNDED), a weight in blocks as Δ² = e² x², where e² = ‖W′ − W‖² / ‖W‖² is measured on some of its rows. If
the mean squares of what a product multiplies columns by are known (`column_squares`), W′ has least error with them as importance,
and both norms are weighted by them.

Metrics: norm (v normal, divided by the norm of the row), kl (v = ∇ log p(c), c drawn from p = softmax(row); by the Fisher
information E(v · δ)² = 2 KL), cosine (v normal, orthogonal to the row and divided by its norm: E(v · δ)² = 2 (1 − cosine)).

The sum is too low where changes are correlated. A site whose values reach the outputs only through a comparison of floats has
gradient 0, and its error is not seen. Predictions therefore only decide in which order forms are measured.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tensor_graphs.costs.predicted_error import unit_roundoff
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language.autodiff import vjp
from tensor_graphs.language.composites.blocks import dequantize, dequantized
from tensor_graphs.language.composites.products import linear
from tensor_graphs.language.composites.quantise import format_of_rows, quantized
from tensor_graphs.language.composites.rounded import LEVELS, PART, SIGNIFICANDS, rounded
from tensor_graphs.language.dtypes import DType, f32
from tensor_graphs.language.errors import LanguageError
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node, apply, rebuild
from tensor_graphs.meaning.precision import BLOCKS, FORMATS, KINDS, WORDS, WRITTEN, SiteKind, loses, unit_of_word
from tensor_graphs.measure.points.single_op_plans import plain_plan
from tensor_graphs.paths.path import NoPathError
from tensor_graphs.rewrites.passes.apply_precision import (
    PrecisionSite,
    apply_form,
    cast_through,
    is_narrower,
    parameter_of,
    sites,
    weight_name,
    written_out,
)
from tensor_graphs.runtime.compiled_graph import bind

Metric = Literal["norm", "kl", "cosine"]

COTANGENTS = 4
"""backward passes per output and metric"""

ROUNDED = 0.42 ** 2
"""mean square of the rounding error of x, relative to (u x)². The error is uniform between ± u |x| / s, so that its mean square is
1/3 of the largest one; the average is over s, which is |x| divided by the power of two below it, 1 to 2"""

SAMPLED = 64
"""rows of a weight on which the error of a format of blocks is measured"""

LANES = 64
"""approximate number of partial sums in which a matrix product adds up its terms, on a processor with vectors of 16 numbers"""

Sensitivities = dict[tuple[str, str], dict[tuple[str, Metric], float]]
"""(site, word) -> (output, metric) -> what it adds to the squared error (for kl to the divergence, for cosine to 1 − cosine)"""


@dataclass(frozen=True)
class _SquaredChange:
    """Mean square of the change of a node by a word, element by element: `scale` times the values of the node `square`; if that is
    None, `scale` times the square of the node's own values."""

    node: Node
    square: Node | None
    scale: float


def words_of(site: PrecisionSite) -> list[str]:
    """Return `written` and the words that may change something at a site. A product's own narrow dtype is one of them, because its
    operands may be stored in wider ones."""
    if site.kind == "weight":
        blocks = [word for word, name in BLOCKS.items() if format_of_rows(name, site.nodes[0].shape[-1]) == name]
        return [WRITTEN, *(name for name, dtype in WORDS.items() if is_narrower(dtype, site.dtype)), *blocks]
    if site.kind == "product":
        widest = f32 if is_narrower(site.dtype, f32) else site.dtype
        formats = [word for word in FORMATS if (word in LEVELS and site.nodes[0].op is linear) or (
            word not in LEVELS and (site.dtype is f32 or (word not in SIGNIFICANDS and loses(word, site.dtype))))]
        return [WRITTEN, *(name for name, dtype in WORDS.items() if is_narrower(dtype, widest)), *formats]
    return [WRITTEN, *(name for name, dtype in WORDS.items() if dtype != site.dtype)]


@np.errstate(over="ignore", invalid="ignore")                        # what overflows has no finite error, and is never chosen
def sensitivities(graph: Graph, weights: Mapping[str, Any], inputs: Mapping[str, np.ndarray], sizes: Mapping[str, int],
                  metrics: Sequence[tuple[str, Metric]], seed: int = 0, kinds: Collection[SiteKind] = KINDS,
                  importance: Mapping[str, np.ndarray] | None = None) -> Sensitivities:
    """Return what each word of each site is predicted to add to the squared error of some outputs, in one run from empty states.

    inputs, sizes: of that run. metrics: (output, metric) pairs. kinds: of the sites. importance: parameter -> its `column_squares`,
    by which its words of blocks quantise. Values with fewer bits than float32 are evaluated in float32. Where
    a value or a gradient is not finite, what they add is infinite.
    Raises GraphError where an op has no gradient, and NoPathError where numpy does not compute the graph or its gradient."""
    written = written_out(graph)
    places = [site for site in sites(written) if site.kind in kinds]
    is_narrow = any(is_narrower(t.dtype, f32) for node in written.nodes for t in node.types)
    widened = apply_form(written, {"between": "f32", "state": "f32"}) if is_narrow else None
    images = {} if widened is None else widened.images
    changes = {(site.key, word): list(_changes(site, word, images, weights, importance or {}))
               for site in places for word in words_of(site)}
    nodes = list(dict.fromkeys(change.node for of_word in changes.values() for change in of_word))
    squares = list(dict.fromkeys(c.square for of_word in changes.values() for c in of_word if c.square is not None))
    outputs = {name: (written if widened is None else widened.graph).outputs[name] for name, _ in metrics}
    values = _evaluated({**{f"output {n}": y for n, y in outputs.items()}, **{f"node {i}": x for i, x in enumerate(nodes)},
                         **{f"square {i}": x for i, x in enumerate(squares)}}, weights, inputs, sizes)
    squares_of = {(c.node, c.square): np.square(values[f"node {nodes.index(c.node)}"], dtype=np.float64) if c.square is None else
                  values[f"square {squares.index(c.square)}"] for of_word in changes.values() for c in of_word}
    of_products = {x: values[f"node {i}"] for i, x in enumerate(nodes) if x.op.facts.product}
    contributions: Sensitivities = {key: {} for key in changes}
    for name, metric in metrics:
        sums = _sums(outputs[name], values[f"output {name}"], metric, squares_of, of_products, weights, inputs, sizes, seed)
        for key, of_word in changes.items():
            total = sum(c.scale * sums[c.node, c.square] for c in of_word)
            contributions[key][name, metric] = math.inf if math.isnan(total) else total
    return contributions


def column_squares(graph: Graph, weights: Mapping[str, Any], runs: Sequence[tuple[Mapping[str, np.ndarray], Mapping[str, int]]],
                   ) -> dict[str, np.ndarray]:
    """Return, for each parameter that `linear` reads, the mean square f32[k] of what each of its columns is multiplied by. runs:
    inputs and sizes of runs from empty states. Raises NoPathError where numpy does not compute the graph."""
    operands = {weight_name(site.nodes[0]): reader.inputs[0] for site in sites(written_out(graph)) if site.kind == "weight"
                for reader in site.readers if reader.op is linear and parameter_of(reader.inputs[1]) is site.nodes[0]}
    run = _runner(make_graph({f"x{i}": x for i, x in enumerate(dict.fromkeys(operands.values()))}), weights)
    sums: dict[Node, np.ndarray] = {}
    for inputs, sizes in runs:
        for x, values in zip(dict.fromkeys(operands.values()), run(inputs, sizes).values(), strict=True):
            flat = values.reshape(-1, values.shape[-1])
            sums[x] = sums.get(x, 0.0) + np.square(flat, dtype=np.float64).sum(0) / len(flat) / len(runs)
    return {name: sums[x].astype(np.float32) for name, x in operands.items()}


def _changes(site: PrecisionSite, word: str, images: Mapping[Node, Node], weights: Mapping[str, Any],
             importance: Mapping[str, np.ndarray]) -> Iterator[_SquaredChange]:
    """Yield the changes by a word at the nodes of a site. images: node as written -> the node that is evaluated, in float32."""
    for written in site.nodes:
        dtype = WORDS.get(word)
        if word in BLOCKS:
            columns = importance.get(weight_name(written))
            for reader in (images.get(r, r) for r in site.readers):
                change = error_of_blocks(weights[weight_name(written)], written, BLOCKS[word], columns, reader.op is linear)
                yield _SquaredChange(reader, _of_squares(reader) if reader.op is linear else None, change)
            continue
        node = images.get(written, written)
        if site.kind == "product" and word != WRITTEN:
            yield from _rounded_product(node, word)
        elif site.kind == "weight" and dtype is not None:
            for reader in site.readers:
                reading = images.get(reader, reader)
                if reading.op is linear:
                    yield _SquaredChange(reading, _of_squares(reading), ROUNDED * (dtype.epsilon / 2) ** 2)
                elif reading.op.facts.product:
                    yield from _replaced(reading, [_narrowed(x, written, dtype) for x in reading.inputs])
                else:                                               # it reads rows
                    yield _SquaredChange(reading, None, ROUNDED * (dtype.epsilon / 2) ** 2)
        elif site.kind in ("between", "state") and len(written.types) == 1 and written.dtype.is_float:
            if site.kind == "state" or unit_roundoff(written):
                stored = dtype or written.dtype
                yield _SquaredChange(node, None, ROUNDED * ((stored.epsilon / 2) ** 2 + _summed(node, stored) ** 2))


def error_of_blocks(array: Any, weight: Node, format: str, importance: np.ndarray | None = None, is_weighted: bool = True) -> float:
    """Return ‖W′ − W‖² / ‖W‖² of a parameter's numbers W, which are stored in a format as W′, on SAMPLED rows. array: its value.
    importance: of each column, with which W′ is quantised; is_weighted: the norms are weighted by it too."""
    rows = np.asarray(array).reshape(-1, np.shape(array)[-1])
    rows = rows[np.linspace(0, len(rows) - 1, min(SAMPLED, len(rows))).astype(int)]
    values = dequantized(rows, weight.attrs["format"]) if weight.op is dequantize else rows.astype(np.float32)
    difference = dequantized(quantized(values, format, importance), format) - values
    by = 1.0 if importance is None or not is_weighted else importance.astype(np.float64)
    change, size = (float(np.sum(np.square(x, dtype=np.float64) * by)) for x in (difference, values))
    return change / max(size, 1e-300)


def _rounded_product(node: Node, word: str) -> Iterator[_SquaredChange]:
    """Yield the change of a product whose operands are rounded to a word."""
    if word in LEVELS:                                              # whose change is relative to the largest number of a part
        x, dtype = node.inputs[0], node.inputs[0].dtype
        near = atomic.cast(rounded(atomic.cast(x, f32), to=word), dtype) if x.shape[-1] % PART == 0 else x
        yield from _replaced(node, [near, *node.inputs[1:]])
    elif node.op is linear:
        roundings = sum(loses(word, x.dtype) for x in node.inputs[:2])
        yield _SquaredChange(node, _of_squares(node), roundings * ROUNDED * unit_of_word(word) ** 2)
    else:
        yield from _replaced(node, [_rounded(x, word) if x.rank > 1 and x.dtype.is_float else x for x in node.inputs])


def _rounded(x: Node, word: str) -> Node:
    if word in WORDS:
        return cast_through(x, WORDS[word])
    return rounded(x, to=word) if x.dtype is f32 and word in SIGNIFICANDS else x


def _of_squares(node: Node) -> Node:
    """Return the node Σ x² w² for a product Σ x w. Independent relative errors of one operand, with the mean square e², change the
    product by e² Σ x² w² in the mean square."""
    x, weight = (atomic.cast(operand, node.dtype) for operand in node.inputs[:2])
    return linear(x * x, weight * weight)


def _summed(node: Node, stored: DType) -> float:
    """Return the error of adding up a product's terms, as the unit of one rounding of its result that would be as large. Terms are
    added in float32 or wider, in LANES chains with a rounding for each term; the partial sums are taken to grow like a random
    walk."""
    if not node.op.facts.product or not isinstance(node.inputs[0].shape[-1], int):
        return 0.0
    dtype = stored if is_narrower(f32, stored) else f32
    return dtype.epsilon / 2 * math.sqrt(node.inputs[0].shape[-1] / (2 * LANES))


def _replaced(node: Node, operands: Sequence[Node]) -> Iterator[_SquaredChange]:
    """Yield the change of a node by other operands, the squared difference of its values; none if the op does not take them."""
    try:
        replaced = apply(node.op, operands, node.attrs)
    except LanguageError:
        return
    if replaced is not node and len(node.types) == 1:
        difference = atomic.cast(replaced, node.dtype) - node
        yield _SquaredChange(node, difference * difference, 1.0)


def _narrowed(x: Node, weight: Node, dtype: DType) -> Node:
    """Return an operand with the weight of which it is a view rounded to a dtype; an operand that is no view of it unchanged."""
    if parameter_of(x) is not weight:
        return x
    return cast_through(x, dtype) if x is weight else apply(x.op, [_narrowed(x.inputs[0], weight, dtype)], x.attrs)


def _sums(output: Node, value: np.ndarray, metric: Metric, squares: Mapping[tuple[Node, Node | None], np.ndarray],
          products: Mapping[Node, np.ndarray], weights: Mapping[str, Any], inputs: Mapping[str, np.ndarray],
          sizes: Mapping[str, int], seed: int) -> dict[tuple[Node, Node | None], float]:
    """Return Σ g² Δ² for each change, the mean over cotangents, divided by the number of rows of the output (for kl and cosine by
    twice that number: see the module). squares: Δ² by (node, node of the squares), up to a factor. products: values of
    nodes, from which the gradients are computed."""
    cotangent = leaves.input("cotangent", output.shape, output.dtype)
    nodes = list(dict.fromkeys(node for node, _ in squares))
    leaf_of = {x: leaves.input(f"value{i}", x.shape, x.dtype) for i, x in enumerate(products)}
    gradients = rebuild(vjp([output], [cotangent], nodes), lambda x, operands: leaf_of.get(x))
    run = _runner(make_graph({f"g{i}": g for i, g in enumerate(gradients)}), weights)
    inputs = {**inputs, **{f"value{i}": values for i, values in enumerate(products.values())}}
    filled = {key: _filled(square) for key, square in squares.items()}
    rng, row_count = np.random.default_rng(seed), max(1, value.size // max(1, value.shape[-1] if value.ndim else 1))
    sums, factor = dict.fromkeys(squares, 0.0), 1.0 / (COTANGENTS * row_count * (2.0 if metric in ("kl", "cosine") else 1.0))
    for _ in range(COTANGENTS):
        v = _cotangent(value.astype(np.float64), metric, rng).astype(output.dtype.numpy)
        of_run = run({**inputs, "cotangent": v}, sizes)
        for i, node in enumerate(nodes):
            gradient = of_run[f"g{i}"]
            for key in squares:
                if key[0] is node:
                    rows = filled[key]
                    sums[key] += factor * float(np.vdot(np.square(gradient[rows], dtype=np.float64), squares[key][rows]))
    return sums


def _filled(square: np.ndarray) -> Any:
    """Return the slice of rows after which all numbers are 0, as in a state with room for more positions."""
    if not square.ndim:
        return ...
    rows = np.flatnonzero(square.reshape(len(square), -1).any(-1))
    return slice(0, int(rows[-1]) + 1 if rows.size else 0)


def _cotangent(rows: np.ndarray, metric: Metric, rng: np.random.Generator) -> np.ndarray:
    """Return a random cotangent v of an output, for which E(v · δ)² is the squared error by a change δ of each row (see the
    module). rows: the output's value."""
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
    """Return a function (inputs, sizes) -> outputs of a graph. It runs numpy's kernels, from empty states each time."""
    plan = plain_plan(graph)
    if plan is None:
        raise NoPathError("no kernels of numpy compute the graph, or its gradient")
    model = bind(plan, {name: weights[name] for name in graph.parameters})

    def run(inputs: Mapping[str, np.ndarray], sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
        dims = {name: size for name, size in sizes.items() if name in graph.dims}
        outputs = model.run({name: inputs[name] for name in graph.inputs}, dims=dims, session=model.session())
        return {name: np.asarray(value) for name, value in outputs.items()}     # some may be on a GPU
    return run
