"""export: a torch module as a graph, by torch.export: parameters are named as in its state_dict, inputs as arguments of forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tensor_graphs.errors import listed
from tensor_graphs.language import leaves
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node

if TYPE_CHECKING:
    from torch.fx import Node as FxNode


@dataclass(frozen=True)
class TorchModule:
    """A module of torch as a graph. weights: name -> array, on the memory of the module's parameters and buffers where the dtype
    allows. Compile it with `tg.bind(tg.compile(module.graph), module.weights)`."""

    graph: Graph
    weights: Mapping[str, np.ndarray]


def from_torch(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, *,
               dynamic_shapes: Any = None) -> TorchModule:
    """Return a torch module as a graph with its weights.

    args, kwargs: example arguments of `forward`, as for torch.export.export. dynamic_shapes: axes whose size varies, also as there:
    ({0: torch.export.Dim("batch", min=1, max=64)},); such an axis is a dim of that name. Inputs are named as the arguments of
    `forward`, parameters and buffers as in its state_dict, outputs y0, y1, … Raises TorchDoorError for an op that graphs do not
    have, and a module that writes to its buffers or inputs; torch.export's own errors for a module that it cannot export. A graph
    has no devices: of a module on a GPU the weights are copied to the host.
    """
    import torch
    from torch import fx

    from tensor_graphs.frontends.torch.backend import decompositions
    from tensor_graphs.frontends.torch.exchange import to_numpy
    from tensor_graphs.frontends.torch.fx import Converter, GraphStep, TorchDoorError, TorchStep, dtype_of
    from tensor_graphs.frontends.torch.sizes import TorchSizes

    program = torch.export.export(module, tuple(args), dict(kwargs or {}), dynamic_shapes=dynamic_shapes)
    program = program.run_decompositions(decompositions())
    signature = program.graph_signature
    written = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if written:
        raise TorchDoorError(f"the module writes to {listed(written)}", fix="module.eval(), or a module that returns the new value")
    held = {**signature.inputs_to_parameters, **signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
    tensors = {**program.state_dict, **program.constants}
    sizes = TorchSizes(_dim_names(program, dynamic_shapes))

    def leaf(value: FxNode, name: str, fake: Any) -> Node:
        make, called = (leaves.parameter, held[value.name]) if value.name in held else (leaves.input, value.name)
        return make(called, sizes.shape(fake), dtype_of(fake))

    converter = Converter(program.graph_module, sizes, leaf)
    steps = converter.convert()
    opaque = [f"{s.node.target} ({s.why})" for s in steps if isinstance(s, TorchStep)]
    if opaque:
        raise TorchDoorError(f"no graph computes {'; '.join(opaque)}",
                             fix="torch.compile(module, backend=\"tensor_graphs\") runs them by torch")
    step = next((s for s in steps if isinstance(s, GraphStep)), None)
    (results,) = program.graph_module.graph.output_node().args
    if step is None:
        raise TorchDoorError("the module computes nothing", fix="a module with an op in its forward")
    names = {node: name for name, node in step.outputs.items()}
    wrong = next((r for r in results if not isinstance(r, fx.Node) or r not in names), None)
    if wrong is not None:
        raise TorchDoorError(f"the module returns {wrong}, which is no tensor that it computes",
                             fix="a module that returns tensors")
    outputs = {f"y{i}": converter.levels[0].nodes[node] for i, node in enumerate(results)}
    graph = Graph(outputs, {})
    return TorchModule(graph, {name: to_numpy(tensors[name]) for name in graph.parameters})


def _dim_names(program: Any, dynamic_shapes: Any) -> dict[str, str]:
    """Return torch's symbol -> the name that the caller's Dim has for this axis."""
    import torch
    from torch.utils import _pytree as pytree

    named: dict[str, str] = {}
    if dynamic_shapes is None:
        return named
    if isinstance(dynamic_shapes, Mapping):
        dynamic_shapes = list(dynamic_shapes.values())
    specs = pytree.tree_leaves(dynamic_shapes, is_leaf=lambda s: s is None or (
        isinstance(s, Mapping) and all(isinstance(k, int) for k in s)) or (
        isinstance(s, (tuple, list)) and any(isinstance(e, torch.export.Dim | int) or e is None for e in s)))
    inputs = [n for n in program.graph_module.graph.nodes if n.name in program.graph_signature.user_inputs]
    for node, spec in zip(inputs, specs, strict=False):
        for axis, entry in (spec.items() if isinstance(spec, Mapping) else enumerate(spec or ())):
            size = node.meta["val"].shape[axis]
            name = getattr(entry, "__name__", "")
            if name and isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                named[str(size.node.expr)] = name
    return named
