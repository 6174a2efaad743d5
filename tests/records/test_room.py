"""The room as a whole: naming rows is cheap, and nothing heavy comes along with the database.

Times are processor time, which a busy machine stretches little.
"""

from __future__ import annotations

import pytest

HEAVY = "{'torch', 'sympy', 'transformers', 'alembic', 'rich', 'triton', 'pandas'}"

NAMES_ONLY = f"""
import sys, time
import tensor_graphs
before, begin = set(sys.modules), time.process_time()
from tensor_graphs.records import TraceRecord, ImplementationRecord, WorkloadRecord
import tensor_graphs.devices.environment
print(time.process_time() - begin, sorted((set(sys.modules) - before) & ({HEAVY} | {{'sqlalchemy', 'numpy'}})))
"""

DATABASE = f"""
import sys, time
import tensor_graphs
before, begin = set(sys.modules), time.process_time()
from tensor_graphs.records import database, queries
print(time.process_time() - begin, sorted((set(sys.modules) - before) & {HEAVY}))
"""

OPEN_AGAIN = f"""
import sys
import tensor_graphs
before = set(sys.modules)
from tensor_graphs.records import open_database
open_database(sys.argv[1]).close()
print(0, sorted((set(sys.modules) - before) & {HEAVY}))
"""


def seconds_and_heavy(process) -> tuple[float, str]:
    out, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    seconds, _, heavy = out.strip().partition(" ")
    return float(seconds), heavy


@pytest.mark.processes
def test_naming_rows_imports_neither_sqlalchemy_nor_numpy(start) -> None:
    seconds, heavy = seconds_and_heavy(start(NAMES_ONLY))
    assert heavy == "[]"
    assert seconds < 0.2


@pytest.mark.processes
def test_the_database_and_its_queries_import_sqlalchemy_and_nothing_else_that_is_heavy(start) -> None:
    seconds, heavy = seconds_and_heavy(start(DATABASE))
    assert heavy == "[]"
    assert seconds < 1.5  # 0.3 s on a quiet core


@pytest.mark.processes
def test_opening_a_database_of_the_present_schema_does_not_import_alembic(database, start) -> None:
    assert seconds_and_heavy(start(OPEN_AGAIN, database.location)) == (0, "[]")
