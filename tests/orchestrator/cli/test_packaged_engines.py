"""Whole searches by engines that are packages, with real ranks: local to a recipe and its replay, and in a pilot."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from search_spaces.engines import ACCELERATE, MEGATRON_CORE, TORCHTITAN
from tests.orchestrator.cli.parlay import parlay, write_search
from tests.trials.train.parity import needs_accelerate, needs_megatron, needs_torchtitan
from trials.trial import Flag

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

SEARCH = """\
schema: parlay.search/1
name: packaged
model: {{num_layers: 2, hidden_size: 32, num_attention_heads: 2, vocab_size: 64, seq_length: 16{model}}}
cluster: {{accelerator: cpu, gpus_per_node: 2, num_nodes: 1}}
global_batch_size: 8
baseline: {{{baseline}}}
space:
  engine: {name}
  {space}
search: {{sampler: grid, max_trials: 4, finalists: 0}}
measure: {{min_steps: 5, max_steps: 6, max_warmup_steps: 3, ci_relative_width: 1.0, early_stopping: false}}
launcher: {{kind: local}}
tracking: {{enabled: false}}
"""
MEASURED = {"stopped_early": 0, "failed": 0, "cancelled": 0, "in_flight": 0}


@dataclass(frozen=True)
class Engine:
    """An engine, and its search: the end of the section `model`, the sections `baseline` and `space`."""

    name: str
    model: str
    space: str
    baseline: str = "tensor_parallel: 2, micro_batch_size: 4"

    @property
    def search(self) -> str:
        return SEARCH.format(name=self.name, model=self.model, space=self.space, baseline=self.baseline)


_DEGREES = "tensor_parallel: [1, 2]\n  pipeline_parallel: [1, 2]\n  sequence_parallel: true\n  micro_batch_size: 2"
OF_MEGATRON = Engine(MEGATRON_CORE, "", f"{_DEGREES}\n  zero_stage: 1")
OF_TORCHTITAN = Engine(
    TORCHTITAN,
    ", ffn_hidden_size: 64, norm: rmsnorm, position_embedding: rotary, gated_mlp: true, tied_embeddings: false",
    f"{_DEGREES}\n  zero_stage: 2\n  attention_kernel: flex",
)
OF_ACCELERATE = Engine(
    ACCELERATE,
    "",
    "tensor_parallel: 1\n  pipeline_parallel: 1\n  micro_batch_size: [1, 2]\n  zero_stage: [2, 3]",
    "micro_batch_size: 4",
)


@pytest.fixture(
    params=[
        pytest.param(OF_MEGATRON, id=MEGATRON_CORE, marks=needs_megatron),
        pytest.param(OF_TORCHTITAN, id=TORCHTITAN, marks=[needs_torchtitan, pytest.mark.walks]),
        pytest.param(OF_ACCELERATE, id=ACCELERATE, marks=[needs_accelerate, pytest.mark.walks]),
    ]
)
def engine(request) -> Engine:
    return request.param


def test_a_search_ends_in_a_recipe_that_is_replayed(tmp_path, engine):
    answer = parlay("run", write_search(tmp_path, engine.search), "--json", cwd=tmp_path)
    assert answer.code == 0, answer.err
    assert answer.json["trials"] == {"measured": 4, **MEASURED}
    best, recipe = answer.json["best"], Path(answer.json["recipe"])
    assert Flag.EMULATED_DEVICE.value in best["flags"]
    assert best["layout"]["engine"] == engine.name
    assert "-m trials.train" in (recipe / "launch.sh").read_text()
    assert json.loads((recipe / "spec.json").read_text())["layout"] == best["layout"]
    replayed = parlay("replay", recipe, "--repeats", "1", "--sessions", "1", "--json", cwd=tmp_path)
    assert replayed.json["measured"] > 0, replayed.err


def test_trials_are_steps_of_a_pilot(tmp_path, slurm_sandbox, engine):
    words = ("--launcher", "slurm_pilot", "--set", "search.max_trials=2", "--set", "launcher.slurm.poll_interval=1s")
    path = write_search(tmp_path, engine.search)
    answer = parlay("run", path, *words, "--json", cwd=tmp_path, variables=slurm_sandbox.environment)
    assert answer.code == 0, answer.err
    assert answer.json["trials"] == {"measured": 2, **MEASURED}
