"""folder: reads the files of a model folder, and writes such a folder with random weights.

Read: config.json (model, sizes and constants), generation_config.json (ids that end a text), and the files of sentence-transformers
(modules.json, 1_Pooling/config.json, sentence_bert_config.json). Keys, defaults and meanings are those of transformers 5 and of the
older spellings that it still accepts. A setting that would change the result and is not supported raises an error; an unknown key
is logged as a warning. Written: a Gemma 3 folder whose random weights, unlike freshly initialised ones, give varied tokens and show
a wrong eps, window or scale (`random_gemma3_weights`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from tensor_graphs.devices.safetensors import WEIGHTS_FILE, write_weights
from tensor_graphs.errors import close_to
from tensor_graphs.frontends.errors import ConfigError, FolderError
from tensor_graphs.frontends.huggingface.config import FamilyConfig, read_family
from tensor_graphs.frontends.huggingface.families import FAMILIES, FULL, MODEL_TYPES, SLIDING
from tensor_graphs.frontends.huggingface.user_families import OWN, read_own
from tensor_graphs.frontends.json_settings import Section, parse_json, read_json
from tensor_graphs.language.dtypes import bf16, f32
from tensor_graphs.normal_numbers import quantiles

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Gemma3TextConfig:
    """Settings for the config.json of a Gemma 3 text decoder, under transformers' names, for writing (for reading:
    families.GEMMA3).

    layer_types: SLIDING or FULL per layer. rope_theta, rope_factor: of full layers (angle = position / factor ·
    theta^(−2i/head_dim)); rope_local_theta, rope_local_factor: of sliding layers. Scores are multiplied by
    query_pre_attn_scalar^−0.5. Soft cap None: no cap.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    sliding_window: int | None
    layer_types: tuple[str, ...]
    rope_theta: float = 1_000_000.0
    rope_local_theta: float = 10_000.0
    rope_factor: float = 1.0
    rope_local_factor: float = 1.0
    query_pre_attn_scalar: float = 256
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    tie_word_embeddings: bool = True
    hidden_activation: str = "gelu_pytorch_tanh"
    attention_bias: bool = False
    max_position_embeddings: int = 131_072
    initializer_range: float = 0.02

    @property
    def read(self) -> FamilyConfig:
        """The configuration that results from reading the written config.json. Raises ConfigError."""
        return read_family(Section(_gemma3_json(self, "float32"), Path("config.json")), FAMILIES["gemma3"])

    @classmethod
    def of(cls, config: FamilyConfig) -> Gemma3TextConfig:
        """Return a folder's settings, to be written again. Raises ConfigError but for a Gemma 3 with plain or linear rotations."""
        s, facts = dict(config.settings), config.facts
        ropes = {SLIDING if layer.window else FULL: layer.rope for layer in facts.layers}
        if config.family.name != "gemma3" or any(rope is None or rope.kind != "linear" for rope in ropes.values()):
            raise ConfigError(f"random weights are made for Gemma 3 with plain or linear rotations; this is {config.family.name}")
        rotations = {key + end: getattr(ropes[kind], fact) for kind, key in ((SLIDING, "rope_local_"), (FULL, "rope_"))
                     if kind in ropes for end, fact in (("theta", "theta"), ("factor", "scaling"))}
        kinds = tuple(SLIDING if layer.window else FULL for layer in facts.layers)
        s.update(rotations, rms_norm_eps=s.pop("eps"), hidden_activation=s.pop("hidden_act"), layer_types=kinds)
        return cls(**{f.name: s[f.name] for f in fields(cls) if f.name in s})


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """A folder's settings for generating text: the ids that end a text, and the authors' sampling settings (None: not given)."""

    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    pad_token_id: int | None = None
    do_sample: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None


@dataclass(frozen=True, slots=True)
class SentenceConfig:
    """Settings by which sentence-transformers converts a text to one vector.

    pooling: "mean", "cls" or "max" over the tokens; normalize: True if the vector is scaled to length 1; dimension: of the vector.
    max_seq_length: number of tokens, special ones included, that a text is cut to; None = as many as the model takes. prompt: text
    put before each text.
    """

    pooling: str
    normalize: bool
    dimension: int
    max_seq_length: int | None
    do_lower_case: bool
    prompt: str


