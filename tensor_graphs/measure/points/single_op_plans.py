"""single_op_plans: builds plans of one op: run by one kernel, also on strided operands, or by the plain path (the baseline).

Kernels are compared and timed through the lowering and the executor by which they will be deployed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from tensor_graphs.kernels.kernel import ALL_STEPS, Kernel, KernelError
from tensor_graphs.kernels.registry import NUMPY_COPY, by_op, copy_kernels, load_backend, matching
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.atomic import expand, permute, reshape
from tensor_graphs.language.atomic import slice as cut
from tensor_graphs.language.composite import expand_all
from tensor_graphs.language.dim_proofs import dim_ge
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node, apply, is_step, rebuild, walk
from tensor_graphs.meaning.accuracy import Accuracy
from tensor_graphs.measure.isolation import reused_arrays
from tensor_graphs.measure.points.inputs import Form
from tensor_graphs.paths.lower import intervals_of, lower
from tensor_graphs.paths.memory import place
from tensor_graphs.paths.path import Path
from tensor_graphs.paths.plan import Plan, Variant
from tensor_graphs.paths.size_cells import Cell


def prepared_names(graph: Graph, kernel: Kernel) -> tuple[str, ...]:
    """Return the inputs of a graph of one op from which this kernel prepares something; these are parameters in a deployed plan.
    Raises KernelError where the kernel's declaration names no operands."""
    if kernel.prepare is None:
        return ()
    (node,) = [n for n in graph.nodes if n.op.kind in ("atomic", "composite")]
    names = {x: name for name, x in graph.inputs.items()}
    declared = kernel.prepare(signature_of(node).spec)
    try:
        return tuple(names[node.inputs[i]] for p in declared for i in p.operands)
    except Exception as e:                                          # of what anyone's code has returned
        raise KernelError(f"{kernel.name} prepares {declared!r}, which reads no operands of {node.op.name}\n"
                          "  fix: a tuple of Preparation, whose operands are numbers of the op's") from e


def with_parameters(graph: Graph, names: Sequence[str]) -> Graph:
    """Return the graph with these inputs turned into parameters."""
    swapped = {x: leaves.parameter(name, x.shape, x.dtype) for name, x in graph.inputs.items() if name in names}
    return graph.with_roots(rebuild(graph.roots, lambda node, inputs: swapped.get(node)))


def single_kernel_plan(graph: Graph, kernel: Kernel) -> Plan:
    """Return a plan of the graph in which this kernel runs every node that needs a kernel."""
    return plan_along(graph, graph.roots, lambda node: kernel, copy_kernels((kernel.backend,)), (kernel.backend,))


def views_graph(graph: Graph, form: Form = "views", axis: int = 0, left: Collection[str] = ()) -> Graph:
    """Return the op on operands that are windows of the graph's inputs, as a plan passes them; inputs in `left` are passed
    unchanged. form: as in `inputs.Form` (views of a vector: reversed). Inputs keep their names; `as_stored` creates the arrays."""
    (node,) = [n for n in graph.nodes if n.op.kind in ("atomic", "composite")]
    numbers = _numbers(graph)
    by_input = {i: i if name in left else _window(name, i, form, axis, numbers[name]) for name, i in graph.inputs.items()}
    again = apply(node.op, [by_input[i] for i in node.inputs], node.attrs)
    return make_graph({name: leaves.item(again, k) for k, name in enumerate(graph.outputs)})


def _window(name: str, x: Node, form: Form, axis: int, number: int) -> Node:
    shape, rank = x.shape, len(x.shape)

    def stored(*sizes: Dim) -> Node:
        return leaves.input(name, sizes, x.dtype)

    if form == "views" and rank > 1:
        return permute(stored(*reversed(shape)), tuple(reversed(range(rank))))
    if form == "windows" and rank:
        return cut(stored(*(s + before + 2 for s, before in zip(shape, _before(rank), strict=True))),
                   [(before, before + s, 1) for s, before in zip(shape, _before(rank), strict=True)])
    if form == "gaps" and rank > axis:
        before, wider = _around(number)
        wide = stored(*(s + wider if i == axis else s for i, s in enumerate(shape)))
        return wide[(*[slice(None)] * axis, slice(before, before + shape[axis]))]
    if form == "turned" and rank > 1:
        order = _turned(rank)
        return permute(stored(*(shape[i] for i in order)), order)
    if form == "strided" and rank:
        return reshape(cut(stored(*shape, 2), [*((0, s, 1) for s in shape), (0, 1, 1)]), shape)
    if form in ("backwards", "views") and rank > axis and _some(x, axis):
        return stored(*shape)[(*[slice(None)] * axis, slice(None, None, -1))]
    if form == "uniform":
        return expand(stored(*[1] * rank), shape)
    if form == "repeated" and rank > axis:
        return expand(stored(*shape[:axis], 1, *shape[axis + 1:]), shape)
    return stored(*shape)


def _before(rank: int) -> tuple[int, ...]:
    """Return the elements before a window on each axis: one on the last, so that it begins off a vector boundary."""
    return (*[2] * (rank - 1), 1)


