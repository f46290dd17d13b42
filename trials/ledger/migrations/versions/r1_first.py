"""The first schema: search, trial, attempt, command. Frozen: a later change is a migration of its own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "1"
down_revision = None

_TIME = sa.String(27)
_DOCUMENT = sa.JSON()


def upgrade() -> None:
    _create_search()
    _create_trial()
    _create_attempt()
    _create_command()


def _create_search() -> None:
    op.create_table(
        "search",
        sa.Column("search_id", sa.String(64), primary_key=True),
        sa.Column("spec", _DOCUMENT, nullable=False),
        sa.Column("code_hash", sa.String, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("end_reason", sa.String(32)),
        sa.Column("detail", _DOCUMENT),
        sa.Column("best_trial", sa.String(16)),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("ended_at", _TIME),
        sa.Column("last_seq", sa.Integer, nullable=False),
        sa.Column("fencing", sa.Integer, nullable=False),
        sa.Column("lease", _DOCUMENT),
        sa.Column("pilots", _DOCUMENT, nullable=False),
        sa.Column("fabric_check", _DOCUMENT),
    )
    op.create_index("ix_search_created_at", "search", ["created_at"])


def _create_trial() -> None:
    op.create_table(
        "trial",
        sa.Column("search_id", sa.String(64), sa.ForeignKey("search.search_id"), primary_key=True),
        sa.Column("trial", sa.String(16), primary_key=True),
        sa.Column("proposed_seq", sa.Integer, nullable=False),
        sa.Column("proposed_at", _TIME),
        sa.Column("layout", _DOCUMENT, nullable=False),
        sa.Column("layout_key", sa.String, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("prediction", _DOCUMENT),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(32)),
    )
    op.create_index("trial_layout_key", "trial", ["layout_key"])
    op.create_index("trial_state", "trial", ["search_id", "state"])


def _create_attempt() -> None:
    op.create_table(
        "attempt",
        sa.Column("search_id", sa.String(64), primary_key=True),
        sa.Column("trial", sa.String(16), primary_key=True),
        sa.Column("attempt", sa.String(16), primary_key=True),
        sa.Column("nonce", sa.String(32), nullable=False),
        sa.Column("num_nodes", sa.Integer, nullable=False),
        sa.Column("time_limit_s", sa.Double, nullable=False),
        sa.Column("reserved_s", sa.Double),
        sa.Column("exclude", _DOCUMENT, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(32)),
        sa.Column("job_id", sa.String),
        sa.Column("nodes", _DOCUMENT, nullable=False),
        sa.Column("leaves", _DOCUMENT, nullable=False),
        sa.Column("submitted_at", _TIME),
        sa.Column("started_at", _TIME),
        sa.Column("ended_at", _TIME),
        sa.Column("unknown_since", _TIME),
        sa.Column("waits_for", _DOCUMENT),
        sa.Column("restart", sa.Integer, nullable=False),
        sa.Column("earlier_node_hours", sa.Double, nullable=False),
        sa.Column("node_hours", sa.Double),
        sa.Column("billed_hours", sa.Double),
        sa.Column("outcome", _DOCUMENT),
        sa.Column("excerpt", _DOCUMENT),
        sa.ForeignKeyConstraint(["search_id", "trial"], ["trial.search_id", "trial.trial"]),
    )
    op.create_index("attempt_state", "attempt", ["search_id", "state"])
    op.create_index("attempt_job_id", "attempt", ["job_id"])


def _create_command() -> None:
    op.create_table(
        "command",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("search_id", sa.String(64), sa.ForeignKey("search.search_id"), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("settled_at", _TIME),
    )
    op.create_index("command_search", "command", ["search_id", "settled_at"])
