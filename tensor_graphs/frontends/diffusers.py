"""diffusers: reads the folder of a pipeline of diffusers: its models' facts, their weights, its sampler and its tokenizers.

    pipeline = open_pipeline("path/to/stable-diffusion-v1-5")

model_index.json names a class for each sub-folder; a sub-folder has config.json (or scheduler_config.json) and
diffusion_pytorch_model.safetensors or model.safetensors. Keys, defaults and meanings are those of diffusers 0.42. A setting that
would change the picture and is not supported is an error; weights of another float dtype become f32 at their look-up.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from tensor_graphs.devices.safetensors import Weights, WeightsError, open_weights
from tensor_graphs.errors import listed
from tensor_graphs.frontends.errors import ConfigError, FolderError
from tensor_graphs.frontends.huggingface.folder import draw
from tensor_graphs.frontends.json_settings import REQUIRED, Section, read_json
from tensor_graphs.frontends.text.tokenizer import Tokenizer, load_tokenizer
from tensor_graphs.language.graph import Graph
from tensor_graphs.models.diffusion.dit import DitFacts
from tensor_graphs.models.diffusion.schedules import Noise, Sampler
from tensor_graphs.models.diffusion.text import ClipFacts, T5Facts
from tensor_graphs.models.diffusion.unet import UNetFacts
from tensor_graphs.models.diffusion.vae import VaeFacts

log = logging.getLogger(__name__)

INDEX = "model_index.json"
UNET, DIT, FLUX = "StableDiffusionPipeline", "StableDiffusion3Pipeline", "FluxPipeline"
PIPELINES: Mapping[str, str] = {
    UNET: UNET, "StableDiffusionImg2ImgPipeline": UNET, DIT: DIT, "StableDiffusion3Img2ImgPipeline": DIT, FLUX: FLUX,
    "FluxImg2ImgPipeline": FLUX}
"""Class names in model_index.json -> the pipeline that they share."""


@dataclass(frozen=True)
class TextEncoder:
    """One text encoder of a pipeline. tokens: number of tokens that it reads; pad: id that fills them up."""

    name: str
    facts: ClipFacts | T5Facts
    tokenizer: Tokenizer
    tokens: int
    pad: int

    def ids(self, text: str) -> tuple[np.ndarray, int]:
        """Return (i32[tokens]: the ids of a text, cut or padded; place of its last token)."""
        ids, left_out = self.tokenizer.encode_and_cut(text)
        if left_out:
            log.warning("%s reads %d tokens; the last %d of the prompt are left out", self.name, len(ids), left_out)
        return np.asarray([*ids, *[self.pad] * (self.tokens - len(ids))], np.int32), len(ids) - 1


class ComponentWeights(Mapping[str, np.ndarray]):
    """The weights that one graph needs, f32, by the names of its parameters: read from a sub-folder, or drawn from a seed."""

    def __init__(self, graph: Graph, folder: Path, seed: int | None) -> None:
        self.shapes = {name: cast(tuple[int, ...], node.shape) for name, node in graph.parameters.items()}
        self.folder, self.seed, self.names = folder, seed, {name: name for name in self.shapes}
        self.files: Weights | None = None if seed is not None else open_weights(_weights_file(folder))
        if self.files is not None:
            self._check(self.files)

    def _check(self, files: Weights) -> None:
        """Raise WeightsError for tensors that are missing or have another shape."""
        missing, wrong = [], []
        for name, shape in self.shapes.items():
            stored = next((other for other in _spellings(name) if other in files), None)
            if stored is None:
                missing.append(name)
            elif files.info(stored)[1] not in (shape, (*shape, 1, 1)):
                wrong.append(f"{stored} {list(files.info(stored)[1])}, and {list(shape)} is needed")
            self.names[name] = stored or name
        if missing:
            raise WeightsError(f"{len(missing)} of {len(self.shapes)} tensors are missing: {listed(missing)}", file=files.source,
                               fix="take the folder again as it was published: config.json and weights belong together")
        if wrong:
            raise WeightsError(f"tensors have another shape than config.json says: {listed(wrong)}", file=files.source)

    def __getitem__(self, name: str) -> np.ndarray:
        shape = self.shapes[name]
        if self.files is not None:
            return np.asarray(self.files.array(self.names[name]), np.float32).reshape(shape)
        norm = len(shape) == 1 and name.endswith("weight")
        spread = 0.02 if len(shape) < 2 else float(np.prod(shape[1:])) ** -0.5
        with ThreadPoolExecutor(2) as pool:
            return draw(1.0 if norm else 0.0, spread, f"{self.folder.name}/{name}", shape, self.seed or 0, pool)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


_OLDER = (("text_model.", ""), ("to_q.", "query."), ("to_k.", "key."), ("to_v.", "value."), ("to_out.0.", "proj_attn."))
"""(part of a name, its spelling in other versions of the libraries)"""


def _spellings(name: str) -> Iterator[str]:
    yield name
    yield from (name.replace(part, other) for part, other in _OLDER if part in name)
    if name == "shared.weight":
        yield "encoder.embed_tokens.weight"


@dataclass(frozen=True)
class Pipeline:
    """An opened folder. kind: UNET, DIT or FLUX. seed: of random weights; None: those of the files."""

    folder: Path
    kind: str
    denoiser: UNetFacts | DitFacts
    vae: VaeFacts
    encoders: tuple[TextEncoder, ...]
    sampler: Sampler
    noise: Noise
    seed: int | None = None

    @cached_property
    def denoiser_folder(self) -> str:
        return "unet" if self.kind == UNET else "transformer"

    def weights(self, name: str, graph: Graph) -> ComponentWeights:
        """Return the weights of the sub-folder `name` for a graph. Raises WeightsError."""
        return ComponentWeights(graph, self.folder / name, self.seed)

    @property
    def multiple(self) -> int:
        """Height and width of a picture, in pixels, are multiples of this number."""
        return self.denoiser.multiple * self.vae.multiple


def open_pipeline(folder: str | os.PathLike[str], *, random_seed: int | None = None) -> Pipeline:
    """Return the pipeline of a folder. random_seed: draw the weights; the folder then needs none.

    Raises FolderError (no such folder, a missing file), ConfigError (a class or a setting that is not supported), TokenizerError.
    """
    path = Path(folder)
    if not path.is_dir():
        raise FolderError("there is no such folder", file=path, fix="pictures are drawn with a folder that diffusers wrote")
    if not (path / INDEX).is_file():
        raise FolderError(f"there is no {INDEX}, so this is no folder of diffusers", file=path,
                          fix="name the folder of a whole pipeline; tg run and tg chat take models of text")
    index = Section(read_json(path / INDEX), path / INDEX)
    kind = PIPELINES[index.choice("_class_name", PIPELINES)]
    noise, sampler = _read_noise(path / "scheduler")
    noise = replace(noise, even=kind == FLUX)
    return Pipeline(path, kind, _denoiser(path, kind), read_vae(_config(path / "vae", "AutoencoderKL")),
                    tuple(_encoders(path, index, kind)), sampler, noise, random_seed)


def _config(folder: Path, *classes: str, file: str = "config.json") -> Section:
    """Return the settings of a sub-folder. Raises ConfigError for a class that is none of `classes`."""
    section = Section(read_json(folder / file), folder / file)
    if section.has("_class_name"):                                   # configs of transformers have none
        section.choice("_class_name", classes)
    return section


def _weights_file(folder: Path) -> Path:
    for name in ("diffusion_pytorch_model", "model"):
        for ending in (".safetensors", ".safetensors.index.json", ".fp16.safetensors"):
            if (folder / (name + ending)).is_file():
                return folder / (name + ending)
    return folder


def _denoiser(folder: Path, kind: str) -> UNetFacts | DitFacts:
    if kind == UNET:
        return read_unet(_config(folder / "unet", "UNet2DConditionModel"))
    if kind == DIT:
        return read_sd3(_config(folder / "transformer", "SD3Transformer2DModel"))
    return _read_flux(_config(folder / "transformer", "FluxTransformer2DModel"))


def _wholes(c: Section, key: str, default: Any = REQUIRED) -> tuple[int, ...]:
    return tuple(c.get(key, "a list of whole numbers", lambda v: isinstance(v, list) and all(type(i) is int for i in v), default))


def _per_level(c: Section, key: str, levels: int, default: Any = REQUIRED) -> tuple[int, ...]:
    value = c.get(key, "a whole number, or one for each level",
                  lambda v: type(v) is int or (isinstance(v, list) and len(v) == levels and {type(i) for i in v} == {int}), default)
    return (value,) * levels if isinstance(value, int) else tuple(value)


def _blocks(c: Section, key: str, choices: Mapping[str, bool]) -> tuple[bool, ...]:
    names = c.get(key, "a list of blocks", lambda v: isinstance(v, list) and all(isinstance(i, str) for i in v), REQUIRED)
    unknown = [name for name in names if name not in choices]
    if unknown:
        raise c.error(f"{key} has {unknown[0]}, which is not supported", fix=f"supported: {', '.join(choices)}")
    return tuple(choices[name] for name in names)


_PLAIN_UNET = {
    "center_input_sample": (False,), "mid_block_type": ("UNetMidBlock2DCrossAttn",), "only_cross_attention": (False,),
    "downsample_padding": (1,), "mid_block_scale_factor": (1,), "act_fn": ("silu",), "encoder_hid_dim": (),
    "encoder_hid_dim_type": (), "num_attention_heads": (), "dual_cross_attention": (False,), "class_embed_type": (),
    "addition_embed_type": (), "num_class_embeds": (), "upcast_attention": (False, True), "resnet_time_scale_shift": ("default",),
    "resnet_skip_time_act": (False,), "resnet_out_scale_factor": (1.0,), "time_embedding_type": ("positional",),
    "time_embedding_dim": (), "time_embedding_act_fn": (), "timestep_post_act": (), "time_cond_proj_dim": (),
    "conv_in_kernel": (3,), "conv_out_kernel": (3,), "attention_type": ("default",), "class_embeddings_concat": (False,),
    "mid_block_only_cross_attention": (False,), "cross_attention_norm": (), "reverse_transformer_layers_per_block": (),
}
"""Settings of a UNet -> the values that the graph has; another one is refused."""


def _refuse(c: Section, plain: Mapping[str, tuple[Any, ...]]) -> None:
    for key, harmless in plain.items():
        c.refuse(key, harmless, "the graph has " + (" or ".join(map(str, harmless)) or "none"))


def read_unet(c: Section) -> UNetFacts:
    channels = _wholes(c, "block_out_channels")
    down = _blocks(c, "down_block_types", {"CrossAttnDownBlock2D": True, "DownBlock2D": False})
    up = _blocks(c, "up_block_types", {"CrossAttnUpBlock2D": True, "UpBlock2D": False})
    if not len(channels) == len(down) == len(up):
        raise c.error(f"there are {len(channels)} levels of channels, {len(down)} down and {len(up)} up")
    _refuse(c, _PLAIN_UNET)
    depth = c.whole("transformer_layers_per_block", 1)
    return UNetFacts(c.whole("in_channels", 4), c.whole("out_channels", 4), channels,
                     _per_level(c, "attention_head_dim", len(channels), 8), down, up, c.whole("layers_per_block", 2),
                     c.whole("cross_attention_dim", 1280), c.whole("norm_num_groups", 32), c.number("norm_eps", 1e-5), depth,
                     c.boolean("use_linear_projection", False), c.boolean("flip_sin_to_cos", True),
                     float(c.whole("freq_shift", 0, least=0)))


def read_sd3(c: Section) -> DitFacts:
    heads, width = c.whole("num_attention_heads", 18), c.whole("attention_head_dim", 64)
    if c.whole("caption_projection_dim", 1152) != heads * width:
        raise c.error(f"caption_projection_dim is not {heads} heads of {width}, the width of the blocks")
    c.refuse("qk_norm", ("rms_norm",), "queries and keys are normalised by rms_norm, or not at all")
    return DitFacts(c.whole("in_channels", 16), heads, width, c.whole("num_layers", 18), c.whole("joint_attention_dim", 4096),
                    c.whole("pooled_projection_dim", 2048), patch=c.whole("patch_size", 2), head_norms=c.has("qk_norm"),
                    twice=frozenset(_wholes(c, "dual_attention_layers", ())), positions=c.whole("pos_embed_max_size", 96))


def _read_flux(c: Section) -> DitFacts:
    c.refuse("patch_size", (1,), "a token is one place of the packed picture")
    return DitFacts(c.whole("in_channels", 64) // 4, c.whole("num_attention_heads", 24), c.whole("attention_head_dim", 128),
                    c.whole("num_layers", 19), c.whole("joint_attention_dim", 4096), c.whole("pooled_projection_dim", 768),
                    c.whole("num_single_layers", 38), head_norms=True, rotated=_wholes(c, "axes_dims_rope", (16, 56, 56)),
                    guided=c.boolean("guidance_embeds", False), packed=True)


def read_vae(c: Section) -> VaeFacts:
    channels = _wholes(c, "block_out_channels")
    _blocks(c, "down_block_types", {"DownEncoderBlock2D": True})
    _blocks(c, "up_block_types", {"UpDecoderBlock2D": True})
    _refuse(c, {"act_fn": ("silu",), "latents_mean": (), "latents_std": (), "in_channels": (3,), "out_channels": (3,)})
    shift = c.get("shift_factor", "a number", lambda v: isinstance(v, (int, float)), 0.0)
    return VaeFacts(channels, c.whole("layers_per_block", 1), c.whole("latent_channels", 4), 3, c.whole("norm_num_groups", 32),
                    c.number("scaling_factor", 0.18215), float(shift), c.boolean("use_post_quant_conv", True),
                    c.boolean("use_quant_conv", True), c.boolean("mid_block_add_attention", True))


# --- text encoders ----------------------------------------------------------------------------------------------------

_READERS: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    UNET: (("text_encoder", "tokenizer", "clip"),),
    DIT: (("text_encoder", "tokenizer", "clip"), ("text_encoder_2", "tokenizer_2", "clip"),
          ("text_encoder_3", "tokenizer_3", "t5")),
    FLUX: (("text_encoder", "tokenizer", "clip"), ("text_encoder_2", "tokenizer_2", "t5")),
}
"""pipeline -> (sub-folder of a text encoder, that of its tokenizer, its kind)"""

T5_TOKENS = {DIT: 256, FLUX: 512}
"""Tokens that a T5 encoder reads, in diffusers' pipelines."""


