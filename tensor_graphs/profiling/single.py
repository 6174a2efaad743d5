"""single: the plan that runs one kernel alone on the graph of its op; what is verified and timed is what will be deployed."""

from __future__ import annotations

from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import copy_kernel
from tensor_graphs.language import dims as d
from tensor_graphs.language.graph import Graph
from tensor_graphs.paths.lower import arena_buffers, lower
from tensor_graphs.paths.memory import Interval, place
from tensor_graphs.paths.path import Path, needs_choice
from tensor_graphs.paths.plan import Plan, Variant
from tensor_graphs.kernels.signature import signature_of


def single_kernel_plan(graph: Graph, kernel: Kernel) -> Plan:
    """A plan of the graph in which every node that needs a choice is run by this kernel."""
    chosen = {signature_of(n).key: kernel.name for n in graph.nodes if needs_choice(n)}
    largest = {n: d.bounds(s)[0] for n, s in graph.dims.items()}
    copier = copy_kernel((kernel.backend,))
    program = lower(graph, graph.roots, lambda node: kernel, copier)
    layout = place([Interval(program.buffers[i].first, program.buffers[i].last, program.buffers[i].nbytes, program.buffers[i].name)
                    for i in arena_buffers(program)], largest)
    path = Path(graph.structural_key, chosen, 0.0, False, None)
    variant = Variant(0, 0, path, program, layout, {kernel.name: kernel, copier.name: copier}, (), largest)
    return Plan(graph, 0.0, (variant,), None, largest, (kernel.backend,))
