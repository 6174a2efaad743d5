"""fx: converts a functional FX graph of ATen ops to graphs, with steps that torch runs between them.

    steps = Converter(graph_module, TorchSizes()).convert()          # GraphStep | TorchStep, in the order in which they run

A node whose op has a row in aten/ is part of a graph. Any other is a TorchStep: torch runs it between two graphs, on the same
memory. So most modules are one graph, and an op without a row costs a second one. Values without tensors (sizes) are expressions of
dims and no steps.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import getitem
from typing import Any

import torch
from torch import fx

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.frontends.errors import FrontendError
from tensor_graphs.frontends.torch import aten  # noqa: F401 - which fills the table
from tensor_graphs.frontends.torch.aten.table import ROWS, AtenCall
from tensor_graphs.frontends.torch.exchange import gpu_name, inverse
from tensor_graphs.frontends.torch.functions import OpaqueReference
from tensor_graphs.frontends.torch.index_ranges import RangeCheck, Read, checks
from tensor_graphs.frontends.torch.sizes import TorchSizes
from tensor_graphs.language import leaves
from tensor_graphs.language.atomic import fill, permute, same_dim
from tensor_graphs.language.dtypes import DTYPES, DType, bool_, parse_dtype
from tensor_graphs.language.errors import DTypeError
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node

CHECKS = frozenset({
    "aten._assert_scalar.default", "aten._assert_tensor_metadata.default", "aten.sym_constrain_range.default",
    "aten.sym_constrain_range_for_size.default", "aten._functional_assert_scalar.default",
})
"""ops without a result, which tell torch's compiler about sizes; torch's guards have checked them"""

LAYOUT = frozenset({"layout", "device", "pin_memory", "memory_format", "non_blocking", "dtype"})
"""keywords that a row does not get: the dtype is that of the result, and a graph has no memory formats"""


class TorchDoorError(FrontendError):
    """A module, an option or a call that the torch front end does not take."""


@dataclass
class GraphStep:
    """A graph to be compiled. inputs, parameters, outputs: names of the graph -> values. orders: name -> the order of the axes of
    the value, from the largest stride down, that the graph's has where torch's strides are not those of C order. symbols: name of a
    dim -> torch's symbol. checks: of the range of indices, on a CPU."""

    outputs: dict[str, fx.Node]
    inputs: dict[str, fx.Node]
    parameters: dict[str, fx.Node]
    graph: Graph
    orders: dict[str, tuple[int, ...]]
    symbols: dict[str, Any]
    checks: Sequence[RangeCheck]

    def further_sizes(self, size_of: Callable[[Any], int]) -> dict[str, int]:
        """Return the sizes of dims that are no axis of an input. size_of: value of a symbol of torch."""
        shown = {s for t in self.graph.inputs.values() for s in t.shape}
        return {name: size_of(self.symbols[name]) for name, dim in self.graph.dims.items() if dim not in shown}


@dataclass
class TorchStep:
    """An op that torch runs. why: the reason that it is in no graph."""

    node: fx.Node
    why: str


Step = GraphStep | TorchStep


def value_of(node: fx.Node) -> Any:
    """Return the fake tensors, sizes or numbers that a node stands for."""
    return node.meta.get("val", node.meta.get("example_value"))


def dtype_of(tensor: Any) -> DType:
    """Return the dtype of a torch tensor. Raises OpaqueReference where graphs do not have it."""
    try:
        return parse_dtype(tensor.dtype)
    except DTypeError:
        raise OpaqueReference(f"the dtype {str(tensor.dtype).removeprefix('torch.')}") from None


def op_name(node: fx.Node) -> str:
    """Return the name of an op as in `add.Tensor`, with the namespace in front unless it is aten."""
    return str(node.target).removeprefix("aten.")


@dataclass
class _Level:
    """The part of the module between two runs of torch: which values a graph reads, what each node of FX is in it, and the indices
    that must be in range."""

    inputs: dict[fx.Node, Node] = field(default_factory=dict)
    nodes: dict[fx.Node, Any] = field(default_factory=dict)
    reads: list[Read] = field(default_factory=list)


