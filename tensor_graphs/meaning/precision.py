"""precision: the syntax of a *form*, which chooses the dtypes in which a graph stores and multiplies numbers; and the precisions
below that of its operands with which a kernel may declare to compute (`Kernel.precision`).

A form maps sites to words, names of dtypes: "kind:name" is one site, "kind:pattern" (as in fnmatch) several, "kind" all of that
kind; the most specific one counts. rewrites/passes/apply_precision.py defines the sites of a graph, and applies a form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.errors import listed
from tensor_graphs.language.dtypes import bf16, f16, f32, f64

SiteKind = Literal["between", "product", "weight", "state"]
KINDS: tuple[SiteKind, ...] = get_args(SiteKind)

WRITTEN = "written"
"""word of a site that keeps the dtypes it is written with"""

WORDS = {dtype.name: dtype for dtype in (f64, f32, f16, bf16)}
"""word -> its dtype, the widest first"""

Form = Mapping[str, str]
"""site, pattern or kind -> word"""

FIX = f"one word ({', '.join(WORDS)}, {WRITTEN}) for all, or words of sites, as \"between=f32,product:model.layers.*=bf16\""


def parse_form(value: str | Form | None) -> dict[str, str]:
    """Return an argument or a text as a form: None as {}; one word as that word for all kinds of site; "site=word,site=word" and
    mappings as they are. Raises ArgumentError."""
    if value is None:
        return {}
    if isinstance(value, str):
        pairs: list[Any] = [[side.strip() for side in part.split("=")] for part in value.split(",")]
        if len(pairs) > 1 and any(len(pair) != 2 for pair in pairs):
            raise ArgumentError(f"precision {value!r} cannot be read\n  fix: {FIX}")
        if len(pairs[0]) == 1 and value not in (*WORDS, WRITTEN):
            raise ArgumentError(f"precision {value!r} is no dtype\n  fix: {FIX}")
        return parse_form(dict(pairs) if len(pairs[0]) == 2 else dict.fromkeys(KINDS, value))
    if not isinstance(value, Mapping):
        raise ArgumentError(f"precision is {value!r:.60}\n  fix: {FIX}")
    for key, word in value.items():
        if not isinstance(key, str) or key.partition(":")[0] not in KINDS:
            raise ArgumentError(f"precision names the site {key!r:.60}\n  fix: a kind ({listed(KINDS)}), or one with a name or a "
                                "pattern, as 'product:model.layers.*'")
        if word not in (*WORDS, WRITTEN):
            raise ArgumentError(f"precision of {key} is {word!r:.60}\n  fix: {', '.join(WORDS)} or {WRITTEN}")
    return dict(value)


@dataclass(frozen=True, slots=True)
class Precision:
    """A precision to which a kernel rounds its f32 operands. unit: largest relative change by a rounding. limit: largest error of a
    result that rounded operands can explain; for operands that are not rounded, `SAME_MATH` is this limit."""

    name: str
    unit: float
    limit: float


TF32 = Precision("tf32", 2.0 ** -11, 3.5e-3)
"""8 bits of exponent and 10 of fraction (NVIDIA A100 Tensor Core GPU Architecture, 2020). The largest error of a million sums was
1.6e-3; with truncated operands it was 2.1e-3, with 8 bits of fraction 5.5e-3, and with the 7 bits of bf16 1.1e-2"""

PRECISIONS = {TF32.name: TF32}
