"""path_reader: the path that somebody saved; `Path.to_json` writes it."""

from __future__ import annotations

from typing import Any

from tensor_graphs.arguments import ArgumentError
from tensor_graphs.documents import entry
from tensor_graphs.paths.path import NoPathError, Path, is_way_on

AGAIN = "save it again (of a pin: tg plan GRAPH --pin FILE --force; in Python plan.pin.save, path.to_json)"
"""the fix for a saved path that is damaged"""


def path_from_json(data: Any) -> Path:
    """The path that `to_json` wrote, without a price. Raises NoPathError when it is incomplete or was changed by hand."""
    of = "the saved path"
    try:
        choices, identities = ({key: entry(key_of, found, key, str) for key in found} for key_of, found in (
            (f"{key!r} of {of}", entry(of, data, key, dict)) for key in ("choices", "identities")))
        path = Path(entry(of, data, "graph", str), choices, 0.0, False, None, identities=identities)
        known = entry(of, data, "id", str)
    except ArgumentError as e:
        raise NoPathError(f"{e}\n  fix: {AGAIN}") from None
    if path.id != known:
        raise NoPathError(f"the saved path says it is {known}, its choices make it {path.id}: it was changed\n  fix: {AGAIN}")
    missing = sorted(name for name in set(choices.values()) - set(identities) if not is_way_on(name))
    if missing:
        raise NoPathError(f"the saved path {known} does not say which {missing[0]} it means\n"
                          f"  fix: {AGAIN}")
    return path
