"""`python -m trials.external SPEC_PATH`."""

from __future__ import annotations

import sys

from trials.external.program import main

main(sys.argv[1:])
