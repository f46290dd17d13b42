"""Search for the root cause of a failure in the ranks' logs: the first traceback that another rank's end did not cause.

Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

TRACEBACK = "Traceback (most recent call last):"

# Matched by name and text because the same fault has other types in other versions and backends of torch.
PEER_TYPES = ("DistBackendError", "DistNetworkError", "DistStoreError", "QueueEmptyError")
PEER_WORDS = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "gloo/transport", "NCCL error")
"""Messages of a rank that lost another one: a consequence, not a cause."""

# Messages of cudaErrorECCUncorrectable and cudaErrorNvlinkUncorrectable, HIP's equivalents, NVML's, and the driver's
# Xids in the kernel log: https://docs.nvidia.com/deploy/xid-errors. Errors that broken programs also cause (an illegal
# address, a failed launch) are not among them.
_DEAD_DEVICE = re.compile(
    r"uncorrectable (?:ECC|NVLink) error|GPU has fallen off the bus|GPU is lost"
    r"|\bXid\b(?: \([^)]*\))?:? (?:48|63|64|79|94|95)\b",
    re.IGNORECASE,
)


def first_cause(logs: Iterable[str]) -> str | None:
    """The root cause among all ranks' logs, None without any.

    A device failure comes first, else the first traceback that is not about a lost peer, else the first of all. `logs`
    are in rank order; the excerpt runs from the traceback's first line to its end. For a device failure it may be one
    line: NCCL's watchdog ends the process without a traceback.
    """
    logs = list(logs)
    found = [excerpt for log in logs for excerpt in tracebacks(log)]
    dead = [excerpt for excerpt in found if is_device_failure(excerpt)]
    dead = dead or [line for log in logs for line in log.splitlines() if is_device_failure(line)]
    causes = [excerpt for excerpt in found if not names_lost_connection(excerpt)]
    return next(iter(dead or causes or found), None)


def tracebacks(log: str) -> list[str]:
    """The tracebacks of a log, each up to the line that names its exception."""
    lines = log.splitlines()
    found: list[list[str]] = []
    current: list[str] | None = None
    for line in lines:
        if line.startswith(TRACEBACK):
            current = [line]
            found.append(current)
        elif current is not None:
            current.append(line)
            if line and not line[0].isspace():
                current = None
    return ["\n".join(part) for part in found]


def is_device_failure(words: str) -> bool:
    """True if the text reports a broken GPU, GPU memory or link, for which no layout is to blame."""
    return _DEAD_DEVICE.search(words) is not None


def names_lost_connection(excerpt: str) -> bool:
    """True if a traceback reports only a lost connection."""
    words = excerpt.splitlines()[-1] if excerpt else ""
    return any(name in words for name in (*PEER_TYPES, *PEER_WORDS))
