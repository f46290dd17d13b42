"""`make licences` lists what is installed, and docs/security.md says what is particular about it."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path

import pytest

from tests.sources import ROOT


@pytest.fixture(scope="module")
def listed() -> dict[str, tuple[str, str]]:
    """Version and licence by package; nothing is installed for it."""
    target = ["make", "--silent", "--old-file=.venv/.dev", "licences", f"BIN={Path(sys.executable).parent}"]
    printed = subprocess.run(target, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    rows = [re.split(r"\s{2,}", line) for line in printed.splitlines()[1:]]
    return {normal(name): (version, licence) for name, version, licence in rows}


def normal(name: str) -> str:
    return name.lower().replace("_", "-")


def pinned() -> list[str]:
    return [line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().split()]


def installed(name: str) -> bool:
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


@pytest.mark.processes
def test_every_package_that_is_pinned_and_installed_is_listed(listed):
    there = {normal(name): version(name) for name in pinned() if installed(name)}
    assert len(there) > 100
    assert {name: found for name, (found, _) in listed.items() if name in there} == there


@pytest.mark.processes
def test_the_page_names_those_under_the_lgpl_and_those_that_do_not_say(listed):
    section = (ROOT / "docs" / "security.md").read_text().partition("## Licences")[2]
    particular = {
        name for name in map(normal, pinned()) if re.search("GPL|UNKNOWN|General Public", listed.get(name, ("", ""))[1])
    }
    assert particular == {name for name in map(normal, pinned()) if f"`{name}`" in section}


@pytest.mark.processes
@pytest.mark.skipif(not installed("megatron-core"), reason="megatron-core is not installed: the extra `trainers`")
def test_the_page_says_both_licences_that_megatron_core_names(listed):
    section = (ROOT / "docs" / "security.md").read_text().partition("## Licences")[2]
    named = (listed["megatron-core"][1], metadata("megatron-core")["License"])
    assert named == ("BSD License", "Apache 2.0")
    assert "megatron-core" in section
    assert "listed under a BSD licence" in section
    assert "licence field says Apache 2.0" in section
