"""architectures: one row per `general.architecture` of GGUF: its family, and where its metadata and tensors differ from a folder's.

A file is read as the folder that it was converted from: its metadata become settings of the family (families.py in
frontends/huggingface), its tensors get the names of the family's checkpoints. Constants of llama.cpp that no file holds are in
the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tensor_graphs.devices.gguf import GgufFile
from tensor_graphs.frontends.errors import ConfigError
from tensor_graphs.frontends.huggingface.config import FamilyConfig, read_family
from tensor_graphs.frontends.huggingface.families import FAMILIES
from tensor_graphs.frontends.json_settings import Section
from tensor_graphs.models.transformer import TensorNames


@dataclass(frozen=True)
class Architecture:
    """One architecture. family: name of its row in FAMILIES. turned: q and k are stored for rotations of neighbouring channels,
    and a folder's are for rotations of channel i with i + half. windows: llama.cpp applies the window of sliding layers; models
    that need others are not written. constants(s): settings that llama.cpp's code holds, from those of the file. keys: setting ->
    key of the metadata without the architecture's name, for those that no other one has."""

    family: str
    turned: bool = False
    windows: bool = False
    constants: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda s: {}
    keys: Mapping[str, str] = field(default_factory=dict)


def _gemma_scale(s: Mapping[str, Any], layers: int) -> dict[str, float]:
    """Return query_pre_attn_scalar: the largest model of a family, known by its layers, has hidden / heads, all others head_dim."""
    per_head = s["hidden_size"] / s["num_attention_heads"] if s["num_hidden_layers"] == layers else s["head_dim"]
    return {"query_pre_attn_scalar": float(per_head)}


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("llama", turned=True), "qwen2": Architecture("qwen2"), "qwen3": Architecture("qwen3"),
    "gemma": Architecture("gemma"),
    "gemma2": Architecture("gemma2", windows=True, constants=lambda s: _gemma_scale(s, 46),
                           keys={"attn_logit_softcapping": "attn_logit_softcapping"}),
    "gemma3": Architecture("gemma3", windows=True, keys={"local_rope_theta": "rope.freq_base_swa"}, constants=lambda s: {
        **_gemma_scale(s, 62), "local_rope_theta": 10_000.0, "sliding_window_pattern": 6}),
    "phi3": Architecture("phi3"), "olmo2": Architecture("olmo2"), "starcoder2": Architecture("starcoder2"),
    "gpt2": Architecture("gpt2"), "smollm3": Architecture("smollm3", turned=True), "stablelm": Architecture("stablelm"),
    "granite": Architecture("granite", turned=True, keys={
        "embedding_multiplier": "embedding_scale", "residual_multiplier": "residual_scale", "logits_scaling": "logit_scale",
        "attention_multiplier": "attention.scale"}),
    "cohere2": Architecture("cohere2", windows=True, keys={"logit_scale": "logit_scale"}),
    "bert": Architecture("bert"), "nomic-bert": Architecture("nomic_bert")}

KEYS = {"hidden_size": "embedding_length", "intermediate_size": "feed_forward_length", "num_hidden_layers": "block_count",
        "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
        "head_dim": "attention.key_length", "max_position_embeddings": "context_length",
        "sliding_window": "attention.sliding_window", "final_logit_softcapping": "final_logit_softcapping",
        "rope_theta": "rope.freq_base", "use_parallel_residual": "use_parallel_residual"}
"""Setting -> key of the metadata, after the architecture's name."""
_NEEDED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
EPS = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")

BIASES = {"attention_bias": "attn_q.bias", "mlp_bias": "ffn_up.bias", "use_bias": "attn_q.bias", "use_qkv_bias": "attn_q.bias",
          "qk_layernorm": "attn_q_norm.weight"}
"""Setting -> tensor of a layer that is there if the setting is true."""

NAMES = {"embed": "token_embd", "positions": "position_embd", "types": "token_types", "embed_norm": "token_embd_norm",
         "norm": "output_norm", "head": "output"}
