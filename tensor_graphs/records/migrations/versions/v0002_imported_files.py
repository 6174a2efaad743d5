"""0002: the files and lines of imported data sets, and the columns that their definitions and solutions need."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

ROW = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
ROWS = {
    "definition": ("definition_id", "definitions"),
    "solution": ("implementation_id", "implementations"),
    "workload": ("workload_id", "workloads"),
    "trace": ("trace_id", "benchmark_traces"),
}
ADDED = (
    ("definitions", "op_type", sa.String(length=100)),
    ("definitions", "inputs", sa.JSON()),
    ("definitions", "outputs", sa.JSON()),
    ("definitions", "constraints", sa.JSON()),
    ("definitions", "reference", sa.Text()),
    ("implementations", "author", sa.String(length=200)),
    ("implementations", "description", sa.Text()),
)
INDEXED = (("definitions", "op_type"), ("implementations", "author"))


def upgrade() -> None:
    for table, name, kind in ADDED:
        op.add_column(table, sa.Column(name, kind, nullable=True))
    for table, name in INDEXED:
        op.create_index(op.f(f"ix_{table}_{name}"), table, [name], unique=False)
    op.create_table(
        "imported_files",
        sa.Column("id", ROW, nullable=False),
        sa.Column("dataset", sa.String(length=200), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("imported_at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_imported_files")),
        sa.UniqueConstraint("dataset", "path", name=op.f("uq_imported_files_dataset_path")),
    )
    op.create_table(
        "imported_lines",
        sa.Column("id", ROW, nullable=False),
        sa.Column("file_id", ROW, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("definition", sa.String(length=200), nullable=True),
        *(sa.Column(column, ROW, nullable=True) for column, _ in ROWS.values()),
        sa.Column("rest", sa.Text(), nullable=True),
        sa.Column("verbatim", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "kind IN ('definition', 'solution', 'workload', 'trace', 'blank', 'whole')",
            name=op.f("ck_imported_lines_kind"),
        ),
        *(
            sa.CheckConstraint(f"({column} IS NOT NULL) = (kind = '{kind}')", name=op.f(f"ck_imported_lines_{kind}_row"))
            for kind, (column, _) in ROWS.items()
        ),
        sa.ForeignKeyConstraint(
            ["file_id"], ["imported_files.id"], name=op.f("fk_imported_lines_file_id"), ondelete="CASCADE"
        ),
        *(
            sa.ForeignKeyConstraint([column], [f"{table}.id"], name=op.f(f"fk_imported_lines_{column}"), ondelete="CASCADE")
            for column, table in ROWS.values()
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_imported_lines")),
    )
    op.create_index("ix_imported_lines_file", "imported_lines", ["file_id", "number"], unique=False)
    for name in ("definition", *(column for column, _ in ROWS.values())):
        op.create_index(op.f(f"ix_imported_lines_{name}"), "imported_lines", [name], unique=False)


def downgrade() -> None:
    op.drop_table("imported_lines")
    op.drop_table("imported_files")
    for table, name in INDEXED:
        op.drop_index(op.f(f"ix_{table}_{name}"), table_name=table)
    for table, name, _ in ADDED:
        op.drop_column(table, name)
