"""Ray launcher beyond the contract: several nodes, and attempts when parts of Ray die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import psutil
import pytest

from orchestrator.launchers.base import LaunchRefused, LaunchRequest
from orchestrator.launchers.local.processes import GracePeriods
from orchestrator.launchers.local.rank_groups import last_sign_of_life
from orchestrator.launchers.ray.launcher import _END_TIMEOUT_S, RayLauncher
from orchestrator.launchers.ray.node_actor import NodeSupervisor
from orchestrator.launchers.ray.runtime import SENT_MODULES, RayRuntime, RayUnavailable, _secure_loopback
from orchestrator.search.code_snapshot import snapshot_code
from search_spaces.errors import ExternalError
from tests.orchestrator.launchers.attempts import (
    attempt_request,
    is_running,
    poll_one,
    rank_pids,
    result_of,
    serve,
    wait_until_ended,
    wait_until_started,
    with_spec,
)
from tests.trials.fork_server.servers import light_code
from trials.attempt_result import Liveness
from trials.measure_rules import MeasureRules
from trials.trial import FailureReason, TrialState

GRACE_PERIODS = GracePeriods(after_failure_s=0.3, after_term_s=0.3)
OBJECT_STORE_BYTES = 80 * 2**20
QUICK_HEALTH_CHECK = {"health_check_period_ms": 500, "health_check_failure_threshold": 4}

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


def sockets_of(process: psutil.Process) -> list[Any]:
    """Return the sockets of a process, [] if it has ended since it was listed."""
    try:
        return process.net_connections("inet")
    except psutil.NoSuchProcess:
        return []


@pytest.fixture(scope="class")
def loopback() -> Iterator[RayLauncher]:
    """A launcher on a private Ray with room for four ranks."""
    launcher = RayLauncher(partial(RayRuntime.start_loopback, 4, 0), GRACE_PERIODS)
    yield launcher
    launcher.close()


@pytest.fixture(scope="class")
def cluster() -> Iterator[Any]:
    """A user's cluster, by its address: two Ray nodes on this machine."""
    from ray._private import ray_constants, utils
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "object_store_memory": OBJECT_STORE_BYTES}
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="p-", dir="/tmp") as folder:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")  # of the nodes, and so of the ranks
        patch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", False)  # loopback only
        patch.setattr(utils, "write_ray_address", lambda *_: None)  # or others' `address: auto` would find it
        head = {"temp_dir": f"{folder}/r", "_system_config": QUICK_HEALTH_CHECK} | node
        cluster = Cluster(initialize_head=True, head_node_args=head)
        cluster.add_node(**node)
        yield cluster
        cluster.shutdown()


def hanging(launcher: RayLauncher, root: Path, trial: str = "t0001") -> LaunchRequest:
    """An attempt whose ranks hang."""
    request = attempt_request(root, "hang", trial=trial)
    launcher.launch(request)
    wait_until_started(launcher, request)
    return request


def runs(request: LaunchRequest) -> bool:
    return any(is_running(pid) for pid in rank_pids(request.folder))


