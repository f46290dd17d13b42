"""Tables of the ledger: the columns are the fields of a search, a trial and an attempt, by their types."""

from __future__ import annotations

import json
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
    TypeDecorator,
)

from search_spaces.decoding import WrittenAs
from trials.ledger.events import SearchRecord
from trials.trial import Attempt, Trial


class Text(TypeDecorator[str]):
    """Text, escaped as in JSON: a database's text cannot hold every character."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        return None if value is None else json.dumps(value)[1:-1]

    def process_result_value(self, value: str | None, dialect: Any) -> str | None:
        return None if value is None else json.loads(f'"{value}"')


DOCUMENT = JSON(none_as_null=True)
METADATA = MetaData()


def _columns(kind: type, *left_out: str) -> Iterator[Column[Any]]:
    """A column for each field of a dataclass but these: text for text, enums and times, numbers, else a document."""
    types = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        if field.name not in left_out:
            options = [one for one in get_args(types[field.name]) if one is not NoneType]
            is_optional = NoneType in get_args(types[field.name])
            column_type = _column_type(options[0] if is_optional else types[field.name])
            yield Column(field.name, column_type, nullable=is_optional)


def _column_type(kind: Any) -> Any:
    if get_origin(kind) is Annotated:
        plain, *extras = get_args(kind)
        return Text() if any(isinstance(extra, WrittenAs) for extra in extras) else _column_type(plain)
    if isinstance(kind, type) and issubclass(kind, (str, Enum)):
        return Text()
    return {int: Integer(), float: Double()}.get(kind, DOCUMENT)


def _key(name: str, *constraints: ForeignKey) -> Column[Any]:
    return Column(name, Text(), *constraints, primary_key=True)


def _of_search(**options: Any) -> Column[Any]:
    return Column("search_id", Text(), ForeignKey("search.search_id"), **options)


SEARCH = Table("search", METADATA, _key("search_id"), *_columns(SearchRecord, "search_id", "trials"))
TRIAL = Table(
    "trial",
    METADATA,
    _of_search(primary_key=True),
    _key("trial"),
    Column("place", Integer, nullable=False),
    Column("layout_key", Text(), nullable=False),
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
    Column("kind", Text(), nullable=False),
    Column("at", Text(), nullable=False),
    Column("settled_at", Text()),
    Index("command_search", "search_id", "settled_at"),
)
"""Commands to drivers; `settled_at` is when the driver has recorded the effects."""

_COLUMNS = [f"{column} {type(column.type).__name__} {column.nullable}" for table in METADATA.tables.values() for column in table.c]
SCHEMA = f"{zlib.crc32(repr(_COLUMNS).encode()):08x}"
"""Number of these tables: another one has other columns."""
