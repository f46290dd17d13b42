"""A real Slurm ends a job at its time limit. Setting the limit to now, as an operator can, saves most of a minute."""

from __future__ import annotations

import os
import time

import pytest

from orchestrator.launchers.slurm.launcher import SlurmLauncher
from slurm.client import SlurmClient
from slurm.poll_backoff import PollBackoff
from slurm.request import JobOptions
from slurm.squeue_cache import SqueueSnapshot
from tests.orchestrator.launchers.attempts import attempt_request, poll_one
from trials.attempt_result import Liveness
from trials.trial import FailureReason


@pytest.mark.fault(20)
@pytest.mark.walks
@pytest.mark.processes
@pytest.mark.timeout(300)
def test_a_real_slurm_that_ends_a_job_at_its_limit_is_a_time_limit(tmp_path, slurm_sandbox):
    slurm = SlurmClient(os.environ | slurm_sandbox.environment)
    jobs = lambda max_age_s: SqueueSnapshot(slurm.jobs(), slurm.now(), 0.0)  # noqa: E731
    launcher = SlurmLauncher(slurm, JobOptions(), PollBackoff(0.5), jobs, lambda seconds: time.sleep(min(seconds, 0.5)))
    request = attempt_request(tmp_path, "hang", time_limit_s=300.0)
    job_id = launcher.launch(request)
    # A job runs before srun has its step, and Slurm gives none to a job whose end has passed: srun would fail.
    while not (request.folder.path / "hanging-0").exists():
        launcher.wait(0.5)
    slurm_sandbox.ask("scontrol", "update", f"JobId={job_id}", "EndTime=now")  # Slurm looks every half minute
    while (status := poll_one(launcher, request)).liveness is not Liveness.ENDED:
        launcher.wait(0.5)
    assert (status.reason, status.failed, status.is_metered) == (FailureReason.TIME_LIMIT, True, True)
    assert "TIMEOUT (TimeLimit)" in (status.detail or "")
    assert "DUE TO TIME LIMIT" in (request.folder.path / "job.log").read_text()
