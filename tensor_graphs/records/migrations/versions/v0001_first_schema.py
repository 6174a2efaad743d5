"""0001: the first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# spelled out, not derived: a migration says what was, whatever the models say later
STATUS_IN = (
    "status IN ('PASSED', 'INCORRECT_NUMERICAL', 'INCORRECT_SHAPE', 'INCORRECT_DTYPE', 'RUNTIME_ERROR', "
    "'COMPILE_ERROR', "
    "'TIMEOUT', 'MUTATED_INPUT', 'IMPLAUSIBLE')"
)
ROW = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "canonical_graphs",
        sa.Column("id", ROW, nullable=False),
        sa.Column("human_name", sa.String(length=200), nullable=False),
        sa.Column("structural_key", sa.String(length=64), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("json", sa.Text(), nullable=False),
        sa.Column("created", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_canonical_graphs")),
        sa.UniqueConstraint("structural_key", name=op.f("uq_canonical_graphs_structural_key")),
    )
    op.create_table(
        "environments",
        sa.Column("id", ROW, nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("hardware_name", sa.String(length=200), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("platform", sa.String(length=100), nullable=False),
        sa.Column("backend", sa.String(length=64), nullable=False),
        sa.Column("libs", sa.JSON(), nullable=False),
        sa.Column("hardware", sa.JSON(), nullable=False),
        sa.Column("created", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_environments")),
        sa.UniqueConstraint("key", name=op.f("uq_environments_key")),
    )
    op.create_index(op.f("ix_environments_hardware_name"), "environments", ["hardware_name"], unique=False)
    op.create_table(
        "definitions",
        sa.Column("id", ROW, nullable=False),
        sa.Column("canonical_graph_id", ROW, nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("axes", sa.JSON(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("verbatim", sa.Text(), nullable=True),
        sa.Column("created", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["canonical_graph_id"], ["canonical_graphs.id"], name=op.f("fk_definitions_canonical_graph_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_definitions")),
        sa.UniqueConstraint("name", "canonical_graph_id", name=op.f("uq_definitions_name_canonical_graph_id")),
    )
    op.create_index(op.f("ix_definitions_canonical_graph_id"), "definitions", ["canonical_graph_id"], unique=False)
    op.create_table(
        "device_constants",
        sa.Column("id", ROW, nullable=False),
        sa.Column("environment_id", ROW, nullable=False),
        sa.Column("device", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("value", sa.Float(precision=53), nullable=False),
        sa.Column("unit", sa.String(length=32), nullable=False),
        sa.Column("timestamp", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environments.id"], name=op.f("fk_device_constants_environment_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_device_constants")),
    )
    op.create_index(
        "ix_device_constants_name", "device_constants", ["environment_id", "device", "name", "timestamp"], unique=False
    )
    op.create_table(
        "implementations",
        sa.Column("id", ROW, nullable=False),
        sa.Column("signature", sa.String(length=64), nullable=False),
        sa.Column("type", sa.String(length=16), nullable=False),
        sa.Column("canonical_graph_id", ROW, nullable=True),
        sa.Column("recipe_graph_id", ROW, nullable=True),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("backend", sa.String(length=64), nullable=False),
        sa.Column("source_hash", sa.String(length=128), nullable=False),
        sa.Column("numeric_class", sa.String(length=16), nullable=True),
        sa.Column("requirements", sa.JSON(), nullable=False),
        sa.Column("verbatim", sa.Text(), nullable=True),
        sa.Column("created", sa.DateTime(), nullable=False),
        sa.CheckConstraint(
            "(type = 'GRAPH_RECIPE') = (recipe_graph_id IS NOT NULL)", name=op.f("ck_implementations_recipe_has_target")
        ),
        sa.CheckConstraint(
            "numeric_class IS NULL OR numeric_class IN ('bitwise', 'reassociating', 'approximate')",
            name=op.f("ck_implementations_numeric_class"),
        ),
        sa.CheckConstraint("type IN ('KERNEL', 'GRAPH_RECIPE')", name=op.f("ck_implementations_type")),
        sa.ForeignKeyConstraint(
            ["canonical_graph_id"], ["canonical_graphs.id"], name=op.f("fk_implementations_canonical_graph_id")
        ),
        sa.ForeignKeyConstraint(
            ["recipe_graph_id"], ["canonical_graphs.id"], name=op.f("fk_implementations_recipe_graph_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_implementations")),
        sa.UniqueConstraint("signature", name=op.f("uq_implementations_signature")),
    )
    op.create_index(
        op.f("ix_implementations_canonical_graph_id"), "implementations", ["canonical_graph_id"], unique=False
    )
    op.create_index(op.f("ix_implementations_recipe_graph_id"), "implementations", ["recipe_graph_id"], unique=False)
    op.create_index(op.f("ix_implementations_source_hash"), "implementations", ["source_hash"], unique=False)
    op.create_table(
        "workloads",
        sa.Column("id", ROW, nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("canonical_graph_id", ROW, nullable=False),
        sa.Column("axes_hash", sa.String(length=64), nullable=False),
        sa.Column("axes_json", sa.JSON(), nullable=False),
        sa.Column("input_descriptors", sa.JSON(), nullable=False),
        sa.Column("created", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["canonical_graph_id"], ["canonical_graphs.id"], name=op.f("fk_workloads_canonical_graph_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workloads")),
        sa.UniqueConstraint("key", name=op.f("uq_workloads_key")),
    )
    op.create_index(op.f("ix_workloads_canonical_graph_id"), "workloads", ["canonical_graph_id"], unique=False)
    op.create_table(
        "benchmark_traces",
        sa.Column("id", ROW, nullable=False),
        sa.Column("implementation_id", ROW, nullable=False),
        sa.Column("workload_id", ROW, nullable=False),
        sa.Column("environment_id", ROW, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("samples_ms", sa.JSON(), nullable=False),
        sa.Column("sample_count", sa.Integer(), nullable=False),
        sa.Column("median_ms", sa.Float(precision=53), nullable=True),
        sa.Column("spread", sa.Float(precision=53), nullable=True),
        sa.Column("max_relative_error", sa.Float(precision=53), nullable=True),
        sa.Column("p999_relative_error", sa.Float(precision=53), nullable=True),
        sa.Column("norm_error", sa.Float(precision=53), nullable=True),
        sa.Column("max_absolute_error", sa.Float(precision=53), nullable=True),
        sa.Column("tolerance", sa.Float(precision=53), nullable=True),
        sa.Column("baseline", sa.String(length=200), nullable=False),
        sa.Column("baseline_ms", sa.Float(precision=53), nullable=True),
        sa.Column("speedup_factor", sa.Float(precision=53), nullable=True),
        sa.Column("seed", sa.BigInteger(), nullable=True),
        sa.Column("timer", sa.String(length=64), nullable=False),
        sa.Column("verifier", sa.String(length=64), nullable=False),
        sa.Column("timestamp", sa.DateTime(), nullable=False),
        sa.Column("full_log", sa.LargeBinary(), nullable=True),
        sa.Column("conditions", sa.JSON(), nullable=False),
        sa.Column("verbatim", sa.Text(), nullable=True),
        sa.CheckConstraint("kind IN ('cold', 'hot', 'in_graph', 'verify')", name=op.f("ck_benchmark_traces_kind")),
        sa.CheckConstraint(
            "status <> 'PASSED' OR kind = 'verify' OR median_ms IS NOT NULL",
            name=op.f("ck_benchmark_traces_passed_has_time"),
        ),
        sa.CheckConstraint(
            STATUS_IN,
            name=op.f("ck_benchmark_traces_status"),
        ),
        sa.CheckConstraint("median_ms >= 0", name=op.f("ck_benchmark_traces_median_ms")),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environments.id"], name=op.f("fk_benchmark_traces_environment_id")
        ),
        sa.ForeignKeyConstraint(
            ["implementation_id"], ["implementations.id"], name=op.f("fk_benchmark_traces_implementation_id")
        ),
        sa.ForeignKeyConstraint(["workload_id"], ["workloads.id"], name=op.f("fk_benchmark_traces_workload_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_benchmark_traces")),
    )
    op.create_index(
        "ix_benchmark_traces_here",
        "benchmark_traces",
        [
            "environment_id",
            "workload_id",
            "implementation_id",
            "timestamp",
            "id",
            "kind",
            "status",
            "verifier",
            "max_relative_error",
            "tolerance",
            "median_ms",
            "spread",
            "speedup_factor",
        ],
        unique=False,
    )
    op.create_index("ix_benchmark_traces_history", "benchmark_traces", ["implementation_id", "timestamp"], unique=False)
    op.create_index("ix_benchmark_traces_workload", "benchmark_traces", ["workload_id"], unique=False)
    op.create_table(
        "implementation_sources",
        sa.Column("id", ROW, nullable=False),
        sa.Column("implementation_id", ROW, nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("content_sha256", sa.String(length=64), nullable=False),
        sa.Column("language", sa.String(length=32), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("trusted", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["implementation_id"],
            ["implementations.id"],
            name=op.f("fk_implementation_sources_implementation_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_implementation_sources")),
        sa.UniqueConstraint("implementation_id", "path", name=op.f("uq_implementation_sources_implementation_id_path")),
    )
    op.create_table(
        "profile_queue",
        sa.Column("id", ROW, nullable=False),
        sa.Column("implementation_id", ROW, nullable=False),
        sa.Column("workload_id", ROW, nullable=False),
        sa.Column("environment_id", ROW, nullable=False),
        sa.Column("priority", sa.Float(precision=53), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("requested_at", sa.DateTime(), nullable=False),
        sa.Column("claimed_by", sa.String(length=200), nullable=True),
        sa.Column("claimed_at", sa.DateTime(), nullable=True),
        sa.Column("lease_until", sa.DateTime(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "(claimed_by IS NULL) = (lease_until IS NULL)", name=op.f("ck_profile_queue_claim_has_lease")
        ),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environments.id"], name=op.f("fk_profile_queue_environment_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["implementation_id"],
            ["implementations.id"],
            name=op.f("fk_profile_queue_implementation_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["workload_id"], ["workloads.id"], name=op.f("fk_profile_queue_workload_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_profile_queue")),
        sa.UniqueConstraint(
            "implementation_id",
            "workload_id",
            "environment_id",
            name=op.f("uq_profile_queue_implementation_id_workload_id_environment_id"),
        ),
    )
    op.create_index("ix_profile_queue_next", "profile_queue", ["environment_id", "priority", "id"], unique=False)
    op.create_index("ix_profile_queue_workload_id", "profile_queue", ["workload_id"], unique=False)


def downgrade() -> None:
    for table in (
        "profile_queue",
        "implementation_sources",
        "benchmark_traces",
        "workloads",
        "implementations",
        "device_constants",
        "definitions",
        "environments",
        "canonical_graphs",
    ):
        op.drop_table(table)
