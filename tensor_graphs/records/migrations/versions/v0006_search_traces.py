"""0006: traces of kind `search`: times of schedules that a search compared. The leaderboard leaves them out."""

from __future__ import annotations

from alembic import op

from tensor_graphs.records.schema import TRACE_KIND_CHECK
from tensor_graphs.records.views import create_views

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

TABLE, BEFORE = "benchmark_traces", "kind IN ('cold', 'hot', 'in_graph', 'verify')"


def upgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        # A wider check changes no stored row, so its text is replaced where the table is declared, as
        # sqlite.org/lang_altertable.html says; making the table anew would copy all its rows.
        version = int(connection.exec_driver_sql("PRAGMA schema_version").scalar_one())
        connection.exec_driver_sql("PRAGMA writable_schema = ON")
        connection.exec_driver_sql("UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE type = 'table' AND name = ?",
                                   (BEFORE, TRACE_KIND_CHECK, TABLE))
        connection.exec_driver_sql(f"PRAGMA schema_version = {version + 1}")
        connection.exec_driver_sql("PRAGMA writable_schema = OFF")
    else:
        op.drop_constraint("ck_benchmark_traces_kind", TABLE, type_="check")
        op.create_check_constraint("ck_benchmark_traces_kind", TABLE, TRACE_KIND_CHECK)
    create_views(connection)
