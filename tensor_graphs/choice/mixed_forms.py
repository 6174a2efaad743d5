"""mixed_forms: forms with different words at different sites that are predicted to be the fastest within an accuracy.

A form gives each site of a graph a word, the name of its dtype (meaning/precision.py). The error of each word is predicted by
backward passes (measure/sensitivity.py), and the error of a form is the sum over its words. So is its time: that of a product is
estimated for the product alone; that of values between ops, and of states, for the whole graph in one dtype, and is divided among
the regions in proportion to the bytes that they store. An exact knapsack (costs/form_front.py) lists the forms that no other one
beats. Predictions only decide in which order forms are measured."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.choice.error_calibration import calibrated, logs_of
from tensor_graphs.choice.measured_accuracy import PROMISING, SCREENED, MeasuredAccuracy
from tensor_graphs.choice.stored_results import stored
from tensor_graphs.choice.storing import package_digest
from tensor_graphs.costs.form_front import FormCost, WordCost, front, within
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.registry import all_kernels, device_of
from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.composites.blocks import block_linear, dequantize, rounded_block_linear
from tensor_graphs.language.composites.indexing import embedding, linear_argmax
from tensor_graphs.language.composites.products import linear, scaled_linear
from tensor_graphs.language.composites.rounded import LEVELS, SIGNIFICANDS
from tensor_graphs.language.dtypes import f8e4m3
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node, Op, apply
from tensor_graphs.meaning.accuracy import Allowed, Term
from tensor_graphs.meaning.draw_bound import EXTREMES
from tensor_graphs.meaning.precision import BLOCKS, FORMATS, WORDS, WRITTEN, Form, SiteKind
from tensor_graphs.measure.sensitivity import ROUNDED, Metric, sensitivities, words_of
from tensor_graphs.rewrites.passes.apply_precision import (
    ROUNDED_PRODUCTS,
    PrecisionSite,
    is_narrower,
    loses_nothing,
    parameter_of,
    resolved,
    sites,
    viewed,
)

log = logging.getLogger(__name__)

METRICS: dict[str, Metric] = {"max": "norm", "norm": "norm", "as_written": "norm", "kl": "kl", "cosine": "cosine"}
"""statistic of an accuracy -> the metric by which its error is predicted; top1 has none"""

START, START_OF_EXTREMES, SAFETY, TRIALS = 0.8, 0.25, 0.8, 3
"""START, START_OF_EXTREMES: predicted error of the first form that is tried, as a share of the limit. The limit is for a bound,
which is a little above the measured error, and twice as large as a measured largest error (errors are squared). SAFETY: factor on
the predicted error that a measurement puts at the limit. TRIALS: most forms that are tried"""

TIE = 0.01
"""share of a site's time that a word has to save to be chosen in place of the written one"""

SHARED: tuple[tuple[SiteKind, ...], ...] = (("between",), ("between", "state"))
"""kinds of sites whose time is a share of that of the whole graph"""

LITTLE = 0.02
"""share of the bytes of all parameters: where the sites of a kind hold less, narrower words for them save no time"""

CALIBRATION = 1_000_000
"""seed of the run on which errors are predicted, if inputs are no list; error draws have smaller seeds"""

Seconds = Callable[[Graph, Form], float]
"""Function that estimates the time of a graph in a form."""