def read_config(folder: str | os.PathLike[str]) -> FamilyConfig:
    """Return the configuration in `folder`/config.json, of a model type in `MODEL_TYPES` or of a user-registered one.

    Raises FolderError (no such folder, no config.json) and ConfigError (bad JSON, unknown model type, a missing, wrong or
    unsupported setting).
    """
    path = _folder(folder) / "config.json"
    _refuse_other_layouts(path.parent)
    config = Section(read_json(path), path)
    if "_class_name" in config.values and "model_type" not in config.values:
        raise ConfigError(f"this is a {config.values['_class_name']} of diffusers, one model of a pipeline", file=path,
                          fix="tg image takes the pipeline's folder, the one with model_index.json")
    kind = config.text("model_type")
    if kind in OWN:
        return read_own(config, kind)
    if kind not in MODEL_TYPES:
        types = sorted({*MODEL_TYPES, *OWN})
        near = close_to(kind, types)
        kin = [name for name in types if name.split("_")[0].rstrip("0123456789") in kind]
        nearest = f"; did you mean {near[0]}?" if near else f"; nearest: {', '.join(kin)}" if kin else ""
        raise ConfigError(
            f"the model type {kind!r} is not known", file=path,
            fix=f"known model types: {', '.join(types)}{nearest}; a family of yours: --import FILE (docs/adding_a_model.md)"
        )
    return read_family(config, *MODEL_TYPES[kind])


OTHER_LAYOUTS = {
    "model_index.json": ("a pipeline of several models (diffusers), which draws pictures",
                         "tg image FOLDER --prompt … --out x.png"),
    "adapter_config.json": ("an adapter (LoRA): it changes the weights of another model, and is not read by itself",
                            "merge it into its base model: peft.PeftModel.from_pretrained(base, folder).merge_and_unload()"),
}
"""file -> (kind of folder that has this file and no config.json, fix)."""


def _refuse_other_layouts(folder: Path) -> None:
    """Raise FolderError for a folder that has no config.json and a file of `OTHER_LAYOUTS`."""
    for name, (what, fix) in OTHER_LAYOUTS.items():
        if (folder / name).is_file() and not (folder / "config.json").is_file():
            raise FolderError(f"this is {what}", file=folder, fix=fix)


def read_generation(folder: str | os.PathLike[str]) -> GenerationConfig:
    """Return the settings in the folder's generation_config.json; special ids that it lacks are taken from config.json. Raises the
    errors of `read_config`."""
    folder = _folder(folder)
    path = folder / "generation_config.json"
    section = Section(read_json(path) if path.is_file() else {}, path)
    outer = folder / "config.json"
    fallback = [read_json(outer)] if outer.is_file() else []
    fallback += [inner for whole in fallback if isinstance(inner := whole.get("text_config"), dict)]

    def ids(key: str) -> tuple[int, ...]:
        for values in (section.values, *fallback):
            value = values.get(key)
            if value is not None:
                numbers = value if isinstance(value, list) else [value]
                if not all(type(i) is int and i >= 0 for i in numbers):
                    raise ConfigError(f"{key} is {value!r}, and a token id or a list of them is needed",
                                      file=path if values is section.values else outer)
                return tuple(numbers)
        return ()

    def one_id(key: str) -> int | None:
        return next(iter(ids(key)), None)

    return GenerationConfig(
        ids("eos_token_id"), one_id("bos_token_id"), one_id("pad_token_id"), section.boolean("do_sample", False),
        section.optional_number("temperature"), section.optional_whole("top_k"), section.optional_number("top_p"))


