"""Tracking section of the search file."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, Field

from search_spaces.errors import InputError, choice_fix
from search_spaces.schema.validation import Section

SCHEMES = ("sqlite", "http", "https", "postgresql", "mysql", "mssql", "databricks")
_PASSWORD = re.compile(r"://[^/@\s]*:[^/@\s]+@|[?&][^=&]*(password|passwd|pwd)[^=&]*=", re.IGNORECASE)


def require_tracking_uri(uri: str) -> str:
    """Return the address; InputError for a store that MLflow no longer writes, an unknown scheme, or a password."""
    if _PASSWORD.search(uri):
        raise _with_password()
    if not uri.strip():
        raise _bad(
            uri, "a tracking address must not be empty", "remove the key, or give one like http://127.0.0.1:5000"
        )
    if uri == "databricks":
        return uri
    parts = _split(uri)
    scheme = parts.scheme.partition("+")[0]
    if scheme in ("", "file"):
        raise _bad(
            uri,
            "MLflow no longer writes folders of files (file:, ./mlruns)",
            "use a database, for example sqlite:///mlflow.db, or the http address of a server",
        )
    if scheme not in SCHEMES:
        rule = "a tracking address must begin with " + ", ".join(f"{s}:" for s in SCHEMES)
        raise _bad(uri, rule, choice_fix(scheme, SCHEMES))
    if scheme in ("http", "https") and not parts.hostname:
        raise _bad(uri, "an http address must name a host", "for example http://127.0.0.1:5000")
    return uri


def _split(uri: str) -> SplitResult:
    try:
        return urlsplit(uri)
    except ValueError as error:
        raise _bad(uri, f"an address: {error}", None) from error


def _bad(uri: str, rule: str, fix: str | None) -> InputError:
    return InputError.of("mlflow_uri", f"{uri!r} is not a tracking address", rule=rule, fix=fix, value=uri)


def _with_password() -> InputError:
    return InputError.of(
        "secret",
        "the tracking address holds a password",
        rule="secrets must not be in a file or on a command line",
        fix="instead set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD for a server, PGPASSWORD for Postgres",
    )


class TrackingSection(Section):
    """MLflow tracking. A search continues while MLflow is down."""

    enabled: bool = Field(default=True, description="Record the search in MLflow.")
    mlflow_uri: Annotated[str, AfterValidator(require_tracking_uri)] | None = Field(
        default=None,
        max_length=4096,
        description="MLflow's tracking address, for example http://127.0.0.1:5000. Default: an SQLite file.",
    )
    experiment: str = Field(default="parlay", min_length=1, max_length=200, description="MLflow experiment.")
