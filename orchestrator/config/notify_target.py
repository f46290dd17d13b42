"""Checks of `notify`: the program to start, and the file with an address that may contain a token."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.config.schema.notify import NotifySection
from search_spaces.errors import InputError, Problem
from search_spaces.plain_file import open_named
from trials.files.path_owners import uid_as_seen_by

_MAX_BYTES = 4096
_ADDRESS = re.compile(r"https?://[!-~]+")
_RULE = "an address may contain a token, so it is kept in a file that only its owner can read"


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
