"""backend: the backend "tensor_graphs" of torch.compile, for inference and training.

    fast = torch.compile(model, backend="tensor_graphs")

AOT autograd gives functional graphs of core ATen ops, one of the forward pass and one of the backward pass; each becomes graphs of
this package (fx.py), compiled by `tg.compile`. Plans are kept in the process by the structure of the graph and the request, never
by the shapes of an example: sizes that torch calls dynamic are dims. Parameters are inputs of the graphs, read where they lie, so
that an optimiser's step is seen by the next run. With freeze=True they are parameters of the graphs, bound once: kernels prepare
them, and what depends on them alone is computed then.
"""

from __future__ import annotations

import logging
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch.nn.attention import SDPBackend, sdpa_kernel

from tensor_graphs.choice.compile import answer
from tensor_graphs.choice.request import Request
from tensor_graphs.errors import close_to
from tensor_graphs.frontends.torch.exchange import before_a_run, overlapping, to_array, to_numpy, to_tensor
from tensor_graphs.frontends.torch.fx import Converter, GraphStep, TorchDoorError, TorchStep, is_scalar, value_of
from tensor_graphs.frontends.torch.sizes import TorchSizes
from tensor_graphs.kernels.registry import DEFAULT_BACKENDS
from tensor_graphs.language.graph import Graph
from tensor_graphs.paths.plan import Plan
from tensor_graphs.runtime.compiled_graph import CompiledGraph, bind

log = logging.getLogger(__name__)

REQUEST = ("tolerance", "backends", "database", "threads", "precision", "simplify", "assuming", "accuracy_seconds")
"""options of torch.compile that are arguments of tg.compile"""

OPTIONS = (*REQUEST, "strict", "freeze")

ON_A_GPU = (*DEFAULT_BACKENDS, "cuda", "gencuda", "torchcuda")
"""backends of a graph that has tensors on a GPU, unless the caller names some"""

_plans: dict[Any, Plan] = {}
_compiled: list[weakref.ref[CompiledModule]] = []


def compiled_modules() -> list[CompiledModule]:
    """Return what this backend has compiled and torch still holds, in order: a module for each forward or backward pass."""
    return [module for reference in _compiled if (module := reference()) is not None]


def compiled_graphs() -> list[Graph]:
    """Return each graph that this backend has compiled and torch still holds, for `tg.profile(graph)`; a module's parameters are
    inputs of its graphs. After `forget` and `torch.compiler.reset`, or in a new process, compiling uses the measurements."""
    return list({step.graph.structural_key: step.graph for module in compiled_modules() for step in module.graph_steps}.values())


def forget() -> None:
    """Forget the plans that are kept in this process; the next compilation reads them again, with what has been measured since."""
    _plans.clear()
    _compiled.clear()


class CompiledModule:
    """The steps of one FX graph, ready to run. Called with a list of all inputs (boxed: the list is emptied), it returns the list
    of outputs. strict: refuse ops without a row. request: arguments of tg.compile. mutated, frozen: numbers of inputs that the
    module writes to, and of those that are bound once."""

    def __init__(self, module: fx.GraphModule, request: Mapping[str, Any], strict: bool, mutated: Sequence[int] = (),
                 frozen: Sequence[int] = ()) -> None:
        self.sizes, self.module, self._mutated = TorchSizes(), module, tuple(mutated)
        nodes = list(module.graph.nodes)
        self.placeholders = [n for n in nodes if n.op == "placeholder"]
        self.steps = Converter(module, self.sizes, frozen={self.placeholders[i] for i in frozen}).convert()
        self.graph_steps = [step for step in self.steps if isinstance(step, GraphStep)]
        self.opaque = {f"{step.node.target}": step.why for step in self.steps if isinstance(step, TorchStep) and step.why}
        if self.opaque:
            named = "; ".join(f"{name} ({why})" for name, why in self.opaque.items())
            if strict:
                raise TorchDoorError(f"no graph computes {named}", fix="strict=False: torch runs them between graphs")
            log.warning("torch runs, between graphs: %s", named)
        self._constants = {n: operator.attrgetter(n.target)(module) for n in nodes if n.op == "get_attr"}
        (results,) = module.graph.output_node().args
        self._results = list(results) if isinstance(results, (tuple, list)) else [results]
        self._run = [self._runner(step, request) for step in self.steps]
        self._sources = _size_sources(self.placeholders, self.steps)
        self._overlap: frozenset[tuple[int, int]] | None = None
        _compiled.append(weakref.ref(self))

    @property
    def plans(self) -> list[Plan]:
        """The plans of its graphs, in order."""
        return [run.plan for run in self._run if isinstance(run, _RunGraph)]

    def explain(self) -> str:
        """Return `tg.explain` of each graph, with the ops that torch runs between them."""
        from tensor_graphs.views.explain import explain

        return "\n".join(f"torch runs {s.node.target}: {s.why}" if isinstance(s, TorchStep) else explain(r.plan)
                         for s, r in zip(self.steps, self._run, strict=True) if isinstance(s, GraphStep) or s.why)

    def _runner(self, step: GraphStep | TorchStep, request: Mapping[str, Any]) -> Any:
        return _RunGraph(step, request) if isinstance(step, GraphStep) else _RunTorch(step.node)

    def __call__(self, arguments: list[Any]) -> list[Any]:
        """Return the outputs: tensors, sizes and None. Raises RunError for sizes out of range, TorchDoorError for inputs that
        overlap now, but not when torch traced the module, where one of them is written to."""
        values: dict[fx.Node, Any] = dict(zip(self.placeholders, arguments, strict=True)) | self._constants
        if self._mutated:
            self._check_overlap(arguments)
        arguments.clear()
        scope = _Scope(values, self._sources)
        for run in self._run:
            run(scope)
        return [scope.value(result) for result in self._results]

    def _check_overlap(self, arguments: Sequence[Any]) -> None:
        pairs = frozenset(p for p in overlapping(arguments) if p[0] in self._mutated or p[1] in self._mutated)
        if self._overlap is None:
            self._overlap = pairs
        elif pairs - self._overlap:
            a, b = min(pairs - self._overlap)
            raise TorchDoorError(f"inputs {a} and {b} of the module share memory, which they did not when it was compiled, and one "
                                 "is written to", fix="copies of them: x.clone()")


