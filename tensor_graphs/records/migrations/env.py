"""env: the script that Alembic runs. `migrating.py` passes the connection, in a transaction that holds the write lock."""

from __future__ import annotations

from alembic import context

from tensor_graphs.records.schema import Base

connection = context.config.attributes.get("connection")
if connection is None:
    raise RuntimeError("migrations run through tensor_graphs.records.open_database, which holds the lock")
context.configure(connection=connection, target_metadata=Base.metadata, compare_type=True)
with context.begin_transaction():
    context.run_migrations()
