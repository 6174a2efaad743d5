"""frontends/gguf: a model that was written is read as it was; what a file cannot hold, or a reader not know, is refused by name."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.devices.gguf import read_gguf, write_gguf
from tensor_graphs.devices.safetensors import WeightsError
from tensor_graphs.frontends.errors import ConfigError, TokenizerError
from tensor_graphs.frontends.gguf.architectures import ARCHITECTURES
from tensor_graphs.frontends.gguf.model import by_halves, by_neighbours
from tensor_graphs.frontends.gguf.write import write_model
from tensor_graphs.frontends.huggingface.load import model_graph
from tests.models.family_cases import DECODERS, ENCODERS, Case

CASES = [*DECODERS, *ENCODERS]

HELD = {"llama: untied", "llama: llama3, tied, biases", "llama: linear, one kv head, shards", "qwen2: tied", "qwen3: untied",
        "mistral: no window, shards", "gemma: tied", "phi3: untied", "olmo2: untied", "granite: multipliers",
        "cohere2: only windows, biases", "gpt2: tied", "stablelm: untied", "starcoder2: tied"}
REFUSED = {
    "llama: yarn": "its layers would be", "llama: dynamic, head_dim, mlp biases": "its layers would be",
    "mistral: window": "its layers would be Layer.*window=0", "gemma2: caps": "its layers would be",
    "gpt2: scores divided by the layer, gelu": "its layers would be", "bert: relu": "its activation would be gelu",
    "bert: gelu": "its vectors are of length 1", "starcoder2: window, untied, biases": "its layers would be",
    "stablelm: norms of heads, as many kv heads, no biases": "GGUF has no name for model.layers.0.self_attn.k_layernorm",
    "mixtral: two of four": "models of the family mixtral are not written"}


def cases(names: Any) -> list[Any]:
    return [pytest.param(case, id=case.id) for case in CASES if case.id in names]


@pytest.mark.parametrize("case", cases(HELD))
def test_a_written_model_comes_back_with_its_facts_and_its_weights(case: Case, tmp_path: Path) -> None:
    case.write(tmp_path / "folder")
    model = tg.load_model(tmp_path / "folder")
    write_model(model, tmp_path / "m.gguf")
    back = tg.load_model(tmp_path / "m.gguf")
    own, theirs = model.facts, back.facts
    if "llama3" in case.name:                        # a rotation is stored as divisors of frequencies
        own, theirs = (replace(facts, layers=tuple(replace(x, rope=None) for x in facts.layers)) for facts in (own, theirs))
        rope = back.facts.layers[0].rope
        assert rope is not None and rope.short == rope.long and min(rope.short) == pytest.approx(np.pi / 2) and max(rope.short) == 4
    assert own == theirs and list(back.weights) == list(model.weights) and back.tokenizer is None
    for name in model.weights:
        np.testing.assert_allclose(back.weights[name], model.weights[name], rtol=0, atol=2e-7)


def test_the_cases_are_those_of_the_models() -> None:
    assert not {*HELD, *REFUSED} - {case.id for case in CASES}


@pytest.mark.parametrize("case", cases(REFUSED))
def test_a_model_that_a_file_cannot_hold_is_refused_and_nothing_is_written(case: Case, tmp_path: Path) -> None:
    case.write(tmp_path / "folder")
    with pytest.raises(ConfigError, match=REFUSED[case.id]):
        write_model(tg.load_model(tmp_path / "folder"), tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a small Llama."""
    folder = tmp_path_factory.mktemp("gguf")
    next(case for case in CASES if case.id == "llama: untied").write(folder / "folder")
    write_model(tg.load_model(folder / "folder"), folder / "m.gguf")
    return folder / "m.gguf"


def rewritten(path: Path, to: Path, *, without: str = "", extra: str = "", **changes: Any) -> Path:
    """The file with other metadata, without a tensor, or with one more."""
    file = read_gguf(path)
    metadata = {**file.metadata, **{name.replace("__", "."): value for name, value in changes.items()}}
    kinds = {name: (entry.stored, entry.shape) for name, entry in file.entries.items() if name != without}
    kinds |= {extra: ("F32", (1,))} if extra else {}
    write_gguf(to, {k: v for k, v in metadata.items() if v is not None}, kinds,
               lambda name: np.zeros(1, np.float32) if name == extra else file.stored(file.entries[name]))
    return to


