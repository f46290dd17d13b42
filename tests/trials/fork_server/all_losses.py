"""Losses of forked and of plain ranks over the whole parity array: `python -m tests.trials.fork_server.all_losses`.

Prints a row as each case is done. Exits with 1 when a loss or a gradient norm of a case differs.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import closing
from pathlib import Path

from tests.trials.fork_server.losses import Trials
from trials.diagnostics.parity_cases import covering_cases


def main() -> None:
    cases, equal = covering_cases(), 0
    with tempfile.TemporaryDirectory(prefix="parlay-losses-") as folder:
        trials = Trials(Path(folder))
        with closing(trials.launcher):
            for case in cases:
                compared = trials.compared(case)
                equal += compared.is_equal
                state = "ok    " if compared.is_equal else "FAILED"
                print(f"{state}  {case.layout.num_gpus} ranks, {len(compared.warm)} steps  {case.name}", flush=True)
    print(f"{equal} of {len(cases)} cases are equal to the bit")
    sys.exit(0 if equal == len(cases) else 1)


if __name__ == "__main__":
    main()
