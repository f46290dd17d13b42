"""State that a driver leaves to the next one, and when that is ignored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.launchers.slurm import handover
from orchestrator.launchers.slurm.handover import HandoverEntry, HandoverFile
from trials.files.folders import read_json, write_json

KEY = "rig-aaaaaa.t0001.a1"
KNOWN = HandoverEntry(
    submitted_for_s=100.0,
    unconfirmed_for_s=20.0,
    cancelled=True,
    is_described=True,
    restart=1,
    started_at=5.0,
    duplicates={"7": 3.0},
)


def left(path: Path, monotonic: float = 1000.0, utc: float = 5000.0) -> Path:
    """Write the file of a driver that ended at this time."""
    HandoverFile(path, lambda: monotonic, lambda: utc).save({KEY: KNOWN})
    return path


def found(path: Path, monotonic: float, utc: float) -> dict[str, HandoverEntry]:
    return HandoverFile(path, lambda: monotonic, lambda: utc).load()


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "launcher.json"


def test_waits_go_on_where_they_stood_whatever_becomes_of_the_clock_that_people_set(path):
    expected = replace(KNOWN, submitted_for_s=140.0, unconfirmed_for_s=60.0)
    assert found(left(path), monotonic=1040.0, utc=9999.0) == {KEY: expected}


def test_on_another_machine_only_the_clock_that_people_set_tells(path, monkeypatch):
    left(path)
    monkeypatch.setattr(handover, "boot_id", lambda: "another")
    [known] = found(path, monotonic=3.0, utc=5030.0).values()
    assert (known.submitted_for_s, known.unconfirmed_for_s, known.absent_for_s) == (130.0, 50.0, None)


def test_a_clock_that_was_set_back_shortens_no_wait(path, monkeypatch):
    left(path)
    monkeypatch.setattr(handover, "boot_id", lambda: "another")
    [known] = found(path, monotonic=3.0, utc=10.0).values()
    assert known.unconfirmed_for_s == 20.0


def test_whoever_takes_it_leaves_nothing_for_the_next_one(path):
    """A killed driver leaves no file, so that no later driver uses outdated state."""
    assert found(left(path), 1040.0, 5040.0)
    assert not path.exists()
    assert found(path, 1040.0, 5040.0) == {}


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "parlay.launcher/2"},
        {"at": {"boot": "x"}},
        {"at": {"boot": "x", "monotonic_s": "now", "utc_s": "now"}},
        {"attempts": {KEY: {"unconfirmed_for_s": "long"}}},
        {"attempts": {KEY: {"age": 1.0}}},
        {"attempts": [KEY]},
    ],
)
def test_a_file_that_no_driver_wrote_is_nothing_remembered(path, change):
    write_json(path, (read_json(left(path)) or {}) | change)
    assert found(path, 1040.0, 5040.0) == {}


def test_half_a_file_is_nothing_remembered(path):
    left(path).write_text('{"schema": "parlay.la')
    assert found(path, 1040.0, 5040.0) == {}


def test_a_folder_that_cannot_be_written_ends_no_driver(tmp_path):
    left(tmp_path / "missing" / "launcher.json")
    assert found(tmp_path / "missing" / "launcher.json", 1040.0, 5040.0) == {}
