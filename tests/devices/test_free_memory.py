"""devices/free_memory.py: what does not fit is refused before it is made, with its size and what is free."""

from __future__ import annotations

import pytest

from tensor_graphs.devices import free_memory
from tensor_graphs.devices.free_memory import LARGE, OutOfMemory, require_memory


def test_what_fits_and_what_is_small_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    free = free_memory.free_memory()
    assert free is not None and 1 << 20 < free < 1 << 50
    monkeypatch.setattr(free_memory, "free_memory", lambda: 2 * LARGE)
    require_memory(2 * LARGE, "an array", "")
    monkeypatch.setattr(free_memory, "free_memory", lambda: pytest.fail("asked for a small array"))
    require_memory(LARGE - 1, "an array", "")


def test_what_does_not_fit_is_refused_with_its_size_and_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "free_memory", lambda: 3_000_000_000)
    said = r"^an array takes 4000\.0 GB, and 3\.0 GB of memory are free\n  fix: a smaller one$"
    with pytest.raises(OutOfMemory, match=said) as caught:
        require_memory(4 * 10**12, "an array", "a smaller one")
    assert isinstance(caught.value, MemoryError)                    # who catches that goes on doing so


def test_where_the_system_does_not_say_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "free_memory", lambda: None)
    require_memory(1 << 60, "an array", "")
