"""Debian packages of a sandbox: find the missing ones, and install them without starting a service."""

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
"""Limits against a server that stalls."""


class InstallFailed(Exception):
    """apt-get failed, or ran into its timeout."""


def missing_packages(accounting: bool, path: str | None = None) -> tuple[str, ...]:
    """Return the packages whose programs are not on `path` (default: `program_path` of this process)."""
    wanted = _PACKAGE_OF | (_PACKAGE_OF_ACCOUNTING if accounting else {})
    path = program_path(os.environ) if path is None else path
    return tuple(dict.fromkeys(package for name, package in wanted.items() if shutil.which(name, path=path) is None))


def program_path(environment: Mapping[str, str]) -> str:
    """Return PATH with the sbin folders, which an ordinary user's lacks on Debian."""
    return os.pathsep.join(filter(None, (environment.get("PATH"), "/usr/local/sbin", "/usr/sbin", "/sbin")))


def install_command(packages: Sequence[str]) -> str:
    """Return the command that installs them as root."""
    return f"apt-get install --no-install-recommends {' '.join(packages)}"


def can_install() -> bool:
    """True if this is root on Debian."""
    return os.getuid() == 0 and shutil.which("apt-get") is not None


def install_packages(packages: Sequence[str], policy: Path = _POLICY) -> None:
    """Install packages without starting their services. Raises InstallFailed if apt-get fails or takes half an hour.

    `policy` is the file that Debian's packages run to ask whether they may start services.
    """
    with _no_service_starts(policy):
        # A stale index may still be good enough; otherwise the installation fails.
        _apt_get(("update", "-qq"), _UPDATE_TIMEOUT_S)
        fault = _apt_get(("install", "--yes", "-qq", "--no-install-recommends", *packages), _INSTALL_TIMEOUT_S)
    if fault is not None:
        raise InstallFailed(f"apt-get could not install {' '.join(packages)}: {fault}")


def _apt_get(arguments: Sequence[str], timeout_s: float) -> str | None:
    """Run apt-get; return its error, or None on success."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            ("apt-get", *arguments),
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return f"timed out after {timeout_s:g} s"
    return None if done.returncode == 0 else done.stderr.strip()


@contextmanager
def _no_service_starts(policy: Path) -> Iterator[None]:
    """Forbid service starts: exit code 101 means so. A policy that exists already is left as it is."""
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
