"""Fork servers as their owner sees them; in the place of a server are scripts that make and lose its sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import until
from tests.orchestrator.launchers.attempts import is_running
from trials.fork_server.owner import ForkServers

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

NOTE_START = "echo $$ > pid; echo started >> starts"
SERVE = f"{NOTE_START}; touch n1.socket n2.socket; exec sleep 600"


class Bench:
    def __init__(self, root: Path):
        self.root = root
        self.told: list[str] = []
        self.servers = ForkServers(self.told.append)

    def folder(self, kind: str) -> Path:
        return self.root / kind

    def serve(self, kind: str, script: str = SERVE, makes: str | None = "pid") -> bool:
        """Ask for the servers of a kind, whose script makes a file."""
        self.folder(kind).mkdir(exist_ok=True)
        serves = self.servers.serve(str(self.folder(kind)), ["bash", "-c", script])
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
    assert bench.serve("k1")
    assert bench.serve("k1", makes="n2.socket")
    assert bench.starts("k1") == 1
    assert bench.serve("k2")
    assert not bench.serve("k3"), "one an engine, of two at most"
    bench.servers.close()
    assert not any(is_running(bench.pid(kind)) for kind in ("k1", "k2"))
    assert not list(bench.folder("k1").glob("*.socket"))


@pytest.mark.fault(54)
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'cannot fork: an import has started 1 threads'; exit 1", "an import has started 1 threads"),
        ("touch n1.socket; sleep 0.1; rm n1.socket; echo 'cannot fork: X differs'; echo bye; exit 1", "X differs"),
    ],
)
def test_servers_that_cannot_fork_are_not_started_again_and_the_reason_is_told_once(
    bench: Bench, script: str, reason: str
) -> None:
    assert bench.serve("k1", script, makes=None)
    bench.until_ended("k1")
    assert not bench.serve("k1")
    assert not bench.serve("k1")
    assert bench.told == [reason]


@pytest.mark.fault(54)
def test_servers_that_cannot_be_started_are_refused(bench: Bench) -> None:
    assert not bench.servers.serve(str(bench.folder("none")), ["true"])
    assert len(bench.told) == 1


@pytest.mark.fault(53)
@pytest.mark.parametrize("script", ["echo 'srun: not at all' >&2; exit 1", "kill -9 $$"])
def test_servers_that_have_ended_are_started_again_once(bench: Bench, script: str) -> None:
    for starts in (1, 2):
        assert bench.serve("k1", f"{NOTE_START}; {script}")
        bench.until_ended("k1")
        assert bench.starts("k1") == starts
    assert not bench.serve("k1", script)
    assert "ended 2 times" in bench.told[0]
    assert ("srun: not at all" in bench.told[0]) is ("srun" in script)
