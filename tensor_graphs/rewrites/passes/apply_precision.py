"""apply_precision: changes the float dtypes in which a graph stores and multiplies numbers, site by site.

    form = {"between": "f32", "product:layers.3.q": "bf16"}
    changed = apply_form(graph, form).graph

A *site* is a place of the graph where a dtype can be chosen; its *word* names the dtype. Kinds of sites:

    between  all values between the ops of a region. A layer is a region; nodes that depend on no parameter are the region "graph"
    product  the operands of one matrix product, named after its weight, or after its region and op. Its word may also be a format
             to which it rounds its operands: of f32 "tf32" or "bf16x2" (language/composites/rounded.py), of a linear "f8e4m3",
             scaled row by row; "int8" or "int8x2" rounds x alone, where the weight is in blocks
    weight   a parameter matrix, as one op (a product, a gather) reads it, also one that is stored in blocks. Its word may also be
             a format of blocks ("q8_0", language/composites/quantise.py): the op reads numbers near the parameter's
    state    a state

A *form* maps sites to words: "kind:name" is one site, "kind:pattern" (as in fnmatch) several, "kind" all of that kind; the most
specific one counts. Sites without a word stay as written; the form {} is the graph as written.

Numeric class: reassociating, or approximate with a word of blocks. In real mode a cast between floats is the identity, so the
oracle returns the same values for a graph in all forms of dtypes; tests/rewrites checks that.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.costs.predicted_error import loop_roundings
from tensor_graphs.errors import close_to, listed
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language.anonymous_composite import PartOp, over
from tensor_graphs.language.composite import LIBRARY, CompositeOp, Definition, defined, expand_all
from tensor_graphs.language.composites import arithmetic
from tensor_graphs.language.composites.blocks import block_linear, dequantize, rounded_block_linear
from tensor_graphs.language.composites.products import dot, linear, scaled_linear
from tensor_graphs.language.composites.quantise import format_of_rows, quantize
from tensor_graphs.language.composites.rounded import LEVELS, rounded, rounded_dot, rounded_linear
from tensor_graphs.language.dtypes import DType, f8e4m3, f32
from tensor_graphs.language.errors import LanguageError, written_at
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import ArrayValue, Node, Op, apply, walk
from tensor_graphs.language.subgraph import Body
from tensor_graphs.meaning.precision import BLOCKS, FORMATS, KINDS, WORDS, WRITTEN, Form, SiteKind, loses, parse_form
from tensor_graphs.rewrites.passes.result import APPROXIMATE, PassClass, PassResult
from tensor_graphs.rewrites.rule import REASSOCIATING

ROUNDED_PRODUCTS: Mapping[Op, CompositeOp] = {linear: rounded_linear, dot: rounded_dot}
"""product -> the product of operands that are rounded to a format; other products get operands that are rounded before"""

REST = "graph"
"""name of the region of nodes that depend on no parameter"""


@dataclass(frozen=True)
class PrecisionSite:
    """A place where a dtype can be chosen. region: name of the region that contains it. nodes: its nodes, in the graph whose
    composites outside of the library are replaced by their definitions (`written_out`). dtype: the widest float dtype written
    there. readers: for a weight, the nodes that read it."""

    kind: SiteKind
    name: str
    region: str
    nodes: tuple[Node, ...]
    dtype: DType
    readers: tuple[Node, ...] = ()

    @property
    def key(self) -> str:
        """Name of the site in a form, unique in its graph."""
        return f"{self.kind}:{self.name}"


def sites(graph: Graph, whole: Collection[Signature] = ()) -> tuple[PrecisionSite, ...]:
    """Return the sites of a graph: kind by kind, in the order of computation. whole: composites outside of the library that are not
    replaced by their definitions; each is a region of its own, named after its op."""
    return _Sites(written_out(graph, whole)).sites


def apply_form(graph: Graph, form: Form, whole: Collection[Signature] = ()) -> PassResult:
    """Return the graph in a form. Numeric class: reassociating; approximate where a weight is stored in blocks.

    Before: well typed. After: well typed; the same names, shapes, dims, inputs and parameters, and the same dtypes of outputs;
    float states have the dtypes of their words. A graph in which nothing changes is returned unchanged.

    A region's values are computed and stored in the dtype of its word. Inputs and parameters are unchanged: an op that takes a
    narrow weight with a wider operand (linear, rms_norm, embedding, …) reads the weight as it is; for any other op it is cast. In a
    region with a word, casts between floats disappear, whatever they would have rounded, but for casts to 8 bits. Values that
    depend on integers alone (positions, say) are never narrowed. Constants keep the value that is written. If a product's word is
    narrower than its operands, these are rounded to it and keep their dtype; if it is wider, the product is computed in it. With
    the word of a format the product is computed in f32, from operands rounded to it; one that has no more bits, or cannot round so,
    stays as it is. A weight in blocks is quantised from the parameter when the graph is bound; one whose rows are no whole blocks
    gets the format that `format_of_rows` has in its place, or stays as it is.

    Ops whose result depends on their dtype are computed as written: `bitcast`, `uniform` and opaque ops outside of the library take
    and return the written dtypes. Other composites outside of the library are replaced by their definitions, except those in
    `whole` whose site has no word.

    >>> x, w = leaves.input("x", (2, 4)), leaves.parameter("w", (3, 4))
    >>> from tensor_graphs.language.composites import linear, softmax
    >>> g = make_graph(softmax(linear(x, w)))
    >>> [f"{n.op.name} {n.type}" for n in apply_form(g, {"between": "f64"}).graph.nodes if n.op.kind != "leaf"]
    ['cast f64[2, 4]', 'linear f64[2, 3]', 'softmax f64[2, 3]', 'cast f32[2, 3]']
    >>> [f"{n.op.name} {n.type}" for n in apply_form(g, {"product:w": "bf16"}).graph.nodes if n.op.kind != "leaf"]
    ['cast bf16[2, 4]', 'cast f32[2, 4]', 'cast bf16[3, 4]', 'linear f32[2, 3]', 'softmax f32[2, 3]']
    """
    words = _Words(form)
    if not words.any:
        return PassResult(graph)
    as_written = {s for s in whole if words.of("between", s.spec.op.name) is None}
    return _Application(graph, words, as_written).result()


def check_sites(form: Form, graph: Graph, whole: Collection[Signature] = ()) -> None:
    """Raise ArgumentError if a form names a site, or has a pattern, that matches no site of the graph, and if two patterns of one
    length have different words for a site. whole: as in `sites`."""
    keys = [site.key for site in (*sites(graph), *(sites(graph, whole) if whole else ()))]
    for key in form:
        if ":" in key and key not in keys and not any(fnmatchcase(there, key) for there in keys):
            kind = key.partition(":")[0]
            of_kind = [there for there in keys if there.startswith(f"{kind}:")]
            near = close_to(key, of_kind)
            fix = f"did you mean {near[0]!r}?" if near else f"one of {listed(of_kind)}" if of_kind else f"it has no site {kind}:…"
            raise ArgumentError(f"precision names {key!r}, and the graph has no such site\n  fix: {fix}")
    for key in keys:
        patterns = patterns_of(form, key)
        longest = [p for p in patterns if len(p) == len(patterns[-1])]
        if len({form[p] for p in longest}) > 1:
            raise ArgumentError(f"precision has several words for {key!r}, by patterns of one length: {listed(longest)}\n"
                                f"  fix: a word for {key!r} itself")


def loses_nothing(form: Form, graph: Graph) -> bool:
    """Return whether no word of a form is narrower than the dtype that is written at its site."""
    words = _Words(form)
    return not any((word := words.word(site.kind, site.name)) != WRITTEN and loses(word, site.dtype) for site in sites(graph))


def patterns_of(form: Form, key: str) -> list[str]:
    """Return the patterns of a form that match a site's key, the longest last; only the key if the form has it."""
    return [key] if key in form else sorted((p for p in form if ":" in p and fnmatchcase(key, p)), key=lambda p: (len(p), p))


