"""Transports that NCCL chose, parsed from the ranks' logs. Pure.

Covers the output of NCCL 2.4 to 2.29, RCCL and the libfabric plugin with NCCL_DEBUG=INFO.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

SOCKET = "Socket"
"""NCCL's name for TCP."""
_LIBFABRIC = "Libfabric"
_OVER_TCP = ("tcp", "sockets", "udp")
"""Prefixes of libfabric providers that need no fabric hardware (tcp;ofi_rxm)."""

_VERSION = re.compile(r"(?:NCCL|RCCL) version[ :]+(\S+)")
_NETWORK = re.compile(r"NCCL INFO .*?Using network (.+?)\s*$", re.MULTILINE)
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([\w;-]+)")
_VIA = re.compile(r"NCCL INFO Channel .* via ([A-Z0-9]+(?:/[^\s/]+(?: [^\s/]+)*)*)")
_IN_NODE = re.compile(r"(P2P|SHM)(?:/(\w+))?")
_REASONS = re.compile(
    r"NCCL (?:INFO|WARN) .*?("
    r"NCCL_(?:IB_DISABLE|IB_HCA|NET|NET_PLUGIN|SOCKET_IFNAME|P2P_DISABLE|SHM_DISABLE) set by environment to .+?"
    r"|NET/IB : No device found"
    r"|Failed to open libibverbs\S*"
    r"|(?:NET/OFI|NET/Plugin)\S* ?:? .*?(?:failed|Failed|No eligible|could not|Could not find|cannot open)[^\n]*?"
    r")\.?\s*$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class NcclLog:
    """NCCL's choices on a rank. `network` is NCCL's name for the network (IB, Socket, AWS Libfabric), `provider` the
    libfabric provider (cxi on Slingshot, efa on EC2); None if the log does not show it.

    `between_nodes` are the transports of channels between nodes (NET/IB/GDRDMA), `in_node` those within a node
    (P2P/IPC, SHM), without device numbers. `reasons` are log lines that may explain the choice.
    """

    version: str | None = None
    network: str | None = None
    provider: str | None = None
    between_nodes: frozenset[str] = frozenset()
    in_node: frozenset[str] = frozenset()
    reasons: tuple[str, ...] = ()

    @property
    def is_tcp(self) -> bool:
        """True if nodes communicate over TCP, also by libfabric. Channels in use count more than the initial choice."""
        used = self.between_nodes or {f"NET/{self.network}"}
        if any(via.startswith(f"NET/{SOCKET}") for via in used):
            return True
        by_libfabric = not self.between_nodes or any(_LIBFABRIC in via for via in used)
        return by_libfabric and (self.provider or "").startswith(_OVER_TCP)

    @property
    def name(self) -> str:
        """Transport between nodes, for display; "" if unknown."""
        chosen = ", ".join(sorted(self.between_nodes)) or (f"NET/{self.network}" if self.network else "")
        return f"{chosen} (libfabric provider {self.provider})" if chosen and self.provider else chosen


def parse_nccl_log(text: str) -> NcclLog:
    """Parse a rank's log, which may contain other output."""
    via = [match[1] for match in _VIA.finditer(text)]
    version, network, provider = (pattern.search(text) for pattern in (_VERSION, _NETWORK, _PROVIDER))
    return NcclLog(
        version=version[1] if version else None,
        network=network[1] if network else None,
        provider=provider[1] if provider else None,
        between_nodes=frozenset(_without_numbers(name) for name in via if name.startswith("NET")),
        in_node=frozenset("/".join(filter(None, m.groups())) for name in via if (m := _IN_NODE.match(name))),
        reasons=tuple(dict.fromkeys(match[1] for match in _REASONS.finditer(text))),
    )


def merge_logs(logs: Iterable[NcclLog]) -> NcclLog:
    """Merge the logs of all ranks; the first value found wins."""
    every = list(logs)
    return NcclLog(
        version=next((log.version for log in every if log.version), None),
        network=next((log.network for log in every if log.network), None),
        provider=next((log.provider for log in every if log.provider), None),
        between_nodes=frozenset().union(*(log.between_nodes for log in every)),
        in_node=frozenset().union(*(log.in_node for log in every)),
        reasons=tuple(dict.fromkeys(reason for log in every for reason in log.reasons)),
    )


def _without_numbers(via: str) -> str:
    """`NET/IB/3/GDRDMA` and `NET/IB/0(0)/GDRDMA` become NET/IB/GDRDMA."""
    return "/".join(part for part in via.split("/") if not re.fullmatch(r"[0-9]+(\([0-9]+\))?", part))
