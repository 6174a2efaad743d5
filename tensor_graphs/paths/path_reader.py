"""path_reader: reads a saved path, as `Path.to_json` wrote it."""

from __future__ import annotations

from typing import Any

from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.json_checks import entry
from tensor_graphs.meaning.precision import parse_form
from tensor_graphs.paths.path import NoPathError, Path, is_way_on

AGAIN = "save it again (of a pin: tg plan GRAPH --pin FILE --force; in Python plan.pin.save, path.to_json)"
"""Fix in the error for a saved path that is damaged."""


def path_from_json(data: Any) -> Path:
    """Return the path that `to_json` wrote, without a cost. Raises NoPathError when it is incomplete or was changed by hand."""
    of = "the saved path"
    try:
        choices, identities = ({key: entry(f"{field!r} of {of}", names, key, str) for key in names} for field, names in (
            (field, entry(of, data, field, dict)) for field in ("choices", "identities")))
        form = parse_form(entry(of, data, "precision", dict) if "precision" in data else None)
        path = Path(entry(of, data, "graph", str), choices, 0.0, False, None, identities=identities, form=form)
        saved = entry(of, data, "id", str)
    except ArgumentError as e:
        raise NoPathError(f"{e}\n  fix: {AGAIN}") from None
    if path.id != saved:
        raise NoPathError(f"the saved path says it is {saved}, its choices make it {path.id}: it was changed\n  fix: {AGAIN}")
    if missing := sorted(name for name in set(choices.values()) - set(identities) if not is_way_on(name)):
        raise NoPathError(f"the saved path {saved} does not say which {missing[0]} it means\n  fix: {AGAIN}")
    return path
