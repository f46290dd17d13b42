"""Targets of make: what each installs."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.sources import ROOT


def extras_installed_by(target: str) -> set[str]:
    """Extras of Parlay that make installs for this target on a fresh machine; nothing is run."""
    plan = ["make", "--dry-run", "--always-make", "--no-print-directory", target]
    printed = subprocess.run(plan, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {extra for extras in re.findall(r"--editable '\.\[(.*?)\]'", printed) for extra in extras.split(",")}


@pytest.mark.parametrize(
    ("target", "extras"),
    [
        ("demo", {"trainer"}),
        ("test", {"trainer", "dev", "trainers"}),
        ("check", {"trainer", "dev", "trainers"}),
        ("test-fast", {"trainer", "dev"}),
    ],
)
def test_trainers_of_others_are_installed_for_tests_and_gate_alone(target, extras):
    assert extras_installed_by(target) == extras
