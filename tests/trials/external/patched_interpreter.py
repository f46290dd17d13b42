"""An interpreter that patches some programs before it runs them, for tests of real trainers on a CPU."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

_PATHS = """\
{packages}
{root}
import {start}
"""


def interpreter_in(folder: Path, start: str) -> Path:
    """A virtual environment with this one's packages that imports the module `start` before every program."""
    python = folder / "bin/python"
    site = folder / f"lib/python{sysconfig.get_python_version()}/site-packages"
    python.parent.mkdir(parents=True)
    site.mkdir(parents=True)
    base = Path(sys._base_executable)
    python.symlink_to(base)
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    (site / "on_cpu.pth").write_text(_PATHS.format(packages=sysconfig.get_path("purelib"), root=ROOT, start=start))
    return python
