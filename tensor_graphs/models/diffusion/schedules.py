"""schedules: samplers of diffusion models as tables of coefficients, one row per step.

A step is two lines, the same for all samplers. With e = denoiser(scale · x, time):

    x'     = x · row.x + e · row.e + memory · row.memory
    memory' = x · row.clean_x + e · row.clean_e          the clean picture that e predicts

A picture with noise is α · clean + σ · noise ("variance preserving", α² + σ² = 1), clean + s · noise (Euler; s = σ/α), or
(1 − s) · clean + s · noise (flow matching).
Sources: DDIM, Song et al. 2021; Euler and Karras' noise levels, Karras et al. 2022; DPM-Solver++ (2M), Lu et al. 2022; flow
matching, Lipman et al. 2023, Esser et al. 2024; prediction of v, Salimans and Ho 2022.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tensor_graphs.language.errors import AttributeValueError

Array = np.ndarray
Sampler = Literal["ddim", "euler", "dpm++", "flow"]
SAMPLERS: tuple[Sampler, ...] = ("ddim", "euler", "dpm++", "flow")


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise that a model was trained with, and the places of a sampler's steps in it.

    steps: number of time steps in training. betas, start, end: their noise, by "linear", "scaled_linear" (linear in √β) or
    "cosine". predicts: "noise", "clean" or "v" = α · noise − σ · clean; a flow model predicts noise − clean. spacing, offset: of
    the sampler's steps in 0 … steps − 1. karras: noise levels even in s^(1/7). ends_clean: DDIM's last step removes all noise.
    shift: a flow's noise levels are s · shift / (1 + (shift − 1) · s). dynamic: shift is exp of a number that grows linearly in the
    tokens of the picture: ((tokens, number), (tokens, number)). even: before the shift, the levels of n steps of a flow end at 1/n,
    not at the least level of the training.
    """

    steps: int = 1000
    betas: Literal["linear", "scaled_linear", "cosine"] = "linear"
    start: float = 0.0001
    end: float = 0.02
    predicts: Literal["noise", "clean", "v"] = "noise"
    spacing: Literal["linspace", "leading", "trailing"] = "leading"
    offset: int = 0
    karras: bool = False
    ends_clean: bool = True
    shift: float = 1.0
    dynamic: tuple[tuple[float, float], tuple[float, float]] | None = None
    even: bool = False

    def levels(self) -> Array:
        """Return s = σ/α of each time step in training, from the least noise."""
        if self.betas == "cosine":
            at = np.cos((np.arange(self.steps + 1) / self.steps + 0.008) / 1.008 * math.pi / 2) ** 2
            betas = np.minimum(1 - at[1:] / at[:-1], 0.999)
        elif self.betas == "linear":
            betas = np.linspace(self.start, self.end, self.steps)
        else:
            betas = np.linspace(self.start ** 0.5, self.end ** 0.5, self.steps) ** 2
        left: Array = np.cumprod(1 - betas)
        return np.sqrt((1 - left) / left)


@dataclass(frozen=True, slots=True)
class StepRow:
    """The coefficients of one step (see the module), and those of a picture with this step's noise: clean · with_clean +
    noise · with_noise."""

    time: float
    scale: float
    x: float
    e: float
    memory: float
    clean_x: float
    clean_e: float
    with_clean: float
    with_noise: float

    @property
    def array(self) -> Array:
        """f32[6]: scale, x, e, memory, clean_x, clean_e."""
        return np.array((self.scale, self.x, self.e, self.memory, self.clean_x, self.clean_e), np.float32)


def table(sampler: Sampler, noise: Noise, steps: int, *, first: int = 0, tokens: int = 0) -> tuple[StepRow, ...]:
    """Return the rows of the steps from `first` on, of `steps` in all. tokens: of the picture, for a dynamic shift.

    Raises AttributeValueError for no step, or for more than the training had.
    """
    if not 0 <= first < steps <= noise.steps:
        raise AttributeValueError(f"steps {first} to {steps} of {noise.steps}", fix=f"at least one step, at most {noise.steps}")
    if sampler == "flow":
        return _flow(noise, steps, tokens)[first:]
    levels = noise.levels()
    times = _times(sampler, noise, steps, levels)
    s = levels[times] if sampler == "ddim" else np.interp(times, np.arange(noise.steps), levels)
    if noise.karras:
        s = _karras(s[0], s[-1], steps) if sampler == "euler" else _karras(levels[-1], levels[0], steps)
        times = np.interp(np.log(s), np.log(levels), np.arange(noise.steps))
        times = times if sampler == "euler" else times.round()
    if sampler == "ddim":
        last = times - noise.steps // steps
        following = np.where(last >= 0, levels[np.maximum(last, 0)], 0.0 if noise.ends_clean else levels[0])
    else:
        following = np.append(s[1:], 0.0)
    step = {"ddim": _ddim, "euler": _euler, "dpm++": _dpm}[sampler]
    return tuple(step(noise, float(times[i]), float(s[i]), float(following[i]), float(s[i - 1]) if i > first else None)
                 for i in range(first, steps))