def _encoders(folder: Path, index: Section, kind: str) -> Iterator[TextEncoder]:
    for name, tokenizer_name, reads in _READERS[kind]:
        if index.values.get(name, [None]) == [None, None] and reads == "t5" and kind == DIT:
            continue                                                 # Stable Diffusion 3 may lack it: zeros stand for its vectors
        c = _config(folder / name)
        facts = _read_clip(c, kind) if reads == "clip" else _read_t5(c)
        tokens = facts.positions if isinstance(facts, ClipFacts) else T5_TOKENS[kind]
        tokenizer = load_tokenizer(folder / tokenizer_name, positions=tokens)
        pad = tokenizer.splitter.token_to_id(tokenizer.special.get("pad_token", "<pad>"))
        if pad is None:
            raise ConfigError("the tokenizer names no pad_token, which texts are padded with", file=folder / tokenizer_name)
        yield TextEncoder(name, facts, tokenizer, tokens, int(pad))


def _read_clip(c: Section, kind: str) -> ClipFacts:
    projected = kind == DIT
    return ClipFacts(c.whole("vocab_size", 49408), c.whole("hidden_size", 512), c.whole("intermediate_size", 2048),
                     c.whole("num_hidden_layers", 12), c.whole("num_attention_heads", 8), c.whole("max_position_embeddings", 77),
                     c.number("layer_norm_eps", 1e-5),
                     cast(Any, c.choice("hidden_act", ("quick_gelu", "gelu"), "quick_gelu")), skip=int(projected),
                     normed=not projected, projected=c.whole("projection_dim", 512) if projected else 0)


