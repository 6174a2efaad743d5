"""page: the document as one HTML file with its data, style and script inside; it opens from disk and loads nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

SCRIPTS = ("studio.js", "charts.js", "database.js", "tabs.js")
"""parts of the one script, in their order"""


def html_page(data: Mapping[str, Any]) -> str:
    """Return the page of data.page_data. Names in it may be anything: none can end the element that holds them."""
    here = files(__package__)
    text, style, *scripts = (here.joinpath(name).read_text(encoding="utf-8") for name in ("page.html", "studio.css", *SCRIPTS))
    held = json_text(data)
    for character in "<>&\u2028\u2029":
        held = held.replace(character, f"\\u{ord(character):04x}")
    parts = {"{{title}}": escape(str(data["title"])), "{{style}}": style, "{{data}}": held, "{{script}}": "".join(scripts)}
    out, rest = [], text
    while rest:                                                     # one walk: what is put in is not looked at again
        at, mark = min(((rest.find(mark), mark) for mark in parts if mark in rest), default=(len(rest), ""))
        out += [rest[:at], parts.get(mark, "")]
        rest = rest[at + len(mark):]
    return "".join(out)


def json_text(value: Any) -> str:
    """Return JSON, in which numbers that are not finite are null, as browsers read no others.

    >>> json_text({"error": float("nan"), "us": 1.5})
    '{"error":null,"us":1.5}'
    """
    return json.dumps(_finite(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
