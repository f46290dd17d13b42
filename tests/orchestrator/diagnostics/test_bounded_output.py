"""Programs whose output has no end."""

from __future__ import annotations

import os
import subprocess

import pytest

from orchestrator.diagnostics.bounded_output import bounded_output
from slurm.sandbox.daemons import running_pids
from tests.orchestrator.cli.parlay import command_line
from tests.trials.fork_server.servers import until


@pytest.mark.processes
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
    # Who was killed may take a moment to be gone.
    until(lambda: not [pid for pid in running_pids() if os.fsencode(tmp_path) in command_line(pid)])
