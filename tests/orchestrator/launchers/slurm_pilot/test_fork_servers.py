"""Ranks of a pilot on a real Slurm that fork servers fork: how they start, and what each kill means."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.launchers.base import LaunchRequest
from orchestrator.launchers.slurm_pilot.fork_servers import warm_environment, write_fork_servers
from orchestrator.launchers.slurm_pilot.launcher import SlurmPilotLauncher
from orchestrator.launchers.slurm_pilot.pilot import Pilot
from orchestrator.launchers.slurm_pilot.sizing import PilotRules, RemainingWork
from slurm.client import SlurmClient
from slurm.request import Container, JobOptions, Launch, Runtime
from slurm.sandbox.sandbox import SlurmSandbox
from tests.kit import until
from tests.orchestrator.launchers.attempts import attempt_request, is_running, poll_one, result_of
from tests.rig import access_to
from tests.slurm.sandboxes import resume
from tests.trials.fork_server.servers import light_code
from trials.attempt_result import LaunchStatus, Liveness
from trials.pilot.files import PilotFolder, PilotPlan
from trials.trial import FailureReason

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

LIMIT_S = 60.0


class Bench:
    """A launcher of pilots of two nodes, and the processes of its attempts."""

    def __init__(self, root: Path, sandbox: SlurmSandbox):
        self.root = root
        self.sandbox = sandbox
        self.slurm = SlurmClient(os.environ | sandbox.environment)
        light_code(root / "code")
        self.launcher = self.new_launcher(JobOptions())

    def new_launcher(self, options: JobOptions) -> SlurmPilotLauncher:
        work = RemainingWork(attempts=4, parallel=2)
        return SlurmPilotLauncher(access_to(self.sandbox, options), PilotRules(2, 2), lambda: work)

    def launch(self, behaviour: str, trial: str, **details: object) -> LaunchRequest:
        request = attempt_request(self.root, behaviour, trial=trial, time_limit_s=120.0, **details)
        self.launcher.launch(request)
        return request

    def serve(self, trial: str) -> None:
        """Have servers serve on both nodes, by an attempt."""
        self.environments(trial)
        until(lambda: len(self.sockets()) == 2)

    def sockets(self) -> list[Path]:
        return list(self.pilot().path.glob("fork_servers/*/*.socket"))

    def hanging(self, trial: str, **details: object) -> LaunchRequest:
        """An attempt whose forked ranks hang."""
        if not self.path_of_pilots().exists() or not self.sockets():
            self.serve(f"{trial[:-1]}9")
        request = self.launch("hang", trial, **details)
        files = [request.folder.path / f"hanging-{rank}" for rank in range(2)]
        self.until(request, lambda _: all(file.exists() for file in files))
        return request

    def until(self, request: LaunchRequest, condition: Callable[[LaunchStatus], Any]) -> LaunchStatus:
        deadline = time.monotonic() + LIMIT_S
        while not condition(status := poll_one(self.launcher, request)):
            assert time.monotonic() < deadline, status
            self.launcher.wait(0.1)
        return status

    def reason(self, request: LaunchRequest) -> FailureReason | None:
        """The reason of an attempt's end, after which nothing of it runs."""
        status = self.until(request, lambda status: status.liveness is Liveness.ENDED)
        self.until(request, lambda _: not self.pids(request))
        return result_of(request, status).reason

    def environments(self, trial: str, **details: object) -> list[dict[str, str]]:
        """Environments of the ranks of an attempt that tells them."""
        request = self.launch("tell_environment", trial, **details)
        self.until(request, lambda status: status.liveness is Liveness.ENDED)
        return [json.loads((request.folder.path / f"environment-{rank}.json").read_text()) for rank in range(2)]

    def pids(self, request: LaunchRequest, rank: bool | None = None) -> list[int]:
        """Python processes in the attempt's folder; only the forked ranks, or only their stubs."""
        here = str(request.folder.path.absolute())
        found = [each for each in processes() if each["cwd"] == here and "python" in (each["exe"] or "")]
        is_rank = {each["pid"]: "trials.fork_server" in (each["cmdline"] or ()) for each in found}
        return [pid for pid in is_rank if rank is None or is_rank[pid] is rank]

    def server_of(self, pid: int) -> int:
        """Parent of a forked rank."""
        return psutil.Process(pid).ppid()

    def pilot(self) -> PilotFolder:
        [path] = self.path_of_pilots().iterdir()
        return PilotFolder(path)

    def path_of_pilots(self) -> Path:
        return self.root / "searches" / "demo-abc234" / "pilots"

    def close(self) -> None:
        self.launcher.close()
        assert self.slurm.cancel([job for job in self.slurm.jobs() if not job.state.is_ended]) == set()


