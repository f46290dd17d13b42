"""Installation of the servers that tests start: `python -m tests.servers` installs Slurm, Postgres and Chromium.

Without root or apt-get it prints what is missing, and the tests that need it are skipped.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from slurm.sandbox.apt_packages import InstallFailed, can_install, install_command, install_packages, missing_packages
from tests.chromium import chromium_program
from tests.postgres import postgres_programs

POSTGRES_PACKAGE = "postgresql"
CHROMIUM_PACKAGE = "chromium"


def main() -> int:
    postgres = [] if postgres_programs() else [POSTGRES_PACKAGE]
    chromium = [] if chromium_program() else [CHROMIUM_PACKAGE]
    servers = [*missing_packages(accounting=True), *postgres]
    if not servers and not chromium:
        return 0
    if not can_install():
        line = install_command([*servers, *chromium])
        print(f"Tests of Slurm, Postgres or Chromium will be skipped; to have them, as root: {line}")
        return 0
    if servers and not _installed(servers):
        print("The tests that need no such server: make test-fast", file=sys.stderr)
        return 1
    # A large one, which looks at pages alone: what keeps it away keeps nothing else from being tested.
    if chromium and not _installed(chromium):
        print("Tests of pages in a browser will be skipped", file=sys.stderr)
    return 0


def _installed(packages: Sequence[str]) -> bool:
    print(f"Installing Debian's {' '.join(packages)} for the tests; no service is started")
    try:
        install_packages(packages)
    except InstallFailed as error:
        print(error, file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
