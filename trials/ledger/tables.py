"""Tables of the ledger. Times are RFC 3339 text, documents JSON; a change here needs a migration."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Double, ForeignKey, ForeignKeyConstraint, Index, Integer, String, TypeDecorator
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from trials.trial import utc_seconds, utc_text

Document = JSON(none_as_null=True)
"""JSON text, also for log excerpts and details: JSON escapes characters that a database's text cannot hold."""


class UtcText(TypeDecorator[float]):
    """UTC seconds since the epoch, stored as `2026-01-31T12:00:00.000000Z`, which also sorts by time."""

    impl = String(27)
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Any) -> str | None:
        return None if value is None else utc_text(value)

    def process_result_value(self, value: str | None, dialect: Any) -> float | None:
        return None if value is None else utc_seconds(value)


class Base(DeclarativeBase):
    pass


class SearchRow(Base):
    """A search; `lease` is a copy of lease.json, the authority, and `driver_jobs` is null in rows of schema 1."""

    __tablename__ = "search"

    search_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    spec: Mapped[Any] = mapped_column(Document)
    code_hash: Mapped[str] = mapped_column(String)
    state: Mapped[str] = mapped_column(String(16))
    end_reason: Mapped[str | None] = mapped_column(String(32))
    detail: Mapped[Any] = mapped_column(Document, nullable=True)
    best_trial: Mapped[str | None] = mapped_column(String(16))
    created_at: Mapped[float] = mapped_column(UtcText, index=True)
    ended_at: Mapped[float | None] = mapped_column(UtcText)
    last_seq: Mapped[int] = mapped_column(Integer)
    fencing: Mapped[int] = mapped_column(Integer)
    lease: Mapped[Any] = mapped_column(Document, nullable=True)
    pilots: Mapped[Any] = mapped_column(Document)
    driver_jobs: Mapped[Any] = mapped_column(Document, nullable=True)
    fabric_check: Mapped[Any] = mapped_column(Document, nullable=True)


class TrialRow(Base):
    """A trial; `proposed_seq` is the event that proposed it and so gives the order."""

    __tablename__ = "trial"
    __table_args__ = (Index("trial_layout_key", "layout_key"), Index("trial_state", "search_id", "state"))

    search_id: Mapped[str] = mapped_column(ForeignKey("search.search_id"), primary_key=True)
    trial: Mapped[str] = mapped_column(String(16), primary_key=True)
    proposed_seq: Mapped[int] = mapped_column(Integer)
    proposed_at: Mapped[float | None] = mapped_column(UtcText)
    layout: Mapped[Any] = mapped_column(Document)
    layout_key: Mapped[str] = mapped_column(String)
    kind: Mapped[str] = mapped_column(String(16))
    prediction: Mapped[Any] = mapped_column(Document, nullable=True)
    state: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str | None] = mapped_column(String(32))


class AttemptRow(Base):
    """One launch of a trial."""

    __tablename__ = "attempt"
    __table_args__ = (
        ForeignKeyConstraint(["search_id", "trial"], ["trial.search_id", "trial.trial"]),
        Index("attempt_state", "search_id", "state"),
        Index("attempt_job_id", "job_id"),
    )

    search_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    trial: Mapped[str] = mapped_column(String(16), primary_key=True)
    attempt: Mapped[str] = mapped_column(String(16), primary_key=True)
    nonce: Mapped[str] = mapped_column(String(32))
    num_nodes: Mapped[int] = mapped_column(Integer)
    time_limit_s: Mapped[float] = mapped_column(Double)
    reserved_s: Mapped[float | None] = mapped_column(Double)
    exclude: Mapped[Any] = mapped_column(Document)
    state: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str | None] = mapped_column(String(32))
    job_id: Mapped[str | None] = mapped_column(String)
    nodes: Mapped[Any] = mapped_column(Document)
    leaves: Mapped[Any] = mapped_column(Document)
    submitted_at: Mapped[float | None] = mapped_column(UtcText)
    started_at: Mapped[float | None] = mapped_column(UtcText)
    ended_at: Mapped[float | None] = mapped_column(UtcText)
    unknown_since: Mapped[float | None] = mapped_column(UtcText)
    waits_for: Mapped[Any] = mapped_column(Document, nullable=True)
    restart: Mapped[int] = mapped_column(Integer)
    earlier_node_hours: Mapped[float] = mapped_column(Double)
    node_hours: Mapped[float | None] = mapped_column(Double)
    billed_hours: Mapped[float | None] = mapped_column(Double)
    outcome: Mapped[Any] = mapped_column(Document, nullable=True)
    excerpt: Mapped[Any] = mapped_column(Document, nullable=True)


class CommandRow(Base):
    """A command to the driver; `settled_at` is set once the driver has recorded its effects."""

    __tablename__ = "command"
    __table_args__ = (Index("command_search", "search_id", "settled_at"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    search_id: Mapped[str] = mapped_column(ForeignKey("search.search_id"))
    kind: Mapped[str] = mapped_column(String(16))
    at: Mapped[float] = mapped_column(UtcText)
    settled_at: Mapped[float | None] = mapped_column(UtcText)
