"""huggingface_folder: what the files of a model folder say — and how such a folder of random weights is written.

Read: config.json (which model, its sizes and constants), generation_config.json (where a text ends), and what
sentence-transformers adds (modules.json, 1_Pooling/config.json, sentence_bert_config.json). Keys, defaults and their
meaning are those of transformers 5 and of the older spelling it still accepts. A setting that would change the result
and is not supported is refused aloud; a key that nobody here knows is logged as a warning.
Written: a Gemma 3 folder whose random weights, unlike freshly initialised ones, give varied tokens and show a wrong
eps, window or scale (`random_gemma3_weights`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from tensor_graphs.devices.safetensors import WEIGHTS_FILE, write_weights
from tensor_graphs.errors import close_to, listed
from tensor_graphs.frontends.errors import ConfigError, FolderError
from tensor_graphs.language.dtypes import DType, bf16, f16, f32

log = logging.getLogger(__name__)

SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, slots=True)
class Gemma3TextConfig:
    """A Gemma 3 text decoder: everything in its config.json that changes the result, under transformers' names.

    layer_types: SLIDING or FULL per layer. rope_theta, rope_factor: of full layers (angle = position / factor ·
    theta^(−2i/head_dim)); rope_local_theta, rope_local_factor: of sliding layers. Scores are multiplied by
    query_pre_attn_scalar^−0.5. A soft cap of None is none. dtype: what config.json says that the weights are
    ("float32"); each tensor in the weights file knows its own.
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
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class BertConfig:
    """A BERT encoder with absolute positions: everything in its config.json that changes the result, under
    transformers' names."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12
    type_vocab_size: int = 2
    pad_token_id: int = 0
    position_embedding_type: str = "absolute"
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """What the folder says about generating: the ids that end a text, and how its authors sample (None: it does not
    say)."""

    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    pad_token_id: int | None = None
    do_sample: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None


@dataclass(frozen=True, slots=True)
class SentenceConfig:
    """How sentence-transformers makes one vector of a text.

    pooling: "mean", "cls" or "max" over the tokens; normalize: whether the vector is brought to length 1; dimension: of
    the vector. max_seq_length: tokens, special ones included, beyond which a text is cut; None = as many as the model
    takes. prompt: text put before each text.
    """

    pooling: str
    normalize: bool
    dimension: int
    max_seq_length: int | None
    do_lower_case: bool
    prompt: str


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises FolderError (missing, unreadable) and ConfigError (line and column of bad
    JSON)."""
    value = _parse_json(path)
    if not isinstance(value, dict):
        raise ConfigError(f"the file holds a JSON {type(value).__name__}, and an object is needed", file=path)
    return value


def read_config(folder: str | os.PathLike[str]) -> Gemma3TextConfig | BertConfig:
    """The configuration in `folder`/config.json, of one of the model types in `MODEL_TYPES`.

    Raises FolderError (no such folder, no config.json) and ConfigError (bad JSON, unknown model type, a missing, wrong
    or unsupported setting).
    """
    path = _folder(folder) / "config.json"
    config = _Section(read_json(path), path)
    kind = config.text("model_type")
    if kind not in MODEL_TYPES:
        near = close_to(kind, MODEL_TYPES)
        raise ConfigError(
            f"the model type {kind!r} is not known",
            file=path,
            fix=f"known model types: {', '.join(sorted(MODEL_TYPES))}" + (f"; did you mean {near[0]}?" if near else ""),
        )
    return MODEL_TYPES[kind](config)


