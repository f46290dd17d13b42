"""Whole searches with third-party trainers, replaced by scripts with the same output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.orchestrator.cli.parlay import Answer, parlay, parlay_here, write_search
from tests.trials.external.ranks import FAKE

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

SEARCH = """\
schema: parlay.search/1
name: theirs
model: {num_layers: 2, hidden_size: 32, num_attention_heads: 2, vocab_size: 64, seq_length: 16}
cluster: {accelerator: cpu, gpus_per_node: 2, num_nodes: 1}
global_batch_size: 8
space:
  tensor_parallel: [1, 2]
  micro_batch_size: [1, 2]
search: {sampler: grid, max_trials: 4, finalists: 0}
measure: {min_steps: 5, max_steps: 20, max_warmup_steps: 10, ci_relative_width: 0.5, early_stopping: false}
launcher: {kind: local}
tracking: {enabled: false}
"""
MEGATRON = SEARCH + f"trainer: {{kind: megatron-lm, script: {FAKE}}}\n"
COMMAND = (
    SEARCH
    + f"""\
trainer:
  kind: command
  template: >-
    {{python}} {FAKE} --train-iters {{train_iterations}} --global-batch-size {{global_batch_size}}
    --micro-batch-size {{micro_batch_size}} --tensor-model-parallel-size {{tensor_parallel}}
    --pipeline-model-parallel-size {{pipeline_parallel}} --honest
  patterns: {{step_time_ms: 'per iteration \\(ms\\): ([\\d.]+) \\|', iteration: 'iteration +(\\d+)/'}}
  log_rank: last
"""
)


def run(place: Path, text: str, *words: str) -> Answer:
    return parlay("run", write_search(place, text), "--json", *words, cwd=place, timeout_s=240)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    place = tmp_path_factory.mktemp("theirs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARLAY_HOME", str(place / "home"))
        answer = run(place, MEGATRON)
    assert answer.code == 0, answer.err
    return place, answer.json


@pytest.fixture
def in_its_home(finished, monkeypatch):
    monkeypatch.setenv("PARLAY_HOME", str(finished[0] / "home"))
    return finished


def test_a_search_with_megatron_ends_in_a_recipe_of_its_layouts(finished):
    _, answer = finished
    assert answer["trials"] == {"measured": 4, "stopped_early": 0, "failed": 0, "cancelled": 0, "in_flight": 0}
    best = answer["best"]
    assert (best["layout"]["engine"], best["layout"]["micro_batch_size"]) == ("megatron-lm", 1)
    assert best["tokens_per_sec"] == pytest.approx(8 * 16 / 0.101, rel=0.01)
    recipe = Path(answer["recipe"])
    assert json.loads((recipe / "spec.json").read_text())["trainer"] == {
        "kind": "megatron-lm",
        "script": FAKE,
        "arguments": [],
    }
    assert "-m trials.external" in (recipe / "launch.sh").read_text()
    assert (recipe / "code/trials/external/program.py").exists()
    words = (recipe / "README.md").read_text()
    assert (
        "**Megatron-LM**, measured with this trainer on an emulated device; this line was not run (`megatron_args.txt`)"
        in words
    )
    assert FAKE in (recipe / "command.txt").read_text()


def test_what_its_flags_mean_is_said_beside_the_best_and_below_the_table(in_its_home):
    place, answer = in_its_home
    assert answer["best"]["flags"] == ["emulated_device"]
    meanings = ("emulated_device: a CPU emulated the engine's GPU",)
    best, status = (parlay_here(verb, cwd=place).out for verb in ("best", "status"))
    recipe = Path(answer["recipe"], "README.md").read_text()
    for meaning in meanings:
        assert f"\n{meaning}" in best
        assert f"\n! t0001, t0002, t0003, t0004 {meaning}" in status
        assert f"\n- Flagged {meaning}" in recipe


def test_its_recipe_is_replayed_with_the_same_trainer(in_its_home):
    place, answer = in_its_home
    replayed = parlay("replay", answer["search_id"], "--repeats", "1", "--sessions", "1", "--json", cwd=place)
    assert replayed.code in (0, 13), replayed.err
    assert replayed.json["measured"] == pytest.approx(answer["best"]["tokens_per_sec"], rel=0.02)


def test_a_search_with_any_command_ends_in_a_recipe(tmp_path):
    answer = run(tmp_path, COMMAND, "--set", "search.max_trials=2")  # of two sizes of micro-batch
    assert answer.code == 0, answer.err
    assert answer.json["best"]["layout"]["engine"] == "command"
    assert answer.json["best"]["layout"]["micro_batch_size"] == 1
    assert Path(answer.json["recipe"], "recipe.yaml").exists()


def test_out_of_memory_is_an_ending_of_the_layout_with_the_trainers_words(tmp_path):
    failing = SEARCH.replace("max_trials: 4", "max_trials: 1")
    failing += f"trainer: {{kind: megatron-lm, script: {FAKE}, arguments: [--fault, oom]}}\n"
    answer = run(tmp_path, failing)
    assert answer.code == 3
    assert answer.json["reasons"] == {"gpu_oom": 1}
    logs = parlay_here("logs", "t0001", "--json", cwd=tmp_path).json
    assert "CUDA out of memory" in logs["excerpt"]


def test_the_recipes_own_script_starts_the_trainer_under_its_supervisor(finished, tmp_path):
    _, answer = finished
    script = Path(answer["recipe"], "launch.sh")
    environment = {**os.environ, "PARLAY_PYTHON": sys.executable}
    done = subprocess.run(
        [script, "again"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    [outcome] = tmp_path.glob("again/trials/*/*/outcome.r0.json")
    measured = json.loads(outcome.read_text())["measured"]
    assert measured["tokens_per_sec"] == pytest.approx(answer["best"]["tokens_per_sec"], rel=0.02)
