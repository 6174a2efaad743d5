"""token_bytes: the bytes that one token adds to a text, from the vocabulary's entry and the tokenizer's decoder."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from tokenizers.decoders import ByteLevel, WordPiece

from tensor_graphs.frontends.text.tokenizer import Tokenizer

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@functools.cache
def byte_level_characters() -> Mapping[str, int]:
    """Return character -> byte of byte-level vocabularies (Radford et al., GPT-2, 2019): a printable Latin-1 character stands for
    its own byte, and the 68 other bytes, in order, are the characters from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{chr(byte): byte for byte in plain}, **{chr(0x100 + i): byte for i, byte in enumerate(others)}}


def token_bytes(tokenizer: Tokenizer, token: int) -> bytes:
    """Return the bytes of a token in the middle of a text; b"" for an id without a token, and for a special token's name its UTF-8.

    Kinds of vocabularies: byte-level; pieces with ▁ for a space and <0xAB> for a byte; WordPiece, where a word's continuation
    begins with ##; plain words.
    """
    splitter = tokenizer.splitter
    text = splitter.id_to_token(token)
    if text is None:
        return b""
    if token in tokenizer.added_ids:
        return str(text).encode()
    decoder = splitter.decoder
    if isinstance(decoder, ByteLevel):
        table = byte_level_characters()
        return bytes(table[c] for c in text) if all(c in table for c in text) else str(text).encode()
    if isinstance(decoder, WordPiece):
        return (text[2:] if text.startswith("##") else " " + text).encode()
    if decoder is None:                              # plain words: the library joins them by spaces
        return (" " + text).encode()
    byte = _BYTE.fullmatch(text)
    return bytes([int(byte[1], 16)]) if byte else text.replace("▁", " ").encode()