@pytest.mark.parametrize(("changes", "error", "message"), [
    ({"general__architecture": "rwkv6"}, ConfigError, "architecture 'rwkv6' is not known.*known: llama, qwen2"),
    ({"general__architecture": None}, ConfigError, "general.architecture is missing"),
    ({"llama__block_count": None}, ConfigError, "llama.block_count is missing"),
    ({"llama__block_count": 0}, ConfigError, "llama.block_count is 0, and a whole number ≥ 1 is needed"),
    ({"llama__block_count": 3}, WeightsError, "tensors are missing: .*layers.2"),
    ({"llama__block_count": 1}, WeightsError, "have no place in a model of the family llama: .*blk.1"),
    ({"llama__embedding_length": 64}, WeightsError, "tensors do not fit its metadata"),
    ({"llama__embedding_length": [1, 2]}, ConfigError, "llama.embedding_length is .*a whole number"),
    ({"llama__expert_count": 8}, ConfigError, "the model has experts"),
    ({"llama__rope__dimension_count": 4}, ConfigError, "rope.dimension_count is 4, and llama rotates whole heads of 8"),
    ({"llama__rope__scaling__type": "cubic"}, ConfigError, "llama.rope.scaling.type is 'cubic'"),
    ({"split__count": 3}, ConfigError, "one of several files"),
    ({"without": "token_embd.weight"}, ConfigError, "no tensor token_embd.weight"),
    ({"without": "blk.1.ffn_up.weight"}, WeightsError, "1 of 21 tensors are missing: model.layers.1.mlp.up_proj.weight"),
    ({"extra": "blk.0.attn_q.scale"}, WeightsError, "1 tensors have no place .*: blk.0.attn_q.scale"),
], ids=str)
def test_a_file_that_makes_no_model_says_why(llama: Path, tmp_path: Path, changes: dict[str, Any], error: type[Exception],
                                             message: str) -> None:
    with pytest.raises(error, match=f"(?s){message}"):
        tg.load_model(rewritten(llama, tmp_path / "m.gguf", **changes))


@pytest.mark.parametrize("precision", ["F16", "BF16", "Q8_0"])
def test_narrower_files_hold_rounded_weights(llama: Path, tmp_path: Path, precision: str) -> None:
    model = tg.load_model(llama)
    write_model(model, tmp_path / "m.gguf", precision=precision)
    back = tg.load_model(tmp_path / "m.gguf")
    assert back.dtype.name == ("bf16" if precision == "BF16" else "f32")
    for name in model.weights:
        exact, rounded = np.asarray(model.weights[name], np.float64), np.asarray(back.values(name), np.float64)
        unit = {"F16": 2.0 ** -11, "BF16": 2.0 ** -8, "Q8_0": 2.0 ** -7}[precision]
        assert np.abs(rounded - exact).max() <= unit * np.abs(exact).max() * (1 if exact.ndim > 1 or precision == "BF16" else 1e-9)
    stored = {entry.stored for entry in read_gguf(tmp_path / "m.gguf").entries.values()}
    assert stored == {"F32", *({"Q8_0", "F16"} if precision == "Q8_0" else {precision})}     # 48 columns are no whole blocks


def test_blocks_are_parameters_of_bytes_that_the_graph_dequantises(llama: Path, tmp_path: Path) -> None:
    write_model(tg.load_model(llama), tmp_path / "m.gguf", precision="Q8_0")
    model, plain = (tg.load_model(tmp_path / "m.gguf", dtype=dtype) for dtype in (None, "float32"))
    assert set(model.formats.values()) == {"Q8_0"} and not plain.formats
    for name, node in model.graph.parameters.items():
        array = model.weights[name]
        assert (array.dtype, array.shape) == (node.dtype.numpy, node.shape), name
        assert (node.dtype is tg.u8) == (name in model.formats)
        np.testing.assert_array_equal(model.values(name), plain.weights[name])          # rows of q and k in their order, too
    assert model_graph(tmp_path / "m.gguf").structural_key == model.graph.structural_key
    assert model_graph(tmp_path / "m.gguf", greedy=True).structural_key == model.greedy_graph.structural_key
    inputs, dims = {"ids": np.array([3, 1, 4, 1, 5], np.int32)}, {"m": 5, "p": 0}
    for of_blocks, of_numbers, output in ((model.graph, plain.graph, "logits"), (model.greedy_graph, plain.greedy_graph, "token")):
        plans = [tg.compile(g, backends=("numpy", "c"), database=":memory:") for g in (of_blocks, of_numbers)]
        assert "block_linear" in str(plans[0]) and "block_linear" not in str(plans[1])
        bound = [tg.bind(plan, m.weights) for plan, m in zip(plans, (model, plain), strict=True)]
        outs = [compiled.run(inputs, dims=dims, session=compiled.session())[output] for compiled in bound]
        np.testing.assert_allclose(*outs, atol=1e-5)


