"""Fixtures of databases, shared with tests/choice."""

from tests.choice.conftest import database, filled, starts

__all__ = ["database", "filled", "starts"]
