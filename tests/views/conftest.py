"""The fixture of a database, shared with tests/choice."""

from tests.choice.conftest import database

__all__ = ["database"]
