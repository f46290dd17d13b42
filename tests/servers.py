"""What tests start for themselves, Slurm, Postgres and Chromium: `python -m tests.servers` installs what is missing.

Without root, or without apt-get, it says what is missing instead, and the tests that need it are skipped.
"""

from __future__ import annotations

import sys

from slurm.packages import InstallFailed, can_install, install_line, install_packages, missing_packages
from tests.chromium import chromium_program
from tests.postgres import postgres_programs

POSTGRES_PACKAGE = "postgresql"
CHROMIUM_PACKAGE = "chromium"


def main() -> int:
    postgres = [] if postgres_programs() else [POSTGRES_PACKAGE]
    chromium = [] if chromium_program() else [CHROMIUM_PACKAGE]
    missing = [*missing_packages(accounting=True), *postgres, *chromium]
    if not missing:
        return 0
    if not can_install():
        print(f"Tests of Slurm, Postgres or Chromium will be skipped; to have them, as root: {install_line(missing)}")
        return 0
    print(f"Installing Debian's {' '.join(missing)} for the tests; no service is started")
    try:
        install_packages(missing)
    except InstallFailed as error:
        print(f"{error}\nThe tests that need no such server: make test-fast", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
