"""page: the document as one HTML file with its data, style and script inside; it opens from disk and loads nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any


def html_page(data: Mapping[str, Any]) -> str:
    """Return the page of data.page_data. Names in it may be anything: none can end the element that holds them."""
    here = files(__package__)
    text, style, script = (here.joinpath(name).read_text(encoding="utf-8") for name in ("page.html", "studio.css", "studio.js"))
    held = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=str)
    for character in "<>&\u2028\u2029":
        held = held.replace(character, f"\\u{ord(character):04x}")
    parts = {"{{title}}": escape(str(data["title"])), "{{style}}": style, "{{data}}": held, "{{script}}": script}
    out, rest = [], text
    while rest:                                                     # one walk: what is put in is not looked at again
        at, mark = min(((rest.find(mark), mark) for mark in parts if mark in rest), default=(len(rest), ""))
        out += [rest[:at], parts.get(mark, "")]
        rest = rest[at + len(mark):]
    return "".join(out)