def read_generation(folder: str | os.PathLike[str]) -> GenerationConfig:
    """The folder's generation_config.json; where that is missing or silent about special ids, its config.json. Raises
    as read_config."""
    folder = _folder(folder)
    path = folder / "generation_config.json"
    said = _Section(read_json(path) if path.is_file() else {}, path)
    outer = folder / "config.json"
    fallback = [read_json(outer)] if outer.is_file() else []
    fallback += [inner for whole in fallback if isinstance(inner := whole.get("text_config"), dict)]

    def ids(key: str) -> tuple[int, ...]:
        for values in (said.values, *fallback):
            value = values.get(key)
            if value is not None:
                found = value if isinstance(value, list) else [value]
                if not all(type(i) is int and i >= 0 for i in found):
                    raise ConfigError(
                        f"{key} is {value!r}, and a token id or a list of them is needed",
                        file=path if values is said.values else outer,
                    )
                return tuple(found)
        return ()

    def one_id(key: str) -> int | None:
        return next(iter(ids(key)), None)

    return GenerationConfig(
        ids("eos_token_id"),
        one_id("bos_token_id"),
        one_id("pad_token_id"),
        said.boolean("do_sample", False),
        said.optional_number("temperature"),
        said.optional_whole("top_k"),
        said.optional_number("top_p"),
    )


