"""Rendezvous of the ranks, and what they tell each other: real sockets, stores and ranks."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from search_spaces.layouts.layout import Layout
from tests.trials.train.trial_processes import make_spec
from trials.files.folders import AttemptFolder, read_json
from trials.ranks import rendezvous
from trials.ranks.environment import RankEnvironment
from trials.ranks.rendezvous import PORTS, usable_ports
from trials.train.parallel.process_groups import open_store

SPEC = make_spec(Layout(tensor_parallel=2), gpus_per_node=1)

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


@pytest.fixture
def strangers() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def occupy(strangers: ExitStack, address: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = strangers.enter_context(socket.socket(family, socket.SOCK_STREAM))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen()


def free_ports(count: int) -> list[int]:
    """Ports of the rendezvous range that are free now."""
    found: list[int] = []
    for port in PORTS[7::13]:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("this machine has no free ports")


def meet(folder: Path) -> tuple[int, bytes, object]:
    """Both ranks of a trial open its store and share the folder's name; returns the port, what rank 0 received, and the
    stores, which hold their port while they live."""
    folder.mkdir(exist_ok=True)
    attempt = AttemptFolder(folder)
    with ThreadPoolExecutor(2) as pool:
        opened = [pool.submit(open_store, SPEC, attempt, RankEnvironment(rank, 2, rank)) for rank in (0, 1)]
        server, client = (store.result(timeout=60) for store in opened)
    client.set("name", folder.name)
    return read_json(folder / "rendezvous.r0")["port"], server.get("name"), (server, client)


@pytest.mark.fault(39)
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::"])
def test_a_port_in_use_is_passed_over_for_another(tmp_path, monkeypatch, strangers, address):
    taken, free = free_ports(2)
    monkeypatch.setattr(rendezvous, "PORTS", [taken, free])
    monkeypatch.setattr(rendezvous.random, "sample", lambda ports, count: ports)  # the one in use first
    occupy(strangers, address, taken)
    assert meet(tmp_path / "trial")[:2] == (free, b"trial")


@pytest.mark.fault(39)
def test_trials_side_by_side_never_share_a_port(tmp_path, monkeypatch, strangers):
    free = free_ports(6)
    monkeypatch.setattr(rendezvous, "PORTS", free)
    occupy(strangers, "127.0.0.1", free[0])
    with ThreadPoolExecutor(4) as pool:
        met = list(pool.map(meet, [tmp_path / f"trial-{n}" for n in range(5)]))
    assert sorted(port for port, *_ in met) == sorted(free[1:])
    assert [heard for _, heard, _ in met] == [f"trial-{n}".encode() for n in range(5)]


@pytest.mark.fault(39)
def test_where_every_port_is_in_use_the_error_says_so(tmp_path, monkeypatch, strangers):
    [port] = free_ports(1)
    monkeypatch.setattr(rendezvous, "PORTS", range(port, port + 1))
    occupy(strangers, "127.0.0.1", port)
    with pytest.raises(RuntimeError, match=f"no free port among 1 tries in {port}-{port}"):
        open_store(SPEC, AttemptFolder(tmp_path), RankEnvironment(0, 2, 0))


@pytest.mark.fault(39)
@pytest.mark.parametrize(
    ("ephemeral", "usable"),
    [("25000\t60999\n", range(20000, 25000)), ("1024\t21000\n", range(21001, 30000)), ("1024\t65535\n", PORTS)],
    ids=["above", "below", "all"],
)
def test_no_port_is_one_that_the_kernel_gives_to_others_unless_it_gives_all_away(
    tmp_path, monkeypatch, ephemeral, usable
):
    monkeypatch.setattr(rendezvous, "EPHEMERAL_PORTS", tmp_path / "ip_local_port_range")
    rendezvous.EPHEMERAL_PORTS.write_text(ephemeral)
    assert set(usable_ports(ephemeral)) == set(usable)
    assert meet(tmp_path / "trial")[0] in usable


TOLD = "tests.trials.train.rank_programs:told_each_other"


@pytest.mark.security("no_pickle")
def test_every_rank_has_what_each_of_them_told_in_rank_order(ranks):
    told = [{"host": "n1", "probe_ms": 1.5}, ["Ω", None, "a" * 300], ""]
    assert ranks.run(TOLD, 3, {"told": told, "longest_bytes": 1024}) == [told] * 3


def test_more_than_a_rank_may_tell_is_refused_by_all_of_them_alike(ranks):
    words = ranks.run(TOLD, 2, {"told": ["short", "x" * 99], "longest_bytes": 100})
    assert words == ["rank 1 sent 101 bytes, more than the limit of 100"] * 2
