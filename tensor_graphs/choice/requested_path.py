"""requested_path: find the form of a graph to which a caller's path belongs, and explain why that path cannot run on this machine.

Such a path replaces a choice. It is a `Path` (for all sizes), a `Pin` (a path for each cell of sizes), or the file of a pin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from tensor_graphs.choice.cost_table import CostTable
from tensor_graphs.choice.graph_forms import GraphForm, as_written
from tensor_graphs.choice.precision_forms import formed
from tensor_graphs.choice.prepare import PreparedGraph, prepare
from tensor_graphs.choice.request import Request
from tensor_graphs.kernels.kernel import Kernel, KernelError
from tensor_graphs.kernels.registry import BACKENDS, GENERATORS, kernel_named, lacking, matching, why_missing
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language.composite import is_loop
from tensor_graphs.language.graph import Graph
from tensor_graphs.paths.path import NoPathError, Path, StalePathError, is_way_on
from tensor_graphs.paths.pin_file import Pin
from tensor_graphs.records.database import Database

Given = Path | Pin


def form_of(request: Request, chosen: Given, database: Database | bool) -> tuple[PreparedGraph, GraphForm]:
    """Return the form of a request's graph to which a path belongs. Forms: as written; with composites recognised and parts
    rewritten; without recipes (where memory was short); each in the path's words for precision. database:
    where to look for recipes. Raises NoPathError where the path belongs to no form."""
    graph, here, key, words = request.graph, request.here, chosen.graph_key, _paths(chosen)[0].form
    for prepared in _forms(graph, request.simplify, database, here):
        for backends in _told_apart(graph, here) if words else ():
            form = formed(prepared.graph, words, "as the given path has it", here, backends)
            if form.graph.structural_key == key:
                return prepared, form
        if not words and prepared.graph.structural_key == key:
            return prepared, as_written(prepared.graph)
    raise NoPathError(_of_another(graph, chosen, request.simplify, database))


def _forms(graph: Graph, simplify: bool, database: Database | bool, here: Sequence[str]) -> Iterator[PreparedGraph]:
    tried = [graph]
    yield PreparedGraph(graph)
    if (in_turns := prepare(graph, False, backends=here)).graph is not graph:
        yield in_turns
    if simplify:
        for backends in _told_apart(graph, here):
            for recipes in (database, False):
                prepared = prepare(graph, recipes=recipes, backends=backends)
                if not any(prepared.graph is other for other in tried):
                    tried.append(prepared.graph)
                    yield prepared


def _paths(chosen: Given) -> list[Path]:
    return [chosen] if isinstance(chosen, Path) else [v.path for v in chosen.variants]


def _told_apart(graph: Graph, here: Sequence[str]) -> list[Sequence[str]]:
    """Return the sets of backends for which a graph may have been prepared differently: those present here for a graph with loops,
    since parts with equal keys may be rewritten differently elsewhere; and backends without and with fusion of neighbouring
    steps."""
    return [*([here] if any(is_loop(n.op) for n in graph.nodes) else []), (), GENERATORS]


def _of_another(graph: Graph, chosen: Given, simplify: bool, database: Database | bool) -> str:
    """Explain why the path belongs to no form of the graph, and what to do."""
    for name in {name: None for path in _paths(chosen) for name in path.choices.values() if not is_way_on(name)}:
        try:                                                        # what it computes may be no piece of its own any more
            kernel_named(name)
        except KernelError as e:
            return f"the path {_paths(chosen)[0].id} chooses {name!r}, and {e} (--import)"
    if not isinstance(chosen, Pin):
        return (f"the path {chosen.id} is of another graph: {chosen.graph_key[:12]}, this is {graph.structural_key[:12]}\n"
                "  fix: list the paths of this graph (tg list-paths), or give the graph that it was listed for")
    if chosen.written == graph.structural_key:
        here = prepare(graph, simplify, recipes=database).note
        return ("the pin is of this graph, but what was recognised in it and said otherwise is not what is here\n"
                f"  there: {chosen.prepared or 'nothing'}\n  here: {here or 'nothing'}\n"
                "  fix: import the modules whose kernels compute graphs (--import), or pin it again (tg plan --pin)")
    source = f": it was made of {chosen.source}" if chosen.source else ""
    return (f"the pin is of another graph, {chosen.written[:12]}; this is {graph.structural_key[:12]}{source}\n"
            "  fix: the same graph (of a model, the same --dtype and --max-positions, and --logits where tokens are drawn), or pin "
            "this one: tg plan --pin")


def explained(error: StalePathError, signature: Signature | None, backends: Sequence[str], table: Mapping[str, list[Kernel]],
              costs: CostTable, binding: Mapping[str, int]) -> NoPathError:
    """Return the error with the reason why the choice is not available here, and a fix."""
    if error.name is None:
        return NoPathError(f"the path {error.path.id} chooses nothing for {error.title}, which its graph holds\n"
                           "  fix: choose again (tg plan --pin)")
    if "\n" in str(error):                                          # it says so itself
        return error
    why, fix = _why(error.name, signature, backends, table, lambda k, s: costs.refusal(k, s, binding))
    return NoPathError(f"{error}: {why}\n  fix: {fix}, or choose again (tg plan --pin, tg list-paths)")


def _why(name: str, signature: Signature | None, backends: Sequence[str], table: Mapping[str, list[Kernel]],
         refusal: Callable[[Kernel, Signature], str | None]) -> tuple[str, str]:
    """Return the reason why a choice is not available, and a fix."""
    if is_way_on(name):
        return "rules say this part otherwise today, or no kernel computes a step of it", "the version that it was chosen with"
    backend = name.partition(".")[0]
    if backend in BACKENDS and backend not in backends:
        missing = why_missing(backend)
        if missing is not None:
            return f"backend {backend} is not available: {missing}", "make the backend available"
        return f"the backend {backend} is not among those that may be used", f"--backends {','.join((*backends, backend))}"
    try:
        kernel = kernel_named(name)
    except KernelError as e:
        reason, _, fix = str(e).partition("\n  fix: ")
        return reason, f"{fix} (--import)"
    missing = lacking(kernel)
    if missing is not None:
        return missing, "a machine that has it"
    if signature is None or kernel not in matching(signature.spec, table):
        return "it does not take this today", "the version that it was chosen with"
    refused = refusal(kernel, signature)
    loose = "beyond the tolerance" in (refused or "")
    return refused or "no verdict is on file", "a larger tolerance" if loose else f"tg db history {name} shows the rows"
