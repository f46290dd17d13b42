"""Processes with a ledger, to be killed: `python -m tests.trials.ledger.programs NAME ARGUMENT...`."""

from __future__ import annotations

import sqlite3
import sys
import time
from itertools import count
from pathlib import Path

from tests.trials.ledger.stories import Story, measured_story
from trials.ledger import projection
from trials.ledger.journal import Journal
from trials.ledger.writer import LedgerWriter


def drive_forever(path: str, url: str) -> None:
    """Write each event to the journal, then to the ledger, until somebody kills this process."""
    journal, ledger, story = Journal(Path(path)), LedgerWriter(url), Story()

    def record(event) -> None:
        journal.append(event)
        ledger.apply(event, story.search)
        print(event.seq, flush=True)

    record(story.create())
    for number in count(1):
        for step in (story.propose, story.submit, story.measure, story.end_trial):
            record(step(f"t{number:04d}"))


def die_in_transaction(url: str) -> None:
    """Stop in the middle of the last event's transaction, with half of the rows written, to be killed there."""
    ledger = LedgerWriter(url)
    *first, last = measured_story().steps[:4]
    for step in first:
        ledger.apply(*step)

    def half_written(*_) -> None:
        print("in the middle", flush=True)
        time.sleep(600)

    projection._attempt_row = half_written
    ledger.apply(*last)


def hold_lock(path: str, kind: str) -> None:
    """Hold the ledger's lock for `write`, or one state of it to `read`, until a line comes in."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE" if kind == "write" else "BEGIN")
    connection.execute("SELECT count(*) FROM search").fetchone()
    print("held", flush=True)
    sys.stdin.readline()
    connection.execute("ROLLBACK")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
