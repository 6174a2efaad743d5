"""tg image: a folder that diffusers wrote becomes a PNG file; what does not fit is one screen."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli.command import tg
from tests.frontends.pipelines import stable_diffusion


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("image") / "sd"
    stable_diffusion(folder)
    return folder


@pytest.mark.long
@pytest.mark.processes
def test_a_folder_of_diffusers_becomes_a_picture_that_opens(folder: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.png", tmp_path / "second.png"
    line = ("image", str(folder), "--prompt", "a red house", "--steps", "3", "--backends", "numpy")
    done = tg(*line, "--size", "16x24", "--out", str(first), "--json", timeout=900)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["width"] == 24
    done = tg(*line, "--init", str(first), "--strength", "0.7", "--out", str(second), timeout=900)
    assert done.returncode == 0 and f"{second}: 16 × 24 pixels" in done.stdout, done.stderr
    pictures = [np.asarray(Image.open(path)) for path in (first, second)]
    assert pictures[0].shape == pictures[1].shape == (16, 24, 3) and not np.array_equal(*pictures)


@pytest.mark.processes
@pytest.mark.parametrize(("more", "code", "says"), [
    (("--size", "big"), 2, "fix: HEIGHTxWIDTH"), (("--size", "10x16"), 1, "fix: a multiple of 4"),
    (("--sampler", "pndm"), 2, "fix: one of ddim, euler, dpm++, flow"), (("--sampler", "flow"), 1, "fix: the folder's own: ddim"),
    (("--init", "none.png"), 1, "cannot read the picture"), (("--out", "none/x.png"), 2, "lies in no folder that there is")])
def test_what_does_not_fit_is_one_screen(more: tuple[str, ...], code: int, says: str, folder: Path, tmp_path: Path) -> None:
    out = () if "--out" in more else ("--out", str(tmp_path / "x.png"))
    done = tg("image", str(folder), "--prompt", "red", *out, *more)
    assert done.returncode == code and says in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "x.png").exists()
