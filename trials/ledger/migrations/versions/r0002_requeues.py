"""Attempts know what is reserved for them, which nodes they avoid, and how often their job was put back."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("attempt", sa.Column("reserved_s", sa.Double))
    op.add_column("attempt", sa.Column("exclude", sa.JSON()))
    op.add_column("attempt", sa.Column("restart", sa.Integer, nullable=False, server_default="0"))
    op.add_column("attempt", sa.Column("earlier_node_hours", sa.Double, nullable=False, server_default="0"))
