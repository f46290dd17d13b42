"""Searches know what their pilots held beside what attempts have booked."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("search", sa.Column("pilots", sa.JSON()))