def names_site(form: Form, key: str) -> bool:
    """Return whether a form has a word for the site with this key, by its name, a pattern or its kind."""
    return any(pattern in (key, key.partition(":")[0]) or fnmatchcase(key, pattern) for pattern in form)


def resolved(form: Form, graph: Graph) -> dict[str, str]:
    """Return the word of each site of a graph, by the site's key."""
    words = _Words(form)
    return {site.key: words.word(site.kind, site.name) for site in sites(graph)}


class _Words:
    """The words of a form, looked up by site."""

    def __init__(self, form: Form) -> None:
        self.form = parse_form(form)
        self.any = any(word != WRITTEN for word in self.form.values())
        self.by_site: dict[tuple[str, str], str] = {}

    def word(self, kind: SiteKind, name: str) -> str:
        """Return a site's word."""
        if (kind, name) not in self.by_site:
            key = f"{kind}:{name}"
            patterns = patterns_of(self.form, key)
            self.by_site[kind, name] = self.form[patterns[-1]] if patterns else self.form.get(kind, WRITTEN)
        return self.by_site[kind, name]

    def of(self, kind: SiteKind, name: str) -> DType | None:
        """Return the dtype of a site's word; None if it is no dtype."""
        return WORDS.get(self.word(kind, name))


def is_narrower(dtype: DType, than: DType) -> bool:
    """Return whether a float dtype has fewer bits than another one."""
    return dtype.is_float and dtype.itemsize < than.itemsize


