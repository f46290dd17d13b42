"""Whole searches with packaged engines, on prepared tokens, and with a script in the place of a third-party trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from search_spaces.engines import ACCELERATE, MEGATRON_CORE, TORCHTITAN
from tests.kit import ABSENT, TINY_SEARCH, search_file
from tests.orchestrator.cli.parlay import parlay
from tests.trials.external.ranks import FAKE
from tests.trials.train.parity import needs_accelerate, needs_megatron, needs_torchtitan
from trials.trial import Flag

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

GRID = {"sampler": "grid", "max_trials": 4}
THEIRS = {
    "baseline": ABSENT,
    "space": {"pipeline_parallel": ABSENT, "micro_batch_size": [1, 2]},
    "search": GRID,
    "measure": {"max_steps": 20, "max_warmup_steps": 10, "ci_relative_width": 0.5, "early_stopping": False},
}
MEGATRON_LM = {"kind": "megatron-lm", "script": FAKE}
COMMAND = {
    "kind": "command",
    "template": f"{{python}} {FAKE} --train-iters {{train_iterations}} --global-batch-size {{global_batch_size}}"
    " --micro-batch-size {micro_batch_size} --tensor-model-parallel-size {tensor_parallel}"
    " --pipeline-model-parallel-size {pipeline_parallel} --honest",
    "patterns": {"step_time_ms": r"per iteration \(ms\): ([\d.]+) \|", "iteration": r"iteration +(\d+)/"},
    "log_rank": "last",
}
PACKAGED = {"search": GRID, "measure": {"early_stopping": False}}
DEGREES = {"sequence_parallel": True, "micro_batch_size": 2}
ONE_DEGREE = {"tensor_parallel": 1, "pipeline_parallel": 1}
LLAMA = {
    "ffn_hidden_size": 64,
    "norm": "rmsnorm",
    "position_embedding": "rotary",
    "gated_mlp": True,
    "tied_embeddings": False,
}
LARGE_BATCH = {"tensor_parallel": 2, "micro_batch_size": 4}


def finished(folder: Path, **changes: Any) -> dict[str, Any]:
    """The answer for a tiny search with these changes, which has ended."""
    path = search_file(folder, TINY_SEARCH, tracking={"enabled": False}, **changes)
    answer = parlay("run", path, "--json", cwd=folder)
    assert answer.code == 0, answer.err
    return answer.json


def replayed(folder: Path, recipe: str) -> dict[str, Any]:
    return parlay("replay", recipe, "--repeats", "1", "--sessions", "1", "--json", cwd=folder).json


@pytest.mark.walks
@pytest.mark.parametrize(
    ("engine", "changes"),
    [
        pytest.param(MEGATRON_CORE, {"space": DEGREES | {"zero_stage": 1}}, marks=needs_megatron, id=MEGATRON_CORE),
        pytest.param(
            TORCHTITAN,
            {"space": DEGREES | {"zero_stage": 2, "attention_kernel": "flex"}, "model": LLAMA},
            marks=[needs_torchtitan, pytest.mark.walks],
            id=TORCHTITAN,
        ),
        pytest.param(
            ACCELERATE,
            {"space": ONE_DEGREE | {"micro_batch_size": [1, 2], "zero_stage": [2, 3]}, "baseline": ONE_DEGREE},
            marks=[needs_accelerate, pytest.mark.walks],
            id=ACCELERATE,
        ),
    ],
)
def test_a_search_with_a_packaged_engine_ends_in_a_recipe_that_is_replayed(tmp_path, engine, changes):
    space = changes["space"] | {"engine": engine}
    baseline = LARGE_BATCH | changes.get("baseline", {})
    answer = finished(tmp_path, **PACKAGED | changes | {"space": space, "baseline": baseline})
    assert answer["trials"] == {"measured": 4, "stopped_early": 0, "failed": 0, "cancelled": 0, "in_flight": 0}
    best, recipe = answer["best"], Path(answer["recipe"])
    assert Flag.EMULATED_DEVICE.value in best["flags"]
    assert best["layout"]["engine"] == engine
    assert "-m trials.train" in (recipe / "launch.sh").read_text()
    assert json.loads((recipe / "spec.json").read_text())["layout"] == best["layout"]
    assert replayed(tmp_path, str(recipe))["measured"] > 0


def test_a_search_with_megatron_lm_ends_in_a_recipe_that_is_replayed_with_it(tmp_path):
    answer = finished(tmp_path, **THEIRS, trainer=MEGATRON_LM)
    assert answer["trials"]["measured"] == 4
    best, recipe = answer["best"], Path(answer["recipe"])
    assert (best["layout"]["engine"], best["layout"]["micro_batch_size"]) == ("megatron-lm", 1)
    assert best["tokens_per_sec"] == pytest.approx(8 * 16 / 0.101, rel=0.01)
    assert json.loads((recipe / "spec.json").read_text())["trainer"] == MEGATRON_LM | {"arguments": []}
    assert "-m trials.external" in (recipe / "launch.sh").read_text()
    assert (recipe / "code/trials/external/program.py").exists()
    assert FAKE in (recipe / "command.txt").read_text()
    assert replayed(tmp_path, str(recipe))["measured"] == pytest.approx(best["tokens_per_sec"], rel=0.02)


def test_a_search_with_any_command_ends_in_a_recipe(tmp_path):
    answer = finished(tmp_path, **THEIRS | {"search": GRID | {"max_trials": 2}}, trainer=COMMAND)
    best = answer["best"]["layout"]
    assert (best["engine"], best["micro_batch_size"]) == ("command", 1)
    assert Path(answer["recipe"], "recipe.yaml").exists()
