"""Line 44: a search continues with its original file. Line 42: so does a recipe."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from orchestrator.cli.main import main as run
from orchestrator.records import integrity
from tests.bad_inputs.cli import READERS, Cli
from tests.orchestrator.cli.simulated import TABLE_SEARCH
from tests.trials.ledger.stories import with_a_value
from trials.ledger.journal import Journal


@pytest.fixture
def begun(ended: Path) -> Path:
    """Folder of a search with one trial done and two to go."""
    _cut_after_the_first_trial(ended / "journal.jsonl")
    for path in (ended / "trials" / "t0002", ended / "trials" / "t0003", ended / "recipe"):
        shutil.rmtree(path)
    return ended


def _cut_after_the_first_trial(journal: Path) -> None:
    first = next(n for n, event in enumerate(Journal(journal).read()) if event.kind.value == "trial_ended")
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[: first + 1]))


def trials_of(folder: Path) -> list[str]:
    """Trials in the journal."""
    return [line for line in (folder / "journal.jsonl").read_text().splitlines() if '"trial"' in line]


def resumed(cli: Cli, folder: Path) -> int:
    code = run(["resume", str(folder), "--json"])
    cli.capsys.readouterr()
    return code


EDITS = {
    "global_batch_size: 256": "global_batch_size: 512",
    "space: {candidates: table.csv}": "space: {tensor_parallel: [1, 2]}",
    "search: {": "objective: tokens_per_sec_per_gpu\nsearch: {",
    "cluster: dgx-h100": "cluster: {accelerator: h100-80gb, gpus_per_node: 8, num_nodes: 2}",
}


@pytest.mark.slow
@pytest.mark.bad_input(44)
def test_a_search_whose_file_was_edited_or_is_gone_does_not_go_on_and_a_new_one_is_offered(cli: Cli, begun: Path):
    before = trials_of(begun)
    (begun / "search.yaml").unlink()
    assert resumed(cli, begun) == 2
    for old, new in EDITS.items():
        assert old in TABLE_SEARCH
        (begun / "search.yaml").write_text(TABLE_SEARCH.replace(old, new))
        assert run(["resume", str(begun), "--json"]) == 2, new
        said = cli.capsys.readouterr().out
        assert f"parlay run {begun}/search.yaml" in said
        assert "a search goes on with the space, objective and cluster" in said
    assert trials_of(begun) == before
    (begun / "search.yaml").write_text(TABLE_SEARCH)
    assert resumed(cli, begun) == 0, "nothing is lost"


@pytest.mark.bad_input(44)
@pytest.mark.security("paths")
def test_a_folder_that_somebody_else_has_put_in_the_place_of_ours_is_not_gone_on_with(
    cli: Cli, begun: Path, monkeypatch: pytest.MonkeyPatch
):
    owner = integrity._owner
    monkeypatch.setattr(integrity, "_owner", lambda path: owner(path) + (path == begun))
    before = files_of(begun)
    for verb in ("resume", "cancel"):
        assert run([verb, str(begun), "--json"]) == 2
        error = json.loads(cli.capsys.readouterr().out)["error"]
        assert (error["code"], error["key"], error["value"]) == ("folder_of_another", "folder", str(begun))
    assert files_of(begun) == before, "a lease of ours would keep its owner out"


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.bad_input(45)
@pytest.mark.security("paths")
def test_a_journal_whose_names_lead_elsewhere_is_not_believed(cli: Cli, begun: Path):
    """One case; tests/trials/ledger/test_events.py has more such names."""
    journal = begun / "journal.jsonl"
    journal.write_text(with_a_value(journal.read_text(), "trial_proposed", "data.trial", '"../../../../x"'))
    for verb in ("status", "resume", "cancel"):
        error = cli.refused(verb, str(begun), code=6).error
        assert "is not a name of a" in error["message"]


@pytest.mark.slow
@pytest.mark.bad_input(44)
@pytest.mark.parametrize("kept", [["t0002"], ["t0003"], ["t0002", "t0003"]])
def test_a_search_whose_journal_was_put_back_to_an_older_one_runs_nothing_twice(cli: Cli, ended: Path, kept: list[str]):
    folder, journal = ended, ended / "journal.jsonl"
    newest = journal.read_text()
    assert run(["ledger", "rebuild", str(folder)]) == 0, "the ledger knows all of it"
    _cut_after_the_first_trial(journal)
    for trial in {"t0002", "t0003"} - set(kept):
        shutil.rmtree(folder / "trials" / trial)
    before = files_of(folder / "trials"), trials_of(folder)
    assert run(["resume", str(folder)]) == 6
    said = cli.capsys.readouterr().err
    assert f"{journal} is older than the search: it lacks {', '.join(f'{trial}.a1' for trial in kept)}" in said
    assert f"parlay run {folder}/search.yaml" in said
    assert (files_of(folder / "trials"), trials_of(folder)) == before
    journal.write_text(newest)
    assert resumed(cli, folder) == 0, "what is to be done helps"
    _cut_after_the_first_trial(journal)
    assert run(["cancel", str(folder)]) == 0
    assert files_of(folder / "trials") == before[0]


DEEP = "[" * 20_000 + "]" * 20_000


@pytest.mark.bad_input(44, 45)
@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [("trial_proposed", "data.prediction", DEEP), ("attempt_ended", "data.nodes", "7")],
    ids=["too deep", "another type"],
)
def test_a_journal_whose_checksums_are_right_and_whose_values_are_not_is_said_to_be_damaged(
    cli: Cli, begun: Path, kind, path, value
):
    """One case; tests/trials/ledger/test_journal.py has more such values."""
    journal = begun / "journal.jsonl"
    journal.write_text(with_a_value(journal.read_text(), kind, path, value))
    for verb in READERS:
        assert run([*verb.split(), str(begun)]) == 6, verb
        said = cli.capsys.readouterr().err
        assert str(journal) in said
        assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.bad_input(44, 45)
def test_a_lease_that_is_none_is_said_with_what_to_do(cli: Cli, begun: Path):
    lease = begun / "lease.json"
    for text in ("", "{}", "[]", '{"schema": "parlay.lease/1", "fencing": "x"}', DEEP):
        lease.write_text(text)
        for verb in ("resume", "cancel", "ledger rebuild"):
            assert run([*verb.split(), str(begun)]) == 6, (verb, text[:80])
            assert str(lease) in cli.capsys.readouterr().err
        assert run(["status", str(begun)]) == 0
        assert f"remove {lease}" in cli.capsys.readouterr().err


@pytest.mark.bad_input(44, 45)
def test_a_file_is_no_search_to_go_on_with_and_a_search_takes_no_changes(cli: Cli, begun: Path):
    assert "--set" in cli.refused("resume", str(begun), "--set", "objective=x").error["message"]
    cli.write()
    for verb in ("resume", "status", "cancel"):
        problem = cli.refused(verb, "search.yaml", code=4).about("search")
        assert (problem["value"], "parlay run search.yaml" in problem["fix"]) == ("search.yaml", True)
