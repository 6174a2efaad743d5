"""frontends/text/token_bytes.py: the bytes of tokens, joined, are the text."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from tensor_graphs.frontends.text.token_bytes import byte_level_characters, token_bytes
from tensor_graphs.frontends.text.tokenizer import Tokenizer

TEXT = "Grüße, 😀 w\n\t漢"


def of(model: tokenizers.models.Model, decoder: object) -> Tokenizer:
    splitter = tokenizers.Tokenizer(model)
    if decoder is not None:
        splitter.decoder = decoder
    splitter.add_special_tokens(["<Ö>"])
    return Tokenizer(Path("nowhere"), splitter)


def test_the_byte_level_alphabet_is_the_librarys() -> None:
    assert set(byte_level_characters()) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_level_characters().values()) == list(range(256))
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(TEXT)[0][0]
    assert bytes(byte_level_characters()[c] for c in split) == TEXT.encode()


def test_tokens_of_a_byte_level_vocabulary_join_to_the_text() -> None:
    vocabulary = {**byte_level_characters(), "Ã¼": 256}
    tokenizer = of(models.BPE(vocabulary, merges=[("Ã", "¼")]), decoders.ByteLevel())
    tokenizer.splitter.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ids = tokenizer.encode(TEXT)
    assert 256 in ids and b"".join(token_bytes(tokenizer, i) for i in ids) == TEXT.encode()
    assert token_bytes(tokenizer, 257) == "<Ö>".encode() and token_bytes(tokenizer, 999) == b""


def test_pieces_have_spaces_and_bytes_by_name() -> None:
    vocabulary = {"▁": 0, "▁a": 1, "<0xE6>": 2, "b": 3, "<0xzz>": 4}
    tokenizer = of(models.BPE(vocabulary, merges=[], byte_fallback=True),
                   decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]))
    assert [token_bytes(tokenizer, i) for i in range(6)] == [b" ", b" a", b"\xe6", b"b", b"<0xzz>", "<Ö>".encode()]


@pytest.mark.parametrize(("decoder", "expected"), [(decoders.WordPiece(), [b" play", b"ing"]), (None, [b" play", b" ##ing"])])
def test_words_begin_with_a_space_and_their_continuations_do_not(decoder: object, expected: list[bytes]) -> None:
    tokenizer = of(models.WordLevel({"play": 0, "##ing": 1}, unk_token="play"), decoder)
    assert [token_bytes(tokenizer, i) for i in range(2)] == expected
