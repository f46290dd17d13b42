"""A driver that only writes, each event to the journal, then to the ledger, until it is killed."""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

from tests.trials.ledger.stories import SEARCH_ID, Story
from trials.ledger.journal import Journal
from trials.ledger.writer import LedgerWriter

if __name__ == "__main__":
    journal, ledger, story = Journal(Path(sys.argv[1])), LedgerWriter(sys.argv[2]), Story()

    def record(event) -> None:
        journal.append(event)
        ledger.apply(SEARCH_ID, event)
        print(event.seq, flush=True)

    record(story.create())
    for number in count(1):
        trial = f"t{number:04d}"
        record(story.propose(trial))
        record(story.submit(trial))
        record(story.measure(trial))
        record(story.end_trial(trial))