class MixedForms:
    """Predicts errors and times of the forms of one prepared graph, for one accuracy. seconds: estimates the time of a graph in a
    form.

    Errors (squared, except of kl and cosine) are relative to the accuracy's limit: a form with error 1 is expected at the limit."""

    def __init__(self, graph: Graph, accuracy: MeasuredAccuracy, seconds: Seconds) -> None:
        self.graph, self.accuracy, self.seconds = graph, accuracy, seconds
        self.formats, self.of_blocks = formats_here(accuracy.request.here), readers_of_blocks(accuracy.request.here)
        self.narrows, self.trials = False, 0
        """whether only narrower words than written are choices; number of forms that `faster` has yielded"""
        self.contributions: dict[tuple[str, Metric], dict[tuple[str, str], float]] = {}
        """(output, metric) -> (site, word) -> what it adds to the squared error; computed with `errors`"""
        self.limit: float | None = None
        """predicted error of the next form that is tried"""
        accuracy.predicted = self.predicted
        self.rounding = 0.0
        """error by the last rounding of the outputs themselves, relative to the limit; computed with `errors`"""

    @cached_property
    def places(self) -> tuple[PrecisionSite, ...]:
        return sites(self.graph)

    @cached_property
    def errors(self) -> dict[tuple[str, str], float] | None:
        """(site, word) -> its error relative to the limit, the largest over the terms of the accuracy; None if it cannot be
        predicted."""
        terms = self.accuracy.accuracy.terms
        if any(term.statistic not in METRICS for term in terms):
            return None
        metrics = tuple(dict.fromkeys((term.output, METRICS[term.statistic]) for term in terms))
        draws = self.accuracy.draws
        places = [(site.key, str(site.dtype)) for site in self.places]
        key = (package_digest(), self.accuracy.graph_key, self.graph.structural_key, places, self.accuracy.weights_key,
               self.accuracy.inputs_key, draws.sizes, metrics)
        try:
            rows = stored("sensitivities", key, lambda: self._sensitivities(metrics))
        except (TensorGraphsError, MemoryError) as error:
            log.info("errors of words are not predicted: %s", error)
            return None
        if any(word == WRITTEN and not math.isfinite(value) for _, word, _, _, value in rows):
            log.info("errors of words are not predicted: a value of the graph is not finite, or a gradient")
            return None
        for site, word, output, metric, value in rows:
            self.contributions.setdefault((output, metric), {})[site, word] = value
        units = {term: self._unit(term) for term in terms}
        self.rounding = max(self._rounding(term) / units[term] for term in terms)
        tables = [(self.contributions[term.output, METRICS[term.statistic]], units[term]) for term in terms]
        return {key: max(table[key] / unit for table, unit in tables) for key in tables[0][0]}

    def _sensitivities(self, metrics: Sequence[tuple[str, Metric]]) -> list[tuple[str, str, str, Metric, float]]:
        """Return (site, word, output, metric, what the word adds to the error) for all words, from one run of the graph."""
        count = self.accuracy.inputs.count
        try:
            inputs, sizes = self.accuracy.draws.short_run(CALIBRATION if count is None else count - 1)
        except LookupError:                                         # a function of a caller's that has few draws
            inputs, sizes = self.accuracy.draws.short_run(0)
        contributions = sensitivities(self.graph, self.accuracy.draws.weights, inputs, sizes, metrics)
        return [(*key, *of, value) for key, of_word in contributions.items() for of, value in of_word.items()]

    def _unit(self, term: Term) -> float:
        """Return the predicted squared error (for kl the divergence, for cosine 1 − cosine) that is expected to be measured exactly
        at the limit of a term."""
        metric = METRICS[term.statistic]
        if term.statistic == "as_written":
            table = self.contributions[term.output, metric]
            written = sum(table[site.key, WRITTEN] for site in self.places)
            return max(term.limit ** 2 * (written + self._rounding(term)), 1e-300)
        logs = logs_of(self.accuracy.rows(), term.output, term.statistic, metric)
        limit = (1.0 - term.limit if metric == "cosine" else term.limit) / calibrated(term.statistic, logs)
        return max(limit ** 2 if metric == "norm" else limit, 1e-300)

    def _rounding(self, term: Term) -> float:
        """Return the squared error by the last rounding of an output itself; 0 for terms that do not count it: max, kl, cosine."""
        is_counted = METRICS[term.statistic] == "norm" and term.statistic != "max"
        return ROUNDED * (self.graph.outputs[term.output].dtype.epsilon / 2) ** 2 * is_counted

    def error(self, words: Form) -> float | None:
        """Return the predicted error of a form, relative to the limit; None if it cannot be predicted."""
        return None if self.errors is None else self.rounding + self._sum(self._words(words, self.errors), self.errors)

    def predicted(self, words: Form) -> dict[str, dict[str, float]]:
        """Return the errors of a form as predicted, without calibration: output -> metric -> error (for norm no square). Return {}
        for a form with no fewer bits than written, whose error is mainly that of sums."""
        predictions: dict[str, dict[str, float]] = {}
        if self.contributions and not loses_nothing(words, self.graph):
            for (output, metric), table in self.contributions.items():
                error = self._sum(self._words(words, table), table)
                if math.isfinite(error):
                    predictions.setdefault(output, {})[metric] = math.sqrt(error) if metric == "norm" else error
        return predictions

    def _words(self, words: Form, table: Mapping[tuple[str, str], float]) -> Form:
        """Return the word of each site; `written` where a word changes nothing."""
        return {key: word if (key, word) in table else WRITTEN for key, word in resolved(words, self.graph).items()}

    def _sum(self, words: Form, table: Mapping[tuple[str, str], float]) -> float:
        """Return the sum of the errors of sites. The error of rounding a weight that its product rounds too counts once."""
        total = 0.0
        for key, word in words.items():
            error = table.get((key, word), math.inf)
            product = self.product_of.get(key, "")
            of_product = words.get(product, WRITTEN)
            total += max(0.0, error - table.get((product, WRITTEN if of_product in LEVELS else of_product), 0.0) / 2)
        return total

    @cached_property
    def device(self) -> str | None:
        """The device to which the graph copies values, where its products are computed; None for the host."""
        return next((node.attrs["device"] for node in self.graph.nodes if node.op.name == "copy_to"), None)

    @cached_property
    def product_of(self) -> dict[str, str]:
        """Weight site -> the product that reads it, whose two operands are rounded alike."""
        products = {site.nodes[0]: site.key for site in self.places if site.kind == "product"}
        return {site.key: products[node] for site in self.places if site.kind == "weight" for node in site.readers if node in
        products}

    def linear(self, error: float | None) -> float | None:
        """Convert a predicted error to the unit of the accuracy's statistic (no square), for an accuracy with one term."""
        if error is None:
            return None
        (term,) = self.accuracy.accuracy.terms
        scale = 1.0 - term.limit if term.statistic == "cosine" else term.limit
        return scale * (error if METRICS[term.statistic] != "norm" else math.sqrt(error))

    @property
    def is_large(self) -> bool:
        """True for a graph that takes long to evaluate: its forms are only predicted before they are measured."""
        return self.accuracy.draws.flops > SCREENED

    def promises(self, words: Form, changed: Graph) -> bool:
        """Return False for a form that is far less accurate than asked: by evaluating the graph in it with each value rounded, for
        a large graph by the predicted errors of its words."""
        predicted = self.error(words) if self.is_large else None
        return self.accuracy.promises(changed) if predicted is None else predicted <= PROMISING ** 2

    def faster(self, seconds: float) -> Iterator[dict[str, str]]:
        """Yield the words of forms that are predicted to be within the accuracy and to take less than these seconds: first the
        fastest one; after each that turns out to be beyond the limit, the fastest one within it by that measurement. All calls
        together yield TRIALS of them."""
        if self.limit is None:
            written, terms = self.error({}), self.accuracy.accuracy.terms
            self.limit = START_OF_EXTREMES if any(t.statistic in EXTREMES for t in terms) else START
            self.narrows = written is not None and written <= self.limit
        while self.trials < TRIALS:
            form = within(self.front, self.limit)
            if form is None or self.seconds(self.graph, words := self._fastest(joined(form))) >= seconds:
                return
            self.trials += 1
            yield words
            latest = self.accuracy.latest
            if latest is None or latest.allowed.term is None or not form.error:
                return
            self.limit = SAFETY * form.error / max(_beyond(latest.allowed), 1.0)

    def _fastest(self, words: dict[str, str]) -> dict[str, str]:
        """Return the words, or those without the ones of `SHARED` kinds, whichever the estimate of the whole graph says is faster:
        shares of a region in the time of the whole graph include products, and leave out casts at borders to other regions."""
        fewer = [{key: word for key, word in words.items() if key.partition(":")[0] not in kinds} for kinds in SHARED]
        return min((words, *fewer), key=lambda changed: self.seconds(self.graph, changed))

    @cached_property
    def front(self) -> list[FormCost]:
        """The forms that no other one beats in time and predicted error, the fastest first. Their items are sites that choose
        their words together; what `FormCost` calls a word is the text of all these words (`_words`)."""
        if self.errors is None:
            return []
        fastest: dict[tuple[str, str], WordCost] = {}               # where words change nothing, several choices are the same
        for choice in self._choices():
            same = fastest.setdefault((choice.site, choice.word), choice)
            fastest[choice.site, choice.word] = min(same, choice, key=lambda c: c.seconds)
        try:
            return front(list(fastest.values()), self.rounding)
        except ArgumentError as error:                              # nothing computes the graph as written, say
            log.info("there is no front of forms: %s", error)
            return []

    def _choices(self) -> Iterator[WordCost]:
        narrow_products = any(site.kind == "product" and site.dtype.itemsize < 4 for site in self.places)
        if narrow_products:                                         # what a product costs depends on what its region stores
            yield from self._shared("region", ("between", "product"))
        else:
            yield from self._of_products()
            yield from self._shared("between", ("between",))
        yield from self._shared("state", ("state",))

    def _counts(self, word: str, site: PrecisionSite) -> bool:
        """Return whether a word is a choice at a site: it changes something, holds the same range of numbers, and is narrower where
        the graph as written is accurate enough."""
        if word not in words_of(site) or {word, site.dtype.name} == {"bf16", "f16"}:
            return False
        if word in FORMATS:
            return site.nodes[0].op in self.formats.get(word, ())
        if word in BLOCKS:
            return all(reader.op in self.of_blocks for reader in site.readers)
        return not self.narrows or not is_narrower(site.dtype, WORDS[word])

    def _choice(self, item: str, words: Mapping[str, str], seconds: float) -> WordCost:
        """Return one choice of an item: words by site key, with their time and their predicted error."""
        assert self.errors is not None
        error = self._sum(words, self.errors)
        changed = [f"{key}={word}" for key, word in words.items() if word != WRITTEN]
        return WordCost(item, " ".join(changed), seconds * (1.0 + TIE * bool(changed)), error)

    def _of_products(self) -> Iterator[WordCost]:
        """Yield the choices for each product together with its weight, with the estimated time of the product alone."""
        groups: dict[tuple[str, str], list[PrecisionSite]] = {}
        for site in self.places:
            if site.kind in ("weight", "product"):
                node = site.nodes[0] if site.kind == "product" else site.readers[0]
                groups.setdefault((site.name.partition("@")[0].partition("#")[0], node.op.name), []).append(site)
        for (name, op), group in groups.items():
            alone = _alone(group, self.device)
            words = {kind: [WRITTEN, *(word for word in (*WORDS, *FORMATS, *BLOCKS)
                                       if any(self._counts(word, site) for site in group if site.kind == kind))]
                     for kind in dict.fromkeys(site.kind for site in group)}
            for chosen in itertools.product(*words.values()):
                word_of = dict(zip(words, chosen, strict=True))
                if not _fit(word_of, group):
                    continue
                form: Form = {kind: word for kind, word in word_of.items() if word != WRITTEN}
                yield self._choice(f"{name} {op}", {site.key: word_of[site.kind] for site in group}, self.seconds(alone, form))

    def _shared(self, item: str, kinds: Sequence[str]) -> Iterator[WordCost]:
        """Yield the choices for all sites of some kinds in each region (for each state), one word per kind. Their time is the
        region's share, by bytes, of the estimated time of the whole graph with these words."""
        groups: dict[str, list[PrecisionSite]] = {}
        for site in self.places:
            if site.kind in kinds:
                groups.setdefault(site.name if site.kind == "state" else site.region, []).append(site)
        if not groups:
            return
        sizes = self.accuracy.sizes
        of_states = {node.type for node in self.graph.states.values() if "between" in kinds}
        weights = {name: sum(_bytes(node, sizes) for site in group for node in site.nodes if node.types[0] not in of_states)
                   for name, group in groups.items()}
        if self.narrows and sum(weights.values()) < LITTLE * sum(_bytes(node, sizes) for node in self.graph.parameters.values()):
            return
        words = {kind: [WRITTEN, *(w for w in (*WORDS, *FORMATS) if all(self._counts(w, s) for s in self.places if s.kind == kind))]
                 for kind in kinds}
        for chosen in itertools.product(*words.values()):
            form = {kind: word for kind, word in zip(kinds, chosen, strict=True) if word != WRITTEN}
            seconds = self.seconds(self.graph, form)
            for name, group in groups.items():
                share = weights[name] / max(1.0, sum(weights.values()))
                yield self._choice(f"{item} {name}", {site.key: form.get(site.kind, WRITTEN) for site in group}, seconds * share)


