"""`python -m trials.fork_server --preload NAME`: a node's fork server; `--check NAME`: its checks.

With `--listener NUMBER` the server inherits the socket on which it listens as a descriptor of this number; with
`--folder FOLDER` it makes the one of its node there, and says so by the line {"listens": NODE}. Ranks that start
meanwhile wait for its imports. One line of JSON on standard output has the reason why ranks cannot be forked, null
where they can; the seconds of the imports; and the resident memory after them. {"oom_kill": 1, "node": NODE} tells of a
rank that the kernel has killed for memory, {"differs": REASON, "node": NODE} of the first rank that was refused. With
`--parent` the server ends at the end of its standard input, which its owner holds, and is killed with its parent; with
`--idle-s` it ends when it has had no rank for so long. Exit code 0, or 1 where it cannot fork.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from contextlib import suppress
from typing import Any

from trials.fork_server.child import end_with_parent
from trials.fork_server.equality import Identity, initial_environment
from trials.fork_server.preload import CannotFork, freeze, import_all, require_forkable, resident_mib
from trials.fork_server.server import Server, leave_signals_to_ranks, tell
from trials.fork_server.stub import node_name, short_path, socket_of_this_node


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    added = _added_variables()
    if options.check is not None:
        return 0 if _prepare(options.check) is None else 1
    if options.parent is not None:
        end_with_parent(options.parent)
    leave_signals_to_ranks()
    identity = Identity.of_this_process(options.preload)
    if options.folder is None:
        listener = socket.socket(fileno=options.listener)
        listener.set_inheritable(False)
    else:
        try:
            listener = _listen_in(options.folder)
        except OSError as error:
            tell(refused=f"{node_name()} cannot listen in {options.folder}: {error.strerror or error}")
            return 1
    server = Server(listener, sys.stdin.fileno() if options.parent is not None else None, options.idle_s)
    if (refused := _prepare(options.preload)) is not None:
        server.refuse_all(refused)
        return 1
    server.serve(identity, added)
    return 0


def _options(arguments: list[str]) -> Any:
    parser = argparse.ArgumentParser(prog="python -m trials.fork_server")
    parser.add_argument("--listener", type=int, help="descriptor of the socket")
    parser.add_argument("--folder", help="folder of a socket for each node")
    parser.add_argument("--preload")
    parser.add_argument("--check", metavar="PRELOAD")
    parser.add_argument("--parent", type=int, help="pid of the owner, which holds standard input")
    parser.add_argument("--idle-s", type=float)
    options = parser.parse_args(arguments)
    if options.check is None and ((options.listener is None) == (options.folder is None) or options.preload is None):
        parser.error("--preload with --listener or --folder, or --check")
    return options


def _listen_in(folder: str) -> socket.socket:
    """Listen in this folder for the stubs of this node, and say so."""
    path = socket_of_this_node(folder)
    with suppress(FileNotFoundError):
        os.unlink(path)  # of a server before
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with short_path(path) as address:
        listener.bind(address)
    listener.listen(1024)
    tell(listens=node_name())
    return listener


def _added_variables() -> dict[bytes, bytes]:
    """Variables that Python's start has added to the environment, as LC_CTYPE in the C locale."""
    initial = initial_environment()
    return {name: value for name, value in os.environb.items() if name not in initial}


def _prepare(preload: str) -> str | None:
    """Import, check and report; the reason why ranks cannot be forked, None where they can."""
    began, refused = time.monotonic(), None
    try:
        import_all(preload)
        require_forkable()
    except CannotFork as error:
        refused = str(error)
    freeze()
    tell(refused=refused, preload_s=round(time.monotonic() - began, 3), resident_mib=resident_mib())
    return refused


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
