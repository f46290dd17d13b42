"""The launcher section of the search file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from orchestrator.config.schema.slurm import SlurmSection
from search_spaces.errors import InputError
from search_spaces.schema.sections import resolved_path
from search_spaces.schema.validation import Section, folder_from_context

ENDING_ALLOWANCE_S = 15.0
"""Seconds by which an attempt may outlast its time limit at most.

They cover SIGTERM to SIGKILL, the end of child processes and, on several nodes, the driver's polling and the end of the
ranks that started last.
"""

_HOST = "[A-Za-z0-9_][A-Za-z0-9._-]*"
_PORT = "[0-9]{1,5}"


def _require_address(address: str) -> str:
    """InputError unless it is `auto` or host:port."""
    found = re.fullmatch(f"{_HOST}:({_PORT})", address)
    if address != "auto" and (found is None or not 1 <= int(found[1]) <= 65535):
        raise InputError.of(
            "pattern",
            f"is {address!r}",
            rule="auto, or host:port with a port from 1 to 65535",
            fix="for example 10.0.0.1:6379; remove the key for a private Ray on this machine",
            value=address,
        )
    return address


class LauncherSection(Section):
    """Launcher of a trial's ranks."""

    kind: Literal["ray", "local", "slurm", "slurm_pilot", "simulated"] = Field(
        default="ray",
        description="ray: in a Ray placement group. local: plain processes on this machine. slurm: a batch job for each"
        " trial. slurm_pilot: trials as concurrent steps of one batch job. simulated: results from a measured table,"
        " on a simulated clock.",
    )
    address: Annotated[str, AfterValidator(_require_address)] | None = Field(
        default=None,
        max_length=255,
        json_schema_extra={"pattern": f"^(auto|{_HOST}:{_PORT})$"},
        description="ray: host:port of a running cluster, or auto. Default: a private Ray on this machine.",
    )
    table: str | None = Field(default=None, min_length=1, description="simulated: the measured table (CSV).")
    queue_wait_s: float = Field(
        default=0.0, ge=0, le=10**7, description="simulated: seconds that each trial waits in the simulated queue."
    )
    fabric_check: bool = Field(
        default=False,
        description="Before the first trial, one job on all nodes times the collectives of the layouts' group shapes."
        " Trials avoid nodes that it finds slow, and the measured links become the search's. It takes about two"
        " minutes of all nodes, ten at most.",
    )
    slurm: SlurmSection = SlurmSection()

    @field_validator("table")
    @classmethod
    def _resolve(cls, table: str | None, info: ValidationInfo) -> str | None:
        return None if table is None else str(resolved_path(folder_from_context(info), table))

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> Self:
        if self.kind == "simulated" and self.table is None:
            raise InputError.of("missing_key", "required by kind simulated, and not given", fix="add it", key="table")
        for key, kind in _KIND_OF.items():
            if self.kind != kind and getattr(self, key) != type(self).model_fields[key].default:
                raise InputError.of(
                    "contradiction",
                    f"has no effect with kind {self.kind}",
                    rule=f"{key} belongs to kind {kind}",
                    fix=f"remove it, or set launcher.kind to {kind}",
                    key=key,
                )
        if self.fabric_check and self.kind == "simulated":
            raise InputError.of(
                "contradiction",
                "is true, but kind simulated runs nothing",
                rule="a fabric check runs on the nodes of real trials",
                fix="remove it, or set launcher.kind to local, ray, slurm or slurm_pilot",
                key="fabric_check",
                value=True,
            )
        return self

    @property
    def uses_slurm(self) -> bool:
        """True if trials are Slurm jobs, or steps of one."""
        return self.kind in ("slurm", "slurm_pilot")

    @property
    def has_pilots(self) -> bool:
        """True if trials are steps of allocations of the search."""
        return self.kind == "slurm_pilot"

    @property
    def ranks_run_here(self) -> bool:
        """True if the launcher starts ranks on this machine: `local`, or `ray` without an address."""
        return self.kind == "local" or (self.kind == "ray" and self.address is None)

    @property
    def table_path(self) -> Path | None:
        return None if self.table is None else Path(self.table)


_KIND_OF = {"address": "ray", "table": "simulated", "queue_wait_s": "simulated"}
"""Keys that belong to one kind of launcher."""
