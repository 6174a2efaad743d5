"""pin_file: choices of a plan in a file: a path for each cell of sizes, by identity. `tg.compile(graph, path=pin)` repeats them.

A pin holds no costs, since costs depend on the machine. Dims are named in the graph's canonical order, so a pin also fits an equal
graph with other names of dims.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Any

from tensor_graphs.argument_checks import ArgumentError, place
from tensor_graphs.devices.device_registry import HOST, all_names, devices
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.json_checks import entry, of_kind
from tensor_graphs.language import dims as d
from tensor_graphs.language.errors import GraphError
from tensor_graphs.language.graph import Graph
from tensor_graphs.meaning.accuracy import parse
from tensor_graphs.paths.path import NoPathError, Path
from tensor_graphs.paths.path_reader import path_from_json
from tensor_graphs.paths.size_cells import Cell, Cells
from tensor_graphs.regular_file import read_text

FORMAT = "tensor_graphs pin 2"

MOST_BYTES = 1 << 26
"""Largest size of a pin in bytes; a path of a large model takes some 100 kB."""

A_FILE = "the path of a file, as \"softmax.pin\""


class PinError(TensorGraphsError):
    """A file that is no pin, a pin of other code, or a file that cannot be written."""


@dataclass(frozen=True)
class Pinned:
    """The path for the sizes of a cell. at: the sizes at which it was chosen."""

    cell: Cell
    at: Mapping[str, int]
    path: Path


@dataclass(frozen=True, repr=False)
class Pin:
    """The paths of a plan, one for each cell of sizes.

    written: structural key of the graph as given. dims: names of its dims, in canonical order. source: origin of the graph, for
    people. prepared: patterns recognised and rewritten before the paths were chosen. devices: the devices that the paths run on.
    titles: signature key -> description of the op, for people.
    """

    written: str
    dims: tuple[str, ...]
    tolerance: float | str | None
    backends: tuple[str, ...]
    variants: tuple[Pinned, ...]
    source: str = ""
    prepared: str = ""
    devices: tuple[str, ...] = (HOST.name,)
    titles: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __repr__(self) -> str:
        return f"<pin of graph {self.written[:12]}: {len(self.variants)} paths, {', '.join(v.path.id for v in self.variants[:4])}>"

    @property
    def graph_key(self) -> str:
        """Structural key of the graph that the paths run."""
        return self.variants[0].path.graph_key

    def made_of(self, source: str) -> Pin:
        """Return a copy of the pin with the origin of its graph, for people."""
        return replace(self, source=source)

    def points(self, graph: Graph, at: Mapping[str, int]) -> list[tuple[Cell, dict[str, int], Path]]:
        """Return (cell, sizes to cost at, path) for each variant: the pin's sizes, or those of `at` that are in the cell.

        graph: the graph that the paths run. Raises PinError where the pin does not cover the graph's sizes.
        """
        here = dict(zip(self.dims, graph.dim_order, strict=False))
        cells = Cells([v.cell for v in self.variants])
        if len(self.dims) != len(graph.dim_order) or any(n not in here for n in cells.dims):
            raise PinError(f"the pin is for the dims {', '.join(self.dims) or '(none)'}, the graph has "
                           f"{', '.join(graph.dims) or '(none)'}\n  fix: pin the graph again (tg plan --pin)")
        for name, least, most in cells.box.ranges:
            low, high = d.bounds(graph.dims[here[name]])
            if least > low or most < high:
                raise PinError(f"the pin is for {here[name]} from {least} to {most}, the graph has "
                               f"{low} to {high}\n  fix: pin the graph again (tg plan --pin)")
        out = []
        for v in self.variants:
            cell = Cell(tuple((here[n], low, high) for n, low, high in v.cell.ranges))
            sizes = {here[n]: size for n, size in v.at.items() if n in here}
            sizes |= {n: s for n, s in at.items() if cell.holds({n: s})}
            missing = [n for n in graph.dims if n not in sizes or d.why_no_size(n, sizes[n], graph.dims[n])]
            if missing:
                raise PinError(f"the pin does not say at which {missing[0]} its paths were chosen\n"
                               "  fix: pin the graph again (tg plan --pin)")
            out.append((cell, sizes, v.path))
        return out

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT, "source": self.source, "written": self.written, "prepared": self.prepared, "dims": list(self.dims),
            "tolerance": self.tolerance, "backends": list(self.backends), "devices": list(self.devices),
            "variants": [{"cell": v.cell.to_json(), "at": dict(v.at), "path": v.path.to_json()} for v in self.variants],
            "titles": dict(sorted(self.titles.items())),
        }

    @staticmethod
    def from_json(data: Any) -> Pin:
        """Return the pin that `to_json` wrote. Raises PinError, and NoPathError where a path in it was changed by hand."""
        format = data.get("format") if isinstance(data, Mapping) else None
        if format != FORMAT:
            raise PinError(f"this is no pin: its format is {format!r}, not {FORMAT!r}\n  fix: tg plan GRAPH --pin FILE writes one")
        try:
            pin = _read(data)
        except ValueError as e:
            raise PinError(f"this pin is damaged: {e}\n  fix: pin the graph again (tg plan GRAPH --pin FILE --force)") from None
        if missing := sorted(set(pin.devices) - {device.name for device in devices()}):
            raise PinError(f"the pin is for the device {missing[0]!r}, and this machine has {all_names()}\n"
                           "  fix: pin the graph again here (tg plan --pin)")
        return pin

    def save(self, file: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the pin to a file. Raises PinError where the file exists (unless overwrite) or cannot be written; ArgumentError."""
        place("file", file, A_FILE)
        text = json.dumps(self.to_json(), indent=1) + "\n"
        try:
            with FilePath(file).open("w" if overwrite else "x", encoding="utf-8") as out:
                out.write(text)
        except FileExistsError:
            raise PinError(f"{file} is there already\n  fix: --force replaces it (in Python: save(file, overwrite=True))") from None
        except OSError as e:
            raise PinError(f"{file} cannot be written: {e.strerror}\n  fix: another file") from None

    @staticmethod
    def load(file: str | os.PathLike[str]) -> Pin:
        """Return the pin in a file. Raises PinError and NoPathError, naming the file; ArgumentError."""
        place("file", file, A_FILE)
        try:
            data = json.loads(read_text(file, MOST_BYTES))
        except OSError as e:
            raise PinError(f"the pin {file} cannot be read: {e.strerror}\n  fix: tg plan GRAPH --pin {file} writes one") from None
        except (ValueError, RecursionError) as e:
            raise PinError(f"{file} is no pin: it is not JSON ({e})\n  fix: tg plan GRAPH --pin FILE writes one") from None
        try:
            return Pin.from_json(data)
        except (PinError, NoPathError) as e:
            raise type(e)(f"{file}: {e}") from None