def read_sentence(folder: str | os.PathLike[str]) -> SentenceConfig | None:
    """Return the settings of sentence-transformers' files; None when the folder has no modules.json.

    Supported: Transformer, then Pooling by one of mean, cls and max, then optionally Normalize. Raises FolderError, ConfigError.
    """
    folder = _folder(folder)
    path = folder / "modules.json"
    if not path.is_file():
        return None
    modules = parse_json(path)
    if not isinstance(modules, list) or not all(isinstance(m, dict) and isinstance(m.get("type"), str) for m in modules):
        raise ConfigError("the file is not a list of modules with a type each", file=path)
    kinds = [m["type"].rsplit(".", 1)[-1] for m in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ConfigError(f"the modules {' → '.join(kinds) or '(none)'} are not supported", file=path,
                          fix="supported: Transformer → Pooling, and Transformer → Pooling → Normalize")
    pooling, dimension = _pooling(_inside(folder, modules[1].get("path"), path) / "config.json")
    transformer = _inside(folder, modules[0].get("path"), path)
    if transformer.resolve() != folder.resolve():
        raise ConfigError(f"the transformer lies in the sub-folder {modules[0]['path']!r}", file=path,
                          fix="only folders that hold config.json beside modules.json are supported")
    return SentenceConfig(pooling, kinds[-1] == "Normalize", dimension, sentence_length(transformer),
                          _cut(transformer).boolean("do_lower_case", False),
                          _default_prompt(folder / "config_sentence_transformers.json"))


def _cut(folder: Path) -> Section:
    settings = next(iter(sorted(folder.glob("sentence_*_config.json"))), None)
    return Section(read_json(settings) if settings else {}, settings or folder / "sentence_bert_config.json")


def sentence_length(folder: Path) -> int | None:
    """Return max_seq_length of sentence_bert_config.json; None where it is not given. Raises ConfigError."""
    cut = _cut(folder)
    longest = cut.optional_whole("max_seq_length")
    if longest is not None and longest < 2:
        raise ConfigError(f"max_seq_length is {longest}, and the special tokens alone take 2", file=cut.path)
    return longest


# --- reading ----------------------------------------------------------------------------------------------------------


FOREIGN = {
    ".pt": "PyTorch", ".pth": "PyTorch", ".bin": "PyTorch", ".h5": "Keras",
    ".tflite": "TensorFlow Lite", ".mlpackage": "Core ML",
}  # fmt: skip
"""Suffix of model files in formats that are not read -> name of the format."""


def refuse_foreign(path: Path) -> None:
    """Raise FolderError for the path of a safetensors file alone, or of a model file in a format that is not read."""
    if path.suffix.lower() == ".safetensors" and path.is_file():
        raise FolderError("these are weights, and a model is the folder that they lie in, with its config.json", file=path,
                          fix=f"name its folder: {path.parent}")
    kind = FOREIGN.get(path.suffix.lower())
    if kind is not None and path.exists() and not path.is_dir():
        raise FolderError(f"this is a file of the {kind} kind, which is not read yet", file=path,
                          fix="a model folder as it is published (config.json, *.safetensors), or a graph as a .tg file")


def _folder(folder: str | os.PathLike[str]) -> Path:
    path = Path(folder)
    if path.is_dir():
        return path
    refuse_foreign(path)
    if path.exists():
        raise FolderError("this is a file, and a model folder is needed", file=path, fix=f"name its folder: {path.parent}")
    raise FolderError(
        "there is no such folder", file=path, fix="models are read from disk; a name on a model hub is not looked up"
    )


def _inside(folder: Path, part: Any, said_by: Path) -> Path:
    """Return a sub-folder that modules.json names. Raises ConfigError where it leads out of the folder."""
    path = folder / part if isinstance(part, str) else None
    if path is None or not path.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"the path {part!r} is not a folder in here", file=said_by)
    return path


