"""Local launcher: the ranks' environment, its slots and devices, and ranks that end as they should not or hang."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.launchers.base import LaunchRequest
from orchestrator.launchers.local.launcher import _END_TIMEOUT_S, LocalLauncher, local_slots, visible_devices
from orchestrator.launchers.local.processes import GracePeriods, RankGroup
from search_spaces.errors import InputError
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.layouts.layout import Layout
from tests.orchestrator.launchers.attempts import (
    attempt_request,
    is_running,
    poll_one,
    rank_pids,
    result_of,
    wait_until_ended,
    written,
)
from tests.trials.train.trial_processes import ENDLESS, make_spec
from trials.files.folders import SearchFolder
from trials.trial import FailureReason

CPU = ACCELERATORS["cpu"]
H100 = ACCELERATORS["h100-80gb"]


@pytest.fixture
def made() -> Iterator[Callable[..., LocalLauncher]]:
    launchers: list[LocalLauncher] = []
    yield lambda *slots: launchers.append(LocalLauncher([list(slot) for slot in slots])) or launchers[-1]
    for launcher in launchers:
        launcher.close()


@pytest.mark.processes
@pytest.mark.timeout(180)
class TestLocalLauncher:
    def test_attempts_side_by_side_have_their_own_devices_and_a_full_launcher_says_so(self, tmp_path, made):
        launcher = made("0", "1")
        first, second, third = (attempt_request(tmp_path, "hang", trial=f"t{i:04d}") for i in range(3))
        assert launcher.launch(first)
        assert launcher.launch(second)
        assert launcher.launch(third) is None
        assert not third.folder.ranks.exists()
        launcher.cancel([first.key])
        last = attempt_request(tmp_path, "tell_environment", trial="t0004")
        assert launcher.launch(last)
        wait_until_ended(launcher, last)
        told = json.loads((last.folder.path / "environment-1.json").read_text())
        assert told["CUDA_VISIBLE_DEVICES"] == "0"

    def test_what_cannot_be_ended_is_told_after_one_wait_for_all(self, tmp_path, monkeypatch, made):
        launcher = made(*[""] * 4)
        requests = {r.key: r for r in (attempt_request(tmp_path, "hang", trial=f"t{i}") for i in range(4))}
        for request in requests.values():
            launcher.launch(request)
        waited: list[float] = []
        with monkeypatch.context() as patch:
            patch.setattr("orchestrator.launchers.local.launcher.time", SimpleNamespace(monotonic=lambda: sum(waited)))
            patch.setattr(RankGroup, "kill", lambda group: None)
            patch.setattr(RankGroup, "wait", lambda group, timeout_s: waited.append(timeout_s))
            assert launcher.cancel(requests) == set(requests)
        assert waited == [_END_TIMEOUT_S, 0.0, 0.0, 0.0]
        assert launcher.cancel(requests) == set()

    def test_no_rank_outlives_the_launcher(self, tmp_path, made):
        launcher, request = made(""), attempt_request(tmp_path, "hang")
        launcher.launch(request)
        while not rank_pids(request.folder):
            launcher.wait(30)
        launcher.close()
        assert poll_one(launcher, request).reason is FailureReason.CANCELLED_BY_SEARCH


def test_slots_are_as_many_as_parallel_trials_and_visible_gpus_are_dealt_to_them_and_never_shared(tmp_path):
    assert local_slots(Cluster(CPU, 4, 1), 3, {}) == [[], [], []]
    devices = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4"}
    assert local_slots(Cluster(H100, 2, 1), 2, devices) == [["0", "1"], ["2", "3"]]
    with pytest.raises(InputError, match="2 parallel trials x 2 GPUs = 4 GPUs, but 3 are visible on this machine"):
        local_slots(Cluster(H100, 2, 1), 2, {"CUDA_VISIBLE_DEVICES": "0,1,2"})
    # Devices are those that the environment names; else the device files are counted.
    assert visible_devices({"CUDA_VISIBLE_DEVICES": " MIG-1f, 3 "}) == ["MIG-1f", "3"]
    assert visible_devices({"CUDA_VISIBLE_DEVICES": ""}) == []
    for name in ("nvidia0", "nvidia7", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert visible_devices({}, tmp_path) == ["0", "1"]


REPOSITORY = Path(__file__).parents[4]


@pytest.mark.fault(23)
@pytest.mark.walks
@pytest.mark.processes
@pytest.mark.timeout(300)
def test_a_stopped_rank_ends_as_a_hang_and_no_rank_is_left(tmp_path):
    rules = replace(ENDLESS, time_limit_s=30.0, warm_start=False)
    spec = make_spec(Layout(tensor_parallel=2), measure=rules)
    folder = SearchFolder(tmp_path / spec.search_id).attempt(spec.trial, spec.attempt)
    request = written(LaunchRequest(spec, folder, sys.executable, str(REPOSITORY), time_limit_s=100.0))
    launcher, deadline = LocalLauncher([[]], GracePeriods(after_failure_s=1.0)), time.monotonic() + 120
    launcher.launch(request)
    while not folder.metrics().exists() or folder.metrics().read_bytes().count(b"\n") < 2:
        assert time.monotonic() < deadline, [log.read_text() for log in folder.rank_logs()]
        time.sleep(0.05)
    pids = rank_pids(folder)
    assert len(pids) == 2
    ranks = json.loads(folder.ranks.read_text())["ranks"]
    os.kill(next(process["pid"] for process in ranks if process["rank"] == 0), signal.SIGSTOP)
    result = result_of(request, wait_until_ended(launcher, request))
    assert result.reason is FailureReason.HANG
    assert result.outcome.rank == 1  # who stands still says nothing
    assert "all_reduce" in result.excerpt
    assert not [pid for pid in pids if is_running(pid)]
    launcher.close()