class TestOnLoopback:
    @pytest.mark.security("ray")
    def test_ray_listens_on_loopback_alone(self, loopback):
        this = psutil.Process()
        sockets = [socket for p in (this, *this.children(recursive=True)) for socket in sockets_of(p)]
        addresses = {socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN}
        assert addresses
        assert addresses <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}

    @pytest.mark.security("ray")
    def test_a_process_without_the_token_is_refused(self, loopback):
        import ray

        address = ray.get_runtime_context().gcs_address
        program = "import sys, ray._raylet as r\nr.GcsClient(address=sys.argv[1]).internal_kv_keys(b'', None)"
        with_token = subprocess.run([sys.executable, "-c", program, address], capture_output=True, text=True)
        without = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        refused = subprocess.run([sys.executable, "-c", program, address], env=without, capture_output=True, text=True)
        assert with_token.returncode == 0, with_token.stderr
        assert "AuthenticationError" in refused.stderr

    def test_the_ranks_of_a_nodes_attempts_are_forked_by_one_server(self, loopback, tmp_path):
        light_code(tmp_path / "code")
        serve(loopback, tmp_path)
        servers = set()
        for trial in ("t0001", "t0002"):
            request = attempt_request(tmp_path, "tell_environment", trial=trial)
            loopback.launch(request)
            wait_until_ended(loopback, request)
            for rank in range(2):
                told = json.loads((request.folder.path / f"environment-{rank}.json").read_text())
                assert "PARLAY_WARM" in told, request.folder.rank_log(rank).read_text()
                servers.add(int(told["PARLAY_PARENT_PID"]))
        (server,) = servers
        assert is_running(server)
        loopback._runtime.close_fork_servers()
        assert not is_running(server)

    def test_a_server_that_died_is_replaced_though_the_supervisor_of_its_ranks_was_lost(self, loopback, tmp_path):
        light_code(tmp_path / "code")
        serve(loopback, tmp_path)
        request = hanging(loopback, tmp_path)
        (supervisor,) = {psutil.Process(pid).parent() for pid in rank_pids(request.folder)}
        supervisor.kill()
        wait_until_ended(loopback, request)
        for path in tmp_path.glob("**/environment-0.json"):
            if "PARLAY_WARM" in (told := json.loads(path.read_text())):
                os.kill(int(told["PARLAY_PARENT_PID"]), signal.SIGKILL)
        serve(loopback, tmp_path, first=9100)

    def test_an_attempt_without_room_waits_and_can_be_cancelled(self, loopback, tmp_path):
        running = [hanging(loopback, tmp_path, f"t000{i}") for i in (1, 2)]
        waiting = attempt_request(tmp_path, "hang", trial="t0003")
        loopback.launch(waiting)
        loopback.wait(0.5)
        status = poll_one(loopback, waiting)
        assert (status.liveness, status.started) == (Liveness.ALIVE, False)
        assert "parlay_rank_slots" in str(status.detail)
        assert loopback.cancel(request.key for request in (*running, waiting)) == set()
        assert not poll_one(loopback, waiting).started

    @pytest.mark.fault(35)
    def test_a_supervisor_that_dies_takes_its_ranks_along(self, loopback, tmp_path):
        request = hanging(loopback, tmp_path)
        psutil.Process(rank_pids(request.folder)[0]).parent().kill()
        status = wait_until_ended(loopback, request)
        assert (status.reason, status.started) == (FailureReason.NODE_FAILURE, True)
        assert status.ended_at == last_sign_of_life(request.folder, status.started_at)
        assert not runs(request)

    @pytest.mark.walks
    def test_what_cannot_be_ended_is_told_after_one_wait_for_all(self, loopback, tmp_path, monkeypatch):
        keys, waited = {hanging(loopback, tmp_path, f"t{i}").key for i in (1, 2)}, []
        with monkeypatch.context() as patch:
            for what in ("end_ranks", "release"):
                patch.setattr(RayRuntime, what, lambda runtime, job: None)
            patch.setattr(RayRuntime, "_await_reports", lambda runtime, nodes, timeout_s: waited.append(timeout_s))
            assert loopback.cancel(keys) == keys
        assert sum(waited) == _END_TIMEOUT_S
        assert loopback.cancel(keys) == set()

    @pytest.mark.walks
    @pytest.mark.fault(35)
    def test_when_ray_dies_its_attempts_have_ended_and_the_next_runs_on_a_new_one(self, loopback, tmp_path):
        request = hanging(loopback, tmp_path)
        [server] = [child for child in psutil.Process().children() if child.name() == "gcs_server"]
        server.kill()
        assert wait_until_ended(loopback, request).reason is FailureReason.NODE_FAILURE
        assert not runs(request)
        later = attempt_request(tmp_path, "measure", trial="t0002")
        loopback.launch(later)
        assert result_of(later, wait_until_ended(loopback, later)).state is TrialState.MEASURED


@pytest.mark.nightly
class TestOnTwoNodes:
    @pytest.fixture
    def launcher(self, cluster: Any) -> Iterator[RayLauncher]:
        launcher = RayLauncher(partial(RayRuntime.connect, cluster.address), GRACE_PERIODS)
        yield launcher
        launcher.close()

    def test_the_trial_program_trains_across_both_nodes(self, launcher, tmp_path):
        snapshot_code(tmp_path / "snapshot")
        measure = MeasureRules(min_steps=5, max_steps=6, max_warmup_steps=6)
        request = on_two_nodes(attempt_request(tmp_path), ranks_per_node=1)
        request = with_spec(request, trainer={"kind": "parlay"}, measure=measure)
        request = replace(request, code=str(tmp_path / "snapshot"))
        launcher.launch(request)
        status = wait_until_ended(launcher, request)
        result = result_of(request, status)
        assert (result.state, result.reason, result.excerpt) == (TrialState.MEASURED, None, None)
        assert len(status.nodes) == 2

    def test_a_failure_on_one_node_ends_the_other(self, launcher, tmp_path):
        request = on_two_nodes(attempt_request(tmp_path, "fail", rank=3, others="hang"), ranks_per_node=2)
        launcher.launch(request)
        result = result_of(request, wait_until_ended(launcher, request))
        assert result.reason is FailureReason.SCRIPT_ERROR
        assert "rank 3 is broken" in str(result.excerpt)
        assert not runs(request)

    @pytest.mark.security("ray")
    def test_leaving_the_cluster_does_not_end_it(self, launcher, cluster):
        launcher.close()
        assert all(not node.dead_processes() for node in cluster.list_all_nodes())

    def test_a_lost_node_is_a_node_failure_and_leaves_no_rank(self, launcher, cluster, tmp_path):
        request = on_two_nodes(attempt_request(tmp_path, "hang"), ranks_per_node=2)
        launcher.launch(request)
        wait_until_started(launcher, request)
        cluster.remove_node(cluster.list_all_nodes()[1], allow_graceful=False)
        assert wait_until_ended(launcher, request).reason is FailureReason.NODE_FAILURE
        assert not runs(request)


