"""Local launcher: the ranks' environment, its slots and devices, and ranks that end as they should not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from orchestrator.launchers.local.launcher import _END_TIMEOUT_S, LocalLauncher, local_slots, visible_devices
from orchestrator.launchers.local.processes import RankGroup
from search_spaces.errors import InputError
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from tests.orchestrator.launchers.attempts import attempt_request, poll_one, rank_pids, wait_until_ended
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


def test_slots_are_as_many_as_parallel_trials_and_gpus_are_dealt_to_them_and_never_shared():
    assert local_slots(Cluster(CPU, 4, 1), 3, {}) == [[], [], []]
    devices = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4"}
    assert local_slots(Cluster(H100, 2, 1), 2, devices) == [["0", "1"], ["2", "3"]]
    with pytest.raises(InputError, match="2 parallel trials x 2 GPUs = 4 GPUs, but 3 are visible on this machine"):
        local_slots(Cluster(H100, 2, 1), 2, {"CUDA_VISIBLE_DEVICES": "0,1,2"})


def test_devices_are_those_the_environment_names_else_the_device_files_are_counted(tmp_path):
    assert visible_devices({"CUDA_VISIBLE_DEVICES": " MIG-1f, 3 "}) == ["MIG-1f", "3"]
    assert visible_devices({"CUDA_VISIBLE_DEVICES": ""}) == []
    for name in ("nvidia0", "nvidia7", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert visible_devices({}, tmp_path) == ["0", "1"]
