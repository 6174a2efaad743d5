"""step: the loss, its gradients and an optimiser's updates as one graph over states.

Each trained parameter of the caller's graph becomes a state of its name. One that is narrower than f32 becomes a state of f32 (its
master copy), and the graph reads it rounded. The state COUNT is the number of batches so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.errors import listed
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language.autodiff import grad
from tensor_graphs.language.composites import greater_equal, uniform, where
from tensor_graphs.language.dtypes import DType, bf16, f16, f32, i32, u32
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, TensorType, apply, rebuild
from tensor_graphs.meaning.precision import Form, parse_form
from tensor_graphs.rewrites.passes.apply_precision import apply_form, check_sites, written_out
from tensor_graphs.training.optim import Moments, Optimiser, clipped_norm, clipped_value

COUNT, SEED = "train.batches", "train.seed"
"""states: the number of batches so far, i32; the seed of random numbers, u32[2]"""

Optimisers = Optimiser | Mapping[str, Optimiser | None]
"""One optimiser for all parameters, or patterns of names (as in fnmatch) -> an optimiser, None for frozen parameters."""


def dropout(x: Node, rate: float, site: int) -> Node:
    """Return x with each element set to zero with probability `rate`, and the others divided by 1 − rate. In a training step only.

    site: a number of its own for each call in a graph. The random numbers depend on the seed, the batch, the site and the element's
    index alone (Threefry), so that a run that goes on from a checkpoint draws the same. Raises ArgumentError.
    """
    if not 0 <= rate < 1:
        raise ArgumentError(f"rate is {rate}\n  fix: a probability of at least 0 and below 1")
    place = leaves.constant([site * 0x9E3779B9 % 2**32, 0], u32) + leaves.constant([0, 1], u32) * atomic.cast(_count(), u32)
    key = leaves.state(SEED, (2,), u32).read() + place
    return where(greater_equal(uniform(key, shape=x.shape), rate), x * (1 / (1 - rate)), 0.0)


def _count() -> Node:
    return leaves.state(COUNT, (), i32).read()


@dataclass(frozen=True)
class StepGraphs:
    """update: the graph of a step. gather: the graph that only adds a batch's gradients to sums, None where each batch is a step.
    trained: parameter -> its type in the caller's graph. frozen: parameters that stay parameters. initial: first values of moments
    other than zero. batches: batches for each step."""

    update: Graph
    gather: Graph | None
    trained: Mapping[str, TensorType]
    frozen: tuple[str, ...]
    initial: Mapping[str, float]
    batches: int


def optimiser_of(name: str, optimisers: Optimisers) -> Optimiser | None:
    """Return a parameter's optimiser, of the first pattern that its name fits; None: it is frozen. Raises ArgumentError."""
    if not isinstance(optimisers, Mapping):
        return optimisers
    for pattern, optimiser in optimisers.items():
        if fnmatchcase(name, pattern):
            return optimiser
    raise ArgumentError(f"no pattern of the optimisers fits the parameter {name!r}\n"
                        "  fix: a last pattern \"*\", with an optimiser, or None for parameters that are not trained")


