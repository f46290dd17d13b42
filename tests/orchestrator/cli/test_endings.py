"""Searches without a result: the reported reason and advice. All in this process."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from orchestrator.cli.main import run
from orchestrator.cli.search_summary import print_search_summary
from orchestrator.config.loader import load_search_file
from orchestrator.samplers.model_free import GridSampler
from search_spaces.layouts.layout import Layout
from tests.dashboards.searches import SearchUnderTest
from tests.orchestrator.cli.simulated import OK, OUT_OF_MEMORY, write_simulated_search
from trials.files.folders import SearchFolder
from trials.ledger.events import EventKind
from trials.trial import FailureReason

pytestmark = pytest.mark.slow


@pytest.mark.fault(41)
def test_when_every_layout_fails_the_answer_has_the_causes_in_a_table_and_what_to_relax(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    code = run(["run", str(write_simulated_search(tmp_path, OUT_OF_MEMORY, OUT_OF_MEMORY, OUT_OF_MEMORY))])
    out, err = capfd.readouterr()
    assert code == 3, err
    assert "(no layout could be measured)" in out
    assert "no layout was measured: 3 trials failed, out of memory" in out
    lines = out.splitlines()
    table = lines[lines.index("why no layout was feasible, and what to relax:") + 1]
    assert table.split()[:6] == ["out", "of", "memory", "3", "of", "3"]
    assert "a smaller micro_batch_size" in table
    assert "Traceback" not in out + err
    assert run(["best"]) == 3
    assert "no layout was measured: 3 trials failed, out of memory" in capfd.readouterr().err


def test_a_recipe_that_was_removed_is_not_called_unwritten_and_resume_writes_it_anew(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert run(["run", str(write_simulated_search(tmp_path, OK, OK))]) == 0
    (recipe,) = (tmp_path / "runs").glob("*/recipe")
    shutil.rmtree(recipe)
    capfd.readouterr()
    assert run(["best"]) == 0
    assert (
        f"recipe:  missing from the search's folder; parlay resume {recipe.parent.name} writes it"
        in capfd.readouterr().out
    )
    assert run(["resume", recipe.parent.name]) == 0
    assert (recipe / "recipe.yaml").exists()


def test_a_memory_limit_of_the_users_own_is_the_first_to_relax(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    search = str(write_simulated_search(tmp_path, OUT_OF_MEMORY, OUT_OF_MEMORY))
    assert run(["run", search, "--set", "measure.memory_limit_gib=0.25"]) == 3
    assert "2 of 2  a larger measure.memory_limit_gib (now 0.25), a smaller micro_batch_size" in capfd.readouterr().out
    assert run(["logs", "t0001"]) == 0
    heading, advice, *_ = capfd.readouterr().out.splitlines()
    assert heading == "t0001.a1: failed (out of memory)"
    assert advice.startswith("to try: a larger measure.memory_limit_gib (now 0.25), a smaller micro_batch_size, ")


ASKING = ("--set", "constraints.min_free_memory_gib=30")
"""Memory limit of ranks on an H100, whose allocations may take 77.65 GiB."""


def test_layouts_that_leave_too_little_memory_are_no_answer_and_what_to_relax_is_said(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    search = write_simulated_search(tmp_path, {"peak_memory_gib": "70"}, {"peak_memory_gib": "60"}, OUT_OF_MEMORY)
    assert run(["run", str(search), *ASKING]) == 3
    out = capfd.readouterr().out
    nearest = "no layout that was measured leaves 30 GiB free (constraints.min_free_memory_gib): t0002 comes nearest"
    assert out.count(f"{nearest} and leaves 17.7 GiB") == 1
    assert "! t0001, t0002 leave less memory free than required" in out
    table = out[out.index("why no layout was feasible") :].splitlines()
    rows = [" ".join(line.split()) for line in table[1:3]]
    assert rows[0].startswith("out of memory 1 of 3 ")
    assert rows[1].startswith("too full 2 of 3 ")
    assert run(["best"]) == 3
    assert nearest in capfd.readouterr().err


def test_the_best_layout_leaves_the_memory_asked_for_and_the_recipe_has_the_constraint(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    rows = ({"step_time_s": "1.0", "peak_memory_gib": "60"}, {"step_time_s": "2.0", "peak_memory_gib": "40"})
    assert run(["run", str(write_simulated_search(tmp_path, *rows)), *ASKING]) == 0
    capfd.readouterr()
    assert run(["best", "--json"]) == 0
    best = json.loads(capfd.readouterr().out)
    assert (best["trial"], best["peak_memory_gib"]) == ("t0002", 40.0)
    recipe = yaml.safe_load((Path(best["recipe"]) / "recipe.yaml").read_text())
    assert recipe["constraints"] == {"min_free_memory_gib": 30.0}


def test_a_search_that_ends_before_its_trials_are_used_up_says_why(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(GridSampler, "has_converged", lambda self, history: len(history) == 2)
    search = write_simulated_search(tmp_path, OK, OK, OK)
    assert run(["run", str(search)]) == 0
    out = capfd.readouterr().out
    assert "is completed (converged: no remaining layout is likely to be faster)" in out
    assert run(["status", "--json"]) == 0
    assert '"end_reason": "converged"' in capfd.readouterr().out


def search_killed_before_its_last_events(tmp_path: Path) -> SearchFolder:
    assert run(["run", str(write_simulated_search(tmp_path, OK, OK)), "--set", "search.max_trials=2"]) == 0
    (folder,) = (SearchFolder(path.parent) for path in (tmp_path / "runs").glob("*/journal.jsonl"))
    lines = folder.journal.read_bytes().splitlines(keepends=True)
    folder.journal.write_bytes(b"".join(lines[:-3]))
    return folder


@pytest.mark.fault(45)
def test_code_that_changed_since_the_search_began_is_said_and_nothing_is_launched(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    folder = search_killed_before_its_last_events(tmp_path)
    program = folder.code / "trials" / "trial.py"
    program.write_text(program.read_text() + "\n# faster\n")
    before = folder.journal.read_bytes()
    capfd.readouterr()
    assert run(["resume", str(folder.path), "--ledger", f"sqlite:///{tmp_path}/other.db"]) == 2
    assert "has changed since the search was created" in capfd.readouterr().err
    assert b"attempt_submitted" not in folder.journal.read_bytes().removeprefix(before)


def test_a_search_that_is_named_by_its_folder_is_called_so_in_what_to_do_next(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    folder = search_killed_before_its_last_events(tmp_path)
    folder.path.rename(tmp_path / "runs" / "of last week")
    capfd.readouterr()
    assert run(["status", "runs/of last week", "--ledger", f"sqlite:///{tmp_path}/other.db"]) == 0
    told = re.findall(r"parlay (\w+) (.*of last week\S*)", "".join(capfd.readouterr()))
    assert told == [(verb, "'runs/of last week'") for verb in ("replay", "resume", "resume")]


def test_a_damaged_journal_is_reported_with_what_to_do(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    folder = search_killed_before_its_last_events(tmp_path)
    folder.journal.write_text("garbage\n")
    for words in (["status", str(folder.path)], ["resume", str(folder.path)], ["resume", folder.search_id]):
        capfd.readouterr()
        assert run(words) == 6
        err = capfd.readouterr().err
        assert "journal.jsonl:1: " in err
        assert "fix: put journal.jsonl back from a copy of the folder" in err
    assert run(["status", folder.search_id]) == 0


def test_what_python_compiled_of_the_code_is_not_what_a_search_goes_on_with(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = search_killed_before_its_last_events(tmp_path)
    stale = folder.code / "trials" / "__pycache__" / "measure.cpython-311.pyc"
    stale.parent.mkdir()
    stale.write_bytes(b"of other sources")
    assert run(["resume", str(folder.path), "--ledger", f"sqlite:///{tmp_path}/other.db"]) == 0
    assert not stale.exists()


def test_a_trial_that_stopped_early_is_not_named_as_failed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    spec, search = load_search_file(write_simulated_search(tmp_path, OK)), SearchUnderTest()
    search.prune(search.start(Layout(micro_batch_size=2)), 100.0)
    print_search_summary(search.record, spec, SearchFolder(tmp_path))
    assert "failed:" not in capsys.readouterr().out
    search.fail(search.start(Layout(micro_batch_size=4)), FailureReason.HANG)
    print_search_summary(search.record, spec, SearchFolder(tmp_path))
    assert "failed:  parlay logs t0002" in capsys.readouterr().out


def test_a_trial_in_flight_is_shown_with_what_slurm_says_of_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    spec, search = load_search_file(write_simulated_search(tmp_path, OK)), SearchUnderTest()
    trial = search.start(Layout(micro_batch_size=2))
    search.event(EventKind.ATTEMPT_WAITS, trial=trial, attempt="a1", waits_for="suspended")
    print_search_summary(search.record, spec, SearchFolder(tmp_path))
    assert "t0001.a1 running (suspended) for " in capsys.readouterr().out
