"""Packages of engine megatron-core: verified versions, faults, and the end of a rank."""

from __future__ import annotations

import configparser

import pytest

from search_spaces.engines import MEGATRON_CORE
from search_spaces.layouts.layout import Layout
from tests.sources import ROOT
from trials.ranks.engine_packages import (
    PACKAGES,
    TRANSFORMER_ENGINE,
    VERIFIED,
    VersionRange,
    installed_packages,
    package_faults,
    require_packages,
)
from trials.ranks.failures import TrialFailure, reason_of
from trials.train.engines.imports import import_training
from trials.trial import FailureReason

MATH, FLASH = (Layout(engine=MEGATRON_CORE, precision="bf16", attention_kernel=kernel) for kernel in ("math", "flash"))
WELL = {MEGATRON_CORE: "0.16.1", TRANSFORMER_ENGINE: "2.9.0"}


@pytest.mark.parametrize(
    ("version", "is_in"),
    [
        ("0.16.1", True),
        ("0.16.10", True),
        ("0.16.2+local", True),
        ("0.16.1.post1", True),
        ("0.16.0", False),
        ("0.16", False),
        ("0.16.1rc0", False),
        ("0.16.2.dev3", False),
        ("0.17", False),
        ("0.17.0", False),
        ("1.0", False),
        ("unknown", False),
        ("", False),
    ],
)
def test_a_release_of_the_range_is_verified_and_nothing_else(version, is_in):
    assert (version in VersionRange("0.16.1", "0.17")) == is_in


@pytest.mark.parametrize(
    ("layout", "installed", "expected"),
    [
        (MATH, WELL, []),
        (FLASH, WELL, []),
        (MATH, {**WELL, TRANSFORMER_ENGINE: None}, []),
        (MATH, {**WELL, MEGATRON_CORE: None}, ["megatron-core is not installed"]),
        (MATH, {**WELL, MEGATRON_CORE: "0.15.3"}, ["megatron-core 0.15.3 is installed"]),
        (MATH, {**WELL, MEGATRON_CORE: "0.17.0"}, ["megatron-core 0.17.0 is installed"]),
        (FLASH, {**WELL, TRANSFORMER_ENGINE: None}, ["transformer-engine is not installed"]),
        (
            FLASH,
            dict.fromkeys(PACKAGES),
            ["megatron-core is not installed", "transformer-engine is not installed"],
        ),
        (Layout(), dict.fromkeys(PACKAGES), []),
        (Layout(engine="deepspeed", attention_kernel="flash"), dict.fromkeys(PACKAGES), []),
    ],
)
def test_what_a_layout_lacks_is_named(layout, installed, expected):
    assert [fault.message for fault in package_faults(layout, installed)] == expected


def test_what_is_installed_with_parlay_is_what_was_verified():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = setup["options.extras_require"]
    assert extras["megatron"].split() == extras["trainers"].split() == [f"{MEGATRON_CORE}{VERIFIED[MEGATRON_CORE]}"]
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    assert pinned[MEGATRON_CORE] in VERIFIED[MEGATRON_CORE]


@pytest.mark.bad_input(54)
def test_a_rank_ends_with_what_it_lacks_before_it_imports_the_engine(tmp_path, monkeypatch):
    monkeypatch.setattr("trials.ranks.engine_packages.package_version", {**WELL, MEGATRON_CORE: "0.15.3"}.get)
    with pytest.raises(TrialFailure) as ended:
        import_training(MATH)
    assert reason_of(ended.value, tmp_path) is FailureReason.SCRIPT_ERROR
    assert str(ended.value) == (
        "megatron-core 0.15.3 is installed: engine megatron-core was verified with megatron-core>=0.16.1,<0.17; pip"
        " install 'megatron-core>=0.16.1,<0.17'"
    )


def test_a_rank_with_all_that_its_layout_needs_goes_on(monkeypatch):
    monkeypatch.setattr("trials.ranks.engine_packages.package_version", WELL.get)
    require_packages(FLASH)
    assert installed_packages() == WELL
