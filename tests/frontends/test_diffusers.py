"""frontends/diffusers.py: a folder is read as diffusers reads it, and one that does not fit is refused on one screen."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tensor_graphs.devices.safetensors import WeightsError
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.frontends.diffusers import open_pipeline
from tensor_graphs.models.diffusion.vae import VaeFacts
from tensor_graphs.serving.pictures import Painter
from tests.frontends.pipelines import stable_diffusion, stable_diffusion_3

WORDS = ("a red house", "A  RED\thouse, 12 houses & naïve red-houses!", "", "house " * 90)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("diffusers") / "sd"
    return stable_diffusion(folder), folder


@pytest.fixture
def folder(whole: tuple[Any, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole[1], tmp_path / "sd"))


@pytest.mark.parametrize("files", ["tokenizer.json", "vocab.json and merges.txt"])
@pytest.mark.parametrize("text", WORDS)
def test_a_prompt_is_the_ids_that_clips_tokenizer_gives(whole: tuple[Any, Path], folder: Path, files: str, text: str) -> None:
    theirs = whole[0].tokenizer(text, padding="max_length", max_length=77, truncation=True).input_ids
    if files != "tokenizer.json":
        (folder / "tokenizer" / "tokenizer.json").unlink(missing_ok=True)
        for name in ("vocab.json", "merges.txt"):
            shutil.copy(whole[1] / "tokenizer" / name, folder / "tokenizer")
    ids, last = open_pipeline(folder).encoders[0].ids(text)
    assert ids.tolist() == theirs and theirs[last] == theirs[-1] and last == theirs.index(theirs[-1])


def edit(name: str, **values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()


WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.mark.parametrize(("damage", "says"), [
    (remove("model_index.json"), "there is no model_index.json"),
    (remove("unet"), "there is no config.json"),
    (remove("scheduler/scheduler_config.json"), "there is no scheduler_config.json"),
    (remove("tokenizer"), "there is no such folder"),
    (remove(f"unet/{WEIGHTS}"), "there is no model.safetensors"),
    (edit("model_index.json", _class_name="StableDiffusionXLPipeline"), "StableDiffusionXLPipeline.*not supported"),
    (edit("unet/config.json", _class_name="UNet2DModel"), "UNet2DModel.*not supported"),
    (edit("unet/config.json", addition_embed_type="text_time"), "addition_embed_type = .text_time. is not supported"),
    (edit("unet/config.json", down_block_types=["AttnDownBlock2D", "DownBlock2D"]), "AttnDownBlock2D, which is not supported"),
    (edit("unet/config.json", block_out_channels=[8]), "1 levels of channels, 2 down"),
    (edit("unet/config.json", block_out_channels=[16, 16]), "another shape than config.json says"),
    (edit("unet/config.json", layers_per_block=2), "tensors are missing"),
    (edit("scheduler/scheduler_config.json", _class_name="UniPCMultistepScheduler"), "UniPCMultistepScheduler.*not supported"),
    (edit("scheduler/scheduler_config.json", clip_sample=True), "clip_sample = true is not supported"),
    (edit("text_encoder/config.json", hidden_act="relu"), "hidden_act is 'relu'")])
def test_a_wrong_or_partial_folder_is_one_clear_screen(damage: Callable[[Path], None], says: str, folder: Path) -> None:
    damage(folder)
    with pytest.raises(TensorGraphsError, match=says) as caught:
        pipeline = open_pipeline(folder)
        for name in ("step", "decoder", "text_encoder"):
            sub, graph = Painter(pipeline, lambda *_: None).graph(name)
            pipeline.weights(sub, graph)
    assert str(folder) in str(caught.value) and len(str(caught.value).splitlines()) <= 4


def test_older_names_of_tensors_and_other_dtypes_are_read(folder: Path) -> None:
    path = folder / "vae" / WEIGHTS
    tensors = load_file(path)
    older = {name.replace("to_q.", "query.").replace("to_out.0.", "proj_attn."): np.float16(x) for name, x in tensors.items()}
    save_file(older, path)
    pipeline = open_pipeline(folder)
    sub, graph = Painter(pipeline, lambda *_: None).graph("encoder")
    weights = pipeline.weights(sub, graph)
    for name in graph.parameters:
        assert weights[name].dtype == np.float32 and np.array_equal(weights[name], np.float32(np.float16(tensors[name])))


def test_random_weights_need_no_files_and_depend_on_the_seed(folder: Path) -> None:
    for name in (f"unet/{WEIGHTS}", f"vae/{WEIGHTS}", "text_encoder/model.safetensors"):
        (folder / name).unlink()
    drawn = []
    for seed in (0, 0, 1):
        pipeline = open_pipeline(folder, random_seed=seed)
        drawn.append(pipeline.weights("unet", Painter(pipeline, lambda *_: None).graph("step")[1])["conv_in.weight"])
    assert np.array_equal(drawn[0], drawn[1]) and not np.array_equal(drawn[0], drawn[2])
    with pytest.raises(WeightsError):
        open_pipeline(folder).weights("vae", Painter(pipeline, lambda *_: None).graph("decoder")[1])


def test_pndm_becomes_ddim_with_a_note(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    edit("scheduler/scheduler_config.json", _class_name="PNDMScheduler", skip_prk_steps=True)(folder)
    assert open_pipeline(folder).sampler == "ddim" and "DDIM takes its place" in caplog.text


def test_stable_diffusion_3_may_lack_its_t5_encoder(tmp_path: Path) -> None:
    stable_diffusion_3(tmp_path / "sd3")
    edit("model_index.json", text_encoder_3=[None, None], tokenizer_3=[None, None])(tmp_path / "sd3")
    for name in ("text_encoder_3", "tokenizer_3"):
        shutil.rmtree(tmp_path / "sd3" / name)
    pipeline = open_pipeline(tmp_path / "sd3")
    assert [encoder.name for encoder in pipeline.encoders] == ["text_encoder", "text_encoder_2"]
    assert pipeline.vae == VaeFacts((8, 8), 1, 4, groups=4, scale=0.18215, shift=0.06, before=False, after=False)
