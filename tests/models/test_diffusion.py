"""models/diffusion: graphs compute what the modules of diffusers compute, in the shapes that its configurations can have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL, UNet2DConditionModel

from tensor_graphs.frontends.diffusers import read_unet, read_vae
from tensor_graphs.frontends.json_settings import Section
from tensor_graphs.language.dims import dim
from tensor_graphs.language.graph import graph
from tensor_graphs.language.leaves import input
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.models.diffusion.layers import Layers
from tensor_graphs.models.diffusion.text import T5Facts, buckets
from tensor_graphs.models.diffusion.unet import unet
from tensor_graphs.models.diffusion.vae import decoded, encoded

DRAW = np.random.default_rng(3)


def settings(module: Any) -> Section:
    return Section({k: list(v) if isinstance(v, tuple) else v for k, v in module.config.items()}, Path("config.json"))


def normal(*shape: int) -> np.ndarray:
    return DRAW.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("more", [
    {"layers_per_block": 2}, {"use_linear_projection": True, "attention_head_dim": [1, 2, 4], "layers_per_block": 1},
    {"transformer_layers_per_block": 2, "flip_sin_to_cos": False, "freq_shift": 1, "layers_per_block": 1}])
@torch.no_grad()
def test_a_unet_predicts_what_diffusers_does(more: dict[str, Any]) -> None:
    torch.manual_seed(1)
    module = UNet2DConditionModel(**{
        "block_out_channels": (8, 16, 16), "cross_attention_dim": 12, "attention_head_dim": 2, "norm_num_groups": 4,
        "down_block_types": ("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"), **more}).eval()
    facts, a, b = read_unet(settings(module)), dim("a", 1, 8), dim("b", 1, 8)
    g = graph({"out": unet(facts, Layers(), input("x", (2, 4, 4 * a, 4 * b)), input("time", ()), input("context", (2, 5, 12)))})
    weights = {name: value.numpy() for name, value in module.state_dict().items()}
    assert set(g.parameters) == set(weights)
    x, context = normal(2, 4, 8, 4), normal(2, 5, 12)
    out = interpret(g, {"x": x, "time": np.float32(501), "context": context}, weights, dims={"a": 2, "b": 1}).outputs["out"]
    theirs = module(torch.tensor(x), 501, torch.tensor(context)).sample.numpy()
    assert np.abs(out - theirs).max() <= 1e-5 * max(1, np.abs(theirs).max())


@pytest.mark.parametrize("more", [{}, {"mid_block_add_attention": False, "shift_factor": 0.1, "use_quant_conv": False,
                                       "use_post_quant_conv": False, "layers_per_block": 2}])
@torch.no_grad()
def test_an_autoencoder_codes_as_diffusers_does(more: dict[str, Any]) -> None:
    module = AutoencoderKL(block_out_channels=(8, 16, 16), down_block_types=("DownEncoderBlock2D",) * 3, norm_num_groups=4,
                           up_block_types=("UpDecoderBlock2D",) * 3, latent_channels=3, scaling_factor=0.4, **more).eval()
    facts, a, b = read_vae(settings(module)), dim("a", 1, 8), dim("b", 1, 8)
    weights = {name: value.numpy() for name, value in module.state_dict().items()}
    x, z, shift = normal(1, 3, 16, 12), normal(1, 3, 4, 3), facts.shift
    decoder = graph({"out": decoded(facts, Layers(), input("z", (1, 3, a, b)))})
    encoder = graph({"out": encoded(facts, Layers(), input("x", (1, 3, 4 * a, 4 * b)))})
    assert set(decoder.parameters) | set(encoder.parameters) == set(weights)
    theirs = module.decode(torch.tensor(z) / 0.4 + shift).sample.numpy()
    assert np.abs(interpret(decoder, {"z": z}, weights).outputs["out"] - theirs).max() <= 1e-5
    theirs = (module.encode(torch.tensor(x)).latent_dist.mean.numpy() - shift) * 0.4
    ours = interpret(encoder, {"x": x}, weights, dims={"a": 4, "b": 3}).outputs["out"]
    assert np.abs(ours - theirs).max() <= 1e-5


def test_distances_fall_into_t5s_buckets() -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    facts = T5Facts(9, 8, 8, 1, 1, 8, 1e-6)
    places = torch.arange(400)
    expected = T5Attention._relative_position_bucket(places[None] - places[:, None], True, facts.buckets, facts.furthest)
    assert np.array_equal(buckets(facts, 400), expected.numpy())
