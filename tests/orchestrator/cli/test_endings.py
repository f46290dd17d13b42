"""Searches that end without a result or by a cancel: the reported reason and advice. All in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.cli.main import main as run
from orchestrator.lifecycle import cancel, drive
from orchestrator.lifecycle.exit_codes import ExitCode
from tests.orchestrator.cli.simulated import OK, OUT_OF_MEMORY, write_simulated_search
from tests.orchestrator.unfinished_searches import ended_search_with_a_pilot, search_with_a_job
from trials.files.folders import SearchFolder
from trials.pilot.files import PilotFolder


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.fault(41)
def test_when_every_layout_fails_the_answer_has_the_causes_and_what_to_try(tmp_path, capfd):
    code = run(["run", str(write_simulated_search(tmp_path, OUT_OF_MEMORY, OUT_OF_MEMORY, OUT_OF_MEMORY))])
    out, err = capfd.readouterr()
    assert code == 3, err
    assert "no layout was measured: 3 trials failed, out of memory" in out
    _, causes, to_try, *_ = out[out.index("why nothing was measured:") :].splitlines()
    assert causes == "  3 trials of 3 failed: 3 out of memory."
    assert to_try.startswith("  To try: a smaller micro_batch_size")
    assert run(["best"]) == 3
    assert "no layout was measured: 3 trials failed, out of memory" in capfd.readouterr().err


ASKING = ("--set", "constraints.min_free_memory_gib=30")
"""Memory limit of ranks on an H100, whose allocations may take 77.65 GiB."""


@pytest.mark.slow
def test_layouts_that_leave_too_little_memory_are_no_answer_and_what_to_relax_is_said(tmp_path, capfd):
    search = write_simulated_search(tmp_path, {"peak_memory_gib": "70"}, {"peak_memory_gib": "60"}, OUT_OF_MEMORY)
    assert run(["run", str(search), *ASKING]) == 3
    out = capfd.readouterr().out
    nearest = "no layout that was measured leaves 30 GiB free (constraints.min_free_memory_gib): t0002 comes nearest"
    assert out.count(f"{nearest} and leaves 17.7 GiB") == 1
    assert "! t0001, t0002 leave less memory free than required" in out
    lines = out[out.index("why no layout qualifies:") :].splitlines()
    assert lines[1] == "  1 trial of 3 failed: 1 out of memory."
    assert "  2 layouts left too little memory free. To try: a smaller constraints.min_free_memory_gib" in out
    assert run(["best"]) == 3
    assert nearest in capfd.readouterr().err


def search_killed_before_its_last_events(tmp_path: Path) -> SearchFolder:
    assert run(["run", str(write_simulated_search(tmp_path, OK, OK)), "--set", "search.max_trials=2"]) == 0
    (folder,) = (SearchFolder(path.parent) for path in (tmp_path / "runs").glob("*/journal.jsonl"))
    lines = folder.journal.read_bytes().splitlines(keepends=True)
    folder.journal.write_bytes(b"".join(lines[:-3]))
    return folder


@pytest.mark.slow
@pytest.mark.fault(45)
def test_code_that_changed_since_the_search_began_is_said_and_nothing_is_launched(tmp_path, capfd):
    folder = search_killed_before_its_last_events(tmp_path)
    program = folder.code / "trials" / "trial.py"
    program.write_text(program.read_text() + "\n# faster\n")
    before = folder.journal.read_bytes()
    capfd.readouterr()
    assert run(["resume", str(folder.path), "--ledger", f"sqlite:///{tmp_path}/other.db"]) == 2
    assert "has changed since the search was created" in capfd.readouterr().err
    assert b"attempt_submitted" not in folder.journal.read_bytes().removeprefix(before)


@pytest.mark.slow
def test_what_python_compiled_of_the_code_is_not_what_a_search_goes_on_with(tmp_path):
    folder = search_killed_before_its_last_events(tmp_path)
    stale = folder.code / "trials" / "__pycache__" / "measure.cpython-311.pyc"
    stale.parent.mkdir()
    stale.write_bytes(b"of other sources")
    assert run(["resume", str(folder.path), "--ledger", f"sqlite:///{tmp_path}/other.db"]) == 0
    assert not stale.exists()


@pytest.fixture
def without_slurm(own_home, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cancel, "CANCEL_TIMEOUT_S", 0.5)


@pytest.mark.usefixtures("without_slurm")
@pytest.mark.slow
def test_a_cancel_without_a_slurm_that_answers_ends_and_lists_what_it_could_not_reach(tmp_path, capsys):
    search = search_with_a_job(tmp_path)
    assert run(["cancel", str(search.path), "--json"]) == ExitCode.CANCEL_INCOMPLETE
    answer = json.loads(capsys.readouterr().out)
    assert (answer["cancelled"], answer["unreached"]) == ([], [f"{search.search_id}.t0001.a1"])


@pytest.mark.usefixtures("without_slurm")
def test_a_pilot_that_an_ended_search_left_is_let_go_of_and_slurm_asked_until_it_is_over(tmp_path, capsys, monkeypatch):
    search = ended_search_with_a_pilot(tmp_path)
    pilot = PilotFolder(search.pilots / "p0001")
    assert run(["cancel", str(search.path), "--json"]) == ExitCode.CANCEL_INCOMPLETE
    assert json.loads(capsys.readouterr().out)["unreached"] == [f"{search.search_id}.p0001"]
    pilot.drain.unlink()
    run(["resume", str(search.path)])
    assert "scancel 4711" in capsys.readouterr().err
    assert pilot.drain.exists()
    pilot.closed.write_text("{}")
    assert run(["cancel", str(search.path)]) == ExitCode.CANCEL_INCOMPLETE, "it may be back in the queue"
    pilot.job_end.write_text("{}")
    monkeypatch.setattr(drive, "make_launcher", lambda *_, **__: pytest.fail("Slurm is asked"))
    assert run(["cancel", str(search.path), "--json"]) == ExitCode.SUCCESS
