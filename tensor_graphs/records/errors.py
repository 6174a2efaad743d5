"""errors: errors between a measurement and the database file that stores it; each message names the file and the fix."""

from __future__ import annotations

from tensor_graphs.errors import TensorGraphsError


class DatabaseError(TensorGraphsError):
    """The benchmark database could not do what was requested; the base of the other classes."""


class DatabasePathError(DatabaseError):
    """The path cannot hold a database: below a regular file, a folder itself, or in a folder that cannot be written."""


class NoDatabase(DatabasePathError):
    """No database exists at the location from which rows were to be read."""


class UnsupportedDatabase(DatabaseError):
    """The URL names a database other than SQLite and PostgreSQL, or one whose driver is not installed."""


class CorruptDatabase(DatabaseError):
    """The file is not a database, is damaged, or belongs to another program."""


class SchemaMismatch(DatabaseError):
    """The database was written by a newer tensor_graphs, whose tables this version does not know."""


class DatabaseReadOnly(DatabaseError):
    """The database can be read but not written."""


class DatabaseFull(DatabaseError):
    """The disk has no room left for a row."""


class DatabaseBusy(DatabaseError):
    """Another process held the write lock for longer than the busy time-out."""


class InvalidRecord(DatabaseError):
    """A row contradicts itself, the schema's constraints, or a row already stored."""


class ExportError(DatabaseError):
    """An export file cannot be written, or a file to import is no complete export."""


class MissingRecord(DatabaseError):
    """A row refers to another row that is not in the database."""