# ---- sites -----------------------------------------------------------------------------------------------------------


class _Sites:
    """Finds the sites of a graph whose composites outside of the library are replaced by their definitions."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.nodes = graph, walk(graph.roots)
        self.region = self._regions()
        self.product = self._products()
        self.reader = self._readers()

    def _regions(self) -> dict[Node, str]:
        """Return the region of each node: of those whose parameters it depends on, the one that occurs last in the graph."""
        order: dict[str, int] = {REST: 0}
        region: dict[Node, str] = {}
        for node in self.nodes:
            if node.op is leaves.PARAMETER:
                region[node] = _region_of_parameter(node.attrs["name"])
            elif isinstance(node.op, CompositeOp) and not _is_library(node.op):
                region[node] = node.op.name                         # one in `whole`
            else:
                labels = [region[i] for i in node.inputs]
                for label in labels:
                    order.setdefault(label, len(order))
                region[node] = max(labels, key=order.__getitem__, default=REST)
        return region

    def _products(self) -> dict[Node, str]:
        """Return the name of each product: that of its weight, else its region and op; the second of a name ends in #2."""
        names: dict[Node, str] = {}
        counts: dict[str, int] = {}
        for node in self.nodes:
            if node.op.facts.product:
                parameters = [p for i in node.inputs if (p := parameter_of(i)) is not None and p.rank > 1]
                name = weight_name(parameters[0]) if parameters else f"{self.region[node]}.{node.op.name}"
                counts[name] = counts.get(name, 0) + 1
                names[node] = name if counts[name] == 1 else f"{name}#{counts[name]}"
        return names

    def _readers(self) -> dict[tuple[Node, str], str]:
        """Return the site name of each (parameter matrix, op that reads it): the parameter's, with the op's if several ops do."""
        ops: dict[Node, dict[str, None]] = {}
        for node in self.nodes:
            for i in node.inputs:
                weight = parameter_of(i)
                if weight is not None and weight.rank > 1 and weight.dtype.is_float and not moves(node.op, i):
                    ops.setdefault(weight, {})[node.op.name] = None
        return {(weight, op): weight_name(weight) if len(of) == 1 else f"{weight_name(weight)}@{op}"
                for weight, of in ops.items() for op in of}

    @cached_property
    def of_floats(self) -> set[Node]:
        """Nodes that depend on a float input, parameter or state."""
        dependent: set[Node] = set()
        for node in self.nodes:
            is_float_leaf = node.op in (leaves.INPUT, leaves.PARAMETER, leaves.STATE) and node.dtype.is_float
            if is_float_leaf or any(i in dependent for i in node.inputs):
                dependent.add(node)
        return dependent

    @cached_property
    def sites(self) -> tuple[PrecisionSite, ...]:
        return tuple(site for kind in KINDS for site in getattr(self, f"_{kind}_sites")())

    def _between_sites(self) -> Iterator[PrecisionSite]:
        values: dict[str, list[Node]] = {}
        for node in self.nodes:
            if node.op.kind != "leaf" and node in self.of_floats and any(t.dtype.is_float for t in node.types):
                values.setdefault(self.region[node], []).append(node)
        for name, nodes in values.items():
            yield PrecisionSite("between", name, name, tuple(nodes), _widest(nodes))

    def _product_sites(self) -> Iterator[PrecisionSite]:
        for node, name in self.product.items():
            yield PrecisionSite("product", name, self.region[node], (node,), _widest(i for i in node.inputs if i.dtype.is_float))

    def _weight_sites(self) -> Iterator[PrecisionSite]:
        readers: dict[tuple[Node, str], list[Node]] = {}
        for node in self.nodes:
            for weight in dict.fromkeys(map(parameter_of, node.inputs)):
                if weight is not None and (weight, node.op.name) in self.reader:
                    readers.setdefault((weight, node.op.name), []).append(node)
        for place, nodes in readers.items():
            yield PrecisionSite("weight", self.reader[place], self.region[place[0]], (place[0],), place[0].dtype, tuple(nodes))

    def _state_sites(self) -> Iterator[PrecisionSite]:
        for name, node in self.graph.states.items():
            if node.dtype.is_float:
                yield PrecisionSite("state", str(name), REST, tuple(dict.fromkeys((node, self.graph.updates.get(name, node)))),
                                    node.dtype)


