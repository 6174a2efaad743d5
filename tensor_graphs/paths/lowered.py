"""lowered: a path converted to a program and a memory layout, for the compiler and for a plan that is read from bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tensor_graphs.kernels.kernel import Kernel, KernelError
from tensor_graphs.kernels.registry import BACKENDS, copy_kernels, kernel_named, lacking, make_images, why_missing
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node
from tensor_graphs.paths.lower import Order, PlanError, Program, intervals_of, lower
from tensor_graphs.paths.memory import ArenaLayout, place
from tensor_graphs.paths.path import Path, StalePathError, expanded, kernel_of_all_steps
from tensor_graphs.phase_times import phase


@dataclass(frozen=True)
class Lowered:
    """A program and its memory layout. kernels: name -> kernel, for the kernels that its instructions call."""

    program: Program
    layout: ArenaLayout
    kernels: Mapping[str, Kernel]


@phase("lower")
def lowered(graph: Graph, path: Path, kernel_of: Callable[[str], Kernel], backends: Sequence[str],
            largest: Mapping[str, int], order: Order | None = None) -> Lowered:
    """Return the program of a path. kernel_of: signature key -> chosen kernel. largest: sizes for which memory is laid out. order:
    changes the order of a run."""
    kernels: dict[str, Kernel] = {}

    def choose(node: Node) -> Kernel:
        kernel = kernel_of(signature_of(node).key)
        kernels[kernel.name] = kernel
        return kernel

    program = lower(graph, expanded(graph.roots, path), choose, copy_kernels(backends), order)
    make_images(i.call for i in (*program.bind_instructions, *program.instructions))
    return Lowered(program, place(intervals_of(program), largest), kernels)


def chosen_here(path: Path) -> Callable[[str], Kernel]:
    """Return a function: signature key -> the kernel of this process that the path chose. Raises PlanError where this process lacks
    the kernel, has other code under its name, or where the device lacks a feature that the kernel requires."""
    if path.all_steps:
        try:
            kernel_of_all_steps(path)
        except StalePathError as e:
            raise PlanError(str(e)) from None

    def kernel_of(key: str) -> Kernel:
        name = path.choices.get(key)
        if name is None:
            raise PlanError(f"the path {path.id} chooses nothing for a part of its graph\n  fix: compile the graph again")
        try:
            kernel = kernel_named(name)
        except KernelError as e:
            backend = name.partition(".")[0]
            reason = why_missing(backend) if backend in BACKENDS else None
            raise PlanError(f"the plan runs the kernel {name}, which is not in this process"
                            + (f": the backend {backend} is missing: {reason}" if reason else "")
                            + f"\n  fix: {'make the backend available' if reason else str(e).partition('fix: ')[2]}, "
                              "or compile the graph again here") from None
        identity = path.identities.get(name, kernel.identity)
        if identity != kernel.identity:
            raise PlanError(f"the plan runs another {name}: {identity[:12]}, here it is {kernel.identity[:12]}: its code, a "
                            "library or the processor is another one\n  fix: compile the graph again here")
        if (missing := lacking(kernel)) is not None:
            raise PlanError(f"the plan runs the kernel {name}: {missing}\n  fix: compile the graph again here")
        return kernel

    return kernel_of
