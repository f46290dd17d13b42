"""`python -m trials.train SPEC_PATH`."""

from __future__ import annotations

import sys

from trials.train.program import main

main(sys.argv[1:])
