"""messages: reads the whole text of an error, so that a test can compare all of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tensor_graphs.language.errors import LanguageError


def said(build: Callable[[], object], error: type[LanguageError]) -> str:
    """The whole message of the error that `build` raises, without the quoted line; the place reads HERE.

    The place has to be in the file that wrote `build`, and the message to quote that line: both move with the test.
    """
    with pytest.raises(error) as caught:
        build()
    found = caught.value
    assert type(found) is error
    assert found.location is not None and found.location.file == build.__code__.co_filename
    where, quoted = str(found.location), f"\n    {found.location.source()}"
    text = str(found)
    assert text.startswith(f"{error.__name__} at {where}: ") and text.count(quoted) == 1
    return text.replace(quoted, "").replace(where, "HERE")
