"""byte_level_files: converts vocab.json and merges.txt (byte pair encoding as GPT-2's) to a tokenizer of the `tokenizers` library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensor_graphs.frontends.errors import TokenizerError
from tensor_graphs.frontends.json_settings import read_json
from tensor_graphs.regular_file import read_text

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Splitter

VOCABULARY_FILE, MERGES_FILE = "vocab.json", "merges.txt"
MOST_MERGES = 1 << 26
"""Largest size of merges.txt in bytes; for 150,000 tokens it has 1.7 MB."""

QWEN_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
"""Regex of the words that Qwen 2 and 3 merge tokens within: it is a part of the published vocabulary."""
CLIP_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
"""Regex of CLIP's words; what lies between them is left out."""


@dataclass(frozen=True)
class ByteLevelClass:
    """Rules by which a tokenizer class uses vocab.json and merges.txt. types: substrings of the model types that have this class,
    for folders that name no class. special: special tokens, for folders that do not name them. words: regex that cuts text into
    words; tokens are merged within words only ("": GPT-2's regex, built into the library). nfc: normalise text to NFC. around:
    begin each text with cls_token and end it with sep_token. ends_words: suffix of a word's last token; a class with one reads
    texts in lower case, with single spaces, and leaves out what is in no word."""

    types: tuple[str, ...]
    special: Mapping[str, str]
    words: str = ""
    nfc: bool = False
    around: bool = False
    ends_words: str = ""


_END = dict.fromkeys(("unk_token", "eos_token"), "<|endoftext|>")
BYTE_LEVEL: Mapping[str, ByteLevelClass] = {
    "GPT2": ByteLevelClass(("gpt2", "starcoder2"), {**_END, "bos_token": "<|endoftext|>"}),
    "Qwen2": ByteLevelClass(("qwen",), {**_END, "pad_token": "<|endoftext|>"}, words=QWEN_WORDS, nfc=True),
    "Roberta": ByteLevelClass(("roberta",), {
        "bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>", "unk_token": "<unk>",
        "pad_token": "<pad>", "mask_token": "<mask>"}, around=True),
    "CLIP": ByteLevelClass(("clip",), {
        **_END, "pad_token": "<|endoftext|>", "bos_token": "<|startoftext|>", "cls_token": "<|startoftext|>",
        "sep_token": "<|endoftext|>"}, words=CLIP_WORDS, nfc=True, around=True, ends_words="</w>"),
}
"""tokenizer_class in tokenizer_config.json, without `Tokenizer` or `TokenizerFast` -> how that class uses the two files."""


def byte_level_class(folder: Path, settings: Mapping[str, Any]) -> ByteLevelClass:
    """Return the row of a folder: by the class that tokenizer_config.json names, else by the model type. Raises TokenizerError."""
    config = folder / "config.json"
    name = str(settings.get("tokenizer_class", "")).removesuffix("Fast").removesuffix("Tokenizer")
    kind = "" if name or not config.is_file() else str(read_json(config).get("model_type", ""))
    rows = [row for class_name, row in BYTE_LEVEL.items() if class_name == name or any(part in kind for part in row.types)]
    if not rows or "xlm" in kind:
        what = f"the tokenizer class {name}Tokenizer is not" if name else f"for the model type {kind!r} no tokenizer class is"
        raise TokenizerError(
            f"{what} known, so {VOCABULARY_FILE} and {MERGES_FILE} do not say how text is divided", file=folder,
            fix=f'"tokenizer_class" in tokenizer_config.json: {", ".join(f"{name}Tokenizer" for name in BYTE_LEVEL)}; or '
                "tokenizer.json, which AutoTokenizer.from_pretrained(folder).save_pretrained(folder) of transformers writes")
    return rows[0]


def read_byte_level(folder: Path, row: ByteLevelClass, prefix_space: bool) -> Splitter:
    """Return the tokenizer of the two files. prefix_space: put a space before each text. Raises TokenizerError, ConfigError."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    path = folder / MERGES_FILE
    try:
        lines = read_text(path, MOST_MERGES).split("\n")
    except OSError as error:
        raise TokenizerError(f"cannot read the merges: {error.strerror}", file=path) from error
    except UnicodeDecodeError as error:
        raise TokenizerError(f"the merges are not UTF-8 text (byte {error.start})", file=path) from error
    lines = [line for line in lines if line.strip() and not line.startswith("#version")]
    wrong = next((line for line in lines if line.count(" ") != 1), None)
    if wrong is not None:
        raise TokenizerError(f"the line {wrong[:60]!r} is no pair of tokens", file=path, fix="download the file again")
    pairs = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
    try:
        vocabulary = read_json(folder / VOCABULARY_FILE)
        splitter = Tokenizer(models.BPE(vocabulary, pairs, end_of_word_suffix=row.ends_words, continuing_subword_prefix="")
                             if row.ends_words else models.BPE(vocabulary, pairs))
    except (TypeError, ValueError, OverflowError) as error:
        raise TokenizerError(f"the vocabulary does not map tokens to ids: {error}", file=folder / VOCABULARY_FILE) from error
    except Exception as error:  # the library raises Exception itself
        raise TokenizerError(f"the merges do not fit the vocabulary: {error}", file=path) from error
    if row.ends_words:
        splitter.normalizer = normalizers.Sequence(
            [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    elif row.nfc:
        splitter.normalizer = normalizers.NFC()
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=not row.words or bool(row.ends_words))
    split = pre_tokenizers.Split(Regex(row.words), "removed" if row.ends_words else "isolated", invert=bool(row.ends_words))
    splitter.pre_tokenizer = pre_tokenizers.Sequence([split, by_bytes]) if row.words else by_bytes
    splitter.decoder = decoders.ByteLevel()
    return splitter
