"""The search file's `notify` section: receivers of notifications, the events that they are sent for, and what keeps a
receiver from getting them."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator

from search_spaces.errors import InputError, Problem
from search_spaces.plain_file import open_named
from search_spaces.schema.durations import Duration
from search_spaces.schema.sections import resolved_path
from search_spaces.schema.validation import Section, folder_from_context
from trials.files.path_owners import uid_as_seen_by
from trials.trial import LowerStrEnum

_MAX_BYTES = 4096
_ADDRESS = re.compile(r"https?://[!-~]+")
_RULE = "an address may contain a token, so it is kept in a file that only its owner can read"


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


def notify_problems(section: NotifySection) -> Iterator[Problem]:
    """Problems that would prevent the notification."""
    if "events" in section.model_fields_set and not (section.command or section.webhook):
        yield Problem(
            "missing_key",
            "are notified to nobody",
            rule="events are sent to notify.command and notify.webhook",
            fix="name a command or a webhook, or leave events out",
            key="notify.events",
        )
    if section.command and shutil.which(section.command[0]) is None:
        yield Problem(
            "program",
            f"{section.command[0]} is not an executable program",
            rule="the first word is a program on PATH or the path of one",
            fix="correct it, or make it executable: chmod u+x",
            key="notify.command",
            value=section.command[0],
        )
    if section.webhook is not None:
        try:
            webhook_address(Path(section.webhook))
        except InputError as error:
            yield from error.at(key="notify.webhook").problems


def webhook_address(path: Path) -> str:
    """Read the address in this file. InputError, without the address, if it is missing or readable by others."""
    try:
        with open_named(path) as stream:
            _require_private(path, os.fstat(stream.fileno()))
            words = stream.read(_MAX_BYTES + 1).split()
    except OSError as error:
        raise _webhook_error(
            path, f"cannot be read: {error.strerror}", "write the address into it, and chmod 600"
        ) from None
    address = b" ".join(words).decode("ascii", errors="replace")
    if len(address) > _MAX_BYTES or _ADDRESS.fullmatch(address) is None or not _has_host(address):
        raise _webhook_error(
            path, "has no http or https address", "write one line, for example https://example.org/hook"
        )
    return address


def _require_private(path: Path, found: os.stat_result) -> None:
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != uid_as_seen_by(path.parent):
        raise _webhook_error(path, "is not a regular file that you own", "use a file with one line, the address")
    if mode & 0o077:
        raise _webhook_error(path, f"has mode {mode:04o}: others can read or write it", "chmod 600")


def _has_host(address: str) -> bool:
    try:
        parts = urlsplit(address)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _webhook_error(path: Path, why: str, fix: str) -> InputError:
    return InputError.of("webhook", f"{path} {why}", rule=_RULE, fix=fix, value=str(path))
