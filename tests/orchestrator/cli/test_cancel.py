"""`parlay cancel` when trials in flight cannot be reached."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.cli.cancel import _format_cancelled
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.config.loader import load_search_file
from orchestrator.lifecycle import cancel, pilot_cleanup
from orchestrator.lifecycle.create import create_search, validate_space
from orchestrator.lifecycle.lock import acquire_search
from tests.orchestrator.cli.parlay import TINY_SEARCH, write_search
from trials.files.folders import SearchFolder, write_json
from trials.ledger.events import EventKind
from trials.ledger.location import ledger_url
from trials.pilot.files import PILOT_SCHEMA, PilotFolder, PilotPlan, write


def search_with_a_job(folder: Path) -> SearchFolder:
    """A search without a driver; one of its trials has a job in Slurm."""
    path = write_search(folder, TINY_SEARCH + "tracking: {enabled: false}\n")
    spec = load_search_file(path, ["launcher.kind=slurm", f"work_dir={folder / 'runs'}"])
    search, [layout, *_] = create_search(spec, ledger_url()), validate_space(spec).layouts
    attempt = {"trial": "t0001", "attempt": "a1"}
    intent = {"nonce": "0" * 32, "num_nodes": 1, "time_limit_s": 630.0, "reserved_s": 722.0, "exclude": []}
    with acquire_search(search, ledger_url()) as lock, lock.open_history() as history:
        history.record(EventKind.SEARCH_STATE, state="running", end_reason=None, detail=None)
        history.record(EventKind.TRIAL_PROPOSED, trial="t0001", layout=layout.to_json(), kind="search", prediction=None)
        history.record(EventKind.ATTEMPT_SUBMITTED, **attempt, **intent)
        history.record(EventKind.ATTEMPT_LAUNCHED, **attempt, job_id="4711")
    return search


@pytest.mark.slow
def test_a_cancel_without_a_slurm_that_answers_ends_and_lists_what_it_could_not_reach(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PARLAY_HOME", str(tmp_path / "home"))
    search = search_with_a_job(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # without Slurm's commands
    monkeypatch.setattr(cancel, "CANCEL_TIMEOUT_S", 0.5)
    assert main.run(["cancel", str(search.path), "--json"]) == ExitCode.CANCEL_INCOMPLETE
    answer = json.loads(capsys.readouterr().out)
    assert (answer["cancelled"], answer["unreached"]) == ([], [f"{search.search_id}.t0001.a1"])


@pytest.mark.parametrize(("count", "words"), [(0, "no trial was"), (1, "1 trial was"), (2, "2 trials were")])
def test_what_was_cancelled_is_said_in_words(count, words):
    assert _format_cancelled(count) == f"{words} cancelled"


def ended_search_with_a_pilot(folder: Path) -> SearchFolder:
    """A cancelled search whose driver was killed before it had ended its pilot, which waits in Slurm's queue."""
    path = write_search(folder, TINY_SEARCH + "tracking: {enabled: false}\n")
    search = create_search(
        load_search_file(path, ["launcher.kind=slurm_pilot", f"work_dir={folder / 'runs'}"]), ledger_url()
    )
    with acquire_search(search, ledger_url()) as lock, lock.open_history() as history:
        history.record(EventKind.SEARCH_STATE, state="cancelled", end_reason="cancelled_by_user", detail=None)
    pilot = PilotFolder(search.pilots / "p0001")
    pilot.steps.mkdir(parents=True)
    write(pilot.plan, PilotPlan(1, 1, 600.0, "python3", str(search.code), 120.0, submitted_at=1_800_000_000.0))
    write_json(pilot.job, {"schema": PILOT_SCHEMA, "job_id": "4711"})
    (pilot.path / "job.sh").write_text("")
    return search


def test_a_pilot_that_an_ended_search_left_and_slurm_does_not_end_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PARLAY_HOME", str(tmp_path / "home"))
    search = ended_search_with_a_pilot(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # without Slurm's commands
    assert main.run(["cancel", str(search.path), "--json"]) == ExitCode.CANCEL_INCOMPLETE
    assert json.loads(capsys.readouterr().out)["unreached"] == [f"{search.search_id}.p0001"]
    assert PilotFolder(search.pilots / "p0001").drain.exists()


def test_a_resume_of_an_ended_search_lets_go_of_its_pilots(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PARLAY_HOME", str(tmp_path / "home"))
    search = ended_search_with_a_pilot(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    main.run(["resume", str(search.path)])
    assert "unneeded pilots may still be running: scancel 4711" in capsys.readouterr().err
    assert PilotFolder(search.pilots / "p0001").drain.exists()


def test_of_pilots_that_are_over_slurm_is_asked_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PARLAY_HOME", str(tmp_path / "home"))
    search = ended_search_with_a_pilot(tmp_path)
    PilotFolder(search.pilots / "p0001").closed.write_text("{}")
    monkeypatch.setattr(pilot_cleanup, "make_launcher", lambda *_, **__: pytest.fail("Slurm is asked"))
    assert main.run(["cancel", str(search.path), "--json"]) == ExitCode.SUCCESS