class Converter:
    """Converts one FX graph. leaf(value, name, fake): an input or a parameter of the graph for a value of FX, on no device; without
    it, inputs and outputs lie where torch has them, and the values `frozen` are parameters."""

    def __init__(self, module: fx.GraphModule, sizes: TorchSizes, leaf: Callable[[fx.Node, str, Any], Node] | None = None,
                 frozen: Collection[fx.Node] = ()) -> None:
        self.module, self.sizes, self._leaf, self._places = module, sizes, leaf or self._input, leaf is None
        self.frozen = frozen
        self.levels: dict[int, _Level] = {}
        self.level: dict[fx.Node, int] = {}                     # of the graph that computes it, or after which torch does
        self.opaque: dict[fx.Node, str] = {}
        self.names: dict[fx.Node, str] = {}
        self.orders: dict[str, tuple[int, ...] | None] = {}     # of inputs

    def _input(self, value: fx.Node, name: str, fake: Any) -> Node:
        make, shape = leaves.parameter if value in self.frozen else leaves.input, self.sizes.shape(fake)
        order = self.orders[name] = axis_order(fake)
        return make(name, shape if order is None else [shape[axis] for axis in order], dtype_of(fake))

    def convert(self) -> list[Step]:
        """Return the steps. Raises TorchDoorError for tensors on a device that is neither the CPU nor a GPU of CUDA."""
        for node in self.module.graph.nodes:
            if node.op == "call_function" and str(node.target) not in CHECKS:
                self._call(node)
            elif node.op == "placeholder" and isinstance(value_of(node), torch.Tensor) and (
                    value_of(node).device.type not in ("cpu", "cuda")):
                raise TorchDoorError(f"{node.name} lies on {value_of(node).device}, and this backend runs on CPUs and GPUs of CUDA",
                                     fix="model.to('cpu'), and inputs there; or another backend of torch.compile")
        return self._steps()

    def _call(self, node: fx.Node) -> None:
        fake = value_of(node)
        if isinstance(fake, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)):
            return
        if node.target is getitem and node.args[0] in self.opaque:
            self.opaque[node], self.level[node] = "", self.level[node.args[0]]      # an output of an op that torch has run
            return
        tensors = [i for i in node.all_input_nodes if not is_scalar(i)]
        self.level[node] = level = max((self.level.get(i, 0) + (i in self.opaque) for i in tensors), default=0)
        try:
            self.levels.setdefault(level, _Level()).nodes[node] = self._build(node, fake, level)
        except TorchDoorError:
            raise
        except (OpaqueReference, TensorGraphsError) as error:
            self.opaque[node] = re.sub(r"^\w+ at \S+: ", "", str(error).partition("\n")[0])      # without a line of source
            self.level[node] = max((self.level.get(i, 0) for i in tensors), default=0)

    def _build(self, node: fx.Node, fake: Any, level: int) -> Any:
        """Return the node, or the tuple of nodes, of an op. Raises OpaqueReference where there is no row, or it refuses."""
        if node.target is getitem:
            return self.tensor(node.args[0], level)[node.args[1]]
        row = ROWS.get(op_name(node))
        if op_name(node).startswith("as_strided"):
            if self._places and is_view(node) and node.args[0].op == "placeholder":
                raise OpaqueReference("")                   # a view that torch makes: runs differ in where an input's memory begins
            _require_own_storage(node, row is not None)
        if row is None:
            raise OpaqueReference("no row")
        results = fake if isinstance(fake, (tuple, list)) else (fake,)
        wanted = [None if r is None else (self.sizes.shape(r), dtype_of(r)) for r in results]
        operands = [value_of(a) if isinstance(a, fx.Node) else a for a in node.args[:3]]
        numeric = [a for a in operands if isinstance(a, (torch.Tensor, int, float, torch.SymInt))]
        common = torch.result_type(*numeric[:2]) if len(numeric) > 1 else numeric[0].dtype if numeric and isinstance(
            numeric[0], torch.Tensor) else None
        shape, dtype = next((w for w in wanted if w is not None), ((), bool_))
        call = AtenCall(shape, dtype, BY_TORCH.get(common, dtype), wanted)
        if all(w is None or 0 in w[0] for w in wanted):            # no elements: nothing to compute
            empty = tuple(None if w is None else fill(0, *w) for w in wanted)
            return empty if isinstance(fake, (tuple, list)) else empty[0]
        args = self._converted(node.args, level)
        keywords = {k: self._converted(v, level) for k, v in node.kwargs.items() if k not in LAYOUT}
        result = row(call, *args, **keywords)
        nodes = result if isinstance(result, (tuple, list)) else (result,)
        for one, expected in zip(nodes, wanted, strict=True):
            if expected is not None and one is not None:
                _check(one, *expected)
        self.levels.setdefault(level, _Level()).reads += [replace(read, op=op_name(node).partition(".")[0]) for read in call.reads]
        return result

    def tensor(self, node: fx.Node, level: int) -> Any:
        """Return a tensor of FX in the graph of a level: computed there, or an input of it."""
        here = self.levels.setdefault(level, _Level())
        if node not in self.opaque and node in here.nodes:
            return here.nodes[node]
        if self.level.get(node, -1) == level and node not in self.opaque:
            raise OpaqueReference("an operand that is no tensor")
        fake = value_of(node)
        if not isinstance(fake, torch.Tensor):
            raise OpaqueReference(f"an operand of type {type(fake).__name__}")
        name = self.names.setdefault(node, f"x{len(self.names)}")
        if node not in here.inputs:
            here.inputs[node] = self._leaf(node, name, fake)
        leaf, order = self._placed(here.inputs[node], fake), self.orders.get(name)
        return leaf if order is None else permute(leaf, inverse(order))

    def _placed(self, node: Node, fake: Any) -> Node:
        """Return a node where torch has the tensor: on the host as it is, on a GPU as a copy there (of an input there: itself)."""
        return leaves.copy_to(node, gpu_name(fake)) if self._places and fake.device.type == "cuda" else node

    def _converted(self, argument: Any, level: int) -> Any:
        """Return an argument of FX for a row: tensors as nodes, SymInts as dims, dtypes as ours."""
        if isinstance(argument, fx.Node):
            if not is_scalar(argument):
                return self.tensor(argument, level)
            argument = value_of(argument)
        if isinstance(argument, torch.SymInt):
            return self.sizes.of(argument)
        if isinstance(argument, (torch.SymFloat, torch.SymBool)):
            raise OpaqueReference("a number that is computed from sizes")
        if isinstance(argument, (tuple, list)):
            return [self._converted(a, level) for a in argument]
        return argument

    def _steps(self) -> list[Step]:
        """Return the steps in order: of each level its graph, of the values that others read, then the ops that torch runs."""
        steps: list[Step] = []
        for level in sorted({*self.levels, *self.level.values()}):
            here = self.levels.get(level, _Level())
            outputs: dict[fx.Node, Node] = {}
            views: dict[fx.Node, None] = {}
            of_results = Counter(self._views_to(node)[0] for node in here.nodes if any(u.op == "output" for u in node.users))
            for node, result in here.nodes.items():
                read = any(user.op == "output" or (user in self.level and self._reads(user, level)) for user in node.users)
                base, *chain = self._views_to(node, outputs)
                if read and chain and self._places and (base.op != "call_function" or base in self.opaque or base in outputs):
                    views |= dict.fromkeys(chain)
                elif (read or of_results[node] > 1) and not isinstance(result, (tuple, list)):     # results share its memory
                    outputs[node] = result
            if outputs:
                steps.append(self._graph_step(outputs, here))
            steps += [TorchStep(node, "") for node in views]
            steps += [TorchStep(n, self.opaque[n]) for n in self.module.graph.nodes if n in self.opaque and self.level[n] == level]
        return steps

    def _views_to(self, node: fx.Node, outputs: Collection[fx.Node] = ()) -> list[fx.Node]:
        """Return an input, an output, or what torch or a graph computes, then the ops by which a value is a view of it. torch makes
        views of what it has: it needs their offsets and counts writes to their memory, and a graph would copy."""
        chain = [node]
        while chain[0] not in self.opaque and chain[0] not in outputs and is_view(chain[0]):
            chain.insert(0, chain[0].args[0])
        return chain

    def _reads(self, user: fx.Node, level: int) -> bool:
        """Return whether a user reads a value of a level's graph from outside: torch, or the graph of a later level."""
        return user in self.opaque or self.level[user] != level

    def _graph_step(self, outputs: Mapping[fx.Node, Node], here: _Level) -> GraphStep:
        names: dict[str, fx.Node] = {}
        roots: dict[str, Node] = {}
        orders = {name: order for name, order in self.orders.items() if order is not None}
        for i, (value, node) in enumerate(outputs.items()):
            name = f"y{i}"
            order = axis_order(value_of(value))
            if order is not None:
                orders[name], node = order, permute(node, order)
            names[name], roots[name] = value, self._placed(node, value_of(value))
        on_gpu = any(value_of(value).device.type == "cuda" for value in outputs)        # where torch's own checks are asynchronous
        checked, further = ([], {}) if on_gpu else checks(here.reads)
        graph = make_graph(roots | further)
        value_of_name = {node.attrs["name"]: value for value, node in here.inputs.items()}
        inputs, parameters = ({name: value_of_name[name] for name in leaf} for leaf in (graph.inputs, graph.parameters))
        return GraphStep(names, inputs, parameters, graph, orders, {str(dim): symbol for symbol, dim in self.sizes.dims.items()},
                         checked)


