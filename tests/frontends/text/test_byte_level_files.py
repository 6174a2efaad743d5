"""frontends/text/byte_level_files.py: ids of vocab.json and merges.txt are those of transformers' tokenizers of the named class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from tensor_graphs.frontends.errors import TokenizerError
from tensor_graphs.frontends.text.tokenizer import load_tokenizer
from tests.frontends.text.test_tokenizer import SENTENCES

END = "<|endoftext|>"
SPECIAL = {"GPT2": [END], "Qwen2": [END], "Roberta": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]}


def folder_of(path: Path, special: list[str], config: dict[str, Any] | None = None, **settings: Any) -> Path:
    """A folder with a vocabulary of 400 tokens in the two files."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.train_from_iterator(SENTENCES, trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=special, show_progress=False))
    made.model.save(str(path))
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("settings", [{}, {"add_bos_token": True, "bos_token": "<s>"}, {"add_prefix_space": True}, {
    "added_tokens_decoder": {"400": {"content": "<|im_start|>", "special": True}, "401": {"content": "<tool>", "special": False}}}],
    ids=lambda settings: next(iter(settings), "plain"))
@pytest.mark.parametrize("kind", SPECIAL)
def test_ids_and_texts_are_those_of_transformers(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    if kind != "Roberta" and "bos_token" in settings:
        settings = {**settings, "bos_token": END}
    folder = folder_of(tmp_path, SPECIAL[kind], tokenizer_class=f"{kind}Tokenizer", **settings)
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    for text in [*SENTENCES, f"a{SPECIAL[kind][0]} b<|im_start|>user <tool>", "1234 I'm I'LL x\r\n\n y"]:
        ids = ours.encode(text)
        assert ids == theirs.encode(text), text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.end_ids == (theirs.eos_token_id,)


@pytest.mark.parametrize(("model_type", "named"), [
    ("gpt2", "GPT2Tokenizer"), ("qwen3", "Qwen2TokenizerFast"), ("roberta", "RobertaTokenizer")])
def test_a_folder_that_names_no_class_has_that_of_its_model_type(model_type: str, named: str, tmp_path: Path) -> None:
    special = SPECIAL["Roberta" if model_type == "roberta" else "GPT2"]
    (tmp_path / "by type").mkdir()
    (tmp_path / "by class").mkdir()
    by_type = load_tokenizer(folder_of(tmp_path / "by type", special, {"model_type": model_type}))
    by_class = load_tokenizer(folder_of(tmp_path / "by class", special, tokenizer_class=named))
    assert [by_type.encode(text) for text in SENTENCES] == [by_class.encode(text) for text in SENTENCES]


@pytest.mark.parametrize(("config", "settings", "complaint"), [
    ({"model_type": "llama"}, {}, "for the model type 'llama' no tokenizer class is known"),
    ({"model_type": "gpt2"}, {"tokenizer_class": "WhisperTokenizer"}, "the tokenizer class WhisperTokenizer is not known")])
def test_a_class_that_is_not_known_is_refused_with_those_that_are(
    config: dict[str, Any], settings: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(TokenizerError, match=rf"{complaint}[\s\S]*fix: .*GPT2Tokenizer, Qwen2.*, CLIPTokenizer; or"):
        load_tokenizer(folder_of(tmp_path, [END], config, **settings))


@pytest.mark.parametrize(("file", "text", "complaint"), [
    ("merges.txt", "#version: 0.2\na b c\n", "the line 'a b c' is no pair of tokens"),
    ("merges.txt", "a \ud800".encode("utf-8", "surrogatepass").decode("latin-1") + "\n", "merges"),
    ("merges.txt", "nothing here\n", "the merges do not fit the vocabulary"),
    ("vocab.json", '{"a": "b"}', "the vocabulary does not map tokens to ids"),
    ("vocab.json", '{"a": -1}', "the vocabulary does not map tokens to ids"),
    ("vocab.json", '{"a": 0}', "the merges do not fit the vocabulary")])
def test_damaged_files_are_named(file: str, text: str, complaint: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, [END], tokenizer_class="GPT2Tokenizer")
    (folder / file).write_text(text)
    with pytest.raises(TokenizerError, match=complaint):
        load_tokenizer(folder)


def test_a_token_around_each_text_that_the_vocabulary_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"a text has '<s>' around it, and the vocabulary has no such token"):
        load_tokenizer(folder_of(tmp_path, [END], tokenizer_class="RobertaTokenizer"))