def test_an_unknown_precision_is_refused(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written as 'Q2_K'"):
        write_model(tg.load_model(llama), tmp_path / "m.gguf", precision="Q2_K")


def test_a_file_generates_the_tokens_of_its_folder(llama: Path) -> None:
    graphs = [tg.load_model(source) for source in (llama.parent / "folder", llama)]
    ids = np.array([3, 1, 4, 1, 5], np.int32)
    outputs = [tg.interpret(model.graph, {"ids": ids}, parameters=model.weights, dims={"m": 5, "p": 0}).outputs["logits"]
               for model in graphs]
    np.testing.assert_allclose(outputs[0], outputs[1], atol=1e-5)


def test_random_weights_need_the_metadata_only(llama: Path) -> None:
    model = tg.load_model(llama, random_seed=0)
    assert model.random_seed == 0 and model.graph.parameters.keys() == tg.load_model(llama).graph.parameters.keys()


def test_orders_of_rotated_rows_are_inverse() -> None:
    x = np.arange(24).reshape(12, 2)
    np.testing.assert_array_equal(by_halves(x, 2)[:, 0] // 2, [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11])
    np.testing.assert_array_equal(by_neighbours(by_halves(x, 2), 2), x)


def test_every_architecture_is_of_a_family() -> None:
    from tensor_graphs.frontends.huggingface.families import FAMILIES

    assert all(row.family in FAMILIES for row in ARCHITECTURES.values())


# ---- tokenizers ----

TOKENS = ["<unk>", "<s>", "</s>", "<0x41>", "▁", "a", "b", "ab", "▁ab"]
PIECES = {"tokenizer__ggml__model": "llama", "tokenizer__ggml__tokens": TOKENS, "tokenizer__ggml__scores": [0.0] * 7 + [-1.0, -2.0],
          "tokenizer__ggml__token_type": [2, 3, 3, 6, 1, 1, 1, 1, 1], "tokenizer__ggml__bos_token_id": 1,
          "tokenizer__ggml__eos_token_id": 2, "tokenizer__ggml__unknown_token_id": 0}


def test_a_model_whose_header_is_damaged_loads_or_is_refused_by_name_and_no_memory_is_taken(llama: Path, tmp_path: Path) -> None:
    whole, path, rng = rewritten(llama, tmp_path / "whole.gguf", **PIECES), tmp_path / "m.gguf", np.random.default_rng(0)
    content, data = np.frombuffer(whole.read_bytes(), np.uint8), min(entry.offset for entry in read_gguf(whole).entries.values())
    before, refused = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0
    for _ in range(300):
        damaged = content.copy()
        damaged[rng.integers(4, data, 2)] = rng.integers(0, 256, 2)
        path.write_bytes(damaged.tobytes())
        try:
            tg.load_model(path)
        except tg.TensorGraphsError as error:
            refused += 1
            assert str(path) in str(error) and "\n  fix: " in str(error)
    assert refused > 200 and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000        # kB


def test_pieces_are_merged_by_score(llama: Path, tmp_path: Path) -> None:
    model = tg.load_model(rewritten(llama, tmp_path / "m.gguf", **PIECES))
    assert model.tokenizer is not None and model.end_ids == (2,)
    assert model.tokenizer.encode("ab ab") == [1, 8, 8] and model.tokenizer.encode("aA", special_tokens=False) == [4, 5, 3]
    assert model.tokenizer.decode([1, 8, 8]) == "ab ab"


@pytest.mark.parametrize(("changes", "message"), [
    ({"tokenizer__ggml__model": "rwkv"}, "the tokenizer 'rwkv' is not known"),
    ({"tokenizer__ggml__model": "gpt2", "tokenizer__ggml__pre": "else"}, "the rule 'else' by which texts are cut"),
    ({"tokenizer__ggml__model": "gpt2"}, "tokenizer.ggml.merges is missing"),
    ({"tokenizer__ggml__tokens": [1, 2]}, "tokenizer.ggml.tokens is no list of texts"),
    ({"tokenizer__ggml__scores": [0.0]}, "tokenizer.ggml.scores has 1 entries, and there are 9 tokens"),
    ({"tokenizer__ggml__unknown_token_id": 99}, "the vocabulary makes no tokenizer"),
], ids=str)
def test_a_damaged_vocabulary_is_named(llama: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    model = tg.load_model(rewritten(llama, tmp_path / "m.gguf", **{**PIECES, **changes}))
    with pytest.raises(TokenizerError, match=message):
        model.tokenizer


def test_a_chat_template_comes_along(llama: Path, tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ bos_token }}{{ m.content }}{% endfor %}"
    model = tg.load_model(rewritten(llama, tmp_path / "m.gguf", **PIECES, tokenizer__chat_template=template))
    assert model.tokenizer is not None and model.tokenizer.chat([{"role": "user", "content": "ab"}]) == "<s>ab"
    again = tmp_path / "again.gguf"
    write_model(model, again)
    assert tg.load_model(again).end_ids == model.end_ids == (2,)
    assert tg.load_model(again).tokenizer.template == template                                # type: ignore[union-attr]


def test_a_tokenizer_without_a_place_in_the_format_is_refused(llama: Path, tmp_path: Path) -> None:
    from tokenizers import pre_tokenizers

    model = tg.load_model(rewritten(llama, tmp_path / "m.gguf", **PIECES))
    assert model.tokenizer is not None
    model.tokenizer.splitter.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(TokenizerError, match="GGUF has no tokenizer like this one"):
        write_model(model, tmp_path / "other.gguf")
