"""precision: the syntax of a *form*, which chooses the dtypes in which a graph stores and multiplies numbers.

A form maps sites to words: names of dtypes, for a product also of a format to which its f32 operands are rounded, for a weight also
of a format of blocks in which it is stored. "kind:name" is one
site, "kind:pattern" (as in fnmatch) several, "kind" all of that kind; the most specific one counts.
rewrites/passes/apply_precision.py defines the sites of a graph, and applies a form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.errors import listed
from tensor_graphs.language.composites.quantise import QUANTISERS
from tensor_graphs.language.composites.rounded import LEVELS, SIGNIFICANDS, unit_of
from tensor_graphs.language.dtypes import DType, bf16, f8e4m3, f16, f32, f64

SiteKind = Literal["between", "product", "weight", "state"]
KINDS: tuple[SiteKind, ...] = get_args(SiteKind)

WRITTEN = "written"
"""word of a site that keeps the dtypes it is written with"""

WORDS = {dtype.name: dtype for dtype in (f64, f32, f16, bf16)}
"""word -> its dtype, the widest first"""

FORMATS = {f8e4m3.name: f8e4m3.epsilon / 2, **{name: unit_of({"to": name}) for name in (*SIGNIFICANDS, *LEVELS)}}
"""words of a product alone, formats to which it rounds its operands -> largest relative change: f8e4m3, scaled row by row, of any
operand of a linear; those of language/composites/rounded.py of f32, LEVELS of x alone, where the weight is in blocks"""

BLOCKS = {name.lower(): name for name in QUANTISERS}
"""words of a weight alone: formats of blocks (language/composites/quantise.py), which change the real number -> their names"""

Form = Mapping[str, str]
"""site, pattern or kind -> word"""

FIX = (f"one word ({', '.join((*WORDS, *FORMATS, *BLOCKS))}, {WRITTEN}), "
       "or words of sites, as 'between=f32,product:model.layers.*=bf16'")


def parse_form(value: str | Form | None) -> dict[str, str]:
    """Return an argument or a text as a form: None as {}; one word as that word for all kinds of site that have it;
    "site=word,site=word" and mappings as they are. Raises ArgumentError, also for a text that names a site twice."""
    if value is None:
        return {}
    if isinstance(value, str):
        pairs: list[Any] = [[side.strip() for side in part.split("=")] for part in value.split(",")]
        (word, *rest), *others = pairs
        if any(len(pair) != 2 for pair in pairs) and (rest or others):
            raise ArgumentError(f"precision {value!r} cannot be read\n  fix: {FIX}")
        if not rest and word not in (*WORDS, *FORMATS, *BLOCKS, WRITTEN):
            raise ArgumentError(f"precision {value!r} is no dtype\n  fix: {FIX}")
        named = [pair[0] for pair in pairs]
        if twice := [site for site in named if named.count(site) > 1]:
            named_words = " or ".join("=".join(pair) for pair in pairs if pair[0] == twice[0])
            raise ArgumentError(f"precision names {twice[0]} {named.count(twice[0])} times\n  fix: one of {named_words}")
        kinds = ("product",) if word in FORMATS else ("weight",) if word in BLOCKS else KINDS
        return parse_form(dict(pairs) if rest else dict.fromkeys(kinds, word))
    if not isinstance(value, Mapping):
        raise ArgumentError(f"precision is {value!r:.60}\n  fix: {FIX}")
    for key, word in value.items():
        if not isinstance(key, str) or key.partition(":")[0] not in KINDS:
            raise ArgumentError(f"precision names the site {key!r:.60}\n  fix: a kind ({listed(KINDS)}), or one with a name or a "
                                "pattern, as 'product:model.layers.*'")
        kind = key.partition(":")[0]
        words = (*WORDS, *(FORMATS if kind == "product" else BLOCKS if kind == "weight" else ()))
        if word not in (*words, WRITTEN):
            raise ArgumentError(f"precision of {key} is {word!r:.60}\n  fix: {', '.join(words)} or {WRITTEN}")
    return dict(value)


def unit_of_word(word: str) -> float:
    """Return the largest relative change of a number that is rounded to a word's dtype or format."""
    return FORMATS[word] if word in FORMATS else WORDS[word].epsilon / 2


def loses(word: str, dtype: DType) -> bool:
    """Return whether a word has fewer bits than the dtype that is written."""
    if word in BLOCKS:
        return dtype.itemsize > 1
    return FORMATS[word] > dtype.epsilon / 2 if word in FORMATS else WORDS[word].itemsize < dtype.itemsize
