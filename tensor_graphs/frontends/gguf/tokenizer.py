"""tokenizer: converts the vocabulary in a GGUF file's metadata to a tokenizer of the `tokenizers` library.

`tokenizer.ggml.model` names the kind: "llama" (SentencePiece, merges by score), "gpt2" (byte pair encoding of bytes; its regexes by
`tokenizer.ggml.pre`), "gemma4" (merges of characters), "bert" (WordPiece) and "t5" (Unigram).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensor_graphs.devices.gguf import GgufFile
from tensor_graphs.frontends.errors import TokenizerError
from tensor_graphs.frontends.json_settings import Section
from tensor_graphs.frontends.text.byte_level_files import QWEN_WORDS
from tensor_graphs.frontends.text.sentencepiece_file import (
    BPE,
    CONTROL,
    NORMAL,
    SPACE,
    UNIGRAM,
    USER_DEFINED,
    Piece,
    SentencePiece,
)
from tensor_graphs.frontends.text.tokenizer import Tokenizer, put_around

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Splitter

_AT = "tokenizer.ggml."
NONE = ("no_vocab", "none")
"""Values of `tokenizer.ggml.model` for a file without a tokenizer."""
MOST_TEMPLATE = 1 << 22
"""Largest size of a chat template in characters."""

WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_HAN = r"[\x{4e00}-\x{9fa5}\x{0800}-\x{4e00}\x{ac00}-\x{d7ff}]+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = "|".join((rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s", r"\p{N}%s",
                   r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"))
_MARKED = "|".join((r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""", r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
                    r" ?[\p{P}\p{S}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"))
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_LLAMA3 = QWEN_WORDS.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

REGEXES: Mapping[str, tuple[str, ...]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", WORDS, r"\p{N}+", "[0-9][0-9][0-9]"),
    **dict.fromkeys(("gpt-2", "phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "jina-v1-en", "jina-v2-code",
                     "roberta-bpe", "modern-bert", "mpt", "olmo", "jais"), (WORDS,)),
    **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"), (r"\p{N}", WORDS)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "grok-2"), (QWEN_WORDS,)),
    "qwen35": (QWEN_WORDS.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]"),),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "lfm2", "dbrx", "smaug-bpe", "chatglm-bpe", "glm4"),
                    (_LLAMA3,)),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", WORDS, "[0-9][0-9][0-9]"),
    "deepseek-llm": (r"[\r\n]", r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
                     r"\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+", r"\s+$", _HAN, r"\p{N}+"),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, r"\p{N}"),
    "deepseek-v3": (r"\p{N}{1,3}", r"[\x{4e00}-\x{9fa5}\x{3040}-\x{30ff}]+", _MARKED),
    "tekken": (_CASED % ("", "", ""),), **dict.fromkeys(("gpt-4o", "llama4"), (_CASED % (_SHORT, _SHORT, "{1,3}"),))}
"""`tokenizer.ggml.pre` -> regexes, by which a text is cut one after another; each match and each rest is a word. They are parts of
the published vocabularies."""
WHOLE_WORDS = ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "lfm2", "tekken", "glm4")
"""Values of `tokenizer.ggml.pre` where a word that is a token is not merged; a text begins with bos, except for the last."""


def read_tokenizer(file: GgufFile, *, end_ids: tuple[int, ...] = (), positions: int | None = None) -> Tokenizer | None:
    """Return the tokenizer in a file's metadata; None without one. positions: number of tokens at which texts are cut (None: at
    none). Raises TokenizerError for a vocabulary that is damaged or of an unknown kind."""
    metadata = Section(dict(file.metadata), file.path)
    if metadata.text(_AT + "model", NONE[0]) in NONE:
        return None
    kind, pre = metadata.text(_AT + "model"), metadata.text(_AT + "pre", "default")
    if kind not in _KINDS:
        raise TokenizerError(f"the tokenizer {kind!r} is not known", file=file.path, fix=f"known: {', '.join(_KINDS)}; or --ids")
    if kind == "gpt2" and pre not in REGEXES:
        raise TokenizerError(f"the rule {pre!r} by which texts are cut into words is not known", file=file.path,
                             fix=f"known: {', '.join(REGEXES)}; or --ids")
    build, around = _KINDS[kind]
    vocabulary = _Vocabulary(file, metadata, pre)
    try:
        splitter = build(vocabulary)
    except TokenizerError:
        raise
    except Exception as error:  # the library raises Exception itself
        raise TokenizerError(f"the vocabulary makes no tokenizer: {error}", file=file.path,
                             fix="download the file again") from error
    begins = metadata.boolean(_AT + "add_bos_token", around[0] or pre in WHOLE_WORDS[:-1])
    ends = metadata.boolean(_AT + "add_eos_token", around[1])
    before, after = ("cls", "seperator") if kind == "bert" else ("bos", "eos")
    special = {f"{name}_token": text for name in ("bos", "eos", "cls", "padding", "unknown") if (text := vocabulary.special(name))}
    put_around(splitter, vocabulary.special(before) if begins else None, vocabulary.special(after) if ends else None, file.path)
    if positions is not None:
        splitter.enable_truncation(positions)
    template = metadata.text("tokenizer.chat_template", None)
    if template is not None and len(template) > MOST_TEMPLATE:
        raise TokenizerError(f"the chat template has {len(template)} characters, and {MOST_TEMPLATE} is the most there can be",
                             file=file.path)
    return Tokenizer(file.path, splitter, end_ids=end_ids, max_length=positions, template=template, special=special)