def read_sentence(folder: str | os.PathLike[str]) -> SentenceConfig | None:
    """What sentence-transformers' files say; None when the folder has no modules.json.

    Supported: Transformer, then Pooling by one of mean, cls and max, then perhaps Normalize. Raises FolderError,
    ConfigError.
    """
    folder = _folder(folder)
    path = folder / "modules.json"
    if not path.is_file():
        return None
    modules = _parse_json(path)
    if not isinstance(modules, list) or not all(
        isinstance(m, dict) and isinstance(m.get("type"), str) for m in modules
    ):
        raise ConfigError("the file is not a list of modules with a type each", file=path)
    kinds = [m["type"].rsplit(".", 1)[-1] for m in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ConfigError(
            f"the modules {' → '.join(kinds) or '(none)'} are not supported",
            file=path,
            fix="supported: Transformer → Pooling, and Transformer → Pooling → Normalize",
        )
    pooling, dimension = _pooling(_inside(folder, modules[1].get("path"), path) / "config.json")
    transformer = _inside(folder, modules[0].get("path"), path)
    if transformer.resolve() != folder.resolve():
        raise ConfigError(
            f"the transformer lies in the sub-folder {modules[0]['path']!r}",
            file=path,
            fix="only folders that hold config.json beside modules.json are supported",
        )
    settings = next(iter(sorted(transformer.glob("sentence_*_config.json"))), None)
    said = _Section(read_json(settings) if settings else {}, settings or transformer / "sentence_bert_config.json")
    longest = said.optional_whole("max_seq_length")
    if longest is not None and longest < 2:
        raise ConfigError(f"max_seq_length is {longest}, and the special tokens alone take 2", file=said.path)
    return SentenceConfig(
        pooling,
        kinds[-1] == "Normalize",
        dimension,
        longest,
        said.boolean("do_lower_case", False),
        _default_prompt(folder / "config_sentence_transformers.json"),
    )


def gemma3_prefix(names: Iterable[str]) -> str:
    """What stands before `embed_tokens.weight`, `layers.0.…` and `norm.weight` among the tensor names of a Gemma 3
    checkpoint.

    "model." in a text-only one, "language_model.model." or "model.language_model." in one with a vision tower. Raises
    ConfigError.
    """
    return _prefix(names, "embed_tokens.weight", "Gemma 3")


def bert_prefix(names: Iterable[str]) -> str:
    """What stands before `embeddings.…` and `encoder.…` among the tensor names of a BERT: "" or "bert.". Raises
    ConfigError."""
    return _prefix(names, "embeddings.word_embeddings.weight", "BERT")


# --- reading ----------------------------------------------------------------------------------------------------------


class _Section:
    """A JSON object whose values are asked for by key and kind; remembers which keys were asked for."""

    def __init__(self, values: dict[str, Any], path: Path, within: str = "") -> None:
        self.values, self.path, self.within = values, path, within
        self.asked: set[str] = set()

    def has(self, key: str) -> bool:
        self.asked.add(key)
        return self.values.get(key) is not None

    def get(self, key: str, kind: str, fits: Callable[[Any], bool], default: Any) -> Any:
        """The value of `key`; `default` when it is absent or null (REQUIRED: an error)."""
        if not self.has(key):
            if default is _REQUIRED:
                near = close_to(key, [k for k in self.values if k != key])
                raise self.error(f"{key} is missing", fix=f"did you mean {near[0]}?" if near else f"add {key} ({kind})")
            return default
        value = self.values[key]
        if not fits(value):
            raise self.error(f"{key} is {json.dumps(value)[:80]}, and {kind} is needed")
        return value

    def error(self, message: str, fix: str | None = None) -> ConfigError:
        return ConfigError((f"{self.within}: " if self.within else "") + message, file=self.path, fix=fix)

    def whole(self, key: str, default: Any = ..., least: int = 1) -> int:
        value: int = self.get(key, f"a whole number ≥ {least}", lambda v: type(v) is int and v >= least, default)
        return value

    def optional_whole(self, key: str) -> int | None:
        return self.whole(key, None, least=0)

    def number(self, key: str, default: Any = ...) -> float:
        value: float = self.get(key, "a number > 0", lambda v: type(v) in (int, float) and 0 < v < math.inf, default)
        return value

    def optional_number(self, key: str) -> float | None:
        value: float | None = self.get(
            key, "a number ≥ 0", lambda v: type(v) in (int, float) and 0 <= v < math.inf, None
        )
        return value

    def boolean(self, key: str, default: Any = ...) -> bool:
        value: bool = self.get(key, "true or false", lambda v: isinstance(v, bool), default)
        return value

    def text(self, key: str, default: Any = ...) -> str:
        value: str = self.get(key, "a text", lambda v: isinstance(v, str), default)
        return value

    def choice(self, key: str, known: Iterable[str], default: Any = ...) -> str:
        value = self.text(key, default)
        if value not in known:
            raise self.error(f"{key} is {value!r}, which is not supported", fix=f"supported: {', '.join(known)}")
        return value

    def section(self, key: str) -> _Section:
        value = self.get(key, "an object", lambda v: isinstance(v, dict), {})
        return _Section(value, self.path, f"{self.within}.{key}" if self.within else key)

    def refuse(self, key: str, harmless: tuple[Any, ...], why: str) -> None:
        """Raise when `key` says anything but one of the harmless values (null and absence are always harmless)."""
        if self.has(key) and self.values[key] not in harmless:
            raise self.error(f"{key} = {json.dumps(self.values[key])[:80]} is not supported: {why}")

    def warn_of_the_rest(self) -> None:
        """Log the keys that nobody asked for and that are not known to leave the result alone."""
        rest = sorted(
            k
            for k, v in self.values.items()
            if k not in self.asked and k not in _LEAVE_THE_RESULT_ALONE and v is not None
        )
        if rest:
            log.warning("%s: unknown settings, not looked at: %s", self.path, ", ".join(rest))


_REQUIRED = ...
"""The default of a key that has none."""

_LEAVE_THE_RESULT_ALONE = frozenset(
    {
        "_name_or_path",
        "architectures",
        "model_type",
        "transformers_version",
        "initializer_range",
        "use_cache",
        "cache_implementation",
        "attention_dropout",
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "classifier_dropout",
        "gradient_checkpointing",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "sep_token_id",
        "cls_token_id",
        "mask_token_id",
        "_attn_implementation",
        "_attn_implementation_autoset",
        "attn_implementation",
        "return_dict",
        "output_attentions",
        "output_hidden_states",
        "id2label",
        "label2id",
        "problem_type",
        "finetuning_task",
        "chunk_size_feed_forward",
        "is_encoder_decoder",
        "model_max_length",
        "torchscript",
    }
)
"""Keys of config.json that say how a model is trained, loaded or stored, not what it computes."""


def _parse_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise FolderError(
            f"there is no {path.name}", file=path, fix="name a folder that was downloaded whole"
        ) from error
    except OSError as error:
        raise FolderError(f"cannot read {path.name}: {error.strerror}", file=path) from error
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"invalid JSON at line {error.lineno}, column {error.colno}: {error.msg}", file=path
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the file is not UTF-8 text (byte {error.start})", file=path) from error
    except RecursionError as error:
        raise ConfigError("the JSON is nested too deeply", file=path) from error


def _folder(folder: str | os.PathLike[str]) -> Path:
    path = Path(folder)
    if path.is_dir():
        return path
    if path.exists():
        raise FolderError(
            "this is a file, and a model folder is needed", file=path, fix=f"name its folder: {path.parent}"
        )
    raise FolderError(
        "there is no such folder", file=path, fix="models are read from disk; a name on a model hub is not looked up"
    )


def _inside(folder: Path, part: Any, said_by: Path) -> Path:
    """A sub-folder that modules.json names; refused when it leads out of the folder."""
    found = folder / part if isinstance(part, str) else None
    if found is None or not found.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"the path {part!r} is not a folder in here", file=said_by)
    return found