class _Scope:
    """The values of one run: tensors by node of FX, and sizes of symbols."""

    def __init__(self, values: dict[fx.Node, Any], sources: Mapping[Any, tuple[fx.Node, int | None]]) -> None:
        self.values, self.sources = values, sources

    def size(self, symbol: Any) -> int:
        """Return the value of a symbol of torch: of an input that is a size, or of an axis of a tensor."""
        node, axis = self.sources[symbol]
        return int(self.values[node] if axis is None else self.values[node].shape[axis])

    def value(self, argument: Any) -> Any:
        """Return an argument of FX with the values of this run."""
        return fx.map_arg(argument, self._of) if not isinstance(argument, fx.Node) else self._of(argument)

    def _of(self, node: fx.Node) -> Any:
        if node in self.values:
            return self.values[node]
        if not is_scalar(node):
            raise KeyError(node.name)
        fake = value_of(node)
        if isinstance(fake, (int, float, bool)):
            return fake
        expression = fake.node.expr
        number = expression.xreplace({s: _integer(self.size(s)) for s in expression.free_symbols})
        return bool(number) if isinstance(fake, torch.SymBool) else int(number) if isinstance(fake, torch.SymInt) else float(number)


@lru_cache(maxsize=4096)
def _integer(value: int) -> Any:
    import sympy

    return sympy.Integer(value)


class _RunTorch:
    """Runs one op by torch."""

    def __init__(self, node: fx.Node) -> None:
        self.node = node

    def __call__(self, scope: _Scope) -> None:
        args, keywords = scope.value(self.node.args), scope.value(self.node.kwargs)
        with torch.no_grad():
            scope.values[self.node] = self.node.target(*args, **keywords)


class _RunGraph:
    """Runs one graph on the memory of tensors. Its parameters are bound at the first run, and again when torch has counted a
    write to one of them, or another tensor is in its place."""

    def __init__(self, step: GraphStep, request: Mapping[str, Any]) -> None:
        self.step = step
        self.on_gpu = any(value_of(node).device.type == "cuda" for node in (*step.inputs.values(), *step.outputs.values()))
        if self.on_gpu:
            request = {"backends": ON_A_GPU, **request}
        self.plan = plan_of(step.graph, request)
        self.inputs, self.outputs = tuple(step.inputs.items()), tuple(step.outputs.items())
        self.more = bool(step.further_sizes(lambda symbol: 0))
        self._model: CompiledGraph | None = None
        self._bound: list[tuple[int, int]] = []

    def model(self, scope: _Scope) -> CompiledGraph:
        """Return the plan, bound with the parameters of this run."""
        weights = {name: scope.values[node] for name, node in self.step.parameters.items()}
        versions = [(t.data_ptr(), 0 if t.is_inference() else t._version) for t in weights.values()]
        if self._model is None or versions != self._bound:
            arrays = {name: to_numpy(t, self.step.orders.get(name)) for name, t in weights.items()}
            self._model, self._bound = bind(self.plan, arrays), versions
        return self._model

    def __call__(self, scope: _Scope) -> None:
        model = self.model(scope)
        if self.on_gpu:
            before_a_run([scope.values[node] for _, node in self.inputs])
        arrays = {name: to_array(scope.values[node], self.step.orders.get(name)) for name, node in self.inputs}
        results = model.run(arrays, dims=self.step.further_sizes(scope.size)) if self.more else model.run(arrays)
        for check in self.step.checks:
            check.require(results[check.name] if check.name in results else arrays[check.name],
                          lambda name: scope.size(self.step.symbols[name]))
        for name, node in self.outputs:
            scope.values[node] = to_tensor(results[name], self.step.orders.get(name))


