"""The second schema: a search has the Slurm jobs of its drivers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "2"
down_revision = "1"


def upgrade() -> None:
    op.add_column("search", sa.Column("driver_jobs", sa.JSON()))
