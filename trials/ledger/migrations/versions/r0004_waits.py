"""Attempts know why they do not go on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("attempt", sa.Column("waits_for", sa.JSON()))
