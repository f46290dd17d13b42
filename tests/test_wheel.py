"""Wheel of `python -m build`: all of Parlay and nothing else, and it plans a search by itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from tests.sources import ROOMS, ROOT

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

WHAT_BUILDS_IT = ("setup.cfg", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
THE_COMMAND = """\
import sys
from importlib.metadata import entry_points
[parlay] = entry_points(group="console_scripts", name="parlay")
parlay.load()(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel's files, unpacked. It is built in a copy, which keeps what builds before it left behind out of it."""
    folder = tmp_path_factory.mktemp("wheel")
    sources, unpacked = folder / "sources", folder / "unpacked"
    for room in (*ROOMS, "tests", "benchmarks"):
        shutil.copytree(ROOT / room, sources / room, ignore=shutil.ignore_patterns("__pycache__"))
    for name in WHAT_BUILDS_IT:
        shutil.copy(ROOT / name, sources / name)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", sources]
    done = subprocess.run(build, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = (folder / "dist").glob("*.whl")
    zipfile.ZipFile(built).extractall(unpacked)
    return unpacked


def test_it_has_every_file_of_the_rooms_and_no_other_and_its_licence(wheel):
    there, packed = files_of_the_rooms(ROOT), files_of_the_rooms(wheel)
    assert sorted(there - packed) == []
    assert sorted(packed - there) == []
    assert {path.name for path in wheel.iterdir()} == {*ROOMS, about(wheel).name}
    assert message_from_string((about(wheel) / "METADATA").read_text())["License-Expression"] == "Apache-2.0"
    assert (about(wheel) / "licenses" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def files_of_the_rooms(root: Path) -> set[str]:
    paths = (path for room in ROOMS for path in (root / room).rglob("*") if path.is_file())
    return {str(path.relative_to(root)) for path in paths if path.parent.name != "__pycache__"}


def about(wheel: Path) -> Path:
    (folder,) = wheel.glob("parlay-*.dist-info")
    return folder


def test_it_plans_a_ready_made_search_with_nothing_else_of_parlay_there(wheel, tmp_path):
    version = message_from_string((about(wheel) / "METADATA").read_text())["Version"]
    assert parlay_of(wheel, "--version", cwd=tmp_path) == f"parlay {version}\n"
    plan = json.loads(parlay_of(wheel, "plan", "frontier-22b", "--json", cwd=tmp_path))
    assert plan["layouts"]
    assert "global_batch_size" in parlay_of(wheel, "init", "--site", "lumi", cwd=tmp_path)


def parlay_of(wheel: Path, *words: str, cwd: Path) -> str:
    """Output of the wheel's command, run without `site`, which would add this checkout."""
    packages = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", THE_COMMAND, *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(wheel), *packages])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
