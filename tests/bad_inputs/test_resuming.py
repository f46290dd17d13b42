"""Line 44: a search goes on as it was begun. Line 42: so does a recipe."""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path

import pytest

from orchestrator import own_files
from orchestrator.cli.main import run
from tests.bad_inputs.desk import Desk
from tests.orchestrator.cli.recorded import OK, OUT_OF_MEMORY, TABLE_SEARCH, write_recorded_search
from trials.ledger.journal import Journal

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def begun(desk: Desk) -> Path:
    """The folder of a search that has one trial behind it and two before it."""
    write_recorded_search(desk.folder, OK, OUT_OF_MEMORY, OK)
    assert run(["run", "search.yaml", "--json"]) == 0
    [folder] = [path.parent for path in desk.folder.glob("runs/*/journal.jsonl")]
    journal = folder / "journal.jsonl"
    ended = [n for n, event in enumerate(Journal(journal).read()) if event.kind.value == "trial_ended"]
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[: ended[0] + 1]))
    for path in (folder / "trials" / "t0002", folder / "trials" / "t0003", folder / "recipe"):
        shutil.rmtree(path)
    for path in desk.home.glob("ledger.db*"):
        path.unlink()
    desk.capsys.readouterr()
    return folder


def trials_of(folder: Path) -> list[str]:
    """What the journal tells of trials."""
    return [line for line in (folder / "journal.jsonl").read_text().splitlines() if '"trial"' in line]


def resumed(desk: Desk, folder: Path) -> int:
    code = run(["resume", str(folder), "--json"])
    desk.capsys.readouterr()
    return code


@pytest.mark.bad_input(44)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("global_batch_size: 256", "global_batch_size: 512"),
        ("space: {candidates: table.csv}", "space: {tensor_parallel: [1, 2]}"),
        ("search: {", "objective: tokens_per_sec_per_gpu\nsearch: {"),
        ("cluster: dgx-h100", "cluster: {accelerator: h100-80gb, gpus_per_node: 8, num_nodes: 2}"),
    ],
)
def test_a_search_whose_file_was_edited_does_not_go_on_and_a_new_one_is_offered(desk: Desk, begun: Path, old, new):
    assert old in TABLE_SEARCH
    (begun / "search.yaml").write_text(TABLE_SEARCH.replace(old, new))
    before = trials_of(begun)
    assert run(["resume", str(begun), "--json"]) == 2
    said = desk.capsys.readouterr().out
    assert f"parlay run {begun}/search.yaml" in said
    assert "a search goes on with the space, objective and world" in said
    assert trials_of(begun) == before
    (begun / "search.yaml").write_text(TABLE_SEARCH)
    assert resumed(desk, begun) == 0, "nothing is lost"


@pytest.mark.bad_input(44)
def test_a_search_whose_file_is_gone_does_not_go_on(desk: Desk, begun: Path):
    (begun / "search.yaml").unlink()
    assert resumed(desk, begun) == 2


