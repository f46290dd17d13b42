"""Configuration files of a sandbox's Slurm, rendered from its shape. Pure.

Written for Slurm 22.05 of Debian 12. All paths are inside the folder.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

SANDBOX_CLUSTER_NAME = "parlay-sandbox"
PARTITION = "main"
MAX_NODES = 64
MAX_PER_NODE = 1024
MAX_CLOUD_NODES = 20_000
CLOUD_CPUS, CLOUD_MEMORY_MB = 128, 512_000
"""Defaults of a cloud node."""

_FIRST_PORT, _LAST_PORT = 10_000, 19_999  # below the ports of trials' rendezvous and of outgoing connections
_PORTS_BEFORE_NODES = 2
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9._/+@-]*")
_LONGEST_SOCKET = 107  # bytes in sockaddr_un, without the closing zero


_PARTITION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


@dataclass(frozen=True)
class CloudNodes:
    """A partition of cloud nodes, which do not exist: Slurm answers which jobs they could run, but none ever starts."""

    partition: str
    nodes: int
    gpus_per_node: int
    cpus_per_node: int = CLOUD_CPUS

    def __post_init__(self) -> None:
        if _PARTITION_NAME.fullmatch(self.partition) is None or self.partition.lower() in (PARTITION, "default"):
            raise ValueError(f"{self.partition!r} cannot be the partition of cloud nodes")
        _require_within(
            ("cloud nodes", self.nodes, 1, MAX_CLOUD_NODES),
            ("gpus_per_node", self.gpus_per_node, 0, MAX_PER_NODE),
            ("cpus_per_node", self.cpus_per_node, 1, MAX_PER_NODE),
        )

    @property
    def node_names(self) -> str:
        """Node names as a host list."""
        return f"{self.partition}-[1-{self.nodes}]"


@dataclass(frozen=True)
class Shape:
    """Size of a sandbox. CPUs and GPUs are declared, not real: a node of 64 CPUs runs on any machine.

    `extra` are lines of slurm.conf: a setting replaces the sandbox's own, partitions are added. `cloud` are nodes in
    addition to the sandbox's own, which are alone in the partition PARTITION.
    """

    nodes: int = 2
    cpus_per_node: int = 4
    gpus_per_node: int = 0
    accounting: bool = False
    extra: tuple[str, ...] = ()
    cloud: tuple[CloudNodes, ...] = ()

    def __post_init__(self) -> None:
        _require_within(
            ("nodes", self.nodes, 1, MAX_NODES),
            ("cpus_per_node", self.cpus_per_node, 1, MAX_PER_NODE),
            ("gpus_per_node", self.gpus_per_node, 0, MAX_PER_NODE),
        )
        names = [each.partition for each in self.cloud]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"partition {repeated[0]} is given twice")

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Shape:
        """Return the shape whose `asdict` was written as JSON, beside other keys."""
        own = {field.name: data[field.name] for field in fields(cls)}
        lists = {name: tuple(value) for name, value in own.items() if isinstance(value, list)}
        return cls(**{**own, **lists, "cloud": tuple(CloudNodes(**each) for each in own["cloud"])})

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"n{number}" for number in range(1, self.nodes + 1))

    @property
    def num_ports(self) -> int:
        return _PORTS_BEFORE_NODES + self.nodes


@dataclass(frozen=True)
class SandboxPaths:
    """Paths of the sandbox in `folder`, an absolute path.

    ValueError for an unusable folder: Slurm's files have no quoting, and socket paths are short.
    """

    folder: Path

    def __post_init__(self) -> None:
        if not _PLAIN_PATH.fullmatch(str(self.folder)):
            raise ValueError(f"{self.folder}: a path in Slurm's files may contain only letters, digits and ._/+@-")
        if len(str(self.mariadb_socket)) > _LONGEST_SOCKET:
            most = _LONGEST_SOCKET - (len(str(self.mariadb_socket)) - len(str(self.folder)))
            raise ValueError(f"{self.folder}: a socket in it needs a shorter path, of at most {most} characters")

    @property
    def about(self) -> Path:
        return self.folder / "sandbox.json"

    @property
    def slurm_conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        return self.folder / "run" / "munge.sock"

    @property
    def mariadb_socket(self) -> Path:
        """In the database's folder, which is private: MariaDB asks for no password."""
        return self.database / "mariadb.sock"

    @property
    def database(self) -> Path:
        return self.folder / "db"


@dataclass(frozen=True)
class Ports:
    """Loopback ports of a sandbox, counted from `base`: controller, slurmdbd, then one per node."""

    base: int

    @property
    def slurmctld(self) -> int:
        return self.base

    @property
    def slurmdbd(self) -> int:
        return self.base + 1

    def slurmd(self, number: int) -> int:
        """Return the port of node `number`, from 0."""
        return self.base + _PORTS_BEFORE_NODES + number


def choose_ports(folder: Path, count: int, is_free: Callable[[int], bool]) -> Ports | None:
    """Return `count` consecutive free ports, the same for the same folder while they are free, or None."""
    blocks = (_LAST_PORT - _FIRST_PORT + 1) // count
    wanted = int.from_bytes(hashlib.sha256(str(folder).encode()).digest()[:8], "big") % blocks
    for block in range(wanted, wanted + blocks):
        base = _FIRST_PORT + block % blocks * count
        if all(is_free(port) for port in range(base, base + count)):
            return Ports(base)
    return None