_POOLING = ("mean", "cls", "max")
_POOLING_FLAGS = {
    "pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def _pooling(path: Path) -> tuple[str, int]:
    """Return (pooling, dimension) of a Pooling module: by the key pooling_mode, or by one flag per mode in older files."""
    c = Section(read_json(path), path)
    if c.has("pooling_mode"):
        named = c.values["pooling_mode"]
        modes = list(named) if isinstance(named, list) else [named]
    else:
        modes = [mode for flag, mode in _POOLING_FLAGS.items() if c.boolean(flag, False)] or ["mean"]
    if len(modes) != 1 or modes[0] not in _POOLING:
        raise c.error(f"pooling by {' and '.join(map(str, modes))} is not supported",
                      fix=f"supported: one of {', '.join(_POOLING)}")
    c.refuse("include_prompt", (True,), "all tokens are pooled")
    return modes[0], c.whole("word_embedding_dimension" if c.has("word_embedding_dimension") else "embedding_dimension")


def _default_prompt(path: Path) -> str:
    """Return the text that sentence-transformers puts before each text when the caller names no prompt."""
    if not path.is_file():
        return ""
    c = Section(read_json(path), path)
    name = c.text("default_prompt_name", "")
    return c.section("prompts").text(name) if name else ""


# --- writing a folder of random weights -------------------------------------------------------------------------------

GEMMA3_270M = Gemma3TextConfig(vocab_size=262_144, hidden_size=640, intermediate_size=2048, num_hidden_layers=18,
                               num_attention_heads=4, num_key_value_heads=1, head_dim=256, rms_norm_eps=1e-6, sliding_window=512,
                               layer_types=((SLIDING,) * 5 + (FULL,)) * 3, max_position_embeddings=32_768)
"""The shape of google/gemma-3-270m."""

_CHUNK = 1 << 18
"""Numbers drawn from one generator; fixed, so that the weights do not depend on the number of threads."""

_BLOCK = 1 << 16
"""Numbers of a chunk drawn at a time, few enough to stay in a cache."""


def gemma3_tensors(config: Gemma3TextConfig) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of every tensor in a Gemma 3 text checkpoint, with the names of transformers' Gemma3ForCausalLM."""
    c, d = config, config.head_dim
    queries, keys = c.num_attention_heads * d, c.num_key_value_heads * d
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (c.vocab_size, c.hidden_size)}
    for i in range(c.num_hidden_layers):
        at = f"model.layers.{i}."
        for name, out, inner in (
            ("self_attn.q_proj", queries, c.hidden_size), ("self_attn.k_proj", keys, c.hidden_size),
            ("self_attn.v_proj", keys, c.hidden_size), ("self_attn.o_proj", c.hidden_size, queries),
        ):
            shapes[f"{at}{name}.weight"] = (out, inner)
            if c.attention_bias:
                shapes[f"{at}{name}.bias"] = (out,)
        for name in ("gate_proj", "up_proj"):
            shapes[f"{at}mlp.{name}.weight"] = (c.intermediate_size, c.hidden_size)
        shapes[f"{at}mlp.down_proj.weight"] = (c.hidden_size, c.intermediate_size)
        for name in ("q_norm", "k_norm"):
            shapes[f"{at}self_attn.{name}.weight"] = (d,)
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            shapes[f"{at}{name}_layernorm.weight"] = (c.hidden_size,)
    shapes["model.norm.weight"] = (c.hidden_size,)
    if not c.tie_word_embeddings:
        shapes["lm_head.weight"] = (c.vocab_size, c.hidden_size)
    return shapes


def random_gemma3_weights(config: Gemma3TextConfig, seed: int, threads: int = 2) -> dict[str, np.ndarray[Any, Any]]:
    """Return random f32 weights by name, with which tokens mostly vary and every constant affects the result.

    Linear weights and biases N(0, r²) with r = initializer_range; the embedding N(0, r²) × 0.1; norms N(0, 0.3²); q_norm and k_norm
    1 + N(0, 0.3²). A norm's stored weight w acts as 1 + w. (As initialised, norms at w = 0 and the embedding at r give 3–6 distinct
    tokens in 64 and hide a wrong window, scale or eps. With these it is 40 and more at seeds 0 and 2, but some seeds settle on few
    tokens after a long prompt: count them before comparing tokens.) Equal config and seed give equal weights in any order and with
    any number of threads (numpy's Philox, keyed by name).
    """
    with ThreadPoolExecutor(threads) as pool:
        return {name: draw(*gemma3_recipe(name, config.initializer_range), name, shape, seed, pool)
                for name, shape in gemma3_tensors(config).items()}


def write_gemma3_folder(path: str | os.PathLike[str], config: Gemma3TextConfig, seed: int, dtype: str = "float32") -> None:
    """Write the folder of `random_gemma3_weights(config, seed)`, each weight rounded to the nearest of its dtype. Arguments and
    errors: those of `write_gemma3_values`."""
    shapes = gemma3_tensors(config)
    with ThreadPoolExecutor(2) as pool:
        def values(name: str) -> np.ndarray[Any, Any]:
            return draw(*gemma3_recipe(name, config.initializer_range), name, shapes[name], seed, pool)

        write_gemma3_values(path, config, values, dtype)