def _widest(nodes: Iterator[Node] | Sequence[Node]) -> DType:
    return max((t.dtype for node in nodes for t in node.types if t.dtype.is_float), key=lambda dtype: dtype.itemsize)


def _region_of_parameter(name: str) -> str:
    """Return the region of a parameter: its name up to the first number between dots ("layers.3" for "layers.3.q.weight"), else up
    to the first number, else without the last part."""
    numbered = re.match(r"(.*?\.\d+)(\.|$)", name) or re.match(r"(\D*\d+)", name)
    return numbered[1] if numbered else name.rpartition(".")[0] or name


def moves(op: Op, x: Node) -> bool:
    """Return whether an op only moves the numbers of this operand: it computes nothing with them."""
    return op.facts.view or (op.kind == "atomic" and op.facts.reads is not None and x.dtype.is_float)


def parameter_of(node: Node) -> Node | None:
    """Return the parameter that a node is, or is a view of, or the numbers of one that is stored in blocks; None for any other
    node."""
    while node.op.facts.view:
        node = node.inputs[0]
    return node if (node.inputs[0] if node.op is dequantize else node).op is leaves.PARAMETER else None


def weight_name(weight: Node) -> str:
    """Return the name of the parameter of which `parameter_of` returned the numbers."""
    return str((weight.inputs[0] if weight.op is dequantize else weight).attrs["name"])


def in_blocks(weight: Node, word: str) -> Node | None:
    """Return the numbers that are read of a weight with a word of blocks; None if its rows are no whole blocks."""
    format = format_of_rows(BLOCKS[word], weight.shape[-1])
    if format is None or (weight.op is dequantize and weight.attrs["format"] == format):
        return None
    out: Node = dequantize(quantize(weight, format=format), format=format)
    return out


# ---- the pass --------------------------------------------------------------------------------------------------------


