"""json_settings: reads the JSON files of a model folder key by key, each with its expected type. Errors name file, key and fix."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tensor_graphs.errors import close_to
from tensor_graphs.frontends.errors import ConfigError, FolderError
from tensor_graphs.language.dtypes import DType, bf16, f16, f32
from tensor_graphs.regular_file import read_text

log = logging.getLogger(__name__)


AGAIN = "take the file again from where the model was published; it may have been cut off on its way"


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises FolderError (missing, unreadable) and ConfigError (line and column of bad JSON)."""
    value = parse_json(path)
    if not isinstance(value, dict):
        raise ConfigError(f"the file holds a JSON {type(value).__name__}, and an object is needed", file=path, fix=AGAIN)
    return value


class Section:
    """A JSON object whose values are read by key and type. asked: the keys read so far."""

    def __init__(self, values: dict[str, Any], path: Path, within: str = "") -> None:
        self.values, self.path, self.within = values, path, within
        self.asked: set[str] = set()

    def has(self, key: str) -> bool:
        self.asked.add(key)
        return self.values.get(key) is not None

    def get(self, key: str, kind: str, fits: Callable[[Any], bool], default: Any) -> Any:
        """Return the value of `key`; `default` if it is absent or null (an error if REQUIRED). kind: its type, for errors."""
        if not self.has(key):
            if default is REQUIRED:
                near = close_to(key, [k for k in self.values if k != key])
                raise self.error(f"{key} is missing", fix=f"did you mean {near[0]}?" if near else f"add {key} ({kind})")
            return default
        value = self.values[key]
        if not fits(value):
            raise self.error(f"{key} is {json.dumps(value, default=str)[:80]}, and {kind} is needed")
        return value

    def error(self, message: str, fix: str | None = None) -> ConfigError:
        return ConfigError((f"{self.within}: " if self.within else "") + message, file=self.path, fix=fix)

    def whole(self, key: str, default: Any = ..., least: int = 1, most: int | None = None) -> int:
        value: int = self.get(key, f"a whole number ≥ {least}", lambda v: type(v) is int and v >= least, default)
        if most is not None and value is not None and value > most:
            raise self.error(f"{key} is {value}, and no model that fits into a computer has more than {most}")
        return value

    def optional_whole(self, key: str) -> int | None:
        return self.whole(key, None, least=0)

    def number(self, key: str, default: Any = ...) -> float:
        value: float = self.get(key, "a number > 0", lambda v: type(v) in (int, float) and 0 < v < math.inf, default)
        return value

    def optional_number(self, key: str) -> float | None:
        value: float | None = self.get(key, "a number ≥ 0", lambda v: type(v) in (int, float) and 0 <= v < math.inf, None)
        return value

    def boolean(self, key: str, default: Any = ...) -> bool:
        value: bool = self.get(key, "true or false", lambda v: isinstance(v, bool), default)
        return value

    def text(self, key: str, default: Any = ...) -> str:
        value: str = self.get(key, "a text", lambda v: isinstance(v, str), default)
        return value

    def choice(self, key: str, choices: Iterable[str], default: Any = ...) -> str:
        value = self.text(key, default)
        if value not in choices:
            raise self.error(f"{key} is {value!r}, which is not supported", fix=f"supported: {', '.join(choices)}")
        return value

    def section(self, key: str) -> Section:
        value = self.get(key, "an object", lambda v: isinstance(v, dict), {})
        return Section(value, self.path, f"{self.within}.{key}" if self.within else key)

    def refuse(self, key: str, harmless: tuple[Any, ...], why: str, fix: str | None = None) -> None:
        """Raise ConfigError if `key` has a value that is none of the harmless ones (null and absence are always harmless)."""
        if self.has(key) and self.values[key] not in harmless:
            raise self.error(f"{key} = {json.dumps(self.values[key])[:80]} is not supported: {why}", fix=fix)

    def warn_of_the_rest(self) -> None:
        """Log the keys that were not read and are not known to be harmless."""
        rest = sorted(
            k
            for k, v in self.values.items()
            if k not in self.asked and k not in _LEAVE_THE_RESULT_ALONE and v is not None
        )
        if rest:
            log.warning("%s: unknown settings, not looked at: %s", self.path, ", ".join(rest))


