"""Tables of the ledger: the columns are the fields of a search, a trial and an attempt, by their types."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import fields
from enum import Enum
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from sqlalchemy import (
    JSON,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Table,
)

from search_spaces.decoding import WrittenAs
from trials.ledger.events import SearchRecord
from trials.trial import Attempt, Trial

DOCUMENT = JSON(none_as_null=True)
"""JSON, also for texts that a job or a person wrote: a database's text cannot hold every character."""
METADATA = MetaData()


def _columns(kind: type, *left_out: str) -> Iterator[Column[Any]]:
    """A column for each field of a dataclass but these: text for names, enums and times, numbers, else a document."""
    types = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        if field.name not in left_out:
            is_optional = NoneType in get_args(types[field.name])
            known = get_args(types[field.name])[0] if is_optional else types[field.name]
            column_type = DOCUMENT if known is str and is_optional else _type_of(known)
            yield Column(field.name, column_type, nullable=is_optional)


def _type_of(kind: Any) -> Any:
    if get_origin(kind) is Annotated:
        plain, *extras = get_args(kind)
        return String() if any(isinstance(extra, WrittenAs) for extra in extras) else _type_of(plain)
    if isinstance(kind, type) and issubclass(kind, (str, Enum)):
        return String()
    return {int: Integer(), float: Double()}.get(kind, DOCUMENT)


def _key(name: str, *constraints: ForeignKey) -> Column[Any]:
    return Column(name, String(), *constraints, primary_key=True)


def _of_search(**options: Any) -> Column[Any]:
    return Column("search_id", String(), ForeignKey("search.search_id"), **options)


SEARCH = Table("search", METADATA, _key("search_id"), *_columns(SearchRecord, "search_id", "trials"))
TRIAL = Table(
    "trial",
    METADATA,
    _of_search(primary_key=True),
    _key("trial"),
    Column("place", Integer, nullable=False),
    Column("layout_key", String(), nullable=False),
    *_columns(Trial, "trial", "attempts"),
)
"""`place` is the trial's index in its search."""
ATTEMPT = Table(
    "attempt",
    METADATA,
    *map(_key, ("search_id", "trial", "attempt")),
    *_columns(Attempt, "trial", "attempt"),
    ForeignKeyConstraint(["search_id", "trial"], ["trial.search_id", "trial.trial"]),
)
COMMAND = Table(
    "command",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    _of_search(nullable=False),
    Column("at", String(), nullable=False),
    Column("settled_at", String()),
    Index("command_search", "search_id", "settled_at"),
)
"""Requests to drivers to cancel; `settled_at` is when the driver has recorded the effects."""

_COLUMNS = [column for table in METADATA.sorted_tables for column in table.c]
_TEXTS = [f"{column} {type(column.type).__name__} {column.nullable}" for column in _COLUMNS]
SCHEMA = f"{zlib.crc32(repr(_TEXTS).encode()):08x}"
"""Number of these tables: another one has other columns."""
