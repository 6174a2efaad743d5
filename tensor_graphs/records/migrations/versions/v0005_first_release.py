"""0005: the tables of the first release, from the models. A database of 0004 gets the missing ones (docs/decisions/0023)."""

from __future__ import annotations

from alembic import op

from tensor_graphs.records.schema import Base
from tensor_graphs.records.views import create_views

revision = "0005"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    Base.metadata.create_all(op.get_bind())
    create_views(op.get_bind())
