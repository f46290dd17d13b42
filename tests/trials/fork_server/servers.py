"""A fork server with light imports, and stubs of it, as a launcher starts both."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.launchers.base import LaunchRequest
from orchestrator.launchers.local.launcher import LocalLauncher
from orchestrator.launchers.local.rank_groups import node_plans
from orchestrator.search.code_snapshot import snapshot_code
from tests.kit import until
from tests.orchestrator.launchers.attempts import is_running

LIMIT_S = 60.0
PRELOAD = "torch/cpu"
IMPORT_NOTHING = "def import_engine(engine, on_cpu):\n    pass\n"
RUN_SPEC = "import os, signal, sys, time\nexec(open(sys.argv[1]).read())\n"
"""A program in the place of trials.train whose spec is Python."""


def light_code(folder: Path, preload: str = IMPORT_NOTHING, program: str | None = None) -> Path:
    """A snapshot of the code whose servers import what `preload` does, and whose ranks run `program` if given."""
    snapshot_code(folder)
    (folder / "trials" / "train" / "preload.py").write_text(preload)
    if program is not None:
        (folder / "trials" / "train" / "__main__.py").write_text(program)
    return folder


IGNORED_BY_SHELLS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
"""Signals that nohup, or a shell's `&`, has a program ignore."""


def handle_no_signals() -> None:
    """Set to their default the signals that whoever starts the tests may ignore."""
    for number in IGNORED_BY_SHELLS:
        signal.signal(number, signal.SIG_DFL)


def ignore_signals() -> None:
    """Ignore signals as under nohup and in the background of a shell, and SIGUSR1."""
    for number in (*IGNORED_BY_SHELLS, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


class Node:
    """A folder with code, a server and stubs."""

    def __init__(self, root: Path, preload: str = IMPORT_NOTHING):
        self.root = root
        self.code = light_code(root / "code", preload, RUN_SPEC)
        self.folder = root
        self.server: subprocess.Popen[bytes] | None = None
        self._count = 0

    @property
    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PARLAY_", "PYTEST_"))}
        of_the_code = {"PYTHONPATH": str(self.code), "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
        return {**inherited, **of_the_code, "OMP_NUM_THREADS": "1", "PARLAY_PRELOAD": PRELOAD}

    def serve(self, **changes: str) -> subprocess.Popen[bytes]:
        """Start a server, and wait until it serves."""
        server = self.start_server(**changes)
        until(lambda: any(self.folder.glob("*.socket")))
        return server

    def start_server(self, **changes: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "trials.fork_server", PRELOAD, str(self.folder)]
        log = (self.root / "server.log").open("ab")
        pipes = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "start_new_session": True}
        self.server = subprocess.Popen(argv, env=self.environment | changes, **pipes, preexec_fn=handle_no_signals)
        return self.server

    @property
    def socket_path(self) -> Path:
        (path,) = self.folder.glob("*.socket")
        return path

    def stub(
        self,
        program: str,
        environment: Mapping[str, str] | None = None,
        *,
        folder: str | None = None,
        before: Sequence[str] = (),
        stub: Sequence[str] = (),
        **options: Any,
    ) -> subprocess.Popen[bytes]:
        """Start a stub whose rank runs these lines of Python; `before` starts it, `stub` are words before its file."""
        self._count += 1
        spec = self.root / f"spec-{self._count}"
        spec.write_text(program)
        file = str(self.code / "trials" / "fork_server" / "stub.py")
        argv = [
            *(*before, sys.executable, "-I", "-S", *stub, file, folder or str(self.folder)),
            *(sys.executable, "-m", "trials.train", str(spec)),
        ]
        fixed: dict[str, Any] = {"env": self.environment | dict(environment or {}), "cwd": self.root}
        fixed |= {"start_new_session": True, "preexec_fn": handle_no_signals}
        return subprocess.Popen(argv, **{**fixed, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options})

    def run(self, program: str, environment: Mapping[str, str] | None = None, **options: Any) -> tuple[int, str, str]:
        """Exit code, output and errors of a rank."""
        stub = self.stub(program, environment, **options)
        out, err = stub.communicate(timeout=LIMIT_S)
        return stub.returncode, (out or b"").decode(), (err or b"").decode()

    def close(self) -> None:
        if self.server is not None:
            if self.server.poll() is None:
                self.server.kill()
            self.server.wait(LIMIT_S)


def wait_for_end(pid: int) -> None:
    until(lambda: not is_running(pid))


def with_fewer_files() -> None:
    """Lower a limit, for a process to be started."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))


def serve(launcher: LocalLauncher, request: LaunchRequest) -> None:
    """Have the request's server serve."""
    [plan] = node_plans(request)
    assert launcher._fork_servers.stub_for(plan)
    folder = launcher._fork_servers.folder_of(plan)
    until(lambda: any(folder.glob("*.socket")))
