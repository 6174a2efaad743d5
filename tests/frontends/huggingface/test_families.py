"""frontends/huggingface/families.py and what reads by its rows: defaults are those of transformers, damage is one clear error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from tensor_graphs.devices.safetensors import WeightsError, open_weights, write_weights
from tensor_graphs.frontends.errors import ConfigError
from tensor_graphs.frontends.huggingface.config import FamilyConfig
from tensor_graphs.frontends.huggingface.families import FAMILIES
from tensor_graphs.frontends.huggingface.folder import read_config
from tensor_graphs.frontends.huggingface.known_models import known_models
from tensor_graphs.frontends.huggingface.load import load_model
from tensor_graphs.language.dtypes import parse_dtype
from tests.cli.command import assert_complains, tg
from tests.models.family_cases import DECODERS

CASES = {case.id: case for case in DECODERS}


def read(folder: Path, config: dict[str, Any]) -> FamilyConfig:
    (folder / "config.json").write_text(json.dumps(config))
    found = read_config(folder)
    assert isinstance(found, FamilyConfig)
    return found


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_what_a_config_leaves_out_is_what_transformers_takes_for_it(kind: str, tmp_path: Path) -> None:
    """A config.json with nothing but its type means the same as one in which transformers has written every value."""
    kind = next(iter(FAMILIES[kind].types), kind)
    theirs = transformers.AutoConfig.for_model(kind)
    whole = {k: v for k, v in theirs.to_dict().items() if k != "dtype"}
    silent, said = read(tmp_path, {"model_type": kind}), read(tmp_path, {**whole, "model_type": kind})
    assert (silent.facts, silent.max_position_embeddings) == (said.facts, said.max_position_embeddings)
    assert silent.facts.vocabulary == theirs.vocab_size


OLDER = {
    "llama: rope_scaling": ("llama", {"rope_theta": 5e5, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 99}},
        {"kind": "llama3", "theta": 5e5, "scaling": 8.0, "original": 99}),
    "qwen2: yarn by its older key": ("qwen2", {"rope_scaling": {
        "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}, {"kind": "yarn", "scaling": 4.0, "high": 32.0}),
    "gpt_neox: rotary_pct": ("gpt_neox", {"rotary_pct": 0.5, "rotary_emb_base": 77}, {"theta": 77.0, "channels": 48}),
    "phi3: su": ("phi3", {"max_position_embeddings": 131072, "rope_scaling": {
        "type": "su", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}}, {"kind": "longrope", "original": 4096}),
}


@pytest.mark.parametrize("case", OLDER)
def test_older_spellings_of_rotations_are_read(case: str, tmp_path: Path) -> None:
    kind, config, expected = OLDER[case]
    rope = read(tmp_path, {"model_type": kind, **config}).facts.layers[0].rope
    assert {name: getattr(rope, name) for name in expected} == expected


REFUSED = {
    "rope type": ({"rope_parameters": {"rope_type": "axial"}},
                  "rope_type is 'axial', which is not supported\n.*\n  fix: supported: default, linear, dynamic, llama3, ya"),
    "no factor": ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling: factor is missing"),
    "short list": ({"model_type": "phi3", "rope_scaling": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
                   "short_factor is .* a list of 48 numbers > 0 is needed"),
    "part of a head": ({"partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 0.5}},
                       "llama rotates whole heads"),
    "heads": ({"hidden_size": 100}, "hidden_size is 100 and num_attention_heads is 32: the first is no multiple"),
    "kv heads": ({"num_key_value_heads": 5}, "num_attention_heads is 32 and num_key_value_heads is 5: the first is no multiple"),
    "activation": ({"hidden_act": "mish"}, "hidden_act is 'mish', which is not supported"),
    "layers": ({"model_type": "qwen3", "layer_types": ["full_attention"]}, "layer_types lists 1 layers, num_hidden_layers says 32"),
    "layer kind": ({"model_type": "qwen3", "num_hidden_layers": 1, "layer_types": ["chunked"]}, "layer_types holds 'chunked'"),
    "experts": ({"model_type": "mixtral", "num_experts_per_tok": 9},
                "num_experts_per_tok is 9 and num_local_experts is 8: the first is at least 1"),
    "quantised": ({"quantization_config": {"bits": 4}}, "quantization_config: quant_method is missing"),
    "text": ({"hidden_size": "4096"}, 'hidden_size is "4096", and a whole number'),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_setting_that_is_wrong_or_not_supported_is_refused(case: str, tmp_path: Path) -> None:
    config, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, {"model_type": "llama", **config})


@pytest.mark.parametrize(("kind", "nearest"), [
    ("llama4", "did you mean llama"), ("qwen2_vl", r"did you mean qwen2\?"), ("phi4flash", "nearest: phi3"),
    ("gemma3n_text", "did you mean gemma3_text"), ("mamba", "known model types: bert, ")])
def test_an_unknown_type_names_the_nearest_rows(kind: str, nearest: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"model type '{kind}' is not known[^$]*{nearest}"):
        read(tmp_path, {"model_type": kind})


# ---- weights ---------------------------------------------------------------------------------------------------------


def written(name: str, folder: Path) -> Path:
    CASES[name].write(folder)
    return folder


def rewrite(folder: Path, change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> None:
    files = open_weights(folder)
    tensors = change({name: np.array(files.array(name)) for name in files.names()})
    write_weights(folder / "model.safetensors", {n: (parse_dtype(a.dtype), a.shape) for n, a in tensors.items()},
                  lambda name: tensors[name])


@pytest.mark.parametrize("name", ["phi3: untied", "gpt2: tied", "mixtral: three of five, stacked, shards", "llama: untied"])
def test_parts_of_a_fused_tensor_are_views_of_the_file(name: str, tmp_path: Path) -> None:
    model = load_model(written(name, tmp_path), max_positions=64)
    for parameter in model.weights:
        assert np.shares_memory(model.weights[parameter], model.weights[parameter]), parameter
        assert not model.weights[parameter].flags.writeable
    assert all(model.weights[parameter].shape == node.shape for parameter, node in model.graph.parameters.items())


DAMAGE: dict[str, tuple[str, Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]], str]] = {
    "missing": ("llama: untied", lambda t: {n: a for n, a in t.items() if "1.mlp" not in n},
                "3 of 21 tensors are missing: model.layers.1.mlp.down_proj.weight"),
    "missing fused": ("phi3: untied", lambda t: {n: a for n, a in t.items() if "0.self_attn.qkv" not in n},
                      "3 of 21 tensors are missing: model.layers.0.self_attn.k_proj.weight"),
    "extra layer": ("llama: untied", lambda t: {**t, **{n.replace("layers.1", "layers.2"): a for n, a in t.items()}},
                    "9 tensors have no place in the model that config.json describes: model.layers.2.input_layernorm.weight"),
    "extra bias": ("llama: untied", lambda t: {**t, "model.layers.0.self_attn.q_proj.bias": np.zeros(32, np.float32)},
                   "1 tensors have no place .*: model.layers.0.self_attn.q_proj.bias"),
    "wrong shape": ("phi3: untied", lambda t: {n: a[:-1] if "1.mlp.gate_up" in n else a for n, a in t.items()},
                    "model.layers.1.mlp.gate_up_proj.weight has shape \\[95, 32\\], and \\[96, 32\\] is needed"),
    "other names": ("llama: untied", lambda t: {f"x{i}": a for i, a in enumerate(t.values())},
                    "0 tensors are named …embed_tokens.weight, and a llama checkpoint has one"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_folder_ends_in_one_clear_screen(case: str, tmp_path: Path) -> None:
    name, change, message = DAMAGE[case]
    rewrite(written(name, tmp_path), change)
    with pytest.raises((WeightsError, ConfigError), match=message):
        load_model(tmp_path)


def test_tg_run_says_it_on_one_screen(tmp_path: Path) -> None:
    name, change, _ = DAMAGE["extra layer"]
    rewrite(written(name, tmp_path), change)
    assert_complains(tg("run", tmp_path, "--ids", "5,6"), "9 tensors have no place in the model", "fix: take config.json and the")
    (tmp_path / "config.json").write_text('{"model_type": "llama", "rope_scaling": {"rope_type": "axial"}}')
    assert_complains(tg("run", tmp_path, "--ids", "5,6"), "rope_type is 'axial'", "fix: supported: default, linear")


def test_older_gpt2_files_have_no_prefix_and_a_mask(tmp_path: Path) -> None:
    whole = load_model(written("gpt2: tied", tmp_path), max_positions=64)
    before = {name: np.array(array) for name, array in whole.weights.items()}
    rewrite(tmp_path, lambda t: {**{n.removeprefix("transformer."): a for n, a in t.items()},
                                 "h.0.attn.bias": np.zeros((1, 1, 4, 4), np.float32)})
    again = load_model(tmp_path, max_positions=64)
    assert all(np.array_equal(again.weights[name], before[name]) for name in before)


def test_every_family_is_listed_with_its_facts() -> None:
    listed = {model.kind: model for model in known_models()}
    assert set(listed) == set(FAMILIES)
    assert "parallel blocks" in listed["cohere2"].said and "8 of 128 experts" in listed["qwen3_moe"].said
    assert all(model.like and len(model.said) >= 3 for model in listed.values())
