"""compiling: compiles and binds a model, with progress on standard error; shared by `run`, `chat`, `embed` and `demo`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tensor_graphs.cli import option_groups, options
from tensor_graphs.cli.graphs import within
from tensor_graphs.cli.measured_on import NO_TOLERANCE, inputs_of
from tensor_graphs.phase_times import IMPORT, phase

if TYPE_CHECKING:
    from tensor_graphs.frontends.huggingface.load import LoadedModel
    from tensor_graphs.language.graph import Graph
    from tensor_graphs.paths.plan import Plan
    from tensor_graphs.runtime.compiled_graph import CompiledGraph


@dataclass
class Ready:
    """A loaded, compiled and bound model, which can run."""

    model: LoadedModel
    plan: Plan
    compiled: CompiledGraph
    compile_seconds: float


def load_decoder(name: str, dtypes: option_groups.Dtypes, *, max_positions: int | None, random_seed: int | None) -> LoadedModel:
    """Return the text-generating model of a folder (or built-in name). Raises NotPossible for a model that embeds, and what
    `load_model` raises."""
    with phase(IMPORT):
        from tensor_graphs.frontends.huggingface.load import load_model

    loaded = load_model(name, dtype=dtypes.dtype, activations=dtypes.activations, max_positions=max_positions,
                        random_seed=random_seed)
    if loaded.encoder:
        raise options.NotPossible(
            f"{name} is a {loaded.kind} model, which does not generate text\n  fix: tg embed {name} --text …"
        )
    return loaded


def ready(model: LoadedModel, choice: option_groups.ModelOptions, database: str | None, *, at: Mapping[str, int],
          largest: Mapping[str, int], quiet: bool, memory_limit: int | None = None, greedy: bool = False,
          text: str | None = None) -> Ready:
    """Compile and bind a loaded model. greedy: use the graph whose outputs are the likeliest tokens, not all logits. at: the sizes
    at which costs are estimated, clamped to the model's dims. largest: the least sizes that the plan must serve; they are rounded
    up to powers of two, so that a later text of another length can use the plan. text: file on whose tokens the error is measured
    (default: the model's own text)."""
    model.begin()
    with phase("read model"):
        graph = model.greedy_graph if greedy else model.graph
    rounded = {name: 1 << (size - 1).bit_length() for name, size in largest.items()}
    return Ready(model, *compiled_graph(
        graph, model.weights, choice, database, at=at, largest=rounded, quiet=quiet, memory_limit=memory_limit, text=text,
        inputs=lambda backends: inputs_of(model, text, database, backends)))


def compiled_graph(graph: Graph, weights: Mapping[str, Any], choice: option_groups.ModelOptions, database: str | None, *,
                   at: Mapping[str, int], quiet: bool, largest: Mapping[str, int] | None = None, memory_limit: int | None = None,
                   text: str | None = None, inputs: Callable[[tuple[str, ...] | None], Any] = lambda backends: None,
                   what: str = "compiling") -> tuple[Plan, CompiledGraph, float]:
    """Return (plan, bound plan, seconds of compiling) of a graph with its weights. inputs: function of the backends that returns
    the inputs of error draws. Other arguments are those of `ready`."""
    import time

    with phase(IMPORT):
        from tensor_graphs.kernels.c import library
    backends = options.given_backends(choice.backends)
    if backends is None or {"c", "gen"} & set(backends):
        library.ahead()                         # two threads, as all that comes next keeps one processor busy
    with phase(IMPORT):
        from tensor_graphs.choice import plan_file
        from tensor_graphs.choice.request import Request, as_given
        from tensor_graphs.runtime.compiled_graph import bind
        from tensor_graphs.runtime.threads import set_threads

    started = time.perf_counter()
    if choice.threads is not None:
        set_threads(choice.threads)
    request = Request(graph, choice.tolerance, backends, database, within(graph, at), within(graph, largest or {}), memory_limit,
                      reuse_outputs=True, threads=choice.threads, precision=choice.precision, path=as_given(choice.plan))
    if request.accuracy.terms:
        request = replace(request, weights=weights, inputs=inputs(backends))
    elif text is not None:
        raise options.UsageError(NO_TOLERANCE)
    file = plan_file.of(request)
    plan = None if file is None else file.read()
    if plan is None:
        with phase(IMPORT):                     # here: a plan that is read from its file needs neither the search nor the database
            from tensor_graphs.choice.compile import answer
        with options.status(what, quiet) as update:
            plan = answer(replace(request, database=options.database(database, pinned=choice.plan is not None)), update)
    seconds = time.perf_counter() - started
    with options.status("binding weights", quiet):
        compiled = bind(plan, weights)
    return plan, compiled, seconds
