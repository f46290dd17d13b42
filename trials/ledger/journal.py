"""Journal in a search's folder: one line with a checksum per event, on disk before the event takes effect.

The journal is the source of truth: the ledger's rows can be rebuilt from it. A line counts once its newline is on disk,
so a writer killed in the middle leaves an incomplete last line, which readers skip and the next writer truncates.

Checking and writing are two steps, so a driver that was taken over in between may still append its line. The order of
the lines decides: once a line of a later lease is there, no line of an earlier one counts; and a later lease's line
whose number was meanwhile taken only ends the earlier lease. Writers check again afterwards, so `append` returns for
events that count, and for no others. Any other damage is an error that names file and line.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from search_spaces.decoding import parse_json
from search_spaces.errors import ExternalError
from search_spaces.plain_file import open_plain
from trials.files.folders import sync_folder
from trials.ledger.events import Event, FencedError, SearchRecord
from trials.ledger.fold import apply_event

MOST_JOURNAL_BYTES = 4 * 2**30
"""Size limit, far above any search's."""

_CHECKSUM_FIELD = ',"crc32":"00000000"}'


class JournalDamaged(ExternalError):
    """A line in the middle of a journal was changed or is corrupt; the message names file and line."""

    def __init__(self, words: str):
        fix = "put journal.jsonl back from a copy of the folder; what the ledger knows, parlay status shows of its id"
        super().__init__(words, fix)


class ConcurrentAppend(ValueError):
    """Another writer has appended since this one read the journal, so another event is due."""


class Journal:
    """The journal at `path`. Any process may read at any time; only the holder of the search's lease appends.

    Not for several threads at once. Appending opens the file, 0600, and keeps it open until `close`.
    """

    def __init__(self, path: Path):
        self.path = path
        self._descriptor: int | None = None
        self._contents = _NOTHING
        self._returned = _NOTHING
        self._last_returned_line = b""

    def read(self) -> list[Event]:
        """All events that count, oldest first; [] without a journal. Raises JournalDamaged."""
        try:
            return list(self._whole().events)
        except FileNotFoundError:
            return []

    def read_on(self) -> list[Event]:
        """The events that count and were not returned by this method before, oldest first; only new lines are read.

        Raises JournalDamaged, also where the last line returned is gone: its writer may take back a line that never
        reached the disk, and write another in its place. A new Journal then reads the truth.
        """
        try:
            data = self._bytes(self._returned.size - len(self._last_returned_line))
        except FileNotFoundError:
            return []
        if not data.startswith(self._last_returned_line):
            raise JournalDamaged(f"{self.path}:{self._returned.lines}: the line has changed since it was read")
        self._returned = _parse(self.path, data[len(self._last_returned_line) :], self._returned)
        whole = data[: data.rfind(b"\n") + 1]
        self._last_returned_line = whole[whole.rfind(b"\n", 0, -1) + 1 :]
        return list(self._returned.events)

    def append(self, event: Event) -> None:
        """Write `event` to disk as the next line; on return it is durable.

        Raises FencedError when a later lease has written, ConcurrentAppend when another event is due, JournalDamaged,
        and OSError (disk full), after which the journal is unchanged and the same event can be appended again.
        """
        if (descriptor := self._descriptor) is None:
            is_new = not self.path.exists()
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = self._descriptor = os.open(self.path, flags, 0o600)
            if is_new:
                sync_folder(self.path.parent)
        size = os.fstat(descriptor).st_size
        if size != self._contents.size:
            self._contents = self._whole()
        self._require_next(event)
        if size > self._contents.size:
            os.ftruncate(descriptor, self._contents.size)  # a line that a killed writer left unfinished
        line = _line(event)
        self._write(descriptor, line)
        self._contents = self._with_written(descriptor, event, self._contents.size + len(line))

    def close(self) -> None:
        """Close the file; the next append opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _whole(self) -> _Contents:
        return _parse(self.path, self._bytes(0))

    def _bytes(self, start: int) -> bytes:
        """The file's bytes from `start` on; JournalDamaged for what is not a plain file of ours."""
        try:
            with open_plain(self.path) as stream:
                if os.fstat(stream.fileno()).st_size > MOST_JOURNAL_BYTES:
                    raise JournalDamaged(f"{self.path} has more than {MOST_JOURNAL_BYTES} bytes")
                stream.seek(start)
                return stream.read()
        except ValueError as error:
            raise JournalDamaged(str(error)) from error

    def _require_next(self, event: Event) -> None:
        if event.fencing < self._contents.fencing:
            raise FencedError(
                f"{self.path}: the search is driven under lease {self._contents.fencing}, not {event.fencing}"
            )
        if event.seq != self._contents.due:
            raise ConcurrentAppend(f"{self.path}: event {event.seq} where {self._contents.due} is due")

    def _write(self, descriptor: int, line: bytes) -> None:
        try:
            _write_all(descriptor, line)
            os.fsync(descriptor)
        except OSError:
            # Only our own line is removed, never one that another driver wrote after it.
            if line.startswith(self._bytes(self._contents.size)):
                os.ftruncate(descriptor, self._contents.size)
            raise

    def _with_written(self, descriptor: int, event: Event, size: int) -> _Contents:
        """The journal's contents after `event` was written, which should have made it `size` bytes long."""
        if os.fstat(descriptor).st_size == size:
            return _Contents((event,), event.fencing, size, event.seq + 1)
        self._contents = self._whole()
        if event not in self._contents.events:
            self._require_next(event)
            raise JournalDamaged(f"{self.path}: event {event.seq} was written and is missing")
        return self._contents


