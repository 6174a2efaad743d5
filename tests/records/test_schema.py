"""schema: the migrations build what the models say, and the database itself refuses rows that make no sense."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from tensor_graphs.records import measurements, schema, upkeep
from tensor_graphs.records.connection import connect, parse_target
from tensor_graphs.records.database import open_database
from tensor_graphs.records.errors import SchemaMismatch
from tensor_graphs.records.migrating import MIGRATIONS, upgrade
from tensor_graphs.records.rows import IMPLEMENTATION_TYPES, STATUSES, TRACE_KINDS
from tensor_graphs.records.views import VIEWS


def described(engine: sa.Engine) -> dict[str, object]:
    """Everything the inspector sees, per table, in an order that does not depend on how the table was made."""
    inspector = sa.inspect(engine)
    tables: dict[str, object] = {}
    for table in inspector.get_table_names():
        tables[table] = {
            "columns": sorted(
                (c["name"], repr(c["type"]), c["nullable"], c["primary_key"]) for c in inspector.get_columns(table)
            ),
            "primary key": inspector.get_pk_constraint(table),
            "foreign keys": sorted(map(repr, inspector.get_foreign_keys(table))),
            "unique": sorted(map(repr, inspector.get_unique_constraints(table))),
            "checks": sorted(map(repr, inspector.get_check_constraints(table))),
            "indexes": sorted(
                repr({**index, "dialect_options": {k: str(v) for k, v in index["dialect_options"].items()}})
                for index in inspector.get_indexes(table)
            ),
        }
    with engine.connect() as connection:
        for view in inspector.get_view_names():
            sql = connection.exec_driver_sql("SELECT sql FROM sqlite_master WHERE name = ?", (view,)).scalar_one()
            tables[f"view {view}"] = " ".join(sql.split())
    return tables


@pytest.fixture
def migrated(tmp_path: Path) -> Iterator[sa.Engine]:
    """An empty database that went through every migration, as one of the first release would."""
    engine = connect(parse_target(tmp_path / "migrated.db"), 10)
    with engine.connect().execution_options(write=True) as connection, connection.begin():
        upgrade(connection, None, "migrated.db")
    yield engine
    engine.dispose()


def test_the_migrations_create_exactly_the_schema_of_the_models(database, migrated: sa.Engine) -> None:
    by_migration, from_models = described(migrated), described(database.engine)
    views = {f"view {name}" for name in VIEWS}
    assert by_migration.keys() == from_models.keys() == set(schema.Base.metadata.tables) | views | {"alembic_version"}
    for table in from_models:
        assert by_migration[table] == from_models[table]
    for engine in (migrated, database.engine):
        with engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(context, schema.Base.metadata) == []
            assert context.get_current_heads() == (schema.REVISION,)


def test_a_changed_model_is_noticed_by_the_comparison(database) -> None:
    changed = sa.MetaData()
    for table in schema.Base.metadata.sorted_tables:
        table.to_metadata(changed)
    changed.tables["workloads"].append_column(sa.Column("surprise", sa.Integer))
    with database.engine.connect() as connection:
        found = compare_metadata(MigrationContext.configure(connection), changed)
    assert [(change[0], change[3].name) for change in found] == [("add_column", "surprise")]


def test_the_revision_that_opens_without_alembic_is_the_newest_migration(database) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_heads() == [schema.REVISION]
    assert database.revision() == schema.REVISION


def test_the_last_schema_before_the_first_release_gets_what_it_lacks_and_keeps_its_rows(database, make, tmp_path: Path) -> None:
    database.add_trace(make.trace())
    database.close()
    make.as_of_0004(Path(database.location))
    with open_database(database.location) as again:
        assert again.revision() == schema.REVISION and upkeep.check(again).ok
        assert upkeep.stats(again).rows["benchmark_traces"] == 1 and upkeep.stats(again).rows["recipe_searches"] == 0
        with open_database(tmp_path / "new.db") as new:
            assert described(again.engine) == described(new.engine)


def test_an_older_schema_is_refused_with_the_way_to_keep_its_rows(database, make) -> None:
    database.close()
    make.as_of_0004(Path(database.location), "0002")
    with pytest.raises(SchemaMismatch, match=r"schema 0002 of a tree before the first release.*\n  fix: `tg db export`"):
        open_database(database.location)


def test_the_schema_can_be_written_for_postgresql() -> None:
    dialect = postgresql.dialect()
    for table in schema.Base.metadata.sorted_tables:
        assert table.name in str(CreateTable(table).compile(dialect=dialect))
        names = [constraint.name for constraint in table.constraints] + [index.name for index in table.indexes]
        assert all(len(name) <= 63 for name in names if name), names  # PostgreSQL cuts longer ones
        for index in table.indexes:
            assert str(CreateIndex(index).compile(dialect=dialect)).startswith("CREATE INDEX")


def test_the_three_promises_of_every_connection_hold(database) -> None:
    with database.reading() as connection:
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() >= 30_000


COLUMNS = ("implementation_id", "workload_id", "environment_id", "kind", "status", "median_ms")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"implementation_id": 99}, "FOREIGN KEY"),
        ({"workload_id": 99}, "FOREIGN KEY"),
        ({"environment_id": 99}, "FOREIGN KEY"),
        ({"status": "GREAT"}, "ck_benchmark_traces_status"),
        ({"kind": "lukewarm"}, "ck_benchmark_traces_kind"),
        ({"median_ms": -1.0}, "ck_benchmark_traces_median_ms"),
        ({"median_ms": None}, "ck_benchmark_traces_passed_has_time"),
        ({"status": None}, "NOT NULL"),
    ],
)
def test_sqlite_itself_refuses_a_bad_trace(database, make, changes: dict[str, object], complaint: str) -> None:
    database.add_trace(make.trace())
    insert = (
        "INSERT INTO benchmark_traces (implementation_id, workload_id, environment_id, kind, status, median_ms,"
        " samples_ms, sample_count, baseline, timer, verifier, timestamp, conditions)"
        " VALUES (?, ?, ?, ?, ?, ?, '[]', 0, '', '', '', '2026-01-01 00:00:00.000000', '{}')"
    )
    good = dict(zip(COLUMNS, (1, 1, 1, "cold", "PASSED", 1.0), strict=True))
    raw = sqlite3.connect(database.location)
    raw.execute("PRAGMA foreign_keys = ON")
    raw.execute(insert, tuple(good.values()))
    with pytest.raises(sqlite3.IntegrityError, match=complaint):
        raw.execute(insert, tuple({**good, **changes}.values()))
    raw.close()


def test_every_status_type_and_kind_the_rows_allow_is_allowed_by_the_table(database, make) -> None:
    for status in STATUSES:
        for kind in TRACE_KINDS:
            database.add_trace(make.trace(status=status, kind=kind))
    stored = upkeep.stats(database)
    assert stored.traces_by_status == dict.fromkeys(STATUSES, len(TRACE_KINDS))
    assert {make.kernel().type, make.recipe().type} == set(IMPLEMENTATION_TYPES)
    database.ensure_implementation(make.recipe())


def test_a_database_of_0005_takes_traces_of_searches_and_keeps_its_rows(database, make) -> None:
    row = database.add_trace(make.trace())
    database.close()
    make.as_of_0005(Path(database.location))
    with open_database(database.location) as again:
        assert again.revision() == schema.REVISION and upkeep.check(again).ok
        assert upkeep.stats(again).rows["benchmark_traces"] == row == 1
        again.add_trace(make.trace(kind="search"))
        with again.engine.connect() as connection:
            views = connection.exec_driver_sql("SELECT sql FROM sqlite_master WHERE name = 'leaderboard'").scalar_one()
        assert "search" in views


def test_what_a_search_measured_is_no_time_that_a_choice_rests_on(database, make) -> None:
    database.add_trace(make.trace(kind="search"))
    assert measurements.latest_traces(database, make.here) == {}
    database.add_trace(make.trace(max_relative_error=1e-7))
    (one,) = measurements.latest_traces(database, make.here).values()
    assert one.times == 1
