"""wrong_values: the values in an SQLite file that their columns cannot hold. SQLite lets anybody write anything anywhere.

In: a connection.  Out: a line for each such value, with table, column and row.  Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tensor_graphs.records import schema

_NUMBER, _TEXT, _BYTES = ("integer", "real"), ("text",), ("blob",)
MOST = 20
"""lines of one column: whoever wrote one wrong value has often written it into every row"""


def _stored_as(kind: Any) -> tuple[str, tuple[str, ...]]:
    """What a column of this type holds, for people, and SQLite's words for how it is stored; none for what may be anything."""
    if isinstance(kind, (sa.Integer, sa.Float, sa.Boolean)):
        return "number", _NUMBER
    if isinstance(kind, sa.LargeBinary):
        return "bytes", _BYTES
    if isinstance(kind, schema.UtcDateTime):
        return "time", _TEXT
    if isinstance(kind, schema.JsonObject):
        return "JSON", _TEXT
    return ("text", _TEXT) if isinstance(kind, sa.String) else ("", ())


def wrong_values(connection: Connection) -> Iterator[str]:
    """`table.column of row 5 holds the text 'x', and no number`, table by table. Empty for a database that is no SQLite file, whose
    server looks at types itself."""
    if connection.dialect.name != "sqlite":
        return
    for table in schema.Base.metadata.sorted_tables:
        for column in table.columns:
            what, fitting = _stored_as(column.type)
            if not fitting:
                continue
            words = ", ".join(f"'{word}'" for word in (*fitting, "null"))
            name = column.name
            query = f"SELECT id, typeof({name}), quote({name}) FROM {table.name} WHERE typeof({name}) NOT IN ({words}) LIMIT {MOST}"
            for row, stored, value in connection.exec_driver_sql(query):
                shown = value if len(value) <= 40 else value[:40] + "…"
                yield f"{table.name}.{name} of row {row} holds {shown}, stored as {stored}, and no {what}"
