"""sentencepiece_file: converts tokenizer.model, a SentencePiece file, to a tokenizer of the `tokenizers` library.

The file is a protocol buffer, ModelProto of sentencepiece_model.proto (Apache 2.0, github.com/google/sentencepiece): pieces with
scores and types, training settings, and text normalisation. Only the fields that affect ids are read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensor_graphs.frontends.errors import TokenizerError
from tensor_graphs.regular_file import read_regular

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Splitter

SENTENCEPIECE_FILE = "tokenizer.model"
MOST_BYTES = 1 << 26
"""Largest size of a model in bytes; Gemma 3's, of 262,144 pieces, has 4.7 MB."""

UNIGRAM, BPE = 1, 2
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
SPACE = "▁"

_FIX = "tokenizer.json, which AutoTokenizer.from_pretrained(folder).save_pretrained(folder) of transformers writes"


@dataclass(frozen=True)
class Piece:
    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class SentencePiece:
    """The model in one file. kind: UNIGRAM or BPE. unknown: id of the piece for text that no piece covers. bos, eos: texts of their
    pieces, None where there is none. characters: table by which characters are normalised (b"": none). dummy_prefix: put a space
    before a text. trims_spaces: remove spaces around a text, and replace several spaces by one."""

    pieces: tuple[Piece, ...]
    kind: int
    byte_fallback: bool
    unknown: int
    bos: str | None
    eos: str | None
    characters: bytes
    dummy_prefix: bool
    trims_spaces: bool

    def splitter(self, first_only: bool) -> Splitter:
        """Return the tokenizer. first_only: put the space before the text only, not after each special token too."""
        from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers

        splitter = Tokenizer(self._model())
        steps: list[Any] = [normalizers.Precompiled(self.characters)] if self.characters else []
        if self.trims_spaces:
            steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
        if self.dummy_prefix and first_only:
            splitter.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="first", split=False)
        else:
            steps += [normalizers.Prepend(SPACE)] if self.dummy_prefix else []
            steps.append(normalizers.Replace(" ", SPACE))
        splitter.normalizer = normalizers.Sequence(steps)
        back: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        splitter.decoder = decoders.Sequence([*back, *([decoders.Strip(" ", 1, 0)] if self.dummy_prefix else [])])
        splitter.add_tokens([AddedToken(piece.text, normalized=False, special=piece.kind != USER_DEFINED)
                         for piece in self.pieces if piece.kind in (UNKNOWN, CONTROL, USER_DEFINED)])
        return splitter

    def _model(self) -> Any:
        from tokenizers import models

        if self.kind == UNIGRAM:
            return models.Unigram([(piece.text, piece.score) for piece in self.pieces], self.unknown, self.byte_fallback)
        ids = {piece.text: i for i, piece in enumerate(self.pieces)}
        return models.BPE(ids, self._merges(), unk_token=self.pieces[self.unknown].text, fuse_unk=True,
                          byte_fallback=self.byte_fallback)

    def _merges(self) -> list[tuple[str, str]]:
        """Return the pairs of pieces that together are a piece, by descending score of that piece: SentencePiece merges the
        neighbours whose piece has the largest score."""
        normal = {piece.text: i for i, piece in enumerate(self.pieces) if piece.kind == NORMAL}
        ranked = sorted(normal.items(), key=lambda item: (-self.pieces[item[1]].score, item[1]))
        return [(text[:at], text[at:]) for text, _ in ranked for at in range(1, len(text))
                if text[:at] in normal and text[at:] in normal]


def read_sentencepiece(path: Path) -> SentencePiece:
    """Return the model in a file. Raises TokenizerError for a file that cannot be read, is no SentencePiece model, or has a model
    of a kind that is not supported."""
    try:
        data = read_regular(path, MOST_BYTES)
    except OSError as error:
        raise TokenizerError(f"cannot read the tokenizer: {error.strerror}", file=path) from error
    try:
        top = _fields(data)
        trainer, normalizer = (_fields(top.get(number, [b""])[-1]) for number in (2, 3))
        pieces = tuple(_piece(_fields(piece)) for piece in top.get(1, ()))
        model = SentencePiece(
            pieces, kind=_last(trainer, 3, UNIGRAM), byte_fallback=bool(_last(trainer, 35, 0)), unknown=_last(trainer, 40, 0),
            bos=_special(pieces, trainer, 41, 1), eos=_special(pieces, trainer, 42, 2), characters=_last(normalizer, 2, b""),
            dummy_prefix=bool(_last(normalizer, 3, 1)), trims_spaces=bool(_last(normalizer, 4, 1)))
        if not 0 <= model.unknown < len(pieces):
            raise ValueError("no piece for what is unknown")
    except (ValueError, TypeError, IndexError, struct.error) as error:
        raise TokenizerError("the file is no model of SentencePiece (Llama 3 calls a file of tiktoken by the same name), or it is "
                             "damaged", file=path, fix=_FIX) from error
    if model.kind not in (UNIGRAM, BPE) or _last(trainer, 24, 0) or not _last(normalizer, 5, 1):
        raise TokenizerError("the model of SentencePiece is of a kind that is not supported: neither BPE nor Unigram, or with "
                             "spaces behind words or as they are", file=path, fix=_FIX)
    return model


def _piece(fields: dict[int, list[Any]]) -> Piece:
    return Piece(_last(fields, 1, b"").decode(), struct.unpack("<f", _last(fields, 2, bytes(4)))[0], _last(fields, 3, NORMAL))


def _special(pieces: tuple[Piece, ...], trainer: dict[int, list[Any]], number: int, default: int) -> str | None:
    """Return the text of a control piece. number: the field that holds its id."""
    at = _last(trainer, number, default)
    return pieces[at].text if 0 <= at < len(pieces) and pieces[at].kind == CONTROL else None


def _last(fields: dict[int, list[Any]], number: int, default: Any) -> Any:
    """Return the last value of a field, which is the valid one. Raises TypeError where it and the default have different types."""
    value = fields.get(number, [default])[-1]
    if type(value) is not type(default):
        raise TypeError(f"field {number} is {value!r:.40}")
    return value


def _fields(data: bytes) -> dict[int, list[Any]]:
    """Return field number -> values, in a protocol buffer message: whole numbers, or bytes for all other types."""
    out: dict[int, list[Any]] = {}
    for number, value in _values(data):
        out.setdefault(number, []).append(value)
    return out


def _values(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (field number, value). Source of the format: protobuf.dev/programming-guides/encoding. Raises ValueError."""
    at = 0

    def whole() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            value, at, shift = value | (byte & 127) << shift, at + 1, shift + 7
            if byte < 128:
                return value - (1 << 64) if value >> 63 else value
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    while at < len(data):
        number, kind = divmod(whole(), 8)
        if kind == 0:
            yield number, whole()
            continue
        size = {1: 8, 5: 4}[kind] if kind in (1, 5) else whole() if kind == 2 else -1
        if not 0 <= size <= len(data) - at:
            raise ValueError("a field that ends behind the file, or of an unknown kind")
        yield number, data[at : at + size]
        at += size
