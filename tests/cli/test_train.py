"""tg train: a file says what is trained; a run that is stopped goes on as if it had not been; mistakes in the file are named."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tensor_graphs.cli import train_file
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.views.loss_curve import averages, in_one_line, picture
from tests.cli.command import ROOT, environment, tg

GRAPH = """tg 1
dim n 1..64
input x f32[n, 4]
parameter w1 f32[8, 4]
parameter b1 f32[8]
parameter w2 f32[3, 8]
output logits = linear(relu(linear(x, w1, b1)), w2)
"""
SETTINGS = """graph = "net.tg"
data = "points.npz"
loss = "cross_entropy"
batch = 16
accumulate = 2
steps = 30
save_every = 7
clip_norm = 1.0
[optimiser]
name = "adam"
rate = 0.02
[schedule]
name = "cosine"
warmup = 5
"""
NARROW = ("--backends", "numpy", "--precision", "bf16", "--memory-limit", "100000000")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 4)).astype(np.float32)
    np.savez(tmp_path / "points.npz", x=x, target=x[:, :3].argmax(axis=1).astype(np.int32))
    (tmp_path / "net.tg").write_text(GRAPH)
    (tmp_path / "train.toml").write_text(SETTINGS)
    return tmp_path


def results(folder: Path) -> dict[str, bytes]:
    return {name: (folder / "run" / name).read_bytes() for name in ("checkpoint.safetensors", "weights.safetensors", "losses.csv")}


@pytest.mark.processes
def test_a_run_that_ctrl_c_stops_goes_on_as_if_it_had_not_been(folder: Path) -> None:
    whole = tg("train", str(folder), *NARROW, "--json")
    assert whole.returncode == 0, whole.stderr
    report = json.loads(whole.stdout)
    assert report["steps"] == 30 and report["losses"][-1] < report["losses"][0] / 1.2 and not report["stopped"]
    expected = results(folder)
    assert (folder / "run" / "loss.svg").read_text().startswith("<svg")
    again = tg("train", str(folder / "train.toml"), *NARROW)
    assert again.returncode == 1 and "--resume goes on from it" in again.stderr

    (folder / "train.toml").write_text("out = \"other\"\n" + SETTINGS.replace("steps = 30", "steps = 1000000"))
    process = subprocess.Popen([sys.executable, "-m", "tensor_graphs.cli.main", "train", str(folder), *NARROW], env=environment(),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline().startswith("step 1 of 1000000")
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "--resume goes on" in err and "written:" in out, err
    stopped = int(re.findall(r"stopped after step (\d+)", err)[0])
    assert (folder / "other" / "losses.csv").read_text().count("\n") == stopped + 1

    (folder / "train.toml").write_text(SETTINGS)
    os.rename(folder / "run", folder / "first")
    halfway = tg("train", str(folder), *NARROW, "--steps", "13")
    assert halfway.returncode == 0 and re.search(r"loss 0\.\d+ [▁-█]{13} [01]\.\d+", halfway.stdout), halfway.stderr
    resumed = tg("train", str(folder), *NARROW, "--resume")
    assert resumed.returncode == 0 and results(folder) == expected
    assert tg("train", str(folder / "none.toml")).returncode == 1


@pytest.mark.parametrize(("change", "error"), [
    (("steps = 30", "step = 30"), "has 'step', which is no setting\n  fix: did you mean steps?"),
    (("steps = 30", "steps = true"), "steps is True\n  fix: a whole number"),
    (("steps = 30\n", ""), "has no steps"),
    (('graph = "net.tg"\n', ""), "has no one graph"),
    (("batch = 16", "batch = ["), "is not TOML"),
    (('"adam"', '"adm"'), r"\[optimiser\] name is 'adm'\n  fix: one of adagrad, adam, "),
    (("rate = 0.02", "rat = 0.02"), r"\[optimiser\] has 'rat', which is no setting\n  fix: did you mean rate"),
    (('"cosine"', '"cosin"'), r"\[schedule\] name is 'cosin'"),
    (("warmup = 5", "warmup = 5\npower = 2.0"), r"\[schedule\] has 'power'"),
    (("warmup = 5", 'warmup = "5"'), r"\[schedule\]: warmup is '5'\n  fix: a whole number of 0 or more"),
    (("warmup = 5", 'warmup = 5\nend = "0"'), r"\[schedule\]: end is '0'\n  fix: a number"),
    (("rate = 0.02", 'rate = "fast"'), r"\[optimiser\]: rate is 'fast'\n  fix: a number of 0 or more"),
    (("rate = 0.02", "rate = -1"), r"\[optimiser\]: rate is -1\n"),
    (("rate = 0.02", "decays = 0.9"), r"\[optimiser\]: decays is 0.9\n  fix: a list of 2 numbers"),
    (("steps = 30", "steps = 0"), "steps is 0\n  fix: a whole number of 1 or more"),
    (("save_every = 7", "save_every = 0"), "save_every is 0\n  fix: a whole number of 1 or more"),
    (("steps = 30", "steps = 30\nseed = -1"), "seed is -1\n  fix: a whole number of 0 or more"),
    (("clip_norm = 1.0", "clip_norm = -1.0"), "clip_norm is -1.0\n  fix: a number of 0 or more"),
    (('"cross_entropy"', '"entropy"'), r"\[loss\] name is 'entropy'\n  fix: one of bce_with_logits, cross_entropy, mse"),
    (("points.npz", "net.tg"), "cannot be read"),
    (("batch = 16", 'batch = 16\ntarget = "t"'), "target 't'\n  fix: outputs are logits; arrays of points.npz are target, x"),
    (("batch = 16", "batch = 500"), "the batch's size is 500"),
    (("batch = 16", "batch = 16\nlora = {pattern = \"q*\"}"), "no linear layer has a weight like 'q"),
])
def test_a_mistake_in_the_file_is_named(change: tuple[str, str], error: str, folder: Path) -> None:
    assert change[0] in SETTINGS
    (folder / "train.toml").write_text(SETTINGS.replace(*change))
    with pytest.raises(TensorGraphsError, match=error):
        run = train_file.read(folder)
        train_file.optimisers(run)
        train_file.task_of(run)


def test_a_frozen_pattern_for_all_trains_nothing(folder: Path) -> None:
    (folder / "train.toml").write_text(SETTINGS.replace("steps = 30", "steps = 30\nfrozen = [\"*\"]"))
    assert train_file.optimisers(train_file.read(folder)) == {"*": None}


def test_the_sample_of_the_page_is_read(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    (tmp_path / "train.toml").write_text(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0])
    run = train_file.read(tmp_path)
    assert run.steps == 880 and train_file.optimisers(run)["*"].weight_decay == 0.01
    section = page.partition("## tg train")[2].partition("## tg demo")[0]
    assert {name for name in train_file.TrainFile.__dataclass_fields__ if f"`{name}`" not in section} == {"file"}


def test_a_curve_is_drawn_of_any_number_of_losses() -> None:
    assert averages([4.0, 2.0, 1.0, 3.0], 2) == [(2, 3.0), (4, 2.0)]
    assert in_one_line([3.0, 2.0, 1.0], 3) == "█▅▁" and in_one_line([1.0]) == "▁" and in_one_line([]) == ""
    for losses in ([1.0], [0.0, -1.0], [float(i) + 1 for i in range(2000)]):
        text = picture(losses, "a & b")
        assert text.count("<polyline") == 1 and "a &amp; b" in text and f"{len(losses)} steps" in text
