"""views: SQL views for people with an SQL shell: the rule of `measurements.KnownTime.usable`, applied row by row.

Every condition is a short range of the index ix_benchmark_traces_here, whatever the outer query selects (window functions would
read the entire table). Views are created with the tables and by migrations; nothing in this package reads them.
"""

from __future__ import annotations

from sqlalchemy.engine import Connection

_SAME_CODE = """n.environment_id = t.environment_id AND n.workload_id = t.workload_id
    AND n.implementation_id IN (SELECT s.id FROM implementations s WHERE s.source_hash = i.source_hash)"""
# The trace that `measurements.counting` names, with its AGREE. The windows are over one kernel's times on one workload.
_COUNTING = f"""(SELECT id FROM (
      SELECT id, timestamp, median_ms, COUNT(*) OVER () AS many,
        ROW_NUMBER() OVER (ORDER BY median_ms, timestamp, id) AS place FROM (
        SELECT n.id, n.timestamp, n.median_ms, MIN(n.median_ms) OVER () AS lowest FROM benchmark_traces n
        WHERE {_SAME_CODE}
        AND n.kind = t.kind AND n.status = 'PASSED' AND n.median_ms IS NOT NULL) AS timed
      WHERE median_ms <= 1.25 * lowest) AS agreeing
    WHERE place >= (many + 1) / 2 ORDER BY median_ms, timestamp DESC, id DESC LIMIT 1)"""
VIEWS = {
    "leaderboard": f"""
SELECT g.structural_key AS graph_key, g.human_name AS graph_name, w.key AS workload_key, w.axes_json AS axes,
  e.key AS environment_key, e.hardware_name, t.kind, i.type AS implementation_type, i.name AS implementation_name, i.backend,
  i.description, e.backend AS computed_by, i.source_hash, i.signature, t.median_ms, t.spread, t.speedup_factor,
  (SELECT MAX(n.max_relative_error) FROM benchmark_traces n
    WHERE {_SAME_CODE}
    AND n.status IN ('PASSED', 'INCORRECT_NUMERICAL')) AS worst_relative_error,
  t.timestamp, t.id AS trace_id
FROM benchmark_traces t
JOIN implementations i ON i.id = t.implementation_id
JOIN workloads w ON w.id = t.workload_id
JOIN canonical_graphs g ON g.id = w.canonical_graph_id
JOIN environments e ON e.id = t.environment_id
WHERE t.status = 'PASSED' AND t.median_ms IS NOT NULL AND t.kind <> 'search'
  AND t.id = {_COUNTING}
  AND NOT EXISTS (SELECT 1 FROM benchmark_traces n
    WHERE {_SAME_CODE}
    AND (n.status IN ('INCORRECT_SHAPE', 'INCORRECT_DTYPE', 'MUTATED_INPUT')
      OR (n.status = 'INCORRECT_NUMERICAL' AND NOT COALESCE(n.max_relative_error > n.tolerance, FALSE))))
  AND EXISTS (SELECT 1 FROM benchmark_traces n
    WHERE {_SAME_CODE}
    AND n.status = 'PASSED' AND n.max_relative_error IS NOT NULL)
  AND (SELECT n.status FROM benchmark_traces n
    WHERE {_SAME_CODE}
    ORDER BY n.timestamp DESC, n.id DESC LIMIT 1) IN ('PASSED', 'INCORRECT_NUMERICAL')
  AND NOT EXISTS (SELECT 1 FROM implementation_sources s WHERE s.implementation_id = i.id AND NOT s.trusted)""",
    "kernel_history": """
SELECT i.name AS kernel, i.backend, i.source_hash, t.timestamp, g.human_name AS graph_name, w.axes_json AS axes,
  e.hardware_name, e.key AS environment_key, t.kind, t.status, t.median_ms, t.spread, t.speedup_factor, t.max_relative_error,
  t.tolerance, t.verifier, t.id AS trace_id
FROM benchmark_traces t
JOIN implementations i ON i.id = t.implementation_id
JOIN workloads w ON w.id = t.workload_id
JOIN canonical_graphs g ON g.id = w.canonical_graph_id
JOIN environments e ON e.id = t.environment_id""",
}


def create_views(connection: Connection) -> None:
    """Create the views, replacing existing ones."""
    for name, select in VIEWS.items():
        connection.exec_driver_sql(f"DROP VIEW IF EXISTS {name}")
        connection.exec_driver_sql(f"CREATE VIEW {name} AS{select}")
