"""Fork servers as their owner sees them; in the place of a server are scripts that make and lose its sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kit import until
from tests.orchestrator.launchers.attempts import is_running
from trials.fork_server.owner import ForkServers

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

SERVE = "echo $$ > pid; echo started >> starts; touch n1.socket n2.socket; exec sleep 600"


class Bench:
    def __init__(self, root: Path):
        self.root = root
        self.told: list[str] = []
        self.servers = ForkServers(self.told.append)

    def folder(self, kind: str) -> Path:
        return self.root / kind

    def serve(self, kind: str, name: str, script: str = SERVE, makes: str | None = "pid") -> bool:
        """Ask for the servers of a kind, whose script makes a file."""
        self.folder(kind).mkdir(exist_ok=True)
        serves = self.servers.serve(str(self.folder(kind)), name, ["bash", "-c", script])
        if serves and makes is not None:
            until((self.folder(kind) / makes).exists)
        return serves

    def pid(self, kind: str) -> int:
        return int(until(lambda: (self.folder(kind) / "pid").read_text()))

    def until_ended(self, kind: str) -> None:
        process = self.servers._kinds[str(self.folder(kind))].process
        assert process is not None
        until(lambda: process.poll() is not None)

    def starts(self, kind: str) -> int:
        return (self.folder(kind) / "starts").read_text().count("started")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.servers.close()


def test_ranks_of_a_kind_share_its_servers_which_end_with_their_owner(bench: Bench) -> None:
    assert bench.serve("k1", "t1")
    assert bench.serve("k1", "t2")
    until((bench.folder("k1") / "n2.socket").exists)
    assert bench.starts("k1") == 1
    bench.servers.close()
    assert not is_running(bench.pid("k1"))
    assert not list(bench.folder("k1").glob("*.socket"))


def test_of_three_kinds_an_idle_one_goes_or_where_both_are_in_use_the_third_starts_plain(bench: Bench) -> None:
    assert bench.serve("k1", "t1")
    assert bench.serve("k2", "t2")
    assert not bench.serve("k3", "t3")
    bench.servers.release("t2")
    assert bench.serve("k3", "t3")
    assert [is_running(bench.pid(kind)) for kind in ("k1", "k2", "k3")] == [True, False, True]


@pytest.mark.fault(54)
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo \"srun: unrecognized option '--overlap'\" >&2; exit 1", "srun: unrecognized option '--overlap'"),
        ("exit 0", "the fork servers did not start"),
        ("echo 'cannot fork: an import has started 1 threads'; exit 1", "an import has started 1 threads"),
        ("touch n1.socket; sleep 0.1; rm n1.socket; echo 'cannot fork: X differs'; echo bye; exit 1", "X differs"),
    ],
)
def test_where_servers_are_refused_ranks_start_plain_and_the_reason_is_told_once(
    bench: Bench, script: str, reason: str
) -> None:
    assert bench.serve("k1", "t1", script, makes=None)
    bench.until_ended("k1")
    bench.servers.release("t1")
    assert not bench.serve("k1", "t2")
    assert not bench.serve("k1", "t3")
    assert bench.told == [reason]


def test_servers_that_cannot_be_started_are_refused(bench: Bench) -> None:
    assert not bench.servers.serve(str(bench.folder("none")), "t1", ["true"])
    assert len(bench.told) == 1


def _kill(bench: Bench) -> None:
    process = bench.servers._kinds[str(bench.folder("k1"))].process
    assert process is not None
    process.kill()
    process.wait()


def _lose_a_socket(bench: Bench) -> None:
    """As on a node whose server hangs or was killed: a stub removes it."""
    (bench.folder("k1") / "n2.socket").unlink()


@pytest.mark.fault(53)
@pytest.mark.parametrize("fault", [_kill, _lose_a_socket])
def test_servers_that_have_ended_are_started_again_once_when_none_of_their_ranks_run(
    bench: Bench, fault: Callable[[Bench], None]
) -> None:
    for starts in (1, 2):
        assert bench.serve("k1", "t1", makes="n2.socket")
        assert bench.starts("k1") == starts
        bench.servers.check()
        fault(bench)
        assert bench.serve("k1", "t2", makes=None)
        assert bench.starts("k1") == starts, "ranks of t1 still run"
        bench.servers.release("t1")
        bench.servers.release("t2")
    assert not bench.serve("k1", "t3")
    assert "ended 2 times" in bench.told[0]
