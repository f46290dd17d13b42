"""`python -m trials.train.calibrate SPEC_PATH`."""

from __future__ import annotations

import sys

from trials.train.calibrate.program import main

main(sys.argv[1:])