def formats_here(backends: Sequence[str]) -> dict[str, list[Op]]:
    """Return, for the words of formats, the products that kernels of these backends compute so (of 8 bits: not on the host, which
    widens them)."""
    kernels = list(all_kernels(backends))
    by_kernels = {kernel.op for kernel in kernels}
    on_devices = {kernel.op for kernel in kernels if not device_of(kernel.backend).is_host}
    formats = {word: [op for op, rounded in ROUNDED_PRODUCTS.items() if rounded.name in by_kernels] for word in SIGNIFICANDS}
    formats.update(dict.fromkeys(LEVELS, [linear] if rounded_block_linear.name in by_kernels else []))
    formats[f8e4m3.name] = [linear] if scaled_linear.name in on_devices else []
    return {word: ops for word, ops in formats.items() if ops}


def readers_of_blocks(backends: Sequence[str]) -> tuple[Op, ...]:
    """Return the ops that read a weight in blocks as it is stored, by kernels of these backends."""
    return (linear, embedding, linear_argmax) if any(kernel.op == block_linear.name for kernel in all_kernels(backends)) else ()


def _fit(word_of: Mapping[SiteKind, str], group: Sequence[PrecisionSite]) -> bool:
    """Return whether the words of a product and of its weight go together: x is rounded to integers where the weight is in blocks,
    and a product in a narrow dtype stores its weight so."""
    if word_of.get("product") not in LEVELS:
        return sum(word != WRITTEN for word in word_of.values()) <= 1
    weight = word_of.get("weight", WRITTEN)
    return weight in BLOCKS or (weight == WRITTEN and any(s.kind == "weight" and s.nodes[0].op is dequantize for s in group))


