"""A real Slurm on one machine: munged, slurmctld and a slurmd per node, and with accounting MariaDB and slurmdbd.

Every file is in the sandbox's folder and every listener on the loopback; /etc is neither read nor written. Root is not
needed: then only the user's own jobs can run. All nodes share this machine's file system, so paths are the same on all.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from slurm.environment import LAUNCHER_PREFIXES
from slurm.sandbox.apt_packages import install_command, missing_packages, program_path
from slurm.sandbox.config_files import (
    PARTITION,
    Ports,
    SandboxPaths,
    Shape,
    choose_ports,
    mariadb_bootstrap_command,
    mariadbd_command,
    munged_command,
    render_files,
)
from slurm.sandbox.daemons import (
    Daemon,
    SandboxFailed,
    port_answers,
    port_is_free,
    recorded_daemons,
    running_pids,
    socket_answers,
)

SANDBOX_SCHEMA = "parlay.slurm_sandbox/1"
MUNGED, MARIADBD, SLURMDBD, SLURMCTLD = "munged", "mariadbd", "slurmdbd", "slurmctld"

_MARIADB_TABLES = ("mysql_system_tables.sql", "mysql_system_tables_data.sql")
_MARIADB_SHARE = Path("/usr/share/mysql")

_READY_TIMEOUT_S = 60.0  # MariaDB on a cold disk needed 7
_END_TIMEOUT_S = 10.0
_COMMAND_TIMEOUT_S = 30.0
_POLL_S = 0.05


class PackagesMissing(SandboxFailed):
    """Programs of these Debian packages are not on the PATH."""

    def __init__(self, packages: Sequence[str]):
        super().__init__(f"programs are missing; as root: {install_command(packages)}")
        self.packages = tuple(packages)


class SlurmSandbox:
    """The sandbox in `folder`; making the object starts nothing.

    ValueError for a folder that cannot work. Any process of the same user may hold an object for the same
    folder: starting and stopping take turns. A folder that was stopped can be started again with its records.
    """

    def __init__(self, folder: Path, shape: Shape):
        self.shape = shape
        self.paths = SandboxPaths(Path(os.path.realpath(folder)))

    @classmethod
    def found_in(cls, folder: Path) -> SlurmSandbox | None:
        """Return the sandbox that was once started in `folder`, or None."""
        shape = _recorded_shape(SandboxPaths(Path(os.path.realpath(folder))))
        return None if shape is None else cls(folder, shape)

    @property
    def environment(self) -> dict[str, str]:
        """Variables that point Slurm's commands at this sandbox."""
        return {"SLURM_CONF": str(self.paths.slurm_conf)}

    def start(self) -> None:
        """Start what is not running and return when every node can take jobs.

        Raises PackagesMissing and SandboxFailed; whatever had come up by then is ended again.
        """
        missing = missing_packages(self.shape.accounting)
        if missing:
            raise PackagesMissing(missing)
        _make_folder(self.paths.folder)
        with self._locked():
            if not any(daemon.pid for daemon in recorded_daemons(self.paths.folder)):
                self._write_files()
            elif _recorded_shape(self.paths) != self.shape:
                raise SandboxFailed(f"{self.paths.folder} runs with another shape: stop it first")
            try:
                self._start_all()
            except BaseException:
                self._stop()
                raise

    def stop(self) -> None:
        """End the daemons and all jobs with their processes; no error if nothing runs."""
        if self.paths.folder.is_dir():
            with self._locked():
                self._stop()

    def running(self) -> bool:
        """True if every daemon is alive."""
        return all(self._daemon(name).pid for name in self.daemons)

    @property
    def daemons(self) -> tuple[str, ...]:
        """Names of the daemons in the order in which they start; a slurmd has the name of its node."""
        accounting = (MARIADBD, SLURMDBD) if self.shape.accounting else ()
        return (MUNGED, *accounting, SLURMCTLD, *self.shape.node_names)

    def ask(self, *command: str, timeout_s: float = _COMMAND_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands on this sandbox; raises subprocess.TimeoutExpired."""
        return subprocess.run(
            command, env=self._clean_environment(), capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def _write_files(self) -> None:
        paths, shape, user = self.paths, self.shape, _user_name()
        ports = choose_ports(paths.folder, shape.num_ports, port_is_free)
        if ports is None:
            raise SandboxFailed(f"no {shape.num_ports} consecutive ports are free on 127.0.0.1")
        for name in ("state", "log", "run", "spool", "dev", *(f"spool/{node}" for node in shape.node_names)):
            (paths.folder / name).mkdir(exist_ok=True)
            (paths.folder / name).chmod(0o755)
        for number in range(shape.gpus_per_node):
            device = paths.folder / "dev" / f"nvidia{number}"
            device.unlink(missing_ok=True)
            device.symlink_to("/dev/null")
        if not (key := paths.folder / "munge.key").exists():
            _write(key, os.urandom(128))
        for name, text in render_files(paths, shape, ports, user).items():
            _write(paths.folder / name, text.encode(), 0o600 if name == "slurmdbd.conf" else 0o644)
        about = {"schema": SANDBOX_SCHEMA, **asdict(shape), "port": ports.base}
        _write(paths.about, json.dumps(about, indent=1).encode(), 0o644)

    def _start_all(self) -> None:
        if self.shape.accounting and not self.paths.database.exists():
            self._make_database()
        nodes = self.shape.node_names
        for name in self.daemons:
            self._start(name)
            if name not in nodes:
                self._wait_until_ready(name)
        for name in nodes:
            self._wait_until_ready(name)
        self._wait_for_nodes()

    def _make_database(self) -> None:
        """Create MariaDB's own tables in a folder that is renamed when complete."""
        new = self.paths.folder / "db.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        tables = "".join((_MARIADB_SHARE / name).read_text() for name in _MARIADB_TABLES)
        done = subprocess.run(
            mariadb_bootstrap_command(new, _user_name()),
            input=f"create database mysql;\nuse mysql;\n{tables}",
            env=self._clean_environment(),
            capture_output=True,
            text=True,
            timeout=_READY_TIMEOUT_S,
        )
        if done.returncode != 0:
            raise SandboxFailed(f"MariaDB could not create its tables: {done.stderr.strip()}")
        new.rename(self.paths.database)

    def _start(self, name: str) -> None:
        daemon = self._daemon(name)
        if daemon.pid is None:
            daemon.start(self._command(name), self._clean_environment())

    def _command(self, name: str) -> Sequence[str]:
        commands = {
            MUNGED: munged_command(self.paths),
            MARIADBD: mariadbd_command(self.paths, _user_name()),
            SLURMDBD: ("slurmdbd", "-D"),
            SLURMCTLD: ("slurmctld", "-D", "-f", str(self.paths.slurm_conf)),
        }
        return commands.get(name) or ("slurmd", "-D", "-f", str(self.paths.slurm_conf), "-N", name)

    def _wait_until_ready(self, name: str) -> None:
        self._daemon(name).wait_until_ready(lambda: self._answers(name), _READY_TIMEOUT_S)

    def _answers(self, name: str) -> bool:
        if name == MUNGED:
            return socket_answers(self.paths.munge_socket)
        if name == MARIADBD:
            return socket_answers(self.paths.mariadb_socket)
        ports = Ports(json.loads(self.paths.about.read_text())["port"])
        if name in self.shape.node_names:
            return port_answers(ports.slurmd(self.shape.node_names.index(name)))
        return port_answers(ports.slurmdbd if name == SLURMDBD else ports.slurmctld)

    def _wait_for_nodes(self) -> None:
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while True:
            answer = self.ask("sinfo", "--noheader", "--Node", f"--partition={PARTITION}", "--format=%N %T")
            states = dict(line.split() for line in answer.stdout.splitlines())
            if len(states) == self.shape.nodes and not any(map(_is_down, states.values())):
                return
            if time.monotonic() >= deadline:
                log_tail = self._daemon(SLURMCTLD).log_tail()
                raise SandboxFailed(
                    f"nodes are not up: {states or answer.stderr.strip()}; end of slurmctld's log: {log_tail}"
                )
            time.sleep(_POLL_S)

    def _stop(self) -> None:
        daemons = {daemon.name: daemon for daemon in recorded_daemons(self.paths.folder)}
        for daemon in daemons.values():
            daemon.send_signal(signal.SIGCONT)
        controlled = SLURMCTLD in daemons and daemons[SLURMCTLD].pid is not None
        if controlled:
            self._cancel_all_jobs()
        last = {name: daemons.pop(name) for name in (SLURMCTLD, SLURMDBD, MARIADBD, MUNGED) if name in daemons}
        for node in daemons.values():
            node.send_signal(signal.SIGTERM)
        for node in daemons.values():
            # Without a controller, slurmd tries for ten seconds to sign off.
            node.end(_END_TIMEOUT_S if controlled else 0.0)
        for daemon in last.values():
            daemon.end(_END_TIMEOUT_S)
        self._kill_orphans()

    def _cancel_all_jobs(self) -> None:
        """Cancel as far as the controller answers; remaining processes are killed later."""
        with suppress(subprocess.TimeoutExpired):
            jobs = self.ask("squeue", "--noheader", "--format=%A", timeout_s=_END_TIMEOUT_S).stdout.split()
            if jobs:
                self.ask("scancel", *jobs, timeout_s=_END_TIMEOUT_S)
            deadline = time.monotonic() + _END_TIMEOUT_S
            while self.ask("squeue", "--noheader", timeout_s=_END_TIMEOUT_S).stdout and time.monotonic() < deadline:
                time.sleep(_POLL_S)

    def _kill_orphans(self) -> None:
        """Kill steps and tasks whose slurmd or slurmstepd was killed: no daemon ends them."""
        deadline = time.monotonic() + _END_TIMEOUT_S
        while left := [pid for pid in running_pids() if self._belongs_to_job(pid)]:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() >= deadline:
                raise SandboxFailed(f"processes of jobs could not be killed: {' '.join(map(str, left))}")
            time.sleep(_POLL_S)

    def _belongs_to_job(self, pid: int) -> bool:
        """True for a slurmstepd in this sandbox's folder, and for a task with this sandbox in its environment."""
        proc = Path(f"/proc/{pid}")
        try:
            if (proc / "comm").read_text().strip() == "slurmstepd":
                return Path(os.readlink(proc / "cwd")).is_relative_to(self.paths.folder)
            variables = (proc / "environ").read_bytes().split(b"\0")
        except OSError:
            return False  # it has ended, or is another user's
        ours = f"SLURM_CONF={self.paths.slurm_conf}".encode() in variables
        return ours and pid != os.getpid() and any(entry.startswith(b"SLURM_JOB_ID=") for entry in variables)

    def _daemon(self, name: str) -> Daemon:
        return Daemon(name, self.paths.folder)

    def _clean_environment(self) -> dict[str, str]:
        """Return this process's environment without the variables of an outer Slurm."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_PREFIXES)}
        mariadb = {"MYSQL_UNIX_PORT": str(self.paths.mariadb_socket)}
        return inherited | self.environment | mariadb | {"PATH": program_path(os.environ)}

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock on starting and stopping, which ends with its process."""
        descriptor = os.open(self.paths.folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _recorded_shape(paths: SandboxPaths) -> Shape | None:
    try:
        about = json.loads(paths.about.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    if about["schema"] != SANDBOX_SCHEMA:
        raise ValueError(f"{paths.about} is {about['schema']}, this version of Parlay reads {SANDBOX_SCHEMA}")
    return Shape.from_json(about)


def _make_folder(folder: Path) -> None:
    """Create the folder: readable for other users' jobs if root's, else private."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "sandbox.json").exists() and any(folder.iterdir()):
            raise ValueError(f"{folder} is neither empty nor the folder of a sandbox")
        folder.chmod(0o755 if os.getuid() == 0 else 0o700)
    except OSError as error:
        raise ValueError(f"{folder} cannot be used: {error.strerror}") from error


def _write(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace the file atomically, with its mode."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.write(content)
    new.chmod(mode)
    new.rename(path)


def _user_name() -> str:
    """Return the user's name, or the uid, which Slurm accepts, where there is none, as in some containers."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _is_down(state: str) -> bool:
    """True if sinfo's state is not up; a star marks a node that does not respond."""
    return state.endswith("*") or state.startswith(("down", "unk", "inval", "fail", "fut"))
