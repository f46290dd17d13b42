"""What the launcher slurm says of an attempt between two answers of a simulated Slurm."""

from __future__ import annotations

import pytest

from orchestrator.launchers.base import LaunchPostponed
from orchestrator.launchers.slurm import SlurmLauncher
from slurm.fake import FakeSlurm
from slurm.fake_cluster import FakeCluster
from slurm.fake_placement import FakeNode
from slurm.pace import PollPace
from slurm.request import JobOptions
from slurm.shared_answer import Answer
from tests.orchestrator.launchers.attempts import attempt_request, poll_one
from trials.classify import Life


def test_a_job_found_by_its_name_is_not_called_out_of_sight_for_what_was_unknown_before(tmp_path):
    cluster = FakeCluster([FakeNode("n1")])
    slurm = FakeSlurm(cluster)
    launcher = SlurmLauncher(
        slurm, JobOptions(), PollPace(30.0), lambda age_s: Answer(slurm.jobs(), slurm.now(), 0.0), cluster.advance
    )
    request = attempt_request(tmp_path)
    slurm.submissions_time_out()
    with pytest.raises(LaunchPostponed, match="no answer from Slurm"):
        launcher.launch(request)
    cluster.controller_down(60.0)
    with pytest.raises(LaunchPostponed, match="looking for it by its name"):
        launcher.launch(request)
    assert poll_one(launcher, request).life is Life.UNKNOWN
    cluster.advance(300.0)
    assert launcher.launch(request) is not None
    assert poll_one(launcher, request).life is Life.ALIVE
