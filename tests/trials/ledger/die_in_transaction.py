"""A driver that stops in the middle of its last event's transaction, with half of the rows written, to be killed
there."""

from __future__ import annotations

import sys
import time

from tests.trials.ledger.stories import SEARCH_ID, measured_story
from trials.ledger import writer
from trials.ledger.writer import LedgerWriter


def half_written(connection, search_id, trial, event) -> None:
    print("in the middle", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    ledger = LedgerWriter(sys.argv[1])
    *first, last = measured_story().events[:4]
    for event in first:
        ledger.apply(SEARCH_ID, event)
    writer._store_trial = half_written
    ledger.apply(SEARCH_ID, last)
