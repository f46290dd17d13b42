"""Fork servers of one owner: a driver, an actor of a Ray node, or a pilot's agent.

Standard library only and independent of other modules of Parlay: pickled by value to the nodes of a Ray cluster.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MOST_SERVERS = 2
"""Kinds of servers of an owner: a search has an engine or two."""
MOST_DEATHS = 2
"""Deaths of a kind's servers, as by the kernel for memory, after which its ranks start plain."""
CAN_FORK, CANNOT_FORK = "can fork", "cannot fork: "
"""Last line of a server that only checks; and the beginning of the line that says why ranks start plain."""
LOG = "servers.log"
_END_S = 5.0
_MOST_BYTES = 2**16


@dataclass
class _Kind:
    folder: Path
    log: int = -1
    process: subprocess.Popen[bytes] | None = None
    deaths: int = 0
    is_refused: bool = False

    def start(self, argv: Sequence[str], environment: Mapping[str, str] | None) -> None:
        self.log = os.open(self.folder / LOG, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        self.process = subprocess.Popen(
            argv,
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )

    def end(self) -> list[str]:
        """End the servers and their ranks; return the last lines of their log. srun hands the signal on."""
        if self.process is None:
            return []
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_END_S)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        for socket in self.folder.glob("*.socket"):
            socket.unlink(missing_ok=True)
        lines = os.pread(self.log, _MOST_BYTES, max(0, os.fstat(self.log).st_size - _MOST_BYTES))
        os.close(self.log)
        self.process = None
        return lines.decode(errors="replace").splitlines()


class ForkServers:
    """Fork servers of one owner, the first kinds that are wanted, each started in the background. Used by one thread.

    A server serves while its socket is in its kind's folder. Until then, and wherever it does not, stubs become plain
    ranks: nobody waits for it, and methods raise nothing. A stub removes the socket of a server that is dead or hangs.
    Servers that have ended are started again. `on_refused` is told once per kind why its ranks start plain.
    """

    def __init__(self, on_refused: Callable[[str], None]):
        self._on_refused = on_refused
        self._kinds: dict[str, _Kind] = {}

    def serve(self, folder: str, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> bool:
        """Start the servers of the kind of this folder unless they run; False where ranks start plain.

        `argv` runs in the folder, which is this user's alone.
        """
        kind = self._kinds.setdefault(folder, _Kind(Path(folder)))
        for each in self._kinds.values():
            if each.process is not None and each.process.poll() is not None:
                self._note_end(each)
        running = sum(one.process is not None for one in self._kinds.values())
        if kind.is_refused or (kind.process is None and running == MOST_SERVERS):
            return False
        if kind.process is None:
            try:
                kind.start(argv, environment)
            except OSError as error:
                self._refuse(kind, str(error))
        return not kind.is_refused

    def close(self) -> None:
        """End all servers."""
        for kind in self._kinds.values():
            kind.end()

    def _note_end(self, kind: _Kind) -> None:
        """Refuse the kind where its servers said why they end, or have ended too often."""
        lines = kind.end()
        kind.deaths += 1
        if reasons := [line.removeprefix(CANNOT_FORK) for line in lines if line.startswith(CANNOT_FORK)]:
            self._refuse(kind, reasons[-1])
        elif kind.deaths == MOST_DEATHS:
            last = f": {lines[-1]}" if lines else ""
            self._refuse(kind, f"fork servers have ended {MOST_DEATHS} times{last}: see {kind.folder / LOG}")

    def _refuse(self, kind: _Kind, reason: str) -> None:
        kind.is_refused = True
        self._on_refused(reason)