def search_of(
    journal: Path, search_id: str, events: Iterable[Event], before: SearchRecord | None = None
) -> SearchRecord | None:
    """The search after these events of this journal, which follow `before`; None without any.

    Raises JournalDamaged for an invalid event, or one that contradicts those before it.
    """
    search = before
    for event in events:
        search = search_after(journal, search_id, event, search)
    return search


def search_after(journal: Path, search_id: str, event: Event, before: SearchRecord | None) -> SearchRecord:
    """The search after one event; raises as `search_of`."""
    try:
        return apply_event(before, search_id, event)
    except ValueError as error:
        raise JournalDamaged(
            f"{journal}: event {event.seq} contradicts those before it or is invalid: {error}"
        ) from error


@dataclass(frozen=True)
class _Contents:
    """Contents of a journal: the events that count, or the newest of them; the highest lease number; the number of
    bytes and of complete lines; and the number of the event that is due."""

    events: tuple[Event, ...] = ()
    fencing: int = 0
    size: int = 0
    due: int = 1
    lines: int = 0


_NOTHING = _Contents()


def _line(event: Event) -> bytes:
    """One line of JSON whose last field is the CRC-32 of everything before it."""
    body = json.dumps(event.to_json(), allow_nan=False, separators=(",", ":"))[:-1]
    return f'{body},"crc32":"{zlib.crc32(body.encode()):08x}"}}\n'.encode()


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _parse(path: Path, data: bytes, before: _Contents = _NOTHING) -> _Contents:
    """The contents of a journal whose bytes after those of `before` are `data`; `events` are those in `data`."""
    whole = data[: data.rfind(b"\n") + 1]
    lines = whole.split(b"\n")[:-1]
    events: list[Event] = []
    fencing = before.fencing
    for number, line in enumerate(lines, start=before.lines + 1):
        try:
            event = _event(line)
        except ValueError as error:
            raise JournalDamaged(f"{path}:{number}: {error}") from error
        due = before.due + len(events)
        if event.fencing < fencing:
            continue  # a late line of a driver that was taken over
        if event.seq > due or (event.seq < due and event.fencing == fencing):
            raise JournalDamaged(f"{path}:{number}: holds event {event.seq} where {due} is due")
        if event.seq == due:
            events.append(event)
        fencing = event.fencing
    return _Contents(
        tuple(events), fencing, before.size + len(whole), before.due + len(events), before.lines + len(lines)
    )


def _event(line: bytes) -> Event:
    body, checksum = line[: -len(_CHECKSUM_FIELD)], line[-len(_CHECKSUM_FIELD) :]
    if checksum != f',"crc32":"{zlib.crc32(body):08x}"}}'.encode():
        raise ValueError("the line does not match its checksum")
    fields = parse_json(line)
    if not isinstance(fields, dict):
        raise ValueError("the line is not an event")
    del fields["crc32"]
    return Event.from_json(fields)
