"""serving/pictures.py: each step of a loop, and the picture, are those of diffusers' pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FluxPipeline,
    StableDiffusionImg2ImgPipeline,
)

from tensor_graphs.frontends.diffusers import open_pipeline
from tensor_graphs.frontends.errors import FrontendError
from tensor_graphs.language.graph import Graph
from tensor_graphs.serving.pictures import Painter, PictureRequest, to_bytes, to_floats
from tests.frontends.pipelines import NOISE, flux, stable_diffusion, stable_diffusion_3
from tests.plans import compiled_of

HEIGHT, WIDTH, STEPS = 16, 24, 20


class Compiled:
    """Compiles graphs to plans of one kernel each, without a judge, and lists them."""

    def __init__(self, backends: tuple[str, ...] = ("numpy",)) -> None:
        self.names: list[str] = []
        self.backends = backends

    def __call__(self, name: str, graph: Graph, weights: Mapping[str, Any]) -> Any:
        self.names.append(name)
        return compiled_of(graph, weights, self.backends).run


@pytest.fixture(scope="module")
def sd(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("pictures") / "sd"
    return stable_diffusion(folder), folder


def painter_of(folder: Path, scheduler: Any = None) -> tuple[Painter, Compiled]:
    if scheduler is not None:
        scheduler.save_pretrained(folder / "scheduler")
    compiled = Compiled()
    return Painter(open_pipeline(folder), compiled), compiled


def request(**more: Any) -> PictureRequest:
    usual = {"prompt": "a red house", "steps": STEPS, "seed": 0, "height": HEIGHT, "width": WIDTH, "guidance": 5.0}
    return PictureRequest(**{**usual, **more})


def noise(seed: int, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, 4, height // 2, width // 2)).astype(np.float32)


def compare(pipeline: Any, painter: Painter, asked: PictureRequest, start: np.ndarray, latents: Any = None, **more: Any) -> None:
    """Hold each latent picture, and the picture, of a painter to those of diffusers."""
    theirs: list[np.ndarray] = []

    def keep(_: Any, step: int, time: Any, values: dict[str, Any]) -> dict[str, Any]:
        theirs.append(values["latents"].numpy().copy())
        return values

    picture = pipeline(asked.prompt, num_inference_steps=asked.steps, guidance_scale=asked.guidance, callback_on_step_end=keep,
                       output_type="np", negative_prompt=asked.negative, **more,
                       **({} if latents is None else {"latents": latents})).images[0]
    ours = list(painter.steps(asked, noise=start))
    assert len(ours) == len(theirs) > 0
    for i, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        if mine.shape != other.shape:
            other = FluxPipeline._unpack_latents(torch.tensor(other), asked.height, asked.width, 2).numpy()
        assert np.abs(mine - other).max() <= 1e-4 * max(1.0, np.abs(other).max()), f"step {i}"
    drawn = to_bytes(painter.run("decoder", {"z": ours[-1]}, asked)["out"]).astype(int)
    assert np.abs(drawn - np.round(picture * 255)).max() <= 1


SCHEDULERS = {
    "ddim": DDIMScheduler(**NOISE, clip_sample=False, set_alpha_to_one=False),
    "euler": EulerDiscreteScheduler(**NOISE, timestep_spacing="leading"),
    "dpm++": DPMSolverMultistepScheduler(**NOISE),
    "dpm++ of karras": DPMSolverMultistepScheduler(**NOISE, use_karras_sigmas=True),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_each_of_twenty_steps_is_that_of_diffusers(sd: tuple[Any, Path], name: str) -> None:
    pipeline, folder = sd
    pipeline.scheduler = SCHEDULERS[name]
    painter, compiled = painter_of(folder, SCHEDULERS[name])
    start = noise(1)
    compare(pipeline, painter, request(negative="house"), start, torch.tensor(start), height=HEIGHT, width=WIDTH)
    assert sorted(compiled.names) == ["decoder", "guided step", "text_encoder"]


@pytest.mark.processes
def test_compiled_kernels_draw_the_same_picture(sd: tuple[Any, Path]) -> None:
    pipeline, folder = sd
    pipeline.scheduler = SCHEDULERS["ddim"]
    painter, _ = painter_of(folder, SCHEDULERS["ddim"])
    painter.compiler = Compiled(("c", "numpy"))
    start = noise(8)
    compare(pipeline, painter, request(), start, torch.tensor(start), height=HEIGHT, width=WIDTH)


def test_another_size_compiles_nothing(sd: tuple[Any, Path]) -> None:
    pipeline, folder = sd
    pipeline.scheduler = SCHEDULERS["ddim"]
    painter, compiled = painter_of(folder, SCHEDULERS["ddim"])
    assert painter.draw(request(steps=2)).shape == (HEIGHT, WIDTH, 3)
    before = list(compiled.names)
    start = noise(2, 24, 16)
    compare(pipeline, painter, request(steps=2, height=24, width=16), start, torch.tensor(start), height=24, width=16)
    assert compiled.names == before


@pytest.mark.parametrize("name", ["ddim", "euler", "dpm++"])
def test_a_picture_to_start_from_is_changed_as_diffusers_does(sd: tuple[Any, Path], name: str) -> None:
    pipeline, folder = sd
    painter, _ = painter_of(folder, SCHEDULERS[name])
    init = np.random.default_rng(4).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    with torch.no_grad():
        latent = pipeline.vae.encode(torch.tensor(to_floats(init))).latent_dist.mean * pipeline.vae.config.scaling_factor
    theirs = StableDiffusionImg2ImgPipeline(**pipeline.components, requires_safety_checker=False)
    theirs.set_progress_bar_config(disable=True)
    theirs.scheduler = SCHEDULERS[name]
    start = torch.randn(latent.shape, generator=torch.Generator().manual_seed(3)).numpy()
    compare(theirs, painter, request(steps=10, init=init, strength=0.55), start, image=latent, strength=0.55,
            generator=torch.Generator().manual_seed(3))


def test_no_guidance_is_one_picture_a_step(sd: tuple[Any, Path]) -> None:
    pipeline, folder = sd
    pipeline.scheduler = SCHEDULERS["ddim"]
    painter, compiled = painter_of(folder, SCHEDULERS["ddim"])
    start = noise(5)
    compare(pipeline, painter, request(steps=2, guidance=1.0), start, torch.tensor(start), height=HEIGHT, width=WIDTH)
    assert "step" in compiled.names


def test_stable_diffusion_3_is_that_of_diffusers(tmp_path: Path) -> None:
    pipeline = stable_diffusion_3(tmp_path / "sd3", qk_norm="rms_norm", dual_attention_layers=(0,))
    painter, _ = painter_of(tmp_path / "sd3")
    start = noise(6)
    compare(pipeline, painter, request(negative="red"), start, torch.tensor(start), height=HEIGHT, width=WIDTH)


@pytest.mark.parametrize("distilled", [True, False])
def test_flux_is_that_of_diffusers(distilled: bool, tmp_path: Path) -> None:
    pipeline = flux(tmp_path / "flux", distilled=distilled)
    painter, compiled = painter_of(tmp_path / "flux")
    start = noise(7)
    packed = FluxPipeline._pack_latents(torch.tensor(start), 1, 4, HEIGHT // 2, WIDTH // 2)
    compare(pipeline, painter, request(guidance=3.5, steps=STEPS if distilled else 4), start, packed, height=HEIGHT, width=WIDTH)
    assert "step" in compiled.names and "guided step" not in compiled.names


@pytest.mark.parametrize(("change", "says"), [
    ({"height": 20, "width": 18}, "a multiple of 4"), ({"height": 4096}, "at most 2048"), ({"sampler": "flow"}, "the folder's own"),
    ({"init": np.zeros((8, 8, 3), np.uint8)}, "one of 16 × 24"),
    ({"init": np.zeros((16, 24, 3), np.uint8), "strength": 0.01}, "is no step")])
def test_a_request_that_does_not_fit_is_refused_with_a_fix(sd: tuple[Any, Path], change: dict[str, Any], says: str) -> None:
    painter, compiled = painter_of(sd[1], SCHEDULERS["ddim"])
    with pytest.raises(FrontendError, match=says):
        painter.draw(request(**change))
    assert not compiled.names