def _beyond(allowed: Allowed) -> float:
    """Return a measured bound in the unit of predicted errors: 1 is at the limit."""
    assert allowed.term is not None
    return allowed.ratio ** 2 if METRICS[allowed.term.statistic] == "norm" else allowed.ratio


def joined(form: FormCost) -> dict[str, str]:
    """Return the words of a form of the front, by site key."""
    return dict(itertools.chain.from_iterable(_words(label) for label in form.words.values()))


def _words(label: str) -> Iterator[tuple[str, str]]:
    """Yield the (site key, word) pairs in the label of a choice, "product:layers.3.q=bf16 weight:layers.3.q=bf16"."""
    for pair in label.split():
        key, _, word = pair.rpartition("=")
        yield key, word


def _bytes(node: Node, sizes: Mapping[str, int]) -> float:
    return float(sum(d.evaluate(t.nbytes(), sizes) for t in node.types))


def _alone(group: Sequence[PrecisionSite], device: str | None) -> Graph:
    """Return the graph of a product, or of the op that reads a weight, on inputs and parameters of its own: the same graph for the
    same product of each layer. device: where the values before and after it lie, if not on the host."""
    def there(x: Node) -> Node:
        return x if device is None else leaves.copy_to(x, device)

    node = next((site.nodes[0] for site in group if site.kind == "product"), *group[0].readers[:1])
    operands = []
    for i, x in enumerate(node.inputs):
        weight = parameter_of(x)
        operands.append(there(leaves.input(f"x{i}", x.shape, x.dtype)) if weight is None else
                        viewed(x, leaves.parameter(f"w{i}", weight.shape, weight.dtype)))
    return make_graph(there(apply(node.op, operands, node.attrs)))
