"""stored_graphs: whether a row of the database holds the graph that its key says. The room of the rows knows no graph."""

from __future__ import annotations

from tensor_graphs.language.json_reader import graph_from_json
from tensor_graphs.language.text import parse_graph


def why_no_graph(text: str, json: str, key: str) -> str | None:
    """Why the text and the JSON of a row are not the graph of its structural key, as whoever compiles or measures reads them; None
    where they are."""
    for what, read in (("text", lambda: parse_graph(text)), ("JSON", lambda: graph_from_json(json))):
        try:
            found = read().structural_key
        except Exception as error:                                  # what is read may be anything
            return f"its {what} cannot be read here: {str(error).partition(chr(10))[0] or type(error).__name__}"
        if found != key:
            return f"its {what} is the graph {found[:12]}, and its key says {key[:12]}"
    return None
