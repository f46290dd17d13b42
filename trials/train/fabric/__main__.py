"""`python -m trials.train.fabric SPEC_PATH`."""

from __future__ import annotations

import sys

from trials.train.fabric.program import main

main(sys.argv[1:])