BY_TORCH: dict[Any, DType] = {getattr(torch, t.numpy.name): t for t in DTYPES.values() if hasattr(torch, t.numpy.name)}
"""dtype of torch -> ours"""


def is_scalar(node: fx.Node) -> bool:
    """Return whether a node of FX is a size or a number, and no tensor."""
    return isinstance(value_of(node), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool))


def is_view(node: fx.Node) -> bool:
    """Return whether the result of a node of FX is memory of its first operand, by the schema of its op."""
    op = node.args[0].target if node.target is getitem else node.target
    return isinstance(op, torch._ops.OpOverload) and op.is_view


def axis_order(fake: Any) -> tuple[int, ...] | None:
    """Return the order of axes from the largest stride to the smallest, for a dense tensor that is not in C order; else None."""
    formulas = [[size if isinstance(size, int) else size.node.expr for size in sizes] for sizes in (fake.shape, fake.stride())]
    symbols = {symbol for sizes in formulas for size in sizes if not isinstance(size, int) for symbol in size.free_symbols}
    large = {symbol: 5040 * i for i, symbol in enumerate(sorted(symbols, key=str), 2)}     # an example's strides may be equal
    shape, strides = ([size if isinstance(size, int) else int(size.subs(large)) for size in sizes] for sizes in formulas)
    shape = [max(size, 1) for size in shape]                # as torch's strides of a tensor without elements
    order = tuple(sorted(range(len(shape)), key=lambda i: (-strides[i], -shape[i], i)))
    dense = 1
    for axis in reversed(order):
        if shape[axis] > 1 and strides[axis] != dense:
            return None
        dense *= shape[axis]
    return None if order == tuple(range(len(shape))) else order