def _gemma3(config: _Section) -> Gemma3TextConfig:
    """model_type gemma3_text."""
    c = config
    c.refuse("use_bidirectional_attention", (False,), "tokens see only what stands before them here")
    c.refuse("quantization_config", ({},), "weights must be plain tensors")
    c.refuse("partial_rotary_factor", (1, 1.0), "whole heads are rotated")
    layers = c.whole("num_hidden_layers")
    activation = c.choice("hidden_activation", ("gelu_pytorch_tanh", "gelu", "silu"), "gelu_pytorch_tanh")
    c.refuse("hidden_act", (activation,), f"hidden_activation says {activation}")
    layer_types = _layer_types(c, layers)
    window = (
        c.whole("sliding_window", 4096)
        if "sliding_window" not in c.values
        else c.get("sliding_window", "a whole number ≥ 1", lambda v: type(v) is int and v >= 1, None)
    )
    if window is None and SLIDING in layer_types:
        raise c.error(f"sliding_window is null, and {layer_types.count(SLIDING)} layers are {SLIDING}")
    theta, factor, local_theta, local_factor = _gemma3_rope(c)
    result = Gemma3TextConfig(
        vocab_size=c.whole("vocab_size", 262_208),
        hidden_size=c.whole("hidden_size"),
        intermediate_size=c.whole("intermediate_size"),
        num_hidden_layers=layers,
        num_attention_heads=c.whole("num_attention_heads", 8),
        num_key_value_heads=c.whole("num_key_value_heads", 4),
        head_dim=c.whole("head_dim", 256),
        rms_norm_eps=c.number("rms_norm_eps", 1e-6),
        sliding_window=window,
        layer_types=layer_types,
        rope_theta=theta,
        rope_local_theta=local_theta,
        rope_factor=factor,
        rope_local_factor=local_factor,
        query_pre_attn_scalar=c.number("query_pre_attn_scalar", 256),
        attn_logit_softcapping=c.number("attn_logit_softcapping", None),
        final_logit_softcapping=c.number("final_logit_softcapping", None),
        tie_word_embeddings=c.boolean("tie_word_embeddings", True),
        hidden_activation=activation,
        attention_bias=c.boolean("attention_bias", False),
        max_position_embeddings=c.whole("max_position_embeddings", 131_072),
        initializer_range=c.number("initializer_range", 0.02),
        dtype=_dtype(c),
    )
    if result.num_attention_heads % result.num_key_value_heads:
        raise c.error(
            f"num_attention_heads {result.num_attention_heads} is no multiple of num_key_value_heads "
            f"{result.num_key_value_heads}"
        )
    if result.head_dim % 2:
        raise c.error(f"head_dim {result.head_dim} is odd, and positions rotate pairs")
    c.warn_of_the_rest()
    return result


def _gemma3_with_vision(config: _Section) -> Gemma3TextConfig:
    """model_type gemma3: the text decoder within; the vision tower is left out, and said to be."""
    if not config.has("text_config"):
        raise config.error("text_config is missing", fix="a gemma3 config nests its text decoder in text_config")
    log.info("%s: the text decoder of a model with vision; the vision tower is not read", config.path)
    text = config.section("text_config")
    kind = text.text("model_type", "gemma3_text")
    if kind != "gemma3_text":
        raise text.error(f"model_type is {kind!r}, and gemma3_text is needed")
    # where only the outer object says it, it holds for the whole model
    outer = {
        k: config.values[k]
        for k in ("dtype", "torch_dtype", "tie_word_embeddings", "quantization_config")
        if config.values.get(k) is not None and text.values.get(k) is None
    }
    return _gemma3(_Section({**text.values, **outer}, text.path, text.within))


