"""file_types: chooses the type of each matrix of a model's GGUF file, such that a file of some size is as accurate as it can be.

    choice = TypeChoice(model, inputs)
    choice.within(nbytes).words                                     # weight site -> word, for `write_model`
    choice.importance                                               # parameter -> mean square of what columns multiply

What a type adds to the error, the divergence of a decoder's next tokens or 1 − the cosine of an encoder's vectors, is predicted
from activations and gradients on some texts (measure/sensitivity.py). Errors of matrices add up, so an exact knapsack lists the
files that no other one beats in bytes and predicted error (costs/form_front.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tensor_graphs.choice.cost_table import typical_sizes
from tensor_graphs.costs.form_front import FormCost, WordCost, front
from tensor_graphs.frontends.errors import FrontendError
from tensor_graphs.frontends.gguf.write import typed_tensors
from tensor_graphs.language.composites.blocks import FORMATS
from tensor_graphs.meaning.precision import BLOCKS, WORDS, WRITTEN, SiteKind
from tensor_graphs.measure.input_runs import runs_on
from tensor_graphs.measure.sensitivity import Metric, column_squares, sensitivities
from tensor_graphs.rewrites.passes.apply_precision import PrecisionSite, sites, weight_name

if TYPE_CHECKING:
    from tensor_graphs.frontends.huggingface.load import LoadedModel

WEIGHTS: tuple[SiteKind, ...] = ("weight",)

SENSITIVE = 2
"""pieces of text on which errors are predicted, which takes some forward passes each; importance is the mean over all pieces"""


ALIKE = 1.25
"""ratio of predicted errors up to which a mix of types counts as no better than a single one: predictions are off by as much"""


@dataclass(frozen=True)
class TypedFile:
    """words: weight site -> word. nbytes: of all tensors. error: predicted, of the metric."""

    words: Mapping[str, str]
    nbytes: int
    error: float


class TypeChoice:
    """The files that no other one beats in bytes and predicted error. inputs: pieces of text, as `tg.compile` takes them.

    Raises NoPathError and GraphError for a model whose gradients cannot be computed."""

    def __init__(self, model: LoadedModel, inputs: Sequence[Mapping[str, Any]],
                 progress: Callable[[str], None] = lambda text: None) -> None:
        self.model, self.progress = model, progress
        at = typical_sizes(model.graph)
        self.runs = [runs_on(model.graph, at, piece)[0] for piece in inputs]
        self.tensors = typed_tensors(model)
        self.sites: dict[str, list[PrecisionSite]] = {}
        """parameter -> its weight sites, one for each op that reads it"""
        for site in sites(model.graph):
            if site.kind == "weight":
                self.sites.setdefault(weight_name(site.nodes[0]), []).append(site)

    @cached_property
    def importance(self) -> dict[str, np.ndarray[Any, Any]]:
        """Parameter -> mean square of what each column is multiplied by."""
        self.progress(f"activations of {len(self.runs)} pieces of text")
        return column_squares(self.model.graph, self.model.weights, self.runs)

    @cached_property
    def metric(self) -> Metric:
        return "cosine" if self.model.encoder else "kl"

    @cached_property
    def errors(self) -> dict[tuple[str, str], float]:
        """(tensor, word) -> what it adds to the error, by all readers of its parameters."""
        output = "embedding" if self.model.encoder else "logits"
        totals: dict[tuple[str, str], float] = {}
        runs = self.runs[:SENSITIVE]
        for number, (inputs, sizes) in enumerate(runs):
            self.progress(f"gradients on piece {number + 1} of {len(runs)}")
            of_run = sensitivities(self.model.graph, self.model.weights, inputs, sizes, [(output, self.metric)], number,
                                   WEIGHTS, self.importance)
            for tensor, (shape, own) in self.tensors.items():
                places = [site for name in own for site in self.sites[name]]
                for word in self._words(shape):
                    total = sum(of_run[site.key, word][output, self.metric] for site in places if word != WRITTEN)
                    totals[tensor, word] = totals.get((tensor, word), 0.0) + total / len(runs)
        return totals

    @cached_property
    def front(self) -> list[FormCost]:
        """The files, the smallest first, as words of tensors."""
        return front([WordCost(tensor, word, 0.0, error, self._bytes(self.tensors[tensor][0], word))
                      for (tensor, word), error in self.errors.items()], by="nbytes")

    @cached_property
    def others(self) -> int:
        """Bytes of the tensors that are F32 in each file."""
        typed = {name for _, own in self.tensors.values() for name in own}
        return sum(4 * math.prod(map(int, node.shape)) for name, node in self.model.graph.parameters.items() if name not in typed)

    @cached_property
    def numbers(self) -> int:
        """Numbers in all tensors with a choice."""
        return sum(math.prod(shape) for shape, _ in self.tensors.values())

    def typed(self, form: FormCost) -> TypedFile:
        """Return a form of the front with the words of sites."""
        words = {site.key: form.words[tensor] for tensor, (_, own) in self.tensors.items() for name in own for site in
                 self.sites[name]}
        return TypedFile(words, int(form.nbytes) + self.others, form.error)

    def within(self, nbytes: float) -> TypedFile:
        """Return the file of at most this many bytes of tensors with the least predicted error; one with a single type if that is
        predicted to be about as good. Raises FrontendError."""
        fitting = [form for form in self.front if form.nbytes + self.others <= nbytes]
        if not fitting:
            least = self.front[0].nbytes + self.others
            raise FrontendError(f"no file of {self.model.name} has {nbytes:,.0f} bytes of tensors", fix=f"{least:,.0f} or more")
        best = fitting[-1]
        uniform = [form for form in self.uniform if form.nbytes + self.others <= nbytes and form.error <= ALIKE * best.error]
        return self.typed(min(uniform, key=lambda form: form.error, default=best))

    @cached_property
    def uniform(self) -> list[FormCost]:
        """The files in which all tensors have one word."""
        words = dict.fromkeys(word for _, word in self.errors)
        return [FormCost(dict.fromkeys(self.tensors, word), 0.0, sum(self.errors[tensor, word] for tensor in self.tensors),
                         sum(self._bytes(shape, word) for shape, _ in self.tensors.values()))
                for word in words if all((tensor, word) in self.errors for tensor in self.tensors)]

    def _words(self, shape: tuple[int, ...]) -> list[str]:
        """Return the words that change what a tensor's file holds, and `written`."""
        narrower = [word for word in ("f16", "bf16") if WORDS[word].itemsize < self.model.dtype.itemsize]
        return [WRITTEN, *narrower, *(word for word, name in BLOCKS.items() if shape[-1] % FORMATS[name].values == 0)]

    def _bytes(self, shape: tuple[int, ...], word: str) -> float:
        if word in BLOCKS:
            block = FORMATS[BLOCKS[word]]
            return math.prod(shape) / block.values * block.nbytes
        return float(math.prod(shape) * WORDS.get(word, self.model.dtype).itemsize)