def render_files(paths: SandboxPaths, shape: Shape, ports: Ports, user: str) -> dict[str, str]:
    """Render the files of the folder, by name; slurmdbd looks for its own beside slurm.conf."""
    database = _settings("slurmdbd.conf", paths, ports, user)
    return {
        "slurm.conf": _slurm_conf(paths, shape, ports, user),
        "gres.conf": _gres_conf(paths, shape),
        "cgroup.conf": "CgroupAutomount=no\n",
        "slurmdbd.conf": "".join(f"{name}={value}\n" for name, value in database.items()),
    }


def _slurm_conf(paths: SandboxPaths, shape: Shape, ports: Ports, user: str) -> str:
    """No cgroups, no host names but localhost, loopback listeners only, jobs started at once."""
    templates = [
        "slurm.conf",
        *(["accounting.conf"] if shape.accounting else []),
        *(["cloud.conf"] if shape.cloud else []),
    ]
    settings = {name: value for each in templates for name, value in _settings(each, paths, ports, user).items()}
    added = []
    for line in shape.extra:
        name, _, value = line.partition("=")
        if name.lower() in ("nodename", "partitionname", "downnodes"):
            added.append(line)
        else:
            settings = {key: old for key, old in settings.items() if key.lower() != name.lower()} | {name: value}
    lines = [f"{name}={value}" for name, value in settings.items()]
    return "\n".join([*lines, *_nodes(shape, ports), *added]) + "\n"


def _gres_conf(paths: SandboxPaths, shape: Shape) -> str:
    """Slurm counts GPUs by their character devices."""
    if not shape.gpus_per_node:
        return ""
    return f"NodeName={_own_nodes(shape)} Name=gpu File={paths.folder}/dev/nvidia[0-{shape.gpus_per_node - 1}]\n"


def munged_command(paths: SandboxPaths) -> Sequence[str]:
    run = paths.folder / "run"
    return (
        *("munged", "--foreground", "--force", "--num-threads=2"),
        *(f"--socket={paths.munge_socket}", f"--key-file={paths.folder}/munge.key"),
        *(f"--pid-file={run}/munged.pid", f"--seed-file={run}/munged.seed"),
    )


def mariadbd_command(paths: SandboxPaths, user: str) -> Sequence[str]:
    """Build the server's command: no grant tables and no port, so access to the socket is full access."""
    return (
        *("mariadbd", "--no-defaults", f"--user={user}", f"--datadir={paths.database}"),
        *("--skip-grant-tables", "--skip-networking"),
        *(f"--socket={paths.mariadb_socket}", f"--pid-file={paths.folder}/run/mariadbd.pid"),
        # As slurmdbd recommends. A commit is flushed to the kernel only: it survives a kill, not a power failure.
        *("--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900", "--innodb-flush-log-at-trx-commit=2"),
    )


def mariadb_bootstrap_command(folder: Path, user: str) -> Sequence[str]:
    return ("mariadbd", "--no-defaults", "--bootstrap", f"--user={user}", f"--datadir={folder}", "--skip-networking")


def _settings(template: str, paths: SandboxPaths, ports: Ports, user: str) -> dict[str, str]:
    """Settings of a template beside this file, in their order, with the sandbox's own values in place of $words."""
    text = resources.files("slurm.sandbox").joinpath(template).read_text(encoding="utf-8")
    filled = Template(text).substitute(
        cluster=SANDBOX_CLUSTER_NAME,
        partition=PARTITION,
        folder=paths.folder,
        munge_socket=paths.munge_socket,
        slurmctld_port=ports.slurmctld,
        slurmdbd_port=ports.slurmdbd,
        user=user,
    )
    lines = (line.partition("=") for line in filled.splitlines() if not line.startswith("#"))
    return {name: value for name, _, value in lines}


def _nodes(shape: Shape, ports: Ports) -> list[str]:
    """List the cloud nodes first: NodeName=DEFAULT applies to the lines after it."""
    own = "ALL" if not shape.cloud else _own_nodes(shape)
    return [
        *(f"NodeName={each.node_names} {_cloud_attributes(each)} State=CLOUD" for each in shape.cloud),
        f"NodeName=DEFAULT CPUs={shape.cpus_per_node} RealMemory=4000 State=UNKNOWN{_gpus(shape.gpus_per_node)}",
        *(
            f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports.slurmd(number)}"
            for number, name in enumerate(shape.node_names)
        ),
        f"PartitionName={PARTITION} Nodes={own} Default=YES MaxTime=UNLIMITED State=UP",
        *(f"PartitionName={each.partition} Nodes={each.node_names} MaxTime=UNLIMITED State=UP" for each in shape.cloud),
    ]


def _cloud_attributes(cloud: CloudNodes) -> str:
    return f"CPUs={cloud.cpus_per_node} RealMemory={CLOUD_MEMORY_MB}{_gpus(cloud.gpus_per_node)}"


def _gpus(count: int) -> str:
    return f" Gres=gpu:{count}" if count else ""


def _own_nodes(shape: Shape) -> str:
    return f"n[1-{shape.nodes}]"


def _require_within(*bounds: tuple[str, int, int, int]) -> None:
    """ValueError for the first (name, value, least, most) that is out of bounds."""
    for name, value, least, most in bounds:
        if not least <= value <= most:
            raise ValueError(f"{name} is {value}: {least} to {most} are allowed")