def _read_t5(c: Section) -> T5Facts:
    c.refuse("feed_forward_proj", ("gated-gelu",), "the feed-forward is that of T5 1.1")
    if not c.has("feed_forward_proj"):
        raise c.error("feed_forward_proj is missing: this is a T5 of version 1.0, which is not supported")
    return T5Facts(c.whole("vocab_size", 32128), c.whole("d_model", 512), c.whole("d_ff", 2048), c.whole("num_layers", 6),
                   c.whole("num_heads", 8), c.whole("d_kv", 64), c.number("layer_norm_epsilon", 1e-6),
                   c.whole("relative_attention_num_buckets", 32), c.whole("relative_attention_max_distance", 128))


# --- samplers ---------------------------------------------------------------------------------------------------------

_SAMPLERS: Mapping[str, Sampler] = {
    "DDIMScheduler": "ddim", "EulerDiscreteScheduler": "euler", "DPMSolverMultistepScheduler": "dpm++",
    "FlowMatchEulerDiscreteScheduler": "flow", "PNDMScheduler": "ddim"}
_PREDICTS = {"epsilon": "noise", "sample": "clean", "v_prediction": "v"}
_BETAS = {"linear": "linear", "scaled_linear": "scaled_linear", "squaredcos_cap_v2": "cosine"}
_PLAIN_SAMPLER: Mapping[str, tuple[Any, ...]] = {
    "clip_sample": (False,), "thresholding": (False,), "rescale_betas_zero_snr": (False,), "use_exponential_sigmas": (False,),
    "use_beta_sigmas": (False,), "use_lu_lambdas": (False,), "use_flow_sigmas": (False,), "trained_betas": (),
    "interpolation_type": ("linear",), "timestep_type": ("discrete",), "final_sigmas_type": ("zero",), "solver_order": (2,),
    "algorithm_type": ("dpmsolver++",), "solver_type": ("midpoint",), "invert_sigmas": (False,), "shift_terminal": (),
    "time_shift_type": ("exponential",), "stochastic_sampling": (False,), "euler_at_final": (False,),
}


