"""0003: indexes for the questions asked of a large database, and two views for people with an SQL shell."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

# spelled out, not derived: a migration says what was, whatever the models say later
LEADERBOARD = """
SELECT g.structural_key AS graph_key, g.human_name AS graph_name, w.key AS workload_key, w.axes_json AS axes,
  e.key AS environment_key, e.hardware_name, t.kind, i.type AS implementation_type, i.name AS implementation_name, i.backend,
  i.source_hash, i.signature, t.median_ms, t.spread, t.speedup_factor,
  (SELECT MAX(n.max_relative_error) FROM benchmark_traces n
    WHERE n.environment_id = t.environment_id AND n.workload_id = t.workload_id
    AND n.implementation_id IN (SELECT s.id FROM implementations s WHERE s.source_hash = i.source_hash)
    AND n.status IN ('PASSED', 'INCORRECT_NUMERICAL')) AS worst_relative_error,
  t.timestamp, t.id AS trace_id
FROM benchmark_traces t
JOIN implementations i ON i.id = t.implementation_id
JOIN workloads w ON w.id = t.workload_id
JOIN canonical_graphs g ON g.id = w.canonical_graph_id
JOIN environments e ON e.id = t.environment_id
WHERE t.status = 'PASSED' AND t.median_ms IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM benchmark_traces n
    WHERE n.environment_id = t.environment_id AND n.workload_id = t.workload_id
    AND n.implementation_id IN (SELECT s.id FROM implementations s WHERE s.source_hash = i.source_hash)
    AND n.kind = t.kind AND n.status = 'PASSED' AND n.median_ms IS NOT NULL
    AND (n.timestamp > t.timestamp OR (n.timestamp = t.timestamp AND n.id > t.id)))
  AND NOT EXISTS (SELECT 1 FROM benchmark_traces n
    WHERE n.environment_id = t.environment_id AND n.workload_id = t.workload_id
    AND n.implementation_id IN (SELECT s.id FROM implementations s WHERE s.source_hash = i.source_hash)
    AND (n.status IN ('INCORRECT_SHAPE', 'INCORRECT_DTYPE', 'MUTATED_INPUT')
      OR (n.status = 'INCORRECT_NUMERICAL' AND NOT COALESCE(n.max_relative_error > n.tolerance, FALSE))))
  AND EXISTS (SELECT 1 FROM benchmark_traces n
    WHERE n.environment_id = t.environment_id AND n.workload_id = t.workload_id
    AND n.implementation_id IN (SELECT s.id FROM implementations s WHERE s.source_hash = i.source_hash)
    AND n.status = 'PASSED' AND n.max_relative_error IS NOT NULL)
  AND (SELECT n.status FROM benchmark_traces n
    WHERE n.environment_id = t.environment_id AND n.workload_id = t.workload_id
    AND n.implementation_id IN (SELECT s.id FROM implementations s WHERE s.source_hash = i.source_hash)
    ORDER BY n.timestamp DESC, n.id DESC LIMIT 1) IN ('PASSED', 'INCORRECT_NUMERICAL')
  AND NOT EXISTS (SELECT 1 FROM implementation_sources s WHERE s.implementation_id = i.id AND NOT s.trusted)"""
KERNEL_HISTORY = """
SELECT i.name AS kernel, i.backend, i.source_hash, t.timestamp, g.human_name AS graph_name, w.axes_json AS axes,
  e.hardware_name, e.key AS environment_key, t.kind, t.status, t.median_ms, t.spread, t.speedup_factor, t.max_relative_error,
  t.tolerance, t.verifier, t.id AS trace_id
FROM benchmark_traces t
JOIN implementations i ON i.id = t.implementation_id
JOIN workloads w ON w.id = t.workload_id
JOIN canonical_graphs g ON g.id = w.canonical_graph_id
JOIN environments e ON e.id = t.environment_id"""
HERE = [
    "environment_id", "workload_id", "implementation_id", "timestamp", "id",
    "kind", "status", "verifier", "max_relative_error", "tolerance", "median_ms",
]  # fmt: skip
VIEWS = {"leaderboard": LEADERBOARD, "kernel_history": KERNEL_HISTORY}


def upgrade() -> None:
    op.create_index(op.f("ix_implementations_name"), "implementations", ["name"], unique=False)
    op.create_index(
        "ix_implementation_sources_untrusted",
        "implementation_sources",
        ["implementation_id"],
        unique=False,
        sqlite_where=sa.text("trusted IS 0"),
        postgresql_where=sa.text("trusted IS false"),
    )
    op.drop_index("ix_benchmark_traces_here", table_name="benchmark_traces")
    op.create_index("ix_benchmark_traces_here", "benchmark_traces", HERE, unique=False)
    op.drop_index("ix_benchmark_traces_history", table_name="benchmark_traces")
    op.create_index(
        "ix_benchmark_traces_history",
        "benchmark_traces",
        ["implementation_id", "timestamp", "id", "environment_id"],
        unique=False,
    )
    op.create_index(
        "ix_benchmark_traces_failures",
        "benchmark_traces",
        ["timestamp", "id"],
        unique=False,
        sqlite_where=sa.text("status <> 'PASSED'"),
        postgresql_where=sa.text("status <> 'PASSED'"),
    )
    for name, select in VIEWS.items():
        op.execute(f"CREATE VIEW {name} AS{select}")


def downgrade() -> None:
    for name in VIEWS:
        op.execute(f"DROP VIEW {name}")
    op.drop_index("ix_benchmark_traces_failures", table_name="benchmark_traces")
    op.drop_index("ix_benchmark_traces_history", table_name="benchmark_traces")
    op.create_index("ix_benchmark_traces_history", "benchmark_traces", ["implementation_id", "timestamp"], unique=False)
    op.drop_index("ix_benchmark_traces_here", table_name="benchmark_traces")
    here = [*HERE, "spread", "speedup_factor"]
    op.create_index("ix_benchmark_traces_here", "benchmark_traces", here, unique=False)
    op.drop_index("ix_implementation_sources_untrusted", table_name="implementation_sources")
    op.drop_index(op.f("ix_implementations_name"), table_name="implementations")
