"""unstorable_values: values in an SQLite file that their columns cannot hold, as SQLite lets anybody write anything anywhere.

In: a connection.  Out: a line for each such value, with table, column and row.  Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tensor_graphs.records import schema
from tensor_graphs.records.table_order import TABLES

_NUMBER, _TEXT, _BYTES = ("integer", "real"), ("text",), ("blob",)
MOST = 20
"""Most lines for one column: a program that writes a wrong value often writes it into every row."""


def _stored_as(kind: Any, name: str) -> tuple[str, tuple[str, ...], str]:
    """Return (a name of what a column of this type holds, SQLite's names for the types in which it is stored (empty if any), an SQL
    condition for texts that it cannot hold)."""
    if isinstance(kind, (sa.Integer, sa.Float, sa.Boolean)):
        return "number", _NUMBER, "0"
    if isinstance(kind, sa.LargeBinary):
        return "bytes", _BYTES, "0"
    if isinstance(kind, schema.UtcDateTime):
        return "time", _TEXT, f"julianday({name}) IS NULL"
    if isinstance(kind, schema.JsonObject):
        words = "array" if kind.kind is list else "object"
        return f"JSON {words}", _TEXT, f"CASE WHEN json_valid({name}) THEN json_type({name}) NOT IN ('{words}', 'null') ELSE 1 END"
    return ("text", _TEXT, "0") if isinstance(kind, sa.String) else ("", (), "")


def wrong_values(connection: Connection) -> Iterator[tuple[str, int, str]]:
    """Yield (table, row, `table.column of row 5 holds the text 'x', and no number`), table by table. Yields nothing for a database
    other than SQLite, as a server checks types itself."""
    if connection.dialect.name != "sqlite":
        return
    for table in TABLES:
        for column in table.columns:
            name = column.name
            what, fitting, unfit = _stored_as(column.type, name)
            if not fitting:
                continue
            words = ", ".join(f"'{word}'" for word in (*fitting, "null"))
            wrong = f"typeof({name}) NOT IN ({words}) OR (typeof({name}) = 'text' AND {unfit})"
            query = f"SELECT id, typeof({name}), quote({name}) FROM {table.name} WHERE {wrong} LIMIT {MOST}"
            for row, stored, value in connection.exec_driver_sql(query):
                shown = value if len(value) <= 40 else value[:40] + "…"
                yield table.name, row, f"{table.name}.{name} of row {row} holds {shown}, stored as {stored}, and no {what}"