def as_pin(path: Any) -> Pin:
    """Return a pin, or the one in a file of this name. Raises PinError for a file that is no pin, GraphError for another value."""
    if isinstance(path, Pin):
        return path
    if isinstance(path, str | os.PathLike):
        return Pin.load(path)
    raise GraphError(f"path is {path!r}", fix="a path (tg.list_paths), a pin (plan.pin), or the name of its file")


def _read(data: Mapping[str, Any]) -> Pin:
    """Return the pin in a document. Raises ValueError for missing or malformed fields; NoPathError for a path that was changed."""
    def texts(key: str) -> tuple[str, ...]:
        return tuple(of_kind(f"an entry of {key!r}", text, str) for text in entry("it", data, key, list))

    variants = tuple(_variant(f"path {i}", variant) for i, variant in enumerate(entry("it", data, "variants", list), 1))
    if len({v.path.graph_key for v in variants}) != 1:
        raise ArgumentError("it holds paths of several graphs" if variants else "it holds no path")
    if not (backends := texts("backends")):
        raise ArgumentError("it names no backend")
    Cells([v.cell for v in variants])                               # raises where they fill no box
    titles = entry("it", data, "titles", dict)
    tolerance: float | str | None = data.get("tolerance", "")
    if tolerance is not None and not (isinstance(tolerance, str) and tolerance):
        tolerance = float(entry("it", data, "tolerance", float))
        if not tolerance >= 0:
            raise ArgumentError(f"its 'tolerance' is {tolerance}, and 0 or more is needed")
    parse(tolerance)                                                # raises for a text that is no accuracy
    return Pin(entry("it", data, "written", str), texts("dims"), tolerance, backends, variants,
               entry("it", data, "source", str), entry("it", data, "prepared", str), texts("devices"),
               {key: entry("'titles'", titles, key, str) for key in titles})


def _variant(of: str, data: Any) -> Pinned:
    """Return one variant. of: its name in errors. Raises the errors of `_read`."""
    cell, at = entry(of, data, "cell", dict), entry(of, data, "at", dict)
    ranges = {}
    for name in cell:
        ends = entry(f"'cell' of {of}", cell, name, list)
        if len(ends) != 2:
            raise ArgumentError(f"{name!r} in 'cell' of {of} is {ends!r}, and the least and the most size are needed")
        low, high = (of_kind(f"{name!r} in 'cell' of {of}", end, int) for end in ends)
        ranges[name] = low, high
    return Pinned(Cell.of(ranges), {name: entry(f"'at' of {of}", at, name, int) for name in at},
                  path_from_json(entry(of, data, "path", dict)))
