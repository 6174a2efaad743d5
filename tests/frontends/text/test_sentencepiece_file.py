"""frontends/text/sentencepiece_file.py: ids of small models are those of SentencePiece's algorithms, and of transformers.

The models are written here, field by field. The oracles: BPE merges the neighbours whose piece has the largest score, leftmost
first; Unigram takes the pieces whose scores have the largest sum (Kudo and Richardson, SentencePiece, EMNLP 2018).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import GemmaTokenizer, LlamaTokenizer

from tensor_graphs.frontends.errors import TokenizerError
from tensor_graphs.frontends.huggingface.folder import write_gemma3_folder
from tensor_graphs.frontends.huggingface.load import load_model
from tensor_graphs.frontends.text.tokenizer import Tokenizer, load_tokenizer
from tests.cli.command import TINY

BYTES = [f"<0x{b:02X}>" for b in range(256)]
MERGED = ["th", "▁t", "the", "▁the", "er", "in", "▁a", "▁▁", "he", "▁in", "11", "▁the▁"]
SINGLE = ["▁", *"abcdehinrstT1.,", "é"]
LLAMA = ["<unk>", "<s>", "</s>", *BYTES, *MERGED, *SINGLE]
GEMMA = ["<pad>", "<eos>", "<bos>", "<unk>", "<turn>", *BYTES, *MERGED, *SINGLE]
KINDS = {"<unk>": 2, "<s>": 3, "</s>": 3, "<pad>": 3, "<eos>": 3, "<bos>": 3, "<turn>": 4, **dict.fromkeys(BYTES, 6)}
TEXTS = ["the theatre in there", "Then,  the é字😀 1111 in\n\nthe", "a", "", "in the  ", "<0x0A> the", "hinder. the the the"]


def number(value: int) -> bytes:
    """A whole number of protocol buffers."""
    out = bytearray()
    value %= 1 << 64
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def message(*fields: tuple[int, int | float | bytes]) -> bytes:
    out = b""
    for at, value in fields:
        if isinstance(value, float):
            out += number(at << 3 | 5) + struct.pack("<f", value)
        else:
            out += number(at << 3) + number(value) if isinstance(value, int) else number(at << 3 | 2) + number(len(value)) + value
    return out


def model(pieces: Sequence[str], scores: Sequence[float], trainer: bytes, normalizer: bytes) -> bytes:
    made = [(1, message((1, p.encode()), (2, float(s)), (3, KINDS.get(p, 1)))) for p, s in zip(pieces, scores, strict=True)]
    return message(*made, (2, trainer), (3, normalizer))


def scores(pieces: Sequence[str]) -> list[float]:
    """Of BPE: minus the rank of a merged piece; single characters come after all of them."""
    return [-float(MERGED.index(p)) if p in MERGED else -float(len(MERGED) + i) if KINDS.get(p, 1) == 1 else 0.0
            for i, p in enumerate(pieces)]


MODELS = {
    "llama": model(LLAMA, scores(LLAMA), message((3, 2), (35, 1)), message((4, 0))),
    "gemma": model(GEMMA, scores(GEMMA), message((3, 2), (35, 1), (40, 3), (41, 2), (42, 1), (43, 0)), message((3, 0), (4, 0))),
}


def folder_of(path: Path, data: bytes, **settings: object) -> Path:
    path.mkdir(exist_ok=True)
    (path / "tokenizer.model").write_bytes(data)
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    folder = tmp_path_factory.mktemp("models")
    return {name: load_tokenizer(folder_of(folder / name, data)) for name, data in MODELS.items()}


def by_bytes(pieces: Sequence[str], parts: Sequence[str]) -> list[int]:
    """Ids of parts of a text; those that are no piece by their bytes."""
    ids = {p: i for i, p in enumerate(pieces)}
    return [i for part in parts for i in ([ids[part]] if part in ids else [ids[BYTES[b]] for b in part.encode()])]


def byte_pair_encoding(pieces: Sequence[str], text: str) -> list[int]:
    rank = {p: MERGED.index(p) for p in pieces if p in MERGED}
    parts = list(text.replace(" ", "▁"))
    while True:
        pairs = [(rank[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in rank]
        if not pairs:
            return by_bytes(pieces, parts)
        _, i = min(pairs)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


@given(text=st.text("the in1.é字", max_size=14))
def test_byte_pairs_merge_in_the_order_of_their_scores(made: dict[str, Tokenizer], text: str) -> None:
    assert made["llama"].encode(text, special_tokens=False) == byte_pair_encoding(LLAMA, f" {text}" if text else "")
    assert made["gemma"].encode(text) == [2, *byte_pair_encoding(GEMMA, text)]
    assert made["gemma"].decode(made["gemma"].encode(text)) == text == made["llama"].decode(made["llama"].encode(text))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("legacy", [True, False])
@pytest.mark.parametrize("bos", [True, False])
def test_ids_are_those_of_transformers(name: str, legacy: bool, bos: bool, tmp_path: Path) -> None:
    pieces, kind = (LLAMA, LlamaTokenizer) if name == "llama" else (GEMMA, GemmaTokenizer)
    ours = load_tokenizer(folder_of(tmp_path, MODELS[name], legacy=legacy, add_bos_token=bos, add_eos_token=not bos))
    merges = [(p[:at], p[at:]) for p in MERGED for at in range(1, len(p)) if p[:at] in pieces and p[at:] in pieces]
    theirs = kind(vocab={p: i for i, p in enumerate(pieces)}, merges=merges, legacy=legacy, add_bos_token=bos,
                  add_eos_token=not bos)
    begin, end = theirs.bos_token, theirs.eos_token
    for text in [*TEXTS, f"the{begin}the in{end}the"]:
        ids = ours.encode(text)
        assert ids == theirs.encode(text), text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.end_ids == (theirs.eos_token_id,)


def test_a_model_folder_with_a_tokenizer_model_takes_text(tmp_path: Path) -> None:
    """A setting of null is one that the folder leaves open."""
    write_gemma3_folder(tmp_path / "gemma", TINY, seed=0)
    loaded = load_model(folder_of(tmp_path / "gemma", MODELS["gemma"], add_bos_token=None, legacy=None))
    assert loaded.tokenizer is not None and loaded.tokenizer.encode("the") == [2, GEMMA.index("the")]
    settings = {"bos_token": "<s>", "add_bos_token": None, "legacy": None, "add_eos_token": None}
    llama = load_tokenizer(folder_of(tmp_path / "llama", MODELS["llama"], **settings))
    assert llama.encode("a</s>a") == [1, LLAMA.index("▁a"), 2, LLAMA.index("▁a")]


def test_a_space_at_the_beginning_stays_beside_the_one_that_is_put_there(made: dict[str, Tokenizer]) -> None:
    """As SentencePiece does it, and the tokenizer.json that is published for Llama 2."""
    assert made["llama"].encode(" a", special_tokens=False) == [LLAMA.index("▁"), LLAMA.index("▁a")]
    assert made["gemma"].encode("the<turn>in")[1:] == [GEMMA.index("the"), GEMMA.index("<turn>"), GEMMA.index("in")]


def unigram(pieces: dict[str, float], text: str) -> float:
    """The largest sum of scores of pieces that make the text."""
    @cache
    def best(end: int) -> float:
        sums = (best(end - len(p)) + s for p, s in pieces.items() if text[:end].endswith(p))
        return max(sums, default=float("-inf")) if end else 0.0

    return best(len(text))


@given(text=st.text("abc ", max_size=12))
def test_unigram_takes_the_pieces_of_the_largest_sum_and_one_space_between_words(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pieces = {"▁": -3.1, "a": -2.3, "b": -2.9, "c": -3.7, "ab": -3.3, "▁a": -4.6, "bc": -5.9, "abc": -7.7, "▁c": -5.2, "ca": -6.1}
    names = ["<unk>", "<s>", "</s>", *pieces]
    data = model(names, [0.0] * 3 + list(pieces.values()), message((3, 1)), b"")
    ours = load_tokenizer(folder_of(tmp_path_factory.mktemp("unigram"), data, add_bos_token=False))
    parts = [names[i] for i in ours.encode(text)]
    words = " ".join(text.split())
    assert "".join(parts) == (f"▁{words.replace(' ', '▁')}" if words else "")
    assert sum(pieces[p] for p in parts) == pytest.approx(unigram(pieces, "".join(parts)))
    assert ours.decode(ours.encode(text)) == words


def test_tokens_that_a_folder_adds_stand_behind_the_pieces(tmp_path: Path) -> None:
    added = {str(len(LLAMA)): {"content": "<|end|>", "special": True},
             str(len(LLAMA) + 1): {"content": "in the", "special": False, "normalized": False}}
    ours = load_tokenizer(folder_of(tmp_path, MODELS["llama"], added_tokens_decoder=added, eos_token="<|end|>"))
    ids = ours.encode("the<|end|>in the")
    assert ids == [1, LLAMA.index("▁the"), len(LLAMA), len(LLAMA) + 1] and ours.end_ids == (len(LLAMA),)
    assert ours.decode(ids) == "thein the"
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<pad>": len(LLAMA)}))
    assert load_tokenizer(tmp_path).encode("<pad>") == [1, len(LLAMA)]
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<pad>": 7}))
    with pytest.raises(TokenizerError, match=rf"the added token '<pad>' has the id 7, and the vocabulary {len(LLAMA)} for it"):
        load_tokenizer(tmp_path)


def test_a_table_of_characters_that_is_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer.model makes no tokenizer: .*charsmap"):
        load_tokenizer(folder_of(tmp_path, model(LLAMA, scores(LLAMA), message((3, 2)), message((2, b"\xff" * 9)))))


@pytest.mark.parametrize(("data", "complaint"), [
    (b"", "no model of SentencePiece"), (b"IQ== 0\nIg== 1\n", "Llama 3 calls a file of tiktoken by the same name"),
    (MODELS["llama"][:100], "damaged"), (model(["a"], [0.0], message((3, 2), (40, 5)), b""), "no model of SentencePiece"),
    (model(["a"], [0.0], message((3, 4)), b""), "neither BPE nor Unigram"),
    (model(["a"], [0.0], message((3, 2), (24, 1)), b""), "spaces behind words"), (b"\x0a\xff" * 5, "damaged")], ids=range(7))
def test_a_file_that_is_no_model_is_refused_with_what_to_do(data: bytes, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=rf"{complaint}[\s\S]*fix: tokenizer\.json, which AutoTokenizer"):
        load_tokenizer(folder_of(tmp_path, data))
