"""`python -m trials.train.doctor SPEC_PATH`."""

from __future__ import annotations

import sys

from trials.train.doctor.program import main

main(sys.argv[1:])