class _Application:
    """Builds the graph in a form. values: node of the graph before, with composites replaced -> its outputs in the new graph."""

    def __init__(self, graph: Graph, words: _Words, whole: Collection[Signature]) -> None:
        self.old, self.words, self.whole = graph, words, whole
        self.expanded = written_out(graph, whole)
        self.places = _Sites(self.expanded)
        self.values: dict[Node, tuple[Node, ...]] = {}
        self.numeric: PassClass = REASSOCIATING

    def result(self) -> PassResult:
        for node in self.places.nodes:
            with written_at(node.location):
                self.values[node] = self.outputs_of(node)
        outputs = {name: _to(self.value(old), old.dtype) for name, old in self.expanded.outputs.items()}
        updates: dict[leaves.State | str, Node] = {}
        for name, old in self.expanded.updates.items():
            dtype = self.state_dtype(str(name), old.dtype)
            updates[leaves.state(name, old.shape, dtype)] = _to(self.value(old), dtype)
        graph = make_graph(outputs, updates)
        if graph == self.expanded:
            return PassResult(self.old)
        new = [self.values.get(n, ()) for n in expanded_by_library(self.old.nodes, self.whole)]
        images = {n: outputs[0] for n, outputs in zip(self.old.nodes, new, strict=True) if len(outputs) == 1}
        return PassResult(graph, images, self.numeric)

    def value(self, node: Node) -> Node:
        (value,) = self.values[node]
        return value

    def state_dtype(self, name: str, written: DType) -> DType:
        word = self.words.of("state", name)
        return word if word is not None and written.is_float else written

    def outputs_of(self, node: Node) -> tuple[Node, ...]:
        op = node.op
        if op is leaves.ITEM:
            return (self.values[node.inputs[0]][node.attrs["index"]],)
        if op is leaves.STATE:
            return (apply(op, (), {**node.attrs, "dtype": self.state_dtype(node.attrs["name"], node.dtype)}),)
        if isinstance(op, leaves.Leaf) and not node.inputs:
            return (node,)
        word = self.words.of("between", self.places.region[node])
        inputs = [self.operand(node, i) for i in node.inputs]
        if op is leaves.COPY_TO or (inputs and moves(op, inputs[0])):
            return (apply(op, inputs, node.attrs),)
        loop = loop_roundings(node)
        adds = loop.adds and loop.roundings > 1                     # other loops run in the dtypes of their bodies
        if (op.facts.dtype_matters and not adds) or (isinstance(op, CompositeOp) and not _is_library(op)):
            return self.as_written(node, inputs)
        if word is not None and op.name == "cast" and node.dtype.is_float and inputs[0].dtype.is_float:
            return (inputs[0],) if node.dtype.itemsize > 1 else self.as_written(node, inputs)
        if op.facts.writes is not None and inputs[0].dtype.is_float:
            inputs = [inputs[0], *(_to(x, inputs[0].dtype) if x.dtype.is_float else x for x in inputs[1:])]
            return _items(apply(op, inputs, node.attrs))
        product = self.words.word("product", self.places.product[node]) if node in self.places.product else WRITTEN
        if product in FORMATS and any(x.rank > 1 and loses(product, x.dtype) for x in inputs):
            return self.rounded_product(node, inputs, product, word)
        if product in WORDS:
            return self.product(node, inputs, WORDS[product], word)
        return self.computed(node, inputs, word)

    def operand(self, node: Node, i: Node) -> Node:
        """Return an operand of a node in the new graph; a weight in the dtype of the site of this op's reads of it."""
        weight = parameter_of(i)
        name = None if weight is None else self.places.reader.get((weight, node.op.name))
        if weight is None or name is None:
            return self.value(i)
        word = self.words.word("weight", name)
        if word in BLOCKS:
            stored = in_blocks(weight, word)
            self.numeric = APPROXIMATE if stored is not None else self.numeric
            return self.value(i) if stored is None else viewed(i, stored)
        if word == WRITTEN or not is_narrower(WORDS[word], weight.dtype):
            return self.value(i)
        return viewed(i, atomic.cast(weight, WORDS[word]))

    def stored(self, node: Node, dtype: DType, word: DType | None) -> DType:
        """Return the dtype in which a node's value, written as `dtype`, is stored in a region with this word."""
        if word is None or not dtype.is_float or (is_narrower(word, dtype) and node not in self.places.of_floats):
            return dtype
        return word

    def computed(self, node: Node, inputs: Sequence[Node], word: DType | None) -> tuple[Node, ...]:
        """Return the outputs of an op in the dtype of its region's word.

        For a wider word the op is applied to operands cast to it, with parameters uncast if it takes them so. For a narrower word
        it is applied to operands as they are. If it does not take them, it is computed as written and its results are rounded."""
        if word is None:
            same = all(x is i for x, i in zip(inputs, node.inputs, strict=True))
            return _items(node) if same else self.applied(node, inputs, node.attrs, None) or self.as_written(node, inputs)
        attrs = {k: self.stored(node, v, word) if isinstance(v, DType) else _wide_step(v, word) if isinstance(v, Body) else v
                 for k, v in node.attrs.items()}
        wide = [_to(x, self.stored(node, i.dtype, word)) for x, i in zip(inputs, node.inputs, strict=True)]
        narrowing = any(is_narrower(word, t.dtype) for x in (node, *node.inputs) for t in x.types)
        unchanged = [not (is_constant(i) if narrowing else parameter_of(i) is None) for i in node.inputs]
        tried = [[x if same else w for x, w, same in zip(inputs, wide, unchanged, strict=True)]] + ([] if narrowing else [wide])
        for operands in tried:
            outputs = self.applied(node, operands, attrs, word)
            if outputs is not None:
                return outputs
        return tuple(_to(y, self.stored(node, y.dtype, word)) for y in self.as_written(node, inputs))

    def product(self, node: Node, inputs: Sequence[Node], dtype: DType, word: DType | None) -> tuple[Node, ...]:
        """Return the outputs of a product whose operands are rounded to a dtype, or widened to it."""
        are_parameters = [parameter_of(i) is not None for i in node.inputs]
        if any(is_narrower(dtype, x.dtype) for x in inputs):
            matrices = [cast_through(x, dtype) if x.rank > 1 else x for x in inputs]
            narrow = [atomic.cast(x, dtype) if of_parameter and y is not x else y
                      for x, y, of_parameter in zip(inputs, matrices, are_parameters, strict=True)]
            tried = [narrow, matrices]
        else:
            matrices = list(inputs)
            wide = [_to(x, dtype) if is_narrower(x.dtype, dtype) else x for x in inputs]
            tried = [[x if of_parameter else y for x, y, of_parameter in zip(inputs, wide, are_parameters, strict=True)], wide]
        wanted = [self.stored(node, t.dtype, word) for t in node.types]
        for operands in tried:
            try:
                outputs = _items(apply(node.op, operands, node.attrs))
            except LanguageError:
                continue
            if all(not is_narrower(y.dtype, t) for y, t in zip(outputs, wanted, strict=True)):
                return tuple(_to(y, t) for y, t in zip(outputs, wanted, strict=True))
        return self.computed(node, matrices, word)

    def rounded_product(self, node: Node, inputs: Sequence[Node], to: str, word: DType | None) -> tuple[Node, ...]:
        """Return the outputs of a product in f32 whose operands are rounded to a format."""
        dtype = self.stored(node, node.dtype, word)
        if to in LEVELS:
            of_blocks = node.op is linear and inputs[1].op is dequantize
            x = _to(rounded(_to(inputs[0], f32), to=to), inputs[0].dtype) if of_blocks else inputs[0]
            return self.computed(node, [x, *inputs[1:]], word)
        if to == f8e4m3.name:
            if node.op is not linear:
                return self.computed(node, inputs, word)
            (x, x_scale), (weight, weight_scale) = map(scaled_by_rows, inputs[:2])
            product = scaled_linear(x, weight, x_scale, atomic.reshape(weight_scale, weight.shape[:1]), *inputs[2:],
                                    dtype=f32 if is_narrower(f32, dtype) else dtype)
            return (_to(product, dtype),)
        if node.op not in ROUNDED_PRODUCTS:
            matrices = [rounded(_to(x, f32), to=to) if x.rank > 1 and loses(to, x.dtype) else x for x in inputs]
            return self.computed(node, [_to(x, i.dtype) for x, i in zip(matrices, node.inputs, strict=True)], word)
        operands = [_to(x, f32) if i < 2 else x for i, x in enumerate(inputs)]
        return (_to(ROUNDED_PRODUCTS[node.op](*operands, to=to), dtype),)

    def applied(self, node: Node, inputs: Sequence[Node], attrs: Mapping[str, Any], word: DType | None) -> tuple[Node, ...] | None:
        """Return the outputs of the op on these operands; None if it does not take them or does not return the chosen dtypes."""
        try:
            call = apply(node.op, inputs, attrs)
        except LanguageError:
            return None
        wanted = tuple((t.shape, self.stored(node, t.dtype, word)) for t in node.types)
        return _items(call) if tuple((t.shape, t.dtype) for t in call.types) == wanted else None

    def as_written(self, node: Node, inputs: Sequence[Node]) -> tuple[Node, ...]:
        """Return the outputs of the op, computed in the written dtypes."""
        return _items(apply(node.op, [_to(x, i.dtype) for x, i in zip(inputs, node.inputs, strict=True)], node.attrs))


