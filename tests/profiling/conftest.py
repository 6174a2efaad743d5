"""One benchmark database for what may share rows: comparisons cost most of the time here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tensor_graphs.records.database import Database, open_database


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with open_database(tmp_path_factory.mktemp("shared") / "bench.db") as database:
        yield database
