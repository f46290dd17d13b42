"""Fork servers of this node for a launcher's plans (trials/fork_server).

Standard library only but for processes, their start and their owner: pickled by value to the nodes of a Ray cluster,
as they are. Linux only.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from orchestrator.launchers.local.processes import GroupPlan, rank_environment
from orchestrator.launchers.private_tmp import make_private_folder, remove_abandoned
from trials.fork_server.owner import ForkServers
from trials.ranks.tied_start import tied_to_us

PRELOAD_VARIABLE = "PARLAY_PRELOAD"  # of trials/fork_server/equality.py


class NodeForkServers:
    """Fork servers of this node, which end with this process's thread and with `close`. Used by one thread.

    `on_refused` is told why ranks start plain, `node_environment` is this process's own unless given, as that of ranks.
    """

    def __init__(self, on_refused: Callable[[str], None], node_environment: Mapping[str, str] | None = None):
        self._node_environment = os.environ if node_environment is None else node_environment
        self._folder: Path | None = None
        self._on_refused: Callable[[str], None] | None = on_refused
        self._servers = ForkServers(on_refused)

    def stub_for(self, plan: GroupPlan) -> tuple[str, ...]:
        """The command before each rank's own, by which a server of all that this plan's ranks share may fork them;
        empty where they start plain."""
        preload = plan.environment.get(PRELOAD_VARIABLE)
        if not preload:
            return ()
        try:
            folder = str(self.folder_of(plan))
        except OSError as error:
            if self._on_refused is not None:
                self._on_refused(str(error))
                self._on_refused = None
            return ()
        argv = tied_to_us((plan.argv[0], "-m", "trials.fork_server", preload, folder))
        if not self._servers.serve(folder, argv, rank_environment(self._node_environment, plan)):
            return ()
        stub = Path(plan.environment["PYTHONPATH"], "trials", "fork_server", "stub.py")
        return sys.executable, "-I", "-S", str(stub), folder

    def folder_of(self, plan: GroupPlan) -> Path:
        """A private folder (0700) for the socket and the log of this plan's kind of server. Raises OSError."""
        given = plan.environment
        of_kind = plan.argv[0], given["PYTHONPATH"], given[PRELOAD_VARIABLE], sorted(plan.settings.items())
        if self._folder is None:
            remove_abandoned()
            self._folder = make_private_folder()
        folder = self._folder / hashlib.sha256(repr(of_kind).encode()).hexdigest()[:12]
        folder.mkdir(exist_ok=True)
        return folder

    def close(self) -> None:
        """End all servers."""
        self._servers.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
