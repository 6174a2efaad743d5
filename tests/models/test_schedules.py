"""models/diffusion/schedules.py: rows of coefficients step as the samplers of diffusers do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, DPMSolverMultistepScheduler, EulerDiscreteScheduler, FlowMatchEulerDiscreteScheduler

from tensor_graphs.language.errors import AttributeValueError
from tensor_graphs.models.diffusion.schedules import Noise, initial_noise, table

PREDICTS = {"epsilon": "noise", "v_prediction": "v", "sample": "clean"}
BETAS = {"linear": "linear", "scaled_linear": "scaled_linear", "squaredcos_cap_v2": "cosine"}


def denoiser(x: torch.Tensor, time: float) -> torch.Tensor:
    return torch.tanh(x * 0.7 + time / 1000) * 0.9


def follow(sampler: Any, noise: Noise, theirs: Any, steps: int, first: int = 0) -> None:
    """Run both for all steps, and hold each noisy picture to diffusers'."""
    theirs.set_timesteps(steps)
    rows = table(sampler, noise, steps, first=first)
    start = np.random.default_rng(0).standard_normal((1, 4, 6, 5)).astype(np.float32)
    scale = np.float32(initial_noise(sampler, noise, rows))
    if not first:
        assert scale == pytest.approx(float(getattr(theirs, "init_noise_sigma", 1.0)), rel=1e-6)
    x, mine = torch.tensor(start * scale), start * scale
    if first:
        theirs.set_begin_index(first)
    memory = np.zeros_like(mine)
    for time, row in zip(theirs.timesteps[first:], rows, strict=True):
        assert row.time == pytest.approx(float(time), abs=2e-3)
        seen = theirs.scale_model_input(x, time) if hasattr(theirs, "scale_model_input") else x
        x = theirs.step(denoiser(seen, float(time)), time, x).prev_sample
        scaled, of_x, of_e, of_memory, clean_x, clean_e = row.array
        e = denoiser(torch.tensor(mine * scaled), row.time).numpy()
        mine, memory = mine * of_x + e * of_e + memory * of_memory, mine * clean_x + e * clean_e
        assert np.abs(mine - x.numpy()).max() <= 2e-5 * max(1.0, float(x.abs().max()))


@pytest.mark.parametrize("predicts", PREDICTS)
@pytest.mark.parametrize("spacing", ["leading", "linspace", "trailing"])
@pytest.mark.parametrize("sampler", ["ddim", "euler", "euler, karras", "dpm++", "dpm++, karras"])
def test_rows_step_as_diffusers_does(sampler: str, spacing: Any, predicts: str) -> None:
    name, _, karras = sampler.partition(", ")
    own = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1,
           "prediction_type": predicts, "timestep_spacing": spacing}
    kind = {"ddim": DDIMScheduler, "euler": EulerDiscreteScheduler, "dpm++": DPMSolverMultistepScheduler}[name]
    more = {"clip_sample": False, "set_alpha_to_one": False} if name == "ddim" else {"use_karras_sigmas": bool(karras)}
    theirs = kind(**own, **more)
    noise = Noise(betas="scaled_linear", start=0.00085, end=0.012, offset=1, predicts=PREDICTS[predicts], spacing=spacing,  # type: ignore[arg-type]
                  karras=bool(karras), ends_clean=False)
    for steps in (20, 7):
        follow(name, noise, theirs, steps)


@pytest.mark.parametrize("betas", BETAS)
def test_the_noise_of_training_is_that_of_diffusers(betas: str) -> None:
    noise = Noise(betas=BETAS[betas])  # type: ignore[arg-type]
    follow("ddim", noise, DDIMScheduler(beta_schedule=betas, clip_sample=False), 20)


def test_a_flow_steps_as_diffusers_does() -> None:
    follow("flow", Noise(shift=3.0), FlowMatchEulerDiscreteScheduler(shift=3.0), 20)
    follow("flow", Noise(shift=3.0), FlowMatchEulerDiscreteScheduler(shift=3.0), 20, first=9)


def test_steps_that_are_no_steps_are_refused() -> None:
    for steps, first in ((0, 0), (5, 5), (1001, 0)):
        with pytest.raises(AttributeValueError, match="at least one step"):
            table("ddim", Noise(), steps, first=first)
