"""The launcher section of the search file: how trials become running ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from search_spaces.errors import InputError
from search_spaces.schema import resolved_path
from search_spaces.validation import Section, folder_of


class LauncherSection(Section):
    """What starts a trial's ranks."""

    kind: Literal["ray", "local", "recorded"] = Field(
        default="ray",
        description="ray: in a Ray placement group. local: plain processes on this machine."
        " recorded: answers from a measured table, on a simulated clock.",
    )
    address: str | None = Field(
        default=None,
        min_length=1,
        max_length=255,
        pattern=r"^(auto|[A-Za-z0-9._-]+:[0-9]{1,5})$",
        description="ray: host:port of a running cluster, or auto. Default: a private Ray on this machine.",
    )
    table: str | None = Field(default=None, min_length=1, description="recorded: the measured table (CSV).")
    queue_wait_s: float = Field(
        default=0.0, ge=0, le=10**7, description="recorded: simulated seconds each trial waits in the queue."
    )

    @field_validator("table")
    @classmethod
    def _resolve(cls, table: str | None, info: ValidationInfo) -> str | None:
        return None if table is None else str(resolved_path(folder_of(info), table))

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> Self:
        if self.kind == "recorded" and self.table is None:
            raise InputError.of("missing_key", "required by kind recorded, and not given", key="table")
        for key, kind in _KIND_OF.items():
            if self.kind != kind and getattr(self, key) != type(self).model_fields[key].default:
                raise InputError.of(
                    "contradiction",
                    f"has no effect with kind {self.kind}",
                    rule=f"{key} belongs to kind {kind}",
                    fix=f"remove it, or set launcher.kind to {kind}",
                    key=key,
                )
        return self

    @property
    def table_path(self) -> Path | None:
        return None if self.table is None else Path(self.table)


_KIND_OF = {"address": "ray", "table": "recorded", "queue_wait_s": "recorded"}
"""The keys that only one kind of launcher has."""