def _layer_types(c: _Section, layers: int) -> tuple[str, ...]:
    """The list `layer_types`; older files give the period: each sliding_window_pattern-th layer is full, the rest
    slide."""
    if c.has("layer_types"):
        types = c.get("layer_types", "a list", lambda v: isinstance(v, list), _REQUIRED)
        wrong = next((t for t in types if t not in (SLIDING, FULL)), None)
        if wrong is not None:
            raise c.error(f"layer_types holds {wrong!r}, which is not supported", fix=f"supported: {SLIDING}, {FULL}")
        if len(types) != layers:
            raise c.error(f"layer_types lists {len(types)} layers, num_hidden_layers says {layers}")
        c.asked |= {"sliding_window_pattern", "_sliding_window_pattern"}
        return tuple(types)
    period = c.whole("sliding_window_pattern", c.whole("_sliding_window_pattern", 6))
    return tuple(SLIDING if (i + 1) % period else FULL for i in range(layers))


def _gemma3_rope(c: _Section) -> tuple[float, float, float, float]:
    """(theta, factor) of full layers and (theta, factor) of sliding ones, from `rope_parameters` or the older keys.

    As in transformers, rope_parameters wins over rope_theta and rope_local_base_freq, and rope_scaling over both, for
    full layers.
    """
    new = c.section("rope_parameters")
    unknown = sorted(set(new.values) - {SLIDING, FULL})
    if unknown:
        raise new.error(f"{', '.join(unknown)}: unknown here", fix=f"one object each for {FULL} and {SLIDING}")
    old = c.section("rope_scaling")
    theta, local_theta = c.number("rope_theta", 1_000_000.0), c.number("rope_local_base_freq", 10_000.0)
    full, sliding = new.section(FULL), new.section(SLIDING)
    full = _Section({**full.values, **old.values}, full.path, old.within if old.values else full.within)
    return (
        full.number("rope_theta", theta),
        _rope_factor(full),
        sliding.number("rope_theta", local_theta),
        _rope_factor(sliding),
    )


def _rope_factor(rope: _Section) -> float:
    """What positions are divided by: 1 for rope type default, `factor` for linear."""
    kind = rope.choice("rope_type", ("default", "linear"), rope.text("type", "default"))
    rope.refuse("partial_rotary_factor", (1, 1.0), "whole heads are rotated")
    rope.refuse("attention_factor", (1, 1.0), "cosines and sines are not scaled")
    rope.has("rope_theta")
    factor = rope.number("factor") if kind == "linear" else 1.0
    rope.has("factor")
    rope.warn_of_the_rest()
    return factor


