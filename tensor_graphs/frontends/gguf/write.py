"""write: a model, of a folder or of another file, as one GGUF file.

Written are settings and tensors as llama.cpp's converter writes them. Before any tensor is written, the header is read again, and a
model that would come back with other facts, or a text with other tokens, is refused: the format has no place for some settings.
"""

from __future__ import annotations

import json
import logging
import math
import mmap
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tensor_graphs.devices.gguf import PLAIN, GgufFile, write_gguf
from tensor_graphs.devices.safetensors import Entry
from tensor_graphs.frontends.errors import ConfigError, TokenizerError
from tensor_graphs.frontends.gguf.architectures import (
    ARCHITECTURES,
    EPS,
    KEYS,
    NORMS,
    ROPE_FACTORS,
    Architecture,
    names_in_gguf,
    read_settings,
)
from tensor_graphs.frontends.gguf.model import POOLINGS, by_neighbours
from tensor_graphs.frontends.gguf.tokenizer import NONE, REGEXES, WORDS, read_tokenizer
from tensor_graphs.frontends.text.sentencepiece_file import CONTROL, NORMAL, SPACE, UNKNOWN, USER_DEFINED
from tensor_graphs.frontends.text.tokenizer import Tokenizer
from tensor_graphs.language.composites.blocks import FORMATS
from tensor_graphs.language.composites.quantise import format_of_rows, quantized
from tensor_graphs.language.dtypes import f32
from tensor_graphs.meaning.precision import BLOCKS, WRITTEN, Form, parse_form
from tensor_graphs.rewrites.passes.apply_precision import check_sites, resolved

if TYPE_CHECKING:
    from tensor_graphs.frontends.huggingface.load import LoadedModel

log = logging.getLogger(__name__)

PRECISIONS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q4_K": 14, "Q5_K": 16, "Q6_K": 18,
              "BF16": 32, "MXFP4": 38}
"""Type of the matrices in a file -> its number in `general.file_type`."""
UNUSED, BYTE = 5, 6
_ALIKE = {"mistral": "llama"}
"""Family -> architecture of another one, whose files hold its models."""
_TEXTS = ("Hello, World! it's 3.14 or 12345", " two  spaces\n\n\ttabs\r\n", "Ünïcödé 日本語 한국어 🦙 é",
          "def f(x):\n    return x**2  # ok")
"""Texts whose tokens are compared before a file is written."""


def write_model(model: LoadedModel, path: str | os.PathLike[str], *, precision: str | Form = "F32",
                importance: Mapping[str, np.ndarray[Any, Any]] | None = None) -> None:
    """Write a model as a GGUF file. precision: a name in `PRECISIONS`, of all matrices, or the words of weight sites
    (meaning/precision.py; a table with a word per reader gets the one with more bits, without a word the model's dtype). Rows that
    are no whole blocks of a format get the one that `format_of_rows` has in its place, or F16; vectors, positions and token types
    are F32. importance: parameter -> mean square of what each of its columns is multiplied by; blocks have the least error weighted
    by it (gguf/file_types.py computes it, and chooses types). The file appears complete or not at all. Raises ConfigError and
    TokenizerError for what the format cannot hold, ArgumentError for words that the model has no sites for, WeightsError for a file
    that cannot be written."""
    name, row = _architecture(model)
    type_of = _types(model, precision)
    sources = _sources(model, row)
    tensors = {to: (_stored_as(shape, type_of(own[0])) if _is_typed(to, part, shape) else "F32", shape)
               for to, (part, shape, own) in sources.items()}
    values: Counter[str] = Counter()
    for to, (_, shape, own) in sources.items():
        values[type_of(own[0])] += math.prod(shape) if tensors[to][0] != "F32" else 0
    mostly = values.most_common(1)[0][0] if values.total() else "F32"
    metadata = {**_settings(model, name, mostly), **tokenizer_metadata(model.tokenizer)}
    _add_end_ids(metadata, model.end_ids)
    factors = _rope_factors(model)
    if factors is not None:
        tensors = {ROPE_FACTORS[0]: ("F32", factors.shape), **tensors}
    _check(model, metadata, tensors, Path(path), factors)

    def make(tensor: str) -> np.ndarray[Any, Any]:
        if tensor == ROPE_FACTORS[0]:
            assert factors is not None
            return factors
        part, _, own = sources[tensor]
        parts = [np.asarray(model.values(parameter)) for parameter in own]
        values = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if part in NORMS and model.facts.norm_offset:
            values = values.astype(np.float32) + np.float32(model.facts.norm_offset)
        if row.turned and part in ("q", "k"):
            values = by_neighbours(values, model.facts.heads if part == "q" else model.facts.kv_heads)
        kind = tensors[tensor][0]
        if kind in PLAIN:
            return values.astype(PLAIN[kind].numpy, copy=False)
        return quantized(values, kind, (importance or {}).get(own[0]))

    write_gguf(path, metadata, tensors, make)


