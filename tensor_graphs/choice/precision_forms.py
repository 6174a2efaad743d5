"""precision_forms: applies forms to a graph, and lists the forms that may be within an accuracy, the fastest first.

The forms that are tried have narrower or wider dtypes than the graph as written. One whose error is far beyond the tolerance when
each value is rounded to its dtype is left out. The plans of the others are measured (measured_accuracy.py), in the order of their
estimated time, and the first one within the tolerance is chosen.

A composite or a subgraph for which a user registered a kernel is a region of its own. Wider forms are first tried with this region
as written, so that the user's kernel can still compute it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from tensor_graphs.choice.graph_forms import GraphForm, as_written
from tensor_graphs.choice.request import Request
from tensor_graphs.kernels.registry import all_kernels, by_op, generators, matching
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.anonymous_composite import PartOp
from tensor_graphs.language.composite import CompositeOp, expand_all
from tensor_graphs.language.composites.blocks import dequantize
from tensor_graphs.language.defined_ops import is_library
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, walk
from tensor_graphs.meaning.precision import KINDS, WRITTEN, Form, parse_form
from tensor_graphs.paths.path import NoPathError
from tensor_graphs.phase_times import phase
from tensor_graphs.rewrites import user_rules
from tensor_graphs.rewrites.passes.apply_precision import (
    apply_form,
    is_narrower,
    loses_nothing,
    names_site,
    sites,
    written_for_kernels,
)
from tensor_graphs.rewrites.passes.result import PassResult

if TYPE_CHECKING:
    from tensor_graphs.choice.cost_table import CostTable
    from tensor_graphs.kernels.kernel import Kernel
    from tensor_graphs.records.database import Database

FOR_ACCURACY = "for the accuracy that was asked for"

WIDE = parse_form("f64")
"""the widest form. It also runs a graph that no kernels compute as written, as numpy has a float64 kernel for every op"""

NARROWED: tuple[tuple[str, ...], ...] = (KINDS, ("weight", "product"), ("weight",))
NARROW: tuple[Form, ...] = tuple(dict.fromkeys(kinds, word) for word in ("bf16", "f16", "f32") for kinds in NARROWED)
"""forms with fewer bits than many graphs are written with; each has all sites of some kinds in one dtype"""

WIDER: tuple[Form, ...] = ({"between": "f32", "state": "f32", "product": "bf16"}, parse_form("f32"), WIDE)
"""forms with more bits than many graphs are written with"""

GAIN = 0.97
"""share of the estimated time of a more accurate form that a less accurate one may take to be tried before it"""

TIE = 0.01
"""share of the time that each kind of narrowed sites has to save: among equally fast forms the most accurate one is tried first"""

_applied: WeakKeyDictionary[Graph, dict[Hashable, tuple[Graph, Mapping[Node, Node]]]] = WeakKeyDictionary()
"""graph -> arguments of `formed` and digest of the user's rules -> the graph in that form, and the images of `GraphForm`"""


@phase("prepare")
def formed(graph: Graph, words: Form, why: str, here: Sequence[str], backends: Sequence[str] | None = None,
           rows: Database | None = None) -> GraphForm:
    """Return a prepared graph in a form, or as written if the form changes nothing.

    Parts, which have the written dtypes, are replaced by their definitions. Parts are then formed again if there were parts with
    recipes, if a product has rounded operands that rules can rewrite, or if a backend generates kernels for any subgraph. here:
    backends whose users' kernels are kept. backends: those for which parts are formed (default: `here`). rows: a database to read
    recipes from its rows and store them there, so that each form is searched once and not by each process."""
    backends = here if backends is None else backends
    fused, cached = generators(backends), _applied.setdefault(graph, {})
    key = tuple(words.items()), tuple(here), tuple(backends), user_rules.digest()
    if key not in cached:
        from tensor_graphs.choice.rewriting import said_anew  # a door: most graphs run as written

        changed = apply_form(graph, words, own_pieces(graph, here))
        nodes = walk(expand_all(graph.roots, lambda n: not (isinstance(n.op, PartOp) and n.op.of_kernels)))
        recipes = any(isinstance(n.op, PartOp) and n.op.recipes for n in nodes) or _has_rounded_products(changed.graph)
        blocks = any(n.op is dequantize for n in changed.graph.nodes)
        if changed.graph is not graph and (recipes or fused or blocks):
            changed = changed.then(PassResult(*said_anew(changed.graph, recipes and (rows or True), fused, backends)))
        cached[key] = changed.graph, changed.images
    result, images = cached[key]
    return GraphForm(graph, {}, why) if result == graph else GraphForm(result, dict(words), why, graph, images)


def _has_rounded_products(graph: Graph) -> bool:
    """Return whether an operand of a product is a cast from a narrower dtype, as rules can replace both (rules/products.py)."""
    return any(n.op.facts.product and any(i.op.name == "cast" and is_narrower(i.inputs[0].dtype, i.dtype) for i in n.inputs)
               for n in graph.nodes)


