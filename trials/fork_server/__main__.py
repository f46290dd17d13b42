"""`python -m trials.fork_server PRELOAD [FOLDER]`: a node's fork server, whose socket is in FOLDER while it serves.

Without FOLDER it imports and checks only. Its last line is "cannot fork: REASON" where ranks cannot be forked.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys

from trials.fork_server.equality import PROGRAM
from trials.fork_server.owner import CAN_FORK, CANNOT_FORK
from trials.fork_server.preload import CannotFork, freeze, import_all, require_forkable
from trials.fork_server.server import Forked, Server
from trials.fork_server.stub import FORWARDED, describe, socket_of_this_node


def main(preload: str, folder: str | None) -> str:
    """Serve; return the reason why ranks cannot be forked, or cannot be any more. Raises Forked in each rank."""
    description = describe([], set())
    for number in FORWARDED:
        if number != signal.SIGTERM:  # sent to all steps of a job, the others are for ranks
            signal.signal(number, signal.SIG_IGN)
    try:
        import_all(preload)
        require_forkable()
        freeze()
        if folder is None:
            return ""
        os.chdir(folder)  # a socket's address is short
        return Server(socket_of_this_node(""), preload, description).serve()
    except (CannotFork, OSError) as error:
        return str(error)


if __name__ == "__main__":
    try:
        reason = main(sys.argv[1], next(iter(sys.argv[2:]), None))
        print(f"{CANNOT_FORK}{reason}" if reason else CAN_FORK)
        sys.exit(1 if reason else 0)
    except Forked:
        pass
    # A rank goes on outside of the handler: the exception would be the context of its own.
    runpy.run_module(PROGRAM, run_name="__main__", alter_sys=True)
