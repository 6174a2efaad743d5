"""Without a C compiler everything works on numpy, and `explain` says why the native kernels are missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cli.command import ROOT, document, tg


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str | None]:
    """A machine without cc, gcc or clang, and without a library compiled earlier."""
    (tmp_path / "bin").mkdir()
    return {"PATH": str(tmp_path / "bin"), "CC": None, "XDG_CACHE_HOME": str(tmp_path / "cache")}


def test_run_gives_the_same_tokens(gemma: Path, bare: dict[str, str | None]) -> None:
    arguments = ("run", gemma, "--ids", "2,9,10", "--tokens", 5, "--ignore-eos", "--json")
    assert document(tg(*arguments, env=bare))["ids"] == document(tg(*arguments))["ids"]


@pytest.mark.long
def test_embed_gives_the_same_vectors(minilm: Path, bare: dict[str, str | None]) -> None:
    arguments = ("embed", minilm, "--text", "A cat sleeps.", "--json")
    here, there = (np.array(document(tg(*arguments, env=env))["embeddings"]) for env in ({}, bare))
    np.testing.assert_allclose(here, there, atol=1e-5)


def test_explain_and_devices_say_why(bare: dict[str, str | None], tmp_path: Path) -> None:
    said = document(tg("explain", ROOT / "examples" / "softmax.tg", "--json", env=bare))
    notes = said["notes"]
    assert [note.partition(": ")[0] for note in notes] == [f"backend {name} is not available" for name in ("c", "gen")]
    for text in (
        "no C compiler",
        "'cc' is not on PATH",
        "'gcc' is not on PATH",
        "'clang' is not on PATH",
        "install gcc or clang",
    ):
        assert all(text in note for note in notes)
    assert {choice["kernel"].split(".")[0] for variant in said["variants"] for choice in variant["choices"]} <= {
        "numpy",
        "expand",
    }
    shown = tg("devices", env=bare).stdout
    assert "missing: " in shown and "no C compiler" in shown
    cache = tmp_path / "cache" / "tensor_graphs"
    assert (cache / "plans").exists() and not (cache / "native").exists()


def test_only_native_kernels_without_a_compiler_is_an_error(bare: dict[str, str | None]) -> None:
    result = tg("explain", ROOT / "examples" / "softmax.tg", "--backends", "c", env=bare)
    assert result.returncode == 1 and "no backend is available" in result.stderr and "no C compiler" in result.stderr