def cast_through(x: Node, dtype: DType) -> Node:
    """Return a value rounded to a narrower dtype and cast back to its own; the value itself if `dtype` is not narrower."""
    return atomic.cast(atomic.cast(x, dtype), x.dtype) if is_narrower(dtype, x.dtype) else x


def scaled_by_rows(x: Node) -> tuple[Node, Node]:
    """Return x in f8e4m3, with each row divided so that its largest magnitude becomes the dtype's largest number, and the divisors
    as f32 […, 1]. A row of zeros is divided by a positive number."""
    wide = _to(x, f32)
    largest = arithmetic.reduce_max(arithmetic.abs(wide), -1, keepdims=True)
    scale = arithmetic.where(largest > 0.0, largest, 1.0) / float(f8e4m3.max)
    return atomic.cast(wide / scale, f8e4m3), scale


def viewed(view: Node, parameter: Node) -> Node:
    """Return the view `view` of another parameter."""
    return parameter if not view.op.facts.view else apply(view.op, (viewed(view.inputs[0], parameter),), view.attrs)


def _to(x: Node, dtype: DType) -> Node:
    """Return x in another float dtype; a value that is no float as it is. Instead of narrowing a cast that widened from that dtype,
    return the cast's operand. A copy to a device is narrowed before the copy; a constant is created in the dtype."""
    if x.dtype == dtype or not (x.dtype.is_float and dtype.is_float):
        return x
    if x.op is leaves.CONSTANT:
        return apply(x.op, (), {**x.attrs, **_constant(x, dtype)})
    if x.op is leaves.COPY_TO and is_narrower(dtype, x.dtype):
        return apply(leaves.COPY_TO, (_to(x.inputs[0], dtype),), x.attrs)
    if x.op.facts.view and is_constant(x):
        return apply(x.op, (_to(x.inputs[0], dtype),), x.attrs)
    if x.op.name == "cast" and x.inputs[0].dtype == dtype and is_narrower(dtype, x.dtype):
        return x.inputs[0]
    return atomic.cast(x, dtype)


