"""Processes with a ledger, to be killed: `python -m tests.trials.ledger.programs NAME ARGUMENT...`."""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

from tests.trials.ledger.stories import Story
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


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
