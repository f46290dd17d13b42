"""What every rank's program does at its end."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("spoilt", ["pass", "os.close(1)"])
def test_a_program_leaves_with_its_code_also_where_its_words_cannot_be_written(spoilt):
    code = f"import os, sys; from trials.ranks.program import leave_at_once; print('words'); {spoilt}; leave_at_once(3)"
    with open("/dev/full", "w") as full:
        buffering = [sys.executable, "-E", "-c", code]  # whatever PYTHONUNBUFFERED says
        assert subprocess.run(buffering, stdout=full, timeout=30).returncode == 3