def typed_tensors(model: LoadedModel) -> dict[str, tuple[tuple[int, ...], list[str]]]:
    """Return name in GGUF -> (shape, the parameters that it holds) of the tensors of a model whose type can be chosen; others are
    F32. Raises ConfigError."""
    return {to: (shape, own) for to, (part, shape, own) in _sources(model, _architecture(model)[1]).items()
            if _is_typed(to, part, shape)}


def _is_typed(name: str, part: str, shape: tuple[int, ...]) -> bool:
    return "norm" not in name and len(shape) > 1 and part not in ("positions", "types")


def _add_end_ids(metadata: dict[str, Any], ids: Sequence[int]) -> None:
    """Add the ids that end a text: of the tokenizer's token, of a turn and of a message."""
    keys = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]
    more = [i for i in ids if i != metadata.get(keys[0])]
    free = [key for key in keys if key not in metadata]
    if len(more) > len(free):
        log.warning("a GGUF file names %d ids that end a text; left out: %s", len(keys), ", ".join(map(str, more[len(free):])))
    metadata.update(zip(free, more, strict=False))


def _architecture(model: LoadedModel) -> tuple[str, Architecture]:
    """Return the architecture that holds a family's models. Raises ConfigError."""
    family = _ALIKE.get(model.kind, model.kind)
    named = next(((name, row) for name, row in ARCHITECTURES.items() if row.family == family), None)
    if named is None:
        raise ConfigError(f"models of the family {model.kind} are not written as GGUF", file=model.folder,
                          fix=f"families that are: {', '.join((*_ALIKE, *(row.family for row in ARCHITECTURES.values())))}")
    return named


def _sources(model: LoadedModel, row: Architecture) -> dict[str, tuple[str, tuple[int, ...], list[str]]]:
    """Return name in GGUF -> (field of TensorNames, shape, the parameters that it holds one after another)."""
    shapes: dict[str, Any] = {name: node.shape for name, node in model.graph.parameters.items()}
    whole = {model.names.layer.format(i=i) + fused.tensor: [model.names.layer.format(i=i) + part for part in fused.parts]
             for i in range(len(model.facts.layers)) for fused in model.names.fused}
    sources = {}
    for name, (to, part) in names_in_gguf(model.names, len(model.facts.layers)).items():
        for kind in (".weight", ".bias"):
            own = [parameter + kind for parameter in whole.get(name, [name])]
            if all(parameter in shapes for parameter in own):
                first = shapes[own[0]]
                sources[to + kind] = (part, (sum(shapes[parameter][0] for parameter in own), *first[1:]), own)
    missing = shapes.keys() - {parameter for _, _, own in sources.values() for parameter in own}
    if missing:
        raise ConfigError(f"GGUF has no name for {min(missing)}", file=model.folder, fix="a model without it")
    return sources


def _types(model: LoadedModel, precision: str | Form) -> Callable[[str], str]:
    """Return a function from a parameter to the type in which a file stores it. Raises ConfigError and ArgumentError."""
    if isinstance(precision, str) and "=" not in precision:
        kind = precision.upper()
        if kind not in PRECISIONS:
            raise ConfigError(f"weights cannot be written as {precision!r}", fix=f"one of {', '.join(PRECISIONS)}")
        return lambda parameter: kind
    form = parse_form(precision)
    check_sites(form, model.graph)
    own = next(kind for kind, dtype in PLAIN.items() if dtype == model.dtype)
    types: dict[str, str] = {}
    for key, word in resolved(form, model.graph).items():
        kind, _, site = key.partition(":")
        if kind == "weight":
            to = own if word == WRITTEN else "F32" if word == "f64" else BLOCKS.get(word, word.upper())
            parameter = site.partition("@")[0]
            types[parameter] = max(to, types.get(parameter, to), key=_bits)
    return lambda parameter: types.get(parameter, own)


def _bits(kind: str) -> float:
    """Return the bits that a type takes for a number."""
    return 8.0 * (PLAIN[kind].itemsize if kind in PLAIN else FORMATS[kind].nbytes / FORMATS[kind].values)


def _stored_as(shape: tuple[int, ...], precision: str) -> str:
    return precision if precision in PLAIN else format_of_rows(precision, shape[-1]) or "F16"


