"""docs/database.md: every SQL question printed there runs, and finds what it claims to find."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from tensor_graphs.records import DeviceConstant, ProfileRequest, SourceRecord, queries, schema

TEXT = (Path(__file__).parents[2] / "docs" / "database.md").read_text()
QUESTIONS = re.findall(r"([^\n]+)\n\n```sql\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question[0][:40])
def test_a_documented_question_has_an_answer(database, make, question: tuple[str, str]) -> None:
    imported = make.kernel("imported", sources=(SourceRecord("k.c", "int x;", origin="elsewhere"),))
    card = dataclasses.replace(make.here, hardware_name="Card")
    database.add_traces([
        make.trace(baseline="plain", baseline_ms=2.2),
        make.trace(make.recipe(), environment=card),
        make.trace(make.recipe(), kind="in_graph"),
        make.trace(imported, status="TIMEOUT", samples_ms=()),
    ])  # fmt: skip
    database.enqueue(ProfileRequest(make.kernel(), make.workload(), make.here))
    database.add_constants(make.here, [DeviceConstant("read_bandwidth", 54e9, "byte/s")])
    with database.reading() as connection:
        rows = connection.exec_driver_sql(question[1]).mappings().all()
    assert rows
    if "recomputed" in rows[0]:
        assert rows[0]["recomputed"] == rows[0]["speedup_factor"]


def test_the_documented_best_is_one_a_machine_of_whichever_backend(database, make) -> None:
    other = dataclasses.replace(make.here, backend="c")
    elsewhere = dataclasses.replace(make.here, hardware_name="AMD EPYC")
    database.add_traces([make.trace(), make.trace(environment=other, samples_ms=(0.5,)), make.trace(environment=elsewhere)])
    by_rule = next(sql for title, sql in QUESTIONS if "timed alone" in title)
    with database.reading() as connection:
        rows = connection.exec_driver_sql(by_rule).mappings().all()
    best = queries.best_per_machine(database, 1e-5)
    assert {row["trace_id"] for row in rows} == {row.trace_id for row in best} and len(rows) == 2
    fastest = next(sql for title, sql in QUESTIONS if "hardware_name FROM environments" in title)
    with database.reading() as connection:
        assert "AMD EPYC" in connection.exec_driver_sql(fastest).scalars().all()


def test_the_page_has_its_questions_and_names_every_table_and_every_column_of_a_trace() -> None:
    assert len(QUESTIONS) >= 8
    for table in schema.Base.metadata.sorted_tables:
        assert f"| `{table.name}` |" in TEXT, table.name
    columns = set(schema.BenchmarkTrace.__table__.columns.keys())
    missing = {each for each in columns if f"`{each}`" not in TEXT}
    assert missing == {"id", "implementation_id", "workload_id", "environment_id"}