def _around(number: int) -> tuple[int, int]:
    """Return the number of elements before operand `number` in a wider array, and how much wider that is: all operands differ."""
    return number + 1, 2 * number + 3


def _numbers(graph: Graph) -> dict[str, int]:
    """Return a number for each operand, 0 for the one of largest fixed sizes: widened as operand 8, a cache of 4 MB whose axis has
    one element would need 80 MB."""
    fixed = {name: math.prod(s for s in x.shape if isinstance(s, int)) for name, x in graph.inputs.items()}
    return {name: number for number, name in enumerate(sorted(graph.inputs, key=lambda name: -fixed[name]))}


def _turned(rank: int) -> tuple[int, ...]:
    """Return an order of axes: all but the last reversed; for a matrix both. It is its own inverse."""
    return (*reversed(range(rank - 1)), rank - 1) if rank > 2 else (1, 0)


def _some(x: Node, axis: int) -> bool:
    return dim_ge(x.shape[axis], 1) is True


def as_stored(graph: Graph, arrays: Mapping[str, np.ndarray], form: Form = "views", axis: int = 0,
              left: Collection[str] = ()) -> dict[str, np.ndarray]:
    """Return the arrays whose windows in `views_graph(graph, …)` hold these values; around them is NaN, or all bits one."""
    numbers = _numbers(graph)
    return {n: a if n in left else np.ascontiguousarray(_stored(graph.inputs[n], a, form, axis, numbers[n]))
            for n, a in arrays.items()}


def _stored(x: Node, a: np.ndarray, form: Form, axis: int, number: int) -> np.ndarray:
    rank = a.ndim
    if form == "views" and rank > 1:
        return a.T
    if form == "turned" and rank > 1:
        return a.transpose(_turned(rank))
    if (form in ("windows", "strided") and rank) or (form == "gaps" and rank > axis):
        begin, wide = (0,) * (rank + 1), (*a.shape, 2)
        if form == "windows":
            begin = _before(rank)
            wide = tuple(s + before + 2 for s, before in zip(a.shape, begin, strict=True))
        elif form == "gaps":
            before, wider = _around(number)
            begin = tuple(before if i == axis else 0 for i in range(rank))
            wide = tuple(s + wider if i == axis else s for i, s in enumerate(a.shape))
        around = reused_arrays.empty(wide, a.dtype)
        around.reshape(-1).view(np.uint8).fill(1 if a.dtype.kind == "b" else 0xFF)
        around[(..., 0) if form == "strided" else tuple(slice(b, b + s) for b, s in zip(begin, a.shape, strict=True))] = a
        return around
    if form in ("backwards", "views") and rank > axis and _some(x, axis):
        return np.flip(a, axis)
    if form == "uniform":
        return a.reshape(-1)[:1].reshape([1] * rank) if a.size else np.zeros([1] * rank, a.dtype)
    if form == "repeated" and rank > axis:
        return a.take([0], axis=axis) if a.shape[axis] else np.zeros((*a.shape[:axis], 1, *a.shape[axis + 1:]), a.dtype)
    return a


def plain_plan(graph: Graph) -> Plan | None:
    """Return a plan of the baseline: the coarsest numpy kernels, and definitions; None if they do not compute the graph."""
    table = by_op(load_backend("numpy"))
    chosen: dict[Node, Kernel] = {}

    def has_kernel(node: Node) -> bool:
        kernels = matching(signature_of(node).spec, table) if node.op.kind in ("atomic", "composite") else []
        if kernels:
            chosen[node] = kernels[0]
        return bool(kernels)

    roots = expand_all(graph.roots, has_kernel)
    for node in walk(roots):
        if is_step(node) and not has_kernel(node):
            return None
    return plan_along(graph, roots, lambda node: chosen[node], (NUMPY_COPY,), ("numpy",))


def plan_along(graph: Graph, roots: Sequence[Node], choose: Callable[[Node], Kernel], copiers: Sequence[Kernel],
               backends: tuple[str, ...], all_steps: str = "") -> Plan:
    """Return a plan with one variant of a graph; `choose` returns the kernel of each node (after expansion: of `roots`). all_steps:
    the name of the kernel that runs all steps in one (`Path.all_steps`)."""
    used: dict[str, Kernel] = {k.name: k for k in copiers}
    chosen: dict[str, str] = {ALL_STEPS: all_steps} if all_steps else {}

    def choose_and_note(node: Node) -> Kernel:
        kernel = choose(node)
        used[kernel.name] = kernel
        chosen[signature_of(node).key] = kernel.name
        return kernel

    smallest = {n: d.bounds(s)[0] for n, s in graph.dims.items()}
    program = lower(graph, roots, choose_and_note, copiers)
    layout = place(intervals_of(program), smallest)
    path = Path("", chosen, 0.0, False, None)                       # nobody looks it up, and a key takes a fifth of the whole
    variant = Variant(Cell(), path, program, layout, used, (), smallest)
    return Plan(graph, Accuracy(), (variant,), smallest, backends)
