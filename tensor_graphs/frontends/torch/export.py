"""export: a torch module as a graph, by torch.export: parameters are named as in its state_dict, inputs as arguments of forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tensor_graphs.errors import listed
from tensor_graphs.language import leaves
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node

if TYPE_CHECKING:
    from torch.fx import Node as FxNode


@dataclass(frozen=True)
class TorchModule:
    """A module of torch as a graph. weights: name -> array, on the memory of the module's parameters and buffers where the dtype
    allows. inputs: tensors that the graph reads, in the order of `forward`. unused: those that no output depends on; the graph has
    none of them. Compile it with `tg.bind(tg.compile(module.graph), module.weights)`."""

    graph: Graph
    weights: Mapping[str, np.ndarray]
    inputs: tuple[str, ...]
    unused: tuple[str, ...]


def from_torch(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, *,
               dynamic_shapes: Any = None) -> TorchModule:
    """Return a torch module, or a function of tensors, as a graph with its weights.

    args, kwargs: example arguments of `forward`, as for torch.export.export. dynamic_shapes: axes whose size varies, also as there:
    ({0: torch.export.Dim("batch", min=1, max=64)},); such an axis is a dim of that name. Inputs are named as the arguments of
    `forward`, parameters and buffers as in its state_dict, outputs y0, y1, … by their place among the results (None is no output).
    Raises TorchDoorError for a module that torch.export refuses, for an op that graphs do not have, and for a module that writes to
    its buffers or inputs. A graph has no devices: of a module on a GPU the weights are copied to the host.
    """
    import torch
    from torch import fx

    from tensor_graphs.frontends.torch.backend import decompositions
    from tensor_graphs.frontends.torch.exchange import to_numpy
    from tensor_graphs.frontends.torch.fx import Converter, TorchDoorError, TorchStep, dtype_of, value_of
    from tensor_graphs.frontends.torch.sizes import TorchSizes

    program = _exported(module, args, kwargs, dynamic_shapes).run_decompositions(decompositions())
    signature = program.graph_signature
    written = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if written:
        raise TorchDoorError(f"the module writes to {listed(written)}", fix="module.eval(), or a module that returns the new value")
    held = {**signature.inputs_to_parameters, **signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
    tensors = {**program.state_dict, **program.constants}
    sizes = TorchSizes(_dim_names(program, dynamic_shapes))

    def is_tensor(value: FxNode) -> bool:
        return isinstance(value_of(value), torch.Tensor)

    def leaf(value: FxNode, name: str, fake: Any) -> Node:
        make, called = (leaves.parameter, held[value.name]) if value.name in held else (leaves.input, value.name)
        return make(called, sizes.shape(fake), dtype_of(fake))

    converter = Converter(program.graph_module, sizes, leaf)
    steps = converter.convert()
    opaque = [f"{s.node.target} ({s.why})" for s in steps if isinstance(s, TorchStep) and s.why]
    if opaque:
        raise TorchDoorError(f"no graph computes {'; '.join(opaque)}",
                             fix="torch.compile(module, backend=\"tensor_graphs\") runs them by torch")
    results = {f"y{i}": result for i, result in enumerate(program.graph_module.graph.output_node().args[0]) if result is not None}
    wrong = next((r for r in results.values() if not isinstance(r, fx.Node) or not is_tensor(r)), None)
    if wrong is not None or not results:
        raise TorchDoorError(f"the module returns {wrong}, which is no tensor", fix="a module that returns tensors")
    graph = make_graph({name: converter.tensor(result, 0) for name, result in results.items()})
    inputs = [n.name for n in program.graph_module.graph.nodes if n.op == "placeholder" and n.name not in held and is_tensor(n)]
    used, unused = (tuple(name for name in inputs if (name in graph.inputs) is read) for read in (True, False))
    return TorchModule(graph, {name: to_numpy(tensors[name]) for name in graph.parameters}, used, unused)


def _exported(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any) -> Any:
    """Return torch's program of a module or a function. Raises TorchDoorError where torch.export raises an error."""
    import torch
    from torch.utils import _pytree as pytree

    from tensor_graphs.frontends.torch.fx import TorchDoorError

    if not isinstance(args, (tuple, list)):
        raise TorchDoorError(f"args is a tuple of the arguments of forward, and no {type(args).__name__}", fix="(x,)")
    if not isinstance(module, torch.nn.Module):
        function, module = module, torch.nn.Module()
        module.forward = function
    leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs or {})))
    first = {id(leaf): i for i, leaf in reversed(list(enumerate(leaves)))}
    apart = [leaf.clone() if isinstance(leaf, torch.Tensor) and first[id(leaf)] < i else leaf for i, leaf in enumerate(leaves)]
    positional, named = pytree.tree_unflatten(apart, structure)         # torch.export makes one input of two arguments
    try:
        return torch.export.export(module, positional, named, dynamic_shapes=dynamic_shapes)
    except Exception as error:                              # of many types, from the module's own code as well
        reason = next((line for line in map(str.strip, str(error).splitlines()) if line), type(error).__name__)
        raise TorchDoorError(f"torch.export does not take the module: {reason.partition('. ')[0]}", fix="tensors of torch as args, "
                             "and no branch on their values; torch.compile runs more") from error


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