def _settings(model: LoadedModel, name: str, precision: str) -> dict[str, Any]:
    """Return the metadata of the model."""
    s, facts = dict(model.config.settings), model.facts
    values: dict[str, Any] = {"general.architecture": name, "general.name": model.name, f"{name}.vocab_size": facts.vocabulary,
                              "general.file_type": PRECISIONS[precision],
                              "general.quantization_version": 2}
    s |= {"head_dim": facts.head_dim, "num_key_value_heads": facts.kv_heads, "intermediate_size": facts.ffn,
          "max_position_embeddings": model.config.max_position_embeddings}
    for setting, key in {**KEYS, **ARCHITECTURES[name].keys}.items():
        if (value := s.get(setting)) is not None and (setting != "sliding_window" or ARCHITECTURES[name].windows):
            values[f"{name}.{key}"] = value
    values[f"{name}.attention.value_length"] = facts.head_dim
    values[f"{name}.{EPS[facts.norm == 'layer']}"] = float(facts.eps)
    ropes = {bool(layer.window): layer.rope for layer in facts.layers if layer.rope is not None}
    for sliding, rope in sorted(ropes.items(), reverse=True):                   # those of full layers, where there are both
        local = ".rope.freq_base_swa" if sliding and "local_rope_theta" in s else ".rope.freq_base"
        values |= {f"{name}.rope.dimension_count": rope.channels or facts.head_dim, f"{name}{local}": float(rope.theta)}
        if rope.kind == "linear" and rope.scaling != 1:
            values |= {f"{name}.rope.scaling.type": "linear", f"{name}.rope.scaling.factor": float(rope.scaling)}
    if model.encoder:
        values |= {f"{name}.attention.causal": False, "tokenizer.ggml.token_type_count": facts.token_types,
                   f"{name}.pooling_type": next((number for number, pooling in POOLINGS.items() if pooling == facts.pooling), 0)}
    return values


def _rope_factors(model: LoadedModel) -> np.ndarray[Any, Any] | None:
    """Return the divisors of frequencies that Llama 3.1 stretches its positions by; None for other rotations."""
    rope = next((layer.rope for layer in model.facts.layers if layer.rope is not None), None)
    if rope is None or rope.kind != "llama3":
        return None
    channels = rope.channels or model.facts.head_dim
    plain = rope.theta ** (-np.arange(0, channels, 2) / channels)
    return np.asarray(plain / rope.llama3(plain, channels), np.float32)


def _check(model: LoadedModel, metadata: Mapping[str, Any], tensors: Mapping[str, tuple[str, tuple[int, ...]]], path: Path,
           factors: np.ndarray[Any, Any] | None) -> None:
    """Raise ConfigError or TokenizerError for a model that a file with this header would not give back."""
    entries = {to: Entry(to, kind, PLAIN.get(kind, f32), shape, path, 0, 0) for to, (kind, shape) in tensors.items()}
    file = GgufFile(path, _as_read(metadata), entries, mmap.mmap(-1, 1))
    back, facts = read_settings(file if factors is None else replace(file, entries={
        name: entry for name, entry in entries.items() if name != ROPE_FACTORS[0]})).facts, model.facts
    if factors is not None:
        facts = replace(facts, layers=tuple(replace(layer, rope=None) for layer in facts.layers))
        back = replace(back, layers=tuple(replace(layer, rope=None) for layer in back.layers))
    facts = replace(facts, pooling=back.pooling, normalise=back.normalise)       # not a part of read_settings
    if facts != back:
        name = next(f.name for f in fields(facts) if getattr(facts, f.name) != getattr(back, f.name))
        own, other = getattr(facts, name), getattr(back, name)
        if name == "layers":
            own, other = next((a, b) for a, b in zip(own, other, strict=True) if a != b)
        raise ConfigError(f"a GGUF file cannot hold this model: its {name} would be {other}, and are {own}", file=model.folder,
                          fix="the folder as it is")
    if model.encoder and not (model.facts.normalise and model.facts.pooling in POOLINGS.values()):
        raise ConfigError("a GGUF file cannot hold this encoder: its vectors are of length 1, pooled by "
                          f"{' or '.join(POOLINGS.values())}", file=model.folder, fix="the folder as it is")
    if model.tokenizer is not None:
        again = read_tokenizer(file)
        assert again is not None
        plain = model.tokenizer.prompt
        wrong = next((text for text in _TEXTS if again.encode(plain + text) != model.tokenizer.encode(text)), None)
        if wrong is not None:
            raise TokenizerError(f"GGUF has no tokenizer like this one: {wrong!r} would become other tokens", file=model.folder,
                                 fix="the folder as it is")


