"""choice/stored_results.py: what takes seconds to compute is computed once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensor_graphs.choice.stored_results import stored


def test_a_value_is_computed_once_for_a_key_unless_plans_are_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    computed: list[int] = []

    def value() -> list[object]:
        computed.append(len(computed))
        return [0.1, "x", float("inf")]

    monkeypatch.setenv("TENSOR_GRAPHS_PLANS", "on")
    assert stored("sums", (1, "a"), value) == stored("sums", (1, "a"), value) == [0.1, "x", float("inf")] and computed == [0]
    stored("sums", (2, "a"), value)
    stored("products", (1, "a"), value)
    assert len(computed) == 3
    monkeypatch.setenv("TENSOR_GRAPHS_PLANS", "off")
    stored("sums", (1, "a"), value)
    assert len(computed) == 4