def test_a_ray_that_died_and_does_not_come_back_is_a_passing_condition(tmp_path):
    class DeadRay:
        is_alive = False

        def close(self) -> None: ...

    starts = iter([DeadRay()])

    def start() -> Any:
        for runtime in starts:
            return runtime
        raise RayUnavailable("no memory")

    launcher, request = RayLauncher(start), attempt_request(tmp_path)
    with pytest.raises(ExternalError, match="could not be started again: no memory") as refused:
        launcher.launch(request)
    assert not isinstance(refused.value, LaunchRefused)
    assert not request.folder.ranks.exists()


@pytest.mark.walks
@pytest.mark.fault(16)
def test_signals_to_the_whole_process_group_reach_the_processs_own_handlers_and_leave_ray_to_it():
    program = (
        "import os, psutil, signal\nfrom orchestrator.launchers.ray.runtime import RayRuntime\n"
        "heard = []\n"
        "for number in (signal.SIGTERM, signal.SIGINT): signal.signal(number, lambda number, _: heard.append(number))\n"
        "runtime = RayRuntime.start_loopback(1, 0)\n"
        "servers = psutil.Process().children()\n"
        "assert servers and os.getpgrp() not in [os.getpgid(server.pid) for server in servers]\n"
        "for number in (signal.SIGTERM, signal.SIGINT): os.killpg(os.getpgrp(), number)\n"
        "print(*heard, runtime.end_named({'nobody': 1}, 5), runtime.is_alive)\n"
        "runtime.close()\nos.killpg(os.getpgrp(), signal.SIGTERM)\nprint(*heard)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=180, start_new_session=True
    )
    assert (done.stdout, done.returncode) == ("15 2 True True\n15 2 15\n", 0), done.stderr


def test_a_node_without_parlay_can_run_the_supervisor(tmp_path):
    from ray import cloudpickle

    for module in SENT_MODULES:
        cloudpickle.register_pickle_by_value(module)
    sent = tmp_path / "sent"
    sent.write_bytes(cloudpickle.dumps(NodeSupervisor))
    program = (
        "import sys\nsys.modules.update(dict.fromkeys(('orchestrator', 'trials', 'search_spaces', 'slurm')))\n"
        "from ray import cloudpickle\n"
        "print(cloudpickle.loads(open(sys.argv[1], 'rb').read()).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(sent)], capture_output=True, text=True, timeout=180)
    assert done.stdout == "NodeSupervisor\n", done.stderr


def on_two_nodes(request: LaunchRequest, ranks_per_node: int) -> LaunchRequest:
    ranks = 2 * ranks_per_node
    layout = replace(request.spec.layout, num_nodes=2, data_parallel=ranks, grad_accum_steps=4 // ranks)
    return with_spec(request, layout=layout, num_gpus=ranks, gpus_per_node=ranks_per_node)


@pytest.mark.security("ray")
@pytest.mark.parametrize("of_the_shell", [None, "", "a token that others know"])
def test_a_ray_of_our_own_has_a_token_that_is_made_anew_each_time_whatever_the_shell_says(monkeypatch, of_the_shell):
    for name in ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_USAGE_STATS_ENABLED", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "")  # put back afterwards, whatever is done to it
    if of_the_shell is None:
        monkeypatch.delenv("RAY_AUTH_TOKEN")
    else:
        monkeypatch.setenv("RAY_AUTH_TOKEN", of_the_shell)
    tokens = []
    for _ in range(2):
        _secure_loopback(MagicMock())
        tokens.append(os.environ["RAY_AUTH_TOKEN"])
    assert len({of_the_shell, *tokens}) == 3
    assert all(len(token) == 64 for token in tokens)
