"""`parlay cancel` where what is in flight cannot be reached."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.cli import main, running
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.search_file import load_search_file
from orchestrator.session import _hold, create_search, prepare
from tests.orchestrator.cli.parlay import TINY_SEARCH, write_search
from trials.folder import SearchFolder
from trials.ledger.events import EventKind
from trials.ledger.place import ledger_url


def search_with_a_job(folder: Path) -> SearchFolder:
    """A search nobody drives, one of whose trials has a job in Slurm."""
    path = write_search(folder, TINY_SEARCH + "tracking: {enabled: false}\n")
    spec = load_search_file(path, ["launcher.kind=slurm", f"work_dir={folder / 'runs'}"])
    search, [layout, *_] = create_search(spec, ledger_url()), prepare(spec).feasible
    attempt = {"trial": "t0001", "attempt": "a1"}
    intent = {"nonce": "0" * 32, "num_nodes": 1, "time_limit_s": 630.0, "reserved_s": 722.0, "exclude": []}
    with _hold(search, ledger_url()) as hold, hold.opened_history() as history:
        history.record(EventKind.SEARCH_STATE, state="running", end_reason=None, detail=None)
        history.record(EventKind.TRIAL_PROPOSED, trial="t0001", layout=layout.to_json(), kind="search", prediction=None)
        history.record(EventKind.ATTEMPT_SUBMITTED, **attempt, **intent)
        history.record(EventKind.ATTEMPT_LAUNCHED, **attempt, job_id="4711")
    return search


@pytest.mark.timeout(30)
def test_a_cancel_without_a_slurm_that_answers_ends_and_lists_what_it_could_not_reach(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PARLAY_HOME", str(tmp_path / "home"))
    search = search_with_a_job(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # without Slurm's commands
    monkeypatch.setattr(running, "CANCEL_LIMIT_S", 0.5)
    assert main.run(["cancel", str(search.path), "--json"]) == ExitCode.CANCEL_INCOMPLETE
    answer = json.loads(capsys.readouterr().out)
    assert (answer["cancelled"], answer["unreached"]) == ([], [f"{search.search_id}.t0001.a1"])


@pytest.mark.parametrize(("count", "words"), [(0, "no trial was"), (1, "1 trial was"), (2, "2 trials were")])
def test_what_was_cancelled_is_said_in_words(count, words):
    assert running._cancelled_words(count) == f"{words} cancelled"
