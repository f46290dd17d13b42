"""Hanging ranks: the trial program's watchdog and the launcher end all ranks together."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.launchers.base import LaunchRequest
from orchestrator.launchers.local.launcher import LocalLauncher
from orchestrator.launchers.local.processes import GracePeriods
from search_spaces.layouts.layout import Layout
from tests.orchestrator.launchers.attempts import is_running, rank_pids, result_of, wait_until_ended, written
from tests.trials.train.trial_processes import ENDLESS, make_spec
from trials.files.folders import SearchFolder
from trials.trial import FailureReason

REPOSITORY = Path(__file__).parents[4]


@pytest.mark.fault(23)
@pytest.mark.walks
@pytest.mark.processes
@pytest.mark.timeout(300)
@pytest.mark.parametrize("warm_start", [None, False], ids=["warm", "plain"])
def test_a_stopped_rank_ends_as_a_hang_and_no_rank_is_left(tmp_path, warm_start):
    rules = replace(ENDLESS, time_limit_s=30.0, warm_start=warm_start)
    spec = make_spec(Layout(tensor_parallel=2), measure=rules)
    folder = SearchFolder(tmp_path / spec.search_id).attempt(spec.trial, spec.attempt)
    request = written(LaunchRequest(spec, folder, sys.executable, str(REPOSITORY), time_limit_s=100.0))
    launcher, deadline = LocalLauncher([[]], GracePeriods(after_failure_s=1.0)), time.monotonic() + 120
    launcher.launch(request)
    while not folder.metrics().exists() or folder.metrics().read_bytes().count(b"\n") < 2:
        assert time.monotonic() < deadline, [log.read_text() for log in folder.rank_logs()]
        time.sleep(0.05)
    pids = rank_pids(folder)
    assert len(pids) == (2 if warm_start is False else 4)  # stubs come before the ranks that were forked
    ranks = json.loads(folder.ranks.read_text())["ranks"]
    os.kill([process["pid"] for process in ranks if process["rank"] == 0][-1], signal.SIGSTOP)
    result = result_of(request, wait_until_ended(launcher, request))
    assert result.reason is FailureReason.HANG
    assert result.outcome.rank == 1  # who stands still says nothing
    assert "all_reduce" in result.excerpt
    assert not [pid for pid in pids if is_running(pid)]
    launcher.close()
