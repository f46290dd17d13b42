"""Ranks of the local launcher that are forked: by which server, and what its death means."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from orchestrator.launchers.base import LaunchRequest
from orchestrator.launchers.local.launcher import LocalLauncher
from orchestrator.launchers.local.processes import GracePeriods
from orchestrator.launchers.local.rank_groups import node_plans
from search_spaces.layouts.layout import Layout
from tests.orchestrator.launchers.attempts import (
    LAYOUT,
    attempt_request,
    is_running,
    rank_pids,
    result_of,
    wait_until_ended,
    wait_until_started,
    with_spec,
)
from tests.sources import ROOT
from tests.trials.fork_server.servers import light_code, serve, until
from trials.measure_rules import MeasureRules
from trials.trial import FailureReason, TrialState

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]
REFUSES = "import no_such_module"


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[LocalLauncher]:
    light_code(tmp_path / "code")
    launcher = LocalLauncher([["0"], ["1"], ["2"]], GracePeriods(after_failure_s=0.3, after_term_s=0.3))
    yield launcher
    launcher.close()


def ran(launcher: LocalLauncher, request: LaunchRequest) -> list[dict[str, str]]:
    """The environments of an attempt's ranks."""
    launcher.launch(request)
    wait_until_ended(launcher, request)
    return [json.loads((request.folder.path / f"environment-{rank}.json").read_text()) for rank in range(2)]


def warm(launcher: LocalLauncher, request: LaunchRequest) -> list[dict[str, str]]:
    """The environments of ranks that are forked."""
    serve(launcher, request)
    return ran(launcher, request)


def parents(environments: list[dict[str, str]]) -> set[str]:
    assert all("PARLAY_WARM" in environment for environment in environments)
    return {environment["PARLAY_PARENT_PID"] for environment in environments}


def hanging(launcher: LocalLauncher, request: LaunchRequest) -> list[int]:
    """Pids of an attempt's stubs and forked ranks, once its ranks hang."""
    serve(launcher, request)
    launcher.launch(request)
    wait_until_started(launcher, request)
    until(lambda: all((request.folder.path / f"hanging-{rank}").exists() for rank in range(2)))
    here = str(request.folder.path.absolute())
    processes = [each.info for each in psutil.process_iter(["pid", "cwd", "cmdline"]) if each.info["cwd"] == here]
    ranks = [each["pid"] for each in processes if "trials.fork_server" in each["cmdline"]]
    assert len(ranks) == 2
    return [*rank_pids(request.folder), *ranks]


def test_the_first_attempt_starts_plain_and_one_server_forks_the_ranks_of_all_others(tmp_path, launcher):
    first = ran(launcher, attempt_request(tmp_path, "tell_environment", trial="t0000"))
    assert not any("PARLAY_WARM" in environment for environment in first)
    hanging(launcher, attempt_request(tmp_path, "hang", trial="t0001"))
    found = [ran(launcher, attempt_request(tmp_path, "tell_environment", trial=f"t000{i}")) for i in (2, 3)]
    assert len({pid for environments in found for pid in parents(environments)}) == 1
    assert found[0][0]["CUDA_VISIBLE_DEVICES"] == "1"


def test_what_the_driver_sets_later_changes_no_rank(tmp_path, launcher, monkeypatch):
    found = []
    for trial in ("t0001", "t0002"):
        found += warm(launcher, attempt_request(tmp_path, "tell_environment", trial=trial))
        monkeypatch.setenv("SET_LATER", "FALSE")  # as scikit-learn sets KMP_INIT_AT_FORK when it is imported
    assert len(parents(found)) == 1
    assert not any("SET_LATER" in environment for environment in found)


@pytest.mark.fault(49)
def test_a_killed_server_is_a_node_failure_and_later_attempts_have_another(tmp_path, launcher):
    request = attempt_request(tmp_path, "hang", trial="t0001")
    pids = hanging(launcher, request)
    server = psutil.Process(pids[-1]).ppid()
    os.kill(server, signal.SIGKILL)
    assert result_of(request, wait_until_ended(launcher, request)).reason is FailureReason.NODE_FAILURE
    assert not any(is_running(pid) for pid in pids)
    (new,) = parents(warm(launcher, attempt_request(tmp_path, "tell_environment", trial="t0002")))
    assert int(new) != server


@pytest.mark.fault(50)
def test_a_rank_of_a_server_that_hangs_is_killed_by_its_launcher(tmp_path, launcher):
    request = attempt_request(tmp_path, "hang", trial="t0001")
    pids = hanging(launcher, request)
    server = psutil.Process(pids[-1]).ppid()
    os.kill(server, signal.SIGSTOP)
    assert launcher.cancel([request.spec.attempt_key]) == set()
    assert not any(is_running(pid) for pid in pids)


@pytest.mark.fault(49)
def test_a_killed_driver_takes_server_stubs_and_ranks_with_it(tmp_path):
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT)
    pids = [int(word) for word in driver.stdout.readline().split()]
    assert len(pids) == 5
    driver.kill()
    until(lambda: not any(map(is_running, pids)))


DRIVER = """
import sys, time, psutil
from pathlib import Path
from tests.orchestrator.launchers.local.test_fork_servers import *
root = Path(sys.argv[1])
light_code(root / "code")
pids = hanging(LocalLauncher([["0"]]), attempt_request(root, "hang"))
print(*pids, psutil.Process(pids[-1]).ppid(), flush=True)
time.sleep(600)
"""


@pytest.mark.fault(50)
def test_a_server_that_cannot_be_forked_is_told_once_and_not_started_again(tmp_path, launcher, logged):
    light_code(tmp_path / "code", preload=REFUSES)
    for trial in ("t0001", "t0002", "t0003"):
        request = attempt_request(tmp_path, "measure", trial=trial)
        launcher.launch(request)
        assert result_of(request, wait_until_ended(launcher, request)).state is TrialState.MEASURED
        [kind] = launcher._fork_servers._servers._kinds.values()
        until(lambda: kind.process is None or kind.process.poll() is not None)  # noqa: B023
    assert ["no_such_module" in line for line in logged] == [True]


def test_a_closed_launcher_leaves_no_server_and_no_folder(tmp_path, launcher):
    (server,) = parents(warm(launcher, attempt_request(tmp_path, "tell_environment")))
    folder = launcher._fork_servers._folder
    assert folder is not None
    assert folder.stat().st_mode & 0o777 == 0o700
    launcher.close()
    assert not is_running(int(server))
    assert not folder.exists()


BOUND = replace(LAYOUT, settings="launch.cpu_bind=cores")


@pytest.mark.parametrize(
    ("changes", "trainer", "preload"),
    [
        ({}, {}, "torch/cpu"),
        ({"accelerator": "h100-80gb", "layout": Layout(data_parallel=2, engine="deepspeed")}, {}, "deepspeed/gpu"),
        ({"layout": BOUND}, {}, "torch/cpu"),
        ({"layout": BOUND, "accelerator": "h100-80gb"}, {}, None),  # they would count their own cores
        ({"measure": MeasureRules(warm_start=False)}, {}, None),
        *(({}, {"kind": kind}, None) for kind in ("command", "megatron-lm", "selftest", "calibrate", "doctor")),
    ],
)
def test_ranks_are_forked_by_servers_of_their_engine_and_device_where_that_changes_nothing(
    tmp_path, changes, trainer, preload
):
    [plan] = node_plans(with_spec(attempt_request(tmp_path, **trainer), **changes))
    assert plan.environment.get("PARLAY_PRELOAD") == preload
