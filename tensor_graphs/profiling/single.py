"""single: plans of one op alone: run by one kernel, by one kernel on strided operands, or by the plain path (the yardstick).

What is verified and timed here goes through the same lowering and the same executor as what will be deployed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import NUMPY_COPY, by_op, copy_kernel, load_backend, matching
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.atomic import permute
from tensor_graphs.language.composite import expand_all
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node, apply, rebuild
from tensor_graphs.paths.lower import arena_buffers, lower
from tensor_graphs.paths.memory import Interval, place
from tensor_graphs.paths.path import Path, needs_choice
from tensor_graphs.paths.plan import Plan, Variant


def signature_of_graph(graph: Graph) -> Signature:
    """The signature of a graph that is one op. Raises ValueError for any other."""
    found = [n for n in graph.nodes if n.op.kind in ("atomic", "composite")]
    if len(found) != 1:
        raise ValueError(f"a graph of one op is needed, this one has {len(found)}: {', '.join(n.op.name for n in found[:6])}")
    return signature_of(found[0])


def prepared_names(graph: Graph, kernel: Kernel) -> tuple[str, ...]:
    """The inputs of a graph of one op that this kernel prepares something from: parameters, wherever it is deployed."""
    if kernel.prepare is None:
        return ()
    (node,) = [n for n in graph.nodes if n.op.kind in ("atomic", "composite")]
    names = {x: name for name, x in graph.inputs.items()}
    return tuple(names[node.inputs[i]] for p in kernel.prepare(signature_of(node).spec) for i in p.operands)


def with_parameters(graph: Graph, names: Sequence[str]) -> Graph:
    """The same graph with these inputs as parameters."""
    swapped = {x: leaves.parameter(name, x.shape, x.dtype) for name, x in graph.inputs.items() if name in names}
    roots = rebuild(graph.roots, lambda node, inputs: swapped.get(node))
    return make_graph(dict(zip(graph.outputs, roots, strict=True)))


def single_kernel_plan(graph: Graph, kernel: Kernel) -> Plan:
    """A plan of the graph in which every node that needs a choice is run by this kernel."""
    return plan_along(graph, graph.roots, lambda node: kernel, copy_kernel((kernel.backend,)), (kernel.backend,))


def views_graph(graph: Graph) -> Graph:
    """The same op on operands that are windows of its inputs: axes in the other order, a single axis backwards.

    Inputs keep their names; `as_stored` makes the arrays for it.
    """
    (node,) = [n for n in graph.nodes if n.op.kind in ("atomic", "composite")]
    xs = []
    for name, i in graph.inputs.items():
        stored = leaves.input(name, tuple(reversed(i.shape)), i.dtype)
        if len(i.shape) > 1:
            xs.append(permute(stored, tuple(reversed(range(len(i.shape))))))
        else:
            xs.append(stored[::-1] if i.shape and d.dim_ge(i.shape[0], 1) is True else stored)
    by_input = dict(zip(graph.inputs.values(), xs, strict=True))
    again = apply(node.op, [by_input[i] for i in node.inputs], node.attrs)
    return make_graph({name: leaves.item(again, k) for k, name in enumerate(graph.outputs)})


def as_stored(graph: Graph, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays whose windows in `views_graph(graph)` hold these values."""
    return {n: np.ascontiguousarray(a.T if a.ndim > 1 else a[::-1] if a.ndim == 1 and a.shape[0] and
                                    d.dim_ge(graph.inputs[n].shape[0], 1) is True else a) for n, a in arrays.items()}


def plain_plan(graph: Graph) -> Plan | None:
    """The yardstick: numpy's own kernels, the coarsest that accept each op, and definitions; None if they do not compute it."""
    table = by_op(load_backend("numpy"))
    found: dict[Node, Kernel] = {}

    def has_kernel(node: Node) -> bool:
        kernels = matching(signature_of(node).spec, table) if node.op.kind in ("atomic", "composite") else []
        if kernels:
            found[node] = kernels[0]
        return bool(kernels)

    roots = expand_all(graph.roots, has_kernel)
    for node in make_graph(dict(zip(graph.outputs, roots, strict=True))).nodes:
        if needs_choice(node) and not has_kernel(node):
            return None
    return plan_along(graph, roots, lambda node: found[node], NUMPY_COPY, ("numpy",))


def plan_along(graph: Graph, roots: Sequence[Node], choose: Callable[[Node], Kernel], copier: Kernel,
               backends: tuple[str, ...]) -> Plan:
    """One variant of a graph whose nodes (after expansion: `roots`) each have a kernel."""
    used: dict[str, Kernel] = {copier.name: copier}
    chosen: dict[str, str] = {}

    def choose_and_note(node: Node) -> Kernel:
        kernel = choose(node)
        used[kernel.name] = kernel
        chosen[signature_of(node).key] = kernel.name
        return kernel

    smallest = {n: d.bounds(s)[0] for n, s in graph.dims.items()}
    program = lower(graph, roots, choose_and_note, copier)
    layout = place([Interval(program.buffers[i].first, program.buffers[i].last, program.buffers[i].nbytes, program.buffers[i].name)
                    for i in arena_buffers(program)], smallest)
    path = Path(graph.structural_key, chosen, 0.0, False, None)
    variant = Variant(0, 0, path, program, layout, used, (), smallest)
    return Plan(graph, 0.0, (variant,), None, smallest, backends)
