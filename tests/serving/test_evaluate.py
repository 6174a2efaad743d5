"""serving/evaluate.py: a text is scored at every position, and distributions are compared as their definitions say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_softmax

import tensor_graphs as tg
from tensor_graphs.choice import stored_results
from tensor_graphs.frontends.errors import FrontendError
from tensor_graphs.frontends.huggingface.folder import write_gemma3_folder
from tensor_graphs.serving import evaluate as scoring
from tensor_graphs.serving.evaluate import TextEvaluation, compare_logits, evaluate, windows
from tests.cli.command import TINY

logits = scoring._logits


def test_every_token_but_the_first_is_a_target_once() -> None:
    for count, size, start in ((2, 3, [1]), (17, 5, []), (16, 5, [1]), (9, 4, [1, 2])):
        ids = list(range(100, 100 + count))
        pieces = windows(ids, start, size)
        targets = np.concatenate([w.targets[max(0, len(start) - 1):] for w in pieces])
        assert all(len(w.ids) == len(w.targets) <= size and w.ids[:len(start)].tolist() == start for w in pieces)
        assert targets.tolist() == ids[0 if start else 1:]
    with pytest.raises(FrontendError, match="leave nothing to score"):
        windows([5, 6], [1, 2, 3], 2)


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1e-2, 1.0, 30.0, 900.0])
def test_rows_of_logits_are_compared_by_the_definitions(scale: float) -> None:
    rng = np.random.default_rng(3)
    r = (rng.standard_normal(500) * 4).astype(np.float32)
    y = (r + scale * rng.standard_normal(500)).astype(np.float32)
    kl, same, loss, reference_loss, norm, largest = compare_logits(y, r, 7)
    p, q, wide, exact = log_softmax(r.astype(float)), log_softmax(y.astype(float)), y.astype(float), r.astype(float)
    assert kl == pytest.approx(np.sum(np.exp(p) * (p - q)), rel=1e-9, abs=1e-15)
    assert same == float(r.argmax() == y.argmax())
    assert (loss, reference_loss) == pytest.approx((-q[7], -p[7]), rel=1e-12)
    assert norm == pytest.approx(np.linalg.norm(wide - exact) / np.linalg.norm(exact))
    assert largest == pytest.approx(np.max(np.abs(wide - exact) / np.maximum(np.abs(exact), np.sqrt(np.mean(exact ** 2)))))


def test_means_and_quantiles_are_over_all_tokens() -> None:
    rng = np.random.default_rng(0)
    r, targets = rng.standard_normal((7, 50)).astype(np.float32), rng.integers(0, 50, 7)
    y = r + rng.standard_normal((7, 50)).astype(np.float32)
    result = TextEvaluation()
    result.add(y[:3], r[:3], targets[:3])
    result.add(y[3:], r[3:], targets[3:])
    document = result.to_json()
    rows = [compare_logits(*row) for row in zip(y, r, targets, strict=True)]
    kl = np.array([row[0] for row in rows])
    assert document["tokens"] == 7 and document["kl_mean"] == pytest.approx(kl.mean()) and document["kl_99"] <= kl.max()
    assert document["perplexity"] == pytest.approx(np.exp(np.mean([row[2] for row in rows])))
    assert document["largest_error"] == max(row[5] for row in rows)


def test_a_model_against_itself_and_in_another_precision(tmp_path: Path) -> None:
    write_gemma3_folder(tmp_path / "gemma", TINY, seed=0)
    model = tg.load_model(tmp_path / "gemma")

    def bound(words: str) -> tg.CompiledGraph:
        return tg.bind(tg.compile(model.graph, backends=("numpy",), precision=words, database=tmp_path / "a.db"), model.weights)

    text = windows(list(np.random.default_rng(1).integers(0, 200, 40)), [2], 16)
    written = bound("written")
    same = evaluate(written, written, text).to_json()
    assert same["kl_mean"] < 1e-15 and (same["top1"], same["largest_error"]) == (1.0, 0.0)
    assert same["perplexity"] == same["reference_perplexity"] and same["tokens"] == sum(len(w.ids) for w in text)
    narrow, exact = (evaluate(bound(words), bound("f64"), text).to_json()["norm"] for words in ("bf16", "written"))
    assert exact < 1e-5 < narrow
    stopped = evaluate(written, written, text, lambda so_far: False)
    assert stopped.tokens == len(text[0].ids)


def test_an_evaluation_that_was_stopped_goes_on_after_the_last_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSOR_GRAPHS_PLANS", "on")
    monkeypatch.setattr(stored_results, "user_place", lambda kind, name: tmp_path / name)
    write_gemma3_folder(tmp_path / "gemma", TINY, seed=0)
    model = tg.load_model(tmp_path / "gemma")
    bound = tg.bind(tg.compile(model.graph, backends=("numpy",), database=tmp_path / "a.db"), model.weights)
    text = windows(list(np.random.default_rng(1).integers(0, 200, 40)), [2], 16)
    fed: list[int] = []
    monkeypatch.setattr(scoring, "_logits", lambda compiled, ids, rows: fed.append(len(ids)) or logits(compiled, ids, rows))
    evaluate(bound, bound, text, lambda so_far: so_far.tokens <= len(text[0].ids))      # stopped in the second window
    assert fed == [len(w.ids) for w in text[:2] for _ in range(2)]
    fed.clear()
    progress: list[int] = []
    whole = evaluate(bound, bound, text, lambda so_far: progress.append(so_far.tokens) is None)
    assert fed == [len(w.ids) for w in text[1:] for _ in range(2)]
    assert progress == np.cumsum([len(w.ids) for w in text]).tolist() and whole.tokens == progress[-1]