class _Vocabulary:
    """The tokens of a file. pre: value of `tokenizer.ggml.pre`."""

    def __init__(self, file: GgufFile, metadata: Section, pre: str) -> None:
        self.file, self.metadata, self.pre = file, metadata, pre
        self.tokens = self.column("tokens", True)
        self.ids = {text: i for i, text in enumerate(self.tokens)}
        self.kinds: Sequence[int] = self.column("token_type", False) or (NORMAL,) * len(self.tokens)

    def column(self, name: str, texts: bool) -> Any:
        """Return an array of the metadata as a list, one entry per token except for merges; () if it is not there."""
        values = self.metadata.values.get(_AT + name, ())
        values = list(values) if isinstance(values, (list, tuple)) else values.tolist() if hasattr(values, "tolist") else None
        if values is None or (values and isinstance(values[0], str) != texts):
            raise TokenizerError(f"{_AT}{name} is no list of {'texts' if texts else 'numbers'}", file=self.file.path)
        if name in ("scores", "token_type") and values and len(values) != len(self.tokens):
            raise TokenizerError(f"{_AT}{name} has {len(values)} entries, and there are {len(self.tokens)} tokens",
                                 file=self.file.path)
        return values

    def special(self, name: str) -> str | None:
        at = self.metadata.optional_whole(f"{_AT}{name}_token_id")
        return self.tokens[at] if at is not None and at < len(self.tokens) else None

    def mark(self, splitter: Splitter, *kinds: int) -> Splitter:
        """Add the tokens of these kinds, which are matched before a text is cut."""
        from tokenizers import AddedToken

        splitter.add_tokens([AddedToken(text, normalized=False, special=kind != USER_DEFINED)
                             for text, kind in zip(self.tokens, self.kinds, strict=True) if kind in kinds and text])
        return splitter

    def merges(self) -> list[tuple[str, str]]:
        pairs = [(line[:at], line[at + 1:]) for line in self.column("merges", True) if (at := line.find(" ", 1)) > 0]
        if not pairs:
            raise TokenizerError(f"{_AT}merges is missing", file=self.file.path, fix="convert the model again")
        return pairs


def _pieces(v: _Vocabulary, kind: int) -> Splitter:
    scores = v.column("scores", False) or [0.0] * len(v.tokens)
    unknown = v.metadata.whole(f"{_AT}unknown_token_id", 0 if kind == BPE else 2, least=0)
    table = v.metadata.values.get(_AT + "precompiled_charsmap")
    model = SentencePiece(tuple(map(Piece, v.tokens, scores, v.kinds)), kind, byte_fallback=kind == BPE, unknown=unknown, bos=None,
                          eos=None, characters=b"" if table is None else table.tobytes(),
                          dummy_prefix=v.metadata.boolean(_AT + "add_space_prefix", True),
                          trims_spaces=v.metadata.boolean(_AT + "remove_extra_whitespaces", False))
    return model.splitter(first_only=False)


def _byte_pairs(v: _Vocabulary) -> Splitter:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    splitter = Tokenizer(models.BPE(v.ids, v.merges(), ignore_merges=v.pre in WHOLE_WORDS))
    splitter.pre_tokenizer = pre_tokenizers.Sequence([
        *(pre_tokenizers.Split(Regex(regex), "isolated") for regex in REGEXES[v.pre]),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    splitter.decoder = decoders.ByteLevel()
    return v.mark(splitter, CONTROL, USER_DEFINED)


def _character_pairs(v: _Vocabulary) -> Splitter:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    splitter = Tokenizer(models.BPE(v.ids, v.merges(), byte_fallback=True, unk_token=v.special("unknown"), fuse_unk=True))
    splitter.normalizer = normalizers.Replace(" ", SPACE)
    splitter.pre_tokenizer = pre_tokenizers.Split(Regex("[^\n]+|\n+"), "isolated")
    splitter.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return v.mark(splitter, CONTROL, USER_DEFINED)


def _word_pieces(v: _Vocabulary) -> Splitter:
    """WordPiece: a file has ▁ before the beginnings of words and nothing before the rest, which has ## in a vocab.txt."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    def piece(text: str) -> str:
        if text.startswith(SPACE):
            return text[1:]
        return text if text.startswith("[") and text.endswith("]") else f"##{text}"

    v.tokens = [piece(text) for text in v.tokens]
    splitter = Tokenizer(models.WordPiece({text: i for i, text in enumerate(v.tokens)}, unk_token=v.special("unknown") or "[UNK]"))
    splitter.normalizer = normalizers.BertNormalizer(lowercase=v.metadata.boolean(_AT + "normalizer.lowercase", True))
    splitter.pre_tokenizer, splitter.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    return v.mark(splitter, CONTROL)


_KINDS: Mapping[str, tuple[Callable[[_Vocabulary], Splitter], tuple[bool, bool]]] = {
    "llama": (lambda v: _pieces(v, BPE), (True, False)), "gpt2": (_byte_pairs, (False, False)),
    "gemma4": (_character_pairs, (True, False)), "bert": (_word_pieces, (True, True)),
    "t5": (lambda v: _pieces(v, UNIGRAM), (False, True))}
"""`tokenizer.ggml.model` -> (function that builds it, whether a text begins with bos by default, whether it ends with eos)."""