def _as_read(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata as they are read: lists of numbers are arrays."""
    return {key: np.asarray(value) if isinstance(value, list) and value and not isinstance(value[0], str) else value
            for key, value in metadata.items()}


# ---- tokenizers -----------------------------------------------------------------------------------------------------------------


def tokenizer_metadata(tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Return the metadata of a tokenizer, or of none. Raises TokenizerError for one of a kind that is not written."""
    if tokenizer is None:
        return {"tokenizer.ggml.model": NONE[0]}
    whole = json.loads(tokenizer.splitter.to_str())
    model, added = whole["model"], whole["added_tokens"]
    kind = model["type"]
    if kind not in ("BPE", "WordPiece"):
        raise TokenizerError(f"tokenizers of the kind {kind} are not written as GGUF", file=tokenizer.folder,
                             fix="a model with BPE, SentencePiece's BPE or WordPiece")
    ids = {**model["vocab"], **{token["content"]: token["id"] for token in added}}
    tokens = [f"[PAD{i}]" for i in range(max(ids.values()) + 1)]
    kinds = [UNUSED] * len(tokens)
    for text, i in ids.items():
        tokens[i], kinds[i] = text, BYTE if kind == "BPE" and model.get("byte_fallback") and _is_byte(text) else NORMAL
    for token in added:
        kinds[token["id"]] = CONTROL if token["special"] else USER_DEFINED
    unknown = ids.get(model.get("unk_token") or "")
    out: dict[str, Any] = {"tokenizer.ggml.model": "bert"}
    if kind == "WordPiece":
        out["tokenizer.ggml.normalizer.lowercase"] = bool((whole["normalizer"] or {}).get("lowercase", True))
        tokens = [_phantom(text) for text in tokens]
    elif model.get("byte_fallback"):
        if unknown is not None:
            kinds[unknown] = UNKNOWN
        out = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default",
               "tokenizer.ggml.add_space_prefix": '"Prepend"' in json.dumps(whole["normalizer"]) or "Metaspace" in json.dumps(
                   whole["pre_tokenizer"]), "tokenizer.ggml.scores": _scores(tokens, _pairs(model["merges"]))}
    else:
        out = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": _rule(whole["pre_tokenizer"], tokenizer),
               "tokenizer.ggml.merges": [" ".join(pair) for pair in _pairs(model["merges"])]}
    roles = {"bos": "bos_token", "eos": "eos_token", "padding": "pad_token", "cls": "cls_token", "seperator": "sep_token",
             "mask": "mask_token"}
    special = {f"tokenizer.ggml.{role}_token_id": ids[text] for role, key in roles.items()
               if (text := tokenizer.special.get(key)) in ids}
    if unknown is not None:
        special["tokenizer.ggml.unknown_token_id"] = unknown
    around, plain = tokenizer.encode("a"), tokenizer.encode("a", special_tokens=False)
    return {**out, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds, **special,
            "tokenizer.ggml.add_bos_token": around[:len(plain)] != plain, "tokenizer.ggml.add_eos_token": around[-1] != plain[-1],
            **({} if tokenizer.template is None else {"tokenizer.chat_template": tokenizer.template})}


def _pairs(merges: list[Any]) -> list[tuple[str, str]]:
    """Return the merges of tokenizer.json, which older versions write as texts with a space between."""
    return [tuple(pair.split(" ", 1)) if isinstance(pair, str) else tuple(pair) for pair in merges]  # type: ignore[misc]


def _scores(tokens: list[str], merges: list[tuple[str, str]]) -> list[float]:
    """Return a score of each token, the higher the earlier it is merged."""
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(merges):
        ranks.setdefault(left + right, rank)
    return [-float(ranks.get(text, len(merges))) for text in tokens]


def _is_byte(text: str) -> bool:
    return len(text) == 6 and text.startswith("<0x") and text.endswith(">")


def _phantom(text: str) -> str:
    """Return a piece of WordPiece as GGUF has it: ▁ before the beginnings of words, and no ## before the rest."""
    if text.startswith("[") and text.endswith("]"):
        return text
    return text[2:] if text.startswith("##") else SPACE + text


def _rule(rules: Any, tokenizer: Tokenizer) -> str:
    """Return the name in REGEXES of the regexes by which a tokenizer cuts a text into words. Raises TokenizerError."""
    steps = (rules or {}).get("pretokenizers", [rules or {}])
    regexes: tuple[str, ...] = ()
    for step in steps:
        if step.get("type") == "Split":
            regexes += (step["pattern"].get("Regex", ""),)
        elif step.get("type") == "Digits" and step["individual_digits"]:
            regexes += (r"\p{N}",)
        elif step.get("type") == "ByteLevel" and step["use_regex"]:
            regexes += (WORDS,)
    name = next((name for name, own in REGEXES.items() if own == regexes), None)
    if name is None:
        raise TokenizerError(f"GGUF has no name for the rule by which texts are cut into words: {' then '.join(regexes)[:200]}",
                             file=tokenizer.folder, fix=f"rules with a name: {', '.join(REGEXES)}")
    return name
