"""run_unisolated: runs one kernel once in this process, on a user's arrays: in a debugger or a test, or at a failing point.

Nothing is compared, timed or stored, and no other process is started: a crash of the kernel crashes the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensor_graphs.kernels.kernel import ANY_OP, Kernel, KernelError
from tensor_graphs.kernels.one_op_signature import signature_of_graph
from tensor_graphs.kernels.registry import refused
from tensor_graphs.language import leaves
from tensor_graphs.language.atomic import ATOMIC
from tensor_graphs.language.composite import LIBRARY, CompositeOp
from tensor_graphs.language.dtypes import dtype_of
from tensor_graphs.language.graph import Graph, graph
from tensor_graphs.language.node import Node, apply
from tensor_graphs.measure.points.inputs import Form
from tensor_graphs.measure.points.single_op_plans import as_stored, prepared_names, single_kernel_plan, views_graph, with_parameters
from tensor_graphs.runtime.compiled_graph import bind


def run_alone(kernel: Kernel, arrays: Sequence[Any] | Mapping[str, Any], attributes: Mapping[str, Any]) -> Any:
    """Return the output of a kernel for these operands, a tuple if there are several. Implements `Kernel.run`."""
    one_op, inputs = _graph(kernel, arrays, attributes)
    outputs = tuple(run_on(kernel, one_op, inputs).values())
    return outputs[0] if len(outputs) == 1 else outputs


def run_on(kernel: Kernel, one_op: Graph, inputs: Mapping[str, np.ndarray], form: Form = "apart", axis: int = 0,
           left: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Return a kernel's outputs on a graph of one op. form, axis, left: as in `views_graph` (layouts). Raises KernelError."""
    spec = signature_of_graph(one_op).spec
    if not kernel.computes(spec):
        raise KernelError(f"{kernel.name} computes {kernel.op}, and the graph is {spec.op.name}\n  fix: a graph of {kernel.op}")
    why = refused(kernel, spec)
    if why is not None:
        operands = ", ".join(map(str, spec.inputs))
        raise KernelError(f"{kernel.name} does not take {spec.op.name}({operands}): {why}\n"
                          "  fix: operands that its `accepts` takes")
    parameters = prepared_names(one_op, kernel)
    stored = as_stored(one_op, inputs, form, axis, left)
    plan = single_kernel_plan(with_parameters(views_graph(one_op, form, axis, left), parameters), kernel)
    model = bind(plan, {n: stored[n] for n in parameters})
    return model.run({n: a for n, a in stored.items() if n not in parameters}, dims=_sizes(one_op, inputs))


def _sizes(one_op: Graph, inputs: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Return the size of each dim that is an axis of an input."""
    return {str(s): size for n, leaf in one_op.inputs.items() for s, size in zip(leaf.shape, inputs[n].shape, strict=True)
            if str(s) in one_op.dims}


def _graph(kernel: Kernel, arrays: Sequence[Any] | Mapping[str, Any], attributes: Mapping[str, Any]
           ) -> tuple[Graph, dict[str, np.ndarray]]:
    """Return a graph of the kernel's op on operands typed like the arrays, and its inputs. Raises KernelError, errors of the op."""
    op = kernel.composite or ATOMIC.get(kernel.op) or LIBRARY.get(kernel.op)
    if kernel.op == ANY_OP or op is None:
        raise KernelError(f"{kernel.name} computes no op of one name\n  fix: tg.compile(graph).run(…) runs it within a graph")
    named = dict(arrays) if isinstance(arrays, Mapping) else {f"x{i}": a for i, a in enumerate(_sequence(kernel, arrays))}
    values = {name: np.asarray(a) for name, a in named.items()}
    operands = {name: leaves.input(name, a.shape, dtype_of(a)) for name, a in values.items()}
    if not isinstance(op, CompositeOp):
        result = apply(op, list(operands.values()), attributes)
    else:
        result = op(**operands, **attributes) if isinstance(arrays, Mapping) else op(*operands.values(), **attributes)
    outputs: tuple[Node, ...] = result if isinstance(result, tuple) else (result,)
    one_op = graph({f"y{i}": node for i, node in enumerate(outputs)})
    return one_op, {name: values[name] for name in one_op.inputs}


def _sequence(kernel: Kernel, arrays: Any) -> Sequence[Any]:
    if isinstance(arrays, np.ndarray) or not isinstance(arrays, Sequence):
        raise KernelError(f"{kernel.name}.run takes its operands in a list, this is {type(arrays).__name__}\n"
                          "  fix: kernel.run([x, y], axis=-1), or by name: kernel.run({'x': x, 'y': y})")
    return arrays