def promising(graph: Graph, request: Request) -> Iterator[GraphForm]:
    """Yield the forms whose error may be as small as asked, the fastest first; the widest one always.

    Forms with one dtype per kind of sites are left out if their error is too large when each value is rounded (of a large graph: if
    it is predicted to be). Before each, mixed forms that are expected to be faster and within the accuracy come."""
    from tensor_graphs.choice.measured_accuracy import measured_accuracy  # doors: what is as written needs no oracle
    from tensor_graphs.choice.mixed_forms import MixedForms

    seconds_of = estimate(graph, request)
    mixed = MixedForms(graph, measured_accuracy(request), seconds_of)
    words_of = {True: list[Form](), False: list[Form]()}
    narrowed = NARROWED if mixed.errors is None else () if mixed.is_large else NARROWED[:1]         # mixed forms include the others
    formats = list(mixed.formats) if mixed.errors is None else []
    for words, changed in candidates(graph, request, narrowed, formats):
        words_of[mixed.promises(words, changed)].append(words)
    enough = any(loses_nothing(words, graph) and not _is_widest(words) for words in words_of[True])
    tried = [words for words in words_of[True] if not (enough and _is_widest(words))]
    order = sorted(tried, key=lambda words: _with_tie(seconds_of(graph, words), words, graph))
    left_out = [words for words in (*words_of[True], *words_of[False]) if words not in tried and (_is_widest(words) or not order)]
    for words in (*order, *left_out[-1:]):
        seconds = _with_tie(seconds_of(graph, words), words, graph) if words in words_of[True] else math.inf
        for mix in mixed.faster(GAIN * seconds):
            chosen = {key: word for key, word in mix.items() if not names_site(request.words, key)}
            yield formed(graph, {**chosen, **request.words}, FOR_ACCURACY, request.here, rows=request.store)
        yield formed(graph, words, FOR_ACCURACY, request.here, rows=request.store) if words else as_written(graph)


def _is_widest(words: Form) -> bool:
    return words.get("between") == WIDE["between"]


def _with_tie(seconds: float, words: Form, graph: Graph) -> float:
    """Return an estimated time, a little more for each kind of sites that loses something."""
    return seconds * (1.0 if loses_nothing(words, graph) else 1.0 + TIE * (1 + len(words)))


def estimate(graph: Graph, request: Request) -> Callable[[Graph, Form], float]:
    """Return a function (graph, form) -> estimated seconds, for a prepared graph or a part of it alone. It is created once for a
    request."""
    function: Callable[[Graph, Form], float] | None = request.__dict__.get("estimate")
    if function is not None:
        return function
    from tensor_graphs.choice.cost_table import ESTIMATE_MARGIN, CostTable  # doors: as above
    from tensor_graphs.choice.prepare import prepare

    costs, table = CostTable.of(request, ESTIMATE_MARGIN), by_op(all_kernels(request.here))
    times: dict[tuple[Graph, tuple[tuple[str, str], ...]], float] = {}

    def seconds(part: Graph, words: Form) -> float:
        key = part, tuple(sorted(words.items()))
        if key not in times:
            prepared = part if part == graph else prepare(part, backends=request.here).graph
            form = formed(prepared, words, FOR_ACCURACY, request.here, rows=request.store) if words else as_written(prepared)
            times[key] = _seconds(form.graph, costs, table, request.at or {})
        return times[key]

    request.__dict__["estimate"] = seconds
    return seconds


def candidates(graph: Graph, request: Request, narrowed: Sequence[Sequence[str]] = NARROWED,
               formats: Sequence[str] = ()) -> Iterator[tuple[Form, Graph]]:
    """Yield the words of different forms of a graph, each with the words of the request, and the graph in them, without new parts.
    narrowed: the kinds of sites that forms with fewer bits have in one dtype. formats: to which products may round operands."""
    asked, pieces = request.words, own_pieces(graph, request.here)
    as_pieces = {f"between:{s.spec.op.name}": WRITTEN for s in pieces}
    dtypes = {site.dtype.name for site in sites(graph)}
    products = [{"product": word} for word in formats] if "f32" in dtypes else []
    narrow = [*products, *(form for form in NARROW if not dtypes <= set(form.values()) and tuple(form) in narrowed
                           and not ("f16" in form.values() and "bf16" in dtypes))]
    wider = [form for form in WIDER if form.get("product") != "bf16" or dtypes & {"bf16", "f16"}]
    tried = dict[Graph, None]()
    for form in (*narrow, {}, *({**form, **as_pieces} for form in wider if pieces), *wider):
        words = {**form, **asked}
        changed = apply_form(graph, words, pieces).graph
        if changed not in tried:
            tried[changed] = None
            yield {} if changed == graph else words, changed


def _seconds(graph: Graph, costs: CostTable, table: Mapping[str, list[Kernel]], at: Mapping[str, int]) -> float:
    """Return the estimated seconds of the cheapest path of a graph at typical sizes; inf if it has no path."""
    from tensor_graphs.choice.cost_table import typical_sizes  # a door: as above

    sizes = typical_sizes(graph, {name: size for name, size in at.items() if name in graph.dims})
    try:
        return costs.paths(graph, table, sizes, optimistic=True).cheapest().cost
    except NoPathError:
        return math.inf


def own_pieces(graph: Graph, backends: Sequence[str]) -> frozenset[Signature]:
    """Return the composites outside of the library, anonymous ones of subgraphs included, for which a graph has users' kernels."""
    table = by_op([k for k in all_kernels(backends) if k.composite is not None])
    if not table:
        return frozenset()
    roots = expand_all(graph.roots, lambda n: not (isinstance(n.op, PartOp) and n.op.alone), written_for_kernels)
    pieces = {signature_of(node) for node in walk(roots)
              if isinstance(node.op, CompositeOp) and not (is_library(node.op) or node.op.opaque)}
    return frozenset(s for s in pieces if matching(s.spec, table))
