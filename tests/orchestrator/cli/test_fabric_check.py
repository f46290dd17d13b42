"""`launcher.fabric_check` as a user runs it: before the first trial, on real ranks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.orchestrator.cli.delayed_ranks import delayed_python
from tests.orchestrator.cli.parlay import TINY_SEARCH, parlay, parlay_here, write_search
from trials.ledger.events import Event
from trials.ledger.journal import Journal

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

CHECKED = ("--set", "launcher.fabric_check=true", "--set", "search.max_trials=1", "--json")


def test_a_search_begins_with_the_check_and_takes_its_links(tmp_path):
    search = write_search(tmp_path)
    answer = parlay("run", search, *CHECKED, cwd=tmp_path)
    assert answer.code == 0, answer.err
    check = answer.json["fabric_check"]
    assert (check["state"], check["reason"], check["slow_nodes"]) == ("measured", None, [])
    assert [domain["num_ranks"] for domain in check["links"]["domains"]] == [2]
    events = journal(tmp_path)
    assert [event.kind for event in events if event.kind in ("fabric_check", "trial_proposed")][-2:] == [
        "fabric_check",
        "trial_proposed",
    ]
    told = parlay_here("status", answer.json["search_id"], cwd=tmp_path)
    assert "predictions use the links that the check measured on 1 node" in told.out


def test_a_search_goes_on_after_its_check(tmp_path):
    answer = parlay("run", write_search(tmp_path), *CHECKED, cwd=tmp_path)
    assert answer.code == 0, answer.err
    [path] = tmp_path.rglob("journal.jsonl")
    first = next(number for number, event in enumerate(journal(tmp_path)) if event.kind == "trial_proposed")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:first]))
    shutil.rmtree(path.parent / "trials" / "t0001")
    shutil.rmtree(path.parent / "recipe")
    resumed = parlay("resume", answer.json["search_id"], "--json", cwd=tmp_path)
    assert resumed.code == 0, resumed.err
    assert resumed.json["state"] == "completed"
    assert (path.parent / "trials" / "t0000" / "a1").is_dir()
    assert not (path.parent / "trials" / "t0000" / "a2").exists()


@pytest.mark.walks
def test_a_slow_node_of_a_real_slurm_is_named_and_its_trials_avoid_it(tmp_path, slurm_sandbox):
    text = TINY_SEARCH.replace("gpus_per_node: 2, num_nodes: 1", "gpus_per_node: 1, num_nodes: 4")
    text = text.replace("baseline: {tensor_parallel: 2, micro_batch_size: 1}\n", "")
    text = text.replace("  tensor_parallel: [1, 2]\n", "  num_nodes: [2]\n")
    search = write_search(tmp_path, text)
    python = delayed_python(tmp_path, "SLURMD_NODENAME", "n3")
    words = ("run", search, "--launcher", "slurm", "--set", f"trainer.python={python}", *CHECKED)
    answer = parlay(*words, cwd=tmp_path, timeout_s=280.0, variables=slurm_sandbox.environment)
    assert answer.code == 0, answer.err
    check = answer.json["fabric_check"]
    assert (check["slow_nodes"], check["num_available"]) == (["n3"], 4)
    assert check["findings"][0].startswith("n3 is slow: it explains ")
    [submitted] = [event for event in journal(tmp_path) if event.kind == "attempt_submitted"]
    assert submitted.data["exclude"] == ["n3"]
    assert check["node_hours"] > 0


def journal(folder: Path) -> list[Event]:
    [path] = folder.rglob("journal.jsonl")
    return Journal(path).read()