def is_constant(node: Node) -> bool:
    """Return whether a node is a constant or a view of one."""
    while node.op.facts.view:
        node = node.inputs[0]
    return node.op is leaves.CONSTANT


def _constant(node: Node, dtype: DType) -> dict[str, Any]:
    """Return the attributes of a constant that change with its dtype."""
    value = node.attrs.get("value")
    attrs = {"value": ArrayValue.of(value.array().astype(dtype.numpy), dtype)} if isinstance(value, ArrayValue) else {}
    return {"dtype": dtype, **attrs}


def _wide_step(step: Body, word: DType) -> Body:
    """Return the body of a loop with carries, slices and results widened to a word; the body itself if the word is not wider."""
    if not any(is_narrower(x.dtype, word) for x in (*step.arguments, *step.outputs)):
        return step
    wide = [leaves.input(f"x{n}", a.shape, word if is_narrower(a.dtype, word) else a.dtype) for n, a in enumerate(step.arguments)]
    narrow = [_to(x, a.dtype) for x, a in zip(wide, step.arguments, strict=True)]
    outputs = [_to(y, word) if is_narrower(y.dtype, word) else y for y in over(step.outputs, step.arguments, narrow)]
    graph = make_graph({f"y{n}": y for n, y in enumerate(outputs)})
    arguments = [leaves.argument(n, x.type) for n, x in enumerate(wide)]
    return Body(arguments, over(list(apply_form(graph, {"between": word.name}).graph.outputs.values()), wide, arguments))


def _items(node: Node) -> tuple[Node, ...]:
    return (node,) if len(node.types) == 1 else tuple(leaves.item(node, i) for i in range(len(node.types)))


# ---- composites that are written out ---------------------------------------------------------------------------------


def _is_library(op: Any) -> bool:
    return isinstance(op, CompositeOp) and LIBRARY.get(op.name) is op


def written_out(graph: Graph, unchanged: Collection[Signature] = ()) -> Graph:
    """Return the graph with all composites outside of the library, except `unchanged`, and products of blocks replaced by their
    definitions."""
    return graph.with_roots(expanded_by_library(graph.roots, unchanged))


def expanded_by_library(nodes: Sequence[Node], unchanged: Collection[Signature] = ()) -> Sequence[Node]:
    """Return the nodes of `written_out`. If there are `unchanged` composites, a part becomes its recipe that contains parts with
    registered kernels, if it has one."""
    def stays(node: Node) -> bool:
        is_basic = _is_library(node.op) and node.op not in (block_linear, rounded_block_linear)
        return is_basic or (bool(unchanged) and signature_of(node) in unchanged)

    return expand_all(nodes, stays, written_for_kernels if unchanged else defined)


def written_for_kernels(node: Node) -> Definition:
    """Return the definition that replaces a composite: for a part, its recipe that contains parts with registered kernels, if it
    has one; else its own."""
    recipe = node.op.of_kernels if isinstance(node.op, PartOp) else None
    return defined(node) if recipe is None else recipe.op.define([i.type for i in node.inputs], node.attrs)