def processes() -> list[dict[str, Any]]:
    """All processes; of one that has ended meanwhile nothing is known."""
    return [process.info for process in psutil.process_iter(["pid", "cwd", "exe", "cmdline"])]


@pytest.fixture
def bench(tmp_path: Path, slurm_sandbox: SlurmSandbox) -> Iterator[Bench]:
    bench = Bench(tmp_path, slurm_sandbox)
    yield bench
    bench.close()


def is_warm(environments: list[dict[str, str]]) -> bool:
    warm = {"PARLAY_WARM" in environment for environment in environments}
    assert len(warm) == 1, environments
    return warm.pop()


def test_attempts_of_a_pilot_are_forked_by_one_server_a_node_with_their_own_place(bench):
    held = bench.hanging("t0000")
    environments = bench.environments("t0001") + bench.environments("t0002")
    assert is_warm(environments)
    assert [environment["SLURM_PROCID"] for environment in environments] == ["0", "1"] * 2
    [folder] = (bench.pilot().path / "fork_servers").iterdir()
    assert {path.name for path in folder.glob("*.socket")} == {"n1.socket", "n2.socket"}
    assert len({bench.server_of(pid) for pid in bench.pids(held, rank=True)}) == 1


@pytest.mark.walks
@pytest.mark.skipif(os.geteuid() != 0, reason="no leave to be another user")
def test_ranks_in_a_container_are_forked_by_a_server_in_a_container_of_its_own(bench):
    bench.launcher = bench.new_launcher(JobOptions(container=Container(command=("unshare", "--mount"))))
    bench.serve("t0000")
    assert is_warm(bench.environments("t0001"))


@pytest.mark.parametrize(
    "container",
    [None, *(Container(runtime, "image") for runtime in Runtime), Container(command=("unshare", "--mount"))],
)
def test_attempts_that_differ_in_folder_limit_and_nodes_only_have_the_same_servers(tmp_path, container):
    light_code(tmp_path / "code")
    plan = PilotPlan(2, 2, 600.0, "python", "code", 60.0, 0.0)
    pilot, options = Pilot(PilotFolder(tmp_path / "p0001"), plan, "demo.p0001"), JobOptions(container=container)
    first, second = (attempt_request(tmp_path, "hang", trial=trial) for trial in ("t0001", "t0002"))
    others = [second, replace(first, time_limit_s=first.time_limit_s + 60.0), replace(first, exclude=("n1",))]
    name = write_fork_servers(first, options, pilot)
    assert name is not None
    assert {write_fork_servers(other, options, pilot) for other in others} == {name}


@pytest.mark.parametrize(("name", "is_warm"), [("MIOPEN_USER_DB_PATH", True), ("TMPDIR", False)])
def test_ranks_with_a_folder_of_their_step_have_servers_only_where_no_import_reads_it(tmp_path, name, is_warm):
    light_code(tmp_path / "code")
    options = JobOptions(launch=Launch(node_folders={name: "/tmp"}))
    assert bool(warm_environment(attempt_request(tmp_path, "hang"), options)) is is_warm