def plan_of(graph: Graph, request: Mapping[str, Any]) -> Plan:
    """Return the plan of a graph: the one that this process has for its structure and the request, or a new one."""
    asked = Request(graph, **request)
    key = (graph.structural_key, tuple(graph.inputs), tuple(graph.outputs), graph.dim_order, str(asked.decides()),
           str(request.get("database")))
    if key not in _plans:
        _plans[key] = answer(asked)
    return _plans[key]


def _size_sources(placeholders: Sequence[fx.Node], steps: Sequence[Any]) -> dict[Any, tuple[fx.Node, int | None]]:
    """Return symbol -> where a run reads its value: an input that is this size, or an axis of a tensor of this size."""
    sources: dict[Any, tuple[fx.Node, int | None]] = {}
    produced = [s.node for s in steps if isinstance(s, TorchStep)]
    for node in (*placeholders, *produced):
        fake = value_of(node)
        if isinstance(fake, torch.SymInt) and fake.node.expr.is_Symbol:
            sources.setdefault(fake.node.expr, (node, None))
    for node in (*placeholders, *produced):
        fake = value_of(node)
        for axis, size in enumerate(fake.shape if isinstance(fake, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                sources.setdefault(size.node.expr, (node, axis))
    return sources


def tensor_graphs(module: fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None,
                  mode: str = "default") -> Any:
    """Return the compiled form of an FX graph, for `torch.compile(model, backend="tensor_graphs", options={…})`.

    options: tolerance, backends, database, threads, precision, simplify, assuming and accuracy_seconds as for `tg.compile`
    (default: as written); strict=True refuses an op that no graph computes, instead of running it by torch; freeze=True binds
    parameters and buffers once, where no gradients are computed. Raises TorchDoorError for unknown options, for a mode (inductor
    has some), and what `tg.compile` raises.
    """
    if mode != "default":
        raise TorchDoorError(f"the backend tensor_graphs has no mode {mode!r}", fix="no mode; its options={…} are "
                             f"{', '.join(OPTIONS)}")
    chosen = dict(options or {})
    unknown = [name for name in chosen if name not in OPTIONS]
    if unknown:
        near = close_to(unknown[0], OPTIONS)
        raise TorchDoorError(f"the backend tensor_graphs has no option {unknown[0]!r}",
                             fix=f"did you mean {near[0]}?" if near else f"one of {', '.join(OPTIONS)}")
    strict, freeze = switches = chosen.pop("strict", False), chosen.pop("freeze", False)
    if not all(isinstance(switch, bool) for switch in switches):
        raise TorchDoorError(f"the options strict and freeze are True or False, and not {strict!r} and {freeze!r}",
                             fix="strict=True, or no option")

    def compiled(graph: fx.GraphModule, freeze: bool) -> Any:
        metadata = _traced_metadata()
        mutated = () if metadata is None else metadata.mutated_inp_runtime_indices
        frozen = set(metadata.static_input_indices) - set(mutated) if freeze and metadata is not None else ()
        return boxed(CompiledModule(graph, chosen, strict, mutated, sorted(frozen)))

    backend = aot_autograd(fw_compiler=lambda graph, _: compiled(graph, False),
                           inference_compiler=lambda graph, _: compiled(graph, freeze),
                           bw_compiler=lambda graph, _: boxed(CompiledModule(graph, chosen, strict)),
                           decompositions=decompositions())
    on_gpu = any(isinstance(x, torch.Tensor) and x.device.type == "cuda" for x in example_inputs)
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)                     # with it, torch's decompositions of LSTM and GRU end in an op of oneDNN
    try:
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]) if on_gpu else nullcontext():     # a row, and small ops
            return backend(module, example_inputs)
    finally:
        torch._C._set_mkldnn_enabled(enabled)


def boxed(compiled: CompiledModule) -> Callable[[list[Any]], list[Any]]:
    """Return a function (torch's wrappers copy the attributes of functions alone) that takes its arguments as one list."""

    def run(arguments: list[Any]) -> list[Any]:
        return compiled(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _traced_metadata() -> Any:
    """Return what AOT autograd knows of the inputs of the module that is being compiled, or None."""
    context = torch._guards.TracingContext.try_get()
    return None if context is None else context.fw_metadata


@lru_cache(maxsize=1)
def decompositions() -> dict[Any, Any]:
    """Return torch's decompositions into core ATen ops, without those of ops that are rows here, with those of core ops that are
    none."""
    from torch._decomp import core_aten_decompositions, get_decompositions

    from tensor_graphs.frontends.torch.aten.decomposed import DECOMPOSED, KEPT

    table = dict(core_aten_decompositions()) | dict(get_decompositions([getattr(torch.ops.aten, n) for n in DECOMPOSED]))
    return {op: rule for op, rule in table.items() if str(op).removeprefix("aten.") not in KEPT}
