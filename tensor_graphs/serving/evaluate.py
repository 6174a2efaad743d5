"""evaluate: compares the probabilities of next tokens that a decoder and a reference give on a text.

The text is cut into windows. Each window begins with the tokenizer's begin tokens and empty caches, and is fed in pieces of
rows, so that logits of few rows exist at a time. Every position is scored: its distribution p against the reference's r by
KL(r ‖ p), and both by the probability of the token that follows. Windows that were scored are stored: an evaluation that was
stopped goes on after the last of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from tensor_graphs.choice.measured_accuracy import weights_key
from tensor_graphs.choice.stored_results import stored
from tensor_graphs.choice.storing import package_digest
from tensor_graphs.frontends.errors import FrontendError
from tensor_graphs.runtime.compiled_graph import CompiledGraph

MOST_LOGITS = 1 << 24
"""logits of one model that exist at a time"""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class TextWindow:
    """ids: tokens that are fed to empty caches. targets: the token that follows each."""

    ids: Array
    targets: Array


def windows(ids: Sequence[int], start: Sequence[int], size: int) -> list[TextWindow]:
    """Return consecutive windows, in which each token of a text is a target once. ids: the text's tokens; start: tokens before each
    window (none: the text's token before it, so that the first one is no target); size: most tokens that a window feeds.

    >>> [(w.ids.tolist(), w.targets.tolist()) for w in windows([5, 6, 7, 8], [2], 3)]
    [([2, 5, 6], [5, 6, 7]), ([2], [8])]
    """
    first = 0 if start else 1
    step = size - max(len(start), 1) + 1
    if step < 1 or len(ids) <= first:
        raise FrontendError(f"windows of {size} tokens of a text of {len(ids)} leave nothing to score",
                            fix=f"a text of two tokens, and windows of {max(len(start), 1)} tokens, at least")
    result = []
    for at in range(first, len(ids), step):
        before, piece = list(start or ids[at - 1:at]), list(ids[at:at + step])
        result.append(TextWindow(np.array([*before, *piece[:-1]], np.int32), np.array([*before[1:], *piece], np.int32)))
    return result


@dataclass
class TextEvaluation:
    """Comparison over the scored tokens. kl: KL(reference ‖ model), in nats. same: 1 where both have the same likeliest token.
    losses, reference_losses: −ln of the probability of the next token. norms: ‖y − r‖ / ‖r‖ of each row of logits. largest: the
    largest |y − r| / max(|r|, rms of r's row). seconds, reference_seconds: of the runs, without the comparison."""

    kl: list[float] = field(default_factory=list)
    same: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    reference_losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    largest: float = 0.0
    seconds: float = 0.0
    reference_seconds: float = 0.0

    @property
    def tokens(self) -> int:
        return len(self.kl)

    def add(self, y: Array, r: Array, targets: Array) -> None:
        """Add rows of logits of the model and of the reference, with the tokens that follow."""
        with ThreadPoolExecutor(2) as pool:
            rows = list(pool.map(compare_logits, y, r, targets))
        for values, column in zip((self.kl, self.same, self.losses, self.reference_losses, self.norms),
                                  zip(*(row[:5] for row in rows), strict=True), strict=True):
            values += column
        self.largest = max(self.largest, *(float(row[5]) for row in rows))

    def joined(self, other: TextEvaluation) -> TextEvaluation:
        """Return the evaluation of the tokens of both."""
        return TextEvaluation(self.kl + other.kl, self.same + other.same, self.losses + other.losses,
                              self.reference_losses + other.reference_losses, self.norms + other.norms,
                              max(self.largest, other.largest), self.seconds + other.seconds,
                              self.reference_seconds + other.reference_seconds)

    def to_json(self) -> dict[str, Any]:
        kl = np.array(self.kl)
        return {"tokens": self.tokens, "kl_mean": kl.mean(), "kl_median": np.median(kl), "kl_99": np.quantile(kl, 0.99),
                "kl_largest": kl.max(), "top1": float(np.mean(self.same)), "perplexity": float(np.exp(np.mean(self.losses))),
                "reference_perplexity": float(np.exp(np.mean(self.reference_losses))),
                "norm": float(np.sqrt(np.mean(np.square(self.norms)))), "largest_error": self.largest,
                "seconds": self.seconds, "reference_seconds": self.reference_seconds}


def compare_logits(y: Array, r: Array, target: int) -> tuple[float, float, float, float, float, float]:
    """Return (KL(softmax(r) ‖ softmax(y)), 1.0 for the same largest element, −log softmax(y)[target], −log softmax(r)[target],
    ‖y − r‖ / ‖r‖, largest |y − r| / max(|r|, rms(r))) of two rows of logits, in float64.

    With d = y − r and its mean Σ p·d over p = softmax(r), KL = log Σ p·exp(d − mean), so that small differences do not cancel."""
    y, r = y.astype(np.float64), r.astype(np.float64)
    top = r.max()
    p = np.exp(r - top)
    total = p.sum()
    p /= total
    d = y - r
    size, length = np.abs(r), np.linalg.norm(r)
    largest = np.max(np.abs(d) / np.maximum(size, max(length / np.sqrt(r.size), np.finfo(np.float64).tiny)))
    norm = np.linalg.norm(d) / max(length, np.finfo(np.float64).tiny)
    mean = float(p @ d)
    shift = max(0.0, float(d.max()) - mean - 500.0)                 # exp stays finite
    kl = shift + float(np.log(p @ np.exp(d - mean - shift)))
    sum_of_r = float(top + np.log(total))
    sum_of_y = sum_of_r + mean + kl
    return (max(kl, 0.0), float(r[y.argmax()] == top), sum_of_y - float(y[target]), sum_of_r - float(r[target]), float(norm),
            float(largest))


def evaluate(model: CompiledGraph, reference: CompiledGraph, text: Sequence[TextWindow],
             go_on: Callable[[TextEvaluation], bool] = lambda so_far: True) -> TextEvaluation:
    """Compare two bound decoders on windows of a text. go_on: called after each piece of rows with the evaluation so far; the
    evaluation ends where it returns False, and goes on after the last whole window when it is repeated. Raises FrontendError for
    graphs with other numbers of logits."""
    widths = [bound.graph.outputs["logits"].shape[-1] for bound in (model, reference)]
    if widths[0] != widths[1]:
        raise FrontendError(f"the model has {widths[0]} logits, and the reference {widths[1]}", fix="models of one vocabulary")
    assert isinstance(widths[0], int)
    rows, result = max(1, MOST_LOGITS // widths[0]), TextEvaluation()
    models = [(bound.graph.structural_key, weights_key(bound.parameters, bound.graph), [v.path.id for v in bound.plan.variants])
              for bound in (model, reference)]
    for window in text:
        part = TextEvaluation()

        def scored(window: TextWindow = window, part: TextEvaluation = part, before: TextEvaluation = result) -> dict[str, Any]:
            pieces = zip(_logits(model, window.ids, rows), _logits(reference, window.ids, rows), strict=True)
            for number, ((y, seconds), (r, reference_seconds)) in enumerate(pieces):
                part.add(y, r, window.targets[number * rows:(number + 1) * rows])
                part.seconds += seconds
                part.reference_seconds += reference_seconds
                if not go_on(before.joined(part)):
                    raise _Stopped
            return asdict(part)

        key = (package_digest(), models, window.ids.tolist(), window.targets.tolist())
        try:
            result = result.joined(TextEvaluation(**stored("evaluations", key, scored)))
        except _Stopped:
            return result.joined(part)
        if not part.kl and not go_on(result):
            break
    return result


class _Stopped(Exception):
    """The evaluation of a window ended before its end."""


def _logits(compiled: CompiledGraph, ids: Array, rows: int) -> Iterator[tuple[Array, float]]:
    """Yield the logits of successive tokens, `rows` at a time, and the seconds that they took."""
    session = compiled.session()
    for at in range(0, len(ids), rows):
        piece = ids[at:at + rows]
        began = time.perf_counter()
        logits = compiled.run({"ids": piece}, dims={"m": len(piece), "p": at}, session=session)["logits"]
        yield np.asarray(logits), time.perf_counter() - began
