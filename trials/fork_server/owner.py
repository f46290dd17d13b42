"""Fork servers of one owner: a driver, an actor of a Ray node, or a pilot's agent.

Standard library only and independent of other modules of Parlay: pickled by value to the nodes of a Ray cluster.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MOST_SERVERS = 2
"""Kinds of servers at the same time: a search has an engine or two."""
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
    most_serving: int = 0
    deaths: int = 0
    is_refused: bool = False
    users: set[str] = field(default_factory=set)

    def count_serving(self) -> int:
        return len(list(self.folder.glob("*.socket")))

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
        self.process, self.most_serving = None, 0
        return lines.decode(errors="replace").splitlines()


class ForkServers:
    """Fork servers of one owner, each kind started in the background when it is first wanted. Used by one thread.

    A server serves while its socket is in its kind's folder. Until then, and wherever it does not, stubs become plain
    ranks: nobody waits for it, and methods raise nothing. A stub removes the socket of a server that is dead or hangs;
    once none of its ranks run, the kind is started again. `on_refused` is told once per kind why its ranks start plain.
    """

    def __init__(self, on_refused: Callable[[str], None]):
        self._on_refused = on_refused
        self._kinds: dict[str, _Kind] = {}

    def serve(self, folder: str, name: str, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> bool:
        """Start the servers of the kind of this folder unless they run; False where ranks start plain.

        `argv` runs in the folder, which is this user's alone. Until `release`, the servers are kept for `name`.
        """
        self.check()
        found = self._kinds.setdefault(folder, _Kind(Path(folder)))
        if found.is_refused or (found.process is None and not self._has_room()):
            return False
        if found.process is None:
            try:
                found.start(argv, environment)
            except OSError as error:
                self._refuse(found, str(error))
                return False
        found.users.add(name)
        return True

    def release(self, name: str) -> None:
        """Note that the ranks of this name have ended."""
        for kind in self._kinds.values():
            kind.users.discard(name)

    def check(self) -> None:
        """Note servers that have ended or hang, or cannot be forked."""
        for kind in self._kinds.values():
            serving = kind.count_serving()
            kind.most_serving = max(kind.most_serving, serving)
            if kind.process is None or kind.users or (kind.process.poll() is None and serving == kind.most_serving):
                continue
            never_served = kind.most_serving == 0
            lines = kind.end()
            reasons = [line.removeprefix(CANNOT_FORK) for line in lines if line.startswith(CANNOT_FORK)]
            if reasons or never_served:
                self._refuse(kind, next(reversed(reasons or lines), "the fork servers did not start"))
            else:
                kind.deaths += 1
                if kind.deaths == MOST_DEATHS:
                    self._refuse(kind, f"fork servers have ended {MOST_DEATHS} times: see {kind.folder / LOG}")

    def close(self) -> None:
        """End all servers."""
        for kind in self._kinds.values():
            kind.end()

    def _has_room(self) -> bool:
        """End an idle kind where there are as many as may be; False where none is idle."""
        running = [kind for kind in self._kinds.values() if kind.process is not None]
        idle = [kind for kind in running if not kind.users]
        if len(running) == MOST_SERVERS and idle:
            idle[0].end()
        return len(running) < MOST_SERVERS or bool(idle)

    def _refuse(self, kind: _Kind, reason: str) -> None:
        kind.is_refused = True
        self._on_refused(reason)
