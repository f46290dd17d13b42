"""Fork servers of a pilot as its agent sees them; in the place of srun are scripts that say what servers say."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.orchestrator.launchers.attempts import is_running
from tests.trials.fork_server.servers import until
from tests.trials.pilot.test_agent import NUMBERED, Pilot
from trials.pilot import fork_servers
from trials.pilot.files import StepEndReason, StepFileKind
from trials.pilot.fork_servers import LOG, OUTPUT, SCRIPT, ForkServers

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

TELL = NUMBERED + 'echo "${PARLAY_FORK_SERVERS-plain}" > how'
LISTEN = """\
echo started >> starts
echo $$ > pid
for node in n1 n2; do echo "{\\"listens\\": \\"$node\\"}" >> servers.out; done
exec sleep 600
"""


@pytest.fixture
def pilot(tmp_path: Path) -> Iterator[Pilot]:
    made = Pilot(tmp_path)
    yield made
    made.kill()
    for pid in made.folder.path.glob("fork_servers/*/pid"):
        if is_running(int(pid.read_text())):
            os.kill(int(pid.read_text()), signal.SIGKILL)


def servers(pilot: Pilot, script: str = LISTEN, name: str = "k1") -> Path:
    folder = pilot.folder.fork_servers(name)
    folder.mkdir(parents=True)
    (folder / SCRIPT).write_text(script)
    return folder


def how(place: Path) -> str:
    return (place / "how").read_text().strip()


def test_steps_of_a_kind_share_its_servers_and_others_start_plain(pilot: Pilot) -> None:
    folder = servers(pilot)
    places = [pilot.ask(f"t000{i}.a1", TELL, fork_servers="k1") for i in (1, 2)]
    plain = pilot.ask("t0003.a1", TELL)
    pilot.start()
    assert [pilot.end_of(f"t000{i}.a1").exit_code for i in (1, 2, 3)] == [0, 0, 0]
    assert [how(place) for place in (*places, plain)] == [str(folder), str(folder), "plain"]
    assert (folder / "starts").read_text() == "started\n"
    pilot.folder.drain.touch()
    assert pilot.ends() == 0
    assert not is_running(int((folder / "pid").read_text()))
    assert pilot.folder.read_plain_starts() is None


@pytest.mark.fault(54)
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (None, "No such file"),
        ("echo \"srun: unrecognized option '--overlap'\" >&2; exit 1", "srun: unrecognized option '--overlap'"),
        (
            'echo \'{"listens": "n1"}\n{"refused": "an import has started 1 threads"}\' >> servers.out; sleep 600',
            "1 threads",
        ),
        ("exit 0", "no message"),
        (LISTEN.replace("exec", 'echo \'{"differs": "the variable X differs"}\' >> servers.out; exec'), "X differs"),
    ],
)
def test_where_servers_are_refused_ranks_start_plain_and_the_reason_is_kept(
    pilot: Pilot, script: str | None, reason: str
) -> None:
    if script is not None:
        servers(pilot, script)
    place = pilot.ask("t0001.a1", TELL, fork_servers="k1")
    pilot.start()
    assert pilot.end_of("t0001.a1").exit_code == 0
    assert how(place) == "plain"
    note = pilot.folder.read_plain_starts()
    assert script is None or (note is not None and reason in note.reason)


def test_a_step_that_waits_for_its_servers_is_cancelled_at_once_and_a_drained_pilot_waits_for_it(pilot: Pilot) -> None:
    servers(pilot, "exec sleep 600")
    pilot.ask("t0001.a1", "sleep 600", fork_servers="k1")
    pilot.start()
    until(pilot.folder.step_file("t0001.a1", StepFileKind.CLAIMED).exists)
    pilot.folder.drain.touch()
    pilot.folder.step_file("t0001.a1", StepFileKind.CANCEL).touch()
    assert pilot.end_of("t0001.a1").reason is StepEndReason.CANCELLED
    assert pilot.ends() == 0


@pytest.mark.fault(52)
def test_a_kill_for_memory_in_the_servers_step_is_told_in_the_log_of_the_step_on_that_node(pilot: Pilot) -> None:
    folder = servers(pilot)
    fails = NUMBERED + "touch runs; until [ -e go ]; do sleep 0.05; done; exit 1"
    places = [pilot.ask(f"t000{i}.a1", fails, fork_servers="k1", nodes=(node,)) for i, node in ((1, "n1"), (2, "n2"))]
    pilot.start()
    until(lambda: all((place / "runs").exists() for place in places))
    with (folder / OUTPUT).open("a") as out:
        out.write(json.dumps({"oom_kill": 1, "node": "n2"}) + "\n")
    for place in places:
        (place / "go").touch()
    assert [pilot.end_of(f"t000{i}.a1").exit_code for i in (1, 2)] == [1, 1]
    assert ["oom_kill" in (place / "job.log").read_text() for place in places] == [False, True]


class TestForkServers:
    """Decisions, one by one."""

    @pytest.fixture
    def kinds(self, pilot: Pilot) -> Iterator[ForkServers]:
        for name in ("k1", "k2", "k3"):
            servers(pilot, name=name)
        kinds = ForkServers(pilot.folder, 2)
        yield kinds
        kinds.close()

    def serve(self, kinds: ForkServers, name: str, *in_use: str) -> Path | None:
        until(lambda: kinds.is_decided(name, in_use))
        return kinds.folder(name)

    def test_of_three_kinds_the_oldest_idle_one_goes_or_where_both_are_in_use_the_third_starts_plain(
        self, pilot: Pilot, kinds: ForkServers
    ) -> None:
        self.serve(kinds, "k1")
        assert self.serve(kinds, "k2")
        assert self.serve(kinds, "k3", "k1", "k2") is None
        assert self.serve(kinds, "k3", "k1") is not None
        pids = [int((pilot.folder.fork_servers(f"k{i}") / "pid").read_text()) for i in (1, 2, 3)]
        until(lambda: [is_running(pid) for pid in pids] == [True, False, True])

    def test_a_refusal_on_one_node_does_not_end_the_servers_of_running_ranks(
        self, pilot: Pilot, kinds: ForkServers
    ) -> None:
        folder = pilot.folder.fork_servers("k1")
        self.serve(kinds, "k1")
        with (folder / OUTPUT).open("a") as out:
            out.write('{"refused": "ModuleNotFoundError"}\n')
        assert self.serve(kinds, "k1", "k1") == folder.absolute()
        assert is_running(int((folder / "pid").read_text()))
        assert self.serve(kinds, "k1") is None
        assert not is_running(int((folder / "pid").read_text()))

    @pytest.mark.fault(53)
    def test_servers_that_have_ended_are_started_again_once_when_none_of_their_ranks_run(
        self, pilot: Pilot, kinds: ForkServers
    ) -> None:
        folder = pilot.folder.fork_servers("k1")
        self.serve(kinds, "k1")
        (folder / LOG).write_text("srun: error: n2: task 1: Killed\n")
        assert self.serve(kinds, "k1", "k1") is not None
        assert (folder / "starts").read_text() == "started\n"
        assert self.serve(kinds, "k1") is not None
        assert (folder / "starts").read_text() == "started\n" * 2
        (folder / LOG).write_text("srun: error: n2: task 1: Killed\n")
        assert self.serve(kinds, "k1") is None
        note = pilot.folder.read_plain_starts()
        assert "ended 2 times" in note.reason

    @pytest.mark.parametrize(
        ("log", "killed"),
        [
            ("srun: error: n2: task 1: Out Of Memory\n", {"n2"}),
            ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0\nsrun: error: n1: task 0: Killed\n", {"n1"}),
            ("srun: error: n[1-2]: tasks 0-1: Out Of Memory\n", {"n1", "n2"}),
            ("srun: error: n1: task 0: Killed\n", set()),
        ],
    )
    def test_a_server_killed_for_memory_is_known_by_its_node(
        self, pilot: Pilot, kinds: ForkServers, log: str, killed: set[str]
    ) -> None:
        self.serve(kinds, "k1")
        (pilot.folder.fork_servers("k1") / LOG).write_text(log)
        assert {node for node in ("n1", "n2", "m1") if kinds.count_memory_kills("k1", [node])} == killed

    def test_servers_that_do_not_listen_in_time_are_not_waited_for(
        self, pilot: Pilot, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fork_servers, "START_S", 0.2)
        some = 'echo $$ > pid; echo \'{"listens": "n1"}\' >> servers.out; exec sleep 600'
        for name, script in (("none", "echo $$ > pid; exec sleep 600"), ("some", some)):
            servers(pilot, script, name)
        kinds = ForkServers(pilot.folder, 2)
        assert self.serve(kinds, "none") is None
        assert self.serve(kinds, "some") is not None
        kinds.close()