def _bert(config: _Section) -> BertConfig:
    """model_type bert."""
    c = config
    c.refuse("is_decoder", (False,), "BERT is read as an encoder")
    c.refuse("add_cross_attention", (False,), "BERT is read as an encoder")
    c.refuse("quantization_config", ({},), "weights must be plain tensors")
    c.refuse("pruned_heads", ({},), "all heads must be there")
    c.refuse("embedding_size", (c.values.get("hidden_size"),), "embeddings have the width of the model")
    result = BertConfig(
        vocab_size=c.whole("vocab_size"),
        hidden_size=c.whole("hidden_size"),
        num_hidden_layers=c.whole("num_hidden_layers"),
        num_attention_heads=c.whole("num_attention_heads"),
        intermediate_size=c.whole("intermediate_size"),
        max_position_embeddings=c.whole("max_position_embeddings"),
        hidden_act=c.choice("hidden_act", ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"), "gelu"),
        layer_norm_eps=c.number("layer_norm_eps", 1e-12),
        type_vocab_size=c.whole("type_vocab_size", 2),
        pad_token_id=c.whole("pad_token_id", 0, least=0),
        position_embedding_type=c.choice("position_embedding_type", ("absolute",), "absolute"),
        dtype=_dtype(c),
    )
    if result.hidden_size % result.num_attention_heads:
        raise c.error(
            f"hidden_size {result.hidden_size} is no multiple of num_attention_heads {result.num_attention_heads}"
        )
    c.has("tie_word_embeddings")  # concerns the masked-language head, which an encoder does not have
    c.warn_of_the_rest()
    return result


MODEL_TYPES: Mapping[str, Callable[[_Section], Gemma3TextConfig | BertConfig]] = {
    "gemma3_text": _gemma3,
    "gemma3": _gemma3_with_vision,
    "bert": _bert,
}
"""model_type in config.json -> who reads the rest."""

_WEIGHT_DTYPES: dict[str, DType] = {"float32": f32, "bfloat16": bf16, "float16": f16}


def _dtype(c: _Section) -> str:
    """`dtype`, or `torch_dtype` in files from before transformers 5."""
    key = "dtype" if c.has("dtype") or not c.has("torch_dtype") else "torch_dtype"
    c.asked |= {"dtype", "torch_dtype"}
    return c.choice(key, _WEIGHT_DTYPES, "float32")


_POOLING = ("mean", "cls", "max")
_POOLING_FLAGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def _pooling(path: Path) -> tuple[str, int]:
    """(pooling, dimension) of a Pooling module: by the key pooling_mode, or by one flag per mode in older files."""
    c = _Section(read_json(path), path)
    if c.has("pooling_mode"):
        said = c.values["pooling_mode"]
        modes = list(said) if isinstance(said, list) else [said]
    else:
        modes = [mode for flag, mode in _POOLING_FLAGS.items() if c.boolean(flag, False)] or ["mean"]
    if len(modes) != 1 or modes[0] not in _POOLING:
        raise c.error(
            f"pooling by {' and '.join(map(str, modes))} is not supported",
            fix=f"supported: one of {', '.join(_POOLING)}",
        )
    c.refuse("include_prompt", (True,), "all tokens are pooled")
    return modes[0], c.whole("word_embedding_dimension" if c.has("word_embedding_dimension") else "embedding_dimension")


def _default_prompt(path: Path) -> str:
    """The text that sentence-transformers puts before each text when the caller names no prompt."""
    if not path.is_file():
        return ""
    c = _Section(read_json(path), path)
    name = c.text("default_prompt_name", "")
    return c.section("prompts").text(name) if name else ""


def _prefix(names: Iterable[str], anchor: str, model: str) -> str:
    names = list(names)
    found = [n.removesuffix(anchor) for n in names if n == anchor or n.endswith("." + anchor)]
    if len(found) != 1:
        raise ConfigError(
            f"{len(found)} tensors are named …{anchor}, and a {model} checkpoint has one",
            fix=f"the tensors are {listed(names)}",
        )
    return found[0]


# --- writing a folder of random weights -------------------------------------------------------------------------------

GEMMA3_270M = Gemma3TextConfig(
    vocab_size=262_144,
    hidden_size=640,
    intermediate_size=2048,
    num_hidden_layers=18,
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=256,
    rms_norm_eps=1e-6,
    sliding_window=512,
    layer_types=((SLIDING,) * 5 + (FULL,)) * 3,
    max_position_embeddings=32_768,
)
"""The shape of google/gemma-3-270m."""

_CHUNK = 1 << 18
"""Numbers drawn from one generator; fixed, so that the weights do not depend on how many threads draw them."""


def gemma3_tensors(config: Gemma3TextConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor in a Gemma 3 text checkpoint, as transformers' Gemma3ForCausalLM names them."""
    c, d = config, config.head_dim
    queries, keys = c.num_attention_heads * d, c.num_key_value_heads * d
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (c.vocab_size, c.hidden_size)}
    for i in range(c.num_hidden_layers):
        at = f"model.layers.{i}."
        for name, out, inner in (
            ("self_attn.q_proj", queries, c.hidden_size),
            ("self_attn.k_proj", keys, c.hidden_size),
            ("self_attn.v_proj", keys, c.hidden_size),
            ("self_attn.o_proj", c.hidden_size, queries),
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
    """Random f32 weights, by name, whose tokens mostly vary and whose every constant matters.

    Linear weights and biases N(0, r²) with r = initializer_range; the embedding N(0, r²) × 0.1; norms N(0, 0.3²);
    q_norm and k_norm 1 + N(0, 0.3²). A norm's stored weight w acts as 1 + w. (As initialised, norms at w = 0 and the
    embedding at r give 3–6 distinct tokens in 64 and hide a wrong window, scale or eps. With these it is 40 and more at
    seeds 0 and 2, but some seeds settle on few tokens after a long prompt: count them before comparing tokens.)
    The same config and seed give the same weights in any order and with any number of threads (numpy's Philox, keyed by
    name).
    """
    with ThreadPoolExecutor(threads) as pool:
        return {name: _draw(config, name, shape, seed, pool) for name, shape in gemma3_tensors(config).items()}


def write_gemma3_folder(
    path: str | os.PathLike[str], config: Gemma3TextConfig, seed: int, dtype: str = "float32"
) -> None:
    """Write config.json, generation_config.json and model.safetensors of `random_gemma3_weights(config, seed)`.

    dtype: "float32" or "bfloat16" (each weight rounded to nearest). transformers' Gemma3ForCausalLM.from_pretrained
    loads the folder whole. Tensors are drawn one at a time, so memory peaks at the largest one. Raises ConfigError,
    WeightsError.
    """
    stored = {"float32": f32, "bfloat16": bf16}.get(dtype)
    if stored is None:
        raise ConfigError(f"weights cannot be written as {dtype!r}", fix="float32 or bfloat16")
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_json(folder / "config.json", _gemma3_json(config, dtype))
        _write_json(
            folder / "generation_config.json",
            {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0, "do_sample": False},
        )
    except OSError as error:
        raise FolderError(f"cannot write the folder: {error.strerror}", file=folder) from error
    shapes = gemma3_tensors(config)
    with ThreadPoolExecutor(2) as pool:
        write_weights(
            folder / WEIGHTS_FILE,
            {name: (stored, shape) for name, shape in shapes.items()},
            lambda name: _draw(config, name, shapes[name], seed, pool).astype(stored.numpy, copy=False),
            {"format": "pt"},
        )


def _gemma3_json(config: Gemma3TextConfig, dtype: str) -> dict[str, Any]:
    """config.json for transformers 5."""

    def rope(theta: float, factor: float) -> dict[str, Any]:
        return (
            {"rope_type": "default", "rope_theta": theta}
            if factor == 1
            else {"rope_type": "linear", "rope_theta": theta, "factor": factor}
        )

    own = {f.name: getattr(config, f.name) for f in fields(config) if not f.name.startswith("rope_")}
    own["query_pre_attn_scalar"] = int(config.query_pre_attn_scalar)  # transformers refuses a float
    if own["query_pre_attn_scalar"] != config.query_pre_attn_scalar:
        raise ConfigError(
            f"query_pre_attn_scalar is {config.query_pre_attn_scalar}, and transformers takes a whole number only"
        )
    return {
        **own,
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "dtype": dtype,
        "rope_parameters": {
            FULL: rope(config.rope_theta, config.rope_factor),
            SLIDING: rope(config.rope_local_theta, config.rope_local_factor),
        },
        "attention_dropout": 0.0,
        "use_bidirectional_attention": False,
        "use_cache": True,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _draw(
    config: Gemma3TextConfig, name: str, shape: tuple[int, ...], seed: int, pool: ThreadPoolExecutor
) -> np.ndarray[Any, Any]:
    """One tensor of the recipe of `random_gemma3_weights`, f32."""
    mean, spread = 0.0, config.initializer_range
    if "embed_tokens" in name:
        spread *= 0.1
    elif "norm" in name:
        mean, spread = (1.0 if "q_norm" in name or "k_norm" in name else 0.0), 0.3
    out = np.empty(shape, np.float32)
    flat = out.reshape(-1)

    def fill(start: int) -> None:
        part = flat[start : start + _CHUNK]
        key = hashlib.sha256(f"{seed}/{name}/{start}".encode()).digest()[:16]
        generator = np.random.Generator(np.random.Philox(key=np.frombuffer(key, "<u8")))
        generator.standard_normal(dtype=np.float32, out=part)
        part *= np.float32(spread)
        if mean:
            part += np.float32(mean)

    list(pool.map(fill, range(0, flat.size, _CHUNK)))
    return out
