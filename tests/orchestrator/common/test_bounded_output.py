"""Programs that answer, answer without end, or not at all."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from orchestrator.common.bounded_output import bounded_output
from slurm.sandbox.daemons import running_pids

pytestmark = pytest.mark.processes


def running_with(word: Path) -> list[int]:
    """Processes with this word on their command line."""
    return [pid for pid in running_pids() if os.fsencode(word) in _command_line(pid)]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""  # it has ended


def test_what_a_program_prints_is_returned(tmp_path):
    assert bounded_output(["sh", "-c", "pwd; cat; echo lost >&2"], os.environ, 60) == "/\n"


@pytest.mark.security("contents")
@pytest.mark.parametrize(
    ("program", "limit_s", "error"),
    [
        ("exec yes {word}", 60, ValueError),
        ("yes {word} & exit 0", 60, ValueError),
        ("tail -f /dev/null {word}", 0.2, subprocess.TimeoutExpired),
        (r"printf '\377'", 60, ValueError),
    ],
)
def test_an_answer_without_end_ends_with_all_that_it_started(tmp_path, program, limit_s, error):
    with pytest.raises(error):
        bounded_output(["sh", "-c", program.format(word=tmp_path)], os.environ, limit_s)
    assert running_with(tmp_path) == []