def initial_noise(sampler: Sampler, noise: Noise, rows: tuple[StepRow, ...]) -> float:
    """Return the factor of the noise that a new picture starts from."""
    if sampler != "euler":
        return 1.0
    most = rows[0].with_noise
    return most if noise.spacing in ("linspace", "trailing") else math.hypot(most, 1.0)


def _times(sampler: Sampler, noise: Noise, steps: int, levels: Array) -> Array:
    """Return the time step of each step, from the most noise: whole numbers, but for Euler's linspace."""
    extra = int(sampler == "dpm++")                                  # DPM-Solver's steps end one before the clean picture
    if noise.spacing == "linspace":
        times = np.linspace(0, noise.steps - 1, steps + extra)
        return (times if sampler == "euler" else times.round().astype(int))[::-1][:steps]
    if noise.spacing == "leading":
        return (np.arange(steps + extra) * (noise.steps // (steps + extra)))[::-1][:steps] + noise.offset
    return np.round(np.arange(noise.steps, 0, -noise.steps / steps)).astype(int) - 1


def _karras(most: float, least: float, steps: int) -> Array:
    return np.linspace(most ** (1 / 7), least ** (1 / 7), steps) ** 7


def _prediction(noise: Noise, s: float) -> tuple[float, float, float, float, float, float]:
    """Return (α, σ, and the factors of x and e in the clean picture, and in its noise), at noise level s."""
    alpha = 1 / math.hypot(s, 1.0)
    sigma = s * alpha
    return (alpha, sigma, *{"noise": (1 / alpha, -sigma / alpha, 0.0, 1.0), "v": (alpha, -sigma, sigma, alpha),
                            "clean": (0.0, 1.0, 1 / sigma, -alpha / sigma)}[noise.predicts])


def _ddim(noise: Noise, time: float, s: float, following: float, before: float | None) -> StepRow:
    alpha, sigma, clean_x, clean_e, noise_x, noise_e = _prediction(noise, s)
    to_alpha = 1 / math.hypot(following, 1.0)
    to_sigma = following * to_alpha
    return StepRow(time, 1.0, to_alpha * clean_x + to_sigma * noise_x, to_alpha * clean_e + to_sigma * noise_e, 0.0, clean_x,
                   clean_e, alpha, sigma)


def _euler(noise: Noise, time: float, s: float, following: float, before: float | None) -> StepRow:
    alpha, _, clean_x, clean_e, _, _ = _prediction(noise, s)         # of α · x: here a picture is clean + s · noise
    share = (following - s) / s
    return StepRow(time, alpha, 1 + share * (1 - clean_x * alpha), -share * clean_e, 0.0, clean_x * alpha, clean_e, 1.0, s)


def _dpm(noise: Noise, time: float, s: float, following: float, before: float | None) -> StepRow:
    alpha, sigma, clean_x, clean_e, _, _ = _prediction(noise, s)
    to_alpha = 1 / math.hypot(following, 1.0)
    to_sigma = following * to_alpha
    share = to_alpha * (1 - following / s)                           # α′ · (1 − e^−h), h = log s − log s′
    half = math.log(s / following) / math.log(before / s) / 2 if before is not None and following else 0.0
    return StepRow(time, 1.0, to_sigma / sigma + share * (1 + half) * clean_x, share * (1 + half) * clean_e, -share * half, clean_x,
                   clean_e, alpha, sigma)


def _flow(noise: Noise, steps: int, tokens: int) -> tuple[StepRow, ...]:
    shift, least = noise.shift, noise.shift / (noise.steps + noise.shift - 1)            # the level 1 / noise.steps, shifted
    if noise.dynamic is not None:
        (low, at_low), (high, at_high) = noise.dynamic
        shift, least = math.exp(at_low + (tokens - low) * (at_high - at_low) / (high - low)), 1 / noise.steps
    s = np.linspace(1.0, 1 / steps if noise.even else least, steps)
    s = np.append(shift * s / (1 + (shift - 1) * s), 0.0)
    return tuple(StepRow(float(now * noise.steps), 1.0, 1.0, float(then - now), 0.0, 1.0, float(-now), float(1 - now), float(now))
                 for now, then in itertools.pairwise(s))
