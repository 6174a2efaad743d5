"""One benchmark database for what may share rows: comparisons cost most of the time here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tensor_graphs.measure import judge as judging
from tensor_graphs.measure.judge import Judge
from tensor_graphs.records.database import Database, open_database


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with open_database(tmp_path_factory.mktemp("shared") / "bench.db") as database:
        yield database


@pytest.fixture(scope="module")
def judge(shared: Database) -> Iterator[Judge]:
    with Judge(shared) as made:
        yield made


@pytest.fixture(scope="module")
def brief_judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """One that measures again, where it doubts, in blocks of 0.05 s only."""
    folder = tmp_path_factory.mktemp("hostile")
    with open_database(folder / "bench.db") as database, Judge(database) as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(judging, "AGAIN", (0.05,))
        yield made