@pytest.mark.bad_input(44)
def test_a_search_of_before_there_was_a_checksum_goes_on(desk: Desk, begun: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("orchestrator.own_files.YAML_SHA256", "of no version")
    (begun / "search.yaml").write_text("edited")
    assert resumed(desk, begun) == 0


@pytest.mark.bad_input(44)
@pytest.mark.security("paths")
def test_a_folder_that_somebody_else_has_put_in_the_place_of_ours_is_not_gone_on_with(
    desk: Desk, begun: Path, monkeypatch: pytest.MonkeyPatch
):
    owner = own_files._owner
    monkeypatch.setattr(own_files, "_owner", lambda path: owner(path) + (path == begun))
    before = files_of(begun)
    for verb in ("resume", "cancel"):
        assert run([verb, str(begun), "--json"]) == 2
        error = json.loads(desk.capsys.readouterr().out)["error"]
        assert (error["code"], error["key"], error["value"]) == ("folder_of_another", "folder", str(begun))
    assert files_of(begun) == before, "a lease of ours would keep its owner out"


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def with_another_name(journal: Path, old: str, new: str) -> None:
    """The journal with this name in the place of the other, its checksums right."""
    lines = [
        line.partition(',"crc32":')[0].replace(f'"{old}"', f'"{new}"') for line in journal.read_text().splitlines()
    ]
    journal.write_text("".join(f'{line},"crc32":"{zlib.crc32(line.encode()):08x}"}}\n' for line in lines))


@pytest.mark.bad_input(45)
@pytest.mark.security("paths")
@pytest.mark.parametrize(
    ("old", "new"), [("t0001", "../../../../x"), ("a1", "../x"), ("t0001", ""), ("t0001", "t1/..")]
)
@pytest.mark.parametrize("verb", ["status", "resume", "cancel"])
def test_a_journal_whose_names_lead_elsewhere_is_not_believed(desk: Desk, begun: Path, verb, old, new):
    with_another_name(begun / "journal.jsonl", old, new)
    error = desk.refused(verb, str(begun), code=6).error
    assert "is no name of a" in error["message"]


@pytest.mark.bad_input(44)
@pytest.mark.parametrize("kept", [["t0002"], ["t0003"], ["t0002", "t0003"]])
def test_a_search_whose_journal_was_put_back_to_an_older_one_runs_nothing_twice(desk: Desk, kept: list[str]):
    write_recorded_search(desk.folder, OK, OUT_OF_MEMORY, OK)
    assert run(["run", "search.yaml", "--json"]) == 0
    [journal] = desk.folder.glob("runs/*/journal.jsonl")
    folder, newest = journal.parent, journal.read_text()
    first = next(n for n, event in enumerate(Journal(journal).read()) if event.kind.value == "trial_ended")
    journal.write_text("".join(newest.splitlines(keepends=True)[: first + 1]))
    for trial in {"t0002", "t0003"} - set(kept):
        shutil.rmtree(folder / "trials" / trial)
    before = files_of(folder / "trials"), trials_of(folder)
    assert run(["resume", str(folder)]) == 6
    said = desk.capsys.readouterr().err
    assert f"{journal} is older than the search: it does not know {', '.join(f'{trial}.a1' for trial in kept)}" in said
    assert f"parlay run {folder}/search.yaml" in said
    assert (files_of(folder / "trials"), trials_of(folder)) == before
    journal.write_text(newest)
    assert resumed(desk, folder) == 0, "what is to be done helps"
    journal.write_text("".join(newest.splitlines(keepends=True)[: first + 1]))
    assert run(["cancel", str(folder)]) == 0
    assert files_of(folder / "trials") == before[0]


DEEP = "[" * 20_000 + "]" * 20_000
READERS = ("status", "resume", "cancel", "watch", "best", "report", "sync", "export", "ledger rebuild")


def with_a_value(journal: Path, kind: str, path: str, value: str) -> None:
    """The journal with this JSON in the place of a value of the first event of this kind, its checksum right."""
    lines = journal.read_text().splitlines()
    place = next(n for n, line in enumerate(lines) if f'"kind":"{kind}"' in line)
    *way, last = path.split(".")
    event = json.loads(lines[place])
    del event["crc32"]
    inner = event
    for name in way:
        inner = inner[name]
    inner[last] = "HERE"
    line = json.dumps(event, separators=(",", ":"))[:-1].replace('"HERE"', value)
    lines[place] = f'{line},"crc32":"{zlib.crc32(line.encode()):08x}"}}'
    journal.write_text("\n".join(lines) + "\n")


@pytest.mark.bad_input(44, 45)
@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("search_created", "data", "[]"),
        ("search_created", "data", DEEP),
        ("search_created", "data.spec", "null"),
        ("trial_proposed", "data.layout", "3"),
        ("trial_proposed", "data.prediction", DEEP),
        ("attempt_submitted", "seq", '"x"'),
        ("attempt_submitted", "data.num_nodes", "1" + "0" * 400),
        ("attempt_ended", "data.outcome.measured.tokens_per_sec", '"x"'),
        ("attempt_ended", "data.outcome.measured.step_time_s", "null"),
        ("attempt_ended", "data.nodes", "7"),
    ],
    ids=lambda value: value[:12],
)
def test_a_journal_whose_checksums_are_right_and_whose_values_are_not_is_said_to_be_damaged(
    desk: Desk, begun: Path, kind, path, value
):
    with_a_value(begun / "journal.jsonl", kind, path, value)
    for verb in READERS:
        assert run([*verb.split(), str(begun)]) == 6, verb
        said = desk.capsys.readouterr().err
        assert str(begun / "journal.jsonl") in said
        assert "Traceback" not in said


@pytest.mark.bad_input(44, 45)
@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema": "parlay.lease/1", "fencing": "x"}', DEEP])
def test_a_lease_that_is_none_is_said_with_what_to_do(desk: Desk, begun: Path, text: str):
    lease = begun / "lease.json"
    lease.write_text(text)
    for verb in ("resume", "cancel", "ledger rebuild"):
        assert run([*verb.split(), str(begun)]) == 6, verb
        assert str(lease) in desk.capsys.readouterr().err
    assert run(["status", str(begun)]) == 0
    assert f"remove {lease}" in desk.capsys.readouterr().err


@pytest.mark.bad_input(44, 45)
@pytest.mark.parametrize("verb", ["resume", "status", "cancel"])
def test_a_file_is_no_search_to_go_on_with(desk: Desk, verb):
    desk.write()
    problem = desk.refused(verb, "search.yaml", code=4).about("search")
    assert (problem["value"], "parlay run search.yaml" in problem["fix"]) == ("search.yaml", True)


@pytest.mark.bad_input(44)
def test_a_search_that_goes_on_takes_no_changes(desk: Desk, begun: Path):
    assert "--set" in desk.refused("resume", str(begun), "--set", "objective=x").error["message"]
