"""recipe_file: what was found of a region, kept in the user's cache folder: a model is looked at once, not by each process.

    found = kept(graph, lambda: search(graph))

One JSON file for each region and state of this package's code; it may be deleted at any time. Where the folder cannot be used,
nothing is kept.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tensor_graphs.devices.toolchain import ToolchainError, default_cache, private_folder
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import leaves
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.json_form import graph_from_json, graph_to_json
from tensor_graphs.language.node import Node
from tensor_graphs.language.part import over
from tensor_graphs.rewrites.offer import Offer, Other

log = logging.getLogger(__name__)

DECIDES = ("costs", "language", "meaning", "proof", "rewrites")
"""rooms whose code says what is found"""


def kept(graph: Graph, search: Callable[[], list[Offer]]) -> list[Offer]:
    """What the search finds of this graph, or has found before."""
    try:
        folder = private_folder(default_cache().parent / "recipes")
    except ToolchainError as e:
        log.info("recipes are not kept: %s", e)
        return search()
    path = folder / f"{hashlib.sha256(f'{_code()} {graph_to_json(graph)}'.encode()).hexdigest()}.json"
    try:
        return _read(graph, json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, KeyError, IndexError, TensorGraphsError) as e:
        log.warning("%s cannot be read, and is written anew: %s", path, e)
    found = search()
    try:
        _write(path, json.dumps([_data(graph, o) for o in found], separators=(",", ":")))
    except OSError as e:
        log.info("recipes are not kept: %s", e)
    return found


@functools.cache
def _code() -> str:
    """A digest of the code that decides what is found."""
    root = Path(__file__).resolve().parent.parent
    made = hashlib.sha256()
    for path in sorted(p for room in DECIDES for p in (root / room).rglob("*.py")):
        made.update(path.read_bytes())
    return made.hexdigest()


def _write(path: Path, text: str) -> None:
    """By a rename, so that nobody reads half a file."""
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise


def _inputs(operands: Sequence[Node]) -> list[Node]:
    return [leaves.input(f"x{i}", o.shape, o.dtype) for i, o in enumerate(operands)]


def _data(graph: Graph, offer: Offer) -> dict[str, object]:
    """Nodes of the graph by their numbers; what else says the same as graphs of the operands."""
    number = {n: i for i, n in enumerate(graph.nodes)}
    others = []
    for other in offer.others:
        alone = make_graph({f"y{i}": o for i, o in enumerate(over(other.outputs, offer.operands, _inputs(offer.operands)))})
        others.append({"rules": other.rules, "derivation": other.derivation, "numeric_class": other.numeric_class,
                       "graph": graph_to_json(alone)})
    return {"operands": [number[o] for o in offer.operands], "outputs": [number[o] for o in offer.outputs],
            "inside": sorted(number[n] for n in offer.inside), "others": others}


def _read(graph: Graph, data: Sequence[dict[str, Any]]) -> list[Offer]:
    nodes = graph.nodes
    found: list[Offer] = []
    for row in data:
        operands = tuple(nodes[i] for i in row["operands"])
        others: list[Other] = []
        for other in row["others"]:
            alone = graph_from_json(other["graph"])
            mine = [alone.inputs.get(x.attrs["name"], x) for x in _inputs(operands)]
            outputs = over([alone.outputs[f"y{i}"] for i in range(len(row["outputs"]))], mine, operands)
            others.append(Other(outputs, tuple(other["rules"]), str(other["derivation"]), str(other["numeric_class"])))
        found.append(Offer(operands, tuple(nodes[i] for i in row["outputs"]), frozenset(nodes[i] for i in row["inside"]),
                           tuple(others)))
    return found
