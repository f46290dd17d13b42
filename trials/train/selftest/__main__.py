"""`python -m trials.train.selftest SPEC_PATH`."""

from __future__ import annotations

import sys

from trials.train.selftest.program import main

main(sys.argv[1:])
