"""pipelines: pipelines of diffusers with small models and random weights, which diffusers itself writes as folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

NOISE: dict[str, Any] = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}
"""The noise that Stable Diffusion was trained with."""
LATER: dict[str, Any] = {"use_quant_conv": False, "use_post_quant_conv": False, "shift_factor": 0.06}
"""The settings in which later autoencoders differ from the first."""


def clip_tokenizer(folder: Path) -> transformers.CLIPTokenizer:
    """Write vocab.json and merges.txt of a few words, and return diffusers' tokenizer of them."""
    folder.mkdir(parents=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, *(c + "</w>" for c in alphabet), "re", "red</w>", "ho", "hou", "hous", "house</w>", "<|startoftext|>",
             "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\nr e\nre d</w>\nh o\nho u\nhou s\nhous e</w>\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "CLIPTokenizer", "model_max_length": 77,
                                                              "pad_token": "<|endoftext|>"}))
    return transformers.CLIPTokenizer.from_pretrained(folder)


def t5_tokenizer() -> transformers.PreTrainedTokenizerFast:
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -9.0), *((letter, -3.0) for letter in "▁" + letters), ("▁red", -1.0)]
    tokenizer = Tokenizer(models.Unigram(words, 2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = TemplateProcessing(single=["$A", "</s>"], special_tokens=[("</s>", 1)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>",
                                                model_max_length=512)


def clip(kind: type, vocabulary: int, **more: Any) -> Any:
    return kind(transformers.CLIPTextConfig(
        vocab_size=vocabulary, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=77, projection_dim=12, eos_token_id=vocabulary - 1, bos_token_id=vocabulary - 2,
        pad_token_id=vocabulary - 1, **more)).eval()


def t5() -> transformers.T5EncoderModel:
    return transformers.T5EncoderModel(transformers.T5Config(
        vocab_size=32, d_model=32, d_kv=8, d_ff=24, num_layers=2, num_heads=2, feed_forward_proj="gated-gelu")).eval()


def vae(**more: Any) -> AutoencoderKL:
    return AutoencoderKL(block_out_channels=(8, 8), down_block_types=("DownEncoderBlock2D",) * 2, norm_num_groups=4,
                         up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4, **more).eval()


def stable_diffusion(folder: Path, **more: Any) -> StableDiffusionPipeline:
    """Return a pipeline of the shape of Stable Diffusion 1, written to `folder`."""
    torch.manual_seed(0)
    tokenizer = clip_tokenizer(folder / "tokenizer")
    unet = UNet2DConditionModel(
        block_out_channels=(8, 16), layers_per_block=1, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), sample_size=8,
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), cross_attention_dim=16, attention_head_dim=2, norm_num_groups=4, **more)
    scheduler = DDIMScheduler(**NOISE, clip_sample=False, set_alpha_to_one=False)
    pipeline = StableDiffusionPipeline(vae(), clip(transformers.CLIPTextModel, len(tokenizer), hidden_act="quick_gelu"), tokenizer,
                                       unet.eval(), scheduler, None, None, requires_safety_checker=False)
    return _written(pipeline, folder)


def stable_diffusion_3(folder: Path, **more: Any) -> StableDiffusion3Pipeline:
    torch.manual_seed(0)
    tokenizers = [clip_tokenizer(folder / name) for name in ("tokenizer", "tokenizer_2")]
    clips = [clip(transformers.CLIPTextModelWithProjection, len(t), hidden_act=act)
             for t, act in zip(tokenizers, ("quick_gelu", "gelu"), strict=True)]
    transformer = SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=2,
        joint_attention_dim=32, caption_projection_dim=16, pooled_projection_dim=24, pos_embed_max_size=16, **more)
    pipeline = StableDiffusion3Pipeline(
        transformer=transformer.eval(), scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0), text_encoder=clips[0],
        vae=vae(**LATER), tokenizer=tokenizers[0], text_encoder_2=clips[1],
        tokenizer_2=tokenizers[1], text_encoder_3=t5(), tokenizer_3=t5_tokenizer())
    return _written(pipeline, folder)


def flux(folder: Path, *, distilled: bool = True) -> FluxPipeline:
    """Return a pipeline of the shape of FLUX. distilled: of the dev model, which takes guidance and shifts levels by size."""
    torch.manual_seed(0)
    tokenizer = clip_tokenizer(folder / "tokenizer")
    transformer = FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=16, guidance_embeds=distilled, axes_dims_rope=(4, 6, 6))
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=distilled)
    pipeline = FluxPipeline(
        scheduler=scheduler, transformer=transformer.eval(), tokenizer=tokenizer,
        vae=vae(**LATER), tokenizer_2=t5_tokenizer(), text_encoder_2=t5(),
        text_encoder=clip(transformers.CLIPTextModel, len(tokenizer), hidden_act="quick_gelu"))
    return _written(pipeline, folder)


def _written(pipeline: Any, folder: Path) -> Any:
    pipeline.set_progress_bar_config(disable=True)
    pipeline.save_pretrained(folder)
    return pipeline
