"""An interpreter, and copies of a checkout, for tests that run the real pretrain_gpt.py."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
DOWNLOADS = "PARLAY_DOWNLOADS"
VERSIONS = ("core_v0.16.1", "main")
ARGUMENTS = (
    *("--transformer-impl", "local", "--distributed-backend", "gloo", "--use-cpu-initialization"),
    # The first needs Apex's kernel, the second a reduction of NCCL.
    *("--no-gradient-accumulation-fusion", "--no-gradient-reduce-div-fusion"),
)
"""Options of a training on a CPU."""

_PATHS = """\
{packages}
{root}
import tests.trials.external.megatron_on_cpu.start
"""


def checkout_of(version: str, folder: Path) -> Path:
    """A copy of Megatron-LM at this tag or branch, in the folder; skips the test where there is no checkout."""
    source = Path(os.environ.get(DOWNLOADS, "no downloads"), "Megatron-LM")
    if not (source / ".git").exists():
        pytest.skip(f"no downloads: {DOWNLOADS} names no folder with a checkout of Megatron-LM")
    copy = folder / version
    copy.mkdir()
    wanted = [version, "--", "megatron", ":(top,glob)*.py"]
    archive = subprocess.run(["git", "-C", source, "archive", *wanted], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", copy], input=archive, check=True)
    return copy


def interpreter_in(folder: Path) -> Path:
    """A virtual environment with this one's packages that applies the patches before it runs pretrain_gpt.py."""
    python = folder / "bin/python"
    site = folder / f"lib/python{sysconfig.get_python_version()}/site-packages"
    python.parent.mkdir(parents=True)
    site.mkdir(parents=True)
    base = Path(sys._base_executable)
    python.symlink_to(base)
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    (site / "megatron_on_cpu.pth").write_text(_PATHS.format(packages=sysconfig.get_path("purelib"), root=ROOT))
    return python
