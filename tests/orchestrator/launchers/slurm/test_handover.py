"""State that a driver leaves to the next one, and when that is ignored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.launchers.slurm import handover
from orchestrator.launchers.slurm.handover import HandoverEntry, HandoverFile
from trials.files.folders import read_json, write_json

KEY = "rig-aaaaaa.t0001.a1"
WAITS = {"submitted_for_s": 100.0, "unconfirmed_for_s": 20.0}
KNOWN = HandoverEntry(**WAITS, cancelled=True, is_described=True, restart=1, started_at=5.0, duplicates={"7": 3.0})


def left(path: Path) -> Path:
    """Write the file of a driver that ended at 1000 s after the boot, and 5000 s by the clock that people set."""
    HandoverFile(path, lambda: 1000.0, lambda: 5000.0).save({KEY: KNOWN})
    return path


def found(path: Path, monotonic: float = 1040.0, utc: float = 5040.0) -> dict[str, HandoverEntry]:
    return HandoverFile(path, lambda: monotonic, lambda: utc).load()


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "launcher.json"


def test_waits_go_on_where_they_stood_whatever_becomes_of_the_clock_that_people_set_and_are_taken_once(path):
    """A killed driver leaves no file, so that no later driver uses outdated state."""
    assert found(left(path), utc=9999.0) == {KEY: replace(KNOWN, submitted_for_s=140.0, unconfirmed_for_s=60.0)}
    assert not path.exists()
    assert found(path) == {}


@pytest.mark.parametrize(("utc", "waits"), [(5030.0, (130.0, 50.0)), (10.0, (100.0, 20.0))], ids=["on", "set back"])
def test_on_another_machine_only_the_clock_that_people_set_tells(path, monkeypatch, utc, waits):
    left(path)
    monkeypatch.setattr(handover, "boot_id", lambda: "another")
    [known] = found(path, monotonic=3.0, utc=utc).values()
    assert (known.submitted_for_s, known.unconfirmed_for_s, known.absent_for_s) == (*waits, None)


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "parlay.launcher/2"},
        {"at": {"boot": "x"}},
        {"attempts": {KEY: {"unconfirmed_for_s": "long"}}},
        {"attempts": [KEY]},
        None,
    ],
)
def test_a_file_that_no_driver_wrote_is_nothing_remembered(path, change):
    if change is None:
        left(path).write_text('{"schema": "parlay.la')
    else:
        write_json(path, (read_json(left(path)) or {}) | change)
    assert found(path) == {}


def test_a_folder_that_cannot_be_written_ends_no_driver(tmp_path):
    assert found(left(tmp_path / "missing" / "launcher.json")) == {}
