"""stored_graph_check: checks that a row of the database contains the graph of its key. The package `records` cannot read graphs."""

from __future__ import annotations

from tensor_graphs.language.json_reader import graph_from_json
from tensor_graphs.language.text import parse_graph


def why_no_graph(text: str, json: str, key: str) -> str | None:
    """Return why the text or the JSON of a row does not parse to the graph of its structural key, or None if both do. The parsers
    are those that compilation and measurement use."""
    for what, read in (("text", lambda: parse_graph(text)), ("JSON", lambda: graph_from_json(json))):
        try:
            stored_key = read().structural_key
        except Exception as error:                                  # what is read may be anything
            return f"its {what} cannot be read here: {str(error).partition(chr(10))[0] or type(error).__name__}"
        if stored_key != key:
            return f"its {what} is the graph {stored_key[:12]}, and its key says {key[:12]}"
    return None
