"""0007: the leaderboard gets columns for what a path runs, and for the backends that compute it."""

from __future__ import annotations

from alembic import op

from tensor_graphs.records.views import create_views

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_views(op.get_bind())
