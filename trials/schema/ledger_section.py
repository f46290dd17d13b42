"""The ledger's section of the search file."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from search_spaces.errors import InputError, did_you_mean
from search_spaces.schema.validation import Section

DRIVERS = ("sqlite", "sqlite+pysqlite", "postgresql", "postgresql+psycopg")


def _require_ledger_url(url: str) -> str:
    """InputError for a database Parlay does not speak to; the ledger checks the rest when it is opened."""
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in DRIVERS:
        raise InputError.of(
            "ledger_url",
            f"is {url!r}",
            rule="a ledger's URL begins with sqlite:// or postgresql://",
            fix=did_you_mean(scheme, DRIVERS) or "for example sqlite:////home/me/parlay/ledger.db",
            value=url,
        )
    return url


class LedgerSection(Section):
    """Section `ledger`: the database of trials."""

    url: Annotated[str, AfterValidator(_require_ledger_url)] | None = Field(
        default=None,
        max_length=4096,
        description="Database: sqlite:///... or postgresql://... Default: an SQLite file on this machine's disk.",
    )
