"""Identity of a process: its start time and the machine's boot, which together outlive a reused pid."""

from __future__ import annotations

from pathlib import Path


def start_ticks(pid: int) -> int | None:
    """Start time of a process, in clock ticks since boot (proc(5), stat field 22); None once it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rpartition(")")[2].split()  # the command's name may hold spaces and brackets
    return None if state in "ZX" else int(fields[18])


def boot_id() -> str:
    """The kernel's id of the current boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
