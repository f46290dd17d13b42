"""Debian's packages for a sandbox: which of them are missing, and installing them without starting a service."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_PACKAGE_OF = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    **dict.fromkeys(("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo", "sacct"), "slurm-client"),
}
_PACKAGE_OF_ACCOUNTING = {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server-core"}
_POLICY = Path("/usr/sbin/policy-rc.d")

_UPDATE_TIMEOUT_S, _INSTALL_TIMEOUT_S = 300.0, 1800.0
"""A server that sends ever less would be waited for all day."""


class InstallFailed(Exception):
    """apt-get refused, in words of its own, or was not done in time."""


def missing_packages(accounting: bool, path: str | None = None) -> tuple[str, ...]:
    """The packages whose programs are not on `path` (default: `program_path` of this process)."""
    wanted = _PACKAGE_OF | (_PACKAGE_OF_ACCOUNTING if accounting else {})
    path = program_path(os.environ) if path is None else path
    return tuple(dict.fromkeys(package for name, package in wanted.items() if shutil.which(name, path=path) is None))


def program_path(environment: Mapping[str, str]) -> str:
    """PATH with the folders of daemons, which an ordinary user's lacks on Debian."""
    return os.pathsep.join(filter(None, (environment.get("PATH"), "/usr/local/sbin", "/usr/sbin", "/sbin")))


def install_command(packages: Sequence[str]) -> str:
    """What a person types as root to install them."""
    return f"apt-get install --no-install-recommends {' '.join(packages)}"


def can_install() -> bool:
    """Whether this is root of a Debian."""
    return os.getuid() == 0 and shutil.which("apt-get") is not None


def install_packages(packages: Sequence[str], policy: Path = _POLICY) -> None:
    """Install them; none of their services is started. InstallFailed if apt-get refuses, or takes half an hour.

    `policy` is the file that Debian's packages ask whether they may start services.
    """
    with _no_service_starts(policy):
        # An index that cannot be brought up to date may still be good enough; installing says so if not.
        _apt_get(("update", "-qq"), _UPDATE_TIMEOUT_S)
        fault = _apt_get(("install", "--yes", "-qq", "--no-install-recommends", *packages), _INSTALL_TIMEOUT_S)
    if fault is not None:
        raise InstallFailed(f"apt-get could not install {' '.join(packages)}: {fault}")


def _apt_get(words: Sequence[str], timeout_s: float) -> str | None:
    """What it says where it refuses; None where it did as it was told."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            ("apt-get", *words), env=environment, capture_output=True, text=True, errors="replace", timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return f"it was not done within {timeout_s:g} s"
    return None if done.returncode == 0 else done.stderr.strip()


@contextmanager
def _no_service_starts(policy: Path) -> Iterator[None]:
    """Exit code 101 is "forbidden by policy"; a file that is there already is the machine's own and stays."""
    try:
        with policy.open("x") as stream:
            stream.write("#!/bin/sh\nexit 101\n")
    except FileExistsError:
        yield
        return
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink()