REQUIRED = ...
"""The default that marks a key as required."""

_LEAVE_THE_RESULT_ALONE = frozenset(
    {
        "_name_or_path", "architectures", "model_type", "transformers_version", "initializer_range", "use_cache",
        "cache_implementation", "attention_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob",
        "classifier_dropout", "gradient_checkpointing", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id",
        "cls_token_id", "mask_token_id", "_attn_implementation", "_attn_implementation_autoset", "attn_implementation",
        "return_dict", "output_attentions", "output_hidden_states", "id2label", "label2id", "problem_type",
        "finetuning_task", "chunk_size_feed_forward", "is_encoder_decoder", "model_max_length", "torchscript",
        "pretraining_tp", "max_window_layers", "sinusoidal_pos_embds", "resid_pdrop", "embd_pdrop", "attn_pdrop",
        "hidden_dropout", "dropout", "embedding_dropout", "residual_dropout", "mlp_dropout", "qa_dropout",
        "seq_classif_dropout", "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
        "summary_use_proj", "reorder_and_upcast_attn", "output_router_logits", "router_aux_loss_coef",
        "router_jitter_noise", "classifier_activation", "classifier_bias", "classifier_pooling", "decoder_bias",
        "deterministic_flash_attn", "initializer_cutoff_factor", "sparse_pred_ignore_index", "sparse_prediction",
    }
)
"""Keys of config.json that control how a model is trained, loaded or stored, but not its results."""


MOST_JSON = 1 << 28
"""Largest size of a JSON file in bytes; the tokenizer.json of a vocabulary of 256,000 words has 33 MB."""


def _of_64_bits(text: str) -> int:
    """Return a whole number of JSON. Raises ValueError beyond 64 bits."""
    if len(text) > 20 or abs(int(text)) >= 1 << 63:
        raise ValueError(f"the number {text[:20]}{'…' if len(text) > 20 else ''}, of {len(text)} digits, is beyond 64 bits")
    return int(text)


def parse_json(path: Path) -> Any:
    try:
        # tokenizer_config.json writes 10^30 for "no bound"; config.json, which sizes come from, has no numbers beyond 64 bits
        whole = _of_64_bits if path.name == "config.json" else int
        return json.loads(read_text(path, MOST_JSON, encoding="utf-8-sig"), parse_int=whole)
    except FileNotFoundError as error:
        raise FolderError(f"there is no {path.name}", file=path, fix="name a folder that was downloaded whole") from error
    except OSError as error:
        raise FolderError(f"cannot read {path.name}: {error.strerror}", file=path) from error
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"invalid JSON at line {error.lineno}, column {error.colno}: {error.msg}", file=path, fix=AGAIN
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the file is not UTF-8 text (byte {error.start})", file=path, fix=AGAIN) from error
    except RecursionError as error:
        raise ConfigError("the JSON is nested too deeply", file=path, fix=AGAIN) from error
    except ValueError as error:                                     # a number of thousands of digits
        raise ConfigError(f"the JSON cannot be read: {str(error).partition(';')[0]}", file=path, fix=AGAIN) from error


_WEIGHT_DTYPES: dict[str, DType] = {"float32": f32, "bfloat16": bf16, "float16": f16}


def stored_dtype(c: Section) -> str:
    """Return the dtype of the weights: the key `dtype`, or `torch_dtype` in files older than transformers 5."""
    key = "dtype" if c.has("dtype") or not c.has("torch_dtype") else "torch_dtype"
    c.asked |= {"dtype", "torch_dtype"}
    return c.choice(key, _WEIGHT_DTYPES, "float32")