def over_states(program: Graph, trained: Mapping[str, TensorType]) -> Graph:
    """Return a graph in which the trained parameters are states: f32, rounded where they are read if they were narrower."""
    def replace(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        if node.op is not leaves.PARAMETER or node.attrs["name"] not in trained:
            return None
        read = leaves.state(node.attrs["name"], node.shape, _master(node.type)).read()
        return read if read.dtype == node.dtype else atomic.cast(read, node.dtype)

    return program.with_roots(rebuild(program.roots, replace))


def _master(t: TensorType) -> DType:
    return f32 if t.dtype.itemsize < f32.itemsize else t.dtype


def in_precision(graph: Graph, precision: str | Form | None) -> Graph:
    """Return a graph over states in a precision. "bf16": operands and results of products are rounded to bf16, as under
    torch.autocast, and all else is as written. Else words of sites (meaning/precision.py).

    Raises ArgumentError for an unknown site, for a word of a state, which is a master copy, and for f16: gradients below its
    smallest number, 6e-8, become 0, and nothing scales the loss.
    """
    if precision == bf16.name:
        return graph.with_roots(rebuild(written_out(graph).roots, _bf16_product))
    form = parse_form(precision)
    if isinstance(precision, str) and "=" not in precision:
        form.pop("state", None)
    for site, word in form.items():
        if word == f16.name:
            raise ArgumentError(f"precision of {site} is f16 in a training step: gradients below 6e-8 become 0\n"
                                "  fix: bf16, which has the range of f32")
        if site.partition(":")[0] == "state":
            raise ArgumentError(f"precision names {site!r}: states of a training step are master copies\n"
                                "  fix: words of product, between or weight")
    check_sites(form, graph)
    return apply_form(graph, form).graph


def _bf16_product(node: Node, inputs: tuple[Node, ...]) -> Node | None:
    if not node.op.facts.product or node.dtype is not f32:
        return None
    return atomic.cast(apply(node.op, [atomic.cast(x, bf16) if x.dtype is f32 else x for x in inputs], node.attrs), f32)


def step_graphs(program: Graph, optimisers: Optimisers, *, loss: str = "loss", clip_norm: float | None = None,
                clip_value: float | None = None, batches: int = 1, precision: str | Form | None = None) -> StepGraphs:
    """Return the graphs of a training step: all outputs of the program, and new values of its trained parameters.

    loss: the output that becomes small, a scalar. clip_norm, clip_value: largest norm of all gradients together, largest size of an
    element. batches: a step follows the mean gradient of that many. precision: of outputs and gradients (`in_precision`); the
    optimiser computes as written. Raises ArgumentError, and what `grad` raises.
    """
    if loss not in program.outputs:
        raise ArgumentError(f"the graph has no output {loss!r}\n  fix: loss= one of {listed(program.outputs)}")
    chosen = {name: optimiser_of(name, optimisers) for name in program.parameters}
    trained = {name: program.parameters[name].type for name, optimiser in chosen.items() if optimiser is not None}
    if not trained:
        raise ArgumentError("no parameter is trained\n  fix: an optimiser for some of " + (listed(program.parameters) or "none"))
    graph_over_states, slopes = _with_slopes(over_states(program, trained), loss, list(trained), precision)
    values = [graph_over_states.states[name] for name in trained]
    count = _count() + 1
    updates = dict(graph_over_states.updates) | {COUNT: count}
    gather = None
    if batches > 1:
        sums = [leaves.state(f"train.sum.{name}", v.shape, v.dtype) for name, v in zip(trained, values, strict=True)]
        totals = [s.read() + slope for s, slope in zip(sums, slopes, strict=True)]
        gather = Graph(graph_over_states.outputs, updates | dict(zip((s.name for s in sums), totals, strict=True)))
        slopes = [total * (1 / batches) for total in totals]
        updates |= {s.name: atomic.fill(0, s.node.shape, s.node.dtype) for s in sums}
    if clip_value is not None:
        slopes = clipped_value(slopes, clip_value)
    if clip_norm is not None:
        slopes = clipped_norm(slopes, clip_norm)
    step = count if batches == 1 else count // batches
    new, initial = _updated(trained, values, slopes, chosen, step)
    return StepGraphs(Graph(graph_over_states.outputs, updates | new), gather, trained,
                      tuple(name for name in program.parameters if name not in trained), initial, batches)


def _with_slopes(graph: Graph, loss: str, trained: Sequence[str], precision: str | Form | None) -> tuple[Graph, Sequence[Node]]:
    """Return the graph and the gradients of its trained states, both in a precision."""
    slopes = grad(graph.outputs[loss], [graph.states[name] for name in trained])
    if precision is None:
        return graph, slopes
    names = [f"train.slope.{name}" for name in trained]
    both = in_precision(Graph({**graph.outputs, **dict(zip(names, slopes, strict=True))}, graph.updates), precision)
    return Graph({name: both.outputs[name] for name in graph.outputs}, both.updates), [both.outputs[name] for name in names]


def _updated(names: Mapping[str, object], values: Sequence[Node], slopes: Sequence[Node], chosen: Mapping[str, Optimiser | None],
             step: Node) -> tuple[dict[str, Node], dict[str, float]]:
    """Return the new values of parameters and moments, and the moments' first values."""
    new: dict[str, Node] = {}
    initial: dict[str, float] = {}
    for name, value, slope in zip(names, values, slopes, strict=True):
        moments, optimiser = Moments(name, value), chosen[name]
        assert optimiser is not None
        new[name] = optimiser.update(value, slope, atomic.cast(step, value.dtype), moments)
        new |= moments.updates
        initial |= moments.initial
    return new, initial