def _require_own_storage(node: fx.Node, in_graph: bool) -> None:
    """Raise OpaqueReference unless the operand of an op on storage is all of its storage, in C order if a graph computes the op:
    then it is the same of values. Raises TorchDoorError for another operand that is no input, as a graph makes no such views."""
    operand = node.args[0]
    fake = value_of(operand)
    static = all(isinstance(s, int) for s in (*fake.shape, *fake.stride()))
    whole = static and fake.storage_offset() == 0 and fake.untyped_storage().nbytes() == fake.numel() * fake.element_size()
    if whole and (fake.is_contiguous() or (not in_graph and axis_order(fake) is not None)):
        return
    if operand.op != "placeholder" and not (whole and axis_order(fake) is not None):
        raise TorchDoorError(f"{op_name(node)} reads the storage of a view", fix="an index, a slice, or .contiguous() before it")
    raise OpaqueReference("an operand that is not all of its storage in C order")


def _check(result: Any, shape: Sequence[Any], dtype: DType) -> None:
    """Raise OpaqueReference unless a row's result has the type that torch states: a row that is wrong about it is not used."""
    if result.dtype is not dtype or result.rank != len(shape) or not all(map(same_dim, result.shape, shape)):
        raise OpaqueReference(f"its row gives {result.type}, and torch {dtype}{list(map(str, shape))}")
