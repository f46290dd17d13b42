"""Host name of rank 0's node, and each rank's own device."""

from __future__ import annotations

import socket

import pytest

from trials.ranks.address import ADDRESS_VARIABLE, own_address
from trials.ranks.environment import device_number


@pytest.fixture(autouse=True)
def _on_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "jwb0001.juwels")
    monkeypatch.setattr(socket, "getfqdn", lambda: "jwb0001.juwels.example")
    monkeypatch.setattr(socket, "gethostbyname", {"jwb0001.juwels": "10.1.2.3"}.__getitem__)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (None, "jwb0001.juwels.example"),
        ("", "jwb0001.juwels.example"),
        ("{host}i", "jwb0001i"),
        ("{ip}", "10.1.2.3"),
        ("ib-{host}.fast", "ib-jwb0001.fast"),
    ],
)
def test_a_node_calls_itself_as_its_site_wants(monkeypatch, wanted, found):
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    if wanted is not None:
        monkeypatch.setenv(ADDRESS_VARIABLE, wanted)
    assert own_address() == found


def test_the_room_that_writes_the_script_calls_the_variable_the_same():
    from slurm.srun_command import ADDRESS_VARIABLE as written

    assert written == ADDRESS_VARIABLE


@pytest.mark.parametrize(
    ("environ", "numbers"),
    [
        ({}, [0, 1, 2, 3]),
        ({"CUDA_VISIBLE_DEVICES": ""}, [0, 1, 2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, [0, 1, 2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "2"}, [0, 0, 0, 0]),
        ({"ROCR_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, [0, 0, 0, 0]),
        ({"HIP_VISIBLE_DEVICES": "GPU-5a,GPU-5b"}, [0, 1, 0, 1]),
    ],
)
def test_a_rank_that_is_shown_one_device_uses_that_one(environ, numbers):
    assert [device_number(rank, environ) for rank in range(4)] == numbers
