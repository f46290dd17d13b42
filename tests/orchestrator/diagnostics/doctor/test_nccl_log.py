"""Transports in the logs of NCCL, RCCL and the libfabric plugin."""

from __future__ import annotations

import pytest

from orchestrator.diagnostics.doctor.nccl_log import NcclLog, merge_logs, parse_nccl_log

ROCE = """\
rank 3 says something of its own via NET/Socket/0
dgxh100-4:460770:460770 [0] NCCL INFO Bootstrap : Using enp220s0np0:10.1.128.136<0>
dgxh100-4:460770:460770 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation
NCCL version 2.19.3+cuda12.3
dgxh100-4:460770:460842 [0] NCCL INFO NET/IB : Using [0]mlx5_10:1/RoCE [1]mlx5_11:1/RoCE [RO]; OOB eth0:10.1.128.136<0>
dgxh100-4:460770:460842 [0] NCCL INFO Using network IB
10-90-43-152:120890:121560 [0] NCCL INFO Channel 01 : 2[c7000] -> 0[87000] [receive] via NET/IB/5/GDRDMA
10-90-43-152:120890:121560 [0] NCCL INFO Channel 02/0 : 0[0] -> 8[0] [send] via NET/IB/0(0)/GDRDMA
dgxh100-4:460770:460842 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
dgxh100-4:460770:460842 [0] NCCL INFO Channel 01/0 : 0[0] -> 7[7] via P2P/IPC/read
"""
TCP = """\
LIUCC13-AC-01:106:120 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to lo
sh9-machine:3884994:3885025 [3] NCCL INFO Failed to open libibverbs.so[.1]
node0:919:1150 [0] NCCL INFO NET/IB : No device found.
node0:919:1150 [0] NCCL INFO NET/Socket : Using [0]eth0:10.45.223.193<0>
node0:919:1150 [0] NCCL INFO Using non-device net plugin version 0
node0:919:1150 [0] NCCL INFO Using network Socket
node0:926:1151 [7] NCCL INFO Channel 03/0 : 15[7] -> 6[6] [send] via NET/Socket/3
node0:919:1150 [0] NCCL INFO Channel 01/0 : 8[0] -> 15[7] via P2P/IPC/read
"""
SLINGSHOT = """\
nid000019:51404:52019 [0] NCCL INFO NET/OFI Using aws-ofi-nccl 1.4.0
nid000019:51404:52019 [0] NCCL INFO NET/OFI Selected Provider is cxi
nid000019:51404:52019 [0] NCCL INFO Using network AWS Libfabric
nid000019:51404:52019 [0] NCCL INFO Channel 00/0 : 4[3000] -> 0[3000] [receive] via NET/AWS Libfabric/0/GDRDMA
nid000019:51404:52019 [0] NCCL INFO Channel 00 : 0[3000] -> 1[41000] via P2P/IPC
"""
OVER_TCP = SLINGSHOT.replace("is cxi", "is tcp;ofi_rxm").replace("/GDRDMA", "")
EFA = """\
ip-10-36-22-140:80:2500 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 4 nics)
ip-10-36-22-140:80:2500 [0] NCCL INFO Initialized NET plugin Libfabric
ip-10-36-22-140:80:2500 [0] NCCL INFO Assigned NET plugin Libfabric to comm
ip-10-36-22-140:80:2500 [0] NCCL INFO Using network Libfabric
"""
ONE_NODE = """\
c1:106:120 [0] NCCL INFO Using network Socket
c1:106:120 [0] NCCL INFO Channel 00 : 1[1] -> 0[0] via SHM/direct/direct
c1:106:121 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/direct pointer
"""


@pytest.mark.parametrize(
    ("text", "name", "in_node", "is_tcp"),
    [
        (ROCE, "NET/IB/GDRDMA", {"P2P/CUMEM", "P2P/IPC"}, False),
        (TCP, "NET/Socket", {"P2P/IPC"}, True),
        (SLINGSHOT, "NET/AWS Libfabric/GDRDMA (libfabric provider cxi)", {"P2P/IPC"}, False),
        (OVER_TCP, "NET/AWS Libfabric (libfabric provider tcp;ofi_rxm)", {"P2P/IPC"}, True),
        (EFA, "NET/Libfabric (libfabric provider efa)", set(), False),
        (ONE_NODE, "NET/Socket", {"SHM/direct", "P2P/direct"}, True),
        ("", "", set(), False),
        ("NCCL INFO NET/OFI Selected Provider is tcp;ofi_rxm\n", "", set(), True),
    ],
)
def test_the_transport_is_named(text, name, in_node, is_tcp):
    found = parse_nccl_log(text)
    assert (found.name, found.in_node, found.is_tcp) == (name, in_node, is_tcp)


def test_a_channel_tells_more_than_what_was_chosen_first():
    """The log also has the choice of another communicator, within one node."""
    found = parse_nccl_log(ONE_NODE + ROCE)
    assert (found.network, found.is_tcp) == ("Socket", False)
    assert found.version == "2.19.3+cuda12.3"


def test_a_provider_that_no_channel_uses_does_not_make_it_tcp():
    assert not parse_nccl_log("n:1:1 [0] NCCL INFO NET/OFI Selected Provider is tcp\n" + ROCE).is_tcp


def test_lines_that_may_tell_why_are_kept_once():
    assert parse_nccl_log(TCP + TCP).reasons == (
        "NCCL_SOCKET_IFNAME set by environment to lo",
        "Failed to open libibverbs.so[.1]",
        "NET/IB : No device found",
    )


def test_the_ranks_logs_together_are_tcp_where_one_of_them_is():
    found = merge_logs([parse_nccl_log(ROCE), NcclLog(), parse_nccl_log(TCP)])
    assert found.name == "NET/IB/GDRDMA, NET/Socket"
    assert found.is_tcp
    assert merge_logs([]) == NcclLog()
