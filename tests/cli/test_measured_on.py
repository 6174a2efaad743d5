"""--tolerance is measured on a model's own weights and text, or on a text file; a text that cannot be used is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensor_graphs.cli.measured_on import ends, pieces
from tensor_graphs.frontends.huggingface.load import load_model
from tests.cli.command import ROOT, assert_complains, document, tg

SOFTMAX = ROOT / "examples" / "softmax.tg"
ASKED = ("--tolerance", "1e-2", "--backends", "numpy")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of 150 words: two pieces of 56, and a rest."""
    file = tmp_path_factory.mktemp("texts") / "words.txt"
    file.write_text("\n".join(f"w{3 + i % 200}" for i in range(150)))
    return file


@pytest.mark.slow
def test_the_error_is_measured_on_the_models_own_text_or_on_a_file(wordy: Path, text: Path, tmp_path: Path) -> None:
    own = tg("explain", wordy, *ASKED, "--db", tmp_path / "own.db")
    assert own.returncode == 0 and "own text, given weights)" in own.stdout, own.stderr
    read = document(tg("explain", wordy, *ASKED, "--text", text, "--json"))
    assert "(2 draws, given inputs, given weights)" in read["accuracy"]
    assert tg("plan", wordy, *ASKED, "--text", text).returncode == 0
    assert len(document(tg("run", wordy, "--prompt", "w7", "--tokens", 3, *ASKED, "--text", text, "--json"))["ids"]) == 3
    profiled = tg("profile", wordy, *ASKED, "--text", text, "--budget", 1)
    assert profiled.returncode == 0, profiled.stderr


def test_consecutive_pieces_of_a_text_are_draws(wordy: Path, text: Path) -> None:
    model = load_model(wordy)
    first, second = pieces(model, str(text))
    assert list(np.concatenate([first["ids"], second["ids"]])) == [3 + i for i in range(112)]
    assert first["ids"].dtype == np.int32
    short = pieces(load_model(wordy, max_positions=20), str(text))
    assert [len(piece["ids"]) for piece in short] == [20] * 7


def test_pieces_of_an_encoder_have_its_special_tokens(minilm: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Nothing wrong is ever chosen. " * 30)
    drawn = pieces(load_model(minilm), str(tmp_path / "a.txt"))
    assert len(drawn) > 1 and all(piece["ids"][0] == 101 and piece["ids"][-1] == 102 and len(piece["ids"]) == 56 for piece in drawn)
    assert ends([5, 6], [5, 6]) == ([], []) and ends([1, 5, 6], [5, 6]) == ([1], [])


def test_a_text_that_cannot_be_used_is_refused(wordy: Path, gemma: Path, text: Path, tmp_path: Path) -> None:
    short, bad = tmp_path / "short.txt", tmp_path / "bad.txt"
    short.write_text("w3 w4 w5")
    bad.write_bytes(b"w3 \xff w4")
    for verb in (("explain", wordy), ("run", wordy, "--ids", "2,9")):
        for file, problem, fix in ((short, "has 3 tokens, and one draw takes 56", "a longer text"),
                                   (bad, "is not UTF-8 text (byte 3)", "a text file in UTF-8"),
                                   (tmp_path / "none", "cannot be read: No such file", "a text file in UTF-8")):
            assert_complains(tg(*verb, *ASKED, "--text", file), f"--text {file} {problem}", f"fix: {fix}")
        assert_complains(tg(*verb, "--text", text), "on which --tolerance is measured", "fix: --tolerance", code=2)
    assert_complains(tg("plan", gemma, *ASKED, "--text", text), "has no tokenizer", "fix:")
    assert_complains(tg("explain", SOFTMAX, *ASKED, "--text", text), "no model folder", "fix: leave it out")


def test_without_weights_the_error_is_measured_on_random_ones(wordy: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").symlink_to(wordy / "config.json")
    explained = tg("explain", tmp_path, *ASKED)
    assert "drawn inputs, drawn weights)" in explained.stdout and "is measured on random weights" in explained.stderr
