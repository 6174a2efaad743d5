"""tokenizer: converts text to token ids and back, by the tokenizer.json of a model folder or by its older tokenizer files.

The `tokenizers` library splits the text. This module adds the effects of the files next to the vocabulary (lower-casing,
truncation, end ids), decoding token by token without ever showing an incomplete character, and the prompt text of a chat.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.argument_checks import text as text_given
from tensor_graphs.frontends.errors import FolderError, FrontendError, TokenizerError
from tensor_graphs.frontends.huggingface.folder import (
    SentenceConfig,
    read_config,
    read_generation,
    read_sentence,
    sentence_length,
)
from tensor_graphs.frontends.json_settings import parse_json, read_json
from tensor_graphs.frontends.text.byte_level_files import MERGES_FILE, VOCABULARY_FILE, byte_level_class, read_byte_level
from tensor_graphs.frontends.text.chat_template import render
from tensor_graphs.frontends.text.sentencepiece_file import SENTENCEPIECE_FILE, read_sentencepiece
from tensor_graphs.frontends.text.stop_texts import UntilStop
from tensor_graphs.regular_file import read_text

if TYPE_CHECKING:
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Splitter

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_FILES = f"{TOKENIZER_FILE}, {SENTENCEPIECE_FILE}, or {VOCABULARY_FILE} with {MERGES_FILE}"
SETTINGS_FILE = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"

_UNDECODED = "\ufffd"
"""Character that the library returns for bytes that are not (yet) a character."""


class Tokenizer:
    """The tokenizer of one model folder, returned by `load_tokenizer`.

    splitter: the tokenizer of the library `tokenizers`. end_ids: token ids that end a text. max_length: number of tokens, special
    tokens included, that `encode` cuts a text to; None = no limit. prompt: text that `encode` puts before each text
    (sentence-transformers' default prompt; mostly ""). template: of chats. special: role of a special token ("bos_token") -> its
    text.
    """

    def __init__(self, folder: Path, splitter: Splitter, *, end_ids: tuple[int, ...] = (), max_length: int | None = None,
                 prompt: str = "", template: str | None = None, special: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.end_ids = end_ids
        self.max_length = max_length
        self.prompt = prompt
        self.splitter = splitter
        self.template = template
        self.special = dict(special or {})
        self._added = _added_as_text(splitter)

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        return int(self.splitter.get_vocab_size(with_added_tokens=True))

    @cached_property
    def added_ids(self) -> Mapping[int, bool]:
        """Added tokens: id -> True for a special token."""
        return {i: bool(token.special) for i, token in self.splitter.get_added_tokens_decoder().items()}

    def encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`, at most `max_length` of them. special_tokens: add the model's special tokens around the text.

        Raises TokenizerError for a text with half of a surrogate pair, ArgumentError for a value that is no string.
        """
        return self.encode_and_cut(text, special_tokens=special_tokens)[0]

    def encode_and_cut(self, text: str, *, special_tokens: bool = True) -> tuple[list[int], int]:
        """Return (the ids as from `encode`, the number of the text's tokens left out because of `max_length`)."""
        text_given("the text", text)
        try:
            (self.prompt + text).encode()
        except UnicodeEncodeError as error:
            raise TokenizerError(f"the text is not Unicode: character {error.start} is half of a surrogate pair",
                                 fix="decode its bytes as UTF-8 before") from error
        encoding = self.splitter.encode(self.prompt + text, add_special_tokens=special_tokens)
        return list(encoding.ids), sum(rest.special_tokens_mask.count(0) for rest in encoding.overflowing)

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`. Raises TokenizerError for an id that is not in the vocabulary."""
        numbers = self._known(ids)
        if not self._added:
            return str(self.splitter.decode(numbers, skip_special_tokens=skip_special_tokens))
        shown = [i for i in numbers if not (skip_special_tokens and i in self._added and self._added[i].special)]
        runs = groupby(shown, self._added.__contains__)
        return "".join("".join(self._added[i].content for i in run) if is_added else
                       str(self.splitter.decode(list(run), skip_special_tokens=False)) for is_added, run in runs)

    def stream(self, *, skip_special_tokens: bool = True, stop_texts: Sequence[str] = ()) -> StreamingDecoder:
        """Return a decoder that takes one id at a time. stop_texts: the text ends before the first that occurs (`UntilStop`)."""
        return StreamingDecoder(self, skip_special_tokens=skip_special_tokens, stop_texts=stop_texts)

    @property
    def has_chat_template(self) -> bool:
        """True if the folder has a chat template, which `chat` and `encode_chat` need."""
        return self.template is not None

    def chat(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any) -> str:
        """Return the prompt text of a chat, by the folder's template; encode it with `encode_chat` or with special_tokens=False.

        messages: [{"role": "user", "content": "…"}, …]; variables: other variables that the template reads (tools, …). All are
        plain data. Raises TokenizerError for a folder without a template, and for a template that fails, refuses the messages, or
        exceeds a limit (see `chat_template`); ArgumentError for messages of another type.
        """
        if isinstance(messages, str) or not all(isinstance(m, Mapping) for m in messages):
            raise ArgumentError(f"the messages are {messages!r:.80}\n  fix: [{{'role': 'user', 'content': '…'}}, …]")
        if self.template is None:
            raise TokenizerError(
                "the folder has no chat template", file=self.folder, fix=f"encode a plain text, or add {TEMPLATE_FILE}"
            )
        return render(
            self.template,
            self.folder,
            {
                **self.special, "messages": [dict(m) for m in messages], "add_generation_prompt": add_generation_prompt,
                **variables,
            },
        )

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> list[int]:
        """Return the ids of a chat's prompt. The template writes the special tokens, so none are added. Raises as `chat`."""
        return self.encode(self.chat(messages, **variables), special_tokens=False)

    def _known(self, ids: Iterable[int]) -> list[int]:
        numbers = [int(i) for i in ids]
        for i in numbers:
            if not 0 <= i < 2**32 or (i >= self.vocab_size and self.splitter.id_to_token(i) is None):
                raise TokenizerError(
                    f"there is no token {i}", file=self.folder, fix=f"the vocabulary has {self.vocab_size} tokens"
                )
        return numbers


def _added_as_text(splitter: Splitter) -> dict[int, AddedToken]:
    """Return id -> added token for a byte-level vocabulary. The library's decoder reads the Latin-1 characters of an added token as
    bytes, which are no UTF-8 ("Ö" becomes U+FFFD); so these tokens are decoded from their text. Return {} for other vocabularies,
    where spaces between tokens depend on both neighbours."""
    from tokenizers.decoders import ByteLevel

    return splitter.get_added_tokens_decoder() if isinstance(splitter.decoder, ByteLevel) else {}


class StreamingDecoder:
    """Decoder of ids that arrive one by one: `push` each, `finish` at the end.

    The returned pieces, joined, are the decoding of all ids together, up to the first stop text if there are any. A character whose
    bytes are in several tokens appears with the last of them. Where the ids are no valid UTF-8, replacement characters appear once
    no further token can complete a character.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, stop_texts: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._until = UntilStop(stop_texts)
        self._window: list[int] = []  # the last tokens shown, whose end decides on spaces, then those not yet shown
        self._clean = 0  # how many tokens of the window are shown whole
        self._shown = ""  # the text of the window that has been returned

    @property
    def stopped(self) -> bool:
        """True once a stop text has occurred; no more text follows."""
        return self._until.stopped

    def push(self, token: int) -> str:
        """Return the text that became certain with this token; often "", while a character is incomplete."""
        return self._until.push(self._decoded(token))

    def _decoded(self, token: int) -> str:
        """Return the text that became certain with this token, before the search for stop texts."""
        self._window += self._tokenizer._known([token])
        text = self._decode(self._window)
        settled = text.rstrip(_UNDECODED)
        waiting = len(self._window) - self._clean
        # a character has at most 4 bytes: five tokens that end in four undecodable ones are not the start of one
        if settled != text and (waiting <= 4 or len(text) - len(settled) < 4):
            if not settled.startswith(self._shown):  # a run of byte tokens shows nothing until it is whole
                return ""
            new, self._shown = settled[len(self._shown) :], settled
            return new
        new = self._rest(text)
        if new:  # else the window would lose its last visible token
            self._window = self._window[self._clean :]
        self._clean = len(self._window)
        self._shown = self._decode(self._window)
        return new

    def finish(self) -> str:
        """Return the text that was held back, an incomplete character as U+FFFD, and reset the decoder."""
        new = self._until.finish(self._rest(self._decode(self._window)))
        self._window, self._clean, self._shown = [], 0, ""
        self._until = UntilStop(self._until.stop_texts)
        return new

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip) if ids else ""

    def _rest(self, text: str) -> str:
        """Return the text of the window not returned yet; if bad bytes changed returned text, the text of the new tokens."""
        return text[len(self._shown) :] if text.startswith(self._shown) else self._decode(self._window[self._clean :])


@dataclass(frozen=True, slots=True)
class _Settings:
    """The settings in tokenizer_config.json and the files next to it."""

    values: dict[str, Any]
    special: dict[str, str]
    template: str | None


def tokenizer_file(folder: Path) -> Path | None:
    """Return the file that a folder's tokenizer is read from: tokenizer.json, else an older file; None without any."""
    forms = ((TOKENIZER_FILE,), (SENTENCEPIECE_FILE,), (VOCABULARY_FILE, MERGES_FILE))
    return next((folder / names[0] for names in forms if all((folder / name).is_file() for name in names)), None)


def load_tokenizer(folder: str | os.PathLike[str], *, positions: int | None = None) -> Tokenizer:
    """Return the tokenizer of a model folder.

    Padding and truncation stored in tokenizer.json are switched off. In a sentence-transformers folder a text is cut at
    max_seq_length (else at the limit of tokenizer and model), and lower-cased if its settings request that. positions: for an
    encoder, its number of positions, at which texts are cut in a folder of any kind; None: texts are not cut. A BERT's
    tokenizer_config.json decides on case, accents and Chinese characters. Raises TokenizerError, FolderError, ConfigError.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FolderError("there is no such folder", file=folder)
    path = tokenizer_file(folder)
    if path is None:
        raise TokenizerError(
            f"the folder has no tokenizer ({TOKENIZER_FILES}), so text cannot become tokens", file=folder,
            fix="give token ids instead: --ids 2,9259,10; or save the tokenizer into it: tokenizer.save_pretrained(folder)")
    settings = _settings(folder)
    if path.name == TOKENIZER_FILE:
        splitter = _read_fast(path)
    else:
        splitter, settings = _read_older(path, settings)
    splitter.no_padding()
    splitter.no_truncation()
    _bert_normalizer(splitter, settings.values)
    max_length, prompt = _sentence(folder, splitter, settings.values, positions)
    return Tokenizer(folder, splitter, end_ids=_end_ids(folder, splitter, settings), max_length=max_length, prompt=prompt,
                     template=settings.template, special=settings.special)


def _read_fast(path: Path) -> Splitter:
    from tokenizers import Tokenizer as Splitter  # 0.05 s, and only folders with text need it

    try:
        return Splitter.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        try:
            parse_json(path)
        except FrontendError:
            raise TokenizerError(f"{TOKENIZER_FILE} cannot be read: {error}", file=path) from error
        raise TokenizerError(f"{TOKENIZER_FILE} is valid JSON, but no tokenizer that the library tokenizers reads", file=path,
                             fix="save it anew: tokenizer.save_pretrained(folder)") from error


def _read_older(path: Path, settings: _Settings) -> tuple[Splitter, _Settings]:
    """Return (tokenizer, settings) of a folder with tokenizer.model, or with vocab.json and merges.txt. Special tokens that the
    folder does not name are those of the tokenizer's class or of its model file.

    Defaults for tokenizer_config.json are those of the tokenizer.json that is published for such folders: with tokenizer.model a
    text begins with bos_token, and a space is put before each piece of text between special tokens (`legacy`).
    """
    values, by_pieces = settings.values, path.name == SENTENCEPIECE_FILE

    def flag(key: str, default: bool) -> bool:
        return default if values.get(key) is None else bool(values[key])

    if by_pieces:
        model = read_sentencepiece(path)
        try:
            splitter, around = model.splitter(first_only=not flag("legacy", True)), False
        except Exception as error:  # the library raises Exception itself
            raise TokenizerError(f"{path.name} makes no tokenizer: {error}", file=path, fix="download the file again") from error
        usual = {key: text for key, text in (("bos_token", model.bos), ("eos_token", model.eos)) if text is not None}
    else:
        row = byte_level_class(path.parent, values)
        splitter, around = read_byte_level(path.parent, row, flag("add_prefix_space", False)), row.around
        usual = dict(row.special)
    special = {**usual, **settings.special}
    _add_tokens(splitter, path.parent, values, special)
    before = "cls_token" if around else "bos_token" if flag("add_bos_token", by_pieces) else ""
    after = "sep_token" if around else "eos_token" if flag("add_eos_token", False) else ""
    put_around(splitter, special.get(before), special.get(after), path)
    return splitter, replace(settings, special=special)


def _add_tokens(splitter: Splitter, folder: Path, values: Mapping[str, Any], special: Mapping[str, str]) -> None:
    """Add the tokens listed in tokenizer_config.json (else in added_tokens.json) with their ids, and mark the special tokens in the
    vocabulary. Raises TokenizerError for an id that is not the next one."""
    from tokenizers import AddedToken

    path = folder / "added_tokens.json"
    listed = values.get("added_tokens_decoder")
    if not isinstance(listed, dict):
        older = read_json(path) if path.is_file() else {}
        listed = {str(i): {"content": text, "special": text in special.values()} for text, i in older.items()}
    else:
        path = folder / SETTINGS_FILE
    try:
        tokens = sorted((int(i), dict(token)) for i, token in listed.items())
        for i, token in tokens:
            flags = {k: bool(token[k]) for k in ("single_word", "lstrip", "rstrip", "normalized", "special") if k in token}
            splitter.add_tokens([AddedToken(token["content"], **{"normalized": not flags.get("special"), **flags})])
            if splitter.token_to_id(token["content"]) != i:
                raise TokenizerError(f"the added token {token['content']!r} has the id {i}, and the vocabulary "
                                     f"{splitter.token_to_id(token['content'])} for it", file=path, fix="download the folder again")
    except (ValueError, TypeError, KeyError) as error:
        raise TokenizerError(f"the added tokens are no list of ids and tokens: {error}", file=path) from error
    more = values.get("additional_special_tokens") or values.get("extra_special_tokens")
    named = [*special.values(), *(text for text in (more if isinstance(more, list) else ()) if isinstance(text, str))]
    splitter.add_special_tokens([text for text in named if splitter.token_to_id(text) is not None])


def put_around(splitter: Splitter, before: str | None, after: str | None, path: Path) -> None:
    """Let each text begin and end with a token (None: without). Raises TokenizerError for a token that is not in the vocabulary."""
    from tokenizers.processors import TemplateProcessing

    used = [text for text in (before, after) if text is not None]
    missing = next((text for text in used if splitter.token_to_id(text) is None), None)
    if missing is not None:
        raise TokenizerError(f"a text has {missing!r} around it, and the vocabulary has no such token", file=path,
                             fix=f"name its tokens in {SETTINGS_FILE}: bos_token, eos_token")
    if used:
        single = [*([before] if before else []), "$A", *([after] if after else [])]
        splitter.post_processor = TemplateProcessing(single=single, special_tokens=[(text, splitter.token_to_id(text))
                                                                                    for text in dict.fromkeys(used)])


def _settings(folder: Path) -> _Settings:
    path = folder / SETTINGS_FILE
    values = read_json(path) if path.is_file() else {}
    older = folder / "special_tokens_map.json"
    named = {**(read_json(older) if older.is_file() else {}), **values}
    special = {}
    for key, value in named.items():
        content = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(content, str):
            special[key] = content
    return _Settings(values, special, _template(folder, values))


MOST_TEMPLATE = 1 << 22
"""Largest size of a chat template in bytes."""


def _template(folder: Path, values: Mapping[str, Any]) -> str | None:
    """Return the chat template: in a file of its own, else in tokenizer_config.json (a string, or "default" in a list)."""
    path = folder / TEMPLATE_FILE
    if path.is_file():
        try:
            return read_text(path, MOST_TEMPLATE)
        except OSError as error:
            raise TokenizerError(f"cannot read the chat template: {error.strerror}", file=path) from error
        except UnicodeDecodeError as error:
            raise TokenizerError(f"the chat template is not UTF-8 text (byte {error.start})", file=path) from error
    template = values.get("chat_template")
    if isinstance(template, list):
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default")
        if template is None:
            raise TokenizerError(f"chat_template lists {', '.join(map(str, named)) or 'nothing'}, and no template named 'default'",
                                 file=folder / SETTINGS_FILE)
    if template is not None and not isinstance(template, str):
        raise TokenizerError("chat_template is neither a text nor a list of named texts", file=folder / SETTINGS_FILE)
    return template


def _bert_normalizer(splitter: Splitter, values: Mapping[str, Any]) -> None:
    """Apply tokenizer_config.json to a BERT's normalizer, as transformers does; keys that it lacks keep tokenizer.json's values."""
    from tokenizers.normalizers import BertNormalizer

    normalizer = splitter.normalizer
    if not isinstance(normalizer, BertNormalizer) or not str(values.get("tokenizer_class", "")).startswith("BertTokenizer"):
        return
    for key, attribute in (
        ("do_lower_case", "lowercase"),
        ("strip_accents", "strip_accents"),
        ("tokenize_chinese_chars", "handle_chinese_chars"),
    ):
        if key in values:
            setattr(normalizer, attribute, values[key])
    splitter.normalizer = normalizer


def _sentence(folder: Path, splitter: Splitter, values: Mapping[str, Any], positions: int | None) -> tuple[int | None, str]:
    """Return (max_length, prompt) of an encoder's folder, and switch on truncation and lower-casing; else (None, "")."""
    from tokenizers import normalizers

    sentence = read_sentence(folder)
    if sentence is None and positions is None:
        return None, ""
    sentence = sentence or SentenceConfig("mean", False, 0, sentence_length(folder), False, "")
    takes = read_config(folder).max_position_embeddings if positions is None else positions
    declared, around = values.get("model_max_length"), splitter.num_special_tokens_to_add(False)
    if sentence.max_seq_length is not None:
        longest = min(sentence.max_seq_length, takes)
    else:
        longest = int(min(takes, declared)) if isinstance(declared, (int, float)) and not isinstance(declared, bool) else takes
    if longest < around:
        raise TokenizerError(f"a text is cut at {longest} tokens, and the special tokens alone take {around}", file=folder,
                             fix=f"model_max_length in {SETTINGS_FILE}, or more positions")
    splitter.enable_truncation(longest, direction=str(values.get("truncation_side", "right")))
    if sentence.do_lower_case:
        before = splitter.normalizer
        splitter.normalizer = normalizers.Sequence([normalizers.Lowercase(), *([before] if before else [])])
    return longest, sentence.prompt


def _end_ids(folder: Path, splitter: Splitter, settings: _Settings) -> tuple[int, ...]:
    """Return eos_token_id of generation_config.json, else of config.json; else the id of tokenizer_config.json's eos_token."""
    ids = read_generation(folder).eos_token_ids
    if ids or "eos_token" not in settings.special:
        return ids
    end = splitter.token_to_id(settings.special["eos_token"])
    return () if end is None else (int(end),)
