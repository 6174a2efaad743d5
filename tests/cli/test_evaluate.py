"""`tg evaluate`: a text's tokens are scored against float64, or against another model."""

from __future__ import annotations

from pathlib import Path

from tests.cli.command import assert_complains, document, tg


def test_a_text_is_scored_against_float64_and_another_model(wordy: Path, gemma: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"w{i}" for i in range(3, 60)))
    options = ("evaluate", wordy, "--text", text, "--window", 16, "--backends", "numpy", "--db", tmp_path / "a.db")
    exact = document(tg(*options, "--json"))
    assert exact["tokens"] == 56 and exact["kl_mean"] < 1e-10 and exact["top1"] == 1.0 and not exact["interrupted"]
    narrow = document(tg(*options, "--json", "--precision", "weight=bf16", "--tokens", 20))
    assert narrow["tokens"] == 20 and narrow["kl_mean"] > 10 * exact["kl_mean"]
    table = tg(*options, "--against", wordy)
    assert table.returncode == 0 and "KL divergence    mean" in table.stdout and "100.00%" in table.stdout
    assert_complains(tg("evaluate", gemma, "--text", text), "has no tokenizer", "fix: save the tokenizer")
