"""Schema of the search file's `notify` section: receivers of notifications, and the events that they are sent for."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from search_spaces.errors import InputError
from search_spaces.schema.durations import Duration
from search_spaces.schema.sections import resolved_path
from search_spaces.schema.validation import Section, folder_from_context
from trials.trial import LowerStrEnum


class NotifyEvent(LowerStrEnum):
    """Event of a search that is notified."""

    END = "end"
    """The search has ended, with or without a result."""
    STALL = "stall"
    """The search has not ended, and no trial has ended for `notify.stall_after`."""
    BUDGET = "budget"
    """Three quarters of one of its limits are used: layouts, node-hours or wall time."""
    SPEEDUP = "speedup"
    """A layout is faster than the baseline by `notify.speedup`, with an interval that excludes 1."""


class NotifySection(Section):
    """Notifications to a command and a webhook, each at most once for a search and an event."""

    events: list[Annotated[NotifyEvent, Field(strict=False)]] = Field(
        default=[NotifyEvent.END],
        description="Events to be notified. end: the search has ended. stall: no trial has ended for stall_after."
        " budget: three quarters of max_trials, of budget_node_hours or of max_wall_time are used, whichever is first."
        " speedup: a layout is faster than the baseline by the factor below.",
    )
    stall_after_s: Duration = Field(
        default=7200.0,
        alias="stall_after",
        description="Time without an end of a trial, since the search was created or the last trial ended, after which"
        " the event stall is notified.",
    )
    speedup: float = Field(
        default=1.1,
        gt=1,
        le=1000,
        description="Measured throughput of the best layout over that of the baseline for the event speedup; the 95 %"
        " interval has to exclude 1, too.",
    )

    command: list[Annotated[str, Field(min_length=1, max_length=4096)]] = Field(
        default=[],
        max_length=100,
        description="Program and arguments, started without a shell; its standard input is the event and the search as"
        " JSON. Time limit: 30 s.",
    )
    webhook: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="File that only you can read (mode 0600) with the http or https address to which the"
        " event and the search are POSTed as JSON. It is a file because an address may contain a token.",
    )

    @field_validator("events")
    @classmethod
    def _require_different(cls, given: list[NotifyEvent]) -> list[NotifyEvent]:
        if given and len(set(given)) == len(given):
            return given
        raise InputError.of(
            "repeat" if given else "missing_key",
            "has a duplicate" if given else "is an empty list",
            rule="a list of different events",
            fix="give each once" if given else f"for example [{', '.join(NotifyEvent)}]",
            value=[event.value for event in given],
        )

    @field_validator("command")
    @classmethod
    def _resolve_program(cls, given: list[str], info: ValidationInfo) -> list[str]:
        """Resolve a program given by path relative to the search file's folder."""
        if not given or not ("/" in given[0] or given[0].startswith("~")):
            return given
        return [str(resolved_path(folder_from_context(info), given[0])), *given[1:]]

    @field_validator("webhook")
    @classmethod
    def _resolve_webhook(cls, given: str | None, info: ValidationInfo) -> str | None:
        if given is None:
            return None
        if "://" in given:
            raise InputError.of(
                "secret",
                "is an address, which may contain a token",
                rule="secrets do not belong in a configuration file or on a command line",
                fix="write the address into a file that only you can read (mode 0600), and give that file here",
            )
        return str(resolved_path(folder_from_context(info), given))
