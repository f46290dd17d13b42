"""The journal after a killed writer, on a full disk, and edited by hand."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.trials.ledger.stories import SEARCH_ID, Story, measured_story, with_a_value, written
from trials.ledger.events import EventKind, FencedError
from trials.ledger.journal import ConcurrentAppend, Journal, JournalDamaged, search_of


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "journal.jsonl"


def test_what_was_appended_is_read_by_anybody_and_continued_by_another_writer(path):
    *first, last = measured_story().events
    assert Journal(path).read() == []
    assert not path.exists(), "reading makes none"
    written(path, first).close()
    assert Journal(path).read() == first
    written(path, [last])
    assert Journal(path).read() == [*first, last]


def test_who_reads_on_is_told_of_each_event_once_however_the_file_grows(path, tmp_path):
    events = measured_story().events
    old = replace(events[4], fencing=1)
    taken_over = [*events[:4], *(replace(e, fencing=2) for e in events[4:])]
    written(path, taken_over).close()
    lines = path.read_bytes().splitlines(keepends=True)
    late = tmp_path / "late.jsonl"
    written(late, [*events[:4], old]).close()
    lines.insert(6, late.read_bytes().splitlines(keepends=True)[4])  # the late word of the old driver
    whole, step = b"".join(lines), 700
    follower, told = Journal(tmp_path / "grows.jsonl"), []
    assert follower.read_on() == []
    for end in [*range(0, len(whole), step), len(whole)]:
        follower.path.write_bytes(whole[:end])
        told += follower.read_on()
    assert told == Journal(follower.path).read() == taken_over
    assert follower.read_on() == []


def test_who_reads_on_is_told_by_its_number_which_line_is_damaged_and_when_one_was_taken_back(path):
    *first, last = measured_story().events
    journal = written(path, first)
    follower = Journal(path)
    assert follower.read_on() == first
    whole = path.read_bytes()
    path.write_bytes(whole + b"{}\n")
    with pytest.raises(JournalDamaged, match=f":{len(first) + 1}: "):
        follower.read_on()
    path.write_bytes(whole)
    journal.append(last)
    assert follower.read_on() == [last]
    path.write_bytes(whole)
    with pytest.raises(JournalDamaged, match=f":{len(first) + 1}: the line has changed"):
        follower.read_on()
    written(path, [replace(last, at=last.at + 1.0)]).close()  # as long as the one that was taken back
    with pytest.raises(JournalDamaged, match=f":{len(first) + 1}: the line has changed"):
        follower.read_on()


@pytest.mark.security("private_files")
def test_only_its_owner_may_read_it_whatever_the_umask(path):
    old = os.umask(0)
    try:
        written(path, measured_story().events)
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_new_journals_name_is_on_the_disk_before_its_first_event_is(path, monkeypatch):
    synced = []
    monkeypatch.setattr(
        "trials.ledger.journal.sync_folder", lambda folder: synced.append((folder, path.stat().st_size))
    )
    *first, last = measured_story().events
    written(path, first).close()
    written(path, [last])
    assert synced == [(path.parent, 0)]


def test_a_last_line_cut_at_any_byte_is_passed_over_and_then_written_anew(path):
    *first, last = measured_story().events[:2]
    written(path, first).close()
    whole = path.read_bytes()
    written(path, [last]).close()
    complete = path.read_bytes()
    for size in range(len(whole), len(complete)):
        path.write_bytes(complete[:size])
        assert Journal(path).read() == first
        written(path, [last]).close()
        assert path.read_bytes() == complete


@pytest.mark.parametrize("line", [1, 2, 3])
def test_a_changed_byte_in_any_whole_line_is_an_error_that_names_it_and_nothing_is_appended(path, line):
    *first, next_event = measured_story().events[:4]
    written(path, first).close()
    lines = path.read_bytes().splitlines(keepends=True)
    for place in (0, len(lines[line - 1]) // 2, len(lines[line - 1]) - 3):
        damaged = bytearray(lines[line - 1])
        damaged[place] ^= 1
        path.write_bytes(b"".join([*lines[: line - 1], bytes(damaged), *lines[line:]]))
        for act in (Journal.read, lambda journal: journal.append(next_event)):
            with pytest.raises(JournalDamaged, match=rf"journal\.jsonl:{line}: "):
                act(Journal(path))


DEEP = "[" * 20_000 + "]" * 20_000
NO_DRIVER_WRITES = [
    ("search_created", "data", "[]"),
    ("search_created", "data", DEEP),
    ("search_created", "data.spec", "null"),
    ("trial_proposed", "data.layout", "3"),
    ("trial_proposed", "data.prediction", DEEP),
    ("attempt_submitted", "seq", '"x"'),
    ("attempt_submitted", "data.num_nodes", "1" + "0" * 400),
    ("attempt_ended", "data.outcome.measured.tokens_per_sec", '"x"'),
    ("attempt_ended", "data.outcome.measured.step_time_s", "null"),
    ("attempt_ended", "data.nodes", "7"),
]
"""Kind of the event, where in it, and the JSON that stands there, under a checksum that is right."""


@pytest.mark.bad_input(44, 45)
def test_a_value_that_no_driver_writes_is_damage_though_its_checksum_is_right(path):
    story = Story()
    story.create()
    story.propose(prediction={"step_time_s": 0.25})
    story.submit()
    story.measure()
    written(path, story.events).close()
    assert search_of(path, SEARCH_ID, Journal(path).read()) == story.search
    whole = path.read_text()
    believed = []
    for case in NO_DRIVER_WRITES:
        path.write_text(with_a_value(whole, *case))
        with suppress(JournalDamaged):
            search_of(path, SEARCH_ID, Journal(path).read())
            believed.append(case)
    assert believed == []


def test_a_line_missing_doubled_or_out_of_order_is_an_error_and_is_not_appended(path):
    events = measured_story().events
    journal = written(path, events[:2])
    for wrong in (events[1], events[3]):
        with pytest.raises(ConcurrentAppend, match="3 is due"):
            journal.append(wrong)
    assert journal.read() == events[:2]
    first, second = path.read_bytes().splitlines(keepends=True)
    for lines in (second, first + first + second, second + first):
        path.write_bytes(lines)
        with pytest.raises(JournalDamaged, match="holds event"):
            Journal(path).read()


class TestOldDriver:
    """A driver after another's takeover, or held up between its check and its line, or the line's sync."""

    @pytest.fixture
    def drivers(self, path) -> tuple[Story, Journal, Story, Journal]:
        old, new = Story(), Story()
        for story in (old, new):
            story.create()
        new.fencing = 2
        return old, written(path, old.events), new, Journal(path)

    def meanwhile(self, monkeypatch, call: str, action, error: OSError | None = None) -> None:
        """At the next `os.call` of a journal do `action` first; the call then fails with `error`, if there is one."""
        real = getattr(os, call)

        def held(*args):
            monkeypatch.setattr(os, call, real)
            action()
            if error is not None:
                raise error
            return real(*args)

        monkeypatch.setattr(os, call, held)

    def test_an_old_driver_is_fenced_off_as_soon_as_the_new_one_has_written_and_cuts_none_of_its_lines(
        self, path, drivers
    ):
        old, old_journal, new, new_journal = drivers
        new_journal.append(new.propose("t0001"))
        late = old.propose("t0009")
        with pytest.raises(FencedError, match="under lease 2, not 1"):
            old_journal.append(late)
        assert Journal(path).read() == new.events
        with path.open("ab") as stream:
            stream.write(b'{"schema":')
        with pytest.raises(FencedError):
            old_journal.append(late)
        assert path.read_bytes().endswith(b'{"schema":')

    def test_an_old_drivers_late_line_is_no_damage_and_is_told_to_be_none(self, path, drivers, monkeypatch):
        old, old_journal, new, new_journal = drivers
        self.meanwhile(monkeypatch, "write", lambda: new_journal.append(new.take_over()))
        with pytest.raises(FencedError, match="under lease 2, not 1"):
            old_journal.append(old.propose("t0009"))
        assert b"t0009" in path.read_bytes()
        assert Journal(path).read() == new.events
        new_journal.append(new.propose())
        assert written(path, []).read() == new.events

    def test_a_takeover_that_comes_after_an_old_drivers_last_line_fences_and_is_said_again(
        self, path, drivers, monkeypatch
    ):
        old, old_journal, new, new_journal = drivers
        early = new.take_over()
        self.meanwhile(monkeypatch, "write", lambda: old_journal.append(old.propose()))
        with pytest.raises(ConcurrentAppend, match="event 2 where 3 is due"):
            new_journal.append(early)
        assert Journal(path).read() == old.events
        with pytest.raises(FencedError):
            old_journal.append(old.submit())
        again = replace(early, seq=3)
        new_journal.append(again)
        assert Journal(path).read() == [*old.events[:2], again]

    def test_an_old_driver_that_cannot_write_takes_nothing_back_that_is_not_its_own(self, path, drivers, monkeypatch):
        old, old_journal, new, new_journal = drivers
        error = OSError(errno.EIO, "Input/output error")
        self.meanwhile(monkeypatch, "write", lambda: new_journal.append(new.take_over()), error)
        with pytest.raises(OSError, match="Input/output"):
            old_journal.append(old.propose())
        assert Journal(path).read() == new.events

    def test_a_line_that_somebody_cut_off_again_is_not_called_written(self, path, drivers, monkeypatch):
        old, old_journal, *_ = drivers
        size = path.stat().st_size
        monkeypatch.setattr(os, "fsync", lambda descriptor: os.ftruncate(descriptor, size))
        with pytest.raises(JournalDamaged, match="event 2 was written and is missing"):
            old_journal.append(old.propose())


@pytest.mark.parametrize("fails_in", ["write", "fsync"])
@pytest.mark.fault(27)
def test_a_full_disk_changes_nothing_and_the_event_can_be_appended_later(path, monkeypatch, fails_in):
    *first, last = measured_story().events
    journal = written(path, first)
    before, write = path.read_bytes(), os.write

    def full(descriptor, data=b""):
        if fails_in == "write":
            write(descriptor, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, fails_in, full)
        with pytest.raises(OSError, match="No space"):
            journal.append(last)
    assert path.read_bytes() == before
    journal.append(last)
    assert journal.read() == [*first, last]


def test_excerpts_stay_on_one_line_and_a_short_write_is_continued(path, monkeypatch):
    story = Story()
    story.create()
    story.propose()
    story.submit()
    story.fail(excerpt="a\nb\r\x00\u2028\ud800 é")
    written(path, story.events)
    assert len(path.read_bytes().splitlines()) == len(story.events)
    assert Journal(path).read() == story.events
    assert story.events[-1].kind is EventKind.ATTEMPT_ENDED
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:7]))
    events = measured_story().events
    assert written(path.with_name("short.jsonl"), events).read() == events
