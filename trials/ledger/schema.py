"""The ledger's section of the search file."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from search_spaces.errors import InputError
from search_spaces.validation import Section, did_you_mean

DRIVERS = ("sqlite", "postgresql", "postgresql+psycopg")


def _require_ledger_url(url: str) -> str:
    """InputError for a database Parlay does not speak to, or a password in the file."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in DRIVERS:
        raise InputError.of(
            "ledger_url",
            f"is {url!r}",
            rule="a ledger's URL begins with " + ", ".join(f"{driver}://" for driver in DRIVERS),
            fix=did_you_mean(scheme, DRIVERS) or "for example sqlite:////home/me/parlay/ledger.db",
            value=url,
        )
    if "@" in rest and urlsplit(url).password is not None:
        raise InputError.of(
            "secret",
            "has a password in it",
            rule="no secret stands in a configuration file or on a command line",
            fix="remove it, and use PGPASSWORD or a ~/.pgpass of mode 0600",
        )
    if scheme == "sqlite" and len(rest) < 2:
        raise InputError.of(
            "ledger_url", f"is {url!r}", rule="sqlite:///relative.db or sqlite:////absolute.db", value=url
        )
    return url


class LedgerSection(Section):
    """Where trials are written down."""

    url: Annotated[str, AfterValidator(_require_ledger_url)] | None = Field(
        None,
        max_length=4096,
        description="Database: sqlite:///... or postgresql://... Default: an SQLite file on this machine's disk.",
    )