def test_servers_have_all_cpus_of_the_pilot_and_not_those_of_one_rank(bench):
    bench.launcher = bench.new_launcher(JobOptions(cpus_per_task=2))
    held = bench.hanging("t0000")
    rank = bench.pids(held, rank=True)[0]
    environment = Path(f"/proc/{bench.server_of(rank)}/environ").read_text().split("\0")
    assert "SLURM_CPUS_ON_NODE=4" in environment


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group of 64 MiB; its file cgroup.procs takes processes."""
    for controller, limit in (("memory", "memory.limit_in_bytes"), (".", "memory.max")):
        group = Path("/sys/fs/cgroup", controller, f"parlay-test-{os.getpid()}")
        with suppress(OSError):
            group.mkdir()
            if (group / limit).exists():
                break
            group.rmdir()
    else:
        pytest.skip("no leave to limit memory")
    (group / limit).write_text(str(64 * 2**20))
    yield group
    deadline = time.monotonic() + LIMIT_S
    while (group / "cgroup.procs").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    group.rmdir()


@pytest.mark.walks
@pytest.mark.fault(52)
def test_a_rank_that_the_kernel_kills_for_memory_is_out_of_memory_itself_and_no_other_is(bench, memory_group):
    first, other = bench.hanging("t0001"), bench.hanging("t0002")
    (memory_group / "cgroup.procs").write_text(str(bench.server_of(bench.pids(first, rank=True)[0])))
    bench.launcher.cancel([first.key])
    request = bench.launch("fill_memory", "t0003")
    assert bench.reason(request) is FailureReason.HOST_OOM
    assert poll_one(bench.launcher, other).liveness is Liveness.ALIVE
    assert is_warm(bench.environments("t0004"))
    bench.close()


KILLS = {
    "rank": (lambda bench, request: os.kill(bench.pids(request, rank=True)[0], signal.SIGKILL)),
    "stub": (lambda bench, request: os.kill(bench.pids(request, rank=False)[0], signal.SIGKILL)),
    "server": (lambda bench, request: os.kill(bench.server_of(bench.pids(request, rank=True)[0]), signal.SIGKILL)),
}


@pytest.mark.walks
@pytest.mark.fault(51)
@pytest.mark.parametrize("killed", KILLS)
def test_a_kill_ends_the_attempt_on_that_node_and_no_other(bench, killed):
    request, other = bench.hanging("t0001"), bench.hanging("t0002")
    before = bench.pids(other)
    KILLS[killed](bench, request)
    assert bench.reason(request) is FailureReason.NODE_FAILURE
    assert poll_one(bench.launcher, other).liveness is Liveness.ALIVE
    assert bench.pids(other) == before
    bench.launcher.cancel([other.key])
    assert is_warm(bench.environments("t0004")) is (killed != "server")


@pytest.mark.fault(55)
def test_a_cancelled_step_ends_with_its_ranks(bench):
    request = bench.hanging("t0001")
    step = bench.until(request, lambda status: status.started).job_id
    bench.sandbox.ask("scancel", str(step))
    assert bench.reason(request) is FailureReason.CANCELLED_BY_USER


@pytest.mark.walks
@pytest.mark.fault(55)
def test_a_cancelled_step_of_the_servers_ends_their_ranks_and_the_next_attempt_has_others(bench):
    request = bench.hanging("t0001")
    job = str(bench.until(request, lambda status: status.started).job_id).split(".")[0]
    rows = bench.sandbox.ask("squeue", "--steps", "--noheader", "--format=%i %j", f"--jobs={job}").stdout.splitlines()
    [step] = [row.split()[0] for row in rows if row.endswith(" fork_servers")]
    bench.sandbox.ask("scancel", step)
    assert bench.reason(request) is FailureReason.NODE_FAILURE
    bench.serve("t0002")
    assert is_warm(bench.environments("t0003"))


@pytest.mark.walks
@pytest.mark.fault(56)
def test_an_agent_that_is_killed_takes_servers_and_ranks_with_it(bench):
    request = bench.hanging("t0001")
    server = bench.server_of(bench.pids(request, rank=True)[0])
    folder = str(bench.pilot().path.absolute())
    [agent] = [each for each in processes() if (each["cmdline"] or ())[1:] == ["-m", "trials.pilot", folder]]
    os.kill(agent["pid"], signal.SIGKILL)
    assert bench.reason(request) is FailureReason.INTERRUPTED
    bench.until(request, lambda _: not is_running(server))


@pytest.mark.fault(56)
def test_the_driver_is_killed_and_the_next_one_finds_its_forked_ranks(bench):
    request = bench.hanging("t0001")
    before = bench.pids(request)
    bench.launcher = bench.new_launcher(JobOptions())
    assert bench.launcher.adopt({request.key: request})
    assert bench.until(request, lambda status: status.started).liveness is Liveness.ALIVE
    assert bench.pids(request) == before
    assert is_warm(bench.environments("t0002"))


@pytest.mark.walks
@pytest.mark.fault(56)
def test_a_node_that_fails_takes_servers_and_ranks_with_it(bench):
    request = bench.hanging("t0001")
    bench.sandbox.ask("scontrol", "update", "nodename=n1", "state=down", "reason=test")
    try:
        assert bench.reason(request) is FailureReason.NODE_FAILURE
    finally:
        resume(bench.sandbox, "n1")
