"""table_order: the tables of the schema, parents before children."""

from __future__ import annotations

import sqlalchemy as sa

from tensor_graphs.records.schema import Base

TABLES: tuple[sa.Table, ...] = tuple(Base.metadata.sorted_tables)


def parents(table: sa.Table) -> list[tuple[str, str]]:
    """Return (column, name of the table that it refers to) for each foreign key of a table."""
    return [(c.name, key.column.table.name) for c in table.columns for key in c.foreign_keys]