LAYER_NAMES = {
    "attention_in": "attn_norm", "attention_out": "post_attention_norm", "attention_sum": "attn_output_norm", "ffn_in": "ffn_norm",
    "ffn_out": "post_ffw_norm", "ffn_sum": "layer_output_norm", "q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output",
    "q_norm": "attn_q_norm", "k_norm": "attn_k_norm", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down"}
"""Field of TensorNames -> name in GGUF, within a layer after `blk.{i}.`."""
FUSED = {"q": "attn_qkv", "gate": "ffn_up"}
"""First of the parts that a family stores together -> name of the whole in GGUF."""
NORMS = ("norm", "attention_in", "attention_out", "ffn_in", "ffn_out", "q_norm", "k_norm")
ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def names_in_gguf(names: TensorNames, layers: int) -> dict[str, tuple[str, str]]:
    """Return a checkpoint's name of a tensor, without .weight or .bias -> (name in GGUF, field of TensorNames)."""
    fused = {getattr(names, part): name for part, name in FUSED.items()}
    own = {getattr(names, part): (name, part) for part, name in NAMES.items() if getattr(names, part)}
    for i in range(layers):
        at = names.layer.format(i=i)
        within = {getattr(names, part): (name, part) for part, name in reversed(LAYER_NAMES.items()) if getattr(names, part)}
        for whole in names.fused:
            if whole.parts[0] in fused:
                for part in whole.parts:
                    within.pop(part, None)
                within[whole.tensor] = (fused[whole.parts[0]], "")
        own |= {at + name: (f"blk.{i}.{to}", part) for name, (to, part) in within.items()}
    return own


def architecture_of(file: GgufFile) -> tuple[str, Architecture]:
    """Return the name of a file's architecture and its row. Raises ConfigError for one without a row, and for a part of a file."""
    section = Section(dict(file.metadata), file.path)
    name = section.text("general.architecture")
    if section.whole("split.count", 1, least=0) > 1:
        raise ConfigError("this is one of several files that a model was split into", file=file.path,
                          fix="join them: llama-gguf-split --merge")
    if name not in ARCHITECTURES:
        raise ConfigError(f"the architecture {name!r} is not known", file=file.path, fix=f"known: {', '.join(ARCHITECTURES)}")
    if section.whole(f"{name}.expert_count", 0, least=0):
        raise ConfigError("the model has experts, and files of such models are not read yet", file=file.path,
                          fix="the model's folder (config.json, *.safetensors)")
    return name, ARCHITECTURES[name]


def read_settings(file: GgufFile) -> FamilyConfig:
    """Return the configuration in a file's metadata. Raises ConfigError."""
    name, row = architecture_of(file)
    family, metadata = FAMILIES[row.family], Section(dict(file.metadata), file.path)
    if "token_embd.weight" not in file.entries:
        raise ConfigError("the file has no tensor token_embd.weight, so no model", file=file.path,
                          fix="a file with the weights of a model")
    for setting in _NEEDED:
        metadata.whole(f"{name}.{KEYS[setting]}")
    for key in {**KEYS, **row.keys}.values():
        metadata.get(f"{name}.{key}", "a number", lambda value: isinstance(value, (bool, int, float)) and value >= 0, None)
    metadata.whole(f"{name}.{KEYS['head_dim']}", 1)
    own = {setting: _shortest(value) for setting, key in {**KEYS, **row.keys}.items()
           if (value := metadata.values.get(f"{name}.{key}")) is not None}
    usual = own["hidden_size"] // own["num_attention_heads"]
    if own.setdefault("head_dim", usual) != usual and "head_dim" not in family.settings:
        raise metadata.error(f"{name}.attention.key_length is {own['head_dim']}, and heads of {row.family} have {usual} channels")
    own |= {"vocab_size": file.entries["token_embd.weight"].shape[0], "tie_word_embeddings": "output.weight" not in file.entries}
    own |= {setting: f"blk.0.{tensor}" in file.entries for setting, tensor in BIASES.items()}
    own |= {"eps": next((_shortest(metadata.values[f"{name}.{key}"]) for key in EPS if f"{name}.{key}" in metadata.values), None)}
    if "token_types.weight" in file.entries:
        own["type_vocab_size"] = file.entries["token_types.weight"].shape[0]
    rotated = metadata.whole(f"{name}.rope.dimension_count", own["head_dim"])
    if "partial_rotary_factor" in family.settings:
        own["partial_rotary_factor"] = rotated / own["head_dim"]
    elif rotated != own["head_dim"]:
        raise metadata.error(f"{name}.rope.dimension_count is {rotated}, and {row.family} rotates whole heads of {own['head_dim']}")
    own = {**row.constants(own), **own}
    values = {family.keys.get(setting, setting).split("|")[0]: value for setting, value in own.items()
              if value is not None and setting in family.settings}
    scaling = _rope_scaling(file, metadata, name)
    if scaling and "rope_theta" in family.settings:
        values["rope_scaling"] = scaling
    config = read_family(Section(values, file.path), family)
    return replace(config, names=replace(config.names, transposed=False, fused=tuple(
        replace(fused, transposed=False) for fused in config.names.fused)))


def _shortest(value: Any) -> Any:
    """Return a number that was stored as f32 as its shortest decimal: 1e-6, not 9.99999997e-07."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _rope_scaling(file: GgufFile, metadata: Section, name: str) -> dict[str, Any]:
    """Return the settings of a stretched rotation, as config.json has them; {} for a plain one. Factors of single frequencies are
    tensors: of all lengths (Llama 3.1), or of short and of long texts (Phi 3)."""
    def factors(tensor: str) -> list[float]:
        entry = file.entries[tensor]
        if entry.stored != "F32" or len(entry.shape) != 1:
            raise metadata.error(f"the tensor {tensor} is {entry.stored}{list(entry.shape)}, and a row of F32 is needed")
        return [float(x) for x in file.stored(entry)]

    at = f"{name}.rope.scaling."
    every, long, short = (tensor if tensor in file.entries else "" for tensor in ROPE_FACTORS)
    if every or long:
        longest = {"original_max_position_embeddings": metadata.whole(at + "original_context_length")} if long else {"factor": 1.0}
        magnitude = {"attention_factor": metadata.number(at + "attn_factor")} if metadata.has(at + "attn_factor") else {}
        return {"rope_type": "longrope", "long_factor": factors(long or every), "short_factor": factors(short or every),
                **longest, **magnitude}
    kind = metadata.choice(at + "type", ("none", "linear", "yarn"), "none")
    if kind == "none":
        return {}
    scaling = {"rope_type": kind, "factor": metadata.number(at + "factor")}
    if kind == "yarn" and metadata.has(at + "original_context_length"):
        scaling["original_max_position_embeddings"] = metadata.whole(at + "original_context_length")
    return scaling
