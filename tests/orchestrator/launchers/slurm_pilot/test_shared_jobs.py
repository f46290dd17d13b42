"""Launcher with shared jobs on a simulated Slurm: decided work in pilots, the rest as jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.launchers.slurm.launcher import SlurmLauncher
from orchestrator.launchers.slurm_pilot.shared_jobs import SharedJobsLauncher
from orchestrator.launchers.slurm_pilot.sizing import TAIL_S
from slurm.poll_backoff import PollBackoff
from slurm.request import Container, JobOptions
from tests.rig import LIMIT_S, PilotBench, asking, finish
from trials.attempt_result import Liveness


class SharedBench(PilotBench):
    """Shared jobs of two nodes, and jobs of their own."""

    def new_launcher(self, container: Container | None = None) -> SharedJobsLauncher:
        parts = self.slurm, JobOptions(), PollBackoff(5.0), asking(self.slurm), self.cluster.advance
        return SharedJobsLauncher(SlurmLauncher(*parts, self.root / "alone.json"), super().new_launcher(container))


@pytest.fixture
def rig(tmp_path: Path) -> SharedBench:
    return SharedBench(tmp_path, attempts=3)


def test_an_attempt_that_may_share_a_job_is_a_step_and_the_next_driver_finds_each_where_it_is(rig):
    step, job = rig.launch("t0001", may_share_job=True), rig.launch("t0002")
    rig.look()
    folder = rig.serve()
    rig.launcher = rig.new_launcher()
    never_launched = rig.request("t0003", may_share_job=True)
    adopted = rig.launcher.adopt({request.key: request for request in (job, never_launched, step)})
    assert adopted == {job.key: "2", step.key: "1"}
    finish(folder, "t0001.a1")
    statuses = rig.launcher.poll([job.key, step.key])
    assert (statuses[step.key].liveness, statuses[step.key].job_id) == (Liveness.ENDED, "1.0")
    assert (statuses[job.key].liveness, statuses[job.key].started) == (Liveness.ALIVE, True)
    assert [job.request.name for job in rig.cluster.jobs()] == ["demo-abc234.p0001", "demo-abc234.t0002.a1"]


def test_what_a_shared_job_holds_beyond_its_steps_counts_for_every_reservation(rig):
    job_s, step_s = (rig.launcher.longest_s(LIMIT_S, 2, may_share_job) for may_share_job in (False, True))
    assert job_s < step_s
    rig.launch("t0001", may_share_job=True)
    rig.look()
    rig.serve()
    rig.serve()
    assert rig.launcher.longest_s(LIMIT_S, 2) == job_s + TAIL_S
    assert rig.launcher.longest_s(LIMIT_S, 2, may_share_job=True) == step_s + TAIL_S