def write_gemma3_values(path: str | os.PathLike[str], config: Gemma3TextConfig,
                        values: Callable[[str], np.ndarray[Any, Any]], dtype: str = "float32") -> None:
    """Write config.json, generation_config.json and, last, model.safetensors.

    values: function of a name of `gemma3_tensors(config)` that returns the tensor. dtype: "float32" or "bfloat16".
    transformers' Gemma3ForCausalLM.from_pretrained loads the folder. Tensors are asked for one at a time, so memory peaks at the
    largest one. Raises ConfigError, FolderError, WeightsError.
    """
    stored = {"float32": f32, "bfloat16": bf16}.get(dtype)
    if stored is None:
        raise ConfigError(f"weights cannot be written as {dtype!r}", fix="float32 or bfloat16")
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_json(folder / "config.json", _gemma3_json(config, dtype))
        _write_json(folder / "generation_config.json",
                    {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0, "do_sample": False})
    except OSError as error:
        raise FolderError(f"cannot write the folder: {error.strerror}", file=folder) from error
    tensors = {name: (stored, shape) for name, shape in gemma3_tensors(config).items()}
    write_weights(folder / WEIGHTS_FILE, tensors, lambda name: values(name).astype(stored.numpy, copy=False), {"format": "pt"})


def _gemma3_json(config: Gemma3TextConfig, dtype: str) -> dict[str, Any]:
    """Return the content of config.json for transformers 5."""

    def rope(theta: float, factor: float) -> dict[str, Any]:
        return ({"rope_type": "default", "rope_theta": theta} if factor == 1 else
                {"rope_type": "linear", "rope_theta": theta, "factor": factor})

    own = {f.name: getattr(config, f.name) for f in fields(config) if not f.name.startswith("rope_")}
    own["layer_types"] = list(config.layer_types)
    own["query_pre_attn_scalar"] = int(config.query_pre_attn_scalar)  # transformers refuses a float
    if own["query_pre_attn_scalar"] != config.query_pre_attn_scalar:
        raise ConfigError(f"query_pre_attn_scalar is {config.query_pre_attn_scalar}, and transformers takes a whole number only")
    return {
        **own, "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "dtype": dtype,
        "rope_parameters": {FULL: rope(config.rope_theta, config.rope_factor),
                            SLIDING: rope(config.rope_local_theta, config.rope_local_factor)},
        "attention_dropout": 0.0, "use_bidirectional_attention": False, "use_cache": True,
        "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def gemma3_recipe(name: str, spread: float) -> tuple[float, float]:
    """Return (mean, standard deviation) of one tensor of `random_gemma3_weights`. spread: standard deviation of linear weights."""
    if "embed_tokens" in name:
        return 0.0, 0.1 * spread
    if "norm" in name:
        return (1.0 if "q_norm" in name or "k_norm" in name else 0.0), 0.3
    return 0.0, spread


def plain_recipe(name: str, shape: tuple[int, ...], spread: float, norm_offset: float) -> tuple[float, float]:
    """Return (mean, standard deviation) of one tensor of any other family: about 1 in effect for a weight with one axis (a norm's),
    and N(0, spread²) for all else. norm_offset: number that the model adds to a norm's weight."""
    return (1.0 - norm_offset, 0.3) if len(shape) == 1 and name.endswith("weight") else (0.0, spread)


def draw(
    mean: float, spread: float, name: str, shape: tuple[int, ...], seed: int, pool: ThreadPoolExecutor
) -> np.ndarray[Any, Any]:
    """Return one tensor, f32, which depends on name and seed only, not on other tensors drawn."""
    out = np.empty(shape, np.float32)
    flat = out.reshape(-1)
    values = quantiles(16) * np.float32(spread) + np.float32(mean)

    def fill(start: int) -> None:
        key = hashlib.sha256(f"{seed}/{name}/{start}".encode()).digest()[:16]
        bits = np.random.Philox(key=np.frombuffer(key, "<u8"))
        for at in range(start, min(start + _CHUNK, flat.size), _BLOCK):
            part = flat[at : at + _BLOCK]
            which = bits.random_raw((part.size + 3) // 4).astype("<u8", copy=False).view("<u2")[: part.size]
            values.take(which.astype(np.intp), out=part, mode="clip")     # "clip": written in place; every index is in range

    starts = range(0, flat.size, _CHUNK)
    if len(starts) == 1:
        fill(0)
    else:
        list(pool.map(fill, starts))
    return out