def _read_noise(folder: Path) -> tuple[Noise, Sampler]:
    """Return (how the model was trained and steps are placed, sampler)."""
    c = _config(folder, *_SAMPLERS, file="scheduler_config.json")
    name = c.text("_class_name")
    sampler = _SAMPLERS[name]
    _refuse(c, _PLAIN_SAMPLER)
    if name == "DDIMScheduler" and not c.has("clip_sample"):
        raise c.error("clip_sample is missing, and by default it is true, which is not supported", fix='"clip_sample": false')
    if name == "PNDMScheduler":
        log.warning("%s: PNDM is no sampler here; DDIM takes its place, at the same noise", c.path)
    steps = c.whole("num_train_timesteps", 1000)
    if sampler == "flow":
        c.refuse("use_karras_sigmas", (False,), "flow levels are linear, then shifted")
        dynamic = None
        if c.boolean("use_dynamic_shifting", False):
            dynamic = ((float(c.whole("base_image_seq_len", 256)), c.number("base_shift", 0.5)),
                       (float(c.whole("max_image_seq_len", 4096)), c.number("max_shift", 1.15)))
        return Noise(steps, shift=c.number("shift", 1.0), dynamic=dynamic), sampler
    spacing = c.choice("timestep_spacing", ("linspace", "leading", "trailing"),
                       "leading" if name in ("DDIMScheduler", "PNDMScheduler") else "linspace")
    clean = c.boolean("set_alpha_to_one", name == "DDIMScheduler")
    return Noise(steps, cast(Any, _BETAS[c.choice("beta_schedule", _BETAS, "linear")]), c.number("beta_start", 0.0001),
                 c.number("beta_end", 0.02), cast(Any, _PREDICTS[c.choice("prediction_type", _PREDICTS, "epsilon")]),
                 cast(Any, spacing), c.whole("steps_offset", 0, least=0), c.boolean("use_karras_sigmas", False), clean), sampler


def refused_sampler(pipeline: Pipeline, sampler: Sampler) -> str:
    """Return why a pipeline cannot use a sampler; "" if it can."""
    flow = pipeline.sampler == "flow"
    return "" if flow == (sampler == "flow") else f"a {'flow' if flow else 'noise'} model has other samplers than {sampler}"


